//! Conditional and range requests for files that never change (RFC 9110, sections 13 and 14).

use std::{
    ops::RangeInclusive,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::http::{HeaderMap, HeaderName, Method, header};

/// The unit of ranges that are given.
const BYTES: &str = "bytes=";

/// The mark of an entity tag that is equal for contents that only mean the same.
const WEAK: &str = "W/";

/// The headers by which a file is known again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Validators {
    /// A strong entity tag, in quotes.
    pub tag: String,
    /// The time of its last change, to the second.
    pub modified: SystemTime,
}

/// The answer to a request for a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// All of it.
    Whole,
    /// These bytes of it.
    Part(RangeInclusive<u64>),
    /// The caller has it.
    NotModified,
    /// It is not the file that the caller means.
    NotTheSame,
    /// It has no such part.
    NoSuchPart,
}

impl Validators {
    /// The validators of a file by a name that no other contents ever have. Fractions of a second
    /// are dropped, as in the header.
    pub fn new(name: &str, modified: SystemTime) -> Self {
        let since = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { tag: format!("\"{name}\""), modified: UNIX_EPOCH + Duration::from_secs(since.as_secs()) }
    }

    /// The headers of an answer with the file, or about it.
    pub fn headers(&self) -> [(HeaderName, String); 2] {
        [(header::ETAG, self.tag.clone()), (header::LAST_MODIFIED, httpdate::fmt_http_date(self.modified))]
    }

    /// The answer to a request for a file of `size` bytes. Conditions come before ranges. A range
    /// of another unit, several ranges and what is no range are ignored, as are all ranges of other
    /// methods than GET.
    pub fn answer(&self, method: &Method, asked: &HeaderMap, size: u64) -> Answer {
        let date = |name: HeaderName| httpdate::parse_http_date(asked.get(name)?.to_str().ok()?).ok();
        if asked.contains_key(header::IF_MATCH) {
            if !self.is_among(asked, header::IF_MATCH, false) {
                return Answer::NotTheSame;
            }
        } else if date(header::IF_UNMODIFIED_SINCE).is_some_and(|since| self.modified > since) {
            return Answer::NotTheSame;
        }
        if asked.contains_key(header::IF_NONE_MATCH) {
            if self.is_among(asked, header::IF_NONE_MATCH, true) {
                return Answer::NotModified;
            }
        } else if date(header::IF_MODIFIED_SINCE).is_some_and(|since| self.modified <= since) {
            return Answer::NotModified;
        }
        match one_text(asked, header::RANGE) {
            Some(range) if method == Method::GET && self.takes_range(asked) => part(range, size),
            _ => Answer::Whole,
        }
    }

    /// True if a list of tags has this one, or is `*`: any.
    fn is_among(&self, asked: &HeaderMap, name: HeaderName, weakly: bool) -> bool {
        let lists = asked.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
        lists.flat_map(|list| list.split(',')).map(str::trim).any(|tag| {
            let tag = if weakly { tag.strip_prefix(WEAK).unwrap_or(tag) } else { tag };
            tag == "*" || tag == self.tag
        })
    }

    /// True unless `If-Range` says that the caller's other parts are of another file.
    fn takes_range(&self, asked: &HeaderMap) -> bool {
        if !asked.contains_key(header::IF_RANGE) {
            return true;
        }
        one_text(asked, header::IF_RANGE).is_some_and(|validator| {
            validator == self.tag || httpdate::parse_http_date(validator).is_ok_and(|date| date == self.modified)
        })
    }
}

/// A header that was sent a single time.
fn one_text(asked: &HeaderMap, name: HeaderName) -> Option<&str> {
    let mut values = asked.get_all(name).into_iter();
    let first = values.next()?.to_str().ok()?;
    values.next().is_none().then(|| first.trim())
}

/// The part of a file that a range means.
fn part(range: &str, size: u64) -> Answer {
    let is_bytes = range.get(..BYTES.len()).is_some_and(|unit| unit.eq_ignore_ascii_case(BYTES));
    let ranges = range.get(BYTES.len()..).unwrap_or_default();
    let mut ranges = ranges.split(',').map(str::trim).filter(|range| !range.is_empty());
    let (Some(one), None, true) = (ranges.next(), ranges.next(), is_bytes) else { return Answer::Whole };
    let Some((first, last)) = one.split_once('-') else { return Answer::Whole };
    let (first, last) = match [first, last].map(number) {
        [Some(first), Some(last)] if first <= last => (first, last),
        [Some(first), None] if last.is_empty() => (first, u64::MAX),
        // The last bytes, as many as are wanted.
        [None, Some(0)] if first.is_empty() => return Answer::NoSuchPart,
        [None, Some(count)] if first.is_empty() => (size.saturating_sub(count), u64::MAX),
        _ => return Answer::Whole,
    };
    if first < size { Answer::Part(first..=last.min(size - 1)) } else { Answer::NoSuchPart }
}

