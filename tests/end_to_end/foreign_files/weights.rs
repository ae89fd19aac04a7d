//! Tensors by name that are written as safetensors and as `torch.save` writes them.

use std::{collections::BTreeMap, fs};

use safetensors::{
    SafeTensors,
    tensor::{Dtype, TensorView},
};
use serde_json::json;

/// A tensor: type, shape and bytes.
type Tensor = (Dtype, Vec<usize>, Vec<u8>);

/// Tensors by name.
#[derive(Clone, Default)]
pub struct Weights(BTreeMap<String, Tensor>);

/// So many values by their places.
pub fn floats(count: usize, value: impl Fn(usize) -> f32) -> Vec<f32> {
    (0..count).map(value).collect()
}

fn dtype(name: &str) -> Dtype {
    serde_json::from_value(json!(name)).unwrap()
}

impl Weights {
    pub fn read(path: &str) -> Self {
        let bytes = fs::read(path).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tensors = file.tensors().into_iter();
        Self(tensors.map(|(name, of)| (name, (of.dtype(), of.shape().to_vec(), of.data().to_vec()))).collect())
    }

    /// Tensors of f32: name, type, shape and values.
    pub fn of_floats(tensors: Vec<(String, &str, Vec<usize>, Vec<f32>)>) -> Self {
        let bytes = |values: Vec<f32>| values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let tensors = tensors.into_iter();
        Self(tensors.map(|(name, of, shape, values)| (name, (dtype(of), shape, bytes(values)))).collect())
    }

    /// Names and shapes.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.0.iter().map(|(name, (_, shape, _))| (name.as_str(), shape.as_slice()))
    }

    /// Adds a tensor whose bytes are not zero.
    pub fn add(&mut self, name: &str, of: &str, shape: &[usize]) {
        let of = dtype(of);
        let bytes = shape.iter().product::<usize>() * of.bitsize() / 8;
        self.0.insert(name.to_owned(), (of, shape.to_vec(), vec![0x3c; bytes]));
    }

    pub fn remove(&mut self, name: &str) {
        self.0.remove(name).unwrap_or_else(|| panic!("{name} is not there"));
    }

    pub fn replace(&mut self, name: &str, of: &str, shape: &[usize]) {
        self.remove(name);
        self.add(name, of, shape);
    }

    pub fn safetensors(&self) -> Vec<u8> {
        let views = self
            .0
            .iter()
            .map(|(name, (of, shape, bytes))| (name.as_str(), TensorView::new(*of, shape.clone(), bytes).unwrap()));
        safetensors::serialize(views, None).unwrap()
    }

    /// The file with every value stored in another type.
    pub fn stored_as(&self, to: &str, write: impl Fn(f32) -> Vec<u8>) -> Vec<u8> {
        let values = |of: Dtype, bytes: &[u8]| -> Vec<f32> {
            let wide = |bytes: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16);
            let whole = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap());
            match of {
                Dtype::BF16 => bytes.chunks(2).map(wide).collect(),
                Dtype::F32 => bytes.chunks(4).map(whole).collect(),
                other => panic!("{other:?} is no type of these fixtures"),
            }
        };
        let changed = self.0.iter().map(|(name, (of, shape, bytes))| {
            let bytes = values(*of, bytes).into_iter().flat_map(&write).collect();
            (name.clone(), (dtype(to), shape.clone(), bytes))
        });
        Self(changed.collect()).safetensors()
    }

    /// The file that `torch.save` writes of these in a dict, below the keys of other dicts.
    pub fn pickled(&self, levels: &[&str]) -> Vec<u8> {
        let mut object = b"\x80\x02".to_vec();
        let text = |text: &str| [&b"X"[..], &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat();
        for level in levels {
            object.extend([&b"}"[..], &text(level)].concat());
        }
        let mut entries = vec![(String::new(), Vec::new())];
        object.extend(b"}(");
        for (index, (name, (of, shape, bytes))) in self.0.iter().enumerate() {
            let class = match of {
                Dtype::F32 => "FloatStorage",
                Dtype::F16 => "HalfStorage",
                Dtype::BF16 => "BFloat16Storage",
                other => panic!("{other:?} is no type of these fixtures"),
            };
            let number = |number: usize| [&b"J"[..], &(number as u32).to_le_bytes()].concat();
            let numbers =
                |all: &[usize]| [&b"("[..], &all.iter().flat_map(|of| number(*of)).collect::<Vec<u8>>(), b"t"].concat();
            let strides: Vec<usize> = (0..shape.len()).map(|axis| shape[axis + 1..].iter().product()).collect();
            let key = index.to_string();
            object.extend(text(name));
            object.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
            object.extend([text("storage"), format!("ctorch\n{class}\n").into(), text(&key), text("cpu")].concat());
            object.extend([number(shape.iter().product()), b"tQ".to_vec(), number(0)].concat());
            object
                .extend([numbers(shape), numbers(&strides), b"\x89ccollections\nOrderedDict\n)RtR".to_vec()].concat());
            entries.push((format!("x/data/{key}"), bytes.clone()));
        }
        object.push(b'u');
        object.extend(levels.iter().map(|_| b's'));
        object.push(b'.');
        entries[0] = ("x/data.pkl".into(), object);
        archive(&entries)
    }
}

/// A zip archive of entries that stand in it as they are.
pub fn archive(entries: &[(String, Vec<u8>)]) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, contents) in entries {
        let (at, size, named) = (file.len() as u32, contents.len() as u32, name.len() as u16);
        let mut sum = flate2::Crc::new();
        sum.update(contents);
        let facts = [sum.sum().to_le_bytes(), size.to_le_bytes(), size.to_le_bytes()].concat();
        file.extend([&b"PK\x03\x04\x14\0"[..], &[0; 8], &facts, &named.to_le_bytes(), &[0; 2]].concat());
        file.extend(name.as_bytes());
        file.extend(contents);
        let start = [&b"PK\x01\x02\x14\0\x14\0"[..], &[0; 8], &facts, &named.to_le_bytes(), &[0; 12]].concat();
        directory.extend([&start[..], &at.to_le_bytes(), name.as_bytes()].concat());
    }
    let (count, start) = ((entries.len() as u16).to_le_bytes(), (file.len() as u32).to_le_bytes());
    let length = (directory.len() as u32).to_le_bytes();
    file.extend(directory);
    file.extend([&b"PK\x05\x06\0\0\0\0"[..], &count, &count, &length, &start, &[0; 2]].concat());
    file
}

/// The value of a code of 8 bits with 3 of mantissa.
pub fn of_e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let value = if exponent == 0 { mantissa / 512.0 } else { (1.0 + mantissa / 8.0) * 2.0_f32.powi(exponent - 7) };
    if code & 0x80 != 0 { -value } else { value }
}

/// The code of the largest value that is no larger, and of the same sign.
pub fn to_e4m3(value: f32) -> u8 {
    let size = value.abs();
    let code = (0..0x7f).take_while(|code| of_e4m3(*code) <= size).last().unwrap_or(0);
    if value.is_sign_negative() { code | 0x80 } else { code }
}
