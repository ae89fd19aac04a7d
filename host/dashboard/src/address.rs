//! Addresses within the service.

use std::fmt::Write as _;

/// One segment of a path. Letters that are not plain are written as `%XX`, so that no name can
/// leave its segment.
pub(crate) fn segment(text: &str) -> String {
    let mut segment = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            segment.push(byte.into());
        } else {
            // Writing to a string can't fail.
            let _ = write!(segment, "%{byte:02X}");
        }
    }
    segment
}

/// The id of an element for a thing with a name. Letters, digits, `-` and `.` stand and the rest is
/// spelt out, so that names that differ have ids that differ. Two dashes end the kind, since names
/// may begin as a longer kind ends.
pub(crate) fn id(kind: &str, name: &str) -> String {
    let mut id = format!("{kind}--");
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-.".contains(&byte) {
            id.push(byte.into());
        } else {
            let _ = write!(id, "_{byte:02x}");
        }
    }
    id
}

/// A preview; the step keeps browsers from showing an earlier one.
pub(crate) fn preview(id: &str, step: u32) -> String {
    format!("/v1/jobs/{}/preview?step={step}", segment(id))
}

/// True for a path of this service that browsers can't take for another host or a script.
pub(crate) fn is_local(path: &str) -> bool {
    path.starts_with('/')
        && !path.starts_with("//")
        && !path.contains(|letter: char| letter == '\\' || letter.is_control())
}

pub(crate) fn job(id: &str) -> String {
    format!("/jobs/{}", segment(id))
}

pub(crate) fn policy(name: &str) -> String {
    format!("/policies/{}", segment(name))
}

/// The page for prompts with a job: `job` puts its picture first, `from` fills in the form.
pub(crate) fn prompt_of(part: &str, id: &str) -> String {
    format!("/prompt?{part}={}", segment(id))
}

pub(crate) fn thumbnail(id: &str) -> String {
    format!("/jobs/{}/thumbnail", segment(id))
}

/// A job's profile in a format: `json` is the trace, `html` the page.
pub(crate) fn profile(id: &str, format: &str) -> String {
    format!("/v1/jobs/{}/profile?format={format}", segment(id))
}

pub(crate) fn result(id: &str, sample: u32) -> String {
    format!("/v1/jobs/{}/result?sample={sample}", segment(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_their_segment() {
        assert_eq!(segment("a-b_c.9"), "a-b_c.9");
        assert_eq!(segment("../?#\"ä"), "..%2F%3F%23%22%C3%A4");
        assert_eq!(id("run", "a b"), "run--a_20b");
        assert_ne!(id("run", "a b"), id("run", "a_20b"));
    }

    #[test]
    fn only_own_paths_are_linked() {
        assert!(is_local("/policies/fast?x=1"));
        for path in
            ["", "x", "//evil.example", "/\\evil.example", "/\t/evil.example", "javascript:alert(1)", "https://x"]
        {
            assert!(!is_local(path), "{path}");
        }
    }
}
