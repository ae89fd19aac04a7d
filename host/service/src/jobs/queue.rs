//! The queue of a device: a bounded number of jobs, tags in turn, and within a tag in order of
//! arrival.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// The queue of one device. Workers block in [`Queue::next`]; the mutex is held for moments alone.
#[derive(Debug)]
pub struct Queue {
    capacity: usize,
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    /// Tags with their jobs; the next turn is the first's.
    tags: VecDeque<(String, VecDeque<String>)>,
    /// Slots taken: by jobs that wait, and by jobs that are being accepted.
    taken: usize,
    /// The mean time of the last jobs, in seconds.
    mean_seconds: Option<f64>,
    running: bool,
    closed: bool,
}

/// A slot that is reserved and not filled yet. Dropping it frees the slot.
#[derive(Debug)]
pub struct QueueSlot<'a> {
    queue: &'a Queue,
    filled: bool,
}

impl Queue {
    /// An empty queue of `capacity` slots.
    pub fn new(capacity: usize) -> Self {
        Self { capacity, state: Mutex::default(), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves a slot.
    ///
    /// # Errors
    /// All are taken: the seconds after which one is likely to be free.
    pub fn reserve(&self) -> Result<QueueSlot<'_>, u64> {
        let mut state = self.lock();
        if state.taken >= self.capacity {
            // One slot becomes free with every job that ends.
            return Err(state.mean_seconds.map_or(1, |mean_seconds| mean_seconds.ceil().clamp(1.0, 600.0) as u64));
        }
        state.taken += 1;
        Ok(QueueSlot { queue: self, filled: false })
    }

    /// Puts a job back that was accepted before the server ended, full or not.
    pub fn restore(&self, tag: &str, id: &str) {
        self.lock().taken += 1;
        self.push(tag, id);
    }

    fn push(&self, tag: &str, id: &str) {
        let mut state = self.lock();
        match state.tags.iter_mut().find(|(known, _)| known == tag) {
            Some((_, jobs)) => jobs.push_back(id.to_owned()),
            None => state.tags.push_back((tag.to_owned(), VecDeque::from([id.to_owned()]))),
        }
        drop(state);
        self.changed.notify_one();
    }

    /// The job whose turn it is; waits for one. None when the queue is closed.
    pub fn next(&self) -> Option<String> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some((tag, mut jobs)) = state.tags.pop_front() {
                let id = jobs.pop_front();
                if !jobs.is_empty() {
                    state.tags.push_back((tag, jobs));
                }
                state.taken = state.taken.saturating_sub(1);
                state.running = true;
                return id;
            }
            state.running = false;
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes a waiting job out; false if it does not wait.
    pub fn remove(&self, id: &str) -> bool {
        let mut state = self.lock();
        let before: usize = state.tags.iter().map(|(_, jobs)| jobs.len()).sum();
        state.tags.iter_mut().for_each(|(_, jobs)| jobs.retain(|known| known != id));
        state.tags.retain(|(_, jobs)| !jobs.is_empty());
        let after: usize = state.tags.iter().map(|(_, jobs)| jobs.len()).sum();
        state.taken = state.taken.saturating_sub(before - after);
        before != after
    }

    /// The jobs that wait, in the order in which their turns come.
    pub fn order(&self) -> Vec<String> {
        let state = self.lock();
        let longest = state.tags.iter().map(|(_, jobs)| jobs.len()).max().unwrap_or(0);
        let round = |place: usize| state.tags.iter().filter_map(move |(_, jobs)| jobs.get(place).cloned());
        (0..longest).flat_map(round).collect()
    }

    /// The number of jobs that wait, and true if one is at work.
    pub fn load(&self) -> (usize, bool) {
        let state = self.lock();
        (state.taken, state.running)
    }

    /// Notes the time that a job took.
    pub fn record_duration(&self, elapsed: Duration) {
        let mut state = self.lock();
        let seconds = elapsed.as_secs_f64();
        state.mean_seconds =
            Some(state.mean_seconds.map_or(seconds, |mean_seconds| 0.8 * mean_seconds + 0.2 * seconds));
    }

    /// True if nobody waits any longer.
    #[cfg(debug_assertions)]
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Closes the queue: [`Queue::next`] returns none from then on.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }
}

impl QueueSlot<'_> {
    /// Fills the slot with a job.
    pub fn fill(mut self, tag: &str, id: &str) {
        self.filled = true;
        self.queue.push(tag, id);
    }
}

impl Drop for QueueSlot<'_> {
    fn drop(&mut self) {
        if !self.filled {
            let mut state = self.queue.lock();
            state.taken = state.taken.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(jobs: &[(&str, &str)]) -> Queue {
        let queue = Queue::new(8);
        jobs.iter().for_each(|(tag, id)| queue.reserve().unwrap().fill(tag, id));
        queue
    }

    #[test]
    fn tags_take_turns_whoever_has_more() {
        let queue = filled(&[("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1"), ("b", "b2")]);
        let order = queue.order();
        assert_eq!(order, ["a1", "b1", "c1", "a2", "b2", "a3"]);
        let taken: Vec<String> = (0..6).filter_map(|_| queue.next()).collect();
        assert_eq!(taken, order);
    }

    #[test]
    fn a_full_queue_says_when_to_come_again_and_places_come_back() {
        let queue = Queue::new(2);
        let held = queue.reserve().unwrap();
        queue.reserve().unwrap().fill("a", "1");
        assert_eq!(queue.reserve().unwrap_err(), 1);
        queue.record_duration(Duration::from_secs(30));
        assert_eq!(queue.reserve().unwrap_err(), 30);
        drop(held);
        queue.reserve().unwrap().fill("a", "2");
        assert!(queue.remove("1") && !queue.remove("1"));
        assert!(queue.reserve().is_ok());
        assert_eq!(queue.next().as_deref(), Some("2"));
    }

    #[test]
    fn a_closed_queue_lets_everybody_go() {
        let queue = filled(&[("a", "1")]);
        queue.close();
        assert_eq!(queue.next(), None);
        assert_eq!(queue.order(), ["1"], "it is kept for the next start");
    }
}
