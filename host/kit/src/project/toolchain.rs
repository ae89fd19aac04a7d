//! The languages' own tool-chains: found, run, or asked for with the command that installs them.
//! Each makes a module or component of a project.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::{Language, ProjectError};

/// The target of policies in Rust and C.
const TARGET: &str = "wasm32-unknown-unknown";

/// Lines kept of a failed tool's output.
const SAID: usize = 20;

/// The output of a tool-chain.
pub(super) struct ToolOutput {
    /// The program that made it.
    pub tool: String,
    /// A core module or a component.
    pub wasm: Vec<u8>,
    /// The tool's warnings.
    pub remarks: Vec<String>,
}

/// Runs the tool-chain of a project's language. `with_wasi` keeps imports of WASI, if the
/// language's runtime has them.
pub(super) fn make(project: &Path, language: Language, with_wasi: bool) -> Result<ToolOutput, ProjectError> {
    match language {
        Language::Rust => rust(project),
        Language::C => c(project),
        Language::Python => python(project, with_wasi),
        Language::Js => js(project, with_wasi),
    }
}

fn rust(project: &Path) -> Result<ToolOutput, ProjectError> {
    if read_output(Command::new("cargo").arg("--version")).is_none() {
        return missing("Rust", "install it from https://rustup.rs");
    }
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "--quiet", "--target", TARGET, "--message-format=json-render-diagnostics"]);
    // In a shared target folder, each project would find another's module under its own name, which
    // cargo takes for fresh.
    cargo.args(["--target-dir", "target"]);
    if !has_target(project) {
        from_source(&mut cargo, project)?;
    }
    let (output, remarks) = run("cargo", cargo.current_dir(project))?;
    let manifest = project.join("Cargo.toml");
    let modules = output.lines().filter_map(|line| artifact(line, &manifest));
    let [module] = &modules.collect::<Vec<_>>()[..] else {
        let detail = "Cargo.toml needs one library, with crate-type = [\"cdylib\"]".into();
        return Err(ProjectError::NoOutput { tool: "cargo".into(), detail });
    };
    Ok(ToolOutput { tool: "cargo".into(), wasm: fs::read(module).map_err(ProjectError::file(module))?, remarks })
}

/// The module in one of cargo's messages, if it belongs to this manifest.
fn artifact(message: &str, manifest: &Path) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    let is_own = Path::new(message["manifest_path"].as_str()?).canonicalize().ok()? == manifest.canonicalize().ok()?;
    let names = message["filenames"].as_array()?.iter().filter_map(|name| name.as_str());
    names.filter(|name| is_own && name.ends_with(".wasm")).map(PathBuf::from).next()
}

/// True if the compiler that cargo uses in this folder has the target's standard library.
fn has_target(project: &Path) -> bool {
    let root = read_output(Command::new("rustc").args(["--print", "sysroot"]).current_dir(project));
    root.is_some_and(|root| Path::new(&root).join("lib/rustlib").join(TARGET).join("lib").is_dir())
}

/// Without the target's standard library: Debian's compiler, which brings it as source, and any
/// linker for WebAssembly.
fn from_source(cargo: &mut Command, project: &Path) -> Result<(), ProjectError> {
    const DEBIAN: &str = "/usr/bin/rustc";
    let root = |rustc: &str| {
        read_output(Command::new(rustc).args(["--print", "sysroot"]).current_dir(project)).map(PathBuf::from)
    };
    let sources = root(DEBIAN).filter(|root| root.join("lib/rustlib/src/rust/library/std/Cargo.toml").is_file());
    let own = root("rustc")
        .map(|root| root.join(format!("lib/rustlib/{}-unknown-linux-gnu/bin/rust-lld", env::consts::ARCH)));
    let linker = own.into_iter().chain([PathBuf::from("/usr/bin/wasm-ld")]).find(|linker| linker.is_file());
    let (Some(_), Some(linker)) = (sources, linker) else {
        return missing(
            "Rust's WebAssembly target",
            "run 'rustup target add wasm32-unknown-unknown' (without rustup, on Debian: apt install rustc-web rust-web-src lld)",
        );
    };
    cargo
        .env("RUSTC", DEBIAN)
        .env("RUSTC_BOOTSTRAP", "1")
        .env_remove("LD_LIBRARY_PATH")
        .env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", linker)
        .arg("-Zbuild-std=std,panic_abort");
    Ok(())
}

