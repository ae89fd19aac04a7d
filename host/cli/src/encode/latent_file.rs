//! A latent's file, as ComfyUI or diffusers' users load it.

use std::{
    borrow::Cow,
    collections::HashMap,
    io::Write,
    path::{Path, PathBuf},
};

use safetensors::tensor::{Dtype, TensorView};
use tch::Tensor;
use tilewright_decode::RECORD_KEYWORD;
use tilewright_plan::Record;

use crate::{
    failure::{Failure, Outcome},
    output::{raw, temporary, writable},
};

/// Whose names the tensors get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `latent_tensor`, with the empty marker that says that the values carry no scaling (comfyanonymous/ComfyUI, nodes.py, `SaveLatent`).
    ComfyUi,
    /// `latent`.
    Safetensors,
}

const KINDS: [(&str, Kind); 2] = [("latent", Kind::ComfyUi), ("safetensors", Kind::Safetensors)];

/// Where a latent goes.
#[derive(Debug)]
pub struct LatentFile {
    path: PathBuf,
    /// What its ending asks for.
    pub kind: Kind,
}

impl LatentFile {
    /// Checks the ending.
    pub fn new(path: &Path) -> Outcome<Self> {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_ascii_lowercase();
        let kind = KINDS.iter().find(|(known, _)| *known == ending).map(|(_, kind)| *kind).ok_or_else(|| {
            Failure::input(format!(
                "{}: unknown output ending: a latent is written to .latent or .safetensors",
                path.display()
            ))
        })?;
        Ok(Self { path: path.to_owned(), kind })
    }

    /// Where.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks before any work is done that the file can be written.
    pub fn check(&self) -> Outcome {
        writable(&self.path)
    }

    /// Writes latents [N, C, h, w] or [N, C, t, h, w], with the record among the file's texts. A half-written file never stands under the final name.
    pub fn write(&self, latents: &Tensor, record: &Record) -> Outcome {
        self.written(latents, record)
            .map_err(|error| Failure::work(format!("{}: can't be written: {error:#}", self.path.display())))
    }

    fn written(&self, latents: &Tensor, record: &Record) -> anyhow::Result<()> {
        let (shape, values) = raw(latents)?;
        let values = TensorView::new(Dtype::F32, shape, &values)?;
        let marker = || TensorView::new(Dtype::F32, vec![0], &[]);
        let tensors = match self.kind {
            Kind::ComfyUi => vec![("latent_tensor", values), ("latent_format_version_0", marker()?)],
            Kind::Safetensors => vec![("latent", values)],
        };
        let texts = HashMap::from([(RECORD_KEYWORD.to_owned(), serde_json::to_string(record)?)]);
        let tensors = tensors.into_iter().map(|(name, tensor)| (Cow::Borrowed(name), tensor));
        let bytes = safetensors::serialize(tensors, Some(texts))?;
        let mut file = temporary(&self.path)?;
        file.write_all(&bytes)?;
        file.as_file().sync_data()?;
        file.persist(&self.path)?;
        Ok(())
    }
}
