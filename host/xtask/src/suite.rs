//! The run of every test: `cargo test` goes on after a failure, its output is passed on as it
//! comes, and what failed is named at the end, however many hours of output are above it.

use std::{
    env,
    io::{self, BufRead, BufReader, IsTerminal, Write},
    num::NonZero,
    process::{Command, ExitStatus},
    sync::{Mutex, PoisonError},
    thread,
};

use anyhow::{Context, Result, bail};

/// The targets of the end-to-end tests, and all others: the first ones wait for processes, and most
/// of the others for each other.
const END_TO_END: &[&str] = &["--test", "end_to_end"];
const OTHERS: &[&str] = &["--lib", "--bins", "--examples", "--test", "[!e]*", "--test", "e[!n]*", "--test", "en[!d]*"];
const DOCUMENTATION: &[&str] = &["--doc"];

/// All packages but the Python package's native module: it is no program without an interpreter,
/// and has tests of its own.
pub const ALL: &[&str] = &["--workspace", "--exclude", "tilewright-python"];

/// The variable that says how many tests may run at once. Of the end-to-end tests one more runs
/// than there are cores: some of them wait most of their time.
const THREADS: &str = "RUST_TEST_THREADS";

/// The kernels of oneDNN that tests run with, unless the user chooses others: the memory that they
/// hold differs by processor, and bounds on estimates are those of one kind. With AMX a small
/// convolution in 16 bits holds 150 KB more, which the probe of a large one does not tell
/// (oneDNN, "CPU Dispatcher Control").
const KERNELS: (&str, &str) = ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16");

/// The commands that run together: those of a lane one after the other, the lanes side by side.
type Lanes = Vec<Vec<Command>>;

/// Runs `cargo test` with these arguments to its end; with none, all tests of the workspace.
/// `cargo` makes a command without arguments.
///
/// # Errors
/// If a test failed; all of them are named on standard output before.
pub fn run(cargo: impl Fn() -> Command, arguments: &[String]) -> Result<()> {
    let test = |words: &[&str]| {
        let mut command = cargo();
        command.arg("test").args(words);
        choose_kernels(&mut command);
        command
    };
    if !arguments.is_empty() {
        return finish(watch_all(vec![vec![test(&going_on(arguments))]])?);
    }
    // Built first: a lane would wait for the other one's compiler.
    let status = test(&[ALL, &["--no-run"]].concat()).status().context("cargo can't be started")?;
    if !status.success() {
        bail!("cargo test --no-run failed ({status})");
    }
    let of = |targets: &[&str]| test(&[ALL, &["--no-fail-fast"], targets].concat());
    let mut end_to_end = of(END_TO_END);
    if env::var_os(THREADS).is_none() {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        end_to_end.env(THREADS, (cores + 1).to_string());
    }
    finish(watch_all(vec![vec![end_to_end], vec![of(OTHERS), of(DOCUMENTATION)]])?)
}

/// Gives a command the tests' kernels of oneDNN.
pub fn choose_kernels(command: &mut Command) {
    if env::var_os(KERNELS.0).is_none() {
        command.env(KERNELS.0, KERNELS.1);
    }
}

/// Names what failed.
fn finish(ended: Vec<(Vec<String>, ExitStatus)>) -> Result<()> {
    let failures: Vec<&String> = ended.iter().flat_map(|(failures, _)| failures).collect();
    if !failures.is_empty() {
        println!("\nfailed:");
        failures.iter().for_each(|name| println!("    {name}"));
        let number = failures.len();
        bail!("{number} test{} failed, named above", if number == 1 { "" } else { "s" });
    }
    if let Some((_, status)) = ended.iter().find(|(_, status)| !status.success()) {
        bail!("cargo test failed ({status}), before it ran a test or after the last");
    }
    Ok(())
}

/// Runs lanes to their ends; gives each command's failures and status. The first lane's output is
/// passed on line by line, that of the others whenever a target has ended.
fn watch_all(lanes: Lanes) -> Result<Vec<(Vec<String>, ExitStatus)>> {
    let out = Mutex::new(io::stdout());
    let lanes = thread::scope(|scope| {
        let run = |(index, lane): (usize, Vec<Command>)| {
            let out = &out;
            scope.spawn(move || {
                lane.into_iter().map(|command| watch_one(command, index == 0, out)).collect::<Result<Vec<_>>>()
            })
        };
        let workers: Vec<_> = lanes.into_iter().enumerate().map(run).collect();
        let ended = workers.into_iter().map(|worker| worker.join().unwrap_or_else(|_| bail!("a lane has panicked")));
        ended.collect::<Result<Vec<_>>>()
    })?;
    Ok(lanes.into_iter().flatten().collect())
}

