//! The extent of a JPEG's data: the decoder fills what is missing with one colour and says nothing.
//! Only the codes are read here, not the values.
//!
//! Source: ITU-T T.81, annexes B, F and G.

use std::collections::BTreeMap;

use crate::picture::{DAMAGED, TOO_SHORT};

/// The end of a picture, appended if it is missing: the decoder reads less of a file without.
pub(crate) const END: [u8; 2] = [0xff, 0xd9];

/// Markers, the lowest and the highest of a kind.
const RESTART: std::ops::RangeInclusive<u8> = 0xd0..=0xd7;
const START: u8 = 0xd8;
const END_OF_PICTURE: u8 = 0xd9;
const SCAN: u8 = 0xda;
const RESTARTS: u8 = 0xdd;
const HUFFMAN: u8 = 0xc4;
/// Frames in baseline, extended and progressive coding by Huffman codes.
const SEQUENTIAL: [u8; 2] = [0xc0, 0xc1];
const PROGRESSIVE: u8 = 0xc2;
/// Frames that the decoder refuses: lossless ones, hierarchical ones, in arithmetic coding.
const OTHERS: [u8; 10] = [0xc3, 0xc5, 0xc6, 0xc7, 0xc9, 0xca, 0xcb, 0xcd, 0xce, 0xcf];

/// Coefficients of a block, and its side in pixels.
const BLOCK: u8 = 64;
const SIDE: u32 = 8;

/// The class of a table of codes for other coefficients than the first.
const AC: u8 = 0x10;

/// The most bytes between a scan's data and the marker behind them: some writers fill up.
const MOST_BETWEEN: usize = 16;

/// The zeros that a code without a value stands for, less one; with fewer, a block ends there.
const ZEROS: u8 = 15;

/// The most scans: programs write a dozen, and each goes through all blocks.
const MOST_SCANS: usize = 500;

/// The reason why a JPEG is not whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Data is missing at its end.
    TooShort,
    /// Some of its data are no codes.
    Damaged,
}

impl Fault {
    /// The fault, and what to do.
    pub fn reason(self) -> &'static str {
        match self {
            Self::TooShort => TOO_SHORT,
            Self::Damaged => DAMAGED,
        }
    }
}

/// A part of a picture's colours.
struct Component {
    id: u8,
    /// Blocks of an interleaved unit, across and down.
    across: u32,
    down: u32,
    /// Some scan had data of it.
    is_there: bool,
    /// The coefficients that are there to their last bit, one bit for each.
    complete: u64,
    /// The coefficients of each block that are not zero, for scans that refine them.
    nonzero: Vec<u64>,
}

/// The picture that scans are of.
struct Frame {
    is_progressive: bool,
    width: u32,
    height: u32,
    components: Vec<Component>,
}

/// A component's part in a scan, with its tables.
struct Part<'t> {
    component: usize,
    dc: Option<&'t Table>,
    ac: Option<&'t Table>,
}

/// The coefficients of a scan, and the bits of them.
struct Band {
    first: u8,
    last: u8,
    /// The bits below the first one come in later scans.
    is_last_bit: bool,
    /// An earlier scan had the bits above.
    refines: bool,
}

/// True if a file comes as far as the first data of its picture.
pub(crate) fn has_header(bytes: &[u8]) -> bool {
    let mut segments = Segments { bytes, at: 0 };
    std::iter::from_fn(|| segments.next()).any(|(marker, _)| marker == SCAN)
}

