//! Runs in turn: each round runs every policy once, and the next round starts with the next policy,
//! so that drift of the machine falls on all alike.

use std::{error::Error as StdError, ops::ControlFlow};

use serde::Serialize;
use tch::Tensor;
use tilewright_engine::{Cancelled, DenoiseJob, Error, Finished, Observer, Profiled, TextJob, Unfinished};
use tilewright_pipeline::{Decode, FrameStore};
use tilewright_plan::{Denoise, Planner, Record, Text, Vae, Work};
use tilewright_profile::{Facts, Profile, Recording};

use crate::{Entry, Spelling};

/// Makes the planner that a spelling names.
///
/// # Errors
/// The planner's own, in one line: an unknown policy, a wrong setting.
pub type Planners<'a, W = Vae> =
    dyn Fn(&Spelling) -> std::result::Result<Box<dyn Planner<W>>, Box<dyn StdError + Send + Sync>> + 'a;

/// An observer of a long measurement.
pub trait Watch {
    /// Receives a note, in one line.
    fn say(&mut self, _line: &str) {}
    /// Receives the progress: `done` of `total` runs are done; `what` runs next.
    fn advance(&mut self, _done: usize, _total: usize, _what: &str) {}
    /// Returns false to end the measurement as soon as possible, with the results so far.
    fn goes_on(&mut self) -> bool {
        true
    }
}

/// The number of runs of each policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounds {
    /// The very first run is kept apart, before any warm-up.
    pub first_apart: bool,
    /// Runs that are not counted.
    pub warmup: usize,
    /// Runs that are counted.
    pub iterations: usize,
    /// A further run of each policy is profiled.
    pub profiled: bool,
}

impl Rounds {
    /// The number of runs of each policy in all.
    pub(crate) fn total(self) -> usize {
        usize::from(self.first_apart) + self.warmup + self.iterations
    }
}

/// Work that policies take turns on.
pub(crate) trait Raced {
    /// The kind of work.
    type Work: Work;

    /// Runs it once, and keeps its output if `keeps`.
    fn run(
        &self,
        planner: &mut dyn Planner<Self::Work>,
        watch: &mut dyn Watch,
        keeps: bool,
    ) -> std::result::Result<Ran<Self::Work>, Stop>;

    /// Profiles a run.
    fn profile(
        &self,
        planner: &mut dyn Planner<Self::Work>,
        watch: &mut dyn Watch,
    ) -> std::result::Result<Option<Profiled>, Stop>;
}

/// A run that came to its end.
pub(crate) struct Ran<W: Work = Vae> {
    pub record: Record<W>,
    /// True if its weights were there.
    pub found_loaded: bool,
    /// Pictures [N, C, H, W] in about −1…1, f32, in host memory; of clips [N·T, C, H, W]; of
    /// samples the latents. None if they were not to be kept.
    pub output: Option<Tensor>,
}

impl Raced for Decode<'_> {
    type Work = Vae;

    fn run(&self, planner: &mut dyn Planner, watch: &mut dyn Watch, keeps: bool) -> std::result::Result<Ran, Stop> {
        let mut store = FrameStore::new(keeps);
        let record = self.run(planner, &mut Ear(watch), &mut store, &[])?.record;
        // A tensor of frames that are there already fails only if memory runs out.
        let output = keeps.then(|| store.tensor()).transpose().map_err(Stop::failed)?;
        let found_loaded = record.outcome.is_some_and(|outcome| outcome.load.is_zero());
        Ok(Ran { record, found_loaded, output })
    }

    fn profile(&self, planner: &mut dyn Planner, watch: &mut dyn Watch) -> std::result::Result<Option<Profiled>, Stop> {
        let mut profiler = ProfilingEar { watch, profiled: None };
        Decode::run(self, planner, &mut profiler, &mut FrameStore::new(false), &[])?;
        Ok(profiler.profiled)
    }
}

