//! The kinds of work that jobs are, when policies are in service.

use tilewright_plan::{Device, FieldOf, Recorder, Work, each};
use tilewright_policy::Governed;

use crate::tally::Kind;

/// A kind of work that jobs are.
pub trait Served: Governed + FieldOf<Warm, Field = Vec<Recorder<Self>>> {}

impl<W: Governed + FieldOf<Warm, Field = Vec<Recorder<W>>>> Served for W {}

/// Warm instances of a revision that no worker holds. An instance learns of one kind of work.
pub type Warm = each!(Vec<Recorder>);

/// The facts of requests, as records name them, that differ between jobs of the same work.
const INCIDENTAL: [&str; 5] = ["host_total_bytes", "host_free_bytes", "transfer_rate", "sigmas", "hints"];

/// The kind of a request: work that can be compared is the same, on the same device, with the same
/// objective.
pub fn kind<W: Work>(request: &W::Request, device: &Device) -> Kind {
    let mut facts = serde_json::to_value(request).unwrap_or_default();
    if let Some(facts) = facts.as_object_mut() {
        facts.retain(|name, _| !INCIDENTAL.contains(&name.as_str()));
    }
    format!("{facts} {} {}", device.name, device.arch)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tilewright_gate::work::Judged;
    use tilewright_plan::of_kinds;

    use super::*;

    fn kinds_differ_by_what_the_work_depends_on<W: Judged>() {
        let golden = W::golden().remove(0);
        let (request, device) = (golden.request, golden.device);
        let of = |changes: Value| {
            let mut changed = serde_json::to_value(&request).unwrap();
            let known = changed.as_object_mut().unwrap();
            changes.as_object().unwrap().iter().for_each(|(name, value)| {
                // A name that a request lacks would change nothing.
                if let Some(fact) = known.get_mut(name) {
                    *fact = value.clone();
                }
            });
            kind::<W>(&serde_json::from_value(changed).unwrap(), &device)
        };
        let plain = kind::<W>(&request, &device);
        let host = json!({ "host_total_bytes": 1, "host_free_bytes": 2, "transfer_rate": 3 });
        assert_eq!(of(host), plain);
        assert_eq!(of(json!({ "sigmas": [1.0, 0.0], "hints": [{ "name": "a", "value": "b" }] })), plain);
        assert_ne!(of(json!({ "memory_limit": 1 })), plain);
        let objectives = ["fastest", "balanced", "leanest"].map(|objective| of(json!({ "objective": objective })));
        assert!(objectives.contains(&plain) && objectives[0] != objectives[1] && objectives[1] != objectives[2]);
        for other in [Device { name: "other".into(), ..device.clone() }, Device { arch: "other".into(), ..device }] {
            assert_ne!(kind::<W>(&request, &other), plain);
        }
    }

    #[test]
    fn work_can_be_compared_whatever_the_hosts_memory() {
        of_kinds!(W => kinds_differ_by_what_the_work_depends_on::<W>());
    }
}
