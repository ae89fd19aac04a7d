//! The ratios that the policy has learned from outcomes, so that a long-lived host gets better
//! answers even without a history. They change only when the policy learns from an outcome: a
//! decision leaves nothing behind.

use tilewright_sdk::{Outcome, Plan, Request, host};

use crate::calibration::{PlanRatio, Ratio, extents, manner, pixels};

/// The most entries; the one that was not updated for longest goes first.
const MOST: usize = 64;

/// Ratios of measured to estimated per model, device, manner, precision and memory order.
#[derive(Debug, Default)]
pub struct OutcomeMemory {
    entries: Vec<(u64, PlanRatio)>,
}

impl OutcomeMemory {
    /// Adds an outcome. The host prices only the plan that was decided on while the policy learns.
    /// The outcome of any other plan is ignored, since its expected cost is unknown.
    pub fn note(&mut self, request: &Request, plan: &Plan, outcome: &Outcome) {
        let Ok(expected) = host::estimate_one(plan) else { return };
        let place = place(request);
        let alike = |(known, measured): &(u64, PlanRatio)| {
            *known == place
                && manner(&measured.plan) == manner(plan)
                && measured.plan.precision == plan.precision
                && measured.plan.layout == plan.layout
        };
        let mut ratio = Ratio::default();
        if let Some(index) = self.entries.iter().position(alike) {
            ratio = self.entries.remove(index).1.ratio;
        } else if self.entries.len() == MOST {
            self.entries.remove(0);
        }
        ratio.note(
            outcome.elapsed_ns as f64 / expected.elapsed_ns as f64,
            outcome.held() as f64 / expected.held() as f64,
        );
        let plan = Plan { reason: String::new(), ..plan.clone() };
        let pixels = pixels(&plan, extents(request));
        self.entries.push((place, PlanRatio { plan, pixels, ratio }));
    }

    /// The ratios of this model on this device.
    pub fn about(&self, request: &Request) -> impl Iterator<Item = &PlanRatio> {
        let place = if self.entries.is_empty() { 0 } else { place(request) };
        self.entries.iter().filter(move |(known, _)| *known == place).map(|(_, measured)| measured)
    }
}

/// The model and the device in 64 bits: FNV-1a over their facts, number by number and text by text.
fn place(request: &Request) -> u64 {
    let (model, device) = (&request.model, &request.device);
    let numbers = [
        // Encodes and decodes are different work.
        u64::from(request.direction as u8),
        model.weights.stored_bytes,
        u64::from(request.spatial_scale),
        u64::from(request.temporal_scale),
        u64::from(device.backend as u8),
    ];
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut mix = |word: u64| hash = (hash ^ word).wrapping_mul(0x0100_0000_01b3);
    for number in numbers {
        mix(number);
    }
    for text in [&model.family, model.weights.stored(), &device.name, &device.arch] {
        for byte in text.as_bytes() {
            mix(u64::from(*byte));
        }
        // A byte that no text has, so that the texts' ends count.
        mix(0x100);
    }
    hash
}
