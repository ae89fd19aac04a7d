//! `cargo xtask judge`: third-party programs test a running `tilewright serve`, each a server of
//! its own. `tests/service/README.md` describes them.
//!
//! ```text
//! target/judge/<name>/   a server's configuration, data and log; emptied before each run
//! target/judge/cache     what the program keeps of policies and of this machine, for all of them
//! ```

mod client;
mod requirements;
mod server_process;
mod verdicts;

use std::{
    fmt,
    fs::{self, File},
    path::PathBuf,
};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};

use self::requirements::Requirements;
use crate::{project::Project, tools};

#[derive(Args)]
pub struct Arguments {
    /// Which judges; left out: all that can be had here
    #[arg(value_enum)]
    which: Vec<Judge>,
    /// Judge this program instead of building one
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// The number of examples of each operation and phase that the judge of the API sends
    #[arg(long, value_name = "N", default_value_t = 15)]
    max_examples: u32,
}

/// A third-party program that tests a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Judge {
    /// openapi-spec-validator: whether the API's description is OpenAPI
    Description,
    /// Schemathesis: whether the API is as its description says
    Api,
    /// Chromium: whether a person can use the dashboard
    Dashboard,
    /// promtool: whether Prometheus can read the metrics
    Metrics,
    /// OpenTelemetry's own definitions: whether traces keep to the protocol
    Traces,
}

impl Judge {
    fn name(self) -> String {
        tools::name_of(self)
    }
}

/// The result of a judge.
enum Verdict {
    Passed,
    Found(String),
    /// A requirement is missing: nothing is known of its subject.
    LeftOut(String),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Passed => f.write_str("passed"),
            Verdict::Found(what) => write!(f, "found something: {what}"),
            Verdict::LeftOut(why) => write!(f, "left out: {why}"),
        }
    }
}

/// The requested judges, with all their requirements.
pub struct Judges<'a> {
    project: &'a Project,
    judges: Vec<Judge>,
    needs: Requirements,
    /// The program to test, if it isn't to be built.
    program: Option<PathBuf>,
    max_examples: u32,
    /// Two runs at once would empty each other's folders.
    _lock: File,
}

impl<'a> Judges<'a> {
    /// Fetches the requirements of the judges; fails if a judge that was named can't have its own.
    pub fn bring(project: &'a Project, arguments: Arguments) -> Result<Self> {
        let Arguments { which, program, max_examples } = arguments;
        let program = program.map(|path| fs::canonicalize(&path).with_context(|| format!("{}", path.display())));
        let program = program.transpose()?;
        let is_named = !which.is_empty();
        let judges = if is_named { which } else { Judge::value_variants().to_vec() };
        let lock = lock(project)?;
        let needs = Requirements::bring(project, &judges)?;
        for &judge in &judges {
            match needs.missing(judge) {
                Some(why) if is_named => bail!("{}: {why}", judge.name()),
                Some(why) => tools::say(&format!("going on without {}: {why}", judge.name())),
                None => {}
            }
        }
        Ok(Self { project, judges, needs, program, max_examples, _lock: lock })
    }

    /// True if the program to test exists already.
    pub fn has_program(&self) -> bool {
        self.program.is_some()
    }

    /// Runs each judge and prints its result; fails if one found a fault.
    pub fn judge(&self) -> Result<()> {
        let mut verdicts = Vec::new();
        for &judge in &self.judges {
            let why = self.needs.missing(judge);
            verdicts.push((judge, why.map_or_else(|| self.verdict(judge), |why| Verdict::LeftOut(why.to_owned()))));
        }
        summarize(&verdicts)
    }

    fn verdict(&self, judge: Judge) -> Verdict {
        tools::say(&format!("judging: {}", judge.name()));
        let verdict = match self.run_judge(judge) {
            Ok(()) => Verdict::Passed,
            Err(error) => Verdict::Found(format!("{error:#} (more above and in {})", self.place(judge).display())),
        };
        tools::say(&format!("{}: {verdict}", judge.name()));
        verdict
    }

    /// Runs one judge; fails with its findings.
    fn run_judge(&self, judge: Judge) -> Result<()> {
        let place = self.place(judge);
        if place.exists() {
            fs::remove_dir_all(&place).with_context(|| format!("{}", place.display()))?;
        }
        fs::create_dir_all(&place).with_context(|| format!("{}", place.display()))?;
        match judge {
            Judge::Description => self.description(),
            Judge::Api => self.api(),
            Judge::Dashboard => self.dashboard(),
            Judge::Metrics => self.metrics(),
            Judge::Traces => self.traces(),
        }
    }

    /// The folder of a judge.
    fn place(&self, judge: Judge) -> PathBuf {
        places(self.project).join(judge.name())
    }
}

fn places(project: &Project) -> PathBuf {
    project.target().join("judge")
}

/// Locks the judges of this checkout.
fn lock(project: &Project) -> Result<File> {
    let path = places(project).join("lock");
    fs::create_dir_all(places(project))?;
    let file = File::create(&path).with_context(|| format!("{}", path.display()))?;
    if file.try_lock().is_err() {
        bail!("another 'cargo xtask judge' is at work in this checkout: wait for its end");
    }
    Ok(file)
}

/// A line for each judge. A skipped judge has not passed; it comes last, where it is seen.
fn summarize(verdicts: &[(Judge, Verdict)]) -> Result<()> {
    println!();
    for (judge, verdict) in verdicts {
        println!("{:11} {verdict}", judge.name());
    }
    let names = |is: fn(&Verdict) -> bool| {
        let names: Vec<_> = verdicts.iter().filter(|(_, one)| is(one)).map(|(judge, _)| judge.name()).collect();
        names.join(", ")
    };
    let unjudged = names(|verdict| matches!(verdict, Verdict::LeftOut(_)));
    if !unjudged.is_empty() {
        tools::say(&format!("NOT JUDGED, for want of what it takes: {unjudged}"));
    }
    let found = names(|verdict| matches!(verdict, Verdict::Found(_)));
    if !found.is_empty() {
        bail!("not as it should be: {found}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_found_fails() {
        let left_out = || (Judge::Traces, Verdict::LeftOut("no pip".into()));
        assert!(summarize(&[(Judge::Api, Verdict::Passed), left_out()]).is_ok());
        let found = summarize(&[(Judge::Metrics, Verdict::Found("no help".into())), left_out()]);
        assert_eq!(found.unwrap_err().to_string(), "not as it should be: metrics");
    }
}
