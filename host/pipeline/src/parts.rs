//! The parts of a model: text encoders, transformers and a VAE, each in a file or a folder.

use std::path::{Path, PathBuf};

use tilewright_models::{Checkpoint, Error as ModelError, Part, Role};

use crate::{Error, Result, sample};

/// A pipeline's folders of transformers, of the VAE, and of text encoders.
const TRANSFORMERS: [&str; 2] = ["transformer", "transformer_2"];
const VAE: &str = "vae";
const TEXT_ENCODERS: [&str; 3] = ["text_encoder", "text_encoder_2", "text_encoder_3"];

/// The parts that a prompt needs on its way to a picture or clip.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// Text encoders' files or folders.
    pub text_encoders: Vec<PathBuf>,
    /// One transformer, or two experts.
    pub transformers: Vec<PathBuf>,
    /// The VAE.
    pub vae: Option<PathBuf>,
    /// The tokens that the text encoder without positions reads, if the model says so.
    pub text_tokens: Option<u32>,
}

impl Parts {
    /// Fills in the parts that are not named from a model: a pipeline's folder, or a checkpoint of
    /// several networks.
    ///
    /// # Errors
    /// The model is no such folder or checkpoint.
    pub fn from_model(self, model: &Path) -> Result<Self> {
        let found = if model.is_dir() { in_folder(model)? } else { in_file(model)? };
        let or = |own: Vec<PathBuf>, other| if own.is_empty() { other } else { own };
        Ok(Self {
            text_encoders: or(self.text_encoders, found.text_encoders),
            transformers: or(self.transformers, found.transformers),
            vae: self.vae.or(found.vae),
            text_tokens: self.text_tokens.or(found.text_tokens),
        })
    }

    /// Checks that all parts are there.
    ///
    /// # Errors
    /// [`Error::Part`] names the first that is missing.
    pub fn check(&self) -> Result<&Path> {
        let missing = |part, option, files| Err(Error::Part { part, option, files });
        if self.transformers.is_empty() {
            return missing(
                "transformer",
                "--transformer",
                "flux1-dev.safetensors or wan2.1_t2v_1.3B_fp16.safetensors",
            );
        }
        if self.text_encoders.is_empty() {
            return missing(
                "text encoder",
                "--text-encoder",
                "clip_l.safetensors and t5xxl_fp16.safetensors for Flux, umt5_xxl_fp16.safetensors for WAN",
            );
        }
        match &self.vae {
            Some(vae) => Ok(vae),
            None => missing("VAE", "--vae", "ae.safetensors for Flux, wan_2.1_vae.safetensors for WAN"),
        }
    }
}

fn in_folder(model: &Path) -> Result<Parts> {
    let there = |name: &&str| Some(model.join(name)).filter(|path| path.is_dir());
    let parts = Parts {
        text_encoders: TEXT_ENCODERS.iter().filter_map(there).collect(),
        transformers: TRANSFORMERS.iter().filter_map(there).take(1).map(|_| model.to_owned()).collect(),
        vae: there(&VAE),
        text_tokens: None,
    };
    if parts == Parts::default() {
        let reason = "no folder of a pipeline: it has none of transformer, text_encoder and vae".into();
        return Err(Error::Input { path: model.to_owned(), reason });
    }
    Ok(Parts { text_tokens: sample::text_tokens(model)?, ..parts })
}

fn in_file(model: &Path) -> Result<Parts> {
    let file = Checkpoint::open(model).map_err(ModelError::from)?;
    let roles: Vec<Role> = Part::of(&file).iter().map(|part| part.role).collect();
    let of = |role| if roles.contains(&role) { vec![model.to_owned()] } else { Vec::new() };
    let is_vae = tilewright_models::Identity::of_decoder(&file).is_ok();
    let parts = Parts {
        text_encoders: of(Role::TextEncoder),
        transformers: of(Role::Denoiser),
        vae: is_vae.then(|| model.to_owned()),
        text_tokens: None,
    };
    match parts == Parts::default() {
        true => Err(Error::Input { path: model.to_owned(), reason: "no part of a model that can be run".into() }),
        false => Ok(parts),
    }
}
