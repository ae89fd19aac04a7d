//! The configuration of this run, and `tilewright config …`.

mod certificates;
pub mod start;

use std::{io::Write, path::PathBuf, sync::OnceLock};

use tilewright_config::{Config, ConfigSource};
use tilewright_pipeline::Parts;
use tilewright_plan::bytes;

use crate::{
    args::ConfigCommand,
    failure::{Failure, Outcome},
    printer, table,
    tell::tell,
};

/// Chosen once, from the command line.
static SOURCE: OnceLock<ConfigSource> = OnceLock::new();

/// Chooses the configuration of this run: the given file, which must exist even if it is never
/// read, or the user's.
pub fn choose(file: Option<PathBuf>) -> Outcome {
    let named = file.filter(|path| !path.as_os_str().is_empty());
    let source = named.map_or(ConfigSource::User, ConfigSource::File);
    source.check()?;
    // A run has one command line.
    let _ = SOURCE.set(source);
    Ok(())
}

/// The choice of the configuration's file.
pub fn source() -> &'static ConfigSource {
    SOURCE.get().unwrap_or(&ConfigSource::User)
}

/// The configuration, read now.
pub fn load() -> Outcome<Config> {
    Ok(Config::load(source())?)
}

/// The configuration's path, for messages.
pub fn shown_path() -> String {
    source().path().map_or_else(|| "the configuration".into(), |path| path.display().to_string())
}

/// `tilewright config …`
pub fn run(command: &ConfigCommand) -> Outcome {
    let path = source().path();
    let path = path.ok_or_else(|| Failure::input("there is no home folder to configure in: give --config FILE"))?;
    match command {
        ConfigCommand::Path => Ok(writeln!(printer::stdout(), "{}", path.display())?),
        ConfigCommand::Check => check(&path.display().to_string()),
    }
}

fn check(path: &str) -> Outcome {
    let config = load()?;
    start::check(&config)?;
    let policies = &config.policies;
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
    if !config.models.is_empty() {
        rows.extend(describe_server(&config)?);
    }
    Ok(writeln!(printer::stdout(), "{}", table::facts(rows))?)
}

/// The server that `tilewright serve` would start, as rows of a table.
fn describe_server(config: &Config) -> Outcome<Vec<(&'static str, String)>> {
    let server = &config.server;
    let access = match (&server.tls, server.has_tokens()) {
        (Some(tls), _) if tls.clients.is_some() => "TLS, with clients' certificates",
        (Some(_), true) => "TLS, with a token",
        (Some(_), false) => "TLS",
        (None, true) => "with a token",
        (None, false) => "this machine alone",
    };
    let mut rows = vec![("listens on", format!("{} ({access})", server.listen))];
    rows.extend(server.data_folder().map(|folder| ("keeps jobs in", folder.display().to_string())));
    rows.extend(server.roots.iter().map(|root| ("root", root.display().to_string())));
    rows.extend(server.tokens.iter().map(|token| ("token", format!("{}: {}", token.name, token.role.name()))));
    let registries = server.registries.iter().chain(&server.internal_registries);
    rows.extend(registries.map(|registry| ("registry", registry.clone())));
    rows.extend(server.audit.iter().map(|path| ("writes changes to", path.display().to_string())));
    for (name, model) in &config.models {
        let opened = start::open_model(config, name, model)?;
        let shown =
            |paths: &[PathBuf]| paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
        let Parts { text_encoders, transformers, vae, .. } = &opened.parts;
        if let Some(of) = &opened.vae {
            rows.push(("model", format!("{name}: {} ({})", of.facts().family, shown(vae.as_slice()))));
        }
        if let Some(of) = &opened.transformer {
            let family = of.denoiser.config().facts().family.name();
            rows.push(("model", format!("{name}: {family} transformer ({})", shown(transformers))));
        }
        if !text_encoders.is_empty() {
            rows.push(("model", format!("{name}: text encoders ({})", shown(text_encoders))));
        }
    }
    for (name, device) in config.devices() {
        let limit = device.memory_limit_bytes.map_or_else(String::new, |limit| {
            let weights = if device.count_weights { "included" } else { "aside" };
            format!(", jobs of at most {}, weights {weights}", bytes::display(limit))
        });
        let kept = device.weights_memory_bytes;
        let kept = kept.map_or_else(String::new, |most| format!(", at most {} of weights kept", bytes::display(most)));
        rows.push(("device", format!("{name}: {}{limit}{kept}", device.device)));
    }
    let policies = config.policies.named.iter();
    rows.extend(policies.map(|(name, policy)| ("policy", format!("{name}: from {}", policy.source))));
    for route in config.routes() {
        let shadow = route.shadow.as_ref().map_or_else(String::new, |shadow| format!(", shadow {shadow}"));
        let canary = route.canary.as_ref();
        let canary = canary.map_or_else(String::new, |canary| format!(", canary {} ({})", canary.policy, canary.share));
        let taken = if route.conditions.is_unconditional() { "every job" } else { "some jobs" };
        rows.push(("route", format!("{}: {taken} to {}{shadow}{canary}", route.name, route.policy)));
    }
    if !config.routes().iter().any(|route| route.conditions.is_unconditional()) {
        tell!("note: no route takes every job: those that none takes are refused");
    }
    Ok(rows)
}
