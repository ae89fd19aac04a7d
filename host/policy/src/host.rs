//! The way in: a host loads policies, says what they are, and puts them to work.

use std::{collections::BTreeMap, io::Read, path::Path, sync::Arc, time::Duration};

use serde::Serialize;
use tilewright_plan::{PolicyIdentity, Stage, Value};

use crate::{
    PolicyError,
    cache::{Cache, CacheDir, compiler},
    guest::clean,
    limits::Limits,
    load::{self, Fitted, Kind},
    patience::Patience,
    probe::Probe,
    runtime::{CallFailure, Live, Policy},
    sandbox::Sandbox,
    settings::{self, Setting},
    shipped,
};

/// The most settings that a policy may declare.
const SETTINGS: usize = 64;

/// Loads policies into one sandbox.
pub struct PolicyHost {
    pub(crate) sandbox: Arc<Sandbox>,
    pub(crate) limits: Limits,
    pub(crate) cache: Option<Cache>,
}

/// What a policy says of itself.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Description {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// What it does, in a line.
    pub summary: String,
    /// The stages that it answers; the host decides all others without asking.
    pub stages: Vec<Stage>,
    /// Its settings.
    pub settings: Vec<Setting>,
}

/// Everything there is to know of a policy without putting it to work.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Inspection {
    /// What it says of itself.
    #[serde(flatten)]
    pub description: Description,
    /// `sha256:` and the digest of the file, in hexadecimal.
    pub digest: String,
    /// Bytes of the file.
    pub size_bytes: u64,
    /// What the file holds.
    pub kind: Kind,
    /// The version of the contract that it speaks.
    pub contract: &'static str,
    /// What it asks of the host.
    pub imports: Vec<String>,
    /// What it answers.
    pub exports: Vec<String>,
    /// What it may use.
    pub limits: Limits,
    /// Fuel that describing itself took.
    pub describe_fuel: u64,
}

/// A policy that was loaded and has described itself; it is put to work by [`LoadedPolicy::configure`], any number of times.
#[derive(Clone)]
pub struct LoadedPolicy {
    loaded: Arc<Loaded>,
    inspection: Inspection,
    ships: bool,
    patience: Option<Arc<Patience>>,
}

/// What every instance of a policy is made from.
pub(crate) struct Loaded {
    pub sandbox: Arc<Sandbox>,
    pub limits: Limits,
    pub fitted: Fitted,
    /// The file or name, for errors.
    origin: String,
}

impl Loaded {
    pub fn failed(&self, during: &'static str, failure: CallFailure) -> PolicyError {
        PolicyError::failed(&self.origin, &self.limits, during, failure.reason, &failure.detail)
    }
}

impl PolicyHost {
    /// Sets the sandbox up.
    ///
    /// # Errors
    /// [`PolicyError::Sandbox`] where the machine does not let it. A cache that can't be used is no error: the log says so.
    pub fn new(limits: Limits, cache: &CacheDir) -> Result<Self, PolicyError> {
        Ok(Self { sandbox: Arc::new(Sandbox::new(&limits)?), limits, cache: Cache::open(cache) })
    }

    /// Loads what a user asked for: a shipped policy by its name, or a file, told apart by the ending or a path separator.
    ///
    /// # Errors
    /// Any [`PolicyError`] of a policy that can't be loaded.
    pub fn find(&self, name_or_file: &str) -> Result<LoadedPolicy, PolicyError> {
        match Self::names_file(name_or_file) {
            true => self.load_file(Path::new(name_or_file)),
            false => self.load_shipped(name_or_file),
        }
    }

    /// Whether a user's word for a policy means a file, rather than one that ships.
    pub fn names_file(name_or_file: &str) -> bool {
        name_or_file.ends_with(".wasm") || name_or_file.contains(['/', '\\'])
    }

    /// Loads one of the policies that ship.
    ///
    /// # Errors
    /// [`PolicyError::Unknown`] for any other name.
    pub fn load_shipped(&self, name: &str) -> Result<LoadedPolicy, PolicyError> {
        match shipped::POLICIES.iter().find(|(known, _)| *known == name) {
            Some((name, bytes)) => Ok(LoadedPolicy { ships: true, ..self.load(name, bytes)? }),
            None => Err(PolicyError::Unknown { name: name.into(), known: shipped::names().collect() }),
        }
    }

