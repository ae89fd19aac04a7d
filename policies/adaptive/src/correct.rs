//! What earlier measurements say about the host's estimates: the ratio of the two for the nearest plan.

use tilewright_sdk::{Plan, Request, host};

/// The most measurements to look at; newer ones come first.
const TRIALS: u32 = 8;

/// How far a ratio is trusted; beyond it something else was measured.
const TRUSTED: std::ops::RangeInclusive<f64> = 0.1..=10.0;

/// Measured over estimated, per plan that was carried out.
pub struct Corrections {
    ratios: Vec<(Plan, f64, f64)>,
    pixels: f64,
}

impl Corrections {
    /// Asks the host for what was measured, and for what it would have expected.
    pub fn new(request: &Request) -> Self {
        let mut ratios: Vec<(Plan, f64, f64)> = Vec::new();
        for trial in host::trials(TRIALS) {
            // The newest measurement of a plan stands for it.
            if ratios.iter().any(|(known, ..)| known.is_like(&trial.plan)) {
                continue;
            }
            let Ok(cost) = host::estimate(&trial.plan) else { continue };
            let time = trial.outcome.elapsed_ns as f64 / cost.elapsed_ns as f64;
            let memory = trial.outcome.peak_bytes as f64 / cost.peak_bytes as f64;
            if TRUSTED.contains(&time) && TRUSTED.contains(&memory) {
                ratios.push((trial.plan, time, memory));
            }
        }
        Self { ratios, pixels: f64::from(request.height) * f64::from(request.width) }
    }

    /// The factors for a plan's time and memory: those of the nearest plan in the same precision and memory order, else 1.
    pub fn of(&self, plan: &Plan) -> (f64, f64) {
        let alike =
            self.ratios.iter().filter(|(known, ..)| known.precision == plan.precision && known.layout == plan.layout);
        let size = self.size(plan);
        let far = |known: &Plan| {
            let ratio = self.size(known) / size;
            if ratio < 1.0 { 1.0 / ratio } else { ratio }
        };
        let nearest =
            alike.map(|(known, time, memory)| (far(known), *time, *memory)).min_by(|a, b| a.0.total_cmp(&b.0));
        nearest.map_or((1.0, 1.0), |(_, time, memory)| (time, memory))
    }

    /// Pixels that are worked on at once.
    fn size(&self, plan: &Plan) -> f64 {
        let pixels = plan.tile().map_or(self.pixels, |tile| f64::from(tile.height) * f64::from(tile.width));
        (pixels * f64::from(plan.batch)).max(1.0)
    }
}