impl Raced for DenoiseJob<'_> {
    type Work = Denoise;

    fn run(
        &self,
        planner: &mut dyn Planner<Denoise>,
        watch: &mut dyn Watch,
        keeps: bool,
    ) -> std::result::Result<Ran<Denoise>, Stop> {
        let Finished { output, record, .. } = self.run(planner, None, &mut Ear(watch))?;
        let found_loaded = record.outcome.is_some_and(|outcome| outcome.load.is_zero());
        Ok(Ran { record, found_loaded, output: keeps.then_some(output.latents) })
    }

    fn profile(
        &self,
        planner: &mut dyn Planner<Denoise>,
        watch: &mut dyn Watch,
    ) -> std::result::Result<Option<Profiled>, Stop> {
        let mut profiler = ProfilingEar { watch, profiled: None };
        DenoiseJob::run(self, planner, None, &mut profiler)?;
        Ok(profiler.profiled)
    }
}

impl Raced for TextJob<'_> {
    type Work = Text;

    fn run(
        &self,
        planner: &mut dyn Planner<Text>,
        watch: &mut dyn Watch,
        keeps: bool,
    ) -> std::result::Result<Ran<Text>, Stop> {
        let Finished { output, record, .. } = TextJob::run(self, planner, &mut Ear(watch))?;
        let found_loaded = record.outcome.is_some_and(|outcome| outcome.load.is_zero());
        let last = output.into_iter().next().map(|states| states.last);
        Ok(Ran { record, found_loaded, output: last.filter(|_| keeps) })
    }

    fn profile(
        &self,
        planner: &mut dyn Planner<Text>,
        watch: &mut dyn Watch,
    ) -> std::result::Result<Option<Profiled>, Stop> {
        let mut profiler = ProfilingEar { watch, profiled: None };
        TextJob::run(self, planner, &mut profiler)?;
        Ok(profiler.profiled)
    }
}

/// The end of a run without a result.
pub(crate) enum Stop {
    Interrupted,
    /// The reason, in one line.
    Failed(String),
}

impl<W: Work> From<Unfinished<W>> for Stop {
    fn from(unfinished: Unfinished<W>) -> Self {
        match unfinished.error {
            Error::Interrupted => Self::Interrupted,
            error => Self::Failed(error.to_string()),
        }
    }
}

impl Stop {
    pub fn failed(error: impl ToString) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Work, and the planner of its runs.
type Made<'a, J> = (&'a J, Box<dyn Planner<<J as Raced>::Work>>);

/// A policy's runs.
pub(crate) struct Runner<'a, J: Raced> {
    /// The work and its policy; none if one of them could not be made.
    pub made: Option<Made<'a, J>>,
    pub label: String,
    /// True if its output is compared afterwards.
    pub keeps: bool,
    pub lane: Lane<J::Work>,
}

/// The results of a policy's runs.
#[derive(Debug)]
pub(crate) struct Lane<W: Work = Vae> {
    /// Time of the first run in milliseconds, if it is kept apart.
    pub first_ms: Option<f64>,
    /// The records of the counted runs.
    pub records: Vec<Record<W>>,
    /// Runs that ended with an output, counted or not, and those among them that found their
    /// weights loaded.
    pub runs: usize,
    pub found_loaded: usize,
    /// The last output, as in [`Ran`], and its plan.
    pub output: Option<Tensor>,
    pub plan: Option<W::Plan>,
    /// The run that was profiled.
    pub profile: Option<StageProfile>,
    /// The reason why it was stopped.
    pub error: Option<String>,
}

impl<W: Work> Default for Lane<W> {
    fn default() -> Self {
        let (first_ms, records, output, plan, profile, error) = (None, Vec::new(), None, None, None, None);
        Self { first_ms, records, runs: 0, found_loaded: 0, output, plan, profile, error }
    }
}

