//! The user's configuration: one TOML file, its defaults where there is none, and an error that names the line where it is wrong.
//!
//! ```
//! use tilewright_config::Config;
//!
//! let config = Config::parse("[policies]\nrequire-signed = true\n", "config.toml".as_ref())?;
//! assert!(config.policies.require_signed && !config.policies.require_checked);
//! let error = Config::parse("[policies]\nrequire-sined = true\n", "config.toml".as_ref()).unwrap_err().to_string();
//! assert!(error.starts_with("config.toml:2: unknown field `require-sined`, expected one of `require-signed`"), "{error}");
//!
//! let config = Config::parse("[[routes]]\npolicy = \"adaptive\"\nshadow = \"wide\"\n", "config.toml".as_ref())?;
//! let error = config.check(&["adaptive", "fixed"]).unwrap_err().to_string();
//! assert!(error.starts_with("config.toml:3: unknown policy 'wide', expected one of adaptive, fixed"), "{error}");
//! # Ok::<(), tilewright_config::Error>(())
//! ```

#![forbid(unsafe_code)]

mod check;
mod conditions;
mod devices;
mod error;
mod models;
mod origin;
mod place;
mod policies;
mod policy;
mod presence;
mod routes;
mod server;
mod tokens;
mod values;

use std::{collections::BTreeMap, path::Path};

use serde::Deserialize;

pub use conditions::{Between, Case, Conditions};
pub use devices::{Choice, Device};
pub use error::{Error, Result};
pub use models::Model;
pub use place::{Place, user_path};
pub use policies::Policies;
pub use policy::{Policy, Source, Wasi};
pub use routes::{Canary, Route, TakeOver};
pub use server::{LogFormat, Role, Server, ServerLimits, Telemetry, Tls, Token};
pub use tilewright_plan::Stage;

use origin::{Fault, Origin};

/// Everything that can be configured. A section that is left out has its defaults. Paths are absolute, or relative to where the
/// configuration's own path is.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The service.
    pub server: Server,
    /// The models that jobs can name.
    pub models: BTreeMap<String, Model>,
    /// Which policies are put to work, and those with a name of the user's own.
    pub policies: Policies,
    devices: BTreeMap<String, Device>,
    routes: Vec<Route>,
    origin: Origin,
}

/// A configuration as it is written.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct Written {
    server: Server,
    #[serde(deserialize_with = "values::named")]
    models: BTreeMap<String, Model>,
    #[serde(deserialize_with = "values::named")]
    devices: BTreeMap<String, Device>,
    policies: Policies,
    routes: Vec<routes::Written>,
}

impl Default for Config {
    fn default() -> Self {
        Self::from_written(Written::default(), Origin::default())
    }
}

impl Config {
    /// Reads the file, or gives the defaults where the user has none.
    ///
    /// # Errors
    /// [`Error::Unreadable`], also where a file that was asked for is missing; [`Error::Wrong`] for what it says.
    pub fn load(place: &Place) -> Result<Self> {
        match place.read()? {
            Some((path, text)) => Self::parse(&text, &path),
            None => Ok(Self::default()),
        }
    }

    /// Reads a configuration's text; `path` names it in errors, and relative paths start from its folder.
    ///
    /// # Errors
    /// [`Error::Wrong`], with the line. Whether its policies are there is for [`Config::check`] to say.
    pub fn parse(text: &str, path: &Path) -> Result<Self> {
        let origin = Origin::new(path, text);
        let written = toml::from_str(text).map_err(|error| origin.wrong(error.span(), error.message()))?;
        let config = Self::from_written(written, origin);
        check::within(&config).map_err(|fault| config.origin.fault(fault))?;
        Ok(config)
    }

    /// Says whether every policy that is named is one of `[policies.NAME]` or of those that ship, by these names; and once more whether it may
    /// listen where it is to.
    ///
    /// # Errors
    /// [`Error::Wrong`], with the line.
    pub fn check(&self, shipped: &[&str]) -> Result<()> {
        check::against(self, shipped).map_err(|fault| self.origin.fault(fault))
    }

    /// Checks that the files and folders that a service needs exist and are of the right kind, except policies' files:
    /// a path named by mistake is a mistake of the configuration, and reported with its line.
    ///
    /// # Errors
    /// [`Error::Wrong`], with the line.
    pub fn check_presence(&self) -> Result<()> {
        presence::check(self).map_err(|fault| self.origin.fault(fault))
    }

