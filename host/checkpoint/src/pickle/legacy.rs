//! Files from before archives: a magic number, a version, facts about the machine, the object and
//! the keys of its storages, each a pickle, and then each storage's length and bytes.

use std::{collections::HashMap, ops::Range};

use super::machine::{Pickled, Value};

/// The number that such a file begins with, 0x1950a86a20f9469cfc6c.
const MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];

/// The version of the format.
const VERSION: i64 = 1001;

/// A file's object, and the places of its storages.
pub struct Legacy<'a> {
    pub pickled: Pickled<'a>,
    pub storages: HashMap<&'a str, Range<usize>>,
}

impl<'a> Legacy<'a> {
    /// Reads a file from all its bytes.
    ///
    /// # Errors
    /// One line: it is none of `torch.save`, truncated or unsound.
    pub fn read(file: &'a [u8]) -> Result<Self, String> {
        let mut at = 0;
        let mut next = || -> Result<Pickled<'a>, String> {
            let pickled = Pickled::read(file.get(at..).unwrap_or_default())?;
            at += pickled.length;
            Ok(pickled)
        };
        let magic = next()?;
        if !matches!(magic.value(magic.root()), Value::Wide(number) if *number == MAGIC) {
            return Err("a Python pickle that torch.save has not written: save its tensors with torch.save".into());
        }
        let version = next()?;
        if !matches!(version.value(version.root()), Value::Integer(VERSION)) {
            return Err("a pickle in another version of torch.save's format than 1001".into());
        }
        let machine = next()?;
        if let Value::Dict(facts) = machine.value(machine.root())
            && facts.iter().any(|(key, fact)| {
                matches!(machine.value(*key), Value::Text("little_endian"))
                    && matches!(machine.value(*fact), Value::Bool(false))
            })
        {
            return Err(super::BIG_ENDIAN.into());
        }
        let (pickled, keys) = (next()?, next()?);
        let Value::List(keys_of) = keys.value(keys.root()) else {
            return Err("unsound: no list of storages follows its pickle".into());
        };
        let sizes: HashMap<&str, usize> =
            pickled.storages().map(|storage| (storage.key, storage.stored.map_or(1, |of| of.block_bytes()))).collect();
        let mut storages = HashMap::new();
        for key in keys_of {
            let Value::Text(key) = *keys.value(*key) else { return Err("unsound: a storage without a name".into()) };
            let shown = key.escape_debug();
            let size = sizes.get(key).ok_or_else(|| format!("unsound: its pickle does not name storage {shown}"))?;
            let head = file.get(at..).and_then(|rest| rest.first_chunk());
            let elements = head.map(|bytes| u64::from_le_bytes(*bytes));
            let elements = elements.ok_or_else(|| truncated(key, at + 8, file.len()))?;
            let start = at + 8;
            let length = usize::try_from(elements).ok().and_then(|elements| elements.checked_mul(*size));
            let end = length.and_then(|length| start.checked_add(length)).unwrap_or(usize::MAX);
            if end > file.len() {
                return Err(truncated(key, end, file.len()));
            }
            if storages.insert(key, start..end).is_some() {
                return Err(format!("unsound: two storages are called {shown}"));
            }
            at = end;
        }
        Ok(Self { pickled, storages })
    }
}

fn truncated(key: &str, end: usize, length: usize) -> String {
    format!(
        "truncated: storage {} ends at byte {end} and the file at {length}; copy or download it again",
        key.escape_debug()
    )
}
