//! The user's configuration: one TOML file, its defaults if there is none, and errors that name the
//! line of the fault.
//!
//! ```
//! use tilewright_config::Config;
//!
//! let config = Config::parse("[policies]\nrequire-signed = true\n", "config.toml".as_ref())?;
//! assert!(config.policies.require_signed && !config.policies.require_checked);
//! let error = Config::parse("[policies]\nrequire-sined = true\n", "config.toml".as_ref());
//! let error = error.unwrap_err().to_string();
//! assert!(error.starts_with("config.toml:2: unknown field `require-sined`, expected one of"));
//!
//! let text = "[[routes]]\npolicy = \"adaptive\"\nshadow = \"wide\"\n";
//! let config = Config::parse(text, "config.toml".as_ref())?;
//! let error = config.check(&["adaptive", "fixed"]).unwrap_err().to_string();
//! assert!(error.starts_with("config.toml:3: unknown policy 'wide', expected one of adaptive"));
//! # Ok::<(), tilewright_config::Error>(())
//! ```

#![forbid(unsafe_code)]

mod address;
mod check;
mod conditions;
mod devices;
mod error;
mod models;
mod origin;
mod policies;
mod policy;
mod presence;
mod restart;
mod routes;
mod server;
mod source;
mod tokens;
mod values;

use std::{collections::BTreeMap, path::Path};

use serde::Deserialize;

pub use address::Address;
pub use conditions::{Between, Case, Conditions};
pub use devices::{Choice, Device};
pub use error::{Error, Result};
pub use models::{Model, ModelSource};
pub use policies::{NotAdmitted, Policies, signature_of};
pub use policy::{Policy, Source, Wasi};
pub use routes::{Canary, Route, TakeOver};
pub use server::{LogFormat, Role, Server, ServerLimits, Telemetry, Tls, Token};
pub use source::{ConfigSource, user_path};
pub use tilewright_plan::Stage;

use origin::{Fault, Origin};

/// The whole configuration. A section that is left out has its defaults. Paths are absolute, or
/// relative to the configuration file's folder.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The service.
    pub server: Server,
    /// The models that jobs can name.
    pub models: BTreeMap<String, Model>,
    /// The rules for policies, and those with a name of the user's own.
    pub policies: Policies,
    devices: BTreeMap<String, Device>,
    routes: Vec<Route>,
    origin: Origin,
}

/// A configuration as it is written.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct RawConfig {
    server: Server,
    #[serde(deserialize_with = "values::read_named")]
    models: BTreeMap<String, Model>,
    #[serde(deserialize_with = "values::read_named")]
    devices: BTreeMap<String, Device>,
    policies: Policies,
    routes: Vec<routes::RawRoute>,
}

impl Default for Config {
    fn default() -> Self {
        Self::from_written(RawConfig::default(), Origin::default())
    }
}

impl Config {
    /// Reads the file, or returns the defaults if the user has none.
    ///
    /// # Errors
    /// [`Error::Unreadable`], also if a file that was asked for is missing; [`Error::Empty`];
    /// [`Error::Unparsed`] and [`Error::Wrong`] for its contents.
    pub fn load(source: &ConfigSource) -> Result<Self> {
        match source.read()? {
            // A file that is being written, or was cut off, asks for nothing: least of all for a
            // service without tokens.
            Some((path, text)) if is_blank(&text) => Err(Error::Empty { path }),
            Some((path, text)) => Self::parse(&text, &path),
            None => Ok(Self::default()),
        }
    }

    /// Reads a configuration's text; `path` names it in errors, and relative paths start from its
    /// folder.
    ///
    /// # Errors
    /// [`Error::Unparsed`] and [`Error::Wrong`], with the line. [`Config::check`] checks the names
    /// of policies.
    pub fn parse(text: &str, path: &Path) -> Result<Self> {
        let origin = Origin::new(path, text);
        let written = toml::from_str(text).map_err(|error| origin.unparsed(error.span(), error.message()))?;
        let config = Self::from_written(written, origin);
        check::find_fault(&config).map_err(|fault| config.origin.fault(fault))?;
        Ok(config)
    }

