//! The suite: published cases, measured again, each claim beside its result here. Cases and claims
//! are tables; each claim names the source of its figure.

mod cases;
mod claims;
mod transitions;
mod workflows;

use serde::Serialize;
use tch::{Kind, Tensor};
use tilewright_engine::Machine;
use tilewright_pipeline::{Decode, Model, default_limit};
use tilewright_plan::{Device, Objective};

use crate::{
    Contest, Entry, Latents, Planners, Report, Result, Rounds, Spelling, Watch,
    contest::ContestResult,
    race::{Raced, Stop},
    samples::SamplePlanners,
};
use cases::{CASES, Case, Of};
use transitions::{borders, borders_alone, evenness, over_elsewhere, steps};

pub use cases::CaseName;
pub use claims::Verdict;
pub use transitions::Transitions;
pub use workflows::{Workflow, WorkflowReport, WorkflowRow};

/// The divisor of every side with `quick`.
const QUICK_DIVISOR: u32 = 4;

/// The time of a decode, in seconds, above which [`Suite::slow`] counts.
const SLOW: f64 = 60.0;

/// Latent frames of the chunks that are decoded alone.
const ALONE: usize = 2;

/// The suite and its options.
#[derive(Debug)]
pub struct Suite<'a> {
    /// The machine.
    pub machine: &'a Machine,
    /// The weights that decode pictures; none if no such case is chosen.
    pub vae: Option<&'a Model>,
    /// The weights that decode clips.
    pub video: Option<&'a Model>,
    /// Their description, for the report.
    pub weights: String,
    /// The policies that are compared with the plain decode; cases about a type set it by hand.
    pub policies: Vec<Spelling>,
    /// The number of runs.
    pub rounds: Rounds,
    /// The number of runs if a decode takes over a minute.
    pub slow: Option<Rounds>,
    /// A quarter of every side, fewer frames.
    pub quick: bool,
    /// These cases alone; all if empty.
    pub only: Vec<CaseName>,
    /// Workflows with a transformer, if the user has one.
    pub workflows: Vec<Workflow<'a>>,
}

/// The results of the suite.
#[derive(Clone, Debug, Serialize)]
pub struct SuiteReport {
    /// The host's version.
    pub tilewright: String,
    /// The device.
    pub device: Device,
    /// The weights.
    pub weights: String,
    /// True if sides were a quarter of the published ones, and frames fewer.
    pub quick: bool,
    /// The cases, each a contest whose first row is the plain decode.
    pub cases: Vec<CaseReport>,
    /// The workflows with a transformer.
    pub workflows: Vec<WorkflowReport>,
    /// Every published claim with its result.
    pub claims: Vec<ClaimRow>,
    /// True if interrupted.
    pub interrupted: bool,
}

/// A measured case, or the reason why it was not measured.
#[derive(Clone, Debug, Serialize)]
pub struct CaseReport {
    /// The case's short name.
    pub id: &'static str,
    /// The case's description for people.
    pub what: &'static str,
    /// The case's results.
    pub report: Option<Report>,
    /// The evenness of the clip across chunks, in the case about it.
    pub transitions: Option<Transitions>,
    /// The reason why nothing was measured, or less than elsewhere.
    pub note: Option<String>,
}

/// A published claim beside its result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClaimRow {
    /// The claim.
    pub claim: &'static str,
    /// The published figure.
    pub published: &'static str,
    /// The figure here, with its unit.
    pub measured: Option<String>,
    /// The verdict.
    pub verdict: Verdict,
    /// The reason, in a line.
    pub why: String,
}

/// A case's latents, and its number of runs.
struct Planned {
    case: &'static Case,
    latents: Tensor,
    rounds: Rounds,
    note: Option<String>,
}

