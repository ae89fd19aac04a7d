//! The configured models, opened. They share one store of weights, within one budget for each
//! physical device.

mod loras;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use arc_swap::{ArcSwap, Guard};
use tilewright_config::Config;
use tilewright_engine::{Budget, Machine, Overrides, WeightStore};
use tilewright_models::Family;
use tilewright_pipeline::{LatentMap, Model, ModelIdentity, Parts, SampleModel, TextEncoders};
use tilewright_plan::PolicyIdentity;
use tilewright_policy::FallbackPlanner;
use tilewright_sampling::Convention;
use tilewright_service_api::JobSettings;

pub use self::loras::OpenLora;
use crate::{Error, Result, accept, device::Devices, error::one_line, jobs::StoredJob};

/// A VAE's folder within that of a pipeline.
const VAE: &str = "vae";

/// A configured model: an autoencoder, a transformer, text encoders, or all of them.
#[derive(Debug)]
pub struct OpenModel {
    /// The model's name in the configuration.
    pub name: String,
    /// The autoencoder, which decodes.
    pub vae: Option<Arc<OpenVae>>,
    /// The transformer, which samples.
    pub transformer: Option<SampleModel>,
    /// The LoRAs on it.
    pub loras: Vec<OpenLora>,
    /// The text encoders, which read prompts.
    pub text: Option<Arc<OpenText>>,
    /// The names and digests of its files, once a job has asked for them: LoRAs change none.
    identity: Arc<OnceLock<ModelIdentity>>,
    /// The colours of its latents, once a preview has asked for them; none if they can't be fitted.
    colours: Arc<OnceLock<LatentMap>>,
    parts: Parts,
    configured: tilewright_config::Model,
    /// The same with the LoRAs that were asked for last, the latest first.
    with_loras: Mutex<Vec<Arc<OpenModel>>>,
}

/// The autoencoder of a model.
#[derive(Debug)]
pub struct OpenVae {
    /// The autoencoder's file.
    pub path: PathBuf,
    /// The autoencoder.
    pub model: Model,
}

/// The text encoders of a model.
#[derive(Debug)]
pub struct OpenText {
    /// Their files or folders.
    pub paths: Vec<PathBuf>,
    /// The tokens that T5 reads, if the model says so.
    pub tokens: Option<u32>,
    /// True if one of them is quantized.
    pub quantized: bool,
    /// The store that their weights are leased from.
    weights: WeightStore,
}

impl OpenText {
    /// Opens the encoders: they stay on one thread.
    ///
    /// # Errors
    /// A file has changed since the model was opened.
    pub fn open(&self) -> tilewright_pipeline::Result<TextEncoders> {
        Ok(TextEncoders::open(&self.paths)?.sharing(&self.weights))
    }
}

impl OpenModel {
    /// The parts that a prompt needs on its way to a picture or clip.
    ///
    /// # Errors
    /// One line: the model lacks one.
    pub fn for_prompts(&self) -> std::result::Result<(&OpenText, &SampleModel, &OpenVae), String> {
        let lacks = |part: &str| {
            format!("model: {} has no {part}: prompts need a model, or text-encoder, transformer and vae", self.name)
        };
        let text = self.text.as_deref().ok_or_else(|| lacks("text-encoder"))?;
        let transformer = self.transformer.as_ref().ok_or_else(|| lacks("transformer"))?;
        Ok((text, transformer, self.vae.as_deref().ok_or_else(|| lacks("vae"))?))
    }

    /// The colours of latents, fitted to the autoencoder on first use: call it on the device's own
    /// thread.
    pub fn colours(&self, machine: &Machine, memory_limit: u64) -> Option<&LatentMap> {
        let (vae, transformer) = (self.vae.as_ref()?, self.transformer.as_ref()?);
        if let Some(known) = self.colours.get() {
            return Some(known);
        }
        let fit = || {
            let nobody = PolicyIdentity {
                name: "host".into(),
                version: String::new(),
                digest: String::new(),
                settings: BTreeMap::new(),
            };
            let mut planner = FallbackPlanner::new(nobody, "the colours of previews are fitted without a policy");
            let fitted = LatentMap::fit(machine, transformer, (&vae.model, &vae.path), &mut planner, memory_limit);
            let warn = |error| {
                tracing::warn!(error = one_line(&error), model = self.name, "there are no previews: no colours");
            };
            fitted.map_err(warn).ok()
        };
        // A failure is not kept: the next job may have more memory.
        fit().map(|colours| self.colours.get_or_init(|| colours))
    }

