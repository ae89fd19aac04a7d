//! The identity of a model: its name, and digests of its parts by which it is found again on
//! another machine, in another folder or under another name.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tilewright_models::{Checkpoint, Error as ModelError, Lora};

use crate::{Error, LoraRequest, Parts, Result, SampleModel, text::encoder_files};

/// The longest file of which every byte counts.
const WHOLE: u64 = 4 << 20;

/// The pieces of a longer file that count beside its start and its end, and their bytes: so few
/// that a file of 20 GB takes a moment.
const PIECES: u64 = 64;
const PIECE: u64 = 16 << 10;

/// The bytes of its start, where a header is, and of its end.
const ENDS: u64 = 1 << 20;

/// The longest settings of a LoRA, in bytes.
const LONGEST_SETTINGS: u64 = 4 << 20;

/// The word before a digest: it is not that of all bytes.
const SCHEME: &str = "sampled";

/// The folders of a pipeline's parts.
const PARTS: [&str; 8] = [
    "transformer",
    "transformer_2",
    "unet",
    "vae",
    "text_encoder",
    "text_encoder_2",
    "text_encoder_3",
    "image_encoder",
];

/// The identity of a part of a model, or of a LoRA.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PartIdentity {
    /// The name of its file, or of its folders below that of its model.
    pub name: String,
    /// Bytes of all its files.
    pub bytes: u64,
    /// A digest of its contents: of their length, their start and end, and pieces in between.
    pub digest: String,
}

/// The identity of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelIdentity {
    /// The name that it went by.
    pub name: String,
    /// One transformer, or two experts.
    pub transformers: Vec<PartIdentity>,
    /// Text encoders.
    pub text_encoders: Vec<PartIdentity>,
    /// The encoder of a picture that a clip begins from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vision_encoder: Option<PartIdentity>,
    /// The VAE.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vae: Option<PartIdentity>,
}

/// The identity of a LoRA, and its part in a picture.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoraIdentity {
    /// The file.
    #[serde(flatten)]
    pub file: PartIdentity,
    /// A digest of the settings that lie beside it and are read with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settings: Option<String>,
    /// The factor of its changes.
    pub strength: f64,
    /// The expert that it is for, by its number; all of them if none is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expert: Option<usize>,
}

impl PartIdentity {
    /// The identity of a checkpoint that is open.
    ///
    /// # Errors
    /// A file of it can't be read.
    pub fn of(file: &Checkpoint) -> Result<Self> {
        let mut digest = Sha256::new();
        let mut bytes = 0;
        for path in file.paths() {
            let read = sample(path, &mut digest).map_err(|source| Error::Read { path: path.to_owned(), source });
            bytes += read?;
        }
        let hex: String = digest.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { name: name_of(file.path()), bytes, digest: format!("{SCHEME}:{hex}") })
    }

    /// The identity of the part in a file or a folder, as [`Checkpoint::open_part`] finds it.
    ///
    /// # Errors
    /// There is no such part, or it can't be read.
    pub fn open(path: &Path, folders: &[&str]) -> Result<Self> {
        Self::of(&Checkpoint::open_part(path, folders).map_err(ModelError::from)?)
    }

    /// True if its contents are another's.
    pub fn is_same(&self, other: &Self) -> bool {
        (self.bytes, &self.digest) == (other.bytes, &other.digest)
    }
}

impl ModelIdentity {
    /// The identity of a model that is open, of these parts. Text encoders that are known are not
    /// read again.
    ///
    /// # Errors
    /// A part can't be read.
    pub fn of(name: &str, model: &SampleModel, parts: &Parts, known: Option<Vec<PartIdentity>>) -> Result<Self> {
        let transformers = model.denoiser.files();
        let text_encoders = match known {
            Some(known) => known,
            None => {
                let files = parts.text_encoders.iter().flat_map(|path| encoder_files(path));
                files.map(|(file, _)| PartIdentity::open(&file, &[])).collect::<Result<_>>()?
            }
        };
        let open = |path: Option<&Path>| path.map(|path| PartIdentity::open(path, &["vae"])).transpose();
        Ok(Self {
            name: name.to_owned(),
            transformers: transformers
                .iter()
                .map(|file| PartIdentity::of(file.file().file()))
                .collect::<Result<Vec<_>>>()?,
            text_encoders,
            vision_encoder: open(parts.vision_encoder.as_deref())?,
            vae: open(parts.vae.as_deref())?,
        })
    }