impl Suite<'_> {
    /// Measures every case, after announcing the expected times. An interruption leaves the cases
    /// measured until then.
    ///
    /// # Errors
    /// Latents that can't be made. Never a policy's failure.
    pub fn run(
        &self,
        planners: &Planners<'_>,
        samplers: &SamplePlanners<'_>,
        watch: &mut dyn Watch,
    ) -> Result<SuiteReport> {
        let mut planned = Vec::new();
        let mut seconds = Some(0.0);
        for case in CASES.iter().filter(|case| self.selects(case)) {
            let (case, guess) = self.plan(case)?;
            let about = guess.map_or("as long as it takes".into(), |guess| format!("about {}", in_words(guess)));
            watch.say(&format!("{}: {}: {about}", case.case.id, case.case.what));
            seconds = seconds.zip(guess).map(|(sum, guess)| sum + guess);
            planned.push(case);
        }
        if let Some(seconds) = seconds.filter(|_| planned.len() > 1) {
            watch.say(&format!(
                "in all about {}, by the device's measured speed; one case alone takes a part of it",
                in_words(seconds)
            ));
        }
        let mut planned = planned.into_iter().peekable();
        let mut reports: Vec<CaseReport> = Vec::new();
        let mut interrupted = false;
        for case in &CASES {
            let mut found = CaseReport { id: case.id, what: case.what, report: None, transitions: None, note: None };
            match planned.next_if(|planned| planned.case.id == case.id) {
                None => found.note = Some("not chosen".into()),
                Some(_) if interrupted => found.note = Some("interrupted".into()),
                Some(planned) => {
                    watch.say(&format!("case {}: {}", case.id, case.what));
                    let peak = case.share_of.and_then(|(_, id)| baseline_peak(&reports, id));
                    let (report, transitions) = self.case(&planned, peak, planners, watch)?;
                    interrupted = report.interrupted;
                    (found.report, found.transitions, found.note) = (Some(report), transitions, planned.note);
                }
            }
            reports.push(found);
        }
        let conversion = if interrupted { None } else { self.conversion_ms()? };
        let mut workflows = Vec::new();
        for workflow in &self.workflows {
            if interrupted {
                break;
            }
            watch.say(&format!("{}: {}", workflow.id, workflow.what));
            let (policies, runs) = (&self.policies, self.rounds.iterations);
            let (report, ended) = workflow.run(self.machine, policies, runs, (planners, samplers), watch);
            interrupted = ended;
            workflows.push(report);
        }
        let mut claims = claims::evaluate(&reports, conversion, self.quick);
        claims.extend(workflows::claim(&workflows, self.quick));
        Ok(SuiteReport {
            tilewright: env!("CARGO_PKG_VERSION").into(),
            device: self.machine.facts.clone(),
            weights: self.weights.clone(),
            quick: self.quick,
            cases: reports,
            workflows,
            claims,
            interrupted,
        })
    }

    fn selects(&self, case: &Case) -> bool {
        let chosen = self.only.is_empty() || self.only.iter().any(|name| name.0.id == case.id);
        chosen
            && match case.of {
                Of::Pictures { .. } => self.vae.is_some(),
                Of::Clips(_) => self.video.is_some(),
            }
    }

    fn side(&self, side: u32) -> u32 {
        if self.quick { side / QUICK_DIVISOR } else { side }
    }

    fn ample(&self) -> u64 {
        default_limit(self.machine)
    }

    fn model(&self, of: Of) -> Option<&Model> {
        match of {
            Of::Pictures { .. } => self.vae,
            Of::Clips(_) => self.video,
        }
    }

    /// Makes a case's latents, and estimates its seconds: every decode as long as the baseline's.
    fn plan(&self, case: &'static Case) -> Result<(Planned, Option<f64>)> {
        let latents = self.latents(case.of).tensor()?;
        let job = self.model(case.of).and_then(|model| {
            let job = Decode::new(self.machine, model, &latents, self.ample(), case.objective).ok()?;
            job.estimate(&case.of.baseline()).ok()
        });
        let one = job.map(|cost| cost.elapsed.as_secs_f64());
        let slow = self.slow.filter(|_| one.is_some_and(|seconds| seconds > SLOW));
        let rounds = slow.unwrap_or(self.rounds);
        let note = slow.map(|Rounds { warmup, iterations, .. }| {
            format!("a decode takes over a minute here: {warmup} warm-up, {iterations} counted")
        });
        let extra = if case.id == cases::SMOOTH { 3 } else { 1 };
        let decodes = extra + rounds.total() * (1 + self.policies.len());
        let guess = one.map(|seconds| seconds * decodes as f64);
        Ok((Planned { case, latents, rounds, note }, guess))
    }

    fn latents(&self, of: Of) -> Latents {
        match (of, self.vae, self.video) {
            (Of::Clips(clips), _, Some(video)) => {
                let (samples, frames) = if self.quick { clips.quick } else { (clips.samples, clips.frames) };
                let frames = 1 + (frames - 1).div_ceil(video.temporal_scale().max(1));
                Latents::of(video, [clips.width, clips.height].map(|side| self.side(side)), samples, Some(frames), 0)
            }
            (Of::Pictures { side, batch }, Some(vae), _) => Latents::of(vae, [self.side(side); 2], batch, None, 0),
            // Not selected: nothing is generated.
            _ => Latents { batch: 1, channels: 1, height: 1, width: 1, frames: None, seed: 0 },
        }
    }

    /// Measures a case. `peak` is the baseline's in the case that this one takes a share of, if it
    /// was measured.
    fn case(
        &self,
        planned: &Planned,
        peak: Option<u64>,
        planners: &Planners<'_>,
        watch: &mut dyn Watch,
    ) -> Result<(Report, Option<Transitions>)> {
        let Planned { case, latents, rounds, .. } = planned;
        let model = self.model(case.of).ok_or(crate::Error::NoWeights)?;
        let ample = self.ample();
        let expected = || {
            let job = Decode::new(self.machine, model, latents, ample, case.objective).ok()?;
            job.estimate(&case.of.baseline()).ok().map(|cost| cost.peak_bytes)
        };
        let memory_limit = match case.share_of {
            Some((share, _)) => peak.or_else(expected).map_or(ample, |peak| (peak as f64 * share) as u64),
            None => ample,
        };
        let baseline = Entry { spelling: cases::baseline(case.of), memory_limit: ample, objective: Objective::Fastest };
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
            model,
            latents,
            entries: [baseline].into_iter().chain(self.policies.iter().map(entry)).collect(),
            against: Some(Spelling::whole()),
            rounds: *rounds,
            allows_blended: false,
        };
        let ContestResult { mut report, pictures } = contest.run_keeping_pictures(planners, watch)?;
        let mut transitions = None;
        if case.id == cases::SMOOTH && !report.interrupted {
            watch.say("the same clip in one go, and in chunks decoded alone");
            transitions = self.transitions(latents, &pictures, planners, watch)?;
            report.interrupted = !watch.goes_on();
        }
        Ok((report, transitions))
    }

    /// The evenness of clips of these latents [1, C, T, h, w] across chunks: of the rows, and of
    /// chunks decoded alone. None if they can't be had.
    fn transitions(
        &self,
        latents: &Tensor,
        rows: &[Option<Tensor>],
        planners: &Planners<'_>,
        watch: &mut dyn Watch,
    ) -> Result<Option<Transitions>> {
        let Some(video) = self.video else { return Ok(None) };
        let all = latents.size()[2];
        let scale = video.temporal_scale().max(1) as usize;
        let one_go = scale as i64 * all;
        let Some(whole) = self.decode_chunks(video, latents, one_go, planners, watch)? else { return Ok(None) };
        let mut chunks = Vec::new();
        for first in (0..all).step_by(ALONE) {
            let part = latents.f_narrow(2, first, (ALONE as i64).min(all - first))?;
            let Some(chunk) = self.decode_chunks(video, &part, one_go, planners, watch)? else { return Ok(None) };
            chunks.push(chunk);
        }
        Ok(Some(compare(&whole, rows, &chunks, all as usize, scale)?))
    }

    /// The frames [T, C, H, W] of a clip in chunks of `chunk` frames; none if the decode fails or
    /// is interrupted.
    fn decode_chunks(
        &self,
        video: &Model,
        latents: &Tensor,
        chunk: i64,
        planners: &Planners<'_>,
        watch: &mut dyn Watch,
    ) -> Result<Option<Tensor>> {
        let settings = [("time", "carried".to_owned()), ("chunk", chunk.to_string())];
        let mut spelling = Spelling::whole();
        spelling.settings.extend(settings.map(|(key, value)| (key.to_owned(), value)));
        let job = Decode::new(self.machine, video, latents, self.ample(), Objective::Fastest);
        let (Ok(job), Ok(mut planner)) = (job, planners(&spelling)) else { return Ok(None) };
        match Raced::run(&job, planner.as_mut(), watch, true) {
            Ok(ran) => Ok(ran.output),
            Err(Stop::Interrupted) => Ok(None),
            Err(Stop::Failed(error)) => {
                watch.say(&format!("{spelling}: {error}"));
                Ok(None)
            }
        }
    }

    /// The median time in milliseconds to convert a latent of the half-type case to bf16 and
    /// channels-last, and the picture back to f32 and channels-first.
    fn conversion_ms(&self) -> Result<Option<f64>> {
        use tilewright_torch::{channels_last, device::synchronize};
        let case = CASES.iter().find(|case| case.id == cases::HALF && self.selects(case));
        let Some(Case { of: of @ Of::Pictures { side, batch }, .. }) = case else { return Ok(None) };
        let _no_grad = tch::no_grad_guard();
        let device = self.machine.device;
        let latents = self.latents(*of).tensor()?.f_to_device(device)?;
        let side = i64::from(self.side(*side));
        let picture = Tensor::f_zeros([i64::from(*batch), 3, side, side], (Kind::BFloat16, device))?;
        let picture = channels_last(&picture).map_err(tilewright_engine::Error::from)?;
        let mut samples = Vec::new();
        for _ in 0..self.rounds.iterations.max(3) {
            synchronize(device).map_err(tilewright_engine::Error::from)?;
            let start = std::time::Instant::now();
            let brought = channels_last(&latents.f_to_kind(Kind::BFloat16)?).map_err(tilewright_engine::Error::from)?;
            let back = picture.f_to_kind(Kind::Float)?.f_contiguous()?;
            synchronize(device).map_err(tilewright_engine::Error::from)?;
            samples.push(start.elapsed().as_secs_f64() * 1e3);
            drop((brought, back));
        }
        Ok(tilewright_statistics::median(&samples))
    }
}

