//! Numbers, sizes and times for people.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use maud::{Markup, html};
use tilewright_plan::bytes;

/// Letters of a digest that are shown; the whole of it is in the title.
const DIGEST_LETTERS: usize = 10;

/// The space between thousands, and between a number and its unit: narrow and without a line break.
const THIN: char = '\u{202f}';

/// The mark for an unknown value.
pub(crate) const NONE: &str = "–";

/// A size, as [`bytes::display`] has it.
pub(crate) fn size(count: u64) -> String {
    bytes::display(count).replace(' ', "\u{a0}")
}

/// A whole number, its thousands apart.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut apart = String::with_capacity(digits.len() * 2);
    for (place, digit) in digits.char_indices() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            apart.push(THIN);
        }
        apart.push(digit);
    }
    apart
}

/// A number and its noun: `1 tile`, `2 tiles`.
pub(crate) fn count_of(number: u64, one: &str, many: &str) -> String {
    format!("{}\u{a0}{}", count(number), if number == 1 { one } else { many })
}

/// Three digits or so, without trailing zeros.
pub(crate) fn number(value: f64) -> String {
    let decimals = match value.abs() {
        size if !size.is_finite() => return NONE.into(),
        size if size >= 1000.0 => return (if value < 0.0 { "−" } else { "" }).to_owned() + &count(size.round() as u64),
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{value:.decimals$}");
    let short = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    if short == "-0" { "0".into() } else { short.replace('-', "−") }
}

/// A share of one, as percent.
pub(crate) fn percent(share: f64) -> String {
    if share.is_finite() { format!("{}\u{a0}%", number(share * 100.0)) } else { NONE.into() }
}

/// A span of time in the unit that fits.
pub(crate) fn span(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    let whole = seconds.round() as u64;
    match seconds {
        s if s < 0.000_999_5 => format!("{}\u{a0}µs", number(s * 1e6)),
        s if s < 0.999_5 => format!("{}\u{a0}ms", number(s * 1e3)),
        s if s < 59.5 => format!("{}\u{a0}s", number(s)),
        _ if whole < 3600 => two((whole / 60, "min"), (whole % 60, "s")),
        _ if whole < 86_400 => two((whole / 3600, "h"), (whole % 3600 / 60, "min")),
        _ => two((whole / 86_400, "d"), (whole % 86_400 / 3600, "h")),
    }
}

fn two(large: (u64, &str), small: (u64, &str)) -> String {
    let head = format!("{}\u{a0}{}", count(large.0), large.1);
    if small.0 == 0 { head } else { format!("{head} {}\u{a0}{}", small.0, small.1) }
}

/// Milliseconds in the unit that fits.
pub(crate) fn milliseconds(value: f64) -> String {
    Duration::try_from_secs_f64(value / 1e3).map_or_else(|_| NONE.into(), span)
}

/// A time in RFC 3339; 1970 if it is none.
pub(crate) fn parse(text: &str) -> SystemTime {
    humantime::parse_rfc3339_weak(text).unwrap_or(UNIX_EPOCH)
}

/// The time from one moment to a later one; zero if clocks went backwards.
pub(crate) fn between(from: SystemTime, to: SystemTime) -> Duration {
    to.duration_since(from).unwrap_or_default()
}

/// A duration in whole seconds, and in one unit above a minute, so that pages seldom change.
pub(crate) fn coarse(time: Duration) -> String {
    match time.as_secs() {
        s if s < 60 => format!("{s}\u{a0}s"),
        s if s < 3600 => format!("{}\u{a0}min", s / 60),
        s if s < 172_800 => format!("{}\u{a0}h", s / 3600),
        s => format!("{}\u{a0}d", count(s / 86_400)),
    }
}

/// A moment, as the time since then; the moment itself is in the title.
pub(crate) fn since(now: SystemTime, then: SystemTime) -> Markup {
    let passed = between(then, now);
    let words = if passed < Duration::from_secs(2) { "just now".into() } else { format!("{} ago", coarse(passed)) };
    moment(then, &words)
}

/// A moment, as the time since then, with the moment itself beside it.
pub(crate) fn when(now: SystemTime, then: SystemTime) -> Markup {
    html! { (since(now, then)) " " span.stamp { (spelt(then)) } }
}

/// A moment itself.
pub(crate) fn absolute(then: SystemTime) -> Markup {
    html! { time datetime=(stamp(then)) { (spelt(then)) } }
}

/// A moment as people read it: date, time and zone.
fn spelt(then: SystemTime) -> String {
    stamp(then).replace('T', "\u{a0}").replace('Z', "\u{a0}UTC")
}

/// A moment, as the words given; the moment itself is in the title.
pub(crate) fn moment(then: SystemTime, words: &str) -> Markup {
    let stamp = stamp(then);
    html! { time datetime=(stamp) title=(stamp.replace('T', " ").replace('Z', " UTC")) { (words) } }
}

/// The last moment that has a date of four digits.
const LAST: Duration = Duration::from_secs(253_402_300_799);

/// RFC 3339 in UTC, to the second. Moments before 1970 are 1970, those after 9999 its end.
pub(crate) fn stamp(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + between(UNIX_EPOCH, time).min(LAST)).to_string()
}

