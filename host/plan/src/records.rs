//! Reads files of records, one JSON object on each line. A file may come from anywhere: lines are
//! bounded, and a record that this program would never write is refused before it is used.

use std::{io, io::BufRead};

use serde::{Deserialize, de::DeserializeOwned};
use thiserror::Error;

use crate::{Device, Exchange, Record, Stage, Vae, VariantOf, Work, any, exchange::RecordedQuestion, of_any};

/// The longest line that is read, in bytes: a full record of a decode after long use has a few
/// hundred thousand.
pub const MOST_LINE_BYTES: usize = 16 << 20;

/// The most output pixels along a side, frames, samples, or units of a tile.
pub(crate) const MOST_EXTENT: u32 = 1 << 20;

/// The most texts of a request.
pub(crate) const MOST_TEXTS: usize = 1 << 16;

/// The most hints of a request, and characters of a hint's value.
pub(crate) const MOST_HINTS: usize = 1024;

/// The most attempts that a policy gets at once; the engine gives up after four.
const MOST_ATTEMPTS: usize = 64;

/// The reason why a line is not a record. Each is one line that names the line's number.
#[derive(Debug, Error)]
pub enum Damage {
    /// The file can't be read.
    #[error("line {line}: can't be read: {source}")]
    Unreadable {
        /// Counted from 1.
        line: u64,
        /// The cause.
        source: io::Error,
    },
    /// Longer than any record is.
    #[error("line {line}: longer than {most} bytes, which no record is")]
    TooLong {
        /// Counted from 1.
        line: u64,
        /// The limit in bytes.
        most: usize,
    },
    /// Not JSON, or JSON of something else.
    #[error("line {line}: not a decision record: {detail}")]
    NotARecord {
        /// Counted from 1.
        line: u64,
        /// The parser's message, in one line.
        detail: String,
    },
    /// A record that makes no sense.
    #[error("line {line}: {what}, which this program never writes: the record is damaged")]
    Senseless {
        /// Counted from 1.
        line: u64,
        /// The part that makes no sense.
        what: String,
    },
}

/// A record of any kind of work.
pub type AnyRecord = any!(Box<Record>);

/// Records with the numbers of their lines, as they are read. Ends after a failure to read; goes on
/// after a line that is not a record.
#[derive(Debug)]
pub struct Records<R> {
    source: R,
    line: u64,
    most: usize,
    ended: bool,
}

/// Reads records one at a time. Blank lines are skipped.
pub fn read_any<R: BufRead>(source: R) -> Records<R> {
    Records { source, line: 0, most: MOST_LINE_BYTES, ended: false }
}

/// Reads the records of decodes and encodes one at a time; those of samples and text encoders are
/// left out.
pub fn read<R: BufRead>(source: R) -> impl Iterator<Item = Result<(u64, Record), Damage>> {
    read_any(source).filter_map(|read| match read {
        Ok((line, AnyRecord::Vae(record))) => Some(Ok((line, *record))),
        Ok(_) => None,
        Err(damage) => Some(Err(damage)),
    })
}

/// Reads the record of a decode or an encode; `line` is for the error.
///
/// # Errors
/// Any [`Damage`] but that the file can't be read; a record of other work.
pub fn parse(line: u64, text: &[u8]) -> Result<Record, Damage> {
    sound::<Vae>(line, json(line, text)?)
}

/// Reads one record; `line` is for the error.
///
/// # Errors
/// Any [`Damage`] but that the file can't be read.
pub fn parse_any(line: u64, text: &[u8]) -> Result<AnyRecord, Damage> {
    let stage = stage(text).filter(|_| text.len() <= MOST_LINE_BYTES).unwrap_or_default();
    Ok(of_any!(stage.kind(), _: W => W::any(Box::new(sound::<W>(line, json(line, text)?)?))))
}

/// The stage that a record names.
fn stage(text: &[u8]) -> Option<Stage> {
    /// The part of a record that says what the rest is.
    #[derive(Deserialize)]
    struct Head {
        stage: Option<Stage>,
    }

    serde_json::from_slice(text).ok().and_then(|head: Head| head.stage)
}

impl AnyRecord {
    /// Reads a record that this program wrote, without a look at what it says.
    pub fn from_json(text: &str) -> Option<Self> {
        let stage = stage(text.as_bytes()).unwrap_or_default();
        Some(of_any!(stage.kind(), _: W => W::any(Box::new(serde_json::from_str(text).ok()?))))
    }
}

fn json<T: DeserializeOwned>(line: u64, text: &[u8]) -> Result<T, Damage> {
    if text.len() > MOST_LINE_BYTES {
        return Err(Damage::TooLong { line, most: MOST_LINE_BYTES });
    }
    serde_json::from_slice(text).map_err(|error| {
        // Every record is one line, so the parser always names line 1.
        let detail = error.to_string().replace(" at line 1 column ", " at column ");
        let safe = |c: char| if c.is_control() { ' ' } else { c };
        Damage::NotARecord { line, detail: detail.chars().take(300).map(safe).collect() }
    })
}

