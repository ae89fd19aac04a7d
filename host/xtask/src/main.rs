//! `cargo xtask …`: set-up, build, test, demonstration, judging. Each performs the missing steps
//! before it, can be run again safely, and may be interrupted at any point.

mod bundle;
mod crates;
mod device_day;
mod downloads;
mod integrations;
mod judge;
mod languages;
mod libtorch;
mod notices;
mod policies;
mod program;
mod project;
#[cfg(test)]
mod prose;
mod python_tests;
mod release;
mod suite;
mod tools;
#[cfg(test)]
mod tracked;
mod wasm;
mod wheel;
mod wheels;

use std::{env, fs::File, process::ExitCode, thread};

use anyhow::{Context, Result, anyhow};
use clap::{Args, Parser, Subcommand};

use crate::{
    libtorch::{Flavour, Source},
    project::Project,
};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Sets Tilewright up, builds and tests it")]
struct Arguments {
    #[command(subcommand)]
    step: Step,
}

#[derive(Subcommand)]
enum Step {
    /// Fetch libtorch, get ready to compile policies, and compile those that ship
    Setup(Setup),
    /// Build the program (after setup, where it is missing)
    Build {
        /// Passed on to cargo, as in --release
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Generate a picture of a prompt, decode the bundled picture and clip, and show what was
    /// decided (after build)
    Demo,
    /// Run every test, also after failures, and name those that failed at the end (after setup)
    Test {
        /// Test inside real diffusers and ComfyUI instead, which fetches 5 GB at first (after
        /// build); further arguments are pytest's
        #[arg(long)]
        comfyui: bool,
        /// Passed on to cargo, as in -p tilewright-engine
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Pack the program with a script that checks a device elsewhere (after build)
    Bundle {
        /// Pack the fastest program, which takes longer to build
        #[arg(long)]
        release: bool,
    },
    /// Prepare a folder for benches/device-day, which compares with PyTorch on a lent GPU (after
    /// build)
    DeviceDay {
        /// Pack the debug build, which may be too large to travel
        #[arg(long)]
        debug: bool,
    },
    /// Build the two Python wheels: tilewright, and tilewright-engine with the program in it
    Wheel {
        /// The folder for them
        #[arg(long, value_name = "FOLDER", default_value = "target/wheels")]
        out: std::path::PathBuf,
    },
    /// Make a release of a clean tree: the wheels, checksums, signatures, a bill of materials, the
    /// recipe of an image, and what has changed; publishes nothing
    Release(release::Arguments),
    /// Let other people's programs judge a running service (after build)
    Judge(judge::Arguments),
}

#[derive(Args, Default)]
struct Setup {
    /// Which libtorch to fetch; only decides what devices the program can use, nothing is built
    /// again
    #[arg(long, value_enum)]
    flavour: Option<Flavour>,
    /// The source of the ROCm wheels: the URL of PyTorch's own wheel index for your ROCm version
    #[arg(long, value_name = "URL")]
    index_url: Option<String>,
    /// Use this unpacked libtorch 2.11 instead of fetching one
    #[arg(long, value_name = "DIR", conflicts_with_all = ["flavour", "pytorch"])]
    libtorch: Option<std::path::PathBuf>,
    /// Use the PyTorch 2.11 that python3 has instead of fetching one
    #[arg(long, conflicts_with = "flavour")]
    pytorch: bool,
}

fn main() -> ExitCode {
    match run(Arguments::parse().step) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            if error.is::<release::Refused>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

fn run(step: Step) -> Result<()> {
    let project = Project::find()?;
    match step {
        Step::Setup(arguments) => {
            let source = match (arguments.libtorch, arguments.pytorch, arguments.flavour) {
                (Some(folder), ..) => Some(Source::Folder(folder)),
                (None, true, _) => Some(Source::InstalledPyTorch),
                (None, false, Some(flavour)) => Some(Source::Wheels(flavour, arguments.index_url)),
                (None, false, None) => None,
            };
            setup(&project, source)?;
            println!("set up; next: cargo xtask demo, or cargo xtask test");
            Ok(())
        }
        Step::Build { arguments } => {
            setup(&project, None)?;
            build(&project, &arguments)
        }
        Step::Demo => {
            tools::say("step 1 of 3: what the program is built with");
            setup(&project, None)?;
            tools::say("step 2 of 3: the program");
            build(&project, &[])?;
            tools::say("step 3 of 3: a picture and a clip");
            demo(&project)
        }
        Step::Test { comfyui: true, arguments } => {
            setup(&project, None)?;
            build(&project, &[])?;
            integrations::run(&project, &python_tests::environment(&project)?, &arguments)
        }
        Step::Test { comfyui: false, arguments } => {
            setup(&project, None)?;
            let mut missing = tools::counterparts();
            missing.extend(languages::prepare(&project)?);
            let (python, without_python) =
                if names_some(&arguments) { (None, None) } else { python_tests::prepare(&project)? };
            missing.extend(without_python);
            tools::say("testing everything (the first time compiles for about ten minutes on two cores)");
            let profile = profile(&arguments);
            let cargo = || {
                let mut command = project.cargo();
                command.envs(missing.iter().map(|variable| (variable, "1")));
                command
            };
            let tested = suite::run(cargo, &with_packages(arguments));
            // Also after failures: each run names all of its own.
            let python = python.map_or(Ok(()), |python| python_tests::run(&project, &python, profile));
            tested.and(python)?;
            if !missing.is_empty() {
                tools::say(&format!("passed, but for what can't be had here, see above: {}", missing.join(", ")));
            }
            Ok(())
        }
        Step::Bundle { release } => {
            let profile = build_to_pack(&project, release)?;
            bundle::pack(&project, profile)
        }
        Step::DeviceDay { debug } => {
            let profile = build_to_pack(&project, !debug)?;
            device_day::prepare(&project, profile)
        }
        Step::Wheel { out } => {
            setup(&project, None)?;
            wheel::build(&project, &out)
        }
        Step::Release(arguments) => {
            let release = release::Release::prepare(&project, arguments)?;
            setup(&project, None)?;
            release.make(&project, |folder| wheel::build(&project, folder))
        }
        Step::Judge(arguments) => {
            if arguments.program.is_none() {
                setup(&project, None)?;
            }
            // Before the build, so that a missing requirement is reported at once.
            let panel = judge::Judges::bring(&project, arguments)?;
            if !panel.has_program() {
                build(&project, &[])?;
            }
            panel.judge()
        }
    }
}

/// Builds the program for another machine. Returns the profile.
fn build_to_pack(project: &Project, release: bool) -> Result<&'static str> {
    setup(project, None)?;
    let (arguments, profile) = if release { (vec!["--release".to_owned()], "release") } else { (Vec::new(), "debug") };
    build(project, &arguments)?;
    Ok(profile)
}

/// Sets up everything that building needs; without a source, an existing libtorch stays. The
/// policies need no libtorch: they are compiled while it is fetched.
fn setup(project: &Project, source: Option<Source>) -> Result<()> {
    let lock = project.lock()?;
    tools::compiler()?;
    thread::scope(|scope| {
        let policies = scope.spawn(|| policies::compile(project));
        tools::ffmpeg();
        let libtorch = set_up_libtorch(project, &lock, source);
        let policies = policies.join().unwrap_or_else(|_| Err(anyhow!("compiling the policies ended in a panic")));
        libtorch.and(policies)
    })
}

fn set_up_libtorch(project: &Project, lock: &File, source: Option<Source>) -> Result<()> {
    let Some(own) = env::var_os("LIBTORCH").filter(|own| *own != project.link().as_os_str()) else {
        return libtorch::prepare(project, lock, source);
    };
    tools::say(&format!("LIBTORCH is set: {} is used, and none is fetched", own.display()));
    libtorch::check(own.as_ref()).context("LIBTORCH is set to a folder that doesn't serve; correct it, or unset it")
}

/// The arguments that are for `cargo test` itself, and not for the tests.
fn own(arguments: &[String]) -> impl Iterator<Item = &str> {
    arguments.iter().map(String::as_str).take_while(|argument| *argument != "--")
}

/// True if an argument is an option of one of these names, with its value or without.
fn is_one_of(argument: &str, names: &[&str]) -> bool {
    names.contains(&argument.split('=').next().unwrap_or_default())
}

/// True if an argument of `cargo test` names a package, as `-p NAME` and `-pNAME` do.
fn names_package(argument: &str) -> bool {
    is_one_of(argument, &["--package"]) || (argument.starts_with("-p") && !argument.starts_with("--"))
}

/// True if arguments of `cargo test` are not for every test: they name packages, targets or, as the
/// first of them, tests; or none is to be run.
fn names_some(arguments: &[String]) -> bool {
    const NARROWER: [&str; 11] = [
        "--lib",
        "--bin",
        "--bins",
        "--example",
        "--examples",
        "--test",
        "--tests",
        "--bench",
        "--benches",
        "--doc",
        "--no-run",
    ];
    own(arguments).next().is_some_and(|first| !first.starts_with('-'))
        || own(arguments).any(|argument| names_package(argument) || is_one_of(argument, &NARROWER))
}

/// Arguments of `cargo test` that are about all packages, unless they name some.
fn with_packages(arguments: Vec<String>) -> Vec<String> {
    let all = match own(&arguments).any(|argument| is_one_of(argument, &["--workspace", "--all"])) {
        // cargo takes it once.
        true => &suite::ALL[1..],
        false => suite::ALL,
    };
    if arguments.is_empty() || own(&arguments).any(names_package) {
        return arguments;
    }
    all.iter().map(|word| (*word).to_owned()).chain(arguments).collect()
}

/// The profile that arguments of cargo ask for.
fn profile(arguments: &[String]) -> &'static str {
    if own(arguments).any(|argument| is_one_of(argument, &["--release", "-r"])) { "release" } else { "debug" }
}

fn build(project: &Project, arguments: &[String]) -> Result<()> {
    if arguments.is_empty() {
        program::build(project)?;
    } else {
        tools::say("compiling the program (the first time takes about ten minutes on two cores)");
        tools::run(project.cargo().args(["build", "-p", "tilewright-cli"]).args(arguments))?;
    }
    println!("built {}", project.program(profile(arguments)).display());
    Ok(())
}

/// Runs `tilewright demo`, into the folder `out`.
fn demo(project: &Project) -> Result<()> {
    let mut run = std::process::Command::new(project.program("debug"));
    // cargo's target folder may be elsewhere.
    run.args(["demo", "-o", "out", "--examples"]).arg(project.root.join("examples"));
    tools::run(run.current_dir(&project.root))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn arguments_are_well_formed() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn what_is_tested_is_what_the_arguments_name() {
        let given = |arguments: &[&str]| arguments.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let names = |arguments: &[&str]| names_some(&given(arguments));
        assert!(names(&["-p", "xtask"]) && names(&["--package=xtask"]) && names(&["-pxtask"]));
        assert!(names(&["--release", "--test", "end_to_end"]) && names(&["decode"]) && names(&["--no-run"]));
        assert!(!names(&[]) && !names(&["--release"]) && !names(&["--", "-p"]) && !names(&["--", "--nocapture"]));
        let tested = |arguments: &[&str]| with_packages(given(arguments)).join(" ");
        let all = suite::ALL.join(" ");
        assert_eq!(tested(&["--release"]), format!("{all} --release"));
        assert_eq!(tested(&["--workspace"]), all.replace("--workspace ", "") + " --workspace");
        assert_eq!((tested(&[]), tested(&["-p", "xtask"])), (String::new(), "-p xtask".into()));
        assert_eq!((profile(&given(&["-r"])), profile(&given(&["--", "-r"]))), ("release", "debug"));
    }
}
