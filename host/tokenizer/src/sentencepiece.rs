//! Reads a sentencepiece model (`spiece.model`): the few fields of its protobuf that are needed.

use crate::error::{Error, Result};
use crate::tokenizer::{check_count, check_size};
use crate::unigram::{Entry, Kind, Model};

/// The model's place, in messages.
pub(crate) const SOURCE: &str = "spiece_model";

/// `TrainerSpec.ModelType`'s `UNIGRAM`.
const UNIGRAM: u64 = 1;

/// Reads a model.
pub(crate) fn read(bytes: &[u8]) -> Result<Model> {
    check_size(SOURCE, bytes.len())?;
    let mut model = Model::default();
    let mut kind = UNIGRAM;
    let mut message = Message(bytes);
    while let Some((number, field)) = message.field()? {
        match (number, field) {
            (1, Field::Bytes(piece)) => {
                check_count(SOURCE, model.entries.len() + 1)?;
                model.entries.push(entry(piece)?);
            }
            (2, Field::Bytes(trainer)) => {
                let mut trainer = Message(trainer);
                while let Some((number, field)) = trainer.field()? {
                    match (number, field) {
                        (3, Field::Varint(value)) => kind = value,
                        (40, Field::Varint(value)) => {
                            model.unknown = u32::try_from(value).map_err(|_| damaged("its unk_id is no id"))?;
                        }
                        _ => {}
                    }
                }
            }
            (3, Field::Bytes(normalizer)) => {
                let mut normalizer = Message(normalizer);
                while let Some((number, field)) = normalizer.field()? {
                    if let (2, Field::Bytes(charsmap)) = (number, field) {
                        model.charsmap = charsmap.to_vec();
                    }
                }
            }
            _ => {}
        }
    }
    if kind != UNIGRAM {
        return Err(damaged(&format!("its model_type is {kind}, and only unigram models (1) are read")));
    }
    Ok(model)
}

fn entry(bytes: &[u8]) -> Result<Entry> {
    let mut entry = Entry { text: String::new(), score: 0.0, kind: Kind::Normal };
    let mut message = Message(bytes);
    while let Some((number, field)) = message.field()? {
        match (number, field) {
            (1, Field::Bytes(text)) => {
                let text = std::str::from_utf8(text).map_err(|_| damaged("a piece is not UTF-8"))?;
                entry.text = text.to_owned();
            }
            (2, Field::Fixed32(bits)) => entry.score = f32::from_bits(bits),
            (3, Field::Varint(value)) => {
                let kind = i64::try_from(value).ok().and_then(Kind::from_number);
                entry.kind = kind.ok_or_else(|| damaged("a piece is of no known type"))?;
            }
            _ => {}
        }
    }
    Ok(entry)
}

fn damaged(reason: &str) -> Error {
    Error::damaged(SOURCE, reason)
}

/// The rest of a protobuf message.
struct Message<'a>(&'a [u8]);

enum Field<'a> {
    Varint(u64),
    Fixed32(u32),
    Bytes(&'a [u8]),
    /// A field of a type that no needed field has.
    Skipped,
}

impl<'a> Message<'a> {
    /// The next field's number and value, or `None` at the end.
    fn field(&mut self) -> Result<Option<(u64, Field<'a>)>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let field = match key & 7 {
            0 => Field::Varint(self.varint()?),
            1 => self.take(8).map(|_| Field::Skipped)?,
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| damaged("it is cut off"))?;
                Field::Bytes(self.take(length)?)
            }
            5 => {
                let bytes = self.take(4)?.try_into().map_err(|_| damaged("it is cut off"))?;
                Field::Fixed32(u32::from_le_bytes(bytes))
            }
            _ => return Err(damaged("it is no sentencepiece model")),
        };
        Ok(Some((key >> 3, field)))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or_else(|| damaged("it is cut off"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..70).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or_else(|| damaged("it is cut off"))?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(damaged("it is no sentencepiece model"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_fields_that_matter() {
        let piece = [0x0a, 1, b'a', 0x15, 0, 0, 0x80, 0xbf, 0x18, 4];
        let mut file = vec![0x0a, piece.len() as u8];
        file.extend(piece);
        // TrainerSpec: model_type 1, unk_id 2; NormalizerSpec: precompiled_charsmap.
        file.extend([0x12, 5, 0x18, 1, 0xc0, 0x02, 2, 0x1a, 4, 0x12, 2, 7, 8]);
        let model = read(&file).unwrap();
        assert_eq!(model.unknown, 2);
        assert_eq!(model.charsmap, [7, 8]);
        let entry = model.entries.first().unwrap();
        assert_eq!((entry.text.as_str(), entry.score, entry.kind), ("a", -1.0, Kind::UserDefined));
        for end in 1..file.len() {
            let _ = read(&file[..end]);
        }
    }

    #[test]
    fn refuses_other_models_and_damage() {
        let message = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
        assert_eq!(
            message(&[0x12, 2, 0x18, 2]),
            "spiece_model: its model_type is 2, and only unigram models (1) are read"
        );
        assert_eq!(message(&[0x0a, 200, 1]), "spiece_model: it is cut off");
        assert_eq!(message(&[0x0a, 3, 0x0a, 1, 0xff]), "spiece_model: a piece is not UTF-8");
        assert_eq!(message(b"PK\x03\x04"), "spiece_model: it is no sentencepiece model");
        assert_eq!(message(&[0x80; 40]), "spiece_model: it is no sentencepiece model");
    }
}