fn watch_one(mut command: Command, is_live: bool, out: &Mutex<io::Stdout>) -> Result<(Vec<String>, ExitStatus)> {
    // One pipe for both streams keeps their order: cargo names a target on one, and the target its
    // tests on the other.
    let (reader, writer) = io::pipe()?;
    command.stdout(writer.try_clone()?).stderr(writer);
    if io::stdout().is_terminal() && env::var_os("CARGO_TERM_COLOR").is_none() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    let mut child = command.spawn().with_context(|| format!("{:?} can't be started", command.get_program()))?;
    // The command holds ends of the pipe, too, which would never be at its end.
    command.stdout(io::stdout()).stderr(io::stderr());
    let mut waiting = Vec::new();
    let mut pass_on = |line: &[u8], ends_target: bool| {
        waiting.extend_from_slice(line);
        if !is_live && !ends_target {
            return Ok(());
        }
        let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
        out.write_all(&waiting)?;
        waiting.clear();
        out.flush()
    };
    let failures = watch(&mut BufReader::new(reader), &mut pass_on)?;
    Ok((failures, child.wait()?))
}

/// The arguments of `cargo test`, so that it goes on after a target with a failure.
fn going_on(arguments: &[String]) -> Vec<&str> {
    const GOING_ON: &str = "--no-fail-fast";
    let is_own = |argument: &&String| *argument != "--";
    let is_given = arguments.iter().take_while(is_own).any(|argument| argument == GOING_ON);
    let own = if is_given { None } else { Some(GOING_ON) };
    own.into_iter().chain(arguments.iter().map(String::as_str)).collect()
}

/// Passes lines on, each with whether a target ends at it, and at the end an empty one; returns the
/// names of the tests that failed.
fn watch(lines: &mut impl BufRead, pass_on: &mut dyn FnMut(&[u8], bool) -> io::Result<()>) -> io::Result<Vec<String>> {
    let (mut failures, mut line) = (Failures::default(), Vec::new());
    while lines.read_until(b'\n', &mut line)? > 0 {
        let words = plain(&String::from_utf8_lossy(&line));
        pass_on(&line, words.starts_with("test result: "))?;
        failures.hear(&words);
        line.clear();
    }
    pass_on(&[], true)?;
    Ok(failures.end())
}

/// A line without its end and the escape sequences of colours.
fn plain(line: &str) -> String {
    let mut parts = line.trim_end().split('\x1b');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').map_or("", |(_, rest)| rest))
}

/// The tests that failed, as far as the output goes.
#[derive(Default)]
struct Failures {
    /// Complete names, as in `tilewright-gate/gate: what_ships_passes`.
    named: Vec<String>,
    /// The target that runs, as cargo shows it; none between two.
    running: Option<String>,
    /// The target's list of failures, which libtest prints last before its result.
    listed: Vec<String>,
    /// Tests of the target that failed, while its package is not known yet.
    unnamed: Vec<String>,
    /// True if the target has given its result.
    has_result: bool,
}

impl Failures {
    fn hear(&mut self, line: &str) {
        let words = line.trim_start();
        let target = ["Running ", "Doc-tests "].iter().find_map(|verb| words.strip_prefix(verb));
        if let Some(target) = target.filter(|_| line.starts_with("  ")) {
            self.leave();
            self.running = Some(target.to_owned());
        } else if let Some(result) = line.strip_prefix("test result: ") {
            self.has_result = true;
            let failed = failed(result);
            // Whatever else was printed between the list and the result is before the list's end.
            self.unnamed.extend(self.listed.split_off(self.listed.len().saturating_sub(failed)));
            self.listed.clear();
        } else if line == "failures:" {
            self.listed.clear();
        } else if let Some(name) = line.strip_prefix("    ").filter(|name| !name.starts_with(' ')) {
            self.listed.push(name.to_owned());
        } else if let Some(rerun) = rerun(line) {
            self.name(&target_of(rerun));
        }
    }

    /// Names what failed in a target; a target that gave no result failed as a whole.
    fn name(&mut self, target: &str) {
        if !self.has_result {
            self.unnamed.push("it ended without a result".to_owned());
        }
        self.named.extend(self.unnamed.drain(..).map(|test| format!("{target}: {test}")));
        (self.running, self.has_result) = (None, false);
        self.listed.clear();
    }

    /// Leaves a target of which cargo said nothing more.
    fn leave(&mut self) {
        if let Some(target) = self.running.take().filter(|_| !self.unnamed.is_empty()) {
            self.name(&target);
        }
        self.has_result = false;
        self.listed.clear();
    }

