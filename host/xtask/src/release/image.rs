//! The recipe of a container's image, which is built from the release's folder.

use anyhow::{Context, Result};

use super::{VERSION, commit::Commit, wheels::Wheel};
use crate::wheel::{ENGINE, LIBRARY};

/// The recipe, with places for what is another in each release.
const TEMPLATE: &str = include_str!("Containerfile");

/// The project whose flavour the image's builder chooses.
const TORCH: &str = "torch";

/// The recipe for these wheels.
///
/// # Errors
/// If a wheel is missing, or the engine's needs no PyTorch.
pub fn recipe(wheels: &[Wheel], commit: &Commit) -> Result<String> {
    let find =
        |name: &str| wheels.iter().find(|wheel| wheel.name == name).with_context(|| format!("no wheel of {name}"));
    let (library, engine) = (find(LIBRARY)?, find(ENGINE)?);
    let torch = engine.needs.iter().find(|need| need.name == TORCH);
    let torch = torch.with_context(|| format!("{}: names no {TORCH} that it needs", engine.file))?;
    let places = [
        ("@VERSION@", VERSION),
        ("@COMMIT@", &commit.id),
        ("@LIBRARY@", &library.file),
        ("@ENGINE@", &engine.file),
        ("@TORCH@", &format!("{TORCH}{}", torch.versions)),
        ("@REPOSITORY@", env!("CARGO_PKG_REPOSITORY")),
        ("@LICENSE@", env!("CARGO_PKG_LICENSE")),
    ];
    Ok(places.iter().fold(TEMPLATE.to_owned(), |recipe, (place, text)| recipe.replace(place, text)))
}
