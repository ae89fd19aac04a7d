//! The program `tilewright`: arguments in, tables and files out.

#![forbid(unsafe_code)]
// Both panic where nobody reads any more.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod args;
mod batch;
mod bench;
mod config;
mod decode;
mod device;
mod encode;
mod failure;
mod files;
mod history;
mod inputs;
mod inspect;
mod libtorch;
mod naming;
mod output;
mod overlay;
mod policy;
mod progress;
mod report;
mod serve;
mod table;
mod tell;
mod workplace;

use std::{io, process::ExitCode};

use clap::{CommandFactory, Parser, error::ErrorKind};
use tracing_subscriber::EnvFilter;

use crate::{
    args::{Arguments, Command},
    failure::Outcome,
    tell::tell,
};

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(help) if matches!(help.kind(), ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand) => help.exit(),
        Err(error) if error.use_stderr() => return refuse(&error),
        Err(help_or_version) => help_or_version.exit(),
    };
    // A server logs as its configuration says.
    if !matches!(arguments.command, Command::Serve(_)) {
        log_to_standard_error(arguments.global.verbose);
    }
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Wrong arguments in one line, like every other error: clap's first paragraph, without the usage that follows.
fn refuse(error: &clap::Error) -> ExitCode {
    let text = error.render().to_string();
    let paragraph: Vec<&str> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    tell!("{} (see --help)", paragraph.join(" "));
    ExitCode::from(2)
}

fn run(arguments: Arguments) -> Outcome {
    if let Some(folder) = &arguments.global.libtorch {
        libtorch::run_with(folder)?;
    }
    config::choose(arguments.global.config);
    let verbose = arguments.global.verbose;
    match arguments.command {
        Command::Decode(decode) => decode::run(&decode),
        Command::Encode(encode) => encode::run(&encode),
        Command::Bench(bench) => bench::run(&bench),
        Command::Inspect(inspect) => inspect::run(&inspect),
        Command::Device(device) => device::run(&device),
        Command::Policy(policy) => policy::run(&policy),
        Command::History(history) => history::run(&history),
        Command::Config(config) => config::run(&config),
        Command::Serve(serve) => serve::run(&serve, verbose),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Arguments::command(), "tilewright", &mut io::stdout());
            Ok(())
        }
    }
}

fn log_to_standard_error(verbose: u8) {
    let level = ["warn", "info", "debug", "trace"][usize::from(verbose.min(3))];
    let from_environment = EnvFilter::try_from_env("TILEWRIGHT_LOG").ok().filter(|_| verbose == 0);
    // The sandbox's compiler logs every function that it compiles.
    let filter = from_environment
        .unwrap_or_else(|| EnvFilter::new(format!("{level},cranelift=warn,wasmtime=warn,regalloc2=warn")));
    let color =
        std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) && io::IsTerminal::is_terminal(&io::stderr());
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(color).without_time();
    // It would be told of on standard error, too.
    log.log_internal_errors(false).init();
}
