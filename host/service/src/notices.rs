//! Outcomes of actions, for the page that follows. The text is held here, and the address of the
//! page has only its number: an address can be written by a stranger, and a text in it would pass
//! for the server's own.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use tilewright_dashboard::views::{Notice, Tone};
use tilewright_service_api::JobRequest;
use uuid::Uuid;

/// The lifetime of a notice: a page that is loaded again much later does not show it.
const READABLE: Duration = Duration::from_secs(300);

/// The most notices at once; one more removes the oldest.
const MOST: usize = 128;

/// The most characters of a notice.
const LONGEST: usize = 600;

/// Notices of the last minutes.
#[derive(Debug, Default)]
pub struct Notices(Mutex<VecDeque<StoredNotice>>);

#[derive(Debug)]
struct StoredNotice {
    number: String,
    since: Instant,
    notice: Notice,
    /// The request that was refused: its form is filled in with it again.
    refused: Option<JobRequest>,
}

impl Notices {
    /// Holds a notice. Returns its number, which can't be guessed.
    pub fn hold(&self, is_good: bool, text: &str) -> String {
        self.hold_since(Instant::now(), is_good, text, None)
    }

    /// Holds a notice of a request that was refused.
    pub fn hold_refused(&self, text: &str, request: JobRequest) -> String {
        self.hold_since(Instant::now(), false, text, Some(request))
    }

    fn hold_since(&self, since: Instant, is_good: bool, text: &str, refused: Option<JobRequest>) -> String {
        let number = Uuid::new_v4().simple().to_string();
        let tone = if is_good { Tone::Good } else { Tone::Bad };
        let notice = Notice { tone, text: text.chars().take(LONGEST).collect() };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push_back(StoredNotice { number: number.clone(), since, notice, refused });
        if all.len() > MOST {
            all.pop_front();
        }
        number
    }

    /// The notice with a number; none if it is gone.
    pub fn get(&self, number: &str) -> Option<Notice> {
        self.find(number, |held| Some(held.notice.clone()))
    }

    /// The refused request of the notice with a number; none if it is gone, or was of none.
    pub fn refused(&self, number: &str) -> Option<JobRequest> {
        self.find(number, |held| held.refused.clone())
    }

    fn find<T>(&self, number: &str, of: impl FnOnce(&StoredNotice) -> Option<T>) -> Option<T> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let held = all.iter().find(|held| held.number == number)?;
        if held.since.elapsed() < READABLE { of(held) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_gives_its_notice_for_a_while_and_nothing_else_does() {
        let notices = Notices::default();
        let first = notices.hold(false, "policy a: is busy");
        let notice = notices.get(&first).unwrap();
        assert_eq!((notice.tone, notice.text.as_str()), (Tone::Bad, "policy a: is busy"));
        for number in ["", "good:call this number", "0"] {
            assert_eq!(notices.get(number), None, "{number}");
        }
        let long = notices.hold(true, &"a".repeat(10_000));
        assert_eq!(notices.get(&long).unwrap().text.len(), LONGEST);
        (0..MOST).for_each(|_| drop(notices.hold(true, "")));
        assert_eq!(notices.get(&first), None, "the oldest went");
        if let Some(past) = Instant::now().checked_sub(READABLE) {
            assert_eq!(notices.get(&notices.hold_since(past, true, "", None)), None);
        }
    }
}
