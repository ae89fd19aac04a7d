//! `tilewright report`: a capture packed for a bug report, with facts of the machine.

use std::{env, fs, io::Write};

use serde::Serialize;
use serde_json::json;
use tilewright_capture::{Captured, Entry, Keep, LEFT_OUT, Report as Packed};
use tilewright_engine::{Machine, Probe};
use tilewright_plan::bytes;

use crate::{
    args::Report,
    config,
    failure::{Failure, Outcome},
    files, output, printer, table,
    tell::tell,
};

/// Variables of the environment that change how the program runs.
const PREFIXES: [&str; 8] = ["TILEWRIGHT_", "PYTORCH_", "TORCH_", "CUDA_", "HIP_", "HSA_", "MIOPEN_", "OMP_"];

/// The contents of a report.
#[derive(Serialize)]
struct Listed<'a> {
    output: String,
    entries: &'a [Entry],
}

/// Packs a report.
pub fn run(arguments: &Report) -> Outcome {
    let roles = files::roles().reads("the capture", &arguments.folder);
    files::check_file(roles, "-o", Some(&arguments.output))?;
    output::writable(&arguments.output)?;
    let captured = Captured::open(&arguments.folder)?;
    let keep = Keep { prompts: arguments.with_prompts, names: arguments.with_names };
    let mut extra: Vec<(&str, Vec<u8>)> = vec![("versions.json", versions(arguments.with_names)?)];
    match Machine::open(arguments.on.device, Probe::Kept) {
        Ok(machine) => {
            let facts = json!({
                "device": machine.facts,
                "measured": machine.measured,
                "fingerprint": machine.fingerprint,
            });
            extra.push(("device.json", text(&facts)?));
        }
        Err(error) => tell!("warning: without facts of the device: {error}"),
    }
    if let Some(path) = config::source().path().filter(|path| path.is_file()) {
        match fs::read(&path) {
            Ok(config) => extra.push(("config.toml", config)),
            Err(error) => tell!("warning: without the configuration: {}: {error}", path.display()),
        }
    }
    let extra: Vec<(&str, &[u8])> = extra.iter().map(|(name, bytes)| (*name, bytes.as_slice())).collect();
    let entries = Packed::pack(&captured, &extra, &arguments.output, keep)?;
    if arguments.json {
        return printer::json(&Listed { output: arguments.output.display().to_string(), entries: &entries });
    }
    let rows = entries.iter().map(|entry| vec![entry.path.clone(), bytes::display(entry.bytes)]);
    writeln!(printer::stdout(), "{}", table::listing(&["file", "size"], &["size"], rows))?;
    let left_out = match (keep.prompts, keep.names) {
        (false, false) => "; prompts, file names and secrets are left out, pictures and latents are in it",
        (true, false) => "; file names and secrets are left out, prompts, pictures and latents are in it",
        (false, true) => "; prompts and secrets are left out, file names, pictures and latents are in it",
        (true, true) => "; secrets are left out, prompts, file names, pictures and latents are in it",
    };
    tell!("wrote {}{left_out}", arguments.output.display());
    Ok(())
}

/// True if a value is a number or a switch, or the variable's name says that it is made of them:
/// any other may have names in it.
fn is_plain(variable: &str, value: &str) -> bool {
    const SWITCHES: [&str; 10] = ["", "on", "off", "yes", "no", "true", "false", "auto", "cpu", "cuda"];
    const OF_NUMBERS: [&str; 3] = ["_ALLOC_CONF", "_VISIBLE_DEVICES", "_GFX_VERSION"];
    let is_number =
        !value.is_empty() && value.chars().all(|letter| letter.is_ascii_digit() || ".,:-+%".contains(letter));
    is_number || SWITCHES.contains(&value) || OF_NUMBERS.iter().any(|end| variable.ends_with(end))
}

fn versions(with_names: bool) -> Outcome<Vec<u8>> {
    let set: serde_json::Map<String, serde_json::Value> = env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| PREFIXES.iter().any(|prefix| name.starts_with(prefix)))
        .map(|(name, value)| {
            let value = if with_names || is_plain(&name, &value) { value } else { LEFT_OUT.to_owned() };
            (name, value.into())
        })
        .collect();
    text(&json!({
        "tilewright": env!("CARGO_PKG_VERSION"),
        "system": env::consts::OS,
        "architecture": env::consts::ARCH,
        "environment": set,
    }))
}

fn text(value: &serde_json::Value) -> Outcome<Vec<u8>> {
    serde_json::to_vec_pretty(value).map_err(Failure::work)
}
