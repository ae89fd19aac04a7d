//! Pauses that tests ask for by the environment of a debug build, where work has to be under way
//! for a while: how long a disk or a processor takes is nothing to rely on.

/// Milliseconds before each tensor of a load.
pub(crate) const LOAD: &str = "TILEWRIGHT_SLOW_LOAD_MS";

/// Milliseconds after each step of a sample.
pub(crate) const STEP: &str = "TILEWRIGHT_SLOW_STEP_MS";

/// Waits for as long as a variable says; in release builds, for no time.
pub(crate) fn pause(variable: &str) {
    let asked = cfg!(debug_assertions).then(|| std::env::var(variable).ok()).flatten();
    if let Some(milliseconds) = asked.and_then(|text| text.parse().ok()) {
        std::thread::sleep(std::time::Duration::from_millis(milliseconds));
    }
}
