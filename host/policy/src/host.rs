//! The entry point: a host loads policies, describes them, and puts them to work.

use std::{collections::BTreeMap, io::ErrorKind, path::Path, sync::Arc, time::Duration};

use serde::Serialize;
use tilewright_plan::{PolicyIdentity, Stage, Value};

use crate::{
    PolicyError,
    cache::{Cache, CacheDir, compiler},
    clock::{Clock, MachineClock},
    error::Fault,
    guest::clean,
    limits::Limits,
    load::{self, LinkedComponent, ModuleKind},
    probe::Probe,
    runtime::{CallFailure, Policy, RunningInstance},
    sandbox::Sandbox,
    settings::{self, Setting},
    shipped,
    time_budget::TimeBudget,
};

/// The most settings that a policy may declare.
const SETTINGS: usize = 64;

/// Loads policies into one sandbox.
pub struct PolicyHost {
    pub(crate) sandbox: Arc<Sandbox>,
    pub(crate) limits: Limits,
    pub(crate) cache: Option<Cache>,
}

/// A policy's description of itself.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Description {
    /// The policy's name.
    pub name: String,
    /// The policy's version.
    pub version: String,
    /// The policy's purpose, in a line.
    pub summary: String,
    /// The stages that it answers; the host decides all others without asking.
    pub stages: Vec<Stage>,
    /// The policy's settings.
    pub settings: Vec<Setting>,
}

/// Everything known about a policy before it is put to work.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Inspection {
    /// The policy's description of itself.
    #[serde(flatten)]
    pub description: Description,
    /// `sha256:` and the digest of the file, in hexadecimal.
    pub digest: String,
    /// Bytes of the file.
    pub size_bytes: u64,
    /// The kind of file.
    pub kind: ModuleKind,
    /// The version of the contract that it speaks.
    pub contract: &'static str,
    /// The interfaces that it imports.
    pub imports: Vec<String>,
    /// The interfaces that it exports.
    pub exports: Vec<String>,
    /// The policy's limits.
    pub limits: Limits,
    /// Fuel used by `describe`.
    pub describe_fuel: u64,
}

/// A policy that was loaded and has described itself; [`LoadedPolicy::configure`] puts it to work,
/// any number of times.
#[derive(Clone)]
pub struct LoadedPolicy {
    loaded: Arc<PolicyParts>,
    inspection: Inspection,
    ships: bool,
    time_budget: Option<Arc<TimeBudget>>,
}

/// The parts that every instance of a policy is made from.
pub(crate) struct PolicyParts {
    pub sandbox: Arc<Sandbox>,
    pub limits: Limits,
    pub linked: LinkedComponent,
    /// The file or name, for errors.
    origin: String,
}

impl PolicyParts {
    pub fn describe_failure(&self, during: &'static str, failure: CallFailure) -> PolicyError {
        PolicyError::from_failure(&self.origin, &self.limits, during, failure.reason, &failure.detail)
    }
}

impl PolicyHost {
    /// Sets up the sandbox.
    ///
    /// # Errors
    /// [`PolicyError::Sandbox`] if the machine does not allow it. A cache that can't be used is no
    /// error: the log says so.
    pub fn new(limits: Limits, cache: &CacheDir) -> Result<Self, PolicyError> {
        Self::with_clock(limits, cache, Arc::new(MachineClock))
    }

    /// The same with other clocks than the machine's, for tests: all limits of time on calls are
    /// those clocks', but for compiling.
    ///
    /// # Errors
    /// As [`PolicyHost::new`].
    pub fn with_clock(limits: Limits, cache: &CacheDir, clock: Arc<dyn Clock>) -> Result<Self, PolicyError> {
        Ok(Self { sandbox: Arc::new(Sandbox::new(&limits, clock)?), limits, cache: Cache::open(cache) })
    }

    /// Loads a policy by a user's word: a shipped policy by its name, or a file, recognised by its
    /// ending or a path separator.
    ///
    /// # Errors
    /// Any [`PolicyError`] of a policy that can't be loaded.
    pub fn find(&self, name_or_file: &str) -> Result<LoadedPolicy, PolicyError> {
        match Self::names_file(name_or_file) {
            true => self.load_file(Path::new(name_or_file)),
            false => self.load_shipped(name_or_file),
        }
    }

    /// True if a user's word for a policy means a file, not one that ships.
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

    /// Reads a policy's file without loading it, for callers that examine the bytes first and load
    /// the same ones.
    ///
    /// # Errors
    /// [`PolicyError::Unreadable`] or [`PolicyError::TooLarge`].
    pub fn read_file(&self, path: &Path) -> Result<Vec<u8>, PolicyError> {
        let most = self.limits.file_bytes;
        tilewright_files::read(path, most as u64).map_err(|source| match source.kind() {
            ErrorKind::FileTooLarge => {
                let bytes = path.metadata().map_or(most as u64 + 1, |metadata| metadata.len());
                PolicyError::TooLarge { policy: path.display().to_string(), bytes, most }
            }
            _ => PolicyError::Unreadable { path: path.into(), source },
        })
    }

    /// Removes all entries of the module with this digest from a cache, under whatever limits it
    /// was compiled.
    pub fn forget(cache: &CacheDir, digest: &str) {
        if let Some(cache) = Cache::open(cache) {
            cache.forget(digest);
        }
    }

