//! The shipped policies: compiled to WebAssembly and copied to the folder that the host embeds them
//! from.

use std::{ffi::OsString, fs, path::Path};

use anyhow::{Context, Result};

use crate::{project::Project, tools, wasm::WasmCompiler};

/// Compiles every folder of `policies/` but the SDK.
pub fn compile(project: &Project) -> Result<()> {
    let mut names: Vec<String> = fs::read_dir(project.root.join("policies"))?
        .flatten()
        .filter(|entry| entry.path().join("Cargo.toml").is_file() && entry.file_name() != "sdk")
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    tools::say(&format!("compiling the policies {}", names.join(", ")));
    let (mut cargo, modules) = WasmCompiler::find(project)?.cargo(project);
    for name in &names {
        cargo.arg("-p").arg(format!("policy-{name}"));
    }
    tools::run(&mut cargo)?;
    let place = project.policies();
    fs::create_dir_all(&place)?;
    for name in &names {
        let module = modules.join(format!("policy_{}.wasm", name.replace('-', "_")));
        let bytes = fs::read(&module).with_context(|| {
            format!("{} was not built: policies/{name}/Cargo.toml needs crate-type = [\"cdylib\"]", module.display())
        })?;
        let path = place.join(format!("{name}.wasm"));
        // An unchanged file stays, so that cargo rebuilds nothing.
        if fs::read(&path).is_ok_and(|now| now == bytes) {
            continue;
        }
        let mut unfinished = OsString::from(path.as_os_str());
        unfinished.push(".new");
        fs::write(&unfinished, bytes)?;
        fs::rename(&unfinished, &path).with_context(|| format!("{}", path.display()))?;
    }
    remove_others(&place, &names)
}

/// Removes modules of removed policies: the host would still embed them.
fn remove_others(place: &Path, names: &[String]) -> Result<()> {
    for entry in fs::read_dir(place)?.flatten() {
        let path = entry.path();
        let is_known = path.file_stem().is_some_and(|stem| names.iter().any(|name| stem == name.as_str()));
        if path.extension().is_some_and(|ending| ending == "wasm") && !is_known {
            fs::remove_file(&path).with_context(|| format!("{}", path.display()))?;
        }
    }
    Ok(())
}