/// Checks that the data of a whole picture are there. A missing end marker and anything behind the
/// end marker are no fault. Other data directly behind a scan are: what is missing was read from
/// them.
pub(crate) fn check(bytes: &[u8]) -> Result<(), Fault> {
    let mut segments = Segments { bytes, at: 0 };
    let mut tables: BTreeMap<u8, Table> = BTreeMap::new();
    let (mut frame, mut interval): (Option<Frame>, u32) = (None, 0);
    let mut scans = 0;
    let is_whole = |frame: &Option<Frame>, is: fn(&Component) -> bool| {
        let is_whole = frame.as_ref().is_some_and(|frame| frame.components.iter().all(is));
        if is_whole { Ok(()) } else { Err(Fault::TooShort) }
    };
    loop {
        let (marker, segment) = match segments.next() {
            // A progressive picture may end before its last bits by intention, if it says its end.
            Some((END_OF_PICTURE, _)) => return is_whole(&frame, |component| component.is_there),
            Some(next) => next,
            None => return is_whole(&frame, |component| component.complete == u64::MAX),
        };
        match marker {
            _ if OTHERS.contains(&marker) => return Ok(()),
            // The size of the first one is what was checked.
            _ if SEQUENTIAL.contains(&marker) || marker == PROGRESSIVE => {
                if frame.is_some() {
                    return Err(Fault::Damaged);
                }
                frame = Some(Frame::read(segment, marker == PROGRESSIVE).ok_or(Fault::Damaged)?);
            }
            HUFFMAN => Table::read_all(segment, &mut tables).ok_or(Fault::Damaged)?,
            RESTARTS => interval = segment.first_chunk().map_or(0, |number| u16::from_be_bytes(*number).into()),
            // Frames of a video come without the tables that all of them have.
            SCAN if tables.is_empty() => return Ok(()),
            SCAN => {
                let frame = frame.as_mut().ok_or(Fault::Damaged)?;
                scans += 1;
                if scans > MOST_SCANS {
                    return Err(Fault::Damaged);
                }
                let mut bits = Bits { bytes, at: segments.at, held: 0, count: 0 };
                frame.read_scan(segment, &tables, interval, &mut bits)?;
                segments.at = bits.at;
                let rest = &bytes[bits.at..];
                let is_marker = |pair: &[u8]| pair[0] == 0xff && pair[1] != 0;
                if rest.len() >= MOST_BETWEEN + 2 && !rest[..MOST_BETWEEN + 2].windows(2).any(is_marker) {
                    return Err(Fault::TooShort);
                }
            }
            _ => {}
        }
    }
}

/// The segments of a file.
struct Segments<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Segments<'a> {
    /// The next marker, behind whatever is before it; none at the end.
    fn marker(&mut self) -> Option<u8> {
        loop {
            let rest = self.bytes.get(self.at..)?;
            self.at += rest.iter().position(|byte| *byte == 0xff)?;
            self.at += self.bytes[self.at..].iter().position(|byte| *byte != 0xff)?;
            let marker = self.bytes[self.at];
            self.at += 1;
            if marker != 0 {
                return Some(marker);
            }
        }
    }

    /// The next marker and the contents of its segment; none at the end, and if the segment is not
    /// all there.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        loop {
            match self.marker()? {
                // Such markers stand alone.
                marker if marker == START || RESTART.contains(&marker) => {}
                END_OF_PICTURE => return Some((END_OF_PICTURE, &[])),
                marker => {
                    let length = usize::from(u16::from_be_bytes(*self.bytes.get(self.at..)?.first_chunk()?)).max(2);
                    let segment = self.bytes.get(self.at + 2..self.at + length)?;
                    self.at += length;
                    return Some((marker, segment));
                }
            }
        }
    }
}

/// Huffman codes: for each length, the first code that is longer than all of it, and the place of
/// its symbols.
#[derive(Clone)]
struct Table {
    /// The first code beyond those of each length, and what leads from a code to its symbol.
    lengths: [(u32, i32); 16],
    symbols: Vec<u8>,
}

impl Table {
    /// Reads the tables of a segment, by class and number.
    fn read_all(mut segment: &[u8], tables: &mut BTreeMap<u8, Table>) -> Option<()> {
        while let Some((name, rest)) = segment.split_first() {
            let (counts, rest) = rest.split_first_chunk::<16>()?;
            let count = counts.iter().map(|count| usize::from(*count)).sum();
            let symbols = rest.get(..count)?.to_vec();
            let (mut code, mut place) = (0_u32, 0_i32);
            let lengths = counts.map(|count| {
                let offset = place - code as i32;
                code += u32::from(count);
                place += i32::from(count);
                let beyond = code;
                code <<= 1;
                (beyond, offset)
            });
            tables.insert(*name, Table { lengths, symbols });
            segment = &rest[count..];
        }
        Some(())
    }

    fn symbol(&self, bits: &mut Bits<'_>) -> Result<u8, Fault> {
        let mut code = 0;
        for (beyond, offset) in self.lengths {
            code = code << 1 | bits.take(1)?;
            if code < beyond {
                let place = usize::try_from(code as i32 + offset).map_err(|_| Fault::Damaged)?;
                return self.symbols.get(place).copied().ok_or(Fault::Damaged);
            }
        }
        Err(Fault::Damaged)
    }
}

/// The bits of a scan, up to the next marker.
struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
    held: u32,
    count: u32,
}