    /// True if its files are as they were when it was opened, and still in their places. Text
    /// encoders are opened for each job.
    fn is_current(&self) -> bool {
        self.vae.as_ref().is_none_or(|vae| vae.model.is_current())
            && self.transformer.as_ref().is_none_or(|transformer| transformer.denoiser.is_current())
    }

    /// The names and digests of its files.
    ///
    /// # Errors
    /// A file can't be read.
    pub fn identity(&self) -> tilewright_pipeline::Result<&ModelIdentity> {
        if let Some(known) = self.identity.get() {
            return Ok(known);
        }
        let found = match &self.transformer {
            Some(transformer) => ModelIdentity::of(&self.name, transformer, &self.parts, None)?,
            None => ModelIdentity { name: self.name.clone(), ..ModelIdentity::default() },
        };
        Ok(self.identity.get_or_init(|| found))
    }

    /// The settings of a job from a prompt that asks for nothing; none if it takes no prompts.
    pub fn usual_settings(&self) -> Option<JobSettings> {
        let (_, transformer, vae) = self.for_prompts().ok()?;
        let mut settings = accept::body_of(transformer.usual_settings().ok()?);
        settings.text_tokens = transformer.text_tokens_of(None, Convention::default()).ok();
        let rate = accept::rate(None, &vae.model.facts().family).ok();
        settings.fps = rate.filter(|_| vae.model.is_video()).map(|rate| rate.to_string());
        Some(settings)
    }

    /// A line about the model's files without the folders that they lie in: callers see no path of
    /// the server.
    pub fn without_folders(&self, line: &str) -> String {
        without_folders(&self.parts, line)
    }

    /// The files of its parts.
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    /// The sigma at which two experts change, if the configuration says it.
    pub fn boundary(&self) -> Option<f64> {
        self.configured.boundary
    }

    /// The files of the transformer.
    pub fn transformer_paths(&self) -> &[PathBuf] {
        &self.parts.transformers
    }
}

impl Drop for OpenVae {
    /// Frees the idle weights of a model that is gone. A job that is at work holds its model, so
    /// that the weights in use have been given back by then.
    fn drop(&mut self) {
        self.model.release();
    }
}

fn without_folders(parts: &Parts, line: &str) -> String {
    let Parts { text_encoders, transformers, vision_encoder, vae, pipeline } = parts;
    let paths = text_encoders.iter().chain(transformers).chain(vision_encoder).chain(vae);
    let folder = |path: &PathBuf| {
        let folder = path.parent().filter(|folder| folder.is_absolute() && folder.parent().is_some())?;
        Some(format!("{}/", folder.display()))
    };
    let mut folders: Vec<String> = paths.filter_map(folder).collect();
    // A file within a pipeline keeps its place there.
    folders.sort_by_key(|folder| std::cmp::Reverse(folder.len()));
    folders.splice(..0, pipeline.iter().filter_map(folder));
    folders.iter().fold(line.to_owned(), |line, folder| line.replace(folder, ""))
}

/// Models by name.
pub type ModelMap = BTreeMap<String, Arc<OpenModel>>;

/// The models in service. A reload replaces all of them at once; jobs at work keep theirs.
#[derive(Debug)]
pub struct Models {
    open: ArcSwap<ModelMap>,
    weights: WeightStore,
    /// Held while a model is opened again: one at a time.
    opening: Mutex<()>,
}

impl Models {
    /// Opens every model that is configured.
    ///
    /// # Errors
    /// A model's file can't be opened as a VAE or a transformer, or its configured family is
    /// unknown.
    pub fn open(config: &Config) -> Result<Self> {
        // `set_budgets` replaces this once the devices are open, before the first job.
        let weights = WeightStore::new(Budget::Last);
        let open = ArcSwap::from_pointee(open_all(config, &ModelMap::new(), &weights)?);
        Ok(Self { open, weights, opening: Mutex::default() })
    }

    /// The model of a job that begins, with its LoRAs, for all of its stages. It is opened again if
    /// its files are others than when it was opened.
    ///
    /// # Errors
    /// One line: a reload has removed it, or what is in the place of its files can't be opened.
    pub fn of_job(&self, stored: &StoredJob) -> std::result::Result<Arc<OpenModel>, String> {
        let name = &stored.job.model;
        let before = self.open.load().get(name).cloned();
        let found = self.refresh(name).map_err(|error| {
            let line = one_line(&error);
            before.map_or_else(|| line.clone(), |before| before.without_folders(&line))
        })?;
        found.ok_or_else(|| format!("model {name} is no longer configured"))?.with_loras(&stored.request.loras)
    }

