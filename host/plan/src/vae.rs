//! Decodes and encodes as a kind of work.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Capabilities, Cost, Device, Dtype, Hint, Objective, Options, Outcome, Plan, PlanOption, PoolStatistics, Precision,
    Question, Request, Stage, Work, exact,
    exchange::mirrored,
    records::{MOST_EXTENT, MOST_HINTS},
    work::named_alike,
};

/// Decodes and encodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Vae;

impl Work for Vae {
    const STAGES: &'static [Stage] = &[Stage::Decode, Stage::Encode];

    const RECORD_TITLE: &'static str = "Tilewright decision record";

    type Request = Request;
    type Capabilities = Capabilities;
    type Plan = Plan;
    type Cost = Cost;
    type Outcome = Outcome;
    type ExactCost = ExactCost;
    type Measured = Measured;

    named_alike!(elapsed);

    fn is_continued(request: &Request) -> bool {
        request.frames > 1
    }

    fn hints(request: &Request) -> &[Hint] {
        &request.hints
    }

    fn capabilities_of_hints(hints: &[Hint]) -> Option<Capabilities> {
        Capabilities::of_hints(hints)
    }

    fn family(request: &Request) -> &str {
        &request.model.family
    }

    fn extents(request: &Request) -> [u32; 4] {
        [request.batch, request.frames, request.height, request.width]
    }

    fn held_bytes(cost: &Cost) -> u64 {
        cost.peak_bytes
    }

    fn measured_bytes(outcome: &Outcome) -> u64 {
        outcome.peak_bytes
    }

    fn fault_of_request(request: &Request) -> Option<String> {
        let extents = [
            ("samples", request.batch),
            ("frames", request.frames),
            ("rows of pixels", request.height),
            ("columns of pixels", request.width),
            ("pixels per latent pixel", request.model.spatial_scale),
            ("frames per latent frame", request.model.temporal_scale),
        ];
        let odd = extents.into_iter().find(|(_, extent)| !(1..=MOST_EXTENT).contains(extent));
        let hints = request.hints.len();
        odd.map(|(what, extent)| format!("{extent} {what}"))
            .or_else(|| (hints > MOST_HINTS).then(|| format!("{hints} hints")))
    }

    fn fault_of_capabilities(capabilities: &Capabilities) -> Option<String> {
        let extents = [("tile_unit", capabilities.tile_unit), ("tile_least", capabilities.tile_least)];
        let odd = extents.into_iter().find(|(_, extent)| !(1..=MOST_EXTENT).contains(extent));
        odd.map(|(what, extent)| format!("{what} {extent}")).or_else(|| {
            (capabilities.dtypes.len() > MOST_HINTS).then(|| format!("{} types", capabilities.dtypes.len()))
        })
    }
}

impl<'a> Question<'a> {
    /// A first question about a decode or an encode: nothing is under way, and nothing failed.
    pub const fn new(stage: Stage, request: &'a Request, device: &'a Device, capabilities: &'a Capabilities) -> Self {
        Self::first(stage, request, device, capabilities)
    }
}

/// A [`Cost`], exact to the bit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExactCost {
    /// The highest memory use, in bytes; with the weights if the request's limit counts them.
    pub peak_bytes: u64,
    /// Bytes of weights in the peak: 0 if the limit does not count them.
    #[serde(default)]
    pub weights_bytes: u64,
    /// Time of the work without loading, in nanoseconds.
    pub elapsed_ns: u64,
    /// Tiles in all.
    pub tiles: u32,
    /// Distinct tensor shapes.
    pub shapes: u32,
    /// Output computed over output kept, as text: JSON's numbers have no infinity, and some readers
    /// drop the last digit.
    #[serde(with = "exact")]
    #[schemars(with = "String")]
    pub rework: f64,
}

/// The part of an [`Outcome`] that policies get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Measured {
    /// Time of the work that succeeded, in nanoseconds.
    pub elapsed_ns: u64,
    /// Time of loading, in nanoseconds.
    #[serde(default)]
    pub load_ns: u64,
    /// The highest memory use, in bytes; with the weights if the request's limit counts them.
    pub peak_bytes: u64,
    /// Bytes of weights in the peak: 0 if the limit does not count them.
    #[serde(default)]
    pub weights_bytes: u64,
    /// Attempts, the one that succeeded included.
    pub attempts: u32,
}

mirrored!(
    ExactCost from Cost, Cost from &ExactCost:
    peak_bytes, weights_bytes, tiles, shapes, rework; elapsed_ns = elapsed
);
mirrored!(
    Measured from &Outcome, Outcome from Measured:
    peak_bytes, weights_bytes, attempts; elapsed_ns = elapsed, load_ns = load; Self::default()
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::Price;

    #[test]
    fn costs_come_back_to_the_bit() {
        for rework in [1.0, 1.0 / 3.0, f64::MAX, 5e-324, f64::INFINITY, 0.1 + 0.2] {
            for nanoseconds in [0, 1, 999_999_999_999_999_999, u64::MAX] {
                let elapsed = Duration::from_nanos(nanoseconds);
                let cost = Cost { peak_bytes: u64::MAX, weights_bytes: 1, elapsed, tiles: 3, shapes: 2, rework };
                let text = serde_json::to_string(&Price::<Vae>::new(Ok(cost))).unwrap();
                let price: Price = serde_json::from_str(&text).unwrap();
                let back = price.cost().unwrap();
                assert_eq!((back.rework.to_bits(), back.elapsed), (rework.to_bits(), elapsed), "{text}");
            }
        }
        let cost = ExactCost { peak_bytes: 1, weights_bytes: 0, elapsed_ns: 1, tiles: 1, shapes: 1, rework: f64::NAN };
        let text = serde_json::to_string(&cost).unwrap();
        assert!(serde_json::from_str::<ExactCost>(&text).unwrap().rework.is_nan());
        assert!(serde_json::from_str::<ExactCost>(&text.replace("NaN", "one")).is_err());
    }
}