/// A number of digits alone. One beyond all files is as good as any other such.
fn number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    const MODIFIED: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";

    fn answer(method: &Method, headers: &[(HeaderName, &str)]) -> Answer {
        let mut all = HeaderMap::new();
        for (name, value) in headers {
            all.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        let modified = httpdate::parse_http_date(MODIFIED).unwrap() + Duration::from_millis(300);
        Validators::new("a", modified).answer(method, &all, 10)
    }

    #[test]
    fn one_satisfiable_range_of_bytes_is_given_and_others_are_the_whole() {
        for (range, expected) in [
            ("bytes=0-0", Answer::Part(0..=0)),
            ("bytes=1-3", Answer::Part(1..=3)),
            ("Bytes=1-3", Answer::Part(1..=3)),
            ("bytes=4-", Answer::Part(4..=9)),
            ("bytes=4-99999999999999999999999", Answer::Part(4..=9)),
            ("bytes=-3", Answer::Part(7..=9)),
            ("bytes=-30", Answer::Part(0..=9)),
            ("bytes=, 1-3,", Answer::Part(1..=3)),
            ("bytes=10-", Answer::NoSuchPart),
            ("bytes=10-12", Answer::NoSuchPart),
            ("bytes=99999999999999999999999-", Answer::NoSuchPart),
            ("bytes=-0", Answer::NoSuchPart),
            ("bytes=0-1,3-4", Answer::Whole),
            ("bytes=0-1,99-", Answer::Whole),
            ("bytes=99-,100-", Answer::Whole),
            ("rows=1-3", Answer::Whole),
            ("bytes=3-1", Answer::Whole),
            ("bytes=-", Answer::Whole),
            ("bytes=", Answer::Whole),
            ("bytes=a-b", Answer::Whole),
            ("bytes=+1-3", Answer::Whole),
            ("bytes=1", Answer::Whole),
            ("bytes 1-3", Answer::Whole),
            ("é", Answer::Whole),
        ] {
            assert_eq!(answer(&Method::GET, &[(header::RANGE, range)]), expected, "{range}");
            assert_eq!(answer(&Method::HEAD, &[(header::RANGE, range)]), Answer::Whole, "{range}");
        }
        let twice = [(header::RANGE, "bytes=0-1"), (header::RANGE, "bytes=3-4")];
        assert_eq!(answer(&Method::GET, &twice), Answer::Whole);
    }

    #[test]
    fn conditions_come_before_ranges() {
        use header::{IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE};
        let part = || Answer::Part(1..=3);
        for (headers, expected) in [
            (&[(IF_NONE_MATCH, "\"a\"")][..], Answer::NotModified),
            (&[(IF_NONE_MATCH, "\"b\", W/\"a\"")], Answer::NotModified),
            (&[(IF_NONE_MATCH, "\"b\""), (IF_NONE_MATCH, "\"a\"")], Answer::NotModified),
            (&[(IF_NONE_MATCH, "*")], Answer::NotModified),
            (&[(IF_NONE_MATCH, "\"b\"")], part()),
            (&[(IF_NONE_MATCH, "a")], part()),
            // The tag counts where there is one.
            (&[(IF_NONE_MATCH, "\"b\""), (IF_MODIFIED_SINCE, MODIFIED)], part()),
            (&[(IF_MODIFIED_SINCE, MODIFIED)], Answer::NotModified),
            (&[(IF_MODIFIED_SINCE, BEFORE)], part()),
            (&[(IF_MODIFIED_SINCE, "yesterday")], part()),
            (&[(IF_MATCH, "\"a\"")], part()),
            (&[(IF_MATCH, "*")], part()),
            (&[(IF_MATCH, "W/\"a\"")], Answer::NotTheSame),
            (&[(IF_MATCH, "\"b\"")], Answer::NotTheSame),
            (&[(IF_MATCH, "\"a\""), (IF_UNMODIFIED_SINCE, BEFORE)], part()),
            (&[(IF_MATCH, "\"b\""), (IF_NONE_MATCH, "\"a\"")], Answer::NotTheSame),
            (&[(IF_UNMODIFIED_SINCE, MODIFIED)], part()),
            (&[(IF_UNMODIFIED_SINCE, BEFORE)], Answer::NotTheSame),
            (&[(IF_RANGE, "\"a\"")], part()),
            (&[(IF_RANGE, MODIFIED)], part()),
            (&[(IF_RANGE, BEFORE)], Answer::Whole),
            (&[(IF_RANGE, "\"b\"")], Answer::Whole),
            (&[(IF_RANGE, "W/\"a\"")], Answer::Whole),
            (&[(IF_RANGE, "\"a\""), (IF_RANGE, "\"a\"")], Answer::Whole),
        ] {
            let with_range = [headers, &[(header::RANGE, "bytes=1-3")]].concat();
            assert_eq!(answer(&Method::GET, &with_range), expected, "{headers:?}");
        }
        assert_eq!(answer(&Method::HEAD, &[(IF_NONE_MATCH, "\"a\"")]), Answer::NotModified);
    }
}
