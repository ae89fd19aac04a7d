//! The configured models, opened. They share one store of weights, within a budget for each
//! hardware.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use arc_swap::{ArcSwap, Guard};
use tilewright_config::Config;
use tilewright_engine::{Budget, Overrides, WeightStore};
use tilewright_models::Family;
use tilewright_pipeline::Model;

use crate::{Error, Result, device::Devices};

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
pub struct Models {
    open: ArcSwap<ModelMap>,
    weights: WeightStore,
}

impl Models {
    /// Opens every model that is configured.
    ///
    /// # Errors
    /// A file does not serve.
    pub fn open(config: &Config) -> Result<Self> {
        // Budgets come with the devices, before the first job.
        let weights = WeightStore::new(Budget::Last);
        let open = ArcSwap::from_pointee(open_all(config, &ModelMap::new(), &weights)?);
        Ok(Self { open, weights })
    }

    /// The weights of all models.
    pub fn weights(&self) -> &WeightStore {
        &self.weights
    }

    /// Sets the budget of each hardware. Devices on the same one, such as two of the processor,
    /// share their weights, and what the configuration gives them adds up; by default the budget is
    /// half of the hardware's memory.
    pub fn set_budgets(&self, config: &Config, devices: &Devices) {
        for device in devices.iter() {
            let hardware = device.machine.device;
            let sharing = devices.iter().filter(|other| other.machine.device == hardware);
            let given = sharing.filter_map(|other| config.devices().get(&other.name)?.weights_memory_bytes);
            let given = given.reduce(u64::saturating_add);
            self.weights.set_budget(hardware, Budget::Bytes(given.unwrap_or(device.facts.total_bytes / 2)));
        }
    }

    /// The models by name.
    pub fn by_name(&self) -> Guard<Arc<ModelMap>> {
        self.open.load()
    }

    /// Opens the models of a new configuration, for [`Models::replace`]. A model that is open and
    /// configured as before stays as it is.
    ///
    /// # Errors
    /// A file does not serve.
    pub fn reopen(&self, config: &Config) -> Result<ModelMap> {
        open_all(config, &self.by_name(), &self.weights)
    }

    /// Puts models in service in place of all others, whose idle weights are freed.
    pub fn replace(&self, models: ModelMap) {
        let before = self.open.swap(Arc::new(models));
        let after = self.by_name();
        let is_gone = |model: &&Arc<OpenModel>| !after.values().any(|other| Arc::ptr_eq(model, other));
        for gone in before.values().filter(is_gone) {
            gone.model.release();
        }
    }
}

fn open_all(config: &Config, before: &ModelMap, weights: &WeightStore) -> Result<ModelMap> {
    let models = config.models.iter().map(|(name, configured)| {
        if let Some(same) = before.get(name).filter(|known| known.configured == *configured) {
            return Ok((name.clone(), same.clone()));
        }
        let model = Model::open(&configured.vae, overrides(name, configured)?)?.sharing(weights);
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