impl Bits<'_> {
    /// The next bits, at most 16.
    fn take(&mut self, count: u32) -> Result<u32, Fault> {
        while self.count < count {
            let byte = *self.bytes.get(self.at).ok_or(Fault::TooShort)?;
            if byte == 0xff {
                // A marker, or a byte of data that looks like one and has a zero behind it.
                match self.bytes.get(self.at + 1) {
                    Some(0) => self.at += 1,
                    _ => return Err(Fault::TooShort),
                }
            }
            self.at += 1;
            self.held = self.held << 8 | u32::from(byte);
            self.count += 8;
        }
        self.count -= count;
        Ok(self.held >> self.count & ((1 << count) - 1))
    }

    /// Goes on behind a restart marker, in front of which some bits may be left.
    fn restart(&mut self) -> Result<(), Fault> {
        (self.held, self.count) = (0, 0);
        let mut segments = Segments { bytes: self.bytes, at: self.at };
        match segments.marker() {
            Some(marker) if RESTART.contains(&marker) => {
                self.at = segments.at;
                Ok(())
            }
            _ => Err(Fault::TooShort),
        }
    }
}

impl Frame {
    fn read(segment: &[u8], is_progressive: bool) -> Option<Self> {
        let (&[_, high, low, wide, narrow, count], rest) = segment.split_first_chunk()?;
        let (height, width) = (u16::from_be_bytes([high, low]).into(), u16::from_be_bytes([wide, narrow]).into());
        let components = rest.as_chunks::<3>().0.iter().take(count.into()).map(|&[id, sampling, _]| {
            let (across, down) = (u32::from(sampling >> 4), u32::from(sampling & 15));
            let is_sound = (1..=4).contains(&across) && (1..=4).contains(&down);
            is_sound.then_some(Component { id, across, down, is_there: false, complete: 0, nonzero: Vec::new() })
        });
        let components = components.collect::<Option<Vec<Component>>>()?;
        let is_sound = width > 0 && height > 0 && (1..=4).contains(&components.len());
        is_sound.then_some(Self { is_progressive, width, height, components })
    }

    /// Units of a scan: blocks of one component, or blocks of several that lie together.
    fn units(&self, parts: &[Part<'_>]) -> usize {
        let most = |of: fn(&Component) -> u32| self.components.iter().map(of).max().unwrap_or(1);
        let (across, down) = (most(|component| component.across), most(|component| component.down));
        let [columns, rows] = match parts {
            [alone] => {
                let own = &self.components[alone.component];
                [(self.width * own.across).div_ceil(across), (self.height * own.down).div_ceil(down)]
                    .map(|side| side.div_ceil(SIDE))
            }
            _ => [self.width.div_ceil(SIDE * across), self.height.div_ceil(SIDE * down)],
        };
        columns as usize * rows as usize
    }

    /// The header of a scan; none if it is unsound.
    fn scan<'t>(&self, segment: &[u8], tables: &'t BTreeMap<u8, Table>) -> Option<(Vec<Part<'t>>, Band)> {
        let (count, rest) = segment.split_first()?;
        let (names, rest) = rest.split_at_checked(2 * usize::from(*count))?;
        let parts = names.as_chunks::<2>().0.iter().map(|[id, numbers]| {
            let component = self.components.iter().position(|component| component.id == *id)?;
            Some(Part { component, dc: tables.get(&(numbers >> 4)), ac: tables.get(&(numbers & 15 | AC)) })
        });
        let parts = parts.collect::<Option<Vec<Part<'_>>>>()?;
        let band = match (self.is_progressive, rest) {
            (false, _) => Band { first: 0, last: BLOCK - 1, is_last_bit: true, refines: false },
            (true, &[first, last, bits, ..]) => {
                Band { first, last, is_last_bit: bits & 15 == 0, refines: bits >> 4 != 0 }
            }
            (true, _) => return None,
        };
        let is_sound = band.first <= band.last
            && band.last < BLOCK
            && (!self.is_progressive || (band.first == 0) == (band.last == 0))
            // Scans of other coefficients than the first are of one component.
            && (band.first == 0 || parts.len() == 1);
        (is_sound && !parts.is_empty()).then_some((parts, band))
    }

