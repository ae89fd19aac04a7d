//! The entries of a zip archive whose contents stand in it as they are. Names, places and sizes are
//! those of the directory at the archive's end; compressed and encrypted entries are refused.
//! Format: PKWARE's APPNOTE 6.3.

use std::{collections::BTreeMap, ops::Range};

/// Signatures of the directory's end, of its 64-bit locator and record, and of entries in the
/// directory and in front of their contents.
const END: &[u8] = b"PK\x05\x06";
const LOCATOR: &[u8] = b"PK\x06\x07";
const END_64: &[u8] = b"PK\x06\x06";
const CENTRAL: &[u8] = b"PK\x01\x02";
const LOCAL: &[u8] = b"PK\x03\x04";

/// Bytes of the same, names and the like aside.
const END_BYTES: usize = 22;
const LOCATOR_BYTES: usize = 20;
const CENTRAL_BYTES: usize = 46;
const LOCAL_BYTES: usize = 30;

/// The longest comment behind the directory.
const LONGEST_COMMENT: usize = u16::MAX as usize;

/// The most entries: each storage is one.
const MOST_ENTRIES: u64 = 1 << 17;

/// The extra field of 64-bit sizes and offsets, and the value in whose place they stand.
const WIDE_FIELD: u16 = 1;
const WIDE: u64 = u32::MAX as u64;

/// An archive's entries.
pub struct Archive<'a> {
    entries: BTreeMap<&'a str, Range<usize>>,
}

/// Numbers at their places in a record.
#[derive(Clone, Copy)]
struct Record<'a>(&'a [u8]);

impl<'a> Record<'a> {
    /// A record of `length` bytes at an offset, that begins with a signature.
    fn find(file: &'a [u8], at: usize, length: usize, signature: &[u8]) -> Option<Self> {
        let bytes = file.get(at..at.checked_add(length)?)?;
        bytes.starts_with(signature).then_some(Self(bytes))
    }

    fn number(self, at: usize, width: usize) -> u64 {
        self.0[at..at + width].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }
}

fn unsound(fault: &str) -> String {
    format!("no sound zip archive: {fault}")
}

/// The directory: its entries' number and its place.
fn directory(file: &[u8]) -> Result<(u64, Range<usize>), String> {
    let first = file.len().saturating_sub(END_BYTES + LONGEST_COMMENT);
    let ends = (first..(file.len() + 1).saturating_sub(END_BYTES)).rev();
    let found = ends.filter_map(|at| Some((at, Record::find(file, at, END_BYTES, END)?)));
    let mut whole = found.filter(|(at, end)| at + END_BYTES + end.number(20, 2) as usize == file.len());
    let Some((at, end)) = whole.next() else {
        return Err("truncated: a zip archive without the directory at its end; copy or download it again".into());
    };
    let locator = at.checked_sub(LOCATOR_BYTES).and_then(|at| Record::find(file, at, LOCATOR_BYTES, LOCATOR));
    let (entries, length, offset) = match locator {
        None => (end.number(10, 2), end.number(12, 4), end.number(16, 4)),
        Some(locator) => {
            let at = usize::try_from(locator.number(8, 8)).unwrap_or(usize::MAX);
            let end = Record::find(file, at, 56, END_64).ok_or_else(|| unsound("its 64-bit end is not there"))?;
            (end.number(32, 8), end.number(40, 8), end.number(48, 8))
        }
    };
    if entries > MOST_ENTRIES {
        return Err(format!("a zip archive of {entries} entries: at most {MOST_ENTRIES} are read"));
    }
    let last = offset.checked_add(length).filter(|last| *last <= at as u64);
    let last = last.ok_or_else(|| unsound("its directory goes beyond its end"))?;
    Ok((entries, offset as usize..last as usize))
}

/// The entry of archives that hold a program.
const PROGRAM: &str = "constants.pkl";

