//! The bundled vocabularies: compressed in the program, unpacked when they are first asked for.
//! The source and the licence of each are written beside its file.

use std::io::Read;
use std::sync::OnceLock;

use crate::byte_pairs::BytePairs;
use crate::columns::restore;
use crate::{Error, Family, MAX_FILE_BYTES, Result, Tokenizer};

const CLIP: &[u8] = include_bytes!("../vocabularies/clip/merges.txt.zst");
const T5: &[u8] = include_bytes!("../vocabularies/t5/spiece.columns.zst");
const UMT5: &[u8] = include_bytes!("../vocabularies/umt5/spiece.columns.zst");

/// The family's own vocabulary, built once.
pub(crate) fn bundled(family: Family) -> Result<Tokenizer> {
    static BUILT: [OnceLock<Result<Tokenizer>>; 3] = [const { OnceLock::new() }; 3];
    let [clip, t5, umt5] = &BUILT;
    match family {
        Family::Clip => clip.get_or_init(|| {
            let merges = String::from_utf8(bundled_file(family)?).map_err(|_| broken("it is not UTF-8"))?;
            Ok(Tokenizer::clip(BytePairs::from_merges(&merges).map_err(|reason| broken(&reason))?))
        }),
        Family::T5 => t5.get_or_init(|| Tokenizer::from_sentencepiece(&bundled_file(family)?, family, usize::MAX)),
        Family::Umt5 => umt5.get_or_init(|| Tokenizer::from_sentencepiece(&bundled_file(family)?, family, usize::MAX)),
    }
    .clone()
}

/// The file that the family's own vocabulary was published as, byte for byte: the lines of
/// `merges.txt`, or `spiece.model`.
///
/// # Errors
/// The program itself is damaged.
pub fn bundled_file(family: Family) -> Result<Vec<u8>> {
    let of_columns = |packed| restore(&unpack(packed)?).ok_or_else(|| broken("its columns are cut off"));
    match family {
        Family::Clip => unpack(CLIP),
        Family::T5 => of_columns(T5),
        Family::Umt5 => of_columns(UMT5),
    }
}

fn unpack(packed: &[u8]) -> Result<Vec<u8>> {
    let frames = ruzstd::decoding::StreamingDecoder::new(packed).map_err(|error| broken(&error.to_string()))?;
    let mut bytes = Vec::new();
    frames.take(MAX_FILE_BYTES as u64).read_to_end(&mut bytes).map_err(|error| broken(&error.to_string()))?;
    Ok(bytes)
}

/// A fault of the program itself: the tests build all three.
fn broken(reason: &str) -> Error {
    Error::damaged("bundled vocabulary", reason)
}
