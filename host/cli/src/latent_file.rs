//! A latent's file, as ComfyUI or diffusers' users load it.

use std::{
    borrow::Cow,
    collections::HashMap,
    io::Write,
    path::{Path, PathBuf},
    str::FromStr,
};

use safetensors::tensor::{Dtype, TensorView};
use serde::Serialize;
use tch::Tensor;
use tilewright_media::{self as media, Format, Options, Output, STANDARD, Texts};
use tilewright_pipeline::RECORD_KEYWORD;

use crate::{
    failure::{Failure, Outcome},
    output::raw,
};

/// The names of the tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `latent_tensor`, with the empty marker that says that the values carry no scaling
    /// (comfyanonymous/ComfyUI, nodes.py, `SaveLatent`).
    ComfyUi,
    /// `latent`.
    Safetensors,
}

const KINDS: [(&str, Kind); 2] = [("latent", Kind::ComfyUi), ("safetensors", Kind::Safetensors)];

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = KINDS.iter().find(|(known, _)| *known == text).map(|(_, kind)| *kind);
        known.ok_or_else(|| "expected latent or safetensors".to_owned())
    }
}

impl Kind {
    /// The ending of its files.
    pub fn ending(self) -> &'static str {
        KINDS.iter().find(|(_, kind)| *kind == self).map_or("", |(ending, _)| *ending)
    }
}

/// The place of a latent; found writable.
#[derive(Debug)]
pub struct LatentFile {
    output: Output,
    /// The kind that the user or the ending asks for.
    pub kind: Kind,
}

impl LatentFile {
    /// Checks the ending, unless the kind is given, and that the file can be written, before any
    /// work is done. `ahead` if its folder may still have to be made.
    pub fn new(path: &Path, kind: Option<Kind>, no_clobber: bool, ahead: bool) -> Outcome<Self> {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_ascii_lowercase();
        let by_ending = || match path.as_os_str() == STANDARD {
            true => Some(Kind::ComfyUi),
            false => KINDS.iter().find(|(known, _)| *known == ending).map(|(_, kind)| *kind),
        };
        let kind = kind.or_else(by_ending).ok_or_else(|| {
            Failure::input(format!(
                "{}: unknown output ending: a latent is written to .latent or .safetensors",
                path.display()
            ))
        })?;
        let options = Options { format: Some(Format::Safetensors), no_clobber, ..Options::default() };
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
    pub fn write(&self, latents: &Tensor, texts: &Texts, record: &impl Serialize) -> Outcome<PathBuf> {
        self.write_with(latents, &[], texts, record)
    }

    /// The same with further tensors, by their names.
    pub fn write_with(
        &self,
        latents: &Tensor,
        further: &[(&str, Tensor)],
        texts: &Texts,
        record: &impl Serialize,
    ) -> Outcome<PathBuf> {
        let path = self.name().unwrap_or_else(|| self.path().to_owned());
        let failed = |error| Failure::work(format!("{}: can't be written: {error:#}", path.display()));
        let bytes = self.bytes(latents, further, texts, record).map_err(failed)?;
        let written = self.output.temporary(&path, ".tmp").and_then(|mut file| {
            file.write_all(&bytes)?;
            Ok(file)
        });
        Ok(self.output.place(written.map_err(|error| failed(error.into()))?, &path)?)
    }

    fn bytes(
        &self,
        latents: &Tensor,
        further: &[(&str, Tensor)],
        texts: &Texts,
        record: &impl Serialize,
    ) -> anyhow::Result<Vec<u8>> {
        let (shape, values) = raw(latents)?;
        let values = TensorView::new(Dtype::F32, shape, &values)?;
        let marker = || TensorView::new(Dtype::F32, vec![0], &[]);
        let further = further.iter().map(|(name, tensor)| Ok((*name, raw(tensor)?)));
        let further = further.collect::<anyhow::Result<Vec<_>>>()?;
        let mut tensors = match self.kind {
            Kind::ComfyUi => vec![("latent_tensor", values), ("latent_format_version_0", marker()?)],
            Kind::Safetensors => vec![("latent", values)],
        };
        for (name, (shape, values)) in &further {
            tensors.push((name, TensorView::new(Dtype::F32, shape.clone(), values)?));
        }
        let mut texts: HashMap<String, String> = texts.iter().cloned().collect();
        texts.insert(RECORD_KEYWORD.to_owned(), serde_json::to_string(record)?);
        let tensors = tensors.into_iter().map(|(name, tensor)| (Cow::Borrowed(name), tensor));
        Ok(safetensors::serialize(tensors, Some(texts))?)
    }
}