    /// The model of a request, opened again as that of a job. If that fails, the request is checked
    /// against the one before: its files may be whole again when the job begins.
    pub fn of_request(&self, name: &str) -> Option<Arc<OpenModel>> {
        self.refresh(name).unwrap_or_else(|error| {
            tracing::warn!(model = name, error = one_line(&error), "its files have changed and can't be opened");
            self.open.load().get(name).cloned()
        })
    }

    /// A model, opened again if its files have changed; none if none is configured by the name.
    fn refresh(&self, name: &str) -> Result<Option<Arc<OpenModel>>> {
        let find = || self.open.load().get(name).cloned();
        if let Some(open) = find().filter(|open| open.is_current()) {
            return Ok(Some(open));
        }
        let _opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        // Another job may have been quicker.
        let before = match find() {
            Some(before) if !before.is_current() => before,
            found => return Ok(found),
        };
        tracing::info!(model = name, "its files have changed: it is opened anew");
        let opened = Arc::new(open(name, &before.configured, &self.weights)?);
        self.open.rcu(|models| {
            let mut models = ModelMap::clone(models);
            // A reload may have put another one there meanwhile.
            if let Some(place) = models.get_mut(name).filter(|place| Arc::ptr_eq(place, &before)) {
                *place = opened.clone();
            }
            models
        });
        Ok(Some(opened))
    }

    /// The weights of all models.
    pub fn weights(&self) -> &WeightStore {
        &self.weights
    }

