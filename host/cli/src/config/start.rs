//! Faults of a configuration that keep a service from starting: `config check` looks for all of
//! them, and `serve` names the line of the one that stopped it.

use std::{net::TcpListener, path::Path};

use tilewright_config::{Choice, Config, Policy, Server, Source, Wasi};
use tilewright_engine::Machine;
use tilewright_files::digest::sha256;
use tilewright_gate::Admission;
use tilewright_policy::{CacheDir, Limits, PolicyError, PolicyHost, shipped_module, shipped_names};
use tilewright_registry::Reference;
use tilewright_service::{Error, OpenParts, PartsRefused, open_parts};
use ureq::http::Uri;

use super::certificates;
use crate::{
    failure::{Failure, Outcome},
    policy::admission,
};

/// Reports the first thing that keeps a service from starting. Faults of the moment are left to the
/// start: a port in use, another server in the data folder, a registry that does not answer.
pub fn check(config: &Config) -> Outcome {
    check_all(config, &CacheDir::User)
}

fn check_all(config: &Config, cache: &CacheDir) -> Outcome {
    let shipped: Vec<&str> = shipped_names().collect();
    config.check(&shipped)?;
    config.check_presence()?;
    config.check_presence_of_policies()?;
    config.check_tokens()?;
    certificates::check(config)?;
    collector(config)?;
    devices(config)?;
    // A configuration that only names trusted keys needs neither an address nor a folder.
    if !config.models.is_empty() || config.server != Server::default() {
        address(config)?;
        data(config)?;
    }
    for (name, configured) in &config.models {
        open_model(config, name, configured)?;
    }
    for (name, configured) in &config.policies.named {
        policy(config, name, configured, cache)?;
    }
    Ok(())
}

/// Opens the parts of a model as the service does.
pub fn open_model(config: &Config, name: &str, configured: &tilewright_config::Model) -> Outcome<OpenParts> {
    open_parts(name, configured).map_err(|PartsRefused { key, error }| {
        let detail = match *error {
            Error::Model { reason, .. } => Failure::from(*reason).to_string(),
            Error::Family { reason, .. } => reason,
            error => Failure::from(error).to_string(),
        };
        config.error_at(&format!("models/{name}/{key}"), detail).into()
    })
}

/// Checks that the address is one of this machine's. The port is not tried: the service may be
/// running.
fn address(config: &Config) -> Outcome {
    let Some(address) = config.server.listen.tcp().map(|address| address.ip()) else { return Ok(()) };
    let taken = TcpListener::bind((address, 0)).map(drop);
    taken.map_err(|error| {
        let detail = format!("can't listen on {address}: {error}: name an address of this machine");
        config.error_at("server/listen", detail).into()
    })
}

/// Checks that traces can be sent to the configured collector.
fn collector(config: &Config) -> Outcome {
    let Some(endpoint) = &config.server.telemetry.otlp else { return Ok(()) };
    endpoint.parse::<Uri>().map(drop).map_err(|error| {
        let detail = format!("'{endpoint}' is no URL of a collector: {error}: write one as in http://127.0.0.1:4318");
        config.error_at("server/telemetry/otlp", detail).into()
    })
}

/// Checks that the data folder, or its parent if it is missing, can be written. Nothing is left
/// there.
fn data(config: &Config) -> Outcome {
    let wrong = |detail: String| Failure::from(config.error_at("server/data", detail));
    let data = config.server.data_folder();
    let data = data.ok_or_else(|| wrong("there is no home folder to keep jobs in: give [server] data".into()))?;
    let there = data.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("."));
    tempfile::tempfile_in(there).map(drop).map_err(|error| {
        wrong(format!("{}: no file can be made there: {error}: name a folder that can be written", there.display()))
    })
}

/// Checks that every configured GPU exists.
fn devices(config: &Config) -> Outcome {
    for (name, configured) in config.devices() {
        let Choice::Gpu(_) = configured.device else { continue };
        Machine::find(configured.device).map_err(|error| {
            Failure::from(config.error_at(&format!("devices/{name}/device"), Failure::from(error).to_string()))
        })?;
    }
    Ok(())
}

/// Checks that a policy can be put in force: it has the configured digest and the required
/// signature, takes its settings, and passes its gate.
fn policy(config: &Config, name: &str, configured: &Policy, cache: &CacheDir) -> Outcome {
    let wrong = |key: &str, detail: String| Failure::from(config.error_at(&format!("policies/{name}/{key}"), detail));
    let refused = |error: PolicyError| match error {
        PolicyError::Sandbox { .. } => Failure::from(error),
        error => wrong(&find_key(&error, &configured.set), Failure::from(error).to_string()),
    };
    let host = PolicyHost::new(limits(configured), cache)?;
    let (bytes, origin) = match &configured.source {
        Source::Shipped(shipped) => (shipped_module(shipped).unwrap_or_default().to_vec(), shipped.clone()),
        Source::File(path) => (host.read_file(path).map_err(refused)?, path.display().to_string()),
        // A registry is not contacted for a check.
        Source::Oci(reference) => {
            let parsed = reference.parse::<Reference>().map(drop);
            return parsed.map_err(|error| wrong("source", Failure::from(error).to_string()));
        }
    };
    if let Some(wanted) = &configured.digest {
        let found = sha256(&bytes);
        if *wanted != found {
            let detail = format!("policy {origin}: is {found}: correct `digest`, or get the module that has it");
            return Err(wrong("digest", detail));
        }
    }
    let loaded = match &configured.source {
        Source::File(path) => {
            admission::verify(&config.policies, path, &bytes)
                .map_err(|failure| wrong("source", failure.to_string()))?;
            host.load(&origin, &bytes)
        }
        _ => host.load_shipped(&origin),
    };
    let loaded = loaded.map_err(refused)?;
    // The service puts no policy in force that does not pass.
    tilewright_gate::admit(&host, &loaded, &configured.set, Admission { require_checked: true })
        .map(drop)
        .map_err(refused)
}

