//! The ratios that the policy has learnt from outcomes, so that a long-lived host gets better
//! answers even without a history. They only change when an outcome is told: a decision leaves
//! nothing behind.

use tilewright_sdk::{Outcome, Plan, Request, host};

use crate::correct::{Ratio, Seen, extents, manner, pixels};

/// The most entries; the one that was not heard of for longest goes first.
const MOST: usize = 64;

/// Ratios of measured to estimated per model, device, manner, precision and memory order.
#[derive(Debug, Default)]
pub struct Learnt {
    entries: Vec<(u64, Seen)>,
}

impl Learnt {
    /// Adds an outcome. While the host tells it, it prices the carried-out plan as decided; the
    /// outcome of a plan that was not decided on is ignored, since its expected cost is not known.
    pub fn note(&mut self, request: &Request, plan: &Plan, outcome: &Outcome) {
        let Ok(expected) = host::estimate_one(plan) else { return };
        let place = place(request);
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
        let pixels = pixels(&plan, extents(request));
        self.entries.push((place, Seen { plan, pixels, ratio }));
    }

    /// The ratios of this model on this device.
    pub fn about(&self, request: &Request) -> impl Iterator<Item = &Seen> {
        let place = if self.entries.is_empty() { 0 } else { place(request) };
        self.entries.iter().filter(move |(known, _)| *known == place).map(|(_, seen)| seen)
    }
}

/// The model and the device in 64 bits: FNV-1a over what tells them apart, number by number and
/// text by text.
fn place(request: &Request) -> u64 {
    let (model, device) = (&request.model, &request.device);
    let numbers = [
        // Encoding and decoding are different work.
        u64::from(request.direction as u8),
        u64::from(model.stored as u8),
        u64::from(model.quantized),
        model.parameter_bytes,
        u64::from(request.spatial_scale),
        u64::from(request.temporal_scale),
        u64::from(device.backend as u8),
    ];
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut mix = |word: u64| hash = (hash ^ word).wrapping_mul(0x0100_0000_01b3);
    for number in numbers {
        mix(number);
    }
    for text in [&model.family, &device.name, &device.arch] {
        for byte in text.as_bytes() {
            mix(u64::from(*byte));
        }
        // No byte of a text: where it ends tells it from the next.
        mix(0x100);
    }
    hash
}