    /// The same for policies that are files. A service that had one in force goes on without its file.
    ///
    /// # Errors
    /// [`Error::Wrong`], with the line.
    pub fn check_presence_of_policies(&self) -> Result<()> {
        presence::check_policies(self).map_err(|fault| self.origin.fault(fault))
    }

    /// Checks that every file of a token holds one, and that no two hold the same.
    ///
    /// # Errors
    /// [`Error::Wrong`], with the line that names the file.
    pub fn check_tokens(&self) -> Result<()> {
        tokens::check(self).map_err(|fault| self.origin.fault(fault))
    }

    /// The error of a value that turned out to be wrong, with the line of its key: keys, and places
    /// within lists from 0, joined by `/`, as in `server/tls/key`. For a key that is not written,
    /// the line of what it would be in.
    pub fn wrong_at(&self, key: &str, detail: impl Into<String>) -> Error {
        self.origin.fault(Fault { at: key.into(), detail: detail.into() })
    }

    /// True if a request may have a policy fetched from this registry (host or host:port).
    pub fn allows_registry(&self, registry: &str) -> bool {
        let of_policy = |policy: &Policy| match &policy.source {
            Source::Oci(reference) => reference.split('/').next().is_some_and(|own| own.eq_ignore_ascii_case(registry)),
            Source::Shipped(_) | Source::File(_) => false,
        };
        self.server.registries.iter().any(|known| known.eq_ignore_ascii_case(registry))
            || self.policies.named.values().any(of_policy)
    }

    /// The devices that jobs run on: `main`, chosen by itself, where none is configured.
    pub fn devices(&self) -> &BTreeMap<String, Device> {
        &self.devices
    }

    /// The routes in their order: one, `default`, of `adaptive`, where none is configured.
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// The first route that takes the job; nothing where those that are configured leave it to nobody.
    pub fn route(&self, case: &Case<'_>) -> Option<&Route> {
        self.routes.iter().find(|route| route.conditions.matches(case))
    }

    /// What differs in the new configuration and only counts after a restart; the rest a running service can take over.
    pub fn changed_at_restart_only(&self, new: &Self) -> Vec<&'static str> {
        let (old_server, new_server) = (&self.server, &new.server);
        let differs = [
            ("server.listen", old_server.listen != new_server.listen),
            ("server.data", old_server.data != new_server.data),
            ("server.tls", old_server.tls != new_server.tls),
            ("server.audit", old_server.audit != new_server.audit),
            ("server.hosts", old_server.hosts != new_server.hosts),
            ("server.behind-proxy", old_server.behind_proxy != new_server.behind_proxy),
            ("server.limits.queue", old_server.limits.queue != new_server.limits.queue),
            ("server.limits.connections", old_server.limits.connections != new_server.limits.connections),
            (
                "server.limits.requests-per-second",
                old_server.limits.requests_per_second != new_server.limits.requests_per_second,
            ),
            ("server.telemetry", old_server.telemetry != new_server.telemetry),
            ("devices", self.devices != new.devices),
        ];
        differs.into_iter().filter(|(_, differs)| *differs).map(|(section, _)| section).collect()
    }

    /// With what is implied where it says nothing, and with paths that start from its folder.
    fn from_written(written: Written, origin: Origin) -> Self {
        let Written { server, models, devices, policies, routes } = written;
        let routes: Vec<_> = routes.into_iter().enumerate().map(|(place, route)| route.at(place)).collect();
        let mut config = Self {
            server,
            models,
            policies,
            devices: if devices.is_empty() { devices::implied() } else { devices },
            routes: if routes.is_empty() { routes::implied() } else { routes },
            origin,
        };
        config.resolve();
        config
    }

    fn resolve(&mut self) {
        let models = self.models.values_mut().map(|model| &mut model.vae);
        let files = self.policies.named.values_mut().filter_map(|policy| match &mut policy.source {
            Source::File(path) => Some(path),
            Source::Shipped(_) | Source::Oci(_) => None,
        });
        for path in self.server.paths().chain(models).chain(files) {
            *path = self.origin.folder().join(&*path);
        }
    }
}

#[cfg(test)]
mod tests;
