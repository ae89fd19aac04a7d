//! Pauses that tests ask for by the environment of a debug build, where work has to be under way
//! for a while: how long a disk or a processor takes is nothing to rely on. Likewise operations
//! that are not divided, however long they take.

/// Milliseconds before each tensor of a load.
pub(crate) const LOAD: &str = "TILEWRIGHT_SLOW_LOAD_MS";

/// Milliseconds after each step of a sample.
pub(crate) const STEP: &str = "TILEWRIGHT_SLOW_STEP_MS";

/// Set if no operation is to be divided for a cancellation.
const WHOLE: &str = "TILEWRIGHT_WHOLE_OPERATIONS";

/// True if operations may be divided; in release builds always.
pub(crate) fn divides_operations() -> bool {
    !cfg!(debug_assertions) || std::env::var_os(WHOLE).is_none()
}

/// Waits for as long as a variable says; in release builds, for no time.
pub(crate) fn pause(variable: &str) {
    let asked = cfg!(debug_assertions).then(|| std::env::var(variable).ok()).flatten();
    if let Some(milliseconds) = asked.and_then(|text| text.parse().ok()) {
        std::thread::sleep(std::time::Duration::from_millis(milliseconds));
    }
}
