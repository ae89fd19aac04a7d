//! What the policy remembers of its own decisions' outcomes while its instance lives: with it a long-lived host gets better answers even
//! where no history is kept. It only ever changes when an outcome is told, so that a fresh instance answers by its inputs alone.

use tilewright_sdk::{Outcome, Plan, Request};

use crate::correct::{Ratio, Seen, pixels};

/// The most entries; the one that was not heard of for longest goes first.
const MOST: usize = 64;

/// What was expected of the plan that was answered last. The host prices nothing while it tells an outcome, so this is kept until then;
/// it never enters a decision. No heap is used, so that a decision costs the same fuel however many came before.
#[derive(Clone, Copy, Debug)]
struct Expected {
    place: u64,
    extents: [u32; 4],
    elapsed_ns: u64,
    peak_bytes: u64,
}

/// Ratios of measured to estimated per model, device, kind of space, precision and memory order.
#[derive(Debug, Default)]
pub struct Learnt {
    expected: Option<(Expected, Plan)>,
    entries: Vec<(u64, Seen)>,
}

impl Learnt {
    /// Keeps what the host expects of a plan, uncorrected, until its outcome is told.
    pub fn expect(&mut self, request: &Request, plan: &Plan, elapsed_ns: u64, peak_bytes: u64) {
        let plan = Plan { reason: String::new(), ..*plan };
        self.expected =
            Some((Expected { place: place(request), extents: extents(request), elapsed_ns, peak_bytes }, plan));
    }

    /// Adds an outcome. One of a plan other than the last answer says nothing: what was expected of it is not known.
    pub fn note(&mut self, request: &Request, plan: &Plan, outcome: &Outcome) {
        let Some((expected, answered)) = &self.expected else { return };
        let place = place(request);
        if expected.place != place || expected.extents != extents(request) || !answered.is_like(plan) {
            return;
        }
        let alike = |(known, seen): &(u64, Seen)| {
            *known == place
                && seen.plan.kind() == plan.kind()
                && seen.plan.precision == plan.precision
                && seen.plan.layout == plan.layout
        };
        let mut ratio = Ratio::default();
        if let Some(index) = self.entries.iter().position(alike) {
            ratio = self.entries.remove(index).1.ratio;
        } else if self.entries.len() == MOST {
            self.entries.remove(0);
        }
        ratio.note(
            outcome.elapsed_ns as f64 / expected.elapsed_ns as f64,
            outcome.peak_bytes as f64 / expected.peak_bytes as f64,
        );
        let plan = Plan { reason: String::new(), ..*plan };
        let pixels = pixels(&plan, (request.height, request.width));
        self.entries.push((place, Seen { plan, pixels, ratio }));
    }

    /// What was learnt of this model on this device.
    pub fn about(&self, request: &Request) -> impl Iterator<Item = &Seen> {
        let place = if self.entries.is_empty() { 0 } else { place(request) };
        self.entries.iter().filter(move |(known, _)| *known == place).map(|(_, seen)| seen)
    }
}

fn extents(request: &Request) -> [u32; 4] {
    [request.batch, request.frames, request.height, request.width]
}

/// The model and the device in 64 bits: FNV-1a over what tells them apart.
fn place(request: &Request) -> u64 {
    let (model, device) = (&request.model, &request.device);
    let numbers = [
        u64::from(model.stored as u8),
        u64::from(model.quantized),
        model.parameter_bytes,
        u64::from(model.spatial_scale),
        u64::from(model.temporal_scale),
        u64::from(device.backend as u8),
    ];
    let texts = [&model.family, &device.name, &device.arch];
    let texts = texts.into_iter().flat_map(|text| text.bytes().chain([0xff]));
    let bytes = numbers.into_iter().flat_map(u64::to_le_bytes).chain(texts);
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
