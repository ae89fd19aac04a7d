//! Times, as milliseconds since 1970 and as RFC 3339.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The present, in milliseconds since 1970.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_millis() as u64
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