    fn end(mut self) -> Vec<String> {
        self.leave();
        self.named
    }
}

/// The number of failed tests in `FAILED. 3 passed; 1 failed; …`.
fn failed(result: &str) -> usize {
    let before = result.split(';').find_map(|part| part.trim().strip_suffix(" failed"));
    before.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// The arguments that would run a failed target again, in
/// ``error: test failed, to rerun pass `-p tilewright-gate --test gate` ``. A process that was
/// killed may have left the line begun.
fn rerun(error: &str) -> Option<&str> {
    let (_, rest) = error.split_once("test failed, to rerun pass `")?;
    rest.split('`').next()
}

/// A target's short name, `tilewright-gate/gate` for `-p tilewright-gate --test gate`.
fn target_of(rerun: &str) -> String {
    let mut words = rerun.split_whitespace().peekable();
    let (mut package, mut target) = (None, None);
    while let Some(word) = words.next() {
        match word {
            "-p" | "--package" => package = words.next(),
            "--lib" | "--doc" => target = Some(word.trim_start_matches('-')),
            _ if word.starts_with("--") => target = words.next_if(|next| !next.starts_with('-')),
            _ => {}
        }
    }
    let parts: Vec<&str> = package.into_iter().chain(target).collect();
    if parts.is_empty() { rerun.to_owned() } else { parts.join("/") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of `cargo test --no-fail-fast` of cargo 1.95, cut short: a target that passes,
    /// two with failures, one that was killed, and doc tests.
    const OUTPUT: &str = include_str!("suite/output.txt");

    fn watched(output: &str) -> (Vec<String>, String) {
        let mut passed_on = Vec::new();
        let mut pass_on = |line: &[u8], _: bool| {
            passed_on.extend_from_slice(line);
            Ok(())
        };
        let failures = watch(&mut output.as_bytes(), &mut pass_on).unwrap();
        (failures, String::from_utf8(passed_on).unwrap())
    }

    #[test]
    fn every_failure_is_named_and_the_output_passed_on() {
        let (failures, passed_on) = watched(OUTPUT);
        assert_eq!(
            failures,
            [
                "tilewright-gate/lib: judge::tests::one",
                "tilewright-gate/gate: instances_that_are_slow",
                "tilewright-gate/gate: what_ships_passes",
                "tilewright-cli/end_to_end: it ended without a result",
                "tilewright-plan/doc: host/plan/src/lib.rs - words::with_noun (line 12)",
            ]
        );
        assert_eq!(passed_on, OUTPUT);
        assert_eq!(passed_on.lines().filter(|line| line.starts_with("test result: ")).count(), 4, "for .ci/run");
    }

    #[test]
    fn colours_hide_nothing() {
        let coloured =
            OUTPUT.replace("FAILED", "\x1b[31mFAILED\x1b[m").replace("error: ", "\x1b[1m\x1b[91merror\x1b[0m: ");
        let coloured = coloured.replace("     Running", "\x1b[1m\x1b[92m     Running\x1b[0m");
        assert_eq!(watched(&coloured).0, watched(OUTPUT).0);
    }

    #[test]
    fn all_that_passes_is_named_nowhere() {
        let output = "     Running unittests src/lib.rs (target/debug/deps/a-1)\n\nrunning 1 test\ntest a ... ok\n\n\
            test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\n";
        assert_eq!(watched(output).0, Vec::<String>::new());
        // A build that failed is no test: cargo's status says so.
        assert_eq!(watched("error: could not compile `a` (lib) due to 1 previous error\n").0, Vec::<String>::new());
    }

    #[test]
    fn lines_between_the_list_and_the_result_are_no_tests() {
        let output = "     Running tests/a.rs (target/debug/deps/a-1)\nfailures:\n\n---- b stdout ----\n    not_a_test\n\n\
            failures:\n    stray\n    b\n\ntest result: FAILED. 0 passed; 1 failed; 0 ignored\n\n";
        assert_eq!(
            watched(output).0,
            ["tests/a.rs (target/debug/deps/a-1): b"],
            "cargo was stopped before it said more"
        );
    }

    #[test]
    fn cargo_is_told_to_go_on_where_it_was_not() {
        let given = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        assert_eq!(going_on(&given(&["-p", "xtask"])), ["--no-fail-fast", "-p", "xtask"]);
        assert_eq!(going_on(&given(&["--no-fail-fast"])), ["--no-fail-fast"]);
        assert_eq!(going_on(&given(&["--", "--no-fail-fast"]))[0], "--no-fail-fast");
    }
}
