//! What is known of the last jobs beyond their records: what the policy considered and said, and how others would have decided.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

use tilewright_plan::{Candidate, LogLine, Record};

/// Jobs that this is kept of.
const KEPT: usize = 200;

/// Decision times that are kept of a revision.
const TIMES: usize = 512;

/// Decodes that the times are kept of.
const DECODES: usize = 400;

/// Revisions that decision times are kept of.
const REVISIONS: usize = 12;

/// Beyond a job's record.
#[derive(Clone, Debug, Default)]
pub struct Story {
    /// What the policy asked the price of.
    pub candidates: Vec<Candidate>,
    /// What it logged.
    pub log: Vec<LogLine>,
    /// The incumbent's record of the same job and the PSNR between the two, where a canary was looked at.
    pub incumbent: Option<(u64, Box<Record>, f64)>,
}

/// Stories of the last jobs, and decision times of the last revisions.
#[derive(Debug, Default)]
pub struct Stories(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    stories: HashMap<String, Story>,
    order: VecDeque<String>,
    times: VecDeque<((String, u64), VecDeque<f64>)>,
    decodes: VecDeque<(String, SystemTime, f64)>,
}

impl Stories {
    /// Keeps a job's.
    pub fn keep(&self, id: &str, story: Story) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.order.push_back(id.to_owned());
        inner.stories.insert(id.to_owned(), story);
        if inner.order.len() > KEPT
            && let Some(oldest) = inner.order.pop_front()
        {
            inner.stories.remove(&oldest);
        }
    }

    /// A job's, where it is kept.
    pub fn of(&self, id: &str) -> Option<Story> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).stories.get(id).cloned()
    }

    /// Keeps the time of a decision, in seconds.
    pub fn decided(&self, policy: &str, revision: u64, seconds: f64) {
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

    /// Keeps the time of a decode, in seconds.
    pub fn decoded(&self, route: &str, seconds: f64) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.decodes.push_back((route.to_owned(), SystemTime::now(), seconds));
        if inner.decodes.len() > DECODES {
            inner.decodes.pop_front();
        }
    }

    /// Times of decodes, oldest first: route, when, seconds.
    pub fn decodes(&self) -> Vec<(String, SystemTime, f64)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).decodes.iter().cloned().collect()
    }

    /// Times of decisions in seconds, per policy and revision, the oldest revision first.
    pub fn times(&self) -> Vec<((String, u64), Vec<f64>)> {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.times.iter().map(|(of, times)| (of.clone(), times.iter().copied().collect())).collect()
    }
}