/// A digest, shortened; whole in its title.
pub(crate) fn digest(text: &str) -> Markup {
    let bare = text.strip_prefix("sha256:").unwrap_or(text);
    let short = match bare.char_indices().nth(DIGEST_LETTERS) {
        Some((end, _)) => &bare[..end],
        None => bare,
    };
    html! { code.digest title=(text) { (short) } }
}

/// A ratio of signal to noise.
pub(crate) fn decibels(value: f64) -> String {
    match value {
        value if value == f64::INFINITY => "identical".into(),
        value if value.is_finite() => format!("{}\u{a0}dB", number(value)),
        _ => NONE.into(),
    }
}

/// Pixels across and down, with the frames of a clip and the samples of a batch.
pub(crate) fn extent(width: u32, height: u32, frames: u32, batch: u32) -> String {
    if width == 0 || height == 0 {
        return NONE.into();
    }
    let mut text = format!("{width}\u{a0}×\u{a0}{height}");
    if frames > 1 {
        text += &format!(", {}", count_of(frames.into(), "frame", "frames"));
    }
    if batch > 1 {
        text += &format!(", {}", count_of(batch.into(), "sample", "samples"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> String {
        text.replace(['\u{a0}', THIN], " ")
    }

    #[test]
    fn numbers_are_short_and_say_their_unit() {
        let cases = [
            (count(0), "0"),
            (count(1_234_567), "1 234 567"),
            (number(0.5), "0.5"),
            (number(-0.001), "0"),
            (number(-2.0), "−2"),
            (number(99.96), "100"),
            (number(12.34), "12.3"),
            (number(f64::NAN), "–"),
            (number(1e300), "18 446 744 073 709 551 615"),
            (percent(0.125), "12.5 %"),
            (percent(f64::INFINITY), "–"),
            (size(512 << 20), "512 MiB"),
            (decibels(45.25), "45.2 dB"),
            (decibels(f64::INFINITY), "identical"),
            (count_of(1, "tile", "tiles"), "1 tile"),
            (count_of(2, "tile", "tiles"), "2 tiles"),
            (extent(1664, 928, 1, 1), "1664 × 928"),
            (extent(832, 480, 81, 2), "832 × 480, 81 frames, 2 samples"),
            (extent(0, 928, 1, 1), "–"),
        ];
        for (text, expected) in cases {
            assert_eq!(plain(&text), expected);
        }
    }

    #[test]
    fn spans_have_the_unit_that_fits() {
        let cases = [
            (0.000_004_1, "4.1 µs"),
            (0.000_999_9, "1 ms"),
            (0.0123, "12.3 ms"),
            (0.9999, "1 s"),
            (59.6, "1 min"),
            (185.0, "3 min 5 s"),
            (7800.0, "2 h 10 min"),
            (90_000.0, "1 d 1 h"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(plain(&span(Duration::from_secs_f64(seconds))), expected);
        }
        for odd in [f64::NAN, -1.0, f64::INFINITY, 1e300] {
            assert_eq!(milliseconds(odd), NONE);
        }
    }

    #[test]
    fn moments_are_told_from_now_and_named_in_full() {
        let then = UNIX_EPOCH + Duration::from_secs(1_709_210_096);
        assert_eq!(stamp(then), "2024-02-29T12:34:56Z");
        assert_eq!(stamp(UNIX_EPOCH + Duration::from_secs(951_782_400)), "2000-02-29T00:00:00Z");
        assert_eq!(stamp(UNIX_EPOCH - Duration::from_secs(5)), "1970-01-01T00:00:00Z");
        let html = since(then + Duration::from_secs(125), then).into_string();
        assert!(plain(&html).contains("2 min ago") && html.contains("2024-02-29 12:34:56 UTC"), "{html}");
        assert!(since(then - Duration::from_secs(9), then).into_string().contains("just now"));
    }

    #[test]
    fn digests_are_shortened_and_whole_in_the_title() {
        let whole = format!("sha256:{}", "ab".repeat(32));
        let html = digest(&whole).into_string();
        assert!(html.contains(&whole) && html.contains(">ababababab<"), "{html}");
        assert!(digest("äöüäöüäöüäöü").into_string().contains(">äöüäöüäöüä<"));
    }
}