/// Options of every compiler for C. Without `-fno-builtin` it would replace the loops of memory.c
/// by calls of the functions that they implement.
const C_OPTIONS: [&str; 13] = [
    "-std=c11",
    "-O2",
    "-ffreestanding",
    "-fno-builtin",
    "-nostdlib",
    "-Isdk",
    "-Isdk/freestanding",
    "-Wl,--no-entry",
    "-Wl,--gc-sections",
    "-Wl,--strip-all",
    "-Wl,-z,stack-size=65536",
    "-o",
    "build/policy.wasm",
];

/// Compilers for C that can make WebAssembly: their commands, and further options of each.
const C_COMPILERS: [(&[&str], &[&str]); 3] = [
    (&["clang"], &["--target=wasm32-unknown-unknown"]),
    (&["zig", "cc"], &["-target", "wasm32-freestanding", "-fno-sanitize=undefined"]),
    (&["python3", "-m", "ziglang", "cc"], &["-target", "wasm32-freestanding", "-fno-sanitize=undefined"]),
];

fn c(project: &Path) -> Result<ToolOutput, ProjectError> {
    let works = |words: &[&str]| match words {
        ["clang"] => {
            let targets = read_output(Command::new("clang").arg("--print-targets"));
            targets.is_some_and(|targets| targets.contains("wasm32"))
                && read_output(Command::new("wasm-ld").arg("--version")).is_some()
        }
        _ => read_output(Command::new(words[0]).args(&words[1..]).arg("--version")).is_some(),
    };
    let Some((words, options)) = C_COMPILERS.iter().find(|(words, _)| works(words)) else {
        return missing(
            "a C compiler for WebAssembly",
            "install clang and lld (on Debian: apt install clang lld), or zig (pip install ziglang)",
        );
    };
    let mut compiler = Command::new(words[0]);
    compiler.args(&words[1..]).args(*options).args(C_OPTIONS);
    for (folder, is_policy) in [("", true), ("sdk", false)] {
        let read = fs::read_dir(project.join(folder)).map_err(ProjectError::file(project.join(folder)))?;
        let mut sources: Vec<PathBuf> = read.flatten().map(|entry| Path::new(folder).join(entry.file_name())).collect();
        sources.retain(|source| source.extension().is_some_and(|ending| ending == "c"));
        sources.retain(|source| !(is_policy && source.to_string_lossy().starts_with("test")));
        sources.sort();
        compiler.args(sources);
    }
    fs::create_dir_all(project.join("build")).map_err(ProjectError::file(project.join("build")))?;
    let tool = words.join(" ");
    let (_, remarks) = run(&tool, compiler.current_dir(project))?;
    let module = project.join("build/policy.wasm");
    Ok(ToolOutput { tool, wasm: fs::read(&module).map_err(ProjectError::file(&module))?, remarks })
}

fn python(project: &Path, with_wasi: bool) -> Result<ToolOutput, ProjectError> {
    let tool = "componentize-py";
    if read_output(Command::new(tool).arg("--version")).is_none() {
        return missing(
            "componentize-py",
            "run 'pip install -r requirements.txt' in the project, or put it on the PATH",
        );
    }
    let command = || {
        let mut command = Command::new(tool);
        command.current_dir(project).args(["--quiet", "--wit-path", "wit", "--world", "policy"]);
        command
    };
    // For the author's editor and tests: generated by every build.
    let bindings = project.join("bindings");
    if bindings.exists() {
        fs::remove_dir_all(&bindings).map_err(ProjectError::file(&bindings))?;
    }
    run(tool, command().arg("bindings").arg(&bindings))?;
    let aside = tempfile::tempdir().map_err(ProjectError::file(env::temp_dir()))?;
    let made = aside.path().join("policy.wasm");
    let mut componentize = command();
    componentize.args(["componentize", "app", "--python-path", ".", "--output"]).arg(&made);
    if !with_wasi {
        componentize.arg("--stub-wasi");
    }
    let (_, remarks) = run(tool, &mut componentize)?;
    Ok(ToolOutput { tool: tool.into(), wasm: fs::read(&made).map_err(ProjectError::file(&made))?, remarks })
}

