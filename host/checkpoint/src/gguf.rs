//! The header of a GGUF file: texts and numbers by key, and the place of each tensor. Every count,
//! length and offset is compared with the file's size before anything is made from it. Format:
//! `docs/gguf.md` of ggml.

use std::collections::BTreeMap;

use tilewright_kernels::Stored;

use crate::contents::{Contents, Entry, MOST_AXES, MOST_TENSORS, check_shape};

/// The most keys; a language model's file has some forty.
const MOST_KEYS: u64 = 1 << 14;

/// The longest name of a tensor or a key, in bytes.
const LONGEST_NAME: u64 = 1 << 12;

/// The longest text that is kept, in bytes.
const LONGEST_TEXT: u64 = 1 << 16;

/// Arrays within arrays.
const DEEPEST: u32 = 4;

/// Tensors begin at multiples of this, unless the file says otherwise.
const ALIGNMENT: u64 = 32;

/// The beginning of keys under which the shape of a tensor stands that was stored in another one,
/// as ComfyUI-GGUF writes it.
const SHAPE: &str = "comfy.gguf.orig_shape.";

/// The beginning of keys that tell a tokenizer.
pub const TOKENIZER: &str = "tokenizer.ggml.";

/// ggml's types by number: the type, or the name of one that can't be read.
const TYPES: [(u32, Result<Stored, &str>); 35] = [
    (0, Ok(Stored::F32)),
    (1, Ok(Stored::F16)),
    (2, Ok(Stored::Q4_0)),
    (3, Ok(Stored::Q4_1)),
    (6, Ok(Stored::Q5_0)),
    (7, Ok(Stored::Q5_1)),
    (8, Ok(Stored::Q8_0)),
    (9, Err("Q8_1")),
    (10, Ok(Stored::Q2K)),
    (11, Ok(Stored::Q3K)),
    (12, Ok(Stored::Q4K)),
    (13, Ok(Stored::Q5K)),
    (14, Ok(Stored::Q6K)),
    (15, Err("Q8_K")),
    (16, Err("IQ2_XXS")),
    (17, Err("IQ2_XS")),
    (18, Err("IQ3_XXS")),
    (19, Err("IQ1_S")),
    (20, Ok(Stored::Iq4Nl)),
    (21, Err("IQ3_S")),
    (22, Err("IQ2_S")),
    (23, Ok(Stored::Iq4Xs)),
    (24, Ok(Stored::I8)),
    (25, Ok(Stored::I16)),
    (26, Ok(Stored::I32)),
    (27, Ok(Stored::I64)),
    (28, Ok(Stored::F64)),
    (29, Err("IQ1_M")),
    (30, Ok(Stored::Bf16)),
    (31, Err("Q4_0_4_4")),
    (32, Err("Q4_0_4_8")),
    (33, Err("Q4_0_8_8")),
    (34, Err("TQ1_0")),
    (35, Err("TQ2_0")),
    (39, Err("MXFP4")),
];

/// Types of values under keys, by number.
mod value {
    pub const U8: u32 = 0;
    pub const I8: u32 = 1;
    pub const U16: u32 = 2;
    pub const I16: u32 = 3;
    pub const U32: u32 = 4;
    pub const I32: u32 = 5;
    pub const F32: u32 = 6;
    pub const BOOL: u32 = 7;
    pub const TEXT: u32 = 8;
    pub const ARRAY: u32 = 9;
    pub const U64: u32 = 10;
    pub const I64: u32 = 11;
    pub const F64: u32 = 12;
}

/// A value under a key, as far as it is of use here.
#[derive(Debug)]
enum Value {
    Text(String),
    Integer(i128),
    Number(f64),
    Integers(Vec<i128>),
    /// Texts, or arrays too long to be a shape: a tokenizer's.
    Skipped,
}

