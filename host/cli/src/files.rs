//! The inputs of a command, listed so that no output replaces one of them.

use std::{env, fmt, path::Path};

use tilewright_media::STANDARD;
use tilewright_outputs::Roles;
use tilewright_policy::PolicyHost;
use tilewright_signing::signature_path;

use crate::{
    config,
    failure::{Failure, Outcome},
    history,
};

/// The inputs of every command: the program itself, the configuration and the history.
pub fn roles() -> Roles {
    let mut roles = Roles::new();
    if let Ok(path) = env::current_exe() {
        roles = roles.reads("the running program", &path);
    }
    if let Some(path) = config::source().path() {
        roles = roles.reads("the configuration", &path);
    }
    if let Ok(Some(path)) = history::place() {
        for ending in ["", "-wal", "-shm"] {
            let mut part = path.clone().into_os_string();
            part.push(ending);
            roles = roles.reads("the history", Path::new(&part));
        }
    }
    roles
}

/// The failure of a file that can't be read.
pub fn unreadable<E: fmt::Display>(path: &Path) -> impl Fn(E) -> Failure {
    move |error| Failure::input(format!("{}: can't be read: {error}", path.display()))
}

/// The failure of a result that can't be written.
pub fn unwritten<E: fmt::Display>(path: &Path) -> impl Fn(E) -> Failure {
    move |error| Failure::work(format!("{}: can't be written: {error}", path.display()))
}

/// Adds a policy's file and its signature, if the policy is a file.
#[must_use]
pub fn reads_policy(roles: Roles, name_or_file: &str) -> Roles {
    if !PolicyHost::names_file(name_or_file) {
        return roles;
    }
    let path = Path::new(name_or_file);
    roles.reads("the policy", path).reads("the policy's signature", &signature_path(path))
}

/// Adds a VAE's file and the configuration that may lie beside it.
#[must_use]
pub fn reads_vae(roles: Roles, path: &Path) -> Roles {
    roles.reads("the VAE", path).reads("the VAE's config.json", &path.with_file_name("config.json"))
}

/// Refuses standard output, since only a file serves, and everything that [`Roles::check`] refuses.
pub fn check_file(roles: Roles, option: &str, path: Option<&Path>) -> Outcome<Roles> {
    let Some(path) = path else { return Ok(roles) };
    if path.as_os_str() == STANDARD {
        return Err(Failure::input(format!("{option} -: give a file's name; ./- is a file of that name")));
    }
    let roles = roles.writes(option, path);
    roles.check()?;
    Ok(roles)
}