fn js(project: &Path, with_wasi: bool) -> Result<ToolOutput, ProjectError> {
    let own = project.join("node_modules/.bin/componentize-qjs");
    let tool = if own.exists() { fs::canonicalize(&own).unwrap_or(own) } else { "componentize-qjs".into() };
    if read_output(Command::new("node").arg("--version")).is_none() {
        return missing(
            "Node.js",
            "install version 20 or later from https://nodejs.org (on Debian: apt install nodejs npm)",
        );
    }
    if read_output(Command::new(&tool).arg("--help")).is_none() {
        return missing("componentize-qjs", "run 'npm install' in the project");
    }
    let aside = tempfile::tempdir().map_err(ProjectError::file(env::temp_dir()))?;
    let made = aside.path().join("policy.wasm");
    let mut componentize = Command::new(&tool);
    componentize.current_dir(project).args(["--wit", "wit", "--world", "policy", "--js", "policy.js"]);
    // The sandbox has no asynchronous calls.
    componentize.args(["--sync", "--opt-size", "--minify", "--output"]).arg(&made);
    if !with_wasi {
        componentize.arg("--stub-wasi");
    }
    run("componentize-qjs", &mut componentize)?;
    let wasm = fs::read(&made).map_err(ProjectError::file(&made))?;
    Ok(ToolOutput { tool: "componentize-qjs".into(), wasm, remarks: Vec::new() })
}

/// Binaryen's optimiser on a core module, if it is installed and makes it smaller.
pub(super) fn optimise(module: &[u8]) -> Option<Vec<u8>> {
    read_output(Command::new("wasm-opt").arg("--version"))?;
    let aside = tempfile::tempdir().ok()?;
    let (from, to) = (aside.path().join("from.wasm"), aside.path().join("to.wasm"));
    fs::write(&from, module).ok()?;
    read_output(Command::new("wasm-opt").args(["-Oz", "--strip-debug"]).arg(&from).arg("-o").arg(&to))?;
    fs::read(&to).ok().filter(|smaller| smaller.len() < module.len())
}

fn missing<T>(what: &'static str, advice: &str) -> Result<T, ProjectError> {
    Err(ProjectError::Missing { what, advice: advice.into() })
}

/// A command's output; none if it can't be run or fails.
fn read_output(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Runs a tool; returns its output, and its lines on standard error.
fn run(tool: &str, command: &mut Command) -> Result<(String, Vec<String>), ProjectError> {
    let started = command.stdin(Stdio::null()).output();
    let output = started.map_err(|error: io::Error| ProjectError::Tool {
        tool: tool.into(),
        status: "it can't be started".into(),
        said: vec![error.to_string()],
    })?;
    let lines = |bytes: &[u8]| -> Vec<String> {
        let text = String::from_utf8_lossy(bytes);
        text.lines().map(str::trim_end).filter(|line| !line.is_empty()).map(str::to_owned).collect()
    };
    let mut said = lines(&output.stderr);
    if output.status.success() {
        return Ok((String::from_utf8_lossy(&output.stdout).into_owned(), said));
    }
    // Some tools complain on standard output.
    if said.is_empty() {
        said = lines(&output.stdout);
    }
    let said = said.split_off(said.len().saturating_sub(SAID));
    let status = output.status.code().map_or("it was killed".into(), |code| format!("exit status {code}"));
    Err(ProjectError::Tool { tool: tool.into(), status, said })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tools_last_lines_come_along() {
        let script = "echo first >&2; for i in $(seq 30); do echo line $i >&2; done; exit 3";
        let Err(error) = run("sh", Command::new("sh").args(["-c", script])) else { panic!("it fails") };
        assert_eq!(error.to_string(), "sh failed (exit status 3): line 30");
        assert_eq!((error.last_lines().len(), error.last_lines()[0].as_str()), (SAID, "line 11"));
        let (output, said) = run("sh", Command::new("sh").args(["-c", "echo out; echo remark >&2"])).unwrap();
        assert_eq!((output.as_str(), said), ("out\n", vec!["remark".to_owned()]));
        assert!(run("nowhere", &mut Command::new("/nowhere/at-all")).is_err());
    }

    #[test]
    fn only_the_projects_own_module_is_taken() {
        let place = tempfile::tempdir().unwrap();
        let (own, other) = (place.path().join("Cargo.toml"), place.path().join("other.toml"));
        for manifest in [&own, &other] {
            fs::write(manifest, "").unwrap();
        }
        let message = |manifest: &Path, file: &str| {
            serde_json::json!({"reason": "compiler-artifact", "manifest_path": manifest, "filenames": [file]})
                .to_string()
        };
        assert_eq!(artifact(&message(&own, "/t/p.wasm"), &own), Some("/t/p.wasm".into()));
        assert_eq!(artifact(&message(&own, "/t/libp.rlib"), &own), None);
        assert_eq!(artifact(&message(&other, "/t/p.wasm"), &own), None);
        assert_eq!(artifact("not json", &own), None);
    }
}
