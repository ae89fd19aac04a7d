//! Credentials for a registry: three variables, or those saved by `docker login`.

use std::{env, fmt, path::PathBuf};

use docker_credential::{CredentialRetrievalError, DockerCredential, get_credential};

use crate::{Error, Result};

/// The variable with the registry that the two others are for; they are sent to no other.
pub const REGISTRY: &str = "TILEWRIGHT_REGISTRY";

/// The variable with the user's name.
pub const USER: &str = "TILEWRIGHT_REGISTRY_USER";

/// The variable with the password or access token.
pub const PASSWORD: &str = "TILEWRIGHT_REGISTRY_PASSWORD";

/// Credentials for a registry that asks.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    /// Nothing.
    Anonymous,
    /// A name and a password or access token.
    Basic {
        /// The name.
        user: String,
        /// The password.
        password: String,
    },
}

impl Credentials {
    /// The user's for this registry: the variables, docker's configuration and its helpers, or
    /// none.
    ///
    /// # Errors
    /// [`Error::Credentials`] if some exist but can't be used.
    pub fn of_user(registry: &str) -> Result<Self> {
        let given = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        match (given(USER), given(PASSWORD)) {
            (Some(user), Some(password)) => match given(REGISTRY) {
                Some(whose) if whose == registry => Ok(Self::Basic { user, password }),
                Some(_) => Self::of_docker(registry),
                None => Err(Error::Credentials {
                    detail: format!("{USER} is set and {REGISTRY}, which says who may be told, is not"),
                }),
            },
            (None, None) => Self::of_docker(registry),
            (Some(_), None) => Err(Error::Credentials { detail: format!("{USER} is set and {PASSWORD} is not") }),
            (None, Some(_)) => Err(Error::Credentials { detail: format!("{PASSWORD} is set and {USER} is not") }),
        }
    }

    fn of_docker(registry: &str) -> Result<Self> {
        let folder = env::var_os("DOCKER_CONFIG").map(PathBuf::from);
        let folder = folder.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".docker")));
        // The library reports a missing one and a broken one alike.
        if !folder.is_some_and(|folder| folder.join("config.json").exists()) {
            return Ok(Self::Anonymous);
        }
        // The key under which docker login saves its own registry.
        let server = if registry == "index.docker.io" { "https://index.docker.io/v1/" } else { registry };
        let unusable = |what: String| Err(Error::Credentials { detail: format!("docker's configuration: {what}") });
        match get_credential(server) {
            Ok(DockerCredential::UsernamePassword(user, password)) => Ok(Self::Basic { user, password }),
            Err(CredentialRetrievalError::NoCredentialConfigured | CredentialRetrievalError::ConfigNotFound) => {
                Ok(Self::Anonymous)
            }
            Ok(DockerCredential::IdentityToken(_)) => {
                unusable(format!("it has an identity token for {registry}, which is not known here"))
            }
            // Taken for no credentials, as docker's own client does: the helper works, and has none
            // for this registry.
            Err(CredentialRetrievalError::HelperFailure { stdout, .. })
                if stdout.trim_start().starts_with("credentials not found") =>
            {
                Ok(Self::Anonymous)
            }
            // A helper's output may be a secret.
            Err(CredentialRetrievalError::HelperFailure { helper, .. }) => {
                unusable(format!("its helper {helper} fails"))
            }
            Err(error) => unusable(error.to_string()),
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Credentials::Anonymous => "Anonymous",
            Credentials::Basic { .. } => "Basic",
        })
    }
}