/// Reads from the front of a file's bytes.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: u64) -> Result<&'a [u8], String> {
        let end = usize::try_from(length).ok().and_then(|length| self.at.checked_add(length));
        let taken = end.and_then(|end| Some((self.bytes.get(self.at..end)?, end)));
        let (taken, end) = taken.ok_or_else(|| {
            format!("truncated: {length} more bytes are announced at byte {} than the file has", self.at)
        })?;
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let bytes = self.take(N as u64)?;
        bytes.try_into().map_err(|_| "truncated".to_owned())
    }

    /// So many values of `N` bytes.
    fn each<const N: usize, T>(&mut self, count: usize, of: impl Fn([u8; N]) -> T) -> Result<Vec<T>, String> {
        (0..count).map(|_| self.array().map(&of)).collect()
    }

    fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, String> {
        self.array().map(u64::from_le_bytes)
    }

    fn name(&mut self, what: &str) -> Result<&'a str, String> {
        let at = self.at;
        let length = self.u64()?;
        if length > LONGEST_NAME {
            return Err(format!(
                "the name of a {what} at byte {at} has {length} bytes: at most {LONGEST_NAME} are read"
            ));
        }
        let bytes = self.take(length)?;
        std::str::from_utf8(bytes).map_err(|_| format!("the name of a {what} at byte {at} is no text"))
    }

    /// The value of a type; `depth` arrays are around it.
    fn value(&mut self, of: u32, depth: u32) -> Result<Value, String> {
        let at = self.at;
        Ok(match of {
            value::U8 => Value::Integer(u8::from_le_bytes(self.array()?).into()),
            value::I8 => Value::Integer(i8::from_le_bytes(self.array()?).into()),
            value::U16 => Value::Integer(u16::from_le_bytes(self.array()?).into()),
            value::I16 => Value::Integer(i16::from_le_bytes(self.array()?).into()),
            value::U32 => Value::Integer(self.u32()?.into()),
            value::I32 => Value::Integer(i32::from_le_bytes(self.array()?).into()),
            value::F32 => Value::Number(f32::from_le_bytes(self.array()?).into()),
            value::BOOL => Value::Integer(u8::from_le_bytes(self.array()?).into()),
            value::U64 => Value::Integer(self.u64()?.into()),
            value::I64 => Value::Integer(i64::from_le_bytes(self.array()?).into()),
            value::F64 => Value::Number(f64::from_le_bytes(self.array()?)),
            value::TEXT => {
                let length = self.u64()?;
                let bytes = self.take(length)?;
                match length <= LONGEST_TEXT {
                    true => Value::Text(String::from_utf8_lossy(bytes).into_owned()),
                    false => Value::Skipped,
                }
            }
            value::ARRAY => self.values(depth)?,
            other => return Err(format!("a value at byte {at} is of type {other}, which GGUF has not")),
        })
    }

    fn values(&mut self, depth: u32) -> Result<Value, String> {
        let at = self.at;
        let (of, count) = (self.u32()?, self.u64()?);
        if depth >= DEEPEST {
            return Err(format!("arrays at byte {at} stand more than {DEEPEST} deep in each other"));
        }
        // Each value takes a byte at least, so that the file's end ends any count.
        if count > (self.bytes.len() - self.at) as u64 {
            return Err(format!("truncated: an array of {count} values is announced at byte {at}"));
        }
        let is_shape = count <= MOST_AXES as u64;
        let mut integers = Vec::new();
        for _ in 0..count {
            match self.value(of, depth + 1)? {
                Value::Integer(integer) if is_shape => integers.push(integer),
                _ => {}
            }
        }
        let is_whole = is_shape && integers.len() as u64 == count;
        Ok(if is_whole { Value::Integers(integers) } else { Value::Skipped })
    }
}

/// An array's values.
#[derive(Debug)]
pub enum Array<'a> {
    Texts(Vec<&'a str>),
    Numbers(Vec<f32>),
    Integers(Vec<i32>),
}