    /// A line for each part that is another one than a picture's was.
    pub fn differences(&self, was: &Self) -> Vec<String> {
        let kinds = |of: &Self| -> [(&'static str, Vec<PartIdentity>); 4] {
            [
                ("transformer", of.transformers.clone()),
                ("text encoder", of.text_encoders.clone()),
                ("vision encoder", of.vision_encoder.iter().cloned().collect()),
                ("VAE", of.vae.iter().cloned().collect()),
            ]
        };
        let mut lines = Vec::new();
        for ((what, now), (_, before)) in kinds(self).into_iter().zip(kinds(was)) {
            let without = |of: &[PartIdentity], others: &[PartIdentity]| -> Vec<String> {
                let is_new = |part: &&PartIdentity| !others.iter().any(|other| other.is_same(part));
                of.iter().filter(is_new).map(|part| format!("{} ({})", part.name, part.digest)).collect()
            };
            let (new, gone) = (without(&now, &before), without(&before, &now));
            lines.extend(match (&new[..], &gone[..]) {
                ([], []) => None,
                (new, []) => Some(format!("{what} {}, which it did not have", new.join(", "))),
                // A picture that needs none is made without it.
                ([], _) => None,
                (new, gone) => Some(format!("{what} {} in place of its {}", new.join(", "), gone.join(", "))),
            });
        }
        lines
    }

    /// The model's parts, each with what it is.
    pub fn parts(&self) -> impl Iterator<Item = (&'static str, &PartIdentity)> {
        let of = |what: &'static str| move |part| (what, part);
        self.transformers
            .iter()
            .map(of("transformer"))
            .chain(self.text_encoders.iter().map(of("text encoder")))
            .chain(self.vision_encoder.iter().map(of("vision encoder")))
            .chain(self.vae.iter().map(of("VAE")))
    }
}

impl LoraIdentity {
    /// The identity of a LoRA that is asked for.
    ///
    /// # Errors
    /// Its file can't be read.
    pub fn of(request: &LoraRequest) -> Result<Self> {
        let LoraRequest { path, strength, expert } = request;
        let file = Lora::file_of(path).map_err(Error::from)?;
        let settings = Lora::settings_of(&file).map(|path| settings_digest(&path)).transpose()?;
        let mut file = PartIdentity::open(&file, &[])?;
        // A folder goes by its own name.
        file.name = name_of(path);
        Ok(Self { file, settings, strength: *strength, expert: *expert })
    }
}

/// A digest of a whole small file.
fn settings_digest(path: &Path) -> Result<String> {
    let bytes = tilewright_files::read(path, LONGEST_SETTINGS);
    let bytes = bytes.map_err(|source| Error::Read { path: path.to_owned(), source })?;
    Ok(Sha256::digest(bytes).iter().take(16).map(|byte| format!("{byte:02x}")).collect())
}

/// Adds what counts of a file to a digest, and returns the file's length.
fn sample(path: &Path, digest: &mut Sha256) -> io::Result<u64> {
    let mut file = tilewright_files::open(path)?;
    let length = file.metadata()?.len();
    digest.update(length.to_le_bytes());
    let mut add = |file: &mut File, start: u64, bytes: u64| -> io::Result<()> {
        let mut piece = Vec::new();
        file.seek(SeekFrom::Start(start))?;
        file.take(bytes).read_to_end(&mut piece)?;
        digest.update(&piece);
        Ok(())
    };
    if length <= WHOLE {
        add(&mut file, 0, length)?;
        return Ok(length);
    }
    add(&mut file, 0, ENDS)?;
    for piece in 0..PIECES {
        // 128 bits: no length makes the product overflow.
        let start = u128::from(length - PIECE) * u128::from(piece + 1) / u128::from(PIECES + 1);
        add(&mut file, start as u64, PIECE)?;
    }
    add(&mut file, length - ENDS, ENDS)?;
    Ok(length)
}

/// The name of a part: its file's, or of a part of a pipeline the names of its folder and of the
/// pipeline's. The name holds no path of this machine.
fn name_of(path: &Path) -> String {
    let text = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    match path.parent().filter(|folder| PARTS.contains(&text(folder).as_str())) {
        None => text(path),
        Some(folder) => {
            let pipeline = folder.parent().map(text).filter(|name| !name.is_empty());
            pipeline.into_iter().chain([text(folder)]).collect::<Vec<_>>().join("/")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use safetensors::tensor::{Dtype, TensorView};

    use super::*;

    fn weights(path: &Path, values: &[u8]) {
        let view = TensorView::new(Dtype::U8, vec![values.len()], values).unwrap();
        fs::write(path, safetensors::serialize([("w", view)], None).unwrap()).unwrap();
    }

    fn of(path: &Path) -> PartIdentity {
        PartIdentity::open(path, &[]).unwrap()
    }

    /// A copy under another name, of another time and in another folder is the same; a byte at the
    /// start, the end or, of a short file, anywhere makes another.
    #[test]
    fn contents_count_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("vae")).unwrap();
        for length in [1000, 9 << 20] {
            let mut values: Vec<u8> = (0..length).map(|place| (place % 251) as u8).collect();
            weights(&at("a.safetensors"), &values);
            weights(&at("vae/model.safetensors"), &values);
            let first = of(&at("a.safetensors"));
            let copy = of(&at("vae"));
            assert!(first.is_same(&copy), "{first:?} {copy:?}");
            assert_eq!(first.name, "a.safetensors");
            assert!(copy.name.ends_with("/vae") && !copy.name.starts_with('/'), "{}", copy.name);
            let places = if length > 1000 { vec![0, length - 1] } else { vec![0, 500, length - 1] };
            for place in places {
                values[place] ^= 1;
                weights(&at("b.safetensors"), &values);
                assert!(!first.is_same(&of(&at("b.safetensors"))), "{place} of {length}");
                values[place] ^= 1;
            }
        }
    }
}
