//! Times as they are kept and told.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_millis() as u64
}

/// RFC 3339 in UTC.
pub fn text(ms: u64) -> String {
    humantime::format_rfc3339_millis(time(ms)).to_string()
}

/// A time on the clock.
pub fn time(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms)
}

/// A time that was told.
pub fn read(text: &str) -> SystemTime {
    humantime::parse_rfc3339_weak(text).unwrap_or(UNIX_EPOCH)
}

/// Milliseconds since 1970 of a time that was told.
pub fn ms_of(text: &str) -> u64 {
    read(text).duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_millis() as u64
}
