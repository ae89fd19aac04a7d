//! Meetings of the program with a test of it, so that a test can change a file at a known point of
//! the work without counting on anybody's speed. Nothing of it is in a release.

use std::fmt;

/// The environment variable that names a point and a named pipe, as `POINT=PIPE`.
#[cfg(debug_assertions)]
const MEET: &str = "TILEWRIGHT_MEET_AT";

/// Waits at a point, if a test named it, until the test has opened its pipe for writing and closed
/// it. A pipe that is gone is no meeting.
pub fn at(point: fmt::Arguments<'_>) {
    #[cfg(debug_assertions)]
    {
        use std::{fs, io, sync::OnceLock};
        static MEETING: OnceLock<Option<String>> = OnceLock::new();
        let Some(asked) = MEETING.get_or_init(|| std::env::var(MEET).ok()) else { return };
        let pipe = asked.strip_prefix(&point.to_string()).and_then(|rest| rest.strip_prefix('='));
        if let Some(mut pipe) = pipe.and_then(|pipe| fs::File::open(pipe).ok()) {
            drop(io::copy(&mut pipe, &mut io::sink()));
        }
    }
    #[cfg(not(debug_assertions))]
    let _ = point;
}
