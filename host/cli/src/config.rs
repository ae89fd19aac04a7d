//! The configuration that this run goes by, and `tilewright config …`.

use std::{
    io::{self, Write},
    path::PathBuf,
    sync::OnceLock,
};

use tilewright_config::{Config, Place};

use crate::{
    args::ConfigCommand,
    failure::{Failure, Outcome},
    table,
};

/// Chosen once, from the command line.
static PLACE: OnceLock<Place> = OnceLock::new();

/// Says which file this run goes by: the one that was asked for, or the user's.
pub fn choose(file: Option<PathBuf>) {
    let named = file.filter(|path| !path.as_os_str().is_empty());
    // A run has one command line.
    let _ = PLACE.set(named.map_or(Place::User, Place::At));
}

/// Where the configuration stands.
pub fn place() -> &'static Place {
    PLACE.get().unwrap_or(&Place::User)
}

/// What is configured, read now.
pub fn current() -> Outcome<Config> {
    Ok(Config::load(place())?)
}

/// Where it is configured, for messages.
pub fn shown_path() -> String {
    place().path().map_or_else(|| "the configuration".into(), |path| path.display().to_string())
}

/// `tilewright config …`
pub fn run(command: &ConfigCommand) -> Outcome {
    let path = place().path();
    let path = path.ok_or_else(|| Failure::input("there is no home folder to configure in: give --config FILE"))?;
    match command {
        ConfigCommand::Path => Ok(writeln!(io::stdout().lock(), "{}", path.display())?),
        ConfigCommand::Check => check(&path.display().to_string()),
    }
}

fn check(path: &str) -> Outcome {
    let policies = current()?.policies;
    let stands = std::path::Path::new(path).exists();
    let word = |required: bool| if required { "required" } else { "not required" };
    let mut rows = vec![
        ("file", if stands { path.to_owned() } else { format!("{path} (not there: these are the defaults)") }),
        ("signed policies", word(policies.require_signed).to_owned()),
        ("checked policies", word(policies.require_checked).to_owned()),
    ];
    for trusted in policies.trusted.keys() {
        rows.push(("trusted", format!("{} (key {})", trusted.name, trusted.key.id())));
    }
    Ok(writeln!(io::stdout().lock(), "{}", table::facts(rows))?)
}
