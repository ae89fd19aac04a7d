//! The machine that reads a pickle. It knows protocol 2 and what 3 to 5 add for plain values; its
//! values stand in one list and refer to each other by number, so that no nesting can exhaust the
//! stack. What calls copy is counted: else a few bytes that recall a long tuple would cost its
//! length, time and again.

use std::collections::HashMap;

use super::{
    LONGEST_PICKLE,
    known::{Function, Known},
    tensor::{Storage, Tensor},
};

/// The number of a value.
pub type Id = u32;

/// The most instructions; 65,536 tensors take three million.
const MOST_STEPS: usize = 1 << 22;

/// The most items of tuples, lists and dicts that calls copy, all together.
const MOST_COPIED: usize = 1 << 22;

/// The most axes of a tensor, as PyTorch has it.
const MOST_AXES: usize = 64;

/// The longest name of a module, or of a name in one, in bytes.
const LONGEST_NAME: usize = 256;

/// A value.
#[derive(Clone, Debug)]
pub enum Value<'a> {
    None,
    Bool(bool),
    Integer(i64),
    /// An integer of more than 64 bits, the lowest byte first.
    Wide(&'a [u8]),
    Text(&'a str),
    /// A list or a set.
    List(Vec<Id>),
    Tuple(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Known(Known),
    Storage(Storage<'a>),
    Tensor(Tensor<'a>),
    /// A value that no tensor is made of: a number with a fraction, bytes, a device.
    Other,
}

impl Value<'_> {
    /// Values, extents and strides that it holds.
    fn items(&self) -> usize {
        match self {
            Self::List(items) | Self::Tuple(items) => items.len(),
            Self::Dict(pairs) => 2 * pairs.len(),
            Self::Tensor(tensor) => tensor.shape.len() + tensor.strides.len(),
            _ => 0,
        }
    }
}

/// A pickle's values.
#[derive(Debug)]
pub struct Pickled<'a> {
    values: Vec<Value<'a>>,
    root: Id,
    /// Bytes of the pickle, up to its end.
    pub length: usize,
}

impl<'a> Pickled<'a> {
    /// Reads a pickle from the beginning of these bytes.
    ///
    /// # Errors
    /// One line: it is truncated, unsound, too large, or uses a name that is not known.
    pub fn read(bytes: &'a [u8]) -> Result<Self, String> {
        let bytes = &bytes[..bytes.len().min(LONGEST_PICKLE)];
        let mut machine = Machine {
            bytes,
            at: 0,
            values: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
            copied: 0,
        };
        for _ in 0..MOST_STEPS {
            if machine.step()? {
                let root = machine.pop()?;
                return Ok(Self { values: machine.values, root, length: machine.at });
            }
        }
        Err(format!("a pickle of more than {MOST_STEPS} instructions: no model's has so many"))
    }

    /// The value that was pickled.
    pub fn root(&self) -> Id {
        self.root
    }

    /// A value by its number.
    pub fn value(&self, id: Id) -> &Value<'a> {
        &self.values[id as usize]
    }

    /// Every storage that the pickle names, again each time that it does.
    pub fn storages(&self) -> impl Iterator<Item = &Storage<'a>> {
        self.values.iter().filter_map(|value| match value {
            Value::Storage(storage) => Some(storage),
            _ => None,
        })
    }
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    values: Vec<Value<'a>>,
    stack: Vec<Id>,
    /// Heights of the stack.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
    /// Items that calls have copied.
    copied: usize,
}

