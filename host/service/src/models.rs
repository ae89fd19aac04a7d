//! The configured models, opened: their weights stay loaded in the types that the last job of each had them in.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use tilewright_config::Config;
use tilewright_decode::Model;
use tilewright_engine::Overrides;
use tilewright_models::Family;

use crate::{Error, Result};

/// A configured model.
#[derive(Debug)]
pub struct Opened {
    /// Its name.
    pub name: String,
    /// Its file.
    pub path: PathBuf,
    /// The autoencoder.
    pub model: Model,
    configured: tilewright_config::Model,
}

/// By name.
pub type Models = BTreeMap<String, Arc<Opened>>;

/// Opens every model that is configured; those that were open and are configured as before stay as they are.
///
/// # Errors
/// A file does not serve.
pub fn open(config: &Config, before: &Models) -> Result<Models> {
    let models = config.models.iter().map(|(name, configured)| {
        if let Some(same) = before.get(name).filter(|known| known.configured == *configured) {
            return Ok((name.clone(), same.clone()));
        }
        let model = Model::open(&configured.vae, overrides(name, configured)?)?;
        let opened = Opened { name: name.clone(), path: configured.vae.clone(), model, configured: configured.clone() };
        Ok((name.clone(), Arc::new(opened)))
    });
    models.collect()
}

fn overrides(name: &str, configured: &tilewright_config::Model) -> Result<Overrides> {
    let family = configured.family.as_deref().map(str::parse::<Family>).transpose();
    let family = family.map_err(|error| Error::Credential {
        path: configured.vae.clone(),
        reason: format!("[models.{name}] family: {error}"),
    })?;
    Ok(Overrides { family, scaling: configured.scaling_factor, shift: configured.shift_factor })
}
