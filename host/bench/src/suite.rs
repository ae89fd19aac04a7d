//! The cases that the project's ancestors published, measured again: each claim beside what was found here. Cases and claims are
//! tables; what a claim is read off is named in them.

mod cases;
mod claims;

use serde::Serialize;
use tch::{Kind, Tensor};
use tilewright_engine::{Machine, Vae};
use tilewright_plan::{Device, Objective};

use crate::{Contest, Entry, Latents, Planners, Report, Result, Rounds, Spelling, Watch, sweep::tensor};

pub use claims::Verdict;

/// Of free memory, where a case sets no limit.
const AMPLE: f64 = 0.8;

/// How much smaller `quick` makes every side.
const QUICK_DIVISOR: u32 = 4;

/// The suite, and how it is run.
#[derive(Debug)]
pub struct Suite<'a> {
    /// Where it runs.
    pub machine: &'a Machine,
    /// The weights.
    pub vae: &'a Vae,
    /// What they are, for the report.
    pub weights: String,
    /// Who is measured against the plain whole decode; in cases that are about a type, with that type set by hand.
    pub policies: Vec<Spelling>,
    /// How often each one runs.
    pub rounds: Rounds,
    /// A quarter of every side.
    pub quick: bool,
}

/// What the suite found.
#[derive(Clone, Debug, Serialize)]
pub struct SuiteReport {
    /// The host's version.
    pub tilewright: String,
    /// What it ran on.
    pub device: Device,
    /// The weights.
    pub weights: String,
    /// Sides were a quarter of the published ones.
    pub quick: bool,
    /// The cases, each a contest whose first row is the plain whole decode.
    pub cases: Vec<CaseReport>,
    /// Every published claim with what was found.
    pub claims: Vec<ClaimRow>,
    /// Ended from outside.
    pub interrupted: bool,
}

/// A case that was measured, or why not.
#[derive(Clone, Debug, Serialize)]
pub struct CaseReport {
    /// Short.
    pub id: &'static str,
    /// For people.
    pub what: &'static str,
    /// What was measured.
    pub report: Option<Report>,
    /// Why nothing was.
    pub note: Option<&'static str>,
}

/// A published claim beside what was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClaimRow {
    /// What was claimed.
    pub claim: &'static str,
    /// The published figure.
    pub published: &'static str,
    /// The figure here, with its unit.
    pub measured: Option<String>,
    /// Whether it holds.
    pub verdict: Verdict,
    /// Why, in a line.
    pub why: String,
}

impl Suite<'_> {
    /// Measures every case. An interruption leaves the cases measured until then.
    ///
    /// # Errors
    /// Latents that can't be made. Never because a policy failed.
    pub fn run(&self, planners: &Planners<'_>, watch: &mut dyn Watch) -> Result<SuiteReport> {
        let mut reports = Vec::new();
        let mut interrupted = false;
        let mut whole_peak = None;
        for case in &cases::CASES {
            let Some(picture) = &case.picture else {
                reports.push(CaseReport { id: case.id, what: case.what, report: None, note: Some("not yet: video") });
                continue;
            };
            if interrupted {
                reports.push(CaseReport { id: case.id, what: case.what, report: None, note: Some("interrupted") });
                continue;
            }
            watch.say(&format!("case {}: {}", case.id, case.what));
            let report = self.case(picture, whole_peak, planners, watch)?;
            interrupted = report.interrupted;
            if picture.side == cases::LARGEST {
                whole_peak = report.runs.first().and_then(|row| row.peak_bytes);
            }
            reports.push(CaseReport { id: case.id, what: case.what, report: Some(report), note: None });
        }
        let conversion = if interrupted { None } else { self.conversion_ms()? };
        let claims = claims::evaluate(&reports, conversion, self.quick);
        Ok(SuiteReport {
            tilewright: env!("CARGO_PKG_VERSION").into(),
            device: self.machine.facts.clone(),
            weights: self.weights.clone(),
            quick: self.quick,
            cases: reports,
            claims,
            interrupted,
        })
    }

    fn side(&self, side: u32) -> u32 {
        if self.quick { side / QUICK_DIVISOR } else { side }
    }

    /// `whole_peak` is what the plain whole decode held at the largest size, where it was measured.
    fn case(
        &self,
        case: &cases::Picture,
        whole_peak: Option<u64>,
        planners: &Planners<'_>,
        watch: &mut dyn Watch,
    ) -> Result<Report> {
        let latents = tensor(self.latents(case.side, case.batch))?;
        let ample = (self.machine.facts.free_bytes as f64 * AMPLE) as u64;
        let baseline = Entry { spelling: cases::baseline(), memory_limit: ample, objective: Objective::Fastest };
        let memory_limit = match whole_peak {
            Some(peak) if case.third => peak / 3,
            _ => ample,
        };
        let entry = |policy: &Spelling| {
            let mut spelling = policy.clone();
            if let Some(precision) = case.precision {
                spelling.settings.retain(|(key, _)| key != "precision");
                spelling.settings.push(("precision".into(), precision.into()));
            }
            Entry { spelling, memory_limit, objective: case.objective }
        };
        let contest = Contest {
            machine: self.machine,
            vae: self.vae,
            latents: &latents,
            entries: [baseline].into_iter().chain(self.policies.iter().map(entry)).collect(),
            against: Some(Spelling::whole()),
            rounds: self.rounds,
        };
        contest.hold(planners, watch)
    }

    fn latents(&self, side: u32, batch: u32) -> Latents {
        let scale = self.vae.config.spatial_scale();
        let extent = (self.side(side) / scale).max(1) as usize;
        Latents {
            batch: batch as usize,
            channels: self.vae.config.latent_channels,
            height: extent,
            width: extent,
            seed: 0,
        }
    }

    /// The median time in milliseconds that it takes to bring a latent of the half-type case into bf16 and channels-last, and the
    /// picture back into f32 and channels-first.
    fn conversion_ms(&self) -> Result<Option<f64>> {
        use tilewright_torch::{channels_last, probe::synchronize};
        let Some(case) = cases::CASES.iter().find(|case| case.id == cases::HALF).and_then(|case| case.picture) else {
            return Ok(None);
        };
        let _no_grad = tch::no_grad_guard();
        let device = self.machine.device;
        let latents = tensor(self.latents(case.side, case.batch))?.f_to_device(device)?;
        let side = i64::from(self.side(case.side));
        let picture = Tensor::f_zeros([i64::from(case.batch), 3, side, side], (Kind::BFloat16, device))?;
        let picture = channels_last(&picture).map_err(tilewright_engine::Error::from)?;
        let mut samples = Vec::new();
        for _ in 0..self.rounds.iterations.max(3) {
            synchronize(device);
            let start = std::time::Instant::now();
            let brought = channels_last(&latents.f_to_kind(Kind::BFloat16)?).map_err(tilewright_engine::Error::from)?;
            let back = picture.f_to_kind(Kind::Float)?.f_contiguous()?;
            synchronize(device);
            samples.push(start.elapsed().as_secs_f64() * 1e3);
            drop((brought, back));
        }
        Ok(crate::statistics::median(&samples))
    }
}