    /// Checks that every policy that is named is one of `[policies.NAME]` or of the shipped ones,
    /// by these names; and again that the service may listen on its address.
    ///
    /// # Errors
    /// [`Error::Wrong`], with the line.
    pub fn check(&self, shipped: &[&str]) -> Result<()> {
        check::find_policy_fault(self, shipped).map_err(|fault| self.origin.fault(fault))
    }

    /// Checks that the files and folders that a service needs exist and are of the right kind,
    /// except policies' files: a path named by mistake is a mistake of the configuration, and
    /// reported with its line.
    ///
    /// # Errors
    /// [`Error::Wrong`], with the line.
    pub fn check_presence(&self) -> Result<()> {
        presence::check(self).map_err(|fault| self.origin.fault(fault))
    }

    /// Checks policies' files like [`Config::check_presence`]. A service with such a policy in
    /// force goes on without its file.
    ///
    /// # Errors
    /// [`Error::Wrong`], with the line.
    pub fn check_presence_of_policies(&self) -> Result<()> {
        presence::check_policies(self).map_err(|fault| self.origin.fault(fault))
    }

    /// Checks that every token's file holds one, and that no two hold the same.
    ///
    /// # Errors
    /// [`Error::Wrong`], with the line that names the file.
    pub fn check_tokens(&self) -> Result<()> {
        tokens::check(self).map_err(|fault| self.origin.fault(fault))
    }

    /// The error of a value that turned out to be wrong, with the line of its key. `key` is the
    /// path of keys, and of indices from 0 within lists, joined by `/`, as in `server/tls/key`. A
    /// key that is not written gets the line of its parent.
    pub fn error_at(&self, key: &str, detail: impl Into<String>) -> Error {
        self.origin.fault(Fault { at: key.into(), detail: detail.into() })
    }

    /// The registries (host or host:port) that policies may be fetched from, and that these may
    /// lead to.
    pub fn registries(&self) -> impl Iterator<Item = &str> {
        let named = self.server.registries.iter().chain(&self.server.internal_registries).map(String::as_str);
        let of_policies = self.policies.named.values().filter_map(|policy| match &policy.source {
            Source::Oci(reference) => reference.split('/').next(),
            Source::Shipped(_) | Source::File(_) => None,
        });
        named.chain(of_policies)
    }

    /// True if a request may fetch a policy from this registry (host or host:port).
    pub fn allows_registry(&self, registry: &str) -> bool {
        self.registries().any(|known| known.eq_ignore_ascii_case(registry))
    }

    /// The devices that jobs run on: by default `main`, which chooses its hardware itself.
    pub fn devices(&self) -> &BTreeMap<String, Device> {
        &self.devices
    }

    /// The routes in their order: by default one, `default`, of `adaptive`.
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// Adds the defaults of omitted sections, and resolves paths from the file's folder.
    fn from_written(written: RawConfig, origin: Origin) -> Self {
        let RawConfig { server, models, devices, policies, routes } = written;
        let routes: Vec<_> = routes.into_iter().enumerate().map(|(place, route)| route.at(place)).collect();
        let mut routes = if routes.is_empty() { routes::default_routes() } else { routes };
        routes.iter_mut().for_each(|route| route.allows_blended |= server.allows_blended);
        let mut config = Self {
            server,
            models,
            policies,
            devices: if devices.is_empty() { devices::default_devices() } else { devices },
            routes,
            origin,
        };
        config.resolve();
        config
    }

    fn resolve(&mut self) {
        let folder = self.origin.folder();
        self.models.values_mut().filter_map(|model| model.model.as_mut()).for_each(|model| model.resolve(folder));
        let models = self.models.values_mut().flat_map(Model::paths_mut);
        let files = self.policies.named.values_mut().filter_map(|policy| match &mut policy.source {
            Source::File(path) => Some(path),
            Source::Shipped(_) | Source::Oci(_) => None,
        });
        for path in self.server.paths().chain(models).chain(files) {
            *path = self.origin.folder().join(&*path);
        }
    }
}

/// True for a text of nothing but blank lines and comments.
fn is_blank(text: &str) -> bool {
    let text = text.trim_start_matches('\u{feff}');
    text.lines().map(str::trim_start).all(|line| line.is_empty() || line.starts_with('#'))
}

#[cfg(test)]
mod tests;
