//! Times, as milliseconds since 1970 and as RFC 3339. The wall clock says when a job was accepted;
//! from then on the steady clock counts, which no change of the wall clock moves: deadlines, the
//! order of jobs, the times at which they began and ended, and how long results are kept.

use std::{
    sync::{Mutex, OnceLock, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use uuid::{ContextV7, Timestamp, Uuid};

/// The environment variable by which tests name a file with the seconds that the wall clock is
/// ahead, which may change at any time.
#[cfg(debug_assertions)]
const AHEAD: &str = "TILEWRIGHT_CLOCK_AHEAD";

/// A clock that goes on from a time, in milliseconds since 1970, at the pace of the machine's
/// monotonic clock.
#[derive(Clone, Copy, Debug)]
struct SteadyClock {
    begun_ms: u64,
    since: Instant,
}

static STEADY: OnceLock<SteadyClock> = OnceLock::new();

/// One moment by both clocks, in milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptClock {
    pub wall_ms: u64,
    pub steady_ms: u64,
}

impl SteadyClock {
    /// A clock that begins now, no earlier than `last_ms`: where the steady clock of the server
    /// before this one was kept, and as much later as the wall clock is since then. Without such a
    /// moment it begins at the wall clock's time.
    fn begin(wall_ms: u64, kept: Option<KeptClock>, last_ms: u64) -> Self {
        let now = kept.map_or(wall_ms, |kept| kept.steady_ms.saturating_add(wall_ms.saturating_sub(kept.wall_ms)));
        Self { begun_ms: now.max(last_ms), since: Instant::now() }
    }

    fn at(&self, now: Instant) -> u64 {
        self.begun_ms.saturating_add(now.saturating_duration_since(self.since).as_millis() as u64)
    }
}

/// Begins the steady clock of this process where the one of the server before it was kept, and no
/// earlier than the last time of a job, in milliseconds since 1970: the wall clock may have been
/// set back between the two, or put right while that server was up. Later calls change nothing.
pub fn begin(kept: Option<KeptClock>, last_ms: u64) {
    STEADY.get_or_init(|| SteadyClock::begin(now_ms(), kept, last_ms));
}

/// The present by the wall clock, in milliseconds since 1970.
pub fn now_ms() -> u64 {
    wall().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_millis() as u64
}

/// The present by the steady clock, in milliseconds since 1970.
pub fn steady_ms() -> u64 {
    STEADY.get_or_init(|| SteadyClock::begin(now_ms(), None, 0)).at(Instant::now())
}

#[cfg(not(debug_assertions))]
fn wall() -> SystemTime {
    SystemTime::now()
}

#[cfg(debug_assertions)]
fn wall() -> SystemTime {
    let now = SystemTime::now();
    let Some(path) = std::env::var_os(AHEAD) else { return now };
    let ahead: i64 = std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    let seconds = Duration::from_secs(ahead.unsigned_abs());
    let moved = if ahead < 0 { now.checked_sub(seconds) } else { now.checked_add(seconds) };
    moved.unwrap_or(UNIX_EPOCH)
}

/// The id of a job that is accepted now: ids are in the order of acceptance, across a change of the
/// wall clock too.
pub fn job_id() -> String {
    static ORDER: Mutex<ContextV7> = Mutex::new(ContextV7::new());
    let order = ORDER.lock().unwrap_or_else(PoisonError::into_inner);
    let ms = steady_ms();
    Uuid::new_v7(Timestamp::from_unix(&*order, ms / 1000, (ms % 1000) as u32 * 1_000_000)).to_string()
}

/// The time in a job's id, by the steady clock, in milliseconds since 1970; none if it has none.
pub fn accepted_ms(id: &str) -> Option<u64> {
    let (seconds, nanoseconds) = Uuid::parse_str(id).ok()?.get_timestamp()?.to_unix();
    Some(seconds * 1000 + u64::from(nanoseconds) / 1_000_000)
}

/// A time in RFC 3339, UTC, from milliseconds since 1970.
pub fn format_ms(ms: u64) -> String {
    humantime::format_rfc3339_millis(time(ms)).to_string()
}

/// A time from milliseconds since 1970.
pub fn time(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms)
}

/// The time in a text of RFC 3339; 1970 if it is none.
pub fn parse(text: &str) -> SystemTime {
    humantime::parse_rfc3339_weak(text).unwrap_or(UNIX_EPOCH)
}

/// The time in a text of RFC 3339, in milliseconds since 1970.
pub fn parse_ms(text: &str) -> u64 {
    parse(text).duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_clock_goes_on_from_the_last_time_that_was_kept() {
        let kept = |wall_ms, steady_ms| Some(KeptClock { wall_ms, steady_ms });
        for (wall_ms, kept, last_ms, begun_ms) in [
            (1000, None, 0, 1000),
            (1000, None, 900, 1000),
            (1000, None, 3_601_000, 3_601_000),
            // The wall clock is as far ahead as it was: only the time between the two servers
            // counts.
            (9000, kept(8000, 1000), 900, 2000),
            // It was set back since.
            (9000, kept(9500, 1000), 900, 1000),
            (9000, kept(9500, 1000), 1100, 1100),
        ] {
            let clock = SteadyClock::begin(wall_ms, kept, last_ms);
            assert_eq!(clock.at(clock.since), begun_ms);
            assert_eq!(clock.at(clock.since + Duration::from_secs(2)), begun_ms + 2000);
            assert_eq!(clock.at(clock.since - Duration::from_secs(2)), begun_ms, "never back");
        }
    }

    #[test]
    fn ids_are_in_the_order_of_acceptance_and_say_when_that_was() {
        let before = steady_ms();
        let ids: Vec<String> = (0..1000).map(|_| job_id()).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(ids.iter().all(|id| accepted_ms(id).unwrap() >= before), "{ids:?}");
        assert_eq!(accepted_ms("job"), None);
    }
}