impl<W: Work> Lane<W> {
    pub fn samples_ms(&self) -> Vec<f64> {
        self.records.iter().filter_map(elapsed_ms).collect()
    }

    /// The fallback of the last counted run.
    pub fn fallback(&self) -> Option<String> {
        let fallback = self.records.last()?.fallback.as_ref()?;
        Some(format!("{}: {}", fallback.reason, fallback.detail))
    }
}

/// The time of a run in milliseconds; of a sample that of a step.
pub(crate) fn elapsed_ms<W: Work>(record: &Record<W>) -> Option<f64> {
    let [seconds, _] = W::measured(record.outcome.as_ref()?);
    Some(seconds * 1e3)
}

/// The order of a round.
pub(crate) fn turns(count: usize, round: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |turn| (turn + round) % count)
}

/// The measurement was interrupted.
#[derive(Debug)]
pub(crate) struct Interrupted;

/// Runs several things in turn. One that fails gets its error, and is not run again, as one that
/// has an error before.
pub(crate) fn in_turns(
    labels: &[String],
    errors: &mut [Option<String>],
    rounds: usize,
    watch: &mut dyn Watch,
    mut run: impl FnMut(usize, usize, &mut dyn Watch) -> std::result::Result<(), Stop>,
) -> std::result::Result<(), Interrupted> {
    for round in 0..rounds {
        for (turn, index) in turns(labels.len(), round).enumerate() {
            if errors[index].is_some() {
                continue;
            }
            if !watch.goes_on() {
                return Err(Interrupted);
            }
            watch.advance(round * labels.len() + turn, rounds * labels.len(), &labels[index]);
            match run(index, round, watch) {
                Ok(()) => {}
                Err(Stop::Interrupted) => return Err(Interrupted),
                Err(Stop::Failed(error)) => {
                    watch.say(&format!("{}: {error}", labels[index]));
                    errors[index] = Some(error);
                }
            }
        }
    }
    Ok(())
}

/// The runs of entries that are about to begin, in their order.
pub(crate) fn runners<'a, J: Raced>(
    entries: &[Entry],
    jobs: &'a [std::result::Result<J, String>],
    planners: &Planners<'_, J::Work>,
    keeps: bool,
) -> Vec<Runner<'a, J>> {
    let runner = |(Entry { spelling, .. }, job): (&Entry, &'a std::result::Result<J, String>)| {
        Runner::new(job.as_ref().map_err(Clone::clone), planners(spelling), spelling.to_string(), keeps)
    };
    entries.iter().zip(jobs).map(runner).collect()
}

