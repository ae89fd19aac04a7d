//! `tilewright policy …`, and the policies of other commands. One module per verb.

pub mod admission;
mod bench;
mod build;
mod check;
mod diff;
mod inspect;
mod keygen;
mod list;
mod new;
mod pull;
mod push;
mod remote;
mod replay;
mod sign;
mod simulate;
mod table;
mod verify;

use std::{io::Read, path::Path};

use tilewright_gate::{Admission, AdmittedPolicy, Verdict};
use tilewright_plan::{Planner, Recorder, Stage, Work, bytes};
use tilewright_policy::{CacheDir, LoadedPolicy, Policy, PolicyError, PolicyHost};

use crate::{
    args::{self, PolicyGrants},
    config,
    failure::{Failure, Outcome},
    files,
    tell::tell,
};

/// Loads a policy for a stage by name or file with the user's settings; the recorder keeps the
/// exchange if a full record is wanted. Both may name the stage: `denoise=fixed`,
/// `denoise.precision`.
pub fn configure<W: Work>(
    stage: Stage,
    name_or_file: &str,
    settings: &[(String, String)],
    grants: PolicyGrants,
    recording: &args::Recording,
) -> Outcome<Recorder<W>>
where
    Policy: Planner<W>,
{
    let settings = settings.iter().map(|(name, value)| Ok((of_stage(stage, name, '.')?.to_owned(), value.clone())));
    let settings = settings.collect::<Outcome<Vec<_>>>()?;
    let admitted = verify_and_load(&host(grants)?, of_stage(stage, name_or_file, '=')?, &settings)?;
    if let Some(warning) = admitted.warning() {
        tell!("warning: {warning}");
    }
    Ok(Recorder::new(Box::new(admitted.policy), recording.is_full()))
}

/// The rest of an argument that may name the stage that it is for.
pub fn of_stage(stage: Stage, argument: &str, mark: char) -> Outcome<&str> {
    match argument.split_once(mark).map(|(name, rest)| (name.parse::<Stage>(), rest)) {
        Some((Ok(named), rest)) if named == stage => Ok(rest),
        Some((Ok(named), _)) => {
            Err(Failure::input(format!("{argument}: this command has no {named} stage: leave out, or name {stage}")))
        }
        _ => Ok(argument),
    }
}

/// Loads a policy by name or file, the only way to do so: a shipped policy is part of the program,
/// and a file is verified by the configuration and passes the gate. A file that does not pass gets
/// a warning.
pub fn verify_and_load(
    host: &PolicyHost,
    name_or_file: &str,
    settings: &[(String, String)],
) -> Outcome<AdmittedPolicy> {
    let config = config::load()?;
    let loaded = verify(host, name_or_file)?.load(host)?;
    let admission = Admission { require_checked: config.policies.require_checked };
    Ok(tilewright_gate::admit(host, &loaded, settings, admission)?)
}

/// A policy that may be loaded: a shipped one, or the bytes of a file, signed if the configuration
/// requires it. The bytes loaded are the bytes verified.
pub struct Module {
    origin: String,
    /// None for a shipped policy.
    bytes: Option<Vec<u8>>,
}

impl Module {
    /// Loads the module.
    pub fn load(&self, host: &PolicyHost) -> Result<LoadedPolicy, PolicyError> {
        match &self.bytes {
            Some(bytes) => host.load(&self.origin, bytes),
            None => host.load_shipped(&self.origin),
        }
    }

    /// Puts the module through the gate, with requests drawn from a seed.
    pub fn check(
        &self,
        host: &PolicyHost,
        settings: &[(String, String)],
        seed: Option<u32>,
    ) -> Result<Verdict, PolicyError> {
        match &self.bytes {
            Some(bytes) => tilewright_gate::check_module(host, &self.origin, bytes, settings, seed),
            None => tilewright_gate::check(host, &self.origin, settings, seed),
        }
    }
}

/// Reads and verifies the policy of a name or path, and compiles nothing. Every command that runs a
/// module begins here.
pub fn verify(host: &PolicyHost, name_or_file: &str) -> Outcome<Module> {
    if !PolicyHost::names_file(name_or_file) {
        return Ok(Module { origin: name_or_file.into(), bytes: None });
    }
    verify_file(host, Path::new(name_or_file))
}

/// Reads and verifies a policy's file, whatever its name.
pub fn verify_file(host: &PolicyHost, path: &Path) -> Outcome<Module> {
    let bytes = host.read_file(path)?;
    admission::verify(&config::load()?.policies, path, &bytes)?;
    Ok(Module { origin: path.display().to_string(), bytes: Some(bytes) })
}

/// A host whose policies have these grants.
pub fn host(grants: PolicyGrants) -> Outcome<PolicyHost> {
    Ok(PolicyHost::new(grants.limits(), &CacheDir::User)?)
}

/// Runs a verb of `tilewright policy`.
pub fn run(command: &args::Policy) -> Outcome {
    match command {
        args::Policy::List { json } => list::run(*json),
        args::Policy::Inspect { policy, loaded } => inspect::run(policy, *loaded),
        args::Policy::New { name, lang, into, json } => new::run(name, *lang, into, *json),
        args::Policy::Build { project, output, loaded } => build::run(project, output.as_deref(), *loaded),
        args::Policy::Bench(arguments) => bench::run(arguments),
        args::Policy::Replay(replay) => replay::run(replay),
        args::Policy::Simulate(simulate) => simulate::run(simulate),
        args::Policy::Table(table) => table::run(table),
        args::Policy::Check(arguments) => check::run(arguments),
        args::Policy::Diff(arguments) => diff::run(arguments),
        args::Policy::Keygen(arguments) => keygen::run(arguments),
        args::Policy::Sign(arguments) => sign::run(arguments),
        args::Policy::Verify(arguments) => verify::run(arguments),
        args::Policy::Push(arguments) => push::run(arguments),
        args::Policy::Pull(arguments) => pull::run(arguments),
        args::Policy::Swap(arguments) => remote::swap(arguments),
        args::Policy::Rollback(arguments) => remote::roll_back(arguments),
    }
}

/// Reads a whole file up to a limit.
fn read_bounded(path: &Path, most: usize) -> Outcome<Vec<u8>> {
    let mut text = Vec::new();
    let read = tilewright_files::open(path).and_then(|file| file.take(most as u64 + 1).read_to_end(&mut text));
    read.map_err(files::unreadable(path))?;
    match text.len() > most {
        true => Err(Failure::input(format!("{}: larger than {}", path.display(), bytes::display(most as u64)))),
        false => Ok(text),
    }
}