/// The limits of a policy with its grants.
fn limits(configured: &Policy) -> Limits {
    let wasi = match configured.wasi {
        Wasi::None => tilewright_policy::Wasi::None,
        Wasi::Inert => tilewright_policy::Wasi::Inert,
    };
    let usual = Limits::default().granting(wasi, configured.memory_bytes);
    let wall_ms = configured.time.map_or(usual.wall_ms, |time| time.as_millis() as u64);
    Limits { fuel: configured.fuel.unwrap_or(usual.fuel), wall_ms, ..usual }
}

/// The key of a policy's table that an error is about.
fn find_key(error: &PolicyError, set: &[(String, String)]) -> String {
    match error {
        PolicyError::UnknownSetting { name, .. } | PolicyError::SettingType { name, .. } => format!("set/{name}"),
        PolicyError::Refused { reason, .. } => {
            // The policy's own message, which begins with the setting if one is to blame.
            let goes_on = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_');
            let named = set
                .iter()
                .find(|(key, _)| reason.strip_prefix(key.as_str()).is_some_and(|rest| !rest.starts_with(goes_on)));
            named.map_or("set".into(), |(key, _)| format!("set/{key}"))
        }
        _ => "source".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_keeps_a_service_from_starting_is_told_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tilewright.toml");
        std::fs::write(folder.path().join("text.wasm"), "no module").unwrap();
        let digest = format!("digest = \"sha256:{}\"", "0".repeat(64));
        for (text, line, words) in [
            (
                "[policies.own]\nsource = \"fixed\"\n\nset = { tyle = 64 }",
                4,
                "has no setting 'tyle' (did you mean tile?)",
            ),
            (
                "[policies.own]\nsource = \"fixed\"\n[policies.own.set]\nspace = \"whole\"\ntile = 0",
                5,
                "tile=0: allowed is",
            ),
            ("[policies.own]\nsource = \"adaptive\"\nset = { max-tile = \"wide\" }", 3, "is not a whole number"),
            (&format!("[policies.own]\nsource = \"fixed\"\n{digest}"), 3, "correct `digest`"),
            ("[policies.own]\nsource = \"text.wasm\"", 2, "not WebAssembly"),
            ("[policies.own]\nsource = \"oci://registry.example/Own\"", 2, "registry.example/Own"),
            ("[server]\n[server.telemetry]\notlp = \"http://[\"", 3, "'http://[' is no URL of a collector"),
        ] {
            let failure = check_all(&Config::parse(text, &path).unwrap(), &CacheDir::Off).unwrap_err();
            let message = failure.to_string();
            assert!(matches!(failure, Failure::Input(_)), "{message}");
            assert!(message.starts_with(&format!("{}:{line}: ", path.display())), "{message}");
            assert!(message.contains(words), "{message}");
        }
        let sound = "[policies.own]\nsource = \"fixed\"\nset = { tile = 256, space = \"blended\" }";
        check_all(&Config::parse(sound, &path).unwrap(), &CacheDir::Off).unwrap();
    }

    #[test]
    fn a_data_folder_is_tried_where_it_is_going_to_be_made() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tilewright.toml");
        let told = |text: &str| data(&Config::parse(text, &path).unwrap()).map_err(|failure| failure.to_string());
        assert_eq!(told("[server]\ndata = \"new/data\""), Ok(()));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
        let told = told("[server]\n\ndata = \"/proc/tilewright/data\"").unwrap_err();
        assert!(told.contains(".toml:3: /proc: no file can be made there: "), "{told}");
    }

    #[test]
    fn an_address_of_another_machine_is_refused_and_a_port_in_use_is_not() {
        let told = |text: &str| address(&Config::parse(text, Path::new("tilewright.toml")).unwrap());
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        told(&format!("[server]\nlisten = \"{}\"", taken.local_addr().unwrap())).unwrap();
        // An address reserved for documentation, which no machine has.
        let text = "[server]\nlisten = \"192.0.2.1:7590\"\nbehind-proxy = true\ntoken-file = \"t\"";
        let told = told(text).unwrap_err().to_string();
        assert!(told.starts_with("tilewright.toml:2: can't listen on 192.0.2.1: "), "{told}");
    }
}
