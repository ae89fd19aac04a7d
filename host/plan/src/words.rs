//! Small words in messages: numbers with their nouns, and the name that was probably meant.

use std::{fmt::Display, time::Duration};

/// A number and its noun: `1 tile`, `3 tiles`, `2 entries`.
pub fn with_noun<N: Display + PartialEq + From<u8>>(number: N, noun: &str) -> String {
    if number == N::from(1) {
        return format!("{number} {noun}");
    }
    match noun.strip_suffix('y').filter(|stem| !stem.ends_with(['a', 'e', 'i', 'o', 'u'])) {
        Some(stem) => format!("{number} {stem}ies"),
        None if noun.ends_with(['s', 'x']) || noun.ends_with("ch") => format!("{number} {noun}es"),
        None => format!("{number} {noun}s"),
    }
}

/// The units of times, each with its seconds.
const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3600, "h"), (60, "min"), (1, "s")];

/// The time that is said to be longer than: an estimate beyond means nothing.
const LONGEST_TIME: Duration = Duration::from_secs(1000 * 86_400);

/// A time in its two largest units: `0.4 s`, `45 s`, `3 min 5 s`, `2 h 12 min`, `5 d 1 h`.
pub fn time(duration: Duration) -> String {
    if duration > LONGEST_TIME {
        return format!("more than {}", time(LONGEST_TIME));
    }
    if duration < Duration::from_secs(10) {
        let text = format!("{:.1}", duration.as_secs_f64());
        return format!("{} s", text.strip_suffix(".0").unwrap_or(&text));
    }
    let seconds = (duration.as_secs_f64()).round() as u64;
    let place = UNITS.iter().position(|(unit, _)| seconds >= *unit).unwrap_or(UNITS.len() - 1);
    let (unit, name) = UNITS[place];
    let first = format!("{} {name}", seconds / unit);
    match UNITS.get(place + 1).map(|(below, name)| (seconds % unit / below, name)) {
        None | Some((0, _)) => first,
        Some((rest, name)) => format!("{first} {rest} {name}"),
    }
}

/// The likeness, from 0 to 1, at which one name passes for another: one wrong letter or two
/// swapped, in short names too.
const ALIKE: f64 = 0.72;

/// The longest name, in bytes, that is compared: that takes the product of both lengths.
const LONGEST: usize = 256;

/// The known name that was probably meant, if any is close enough.
pub fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if given.len() > LONGEST {
        return None;
    }
    let lower = given.to_lowercase();
    let likeness = |name: &str| {
        let letters = strsim::normalized_damerau_levenshtein(&lower, &name.to_lowercase());
        // A name with the same beginning is a likelier guess than one with similar spelling
        // elsewhere.
        letters.max(strsim::jaro_winkler(&lower, &name.to_lowercase()) - 0.1)
    };
    let alike = known.into_iter().map(|name| (likeness(name), name)).filter(|(likeness, _)| *likeness >= ALIKE);
    alike.max_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, name)| name)
}

/// ` (did you mean NAME?)`, or nothing if no known name is close: to follow a message that the
/// given one is unknown.
pub fn did_you_mean<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(given, known).map_or_else(String::new, |name| format!(" (did you mean {name}?)"))
}

/// The message that a name is unknown, with the one that was probably meant and, after `lead`,
/// those that are known.
pub fn unknown<'a>(what: &str, given: &str, lead: &str, known: impl Iterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.collect();
    let meant = did_you_mean(given, known.iter().copied());
    format!("unknown {what} '{given}'{meant}: expected {lead}{}", known.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nouns_follow_their_numbers() {
        assert_eq!(with_noun(1_u32, "tile"), "1 tile");
        assert_eq!(with_noun(0_usize, "tile"), "0 tiles");
        assert_eq!(with_noun(2_u64, "entry"), "2 entries");
        assert_eq!(with_noun(3_u64, "day"), "3 days");
        assert_eq!(with_noun(2_u64, "batch"), "2 batches");
        assert_eq!(with_noun(1_u64, "batch"), "1 batch");
    }

    #[test]
    fn times_have_their_two_largest_units() {
        let words = |seconds: f64| time(Duration::from_secs_f64(seconds));
        for (seconds, expected) in [
            (0.04, "0 s"),
            (0.42, "0.4 s"),
            (9.0, "9 s"),
            (59.4, "59 s"),
            (59.6, "1 min"),
            (185.0, "3 min 5 s"),
            (3600.0, "1 h"),
            (7920.0, "2 h 12 min"),
            (435_600.0, "5 d 1 h"),
        ] {
            assert_eq!(words(seconds), expected, "{seconds}");
        }
        assert_eq!(time(Duration::MAX), "more than 1000 d");
    }

    #[test]
    fn names_that_are_near_are_meant() {
        let known = ["adaptive", "gfx1151", "comfyui", "diffusers", "fixed"];
        for (given, meant) in [
            ("adaptiv", Some("adaptive")),
            ("Adaptive", Some("adaptive")),
            ("adpative", Some("adaptive")),
            ("fxied", Some("fixed")),
            ("comfy", Some("comfyui")),
            ("diffuser", Some("diffusers")),
            ("nobody", None),
            ("nonsense", None),
            ("gfx1150", Some("gfx1151")),
            ("whatever", None),
            ("", None),
            ("x", None),
        ] {
            assert_eq!(nearest(given, known), meant, "{given}");
        }
        assert_eq!(nearest("fluks", ["sd", "sdxl", "sd3", "flux", "kl"]), Some("flux"));
        assert_eq!(nearest("tyle", ["tile", "time", "space"]), Some("tile"));
        assert_eq!(did_you_mean("fixd", known), " (did you mean fixed?)");
    }
}
