//! Runs in turn: each round runs every policy once, and the next round starts with the next policy,
//! so that drift of the machine falls on all alike.

use std::{error::Error as StdError, fmt, ops::ControlFlow};

use tch::Tensor;
use tilewright_engine::{Cancelled, Observer, Unfinished};
use tilewright_pipeline::{Decode, FrameStore};
use tilewright_plan::{Plan, Planner, Record};

use crate::Spelling;

/// Makes the planner that a spelling names.
///
/// # Errors
/// The planner's own, in one line: an unknown policy, a wrong setting.
pub type Planners<'a> =
    dyn Fn(&Spelling) -> std::result::Result<Box<dyn Planner>, Box<dyn StdError + Send + Sync>> + 'a;

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
}

impl Rounds {
    /// The number of runs of each policy in all.
    pub(crate) fn total(self) -> usize {
        usize::from(self.first_apart) + self.warmup + self.iterations
    }
}

/// A policy's runs.
pub(crate) struct Runner<'a> {
    pub job: &'a Decode<'a>,
    pub planner: Box<dyn Planner>,
    pub label: String,
    /// True if its pictures are compared afterwards.
    pub keeps: bool,
    pub lane: Lane,
}

/// The results of a policy's runs.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    /// Time of the first run in milliseconds, if it is kept apart.
    pub first_ms: Option<f64>,
    /// The records of the counted runs.
    pub records: Vec<Record>,
    /// Runs that ended in a picture, counted or not, and those among them that found their weights
    /// loaded.
    pub runs: usize,
    pub found_loaded: usize,
    /// The last picture, or the frames of the last clip, and their plan.
    pub pictures: Option<Tensor>,
    pub plan: Option<Plan>,
    /// The reason why it was stopped.
    pub error: Option<String>,
}

impl Lane {
    pub fn samples_ms(&self) -> Vec<f64> {
        self.records.iter().filter_map(elapsed_ms).collect()
    }
}

pub(crate) fn elapsed_ms(record: &Record) -> Option<f64> {
    record.outcome.as_ref().map(|outcome| outcome.elapsed.as_secs_f64() * 1e3)
}

/// The order of a round.
pub(crate) fn turns(count: usize, round: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |turn| (turn + round) % count)
}

/// The measurement was interrupted.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

/// Runs all policies in turn. A failed policy is not run again. Results so far stay if interrupted.
pub(crate) fn race(
    runners: &mut [Runner<'_>],
    rounds: Rounds,
    watch: &mut dyn Watch,
) -> std::result::Result<(), Interrupted> {
    let total = rounds.total() * runners.len();
    let mut done = 0;
    for round in 0..rounds.total() {
        for index in turns(runners.len(), round) {
            let runner = &mut runners[index];
            done += 1;
            if runner.lane.error.is_some() {
                continue;
            }
            watch.advance(done - 1, total, &runner.label);
            runner.run(round, rounds, watch)?;
        }
    }
    Ok(())
}

impl Runner<'_> {
    fn run(&mut self, round: usize, rounds: Rounds, watch: &mut dyn Watch) -> std::result::Result<(), Interrupted> {
        if !watch.goes_on() {
            return Err(Interrupted);
        }
        match decode(self.job, self.planner.as_mut(), &mut Ear(watch), self.keeps) {
            Ok(Decoded { record, pictures }) => {
                let lane = &mut self.lane;
                let first = lane.runs == 0;
                lane.runs += 1;
                let loaded = record.outcome.is_some_and(|outcome| outcome.load.is_zero());
                lane.found_loaded += usize::from(!first && loaded);
                lane.pictures = pictures;
                lane.plan = Some(record.plan.clone());
                if round == 0 && rounds.first_apart {
                    lane.first_ms = elapsed_ms(&record);
                } else if round >= rounds.total() - rounds.iterations {
                    lane.records.push(record);
                }
            }
            Err(Unfinished { error: tilewright_engine::Error::Interrupted, .. }) => return Err(Interrupted),
            Err(Unfinished { error, .. }) => {
                let error = error.to_string();
                watch.say(&format!("{}: {error}", self.label));
                self.lane.error = Some(error);
            }
        }
        Ok(())
    }
}

/// A decode that came to its end.
pub(crate) struct Decoded {
    pub record: Record,
    /// Pictures [N, C, H, W] in about −1…1, f32, in host memory; of clips [N·T, C, H, W]. None if
    /// they were not to be kept.
    pub pictures: Option<Tensor>,
}

/// Runs a decode, and keeps its pictures if `keeps`.
pub(crate) fn decode(
    job: &Decode<'_>,
    planner: &mut dyn Planner,
    observer: &mut dyn Observer,
    keeps: bool,
) -> std::result::Result<Decoded, Unfinished> {
    let mut store = FrameStore::new(keeps);
    let record = job.run(planner, observer, &mut store, &[])?.record;
    // A tensor of frames that are there already fails only if memory runs out.
    let pictures = keeps.then(|| store.tensor()).transpose().map_err(|error| match error {
        tilewright_pipeline::Error::Engine(error) => error,
        error => tilewright_engine::Error::Sink(error.into()),
    })?;
    Ok(Decoded { record, pictures })
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
