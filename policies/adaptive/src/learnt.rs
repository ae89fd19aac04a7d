//! What the policy remembers of its own decisions' outcomes while its instance lives: with it a long-lived host gets better answers even
//! where no history is kept. It only ever changes when an outcome is told, so that a fresh instance answers by its inputs alone.

use tilewright_sdk::{Cost, Dtype, Outcome, Plan, Precision, Request};

use crate::correct::{self, Ratio, Seen, manner, pixels};

/// The most entries; the one that was not heard of for longest goes first.
const MOST: usize = 64;

/// What was expected of the plan that was answered last. The host prices nothing while it tells an outcome, so this is kept until then;
/// it never enters a decision. No heap is used, and it is there from the start, so that a decision costs the same fuel however many came
/// before.
#[derive(Debug)]
struct Expected {
    place: u64,
    /// All 0 as long as nothing was answered.
    extents: [u32; 4],
    plan: Plan,
    elapsed_ns: u64,
    peak_bytes: u64,
}

/// Ratios of measured to estimated per model, device, manner, precision and memory order.
#[derive(Debug)]
pub struct Learnt {
    expected: Expected,
    entries: Vec<(u64, Seen)>,
}

impl Default for Learnt {
    fn default() -> Self {
        let plan = Plan::whole(Precision::Uniform(Dtype::F32));
        let expected = Expected { place: 0, extents: [0; 4], plan, elapsed_ns: 0, peak_bytes: 0 };
        Self { expected, entries: Vec::new() }
    }
}

impl Learnt {
    /// Keeps what the host expects of a plan, uncorrected, until its outcome is told.
    pub fn expect(&mut self, request: &Request, plan: &Plan, cost: &Cost) {
        self.expected = Expected {
            place: place(request),
            extents: extents(request),
            plan: Plan { reason: String::new(), ..*plan },
            elapsed_ns: cost.elapsed_ns,
            peak_bytes: cost.peak_bytes,
        };
    }

    /// Adds an outcome. One of a plan other than the last answer says nothing: what was expected of it is not known.
    pub fn note(&mut self, request: &Request, plan: &Plan, outcome: &Outcome) {
        let (expected, place) = (&self.expected, place(request));
        if expected.place != place || expected.extents != extents(request) || !expected.plan.is_like(plan) {
            return;
        }
        let alike = |(known, seen): &(u64, Seen)| {
            *known == place
                && manner(&seen.plan) == manner(plan)
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
        let pixels = pixels(&plan, correct::extents(request));
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

/// The model and the device in 64 bits: FNV-1a over what tells them apart, number by number and text by text.
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
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut mix = |word: u64| hash = (hash ^ word).wrapping_mul(0x0100_0000_01b3);
    for number in numbers {
        mix(number);
    }
    // Encoding and decoding are different work.
    for text in [&model.family, &device.name, &device.arch, request.hint("stage").unwrap_or_default()] {
        for byte in text.as_bytes() {
            mix(u64::from(*byte));
        }
        // No byte of a text: where it ends tells it from the next.
        mix(0x100);
    }
    hash
}