    /// Loads a policy from a file.
    ///
    /// # Errors
    /// Any [`PolicyError`] of a policy that can't be loaded.
    pub fn load_file(&self, path: &Path) -> Result<LoadedPolicy, PolicyError> {
        self.load(&path.display().to_string(), &self.read_file(path)?)
    }

    /// Reads a policy's file without loading it, for those who look at the bytes first and load the same ones.
    ///
    /// # Errors
    /// [`PolicyError::Unreadable`] or [`PolicyError::TooLarge`].
    pub fn read_file(&self, path: &Path) -> Result<Vec<u8>, PolicyError> {
        let unreadable = |source| PolicyError::Unreadable { path: path.into(), source };
        let file = tilewright_files::open(path).map_err(unreadable)?;
        let metadata = file.metadata().map_err(unreadable)?;
        let too_large = |bytes| {
            let policy = path.display().to_string();
            PolicyError::TooLarge { policy, bytes, most: self.limits.file_bytes }
        };
        let most = self.limits.file_bytes as u64;
        if metadata.len() > most {
            return Err(too_large(metadata.len()));
        }
        let mut bytes = Vec::new();
        file.take(most + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        // It may have grown since.
        if bytes.len() as u64 > most { Err(too_large(bytes.len() as u64)) } else { Ok(bytes) }
    }

    /// Removes all entries of the module with this digest from a cache, under whatever limits it was compiled.
    pub fn forget(cache: &CacheDir, digest: &str) {
        if let Some(cache) = Cache::open(cache) {
            cache.forget(digest);
        }
    }

    /// A text kept beside the compiled code under this name; none without a cache, or if its entry is damaged.
    pub fn kept_text(&self, name: &str) -> Option<String> {
        self.cache.as_ref()?.text(name)
    }

    /// Keeps a text beside the compiled code, if there is a cache. Names begin with a module's digest in hexadecimal:
    /// [`PolicyHost::forget`] removes the text with the module's code.
    pub fn keep_text(&self, name: &str, text: &str) {
        if let Some(cache) = &self.cache {
            cache.keep_text(name, text);
        }
    }

    /// A number that tells versions and configurations of the compiler apart.
    pub fn compiler(&self) -> u64 {
        compiler(&self.sandbox.engine)
    }

    /// Loads a policy from its bytes; `origin` names it in errors.
    ///
    /// # Errors
    /// Any [`PolicyError`] of a policy that can't be loaded.
    pub fn load(&self, origin: &str, bytes: &[u8]) -> Result<LoadedPolicy, PolicyError> {
        let fitted = load::load(origin, bytes, &self.sandbox, &self.limits, self.cache.as_ref())?;
        let loaded = Loaded { sandbox: self.sandbox.clone(), limits: self.limits, fitted, origin: origin.into() };
        let mut live = Live::new(&loaded).map_err(|failure| loaded.failed(PolicyError::START, failure))?;
        let (described, describe_fuel) = live.call(&loaded, |guest, store| guest.describe(store));
        let described = described.map_err(|failure| loaded.failed("describe", failure))?;
        let description = described_as(described, &loaded.fitted.stages, &self.limits)
            .map_err(|detail| PolicyError::Description { policy: origin.into(), detail })?;
        let inspection = Inspection {
            description,
            digest: loaded.fitted.digest.clone(),
            size_bytes: bytes.len() as u64,
            kind: loaded.fitted.kind,
            contract: loaded.fitted.world.version,
            imports: loaded.fitted.imports.clone(),
            exports: loaded.fitted.exports.clone(),
            limits: self.limits,
            describe_fuel,
        };
        Ok(LoadedPolicy { loaded: Arc::new(loaded), inspection, ships: false, patience: None })
    }
}

impl LoadedPolicy {
    /// What the policy says of itself.
    pub fn description(&self) -> &Description {
        &self.inspection.description
    }

    /// Everything there is to know of it.
    pub fn inspection(&self) -> &Inspection {
        &self.inspection
    }

    /// Whether it was loaded as one that ships, which passed its gate when the program was built. What a module is called says nothing of that.
    pub fn ships(&self) -> bool {
        self.ships
    }

    /// The file or name that it was loaded from.
    pub fn origin(&self) -> &str {
        &self.loaded.origin
    }