/// Runs all policies in turn. Results so far stay if interrupted.
pub(crate) fn race<J: Raced>(
    runners: &mut [Runner<'_, J>],
    rounds: Rounds,
    watch: &mut dyn Watch,
) -> std::result::Result<(), Interrupted> {
    let labels: Vec<String> = runners.iter().map(|runner| runner.label.clone()).collect();
    let mut errors: Vec<Option<String>> = runners.iter_mut().map(|runner| runner.lane.error.take()).collect();
    let ended = in_turns(&labels, &mut errors, rounds.total(), watch, |index, round, watch| {
        runners[index].run(round, rounds, watch)
    });
    runners.iter_mut().zip(errors).for_each(|(runner, error)| runner.lane.error = error);
    ended?;
    match rounds.profiled {
        true => runners.iter_mut().try_for_each(|runner| runner.profile(watch)),
        false => Ok(()),
    }
}

impl<'a, J: Raced> Runner<'a, J> {
    /// Runs that are about to begin; with an error if the work or its policy could not be made.
    pub fn new(
        job: std::result::Result<&'a J, String>,
        planner: std::result::Result<Box<dyn Planner<J::Work>>, Box<dyn StdError + Send + Sync>>,
        label: String,
        keeps: bool,
    ) -> Self {
        let made = job.and_then(|job| Ok((job, planner.map_err(|error| error.to_string())?)));
        let (made, error) = made.map_or_else(|error| (None, Some(error)), |made| (Some(made), None));
        Self { made, label, keeps, lane: Lane { error, ..Lane::default() } }
    }

    /// Profiles a further run, unless the policy was stopped.
    fn profile(&mut self, watch: &mut dyn Watch) -> std::result::Result<(), Interrupted> {
        let Self { made: Some((job, planner)), label, lane, .. } = self else { return Ok(()) };
        if lane.error.is_some() {
            return Ok(());
        }
        watch.say(&format!("profile: {label}"));
        match job.profile(planner.as_mut(), watch) {
            Err(Stop::Interrupted) => return Err(Interrupted),
            Err(Stop::Failed(error)) => lane.error = Some(error),
            Ok(None) => {}
            Ok(Some(Profiled { facts, recording })) => {
                // Two spellings of one policy are told apart.
                let profiled = Profiled { facts: Facts { policy: label.clone(), ..facts }, recording };
                match StageProfile::of(profiled) {
                    Ok(profile) => lane.profile = Some(profile),
                    Err(error) => lane.error = Some(error),
                }
            }
        }
        Ok(())
    }

    fn run(&mut self, round: usize, rounds: Rounds, watch: &mut dyn Watch) -> std::result::Result<(), Stop> {
        let Self { made: Some((job, planner)), keeps, lane, .. } = self else { return Ok(()) };
        let Ran { record, found_loaded, output } = job.run(planner.as_mut(), watch, *keeps)?;
        lane.found_loaded += usize::from(lane.runs > 0 && found_loaded);
        lane.runs += 1;
        lane.output = output;
        lane.plan = Some(record.plan.clone());
        if round == 0 && rounds.first_apart {
            lane.first_ms = elapsed_ms(&record);
        } else if round >= rounds.total() - rounds.iterations {
            lane.records.push(record);
        }
        Ok(())
    }
}

/// The profile of a policy's run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageProfile {
    /// Times by category, operator and layer.
    #[serde(flatten)]
    pub profile: Profile,
    /// The events.
    #[serde(skip)]
    pub recording: Recording,
}

impl StageProfile {
    /// The profile of a stage, or the reason why its events are none.
    pub(crate) fn of(Profiled { facts, recording }: Profiled) -> std::result::Result<Self, String> {
        let profile = Profile::of(&recording, facts).map_err(|error| error.to_string())?;
        Ok(Self { profile, recording })
    }
}

/// Passes a job's progress on, and has it profiled.
struct ProfilingEar<'a> {
    watch: &'a mut dyn Watch,
    profiled: Option<Profiled>,
}

impl Observer for ProfilingEar<'_> {
    fn wants_profile(&self) -> bool {
        true
    }

    fn profiled(&mut self, profiled: Profiled) {
        self.profiled = Some(profiled);
    }

    fn loading_progress(&mut self, _share: f64) -> ControlFlow<Cancelled> {
        Cancelled::unless(self.watch.goes_on())
    }

    fn progress(&mut self, _share: f64) -> ControlFlow<Cancelled> {
        Cancelled::unless(self.watch.goes_on())
    }
}

/// Passes a job's progress on.
pub(crate) struct Ear<'a>(pub &'a mut dyn Watch);

impl Observer for Ear<'_> {
    fn loading_progress(&mut self, _share: f64) -> ControlFlow<Cancelled> {
        Cancelled::unless(self.0.goes_on())
    }

    fn progress(&mut self, _share: f64) -> ControlFlow<Cancelled> {
        Cancelled::unless(self.0.goes_on())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_round_starts_with_the_next_one() {
        let order = |round| turns(3, round).collect::<Vec<_>>();
        assert_eq!([order(0), order(1), order(2), order(3)], [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]);
        assert_eq!(turns(1, 7).collect::<Vec<_>>(), [0]);
        assert_eq!(turns(0, 7).count(), 0);
    }
}
