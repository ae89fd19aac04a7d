//! The program `tilewright`: arguments in, tables and files out.

#![forbid(unsafe_code)]
// Both macros panic if the reader has gone.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod args;
mod batch;
mod bench;
mod bug_report;
mod capture;
mod child;
mod config;
mod decode;
mod demo;
mod device;
mod embed;
mod encode;
mod failure;
mod files;
mod generate;
mod history;
mod inputs;
mod inspect;
mod libtorch;
mod log;
mod man;
mod model;
mod models;
mod naming;
mod output;
mod overlay;
mod policy;
mod printer;
mod profile;
mod progress;
mod replay;
mod report;
mod sample;
mod serve;
mod signals;
mod table;
mod tell;
mod text_stage;
mod words;
mod work;

use std::io::Write;

use clap::{CommandFactory, Parser, error::ErrorKind};
use signal_hook::low_level;
use tilewright_torch::backend;

use crate::{
    args::{Arguments, Command},
    failure::Outcome,
    tell::tell,
};

fn main() {
    let status = status();
    let _ = printer::raw_stdout().flush();
    // Not by a return, which runs libtorch's destructors: they take a tenth of a second, and
    // nothing is left for them to do. All that has to be undone is undone when the command returns.
    low_level::exit(i32::from(status));
}

/// Does what the arguments ask for, and returns the exit status.
fn status() -> u8 {
    signals::outlive_large_files();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand || !error.use_stderr() => {
            let _ = error.print();
            return u8::try_from(error.exit_code()).unwrap_or(2);
        }
        Err(error) => return refuse(&error),
    };
    tilewright_wording::speak(match arguments.command {
        Command::Serve(_) | Command::Config(_) => tilewright_service::WORDS,
        _ => words::WORDS,
    });
    if arguments.global.quiet {
        printer::be_quiet();
    }
    if let Some(folder) = &arguments.global.libtorch
        && let Err(failure) = libtorch::run_with(folder)
    {
        return failure.report();
    }
    backend::set_environment();
    device::trial::begin(&arguments.command);
    // A server logs and ends as its configuration says.
    if !matches!(arguments.command, Command::Serve(_)) {
        log::begin(arguments.global.verbose);
        signals::listen();
        device::say_what_is_measured();
    }
    let ended = run(arguments);
    capture::finish();
    match (ended, signals::status()) {
        (Ok(()), _) => 0,
        (Err(failure), None) => failure.report(),
        (Err(failure), Some(status)) => {
            match signals::advice() {
                Some(advice) => failure.and(advice).report(),
                None => failure.report(),
            };
            status
        }
    }
}

/// Reports wrong arguments in one line, like every other error: clap's first paragraph and its
/// suggestions, without the usage that follows.
fn refuse(error: &clap::Error) -> u8 {
    let text = error.render().to_string();
    let mut lines = text.lines().map(str::trim);
    let first = lines.next().unwrap_or_default();
    let listed: Vec<&str> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
    let space = if listed.is_empty() { "" } else { " " };
    let tips: String = lines.filter_map(|line| line.strip_prefix("tip: ")).map(|tip| format!("; {tip}")).collect();
    tell!("{first}{space}{}{tips} (see --help)", listed.join(", "));
    2
}

fn run(arguments: Arguments) -> Outcome {
    config::choose(arguments.global.config)?;
    let verbose = arguments.global.verbose;
    match arguments.command {
        Command::Decode(decode) => decode::run(*decode),
        Command::Encode(encode) => encode::run(*encode),
        Command::Generate(generate) => generate::run(*generate),
        Command::Embed(embed) => embed::run(&embed),
        Command::Sample(sample) => sample::run(&sample),
        Command::Bench(bench) => bench::run(&bench),
        Command::Replay(replay) => replay::run(&replay),
        Command::Report(report) => bug_report::run(&report),
        Command::Inspect(inspect) => inspect::run(&inspect),
        Command::Models(models) => models::run(&models),
        Command::Device(device) => device::run(&device),
        Command::Policy(policy) => policy::run(&policy),
        Command::History(history) => history::run(&history),
        Command::Config(config) => config::run(&config),
        Command::Serve(serve) => serve::run(&serve, verbose),
        Command::Demo(demo) => demo::run(&demo),
        Command::Completions { shell } => completions(shell),
        Command::Man { folder } => man::run(folder.as_deref()),
    }
}

/// Prints the script in one piece: the generator panics if the reader has gone, as with `| head`.
fn completions(shell: clap_complete::Shell) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "tilewright", &mut script);
    Ok(printer::raw_stdout().write_all(&script)?)
}