fn baseline_peak(reports: &[CaseReport], id: &str) -> Option<u64> {
    reports.iter().find(|report| report.id == id)?.report.as_ref()?.runs.first()?.peak_bytes
}

/// Compares clips [T, C, H, W]: the whole in one go, those of the rows, and chunks that were
/// decoded alone.
fn compare(
    whole: &Tensor,
    rows: &[Option<Tensor>],
    chunks: &[Tensor],
    latent_frames: usize,
    scale: usize,
) -> Result<Transitions> {
    let whole = steps(whole)?;
    // Chunks of any size meet between latent frames.
    let everywhere = borders(latent_frames, 1, scale);
    let mut carried = None;
    for row in rows.iter().flatten() {
        let ratios = over_elsewhere(&steps(row)?, &everywhere).zip(over_elsewhere(&whole, &everywhere));
        let even = ratios.and_then(|(found, whole)| evenness(found, whole));
        carried = carried.map_or(even, |least: f64| even.map(|even| even.min(least)));
    }
    let found = over_elsewhere(&steps(&Tensor::f_cat(chunks, 0)?)?, &borders_alone(latent_frames, ALONE, scale));
    let same = over_elsewhere(&whole, &borders(latent_frames, ALONE, scale));
    let alone = found.zip(same).and_then(|(found, whole)| evenness(found, whole));
    Ok(Transitions { carried, alone })
}

/// An approximate duration for people.
fn in_words(seconds: f64) -> String {
    match seconds {
        ..1.0 => "a second".into(),
        ..100.0 => format!("{seconds:.0} s"),
        ..6000.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}