    /// The same policy, which may take so much processor time in all that is asked of it and of its copies from now on. Once that is spent it
    /// is no longer asked.
    #[must_use]
    pub fn within(self, most: Duration) -> Self {
        Self { patience: Some(Arc::new(Patience::new(most))), ..self }
    }

    /// Makes sure that [`LoadedPolicy::within`]'s time was enough, since answers after that are the host's own.
    ///
    /// # Errors
    /// [`PolicyError::TooSlow`].
    pub fn check_patience(&self) -> Result<(), PolicyError> {
        match self.patience.as_ref().filter(|patience| patience.is_spent()) {
            Some(patience) => {
                Err(PolicyError::TooSlow { policy: self.description().name.clone(), most: patience.most })
            }
            None => Ok(()),
        }
    }

    /// Puts the policy to work with these settings, as `KEY` and `VALUE`; the others keep their defaults.
    ///
    /// # Errors
    /// [`PolicyError::UnknownSetting`], [`PolicyError::SettingType`], what the policy itself refuses, or its failure.
    pub fn configure(&self, given: &[(String, String)]) -> Result<Policy, PolicyError> {
        let description = self.description();
        let settings = self.settings(given)?;
        let identity = PolicyIdentity {
            name: description.name.clone(),
            version: description.version.clone(),
            digest: self.inspection.digest.clone(),
            settings,
        };
        let stages = description.stages.clone();
        Policy::new(self.loaded.clone(), in_order(&identity.settings), identity, stages, self.patience.clone())
    }

    /// A fresh instance to take measurements of, with these settings to hand over.
    ///
    /// # Errors
    /// As [`LoadedPolicy::configure`], but for what the policy says to the settings, which it is not asked yet.
    pub fn probe(&self, given: &[(String, String)]) -> Result<Probe, PolicyError> {
        let settings = in_order(&self.settings(given)?);
        Patience::count(self.patience.as_deref(), || Probe::new(self.loaded.clone(), settings))
    }

    /// Bytes of the compiled code and its tables, as they lie in memory, once for all instances.
    pub fn code_bytes(&self) -> usize {
        self.loaded.fitted.code_bytes
    }

    /// Every setting with its value.
    fn settings(&self, given: &[(String, String)]) -> Result<BTreeMap<String, Value>, PolicyError> {
        let Description { name, settings, .. } = self.description();
        settings::resolve(name, settings, given)
    }
}

/// Settings as a guest takes them.
fn in_order(settings: &BTreeMap<String, Value>) -> Vec<(String, Value)> {
    settings.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Checks what a policy says of itself: its names end up in tables, records and on command lines. Of
/// the stages that it names, those count whose interfaces it exports.
fn described_as(said: Description, exported: &[Stage], limits: &Limits) -> Result<Description, String> {
    let name = |what: &str, text: String| match text.chars().count() {
        0 => Err(format!("an empty {what}")),
        1..=64 if text.chars().all(|c| c.is_ascii_graphic()) => Ok(text),
        1..=64 => Err(format!("a {what} that is not of printable ASCII without blanks")),
        _ => Err(format!("a {what} longer than 64 characters")),
    };
    if said.settings.len() > SETTINGS {
        return Err(format!("{} settings, of {SETTINGS} allowed", said.settings.len()));
    }
    let mut settings: Vec<Setting> = Vec::with_capacity(said.settings.len());
    for setting in said.settings {
        let setting = Setting {
            name: name("setting's name", setting.name)?,
            summary: clean(setting.summary, limits.text_chars),
            default: match setting.default {
                Value::Number(number) if !number.is_finite() => {
                    return Err("a setting whose default is not a finite number".into());
                }
                Value::Text(text) => Value::Text(clean(text, limits.text_chars)),
                plain => plain,
            },
        };
        if setting.name.contains('=') || settings.iter().any(|known| known.name == setting.name) {
            return Err(format!("a setting named '{}', which is taken or can't be written", setting.name));
        }
        settings.push(setting);
    }
    let stages: Vec<Stage> = exported.iter().copied().filter(|stage| said.stages.contains(stage)).collect();
    if stages.is_empty() {
        let names: Vec<&str> = exported.iter().map(|stage| stage.name()).collect();
        return Err(format!("no stage that it answers, of {}", names.join(" and ")));
    }
    Ok(Description {
        name: name("name", said.name)?,
        version: name("version", said.version)?,
        summary: clean(said.summary, limits.text_chars),
        stages,
        settings,
    })
}