impl<'a> Machine<'a> {
    fn take(&mut self, length: u64) -> Result<&'a [u8], String> {
        let end = usize::try_from(length).ok().and_then(|length| self.at.checked_add(length));
        let taken = end.and_then(|end| Some((self.bytes.get(self.at..end)?, end)));
        let (taken, end) = taken.ok_or_else(|| format!("truncated: its pickle ends within byte {}", self.at))?;
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let bytes = self.take(N as u64)?;
        bytes.try_into().map_err(|_| "truncated".to_owned())
    }

    fn u8(&mut self) -> Result<u64, String> {
        Ok(u8::from_le_bytes(self.array()?).into())
    }

    fn u32(&mut self) -> Result<u64, String> {
        Ok(u32::from_le_bytes(self.array()?).into())
    }

    fn u64(&mut self) -> Result<u64, String> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn text(&mut self, length: u64) -> Result<Value<'a>, String> {
        let at = self.at;
        let text = std::str::from_utf8(self.take(length)?);
        text.map(Value::Text).map_err(|_| format!("a text at byte {at} of the pickle is no UTF-8"))
    }

    /// Python 2's texts are bytes.
    fn old_text(&mut self, length: u64) -> Result<Value<'a>, String> {
        Ok(std::str::from_utf8(self.take(length)?).map_or(Value::Other, Value::Text))
    }

    fn other(&mut self, length: u64) -> Result<Value<'a>, String> {
        self.take(length).map(|_| Value::Other)
    }

    /// A line of text, without its end.
    fn line(&mut self) -> Result<&'a str, String> {
        let rest = &self.bytes[self.at..];
        let length = rest.iter().take(LONGEST_NAME + 1).position(|byte| *byte == b'\n');
        let length = length.ok_or_else(|| format!("a name at byte {} of the pickle has no end", self.at))?;
        let line = self.take(length as u64)?;
        self.at += 1;
        std::str::from_utf8(line).map_err(|_| "a name in the pickle is no text".to_owned())
    }

    /// An integer of `length` bytes, the lowest first.
    fn integer(&mut self, length: u64) -> Result<Value<'a>, String> {
        let bytes = self.take(length)?;
        if bytes.len() > 8 {
            return Ok(Value::Wide(bytes));
        }
        let negative = bytes.last().is_some_and(|last| last & 0x80 != 0);
        let mut whole = [if negative { 0xff } else { 0 }; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        Ok(Value::Integer(i64::from_le_bytes(whole)))
    }

    fn push(&mut self, value: Value<'a>) {
        self.stack.push(self.values.len() as Id);
        self.values.push(value);
    }

    /// The height of the stack above its last mark.
    fn height(&self) -> usize {
        self.stack.len() - self.marks.last().copied().unwrap_or(0)
    }

    fn pop(&mut self) -> Result<Id, String> {
        let top = if self.height() > 0 { self.stack.pop() } else { None };
        top.ok_or_else(|| format!("unsound: byte {} of its pickle takes a value from an empty stack", self.at))
    }

    fn top(&self) -> Result<Id, String> {
        let top = if self.height() > 0 { self.stack.last().copied() } else { None };
        top.ok_or_else(|| format!("unsound: byte {} of its pickle needs a value on the stack", self.at))
    }

    /// The values above the last mark, which goes with them.
    fn above_mark(&mut self) -> Result<Vec<Id>, String> {
        let mark = self.marks.pop();
        let mark = mark.ok_or_else(|| format!("unsound: byte {} of its pickle needs a mark", self.at))?;
        Ok(self.stack.split_off(mark))
    }

    fn last(&mut self, count: usize) -> Result<Vec<Id>, String> {
        let mut last = (0..count).map(|_| self.pop()).collect::<Result<Vec<_>, _>>()?;
        last.reverse();
        Ok(last)
    }

    fn remember(&mut self, key: u64) -> Result<(), String> {
        let top = self.top()?;
        self.memo.insert(key as u32, top);
        Ok(())
    }

    fn recall(&mut self, key: u64) -> Result<(), String> {
        let found = self.memo.get(&(key as u32)).copied();
        let found = found.ok_or_else(|| format!("unsound: byte {} of its pickle recalls nothing", self.at))?;
        self.stack.push(found);
        Ok(())
    }

    /// Adds to the list at the top of the stack.
    fn extend(&mut self, items: Vec<Id>) -> Result<(), String> {
        let top = self.top()?;
        match &mut self.values[top as usize] {
            Value::List(list) => {
                list.extend(items);
                Ok(())
            }
            _ => Err(format!("unsound: byte {} of its pickle adds to something that is no list", self.at)),
        }
    }

    /// Adds keys and values to the dict at the top of the stack.
    fn set(&mut self, items: &[Id]) -> Result<(), String> {
        let top = self.top()?;
        let pairs = pairs(items).ok_or_else(|| format!("unsound: a key without a value at byte {}", self.at))?;
        match &mut self.values[top as usize] {
            Value::Dict(dict) => {
                dict.extend(pairs);
                Ok(())
            }
            _ => Err(format!("unsound: byte {} of its pickle adds to something that is no dict", self.at)),
        }
    }

    fn text_of(&self, id: Id) -> Option<&'a str> {
        match self.values[id as usize] {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Runs one instruction. True at the end.
    fn step(&mut self) -> Result<bool, String> {
        let at = self.at;
        let [code] = self.array()?;
        let value = match code {
            b'.' => return Ok(true),
            // Protocol, frame.
            0x80 => return self.take(1).map(|_| false),
            0x95 => return self.take(8).map(|_| false),
            b'(' => {
                self.marks.push(self.stack.len());
                return Ok(false);
            }
            b'0' => return self.pop().map(|_| false),
            b'1' => return self.above_mark().map(|_| false),
            b'2' => {
                let top = self.top()?;
                self.stack.push(top);
                return Ok(false);
            }
            b'q' => return self.u8().and_then(|key| self.remember(key)).map(|()| false),
            b'r' => return self.u32().and_then(|key| self.remember(key)).map(|()| false),
            0x94 => return self.remember(self.memo.len() as u64).map(|()| false),
            b'h' => return self.u8().and_then(|key| self.recall(key)).map(|()| false),
            b'j' => return self.u32().and_then(|key| self.recall(key)).map(|()| false),
            b'a' => {
                let items = self.last(1)?;
                return self.extend(items).map(|()| false);
            }
            b'e' | 0x90 => {
                let items = self.above_mark()?;
                return self.extend(items).map(|()| false);
            }
            b's' => {
                let items = self.last(2)?;
                return self.set(&items).map(|()| false);
            }
            b'u' => {
                let items = self.above_mark()?;
                return self.set(&items).map(|()| false);
            }
            b'b' => return self.build().map(|()| false),
            b'N' => Value::None,
            0x88 | 0x89 => Value::Bool(code == 0x88),
            b'J' => self.integer(4)?,
            b'K' => Value::Integer(self.u8()? as i64),
            b'M' => Value::Integer(u16::from_le_bytes(self.array()?).into()),
            0x8a => self.u8().and_then(|length| self.integer(length))?,
            0x8b => self.u32().and_then(|length| self.integer(length))?,
            b'G' => self.other(8)?,
            b'X' => self.u32().and_then(|length| self.text(length))?,
            0x8c => self.u8().and_then(|length| self.text(length))?,
            0x8d => self.u64().and_then(|length| self.text(length))?,
            b'U' => self.u8().and_then(|length| self.old_text(length))?,
            b'T' => self.u32().and_then(|length| self.old_text(length))?,
            b'C' => self.u8().and_then(|length| self.other(length))?,
            b'B' => self.u32().and_then(|length| self.other(length))?,
            0x8e | 0x96 => self.u64().and_then(|length| self.other(length))?,
            b')' => Value::Tuple(Vec::new()),
            0x85..=0x87 => Value::Tuple(self.last(usize::from(code - 0x84))?),
            b't' => Value::Tuple(self.above_mark()?),
            b']' | 0x8f => Value::List(Vec::new()),
            b'l' | 0x91 => Value::List(self.above_mark()?),
            b'}' => Value::Dict(Vec::new()),
            b'd' => {
                let items = self.above_mark()?;
                Value::Dict(pairs(&items).ok_or("unsound: a dict with a key without a value")?.collect())
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                Value::Known(Known::find(module, name)?)
            }
            0x93 => {
                let names = self.last(2)?;
                let (Some(module), Some(name)) = (self.text_of(names[0]), self.text_of(names[1])) else {
                    return Err(format!("unsound: the name at byte {at} of its pickle is no text"));
                };
                Value::Known(Known::find(module, name)?)
            }
            // A call, or an object of a class.
            b'R' | 0x81 => {
                let made = self.call()?;
                self.copied += made.items();
                if self.copied > MOST_COPIED {
                    return Err(format!("a pickle whose calls copy more than {MOST_COPIED} items: no model's do"));
                }
                made
            }
            b'Q' => {
                let id = self.pop()?;
                Value::Storage(self.storage(id).ok_or("a reference to something that is no storage is not read")?)
            }
            _ => {
                return Err(format!(
                    "instruction {code:#04x} at byte {at} of its pickle is not read: tensors need none"
                ));
            }
        };
        self.push(value);
        Ok(false)
    }

    /// Gives an object its attributes, which no tensor needs.
    fn build(&mut self) -> Result<(), String> {
        self.pop()?;
        let top = self.top()?;
        match self.values[top as usize] {
            Value::Dict(_) | Value::List(_) | Value::Tensor(_) | Value::Other => Ok(()),
            _ => Err(format!("unsound: byte {} of its pickle gives attributes to a plain value", self.at)),
        }
    }

    /// The storage that a tuple stands for: its class, key, place and number of elements.
    fn storage(&self, id: Id) -> Option<Storage<'a>> {
        let items = self.tuple(id)?;
        let [marker, class, key, _, elements] = *items.get(..5)? else { return None };
        // A view of another storage, as files from before PyTorch 0.4 have it.
        let is_view = items.get(5).is_some_and(|view| match self.tuple(*view) {
            Some([_, offset, _]) => !matches!(self.values[*offset as usize], Value::Integer(0)),
            Some(_) => true,
            None => false,
        });
        if self.text_of(marker)? != "storage" || is_view {
            return None;
        }
        let Value::Known(Known::Storage(stored)) = self.values[class as usize] else { return None };
        Some(Storage { key: self.text_of(key)?, stored, elements: self.count(elements)? })
    }

    fn tuple(&self, id: Id) -> Option<&[Id]> {
        match &self.values[id as usize] {
            Value::Tuple(items) => Some(items),
            _ => None,
        }
    }

    fn count(&self, id: Id) -> Option<usize> {
        match self.values[id as usize] {
            Value::Integer(value) => usize::try_from(value).ok(),
            _ => None,
        }
    }

    fn call(&mut self) -> Result<Value<'a>, String> {
        let at = self.at;
        let [function, arguments] = self.last(2)?[..] else { return Err("unsound".into()) };
        let Some(arguments) = self.tuple(arguments) else {
            return Err(format!("unsound: a call at byte {at} of its pickle has no arguments"));
        };
        let (function, arguments) = match self.values[function as usize] {
            Value::Known(Known::Function(Function::FromType)) => self.inner(arguments),
            Value::Known(Known::Function(function)) => Some((function, arguments)),
            _ => None,
        }
        .ok_or_else(|| format!("a call at byte {at} of its pickle is not of a function that makes tensors"))?;
        let unsound = || format!("unsound: a tensor at byte {at} of its pickle is not described as torch.save does");
        match function {
            Function::Tensor | Function::TensorOfType => {
                self.tensor(function, arguments).map(Value::Tensor).ok_or_else(unsound)
            }
            Function::Parameter => match arguments.first().map(|first| &self.values[*first as usize]) {
                Some(Value::Tensor(tensor)) => Ok(Value::Tensor(tensor.clone())),
                _ => Err(unsound()),
            },
            Function::Dict => self.dict(arguments).map(Value::Dict).ok_or_else(unsound),
            Function::Size => match arguments.first().and_then(|first| self.tuple(*first)) {
                Some(items) => Ok(Value::Tuple(items.to_vec())),
                None => Ok(Value::Tuple(Vec::new())),
            },
            Function::List => match arguments.first().map(|first| &self.values[*first as usize]) {
                Some(Value::List(items) | Value::Tuple(items)) => Ok(Value::List(items.clone())),
                _ => Ok(Value::List(Vec::new())),
            },
            Function::Other => Ok(Value::Other),
            Function::FromType => Err(unsound()),
        }
    }

    /// The function and the arguments that a tensor with attributes is made by.
    fn inner<'s>(&'s self, arguments: &[Id]) -> Option<(Function, &'s [Id])> {
        let [function, _, inner, ..] = *arguments else { return None };
        match self.values[function as usize] {
            Value::Known(Known::Function(function)) => Some((function, self.tuple(inner)?)),
            _ => None,
        }
    }

    /// An ordered dict's pairs.
    fn dict(&self, arguments: &[Id]) -> Option<Vec<(Id, Id)>> {
        let Some(first) = arguments.first() else { return Some(Vec::new()) };
        let pair = |id: &Id| match &self.values[*id as usize] {
            Value::List(items) | Value::Tuple(items) => <[Id; 2]>::try_from(&items[..]).ok().map(|[key, of]| (key, of)),
            _ => None,
        };
        match &self.values[*first as usize] {
            Value::List(items) | Value::Tuple(items) => items.iter().map(pair).collect(),
            Value::Dict(pairs) => Some(pairs.clone()),
            _ => None,
        }
    }

    fn tensor(&self, function: Function, arguments: &[Id]) -> Option<Tensor<'a>> {
        let [storage, offset, shape, strides] = *arguments.get(..4)? else { return None };
        let Value::Storage(storage) = &self.values[storage as usize] else { return None };
        let stored = match (function, storage.stored) {
            (Function::TensorOfType, _) => match self.values[*arguments.get(6)? as usize] {
                Value::Known(Known::Type(stored)) => stored,
                _ => return None,
            },
            (_, stored) => stored.unwrap_or(tilewright_kernels::Stored::U8),
        };
        let axes = |id: Id| self.tuple(id).filter(|axes| axes.len() <= MOST_AXES);
        let counts = |id: Id| axes(id)?.iter().map(|id| self.count(*id)).collect::<Option<Vec<usize>>>();
        let (offset, shape, strides) = (self.count(offset)?, counts(shape)?, counts(strides)?);
        Some(Tensor { storage: storage.clone(), stored, offset, shape, strides })
    }
}

/// Keys with their values; none if the last key has no value.
fn pairs(items: &[Id]) -> Option<impl Iterator<Item = (Id, Id)>> {
    items.len().is_multiple_of(2).then(|| items.chunks_exact(2).map(|pair| (pair[0], pair[1])))
}