    fn read_scan(
        &mut self,
        segment: &[u8],
        tables: &BTreeMap<u8, Table>,
        interval: u32,
        bits: &mut Bits<'_>,
    ) -> Result<(), Fault> {
        let (parts, band) = self.scan(segment, tables).ok_or(Fault::Damaged)?;
        let units = self.units(&parts);
        // Blocks that end with the one under way.
        let mut run = 0;
        for unit in 0..units {
            if interval > 0 && unit > 0 && unit.is_multiple_of(interval as usize) {
                bits.restart()?;
                run = 0;
            }
            for part in &parts {
                let component = &mut self.components[part.component];
                let blocks = if parts.len() == 1 { 1 } else { component.across * component.down };
                for _ in 0..blocks {
                    match (self.is_progressive, band.first, band.refines) {
                        (false, ..) => read_block(part, bits)?,
                        (true, 0, false) => read_difference(part, bits)?,
                        (true, 0, true) => bits.take(1).map(drop)?,
                        (true, ..) => {
                            component.nonzero.resize(units, 0);
                            let nonzero = &mut component.nonzero[unit];
                            match band.refines {
                                false => read_band(part, &band, &mut run, nonzero, bits)?,
                                true => refine_band(part, &band, &mut run, nonzero, bits)?,
                            }
                        }
                    }
                }
            }
        }
        for part in &parts {
            let component = &mut self.components[part.component];
            component.is_there = true;
            if band.is_last_bit {
                component.complete |= u64::MAX >> (BLOCK - 1 - band.last + band.first) << band.first;
            }
        }
        Ok(())
    }
}

/// The first coefficient of a block, as a difference to the one before.
fn read_difference(part: &Part<'_>, bits: &mut Bits<'_>) -> Result<(), Fault> {
    let size = part.dc.ok_or(Fault::Damaged)?.symbol(bits)?;
    bits.take(size_of_value(size)?).map(drop)
}

/// A whole block.
fn read_block(part: &Part<'_>, bits: &mut Bits<'_>) -> Result<(), Fault> {
    read_difference(part, bits)?;
    let table = part.ac.ok_or(Fault::Damaged)?;
    let mut place = 1;
    while place < BLOCK {
        let symbol = table.symbol(bits)?;
        let (zeros, size) = (symbol >> 4, symbol & 15);
        if size == 0 && zeros < ZEROS {
            break;
        }
        bits.take(size.into())?;
        place += zeros + 1;
    }
    Ok(())
}

/// The first bits of a band of a block's coefficients.
fn read_band(part: &Part<'_>, band: &Band, run: &mut u32, nonzero: &mut u64, bits: &mut Bits<'_>) -> Result<(), Fault> {
    if *run > 0 {
        *run -= 1;
        return Ok(());
    }
    let table = part.ac.ok_or(Fault::Damaged)?;
    let mut place = band.first;
    while place <= band.last {
        let symbol = table.symbol(bits)?;
        let (zeros, size) = (symbol >> 4, symbol & 15);
        if size == 0 && zeros < ZEROS {
            *run = (1 << zeros) - 1 + bits.take(zeros.into())?;
            break;
        }
        place += zeros;
        bits.take(size.into())?;
        if size > 0 {
            *nonzero |= 1_u64.checked_shl(place.into()).ok_or(Fault::Damaged)?;
        }
        place += 1;
    }
    Ok(())
}

/// Further bits of a band: one for each coefficient that is not zero by now, in between those that
/// become so.
fn refine_band(
    part: &Part<'_>,
    band: &Band,
    run: &mut u32,
    nonzero: &mut u64,
    bits: &mut Bits<'_>,
) -> Result<(), Fault> {
    let table = part.ac.ok_or(Fault::Damaged)?;
    let mut place = band.first;
    if *run == 0 {
        while place <= band.last {
            let symbol = table.symbol(bits)?;
            let (mut zeros, size) = (symbol >> 4, symbol & 15);
            if size == 0 && zeros < ZEROS {
                *run = (1 << zeros) + bits.take(zeros.into())?;
                break;
            }
            bits.take(u32::from(size > 0))?;
            while place <= band.last {
                if *nonzero >> place & 1 == 1 {
                    bits.take(1)?;
                } else if zeros == 0 {
                    break;
                } else {
                    zeros -= 1;
                }
                place += 1;
            }
            if size > 0 && place <= band.last {
                *nonzero |= 1 << place;
            }
            place += 1;
        }
    }
    if *run > 0 {
        let left = (*nonzero >> place) & (u64::MAX >> (BLOCK - 1 - band.last + place));
        (0..left.count_ones()).try_for_each(|_| bits.take(1).map(drop))?;
        *run -= 1;
    }
    Ok(())
}

/// The bits of a value; more than 16 are none.
fn size_of_value(size: u8) -> Result<u32, Fault> {
    if size <= 16 { Ok(size.into()) } else { Err(Fault::Damaged) }
}
