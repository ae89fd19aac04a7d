//! Traces of the last jobs, beyond their records: the plans that the policy considered, the lines
//! that it logged, and the plan of the incumbent.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

use tilewright_plan::{Candidate, LogLine, Record, Stage, Vae, Work, any};

/// The most jobs with a trace.
const KEPT: usize = 200;

/// The most decision times of a revision.
const TIMES: usize = 512;

/// The most times of a stage's work.
const WORKS: usize = 400;

/// The most revisions with decision times.
const REVISIONS: usize = 12;

/// The trace of a job's decision, beyond its record.
#[derive(Clone, Debug)]
pub struct JobTrace<W: Work = Vae> {
    /// The plans that the policy asked the price of.
    pub candidates: Vec<Candidate<W>>,
    /// The lines that it logged.
    pub log: Vec<LogLine>,
    /// The revision and record of the incumbent for the same job, and the PSNR between the two
    /// outputs in dB, if a canary was compared.
    pub incumbent: Option<(u64, Box<Record<W>>, f64)>,
}

impl<W: Work> Default for JobTrace<W> {
    fn default() -> Self {
        Self { candidates: Vec::new(), log: Vec::new(), incumbent: None }
    }
}

/// The trace of a job of any kind.
pub type AnyJobTrace = any!(Box<JobTrace>);

/// Traces of the last jobs, and decision times of the last revisions.
#[derive(Debug, Default)]
pub struct JobTraces(Mutex<Inner>);

/// The time of a stage's work: the route, the time of its end, seconds.
pub type WorkTime = (String, SystemTime, f64);

#[derive(Debug, Default)]
struct Inner {
    /// By job, stage by stage.
    traces: HashMap<String, Vec<AnyJobTrace>>,
    order: VecDeque<String>,
    times: VecDeque<((String, u64), VecDeque<f64>)>,
    works: BTreeMap<Stage, VecDeque<WorkTime>>,
}

impl JobTraces {
    /// Keeps the trace of a job, or of a stage of one.
    pub fn insert(&self, id: &str, trace: AnyJobTrace) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let stages = inner.traces.entry(id.to_owned()).or_default();
        stages.push(trace);
        if stages.len() > 1 {
            return;
        }
        inner.order.push_back(id.to_owned());
        if inner.order.len() > KEPT
            && let Some(oldest) = inner.order.pop_front()
        {
            inner.traces.remove(&oldest);
        }
    }

    /// The traces of a job, stage by stage, as far as they are kept.
    pub fn get(&self, id: &str) -> Vec<AnyJobTrace> {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.traces.get(id).cloned().unwrap_or_default()
    }

    /// Keeps the time of a decision, in seconds.
    pub fn record_decision_time(&self, policy: &str, revision: u64, seconds: f64) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = inner.times.iter().position(|((known, number), _)| known == policy && *number == revision);
        let times = match place {
            Some(place) => inner.times.get_mut(place),
            None => {
                if inner.times.len() >= REVISIONS {
                    inner.times.pop_front();
                }
                inner.times.push_back(((policy.to_owned(), revision), VecDeque::new()));
                inner.times.back_mut()
            }
        };
        if let Some((_, times)) = times {
            times.push_back(seconds);
            if times.len() > TIMES {
                times.pop_front();
            }
        }
    }

    /// Keeps the time of a stage's work, in seconds.
    pub fn record_work_time(&self, stage: Stage, route: &str, seconds: f64) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let works = inner.works.entry(stage).or_default();
        works.push_back((route.to_owned(), SystemTime::now(), seconds));
        if works.len() > WORKS {
            works.pop_front();
        }
    }

    /// Times of a stage's work, oldest first.
    pub fn work_times(&self, stage: Stage) -> Vec<WorkTime> {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.works.get(&stage).into_iter().flatten().cloned().collect()
    }

    /// Times of decisions in seconds, per policy and revision, the oldest revision first.
    pub fn decision_times(&self) -> Vec<((String, u64), Vec<f64>)> {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.times.iter().map(|(of, times)| (of.clone(), times.iter().copied().collect())).collect()
    }
}
