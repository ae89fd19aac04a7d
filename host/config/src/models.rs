//! `[models.NAME]`: the parts that jobs are run with, one by one or as a model.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer};
use tilewright_plan::ModelPart;

use crate::values;

/// The families whose files may not tell which one it is.
const FAMILIES: [&str; 4] = ["sd", "sdxl", "sd3", "flux"];

/// A model's file or folder, or the name that it is listed by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSource {
    written: PathBuf,
    /// The same as a path from the configuration's folder.
    path: PathBuf,
}

impl ModelSource {
    /// The path, if something exists there, and else the name as it is written.
    pub fn path_or_name(&self) -> &Path {
        match self.path.symlink_metadata() {
            Ok(_) => &self.path,
            Err(_) => &self.written,
        }
    }

    /// Takes relative paths from a folder.
    pub(crate) fn resolve(&mut self, folder: &Path) {
        self.path = folder.join(&self.written);
    }
}

impl From<PathBuf> for ModelSource {
    fn from(written: PathBuf) -> Self {
        Self { path: written.clone(), written }
    }
}

/// `[models.NAME]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table")]
pub struct Model {
    /// The model whose parts are taken where they are not named by themselves.
    #[serde(default, deserialize_with = "source")]
    pub model: Option<ModelSource>,
    /// The autoencoder's file or folder. Its contents are not checked here.
    #[serde(default, deserialize_with = "values::path")]
    pub vae: Option<PathBuf>,
    /// The transformer's file or folder, or those of two experts: first the one for high noise.
    /// Their contents are not checked here.
    #[serde(default, deserialize_with = "values::one_or_two_paths")]
    pub transformer: Vec<PathBuf>,
    /// Text encoders' files or folders, in any order, for jobs from a prompt. Their contents are
    /// not checked here.
    #[serde(default, deserialize_with = "values::one_or_two_paths")]
    pub text_encoder: Vec<PathBuf>,
    /// Files of LoRAs, or folders of them, that jobs may ask for by name. Their contents are not
    /// checked here.
    #[serde(default, deserialize_with = "values::some_paths")]
    pub loras: Vec<PathBuf>,
    /// The sigma at which two experts change, if it is not the published one: between 0 and 1.
    #[serde(default, deserialize_with = "boundary")]
    pub boundary: Option<f64>,
    /// `sd`, `sdxl`, `sd3` or `flux`, if the file does not tell.
    #[serde(default, deserialize_with = "family")]
    pub family: Option<String>,
    /// The factor that latents were multiplied by, if it is not the family's: finite, not 0.
    #[serde(default, deserialize_with = "scaling")]
    pub scaling_factor: Option<f64>,
    /// The shift that was subtracted from latents before, if it is not the family's: finite.
    #[serde(default, deserialize_with = "shift")]
    pub shift_factor: Option<f64>,
}

impl Model {
    /// True if it has a part. A whole model, whose parts are not named by themselves, may have all
    /// of them.
    pub fn has(&self, part: ModelPart) -> bool {
        self.model.is_some() || !self.paths(part).is_empty()
    }

    /// The paths of a part that is named by itself.
    pub(crate) fn paths(&self, part: ModelPart) -> &[PathBuf] {
        match part {
            ModelPart::Vae => self.vae.as_slice(),
            ModelPart::Transformer => &self.transformer,
            ModelPart::TextEncoder => &self.text_encoder,
        }
    }

    /// The paths of parts that are named by themselves.
    pub(crate) fn paths_mut(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        self.vae.iter_mut().chain(&mut self.transformer).chain(&mut self.text_encoder).chain(&mut self.loras)
    }
}

fn source<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ModelSource>, D::Error> {
    values::path::<D, PathBuf>(deserializer).map(|written| Some(written.into()))
}

fn boundary<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    values::number(deserializer, "a number between 0 and 1", |number| number > 0.0 && number < 1.0).map(Some)
}

fn family<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    values::text(deserializer, "a family", |text| match FAMILIES.contains(&text) {
        true => Ok(Some(text.into())),
        false => Err(format!("unknown family '{}', expected one of {}", text.escape_debug(), FAMILIES.join(", "))),
    })
}

