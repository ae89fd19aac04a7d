//! A latent's file, as ComfyUI or diffusers' users load it.

use std::{
    collections::HashMap,
    io::Write,
    path::{Path, PathBuf},
    str::FromStr,
};

use safetensors::{
    SafeTensorError,
    tensor::{Dtype, TensorView},
};
use serde::Serialize;
use tch::{Kind, Tensor};
use tilewright_media::{self as media, Format, Numbering, Options, Output, STANDARD, Texts};

use crate::{Error, RECORD_KEYWORD, Result};

/// The reason that a file can't be written.
pub(crate) type Cause = Box<dyn std::error::Error + Send + Sync>;

/// The names of the tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatentKind {
    /// `latent_tensor`, with the empty marker that says that the values carry no scaling
    /// (comfyanonymous/ComfyUI, nodes.py, `SaveLatent`).
    ComfyUi,
    /// `latent`.
    Safetensors,
}

const KINDS: [(&str, LatentKind); 2] = [("latent", LatentKind::ComfyUi), ("safetensors", LatentKind::Safetensors)];

impl FromStr for LatentKind {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let known = KINDS.iter().find(|(known, _)| *known == text).map(|(_, kind)| *kind);
        known.ok_or_else(|| "expected latent or safetensors".to_owned())
    }
}

impl LatentKind {
    /// The ending of its files.
    pub fn ending(self) -> &'static str {
        KINDS.iter().find(|(_, kind)| *kind == self).map_or("", |(ending, _)| *ending)
    }
}

/// The place of a latent; found writable.
#[derive(Debug)]
pub struct LatentOutput {
    output: Output,
    /// The kind that the user or the ending asks for.
    pub kind: LatentKind,
}

impl LatentOutput {
    /// Checks the ending, unless the kind is given, and that the file can be written, before any
    /// work is done. `ahead` if its folder may still have to be made.
    ///
    /// # Errors
    /// The ending is unknown, or no file can be made there.
    pub fn new(path: &Path, kind: Option<LatentKind>, no_clobber: bool, ahead: bool) -> Result<Self> {
        Self::numbered(path, kind, no_clobber, Numbering::Found, ahead)
    }

    /// The same for a name whose number stands at a known place.
    ///
    /// # Errors
    /// The same.
    pub fn numbered(
        path: &Path,
        kind: Option<LatentKind>,
        no_clobber: bool,
        numbering: Numbering,
        ahead: bool,
    ) -> Result<Self> {
        media::check_no_stream(path)?;
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_ascii_lowercase();
        let by_ending = || match path.as_os_str() == STANDARD {
            true => Some(LatentKind::ComfyUi),
            false => KINDS.iter().find(|(known, _)| *known == ending).map(|(_, kind)| *kind),
        };
        let kind = kind.or_else(by_ending).ok_or_else(|| {
            Error::input(path, "unknown output ending: a latent is written to .latent or .safetensors")
        })?;
        let options = Options { format: Some(Format::Safetensors), no_clobber, numbering, ..Options::default() };
        let output = match ahead {
            true => Output::ahead(path, media::Kind::Picture, options),
            false => Output::with(path, media::Kind::Picture, options),
        }?;
        Ok(Self { output, kind })
    }

    /// The path asked for.
    pub fn path(&self) -> &Path {
        self.output.path()
    }

    /// The final name, as of now; none for standard output.
    pub fn name(&self) -> Option<PathBuf> {
        if self.output.is_standard() { None } else { self.output.names(1).pop() }
    }

    /// Writes latents [N, C, h, w] or [N, C, t, h, w], with the record and the workflow among the
    /// file's texts, and returns the file's name. A half-written file never has the final name.
    ///
    /// # Errors
    /// It can't be written.
    pub fn write(&self, latents: &Tensor, texts: &Texts, record: &impl Serialize) -> Result<PathBuf> {
        self.write_with(latents, &[], texts, record)
    }

    /// The same with further tensors, by their names.
    ///
    /// # Errors
    /// It can't be written.
    pub fn write_with(
        &self,
        latents: &Tensor,
        further: &[(&str, Tensor)],
        texts: &Texts,
        record: &impl Serialize,
    ) -> Result<PathBuf> {
        let path = self.name().unwrap_or_else(|| self.path().to_owned());
        write(&self.output, path, self.bytes(latents, further, texts, record))
    }

    fn bytes(
        &self,
        latents: &Tensor,
        further: &[(&str, Tensor)],
        texts: &Texts,
        record: &impl Serialize,
    ) -> std::result::Result<Vec<u8>, Cause> {
        let latents = raw(latents)?;
        let mut tensors = match self.kind {
            LatentKind::ComfyUi => vec![("latent_tensor", latents), ("latent_format_version_0", (vec![0], Vec::new()))],
            LatentKind::Safetensors => vec![("latent", latents)],
        };
        for (name, tensor) in further {
            tensors.push((*name, raw(tensor)?));
        }
        let mut texts: HashMap<String, String> = texts.iter().cloned().collect();
        texts.insert(RECORD_KEYWORD.to_owned(), serde_json::to_string(record)?);
        Ok(serialize(&tensors, Some(texts))?)
    }
}

/// A tensor's shape, and its values as bytes of f32.
pub(crate) type Raw = (Vec<usize>, Vec<u8>);

/// The shape and the values of a tensor.
pub(crate) fn raw(tensor: &Tensor) -> Result<Raw> {
    let tensor = tensor.f_to_kind(Kind::Float)?.f_contiguous()?;
    let mut values = vec![0_u8; tensor.numel() * 4];
    tensor.f_copy_data_u8(&mut values, tensor.numel())?;
    Ok((tensor.size().iter().map(|&extent| extent as usize).collect(), values))
}

/// The bytes of a file of tensors, by their names, and of texts.
pub(crate) fn serialize<N: AsRef<str>>(
    tensors: &[(N, Raw)],
    texts: Option<HashMap<String, String>>,
) -> std::result::Result<Vec<u8>, SafeTensorError> {
    let views = tensors
        .iter()
        .map(|(name, (shape, values))| Ok((name.as_ref(), TensorView::new(Dtype::F32, shape.clone(), values)?)))
        .collect::<std::result::Result<Vec<_>, SafeTensorError>>()?;
    safetensors::serialize(views, texts)
}

/// Writes a file in one piece: a half-written one never has its name.
pub(crate) fn write(output: &Output, path: PathBuf, bytes: std::result::Result<Vec<u8>, Cause>) -> Result<PathBuf> {
    let failed = |source| Error::Write { path: path.clone(), source };
    let bytes = bytes.map_err(failed)?;
    let written = output.temporary(&path, ".tmp").and_then(|mut file| {
        file.write_all(&bytes)?;
        Ok(file)
    });
    Ok(output.place(written.map_err(|error| failed(error.into()))?, &path)?)
}