fn sound<W: Work>(line: u64, record: Record<W>) -> Result<Record<W>, Damage> {
    match senseless(&record) {
        Some(what) => Err(Damage::Senseless { line, what }),
        None => Ok(record),
    }
}

impl<R: BufRead> Records<R> {
    /// The next line without its end; `None` after the last.
    fn line(&mut self) -> Result<Option<Vec<u8>>, Damage> {
        let mut text = Vec::new();
        self.line += 1;
        let line = self.line;
        loop {
            let piece = match self.source.fill_buf() {
                Ok(piece) => piece,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(source) => {
                    self.ended = true;
                    return Err(Damage::Unreadable { line, source });
                }
            };
            if piece.is_empty() {
                self.ended = true;
                return Ok((!text.is_empty()).then_some(text));
            }
            let end = piece.iter().position(|byte| *byte == b'\n');
            let count = end.unwrap_or(piece.len());
            if text.len() + count > self.most {
                // The rest of the line may have any length.
                self.ended = true;
                return Err(Damage::TooLong { line, most: self.most });
            }
            text.extend_from_slice(&piece[..count]);
            self.source.consume(count + usize::from(end.is_some()));
            if end.is_some() {
                return Ok(Some(text));
            }
        }
    }
}

impl<R: BufRead> Iterator for Records<R> {
    type Item = Result<(u64, AnyRecord), Damage>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            match self.line() {
                Ok(Some(text)) if text.iter().all(u8::is_ascii_whitespace) => {}
                Ok(Some(text)) => return Some(parse_any(self.line, &text).map(|record| (self.line, record))),
                Ok(None) => return None,
                Err(damage) => return Some(Err(damage)),
            }
        }
        None
    }
}

/// The part of a record that makes no sense, if any.
fn senseless<W: Work>(record: &Record<W>) -> Option<String> {
    let request = W::fault_of_request(&record.request).or_else(|| fault_of_device(&record.device));
    request.or_else(|| record.exchange.as_ref().and_then(sense_of_exchange))
}

fn sense_of_exchange<W: Work>(exchange: &Exchange<W>) -> Option<String> {
    let mut before = None;
    exchange.calls.iter().find_map(|call| {
        let after = before.is_none_or(|before| before < call.sequence);
        before = Some(call.sequence);
        let order = (!after).then(|| format!("call {} after a later one", call.sequence));
        let attempts = match &call.question {
            RecordedQuestion::Recover { attempts, .. } if attempts.is_empty() => {
                Some("a recovery from nothing".to_owned())
            }
            RecordedQuestion::Recover { attempts, .. } if attempts.len() > MOST_ATTEMPTS => {
                Some(format!("{} attempts", attempts.len()))
            }
            _ => None,
        };
        let learns = matches!(call.question, RecordedQuestion::Learn { .. });
        let reply = (learns == call.reply.plan.is_some()).then(|| format!("a {} and its plan", call.question.name()));
        (order.or(attempts).or(reply))
            .or_else(|| W::fault_of_request(&call.request))
            .or_else(|| fault_of_device(&call.device))
            .or_else(|| call.question.offer().and_then(|offer| W::fault_of_capabilities(&offer.capabilities)))
    })
}

/// The part of a device's facts that makes no sense, if any.
pub fn fault_of_device(device: &Device) -> Option<String> {
    let (types, hints) = (device.fast_dtypes.len(), device.hints.len());
    (types > MOST_HINTS)
        .then(|| format!("{types} fast types"))
        .or_else(|| (hints > MOST_HINTS).then(|| format!("{hints} hints of the device")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_record_is_told_with_its_line() {
        let text = b"\n{}\nnonsense\n[1]\n\xff\xfe\n   \n\"\x1b[31m\"";
        let damage: Vec<String> = read(&text[..]).map(|line| line.unwrap_err().to_string()).collect();
        assert_eq!(damage.len(), 5, "{damage:?}");
        assert_eq!(damage[0], "line 2: not a decision record: missing field `tilewright` at column 2");
        assert!(damage[1].starts_with("line 3: ") && damage[4].starts_with("line 7: "), "{damage:?}");
        assert!(damage.iter().all(|line| !line.contains(['\n', '\u{1b}'])));
        assert_eq!(read(&b""[..]).count(), 0);
    }

    #[test]
    fn a_line_without_end_is_not_held() {
        let endless = io::BufReader::new(io::repeat(b'x'));
        let mut records = Records { most: 1 << 16, ..read_any(endless) };
        assert!(matches!(records.next(), Some(Err(Damage::TooLong { line: 1, most: 65_536 }))));
        assert!(records.next().is_none());
        let deep = "[".repeat(1 << 16);
        assert!(read(deep.as_bytes()).next().unwrap().is_err());
    }
}