fn scaling<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    values::number(deserializer, "a number other than 0", |number| number.is_finite() && number != 0.0).map(Some)
}

fn shift<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    values::number(deserializer, "a number", f64::is_finite).map(Some)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::{Config, tests::expect_error};

    #[test]
    fn a_model_that_is_wrong() {
        for (text, line, words) in [
            ("[models.Flux]\nvae = \"a\"", 1, "'Flux' is no name: write 1 to 64 of a-z, 0-9, - and _"),
            ("[models.\"\"]\nvae = \"a\"", 1, "'' is no name"),
            (&format!("[models.{}]\nvae = \"a\"", "a".repeat(65)), 1, "is no name"),
            ("[models.\"a\\nb\"]\nvae = \"a\"", 1, "'a\\nb' is no name"),
            ("[models]\nflux = \"ae.safetensors\"", 2, "expected a table"),
            ("[models.a]\n", 1, "none of model, vae and transformer"),
            ("[models.a]\ntransformer = []", 2, "expected a path, or the paths of two experts"),
            ("[models.a]\ntransformer = [\"a\", \"b\", \"c\"]", 2, "expected a path, or the paths of two experts"),
            ("[models.a]\nmodel = \"\"", 2, "an empty path: leave the key out"),
            ("[models.a]\nmodel = [\"a\"]", 2, "expected a path"),
            ("[models.a]\nvae = \"a\"\nloras = []", 3, "expected a path, or a list of paths"),
            ("[models.a]\nvae = \"a\"\nloras = \"b\"", 3, "are for a transformer, and there is none"),
            ("[models.a]\ntransformer = 1", 2, "expected a path, or the paths of two experts"),
            ("[models.a]\ntransformer = [\"a\", \"b\"]\nboundary = 1", 3, "expected a number between 0 and 1"),
            ("[models.a]\ntransformer = \"a\"\nfamily = \"sd3\"", 3, "is for a vae, and there is none"),
            (
                "[models.a]\nvae = \"a\"\nscale = 1",
                3,
                "expected one of `model`, `vae`, `transformer`, `text-encoder`, `loras`, `boundary`, `family`, `scaling-factor`, `shift-factor`",
            ),
            (
                "[models.a]\nvae = \"a\"\nfamily = \"flx\"",
                3,
                "unknown family 'flx', expected one of sd, sdxl, sd3, flux",
            ),
            ("[models.a]\nvae = \"a\"\nscaling-factor = 0", 3, "expected a number other than 0"),
            ("[models.a]\nvae = \"a\"\nscaling-factor = \"1\"", 3, "expected a number other than 0"),
            ("[models.a]\nvae = \"a\"\nshift-factor = nan", 3, "expected a number"),
        ] {
            let message = expect_error(text, line);
            assert!(message.contains(words), "{message}");
        }
    }
    #[test]
    fn a_model_is_a_path_where_something_is_there_and_a_name_elsewhere() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tilewright.toml");
        let found = |text: &str| {
            let config = Config::parse(&format!("[models.a]\nmodel = \"{text}\""), &file).unwrap();
            config.models["a"].model.clone().unwrap().path_or_name().to_owned()
        };
        assert_eq!(found("acme/tiny"), Path::new("acme/tiny"));
        std::fs::create_dir_all(folder.path().join("acme/tiny")).unwrap();
        assert_eq!(found("acme/tiny"), folder.path().join("acme/tiny"));
        assert_eq!(found("/acme/tiny"), Path::new("/acme/tiny"));
        // The other parts are paths in any case.
        let text = "[models.a]\nvae = \"v\"\ntransformer = \"t\"\ntext-encoder = [\"c\", \"/d\"]";
        let model = &Config::parse(text, &file).unwrap().models["a"];
        let below = |name: &str| folder.path().join(name);
        assert_eq!((model.vae.clone(), &model.transformer[..]), (Some(below("v")), &[below("t")][..]));
        assert_eq!(model.text_encoder, [below("c"), "/d".into()]);
    }
}
