//! The configured models, opened. Their weights stay loaded in the types that the last job of each
//! had them in.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use arc_swap::{ArcSwap, Guard};
use tilewright_config::Config;
use tilewright_engine::Overrides;
use tilewright_models::Family;
use tilewright_pipeline::Model;

use crate::{Error, Result};

/// A configured model.
#[derive(Debug)]
pub struct OpenModel {
    /// The model's name in the configuration.
    pub name: String,
    /// The model's file.
    pub path: PathBuf,
    /// The autoencoder.
    pub model: Model,
    configured: tilewright_config::Model,
}

/// Models by name.
pub type ModelMap = BTreeMap<String, Arc<OpenModel>>;

/// The models in service. A reload replaces all of them at once; jobs at work keep theirs.
#[derive(Debug)]
pub struct Models(ArcSwap<ModelMap>);

impl Models {
    /// Opens every model that is configured.
    ///
    /// # Errors
    /// A file does not serve.
    pub fn open(config: &Config) -> Result<Self> {
        Ok(Self(ArcSwap::from_pointee(open_all(config, &ModelMap::new())?)))
    }

    /// The models by name.
    pub fn by_name(&self) -> Guard<Arc<ModelMap>> {
        self.0.load()
    }

    /// Opens the models of a new configuration, for [`Models::replace`]. A model that is open and
    /// configured as before stays as it is.
    ///
    /// # Errors
    /// A file does not serve.
    pub fn reopen(&self, config: &Config) -> Result<ModelMap> {
        open_all(config, &self.by_name())
    }

    /// Puts models in service in place of all others.
    pub fn replace(&self, models: ModelMap) {
        self.0.store(Arc::new(models));
    }
}

fn open_all(config: &Config, before: &ModelMap) -> Result<ModelMap> {
    let models = config.models.iter().map(|(name, configured)| {
        if let Some(same) = before.get(name).filter(|known| known.configured == *configured) {
            return Ok((name.clone(), same.clone()));
        }
        let model = Model::open(&configured.vae, overrides(name, configured)?)?;
        let opened =
            OpenModel { name: name.clone(), path: configured.vae.clone(), model, configured: configured.clone() };
        Ok((name.clone(), Arc::new(opened)))
    });
    models.collect()
}

fn overrides(name: &str, configured: &tilewright_config::Model) -> Result<Overrides> {
    let family = configured.family.as_deref().map(str::parse::<Family>).transpose();
    let family = family.map_err(|error| Error::Family {
        path: configured.vae.clone(),
        model: name.to_owned(),
        reason: error.to_string(),
    })?;
    Ok(Overrides { family, scaling: configured.scaling_factor, shift: configured.shift_factor })
}