/// Reads an array of at most `most` values from its bytes.
///
/// # Errors
/// One line: it is of a type that tokenizers have not, or too long, or holds no text.
pub fn array(bytes: &[u8], most: usize) -> Result<Array<'_>, String> {
    let mut reader = Reader { bytes, at: 0 };
    let (of, count) = (reader.u32()?, reader.u64()?);
    if count > most as u64 {
        return Err(format!("{count} values: at most {most} are read"));
    }
    let count = count as usize;
    Ok(match of {
        value::TEXT => {
            let mut texts = Vec::with_capacity(count);
            for index in 0..count {
                let length = reader.u64()?;
                let text = std::str::from_utf8(reader.take(length)?);
                texts.push(text.map_err(|_| format!("value {index} is no text in UTF-8"))?);
            }
            Array::Texts(texts)
        }
        value::F32 => Array::Numbers(reader.each(count, f32::from_le_bytes)?),
        value::I32 | value::U32 => Array::Integers(reader.each(count, i32::from_le_bytes)?),
        value::I8 => Array::Integers(reader.each(count, |of| i8::from_le_bytes(of).into())?),
        value::U8 => Array::Integers(reader.each(count, |of| u8::from_le_bytes(of).into())?),
        other => return Err(format!("an array of type {other}")),
    })
}

/// Reads the header of a GGUF file from all its bytes.
///
/// # Errors
/// One line: the fault and its place.
pub fn read(bytes: &[u8]) -> Result<Contents, String> {
    contents(bytes).map_err(|reason| format!("no sound GGUF file: {reason}"))
}

fn contents(bytes: &[u8]) -> Result<Contents, String> {
    let mut reader = Reader { bytes, at: 0 };
    reader.take(4)?;
    match reader.u32()? {
        2 | 3 => {}
        1 => return Err("version 1 of GGUF, which nothing writes any more: convert it anew".into()),
        version if version.swap_bytes() <= 16 => {
            return Err("a GGUF file for big-endian machines: convert it for little-endian ones".into());
        }
        version => return Err(format!("version {version} of GGUF: 2 and 3 can be read")),
    }
    let (tensors, keys) = (reader.u64()?, reader.u64()?);
    if tensors > MOST_TENSORS as u64 {
        return Err(format!("{tensors} tensors are announced: at most {MOST_TENSORS} are read"));
    }
    if keys > MOST_KEYS {
        return Err(format!("{keys} keys are announced: at most {MOST_KEYS} are read"));
    }
    let mut contents = Contents::default();
    let (mut shapes, mut alignment, mut parts) = (BTreeMap::new(), ALIGNMENT, 1);
    for _ in 0..keys {
        let key = reader.name("key")?;
        let of = reader.u32()?;
        let start = reader.at;
        let value = reader.value(of, 0).map_err(|reason| format!("key {key}: {reason}"))?;
        match (key, value) {
            ("general.alignment", Value::Integer(of)) => {
                let power = u64::try_from(of).ok().filter(|of| of.is_power_of_two() && *of <= 1 << 20);
                alignment = power.ok_or_else(|| format!("an alignment of {of} is no power of two up to 1048576"))?;
            }
            ("split.count", Value::Integer(of)) => parts = of,
            (_, Value::Integers(of)) if key.starts_with(SHAPE) => {
                let extents: Option<Vec<usize>> = of.iter().map(|&extent| usize::try_from(extent).ok()).collect();
                let extents = extents.ok_or_else(|| format!("key {key} is no shape"))?;
                shapes.insert(&key[SHAPE.len()..], extents);
            }
            (_, Value::Text(text)) => drop(contents.texts.insert(key.to_owned(), text)),
            (_, Value::Integer(of)) => drop(contents.texts.insert(key.to_owned(), of.to_string())),
            (_, Value::Number(of)) => drop(contents.texts.insert(key.to_owned(), of.to_string())),
            (_, Value::Integers(_) | Value::Skipped) => {}
        }
        if of == value::ARRAY && key.starts_with(TOKENIZER) {
            contents.arrays.insert(key.to_owned(), start..reader.at);
        }
    }
    if parts > 1 {
        return Err(format!(
            "one of {parts} parts of a split GGUF file: join them with llama.cpp's gguf-split --merge"
        ));
    }
    let mut places = Vec::with_capacity(tensors as usize);
    for _ in 0..tensors {
        places.push(tensor(&mut reader)?);
    }
    let data = (reader.at as u64).next_multiple_of(alignment);
    let mut end_before: Vec<(u64, u64)> = Vec::with_capacity(places.len());
    for (name, shape, stored, offset) in places {
        let length = stored.bytes(&shape).ok_or_else(|| {
            format!(
                "tensor {name} has rows of {} values, which are no whole blocks of {stored}",
                shape.last().copied().unwrap_or_default()
            )
        })?;
        let shape = reshaped(name, shape, &shapes)?;
        let start = data.checked_add(offset).filter(|_| offset % alignment == 0);
        let range = start.and_then(|start| {
            let start = usize::try_from(start).ok()?;
            Some(start..start.checked_add(length)?)
        });
        let range =
            range.ok_or_else(|| format!("tensor {name} begins at {offset}, which is no multiple of {alignment}"))?;
        if range.end > bytes.len() {
            return Err(format!(
                "truncated: tensor {name} ends at byte {} and the file at {}; copy or download it again",
                range.end,
                bytes.len()
            ));
        }
        end_before.push((range.start as u64, range.end as u64));
        if contents.tensors.insert(name.to_owned(), Entry { shape, stored, range, strides: None }).is_some() {
            return Err(format!("two tensors are called {name}"));
        }
    }
    end_before.sort_unstable();
    match end_before.windows(2).find(|pair| pair[0].1 > pair[1].0) {
        Some(pair) => Err(format!("the tensors' bytes overlap at byte {}", pair[1].0)),
        None => Ok(contents),
    }
}

