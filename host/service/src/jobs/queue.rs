//! Who waits for a device: a bounded number of jobs, tags in turn, and within a tag in the order in which they came.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// The queue of one device.
#[derive(Debug)]
pub struct Queue {
    capacity: usize,
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Tags with jobs, the next one's turn first.
    tags: VecDeque<(String, VecDeque<String>)>,
    /// Places that are taken: jobs that wait, and those that are being accepted.
    taken: usize,
    /// Mean of what the last jobs took, in seconds.
    pace: Option<f64>,
    running: bool,
    closed: bool,
}

/// A place in the queue that is taken and not filled yet; given back where it is dropped.
#[derive(Debug)]
pub struct Place<'a> {
    queue: &'a Queue,
    filled: bool,
}

impl Queue {
    /// An empty one with so many places.
    pub fn new(capacity: usize) -> Self {
        Self { capacity, waiting: Mutex::default(), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place.
    ///
    /// # Errors
    /// All are taken: seconds after which one is likely to be free.
    pub fn place(&self) -> Result<Place<'_>, u64> {
        let mut waiting = self.lock();
        if waiting.taken >= self.capacity {
            // One leaves the queue with every job that ends.
            return Err(waiting.pace.map_or(1, |pace| pace.ceil().clamp(1.0, 600.0) as u64));
        }
        waiting.taken += 1;
        Ok(Place { queue: self, filled: false })
    }

    /// Puts a job back that was accepted before the server ended, full or not.
    pub fn restore(&self, tag: &str, id: &str) {
        self.lock().taken += 1;
        self.push(tag, id);
    }

    fn push(&self, tag: &str, id: &str) {
        let mut waiting = self.lock();
        match waiting.tags.iter_mut().find(|(known, _)| known == tag) {
            Some((_, jobs)) => jobs.push_back(id.to_owned()),
            None => waiting.tags.push_back((tag.to_owned(), VecDeque::from([id.to_owned()]))),
        }
        drop(waiting);
        self.changed.notify_one();
    }

    /// The job whose turn it is; waits for one. None once the queue is closed.
    pub fn next(&self) -> Option<String> {
        let mut waiting = self.lock();
        loop {
            if waiting.closed {
                return None;
            }
            if let Some((tag, mut jobs)) = waiting.tags.pop_front() {
                let id = jobs.pop_front();
                if !jobs.is_empty() {
                    waiting.tags.push_back((tag, jobs));
                }
                waiting.taken = waiting.taken.saturating_sub(1);
                waiting.running = true;
                return id;
            }
            waiting.running = false;
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes a waiting job out; false where it does not wait.
    pub fn remove(&self, id: &str) -> bool {
        let mut waiting = self.lock();
        let before: usize = waiting.tags.iter().map(|(_, jobs)| jobs.len()).sum();
        waiting.tags.iter_mut().for_each(|(_, jobs)| jobs.retain(|known| known != id));
        waiting.tags.retain(|(_, jobs)| !jobs.is_empty());
        let after: usize = waiting.tags.iter().map(|(_, jobs)| jobs.len()).sum();
        waiting.taken = waiting.taken.saturating_sub(before - after);
        before != after
    }

    /// The jobs that wait, in the order in which their turns come.
    pub fn order(&self) -> Vec<String> {
        let waiting = self.lock();
        let longest = waiting.tags.iter().map(|(_, jobs)| jobs.len()).max().unwrap_or(0);
        let round = |place: usize| waiting.tags.iter().filter_map(move |(_, jobs)| jobs.get(place).cloned());
        (0..longest).flat_map(round).collect()
    }

    /// Jobs that wait, and whether one is at work.
    pub fn load(&self) -> (usize, bool) {
        let waiting = self.lock();
        (waiting.taken, waiting.running)
    }

    /// Hears what a job took.
    pub fn took(&self, elapsed: Duration) {
        let mut waiting = self.lock();
        let seconds = elapsed.as_secs_f64();
        waiting.pace = Some(waiting.pace.map_or(seconds, |pace| 0.8 * pace + 0.2 * seconds));
    }

    /// Whoever waits for a job gets none any more.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }
}

impl Place<'_> {
    /// Fills the place with a job.
    pub fn fill(mut self, tag: &str, id: &str) {
        self.filled = true;
        self.queue.push(tag, id);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !self.filled {
            let mut waiting = self.queue.lock();
            waiting.taken = waiting.taken.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(jobs: &[(&str, &str)]) -> Queue {
        let queue = Queue::new(8);
        jobs.iter().for_each(|(tag, id)| queue.place().unwrap().fill(tag, id));
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
        let held = queue.place().unwrap();
        queue.place().unwrap().fill("a", "1");
        assert_eq!(queue.place().unwrap_err(), 1);
        queue.took(Duration::from_secs(30));
        assert_eq!(queue.place().unwrap_err(), 30);
        drop(held);
        queue.place().unwrap().fill("a", "2");
        assert!(queue.remove("1") && !queue.remove("1"));
        assert!(queue.place().is_ok());
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