    /// Sets the budget of each physical device. Configured devices on the same one, for example two
    /// on the processor, share weights: their `weights-memory` is added up, and one without a value
    /// adds nothing. If none has a value, weights have what the largest memory limit leaves of the
    /// device's memory, an eighth of it at least and half of it at most, and what the limit grants
    /// and no job needs.
    pub fn set_budgets(&self, config: &Config, devices: &Devices) {
        for device in devices.iter() {
            let physical = device.machine.device;
            let sharing = || devices.iter().filter(|other| other.machine.device == physical);
            let given = sharing().filter_map(|other| config.devices().get(&other.name)?.weights_memory_bytes);
            let given = given.reduce(u64::saturating_add);
            let limit = sharing().map(|other| other.memory_limit).max().unwrap_or(0);
            let total = device.facts.total_bytes;
            let beside = total.saturating_sub(limit).clamp(total / 8, total / 2);
            let budget = given.map_or(Budget::Room { own: beside, lent: limit }, Budget::Bytes);
            self.weights.set_budget(physical, budget);
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
    /// A model's file can't be opened as a VAE or a transformer, or its configured family is
    /// unknown.
    pub fn reopen(&self, config: &Config) -> Result<ModelMap> {
        open_all(config, &self.by_name(), &self.weights)
    }

    /// Puts models in service in place of all others. The weights of a model that is gone are freed
    /// when its last job ends.
    pub fn replace(&self, models: ModelMap) {
        self.open.store(Arc::new(models));
    }
}

/// The parts of a configured model: those that are named, and the others from its `model`, as
/// `tilewright generate` finds them. The VAE is a file.
fn find_parts(configured: &tilewright_config::Model) -> tilewright_pipeline::Result<Parts> {
    let named = Parts {
        text_encoders: configured.text_encoder.clone(),
        transformers: configured.transformer.clone(),
        vision_encoder: None,
        vae: configured.vae.clone(),
        pipeline: None,
    };
    let mut parts = match &configured.model {
        None => named,
        Some(model) => {
            let (parts, found) = named.find(Some(model.path_or_name()), &[], false)?;
            found.iter().for_each(|line| tracing::info!("{}: {line}", model.path_or_name().display()));
            parts
        }
    };
    if let Some(vae) = &mut parts.vae {
        *vae = tilewright_models::find_part(vae, &[VAE]).map_err(tilewright_models::Error::from)?;
    }
    Ok(parts)
}

fn open_all(config: &Config, before: &ModelMap, weights: &WeightStore) -> Result<ModelMap> {
    let models = config.models.iter().map(|(name, configured)| {
        let same = before.get(name).filter(|known| known.configured == *configured);
        let opened = match same {
            Some(same) => same.clone(),
            None => Arc::new(open(name, configured, weights)?),
        };
        Ok((name.clone(), opened))
    });
    models.collect()
}

/// The parts of a configured model, opened.
pub struct OpenParts {
    /// Their paths.
    pub parts: Parts,
    /// The autoencoder.
    pub vae: Option<Model>,
    /// The transformer.
    pub transformer: Option<SampleModel>,
    /// The text encoders, and the tokens that they read, if the model says so.
    pub text: Option<(TextEncoders, Option<u32>)>,
}

/// The reason that a model's parts can't be served.
#[derive(Debug)]
pub struct PartsRefused {
    /// The key of the configuration that is to blame.
    pub key: &'static str,
    /// The fault.
    pub error: Box<Error>,
}

/// Opens the parts of a configured model.
///
/// # Errors
/// There is no such model, or a part of it is unsound or does not go with the others: with the key
/// that is to blame.
pub fn open_parts(name: &str, configured: &tilewright_config::Model) -> std::result::Result<OpenParts, PartsRefused> {
    let wrong = |key, error| PartsRefused { key, error: Box::new(error) };
    let refused = |key| move |reason| wrong(key, Error::Model { model: name.to_owned(), reason: Box::new(reason) });
    let parts = find_parts(configured).map_err(refused("model"))?;
    let vae = parts.vae.as_ref().map(|path| {
        let overrides = overrides(name, path, configured).map_err(|error| wrong("family", error))?;
        Model::open(path, overrides).map_err(|error| refused(to_blame(path, overrides))(error))
    });
    let vae = vae.transpose()?;
    let transformer = match parts.transformers.is_empty() {
        true => None,
        false => Some(SampleModel::of_parts(&parts, configured.boundary).map_err(refused("transformer"))?),
    };
    let mut text = None;
    if !parts.text_encoders.is_empty() {
        // Each prompt would be refused.
        if let (Some(transformer), Some(vae), Some(path)) = (&transformer, &vae, &parts.vae) {
            LatentMap::check(transformer, (vae, path)).map_err(refused("vae"))?;
        }
        let encoders = TextEncoders::open(&parts.text_encoders).map_err(refused("text-encoder"))?;
        let mut tokens = None;
        if let Some(transformer) = &transformer {
            encoders.check(transformer).map_err(refused("text-encoder"))?;
            tokens = transformer.text_tokens().map_err(refused("text-encoder"))?;
        }
        text = Some((encoders, tokens));
    }
    Ok(OpenParts { parts, vae, transformer, text })
}

/// The key that is to blame for a VAE that does not open: a setting, if it opens without.
fn to_blame(path: &Path, overrides: Overrides) -> &'static str {
    let given = [
        ("family", overrides.family.is_some()),
        ("scaling-factor", overrides.scaling.is_some()),
        ("shift-factor", overrides.shift.is_some()),
    ];
    let given = given.iter().find(|(_, is_given)| *is_given).map(|(key, _)| *key);
    given.filter(|_| Model::open(path, Overrides::default()).is_ok()).unwrap_or("vae")
}

fn open(name: &str, configured: &tilewright_config::Model, weights: &WeightStore) -> Result<OpenModel> {
    let OpenParts { parts, vae, transformer, text } = open_parts(name, configured).map_err(|refused| *refused.error)?;
    let vae = vae.map(|model| model.sharing(weights));
    let transformer = transformer.map(|transformer| transformer.sharing(weights));
    // The transformer's latents are those of the model's own vae.
    let transformer = match &vae {
        Some(vae) => transformer.map(|transformer| transformer.scaled_for(vae)),
        None => transformer,
    };
    let text = text.map(|(encoders, tokens)| {
        let (paths, quantized) = (parts.text_encoders.clone(), encoders.is_quantized());
        Arc::new(OpenText { paths, tokens, quantized, weights: weights.clone() })
    });
    let vae = vae.zip(parts.vae.clone()).map(|(model, path)| Arc::new(OpenVae { path, model }));
    Ok(OpenModel {
        name: name.to_owned(),
        vae,
        transformer,
        loras: Vec::new(),
        text,
        identity: Arc::default(),
        colours: Arc::default(),
        parts,
        configured: configured.clone(),
        with_loras: Mutex::default(),
    })
}

fn overrides(name: &str, path: &Path, configured: &tilewright_config::Model) -> Result<Overrides> {
    let family = configured.family.as_deref().map(str::parse::<Family>).transpose();
    let family = family.map_err(|error| Error::Family {
        path: path.to_owned(),
        model: name.to_owned(),
        reason: error.to_string(),
    })?;
    Ok(Overrides { family, scaling: configured.scaling_factor, shift: configured.shift_factor })
}