/// A tensor's name, shape, type and offset.
type Place<'a> = (&'a str, Vec<usize>, Stored, u64);

fn tensor<'a>(reader: &mut Reader<'a>) -> Result<Place<'a>, String> {
    let name = reader.name("tensor")?;
    let axes = reader.u32()?;
    if axes as usize > MOST_AXES {
        return Err(format!("tensor {name} has {axes} axes: at most {MOST_AXES} are read"));
    }
    let mut shape = Vec::with_capacity(axes as usize);
    for _ in 0..axes {
        let extent = reader.u64()?;
        shape.push(usize::try_from(extent).map_err(|_| format!("tensor {name} has an extent of {extent}"))?);
    }
    // ggml counts axes from the one that is next in memory.
    shape.reverse();
    check_shape(name, &shape)?;
    let number = reader.u32()?;
    let stored = match TYPES.iter().find(|(of, _)| *of == number) {
        Some((_, Ok(stored))) => *stored,
        Some((_, Err(of))) => {
            return Err(format!(
                "tensor {name} is stored as {of}, which can't be read: give a file of Q4_0 to Q8_0, Q2_K to Q6_K, IQ4_NL or IQ4_XS"
            ));
        }
        None => return Err(format!("tensor {name} is of type {number}, which is unknown")),
    };
    Ok((name, shape, stored, reader.u64()?))
}

/// The shape that a tensor had before it was stored in another one.
fn reshaped(name: &str, shape: Vec<usize>, shapes: &BTreeMap<&str, Vec<usize>>) -> Result<Vec<usize>, String> {
    let Some(original) = shapes.get(name) else { return Ok(shape) };
    check_shape(name, original)?;
    let count = |shape: &[usize]| shape.iter().product::<usize>();
    match count(original) == count(&shape) {
        true => Ok(original.clone()),
        false => Err(format!("tensor {name} is stored as {shape:?}, and was {original:?} by the file's own note")),
    }
}