impl<'a> Archive<'a> {
    /// Reads the directory of an archive, and checks that its entries lie in it one behind the
    /// other.
    ///
    /// # Errors
    /// One line: it is truncated or unsound, or an entry is compressed or encrypted.
    pub fn read(file: &'a [u8]) -> Result<Self, String> {
        let (count, directory) = directory(file)?;
        let (mut entries, mut places, mut at) = (BTreeMap::new(), Vec::new(), directory.start);
        let mut fault = None;
        for _ in 0..count {
            let beyond = || unsound("its directory ends within an entry");
            let record = Record::find(&file[..directory.end], at, CENTRAL_BYTES, CENTRAL).ok_or_else(beyond)?;
            let [name, extra, comment] = [28, 30, 32].map(|at| record.number(at, 2) as usize);
            let start = at + CENTRAL_BYTES;
            let rest = file[..directory.end].get(start..start + name + extra + comment).ok_or_else(beyond)?;
            at = start + rest.len();
            let name = std::str::from_utf8(&rest[..name]).map_err(|_| unsound("the name of an entry is no text"))?;
            let extra = &rest[name.len()..name.len() + extra];
            if name.ends_with('/') {
                continue;
            }
            // A program's entries may be compressed: that it is one says more.
            if name.rsplit('/').next() == Some(PROGRAM) {
                return Err("a TorchScript program, which is not run: give the file of the model's weights".into());
            }
            let place = match place(file, name, record, extra, directory.start) {
                Ok(place) => place,
                Err(found) => {
                    fault.get_or_insert(found);
                    continue;
                }
            };
            places.push(place.clone());
            if entries.insert(name, place.end - place.length..place.end).is_some() {
                return Err(unsound(&format!("two entries are called {}", name.escape_debug())));
            }
        }
        if let Some(fault) = fault {
            return Err(fault);
        }
        places.sort_by_key(|place| place.start);
        match places.windows(2).find(|pair| pair[0].end > pair[1].start) {
            Some(pair) => Err(unsound(&format!("its entries overlap at byte {}", pair[1].start))),
            None => Ok(Self { entries }),
        }
    }

    /// The names of entries, sorted.
    pub fn names(&self) -> impl Iterator<Item = &'a str> {
        self.entries.keys().copied()
    }

    /// The place of an entry's contents.
    pub fn find(&self, name: &str) -> Option<Range<usize>> {
        self.entries.get(name).cloned()
    }
}

/// An entry from its own header to its end, whose last bytes are its contents.
#[derive(Clone)]
struct Place {
    start: usize,
    end: usize,
    length: usize,
}

fn place(file: &[u8], name: &str, record: Record<'_>, extra: &[u8], most: usize) -> Result<Place, String> {
    let shown = name.escape_debug();
    let [flags, method] = [8, 10].map(|at| record.number(at, 2));
    let mut wide = wide_numbers(extra);
    // In this order, and only those that don't fit.
    let [whole, packed, offset] = [24, 20, 42].map(|at| match record.number(at, 4) {
        WIDE => wide.next(),
        number => Some(number),
    });
    let (Some(whole), Some(packed), Some(offset)) = (whole, packed, offset) else {
        return Err(unsound(&format!("entry {shown} lacks its 64-bit sizes")));
    };
    if flags & 1 != 0 {
        return Err(format!("entry {shown} of the zip archive is encrypted"));
    }
    if method != 0 || whole != packed {
        return Err(format!(
            "entry {shown} of the zip archive is compressed, which torch.save never does: unpack it, and save it anew"
        ));
    }
    let beyond = || unsound(&format!("entry {shown} goes beyond the archive"));
    let start = usize::try_from(offset).map_err(|_| beyond())?;
    let local = Record::find(&file[..most], start, LOCAL_BYTES, LOCAL).ok_or_else(beyond)?;
    let [own, extra] = [26, 28].map(|at| local.number(at, 2) as usize);
    let named = start + LOCAL_BYTES;
    if file[..most].get(named..named + own) != Some(name.as_bytes()) || local.number(8, 2) != method {
        return Err(unsound(&format!("entry {shown} is called otherwise in its own header")));
    }
    let length = usize::try_from(whole).map_err(|_| beyond())?;
    let end = (named + own + extra).checked_add(length).filter(|end| *end <= most).ok_or_else(beyond)?;
    Ok(Place { start, end, length })
}

/// The 64-bit numbers among an entry's extra fields.
fn wide_numbers(extra: &[u8]) -> impl Iterator<Item = u64> {
    let (mut rest, mut found) = (extra, &extra[..0]);
    while let Some((head, after)) = rest.split_at_checked(4) {
        let field = Record(head);
        let Some((body, after)) = after.split_at_checked(field.number(2, 2) as usize) else { break };
        if field.number(0, 2) == u64::from(WIDE_FIELD) {
            found = body;
        }
        rest = after;
    }
    found.chunks_exact(8).map(|bytes| Record(bytes).number(0, 8))
}