    /// A text cached beside the compiled code under this name; `None` without a cache, or if its
    /// entry is damaged.
    pub fn cached_text(&self, name: &str) -> Option<String> {
        self.cache.as_ref()?.text(name)
    }

    /// Caches a text beside the compiled code, if there is a cache. Names begin with a module's
    /// digest in hexadecimal: [`PolicyHost::forget`] removes the text with the module's code.
    pub fn cache_text(&self, name: &str, text: &str) {
        if let Some(cache) = &self.cache {
            cache.keep_text(name, text);
        }
    }

    /// A number that differs between versions and configurations of the compiler.
    pub fn compiler(&self) -> u64 {
        compiler(&self.sandbox.engine)
    }

    /// Loads a policy from its bytes; `origin` names it in errors.
    ///
    /// # Errors
    /// Any [`PolicyError`] of a policy that can't be loaded.
    pub fn load(&self, origin: &str, bytes: &[u8]) -> Result<LoadedPolicy, PolicyError> {
        let linked = load::load(origin, bytes, &self.sandbox, &self.limits, self.cache.as_ref())?;
        let loaded = PolicyParts { sandbox: self.sandbox.clone(), limits: self.limits, linked, origin: origin.into() };
        let mut live =
            RunningInstance::new(&loaded).map_err(|failure| loaded.describe_failure(PolicyError::START, failure))?;
        live.check_types().map_err(|error| load::broken(origin, &error.to_string(), Fault::Other))?;
        let (described, describe_fuel) = live.call(&loaded, |guest, store| guest.describe(store));
        let described = described.map_err(|failure| loaded.describe_failure("describe", failure))?;
        let description = check_description(described, &loaded.linked.stages, &self.limits)
            .map_err(|detail| PolicyError::Description { policy: origin.into(), detail })?;
        let inspection = Inspection {
            description,
            digest: loaded.linked.digest.clone(),
            size_bytes: bytes.len() as u64,
            kind: loaded.linked.kind,
            contract: loaded.linked.world.version,
            imports: loaded.linked.imports.clone(),
            exports: loaded.linked.exports.clone(),
            limits: self.limits,
            describe_fuel,
        };
        Ok(LoadedPolicy { loaded: Arc::new(loaded), inspection, ships: false, time_budget: None })
    }
}

impl LoadedPolicy {
    /// The policy's description of itself.
    pub fn description(&self) -> &Description {
        &self.inspection.description
    }

    /// Everything known about it.
    pub fn inspection(&self) -> &Inspection {
        &self.inspection
    }

    /// True if it was loaded as a shipped policy, which passed its gate when the program was built.
    /// A module's name proves nothing about that.
    pub fn ships(&self) -> bool {
        self.ships
    }

    /// The file or name that it was loaded from.
    pub fn origin(&self) -> &str {
        &self.loaded.origin
    }

    /// The same policy with a budget of processor time for all calls of it and of its copies from
    /// now on. After that it is no longer asked.
    #[must_use]
    pub fn with_time_budget(self, most: Duration) -> Self {
        Self { time_budget: Some(Arc::new(self.time_budget(most))), ..self }
    }

    /// A budget of processor time by the clock that the policy's calls are timed by.
    pub fn time_budget(&self, most: Duration) -> TimeBudget {
        TimeBudget::new(most, self.loaded.sandbox.clock.clone())
    }

    /// Checks that [`LoadedPolicy::with_time_budget`]'s time was enough, since later answers are
    /// the fallback's.
    ///
    /// # Errors
    /// [`PolicyError::TooSlow`].
    pub fn check_time_budget(&self) -> Result<(), PolicyError> {
        self.time_budget.as_ref().map_or(Ok(()), |time_budget| time_budget.check(&self.description().name))
    }

    /// Puts the policy to work with these settings, as `KEY` and `VALUE`; the others keep their
    /// defaults.
    ///
    /// # Errors
    /// [`PolicyError::UnknownSetting`], [`PolicyError::SettingType`], what the policy itself
    /// refuses, or its failure.
    pub fn configure(&self, given: &[(String, String)]) -> Result<Policy, PolicyError> {
        let description = self.description();
        let settings = self.settings(given)?;
        let identity = PolicyIdentity {
            name: description.name.clone(),
            version: description.version.clone(),
            digest: self.inspection.digest.clone(),
            settings,
        };
        let time_budget = self.time_budget.clone();
        Policy::new(self.loaded.clone(), in_order(&identity.settings), identity, description, time_budget)
    }

    /// A new instance for measurements, with these settings to pass.
    ///
    /// # Errors
    /// As [`LoadedPolicy::configure`], except for a refusal by the policy, which is not asked yet.
    pub fn probe(&self, given: &[(String, String)]) -> Result<Probe, PolicyError> {
        let settings = in_order(&self.settings(given)?);
        TimeBudget::count(self.time_budget.as_deref(), || Probe::new(self.loaded.clone(), settings))
    }

    /// Bytes of the compiled code and its tables in memory, shared by all instances.
    pub fn code_bytes(&self) -> usize {
        self.loaded.linked.code_bytes
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

/// Checks a policy's description of itself: its names appear in tables, records and on command
/// lines. Of the stages that it names, those count whose interfaces it exports.
fn check_description(said: Description, exported: &[Stage], limits: &Limits) -> Result<Description, String> {
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
