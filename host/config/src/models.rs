//! `[models.NAME]`: the autoencoders that jobs are decoded with, and the transformers that samples
//! are made by.

use std::path::PathBuf;

use serde::{Deserialize, Deserializer};

use crate::values;

/// The families whose files may not tell which one it is.
const FAMILIES: [&str; 4] = ["sd", "sdxl", "sd3", "flux"];

/// `[models.NAME]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table")]
pub struct Model {
    /// The autoencoder's file. Its contents are not checked here.
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
    use crate::tests::expect_error;

    #[test]
    fn a_model_that_is_wrong() {
        for (text, line, words) in [
            ("[models.Flux]\nvae = \"a\"", 1, "'Flux' is no name: write 1 to 64 of a-z, 0-9, - and _"),
            ("[models.\"\"]\nvae = \"a\"", 1, "'' is no name"),
            (&format!("[models.{}]\nvae = \"a\"", "a".repeat(65)), 1, "is no name"),
            ("[models.\"a\\nb\"]\nvae = \"a\"", 1, "'a\\nb' is no name"),
            ("[models]\nflux = \"ae.safetensors\"", 2, "expected a table"),
            ("[models.a]\n", 1, "neither a vae nor a transformer"),
            ("[models.a]\ntransformer = []", 2, "expected a path, or the paths of two experts"),
            ("[models.a]\ntransformer = [\"a\", \"b\", \"c\"]", 2, "expected a path, or the paths of two experts"),
            ("[models.a]\ntransformer = 1", 2, "expected a path, or the paths of two experts"),
            ("[models.a]\ntransformer = [\"a\", \"b\"]\nboundary = 1", 3, "expected a number between 0 and 1"),
            ("[models.a]\ntransformer = \"a\"\nfamily = \"sd3\"", 3, "is for a vae, and there is none"),
            (
                "[models.a]\nvae = \"a\"\nscale = 1",
                3,
                "expected one of `vae`, `transformer`, `text-encoder`, `boundary`, `family`, `scaling-factor`, `shift-factor`",
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
}
