//! `tilewright bench …`: arguments to contests, and what they find to tables, JSON and reports.

mod pages;
mod tables;
mod waiting;

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use serde::Serialize;
use tilewright_bench::{Contest, Entry, Latents, Network, Page, Rounds, Spelling, Weights, suite, sweep};
use tilewright_engine::{Machine, Overrides, Probe, Vae};
use tilewright_models::{Latent, Origin};
use tilewright_plan::Planner;
use tilewright_policy::{CacheDir, Limits, PolicyError, PolicyHost};

use crate::{
    args::{Against, Bench, BenchCommand, Common, GenerateLatent, GenerateWeights, Suite, Sweep},
    bench::waiting::Waiting,
    failure::{Failure, Outcome},
};

/// The share of free memory that is used where the user sets no limit.
const SHARE_OF_FREE: f64 = 0.8;

/// Runs of the suite: as many as published, and with --quick.
const FULL: Rounds = Rounds { first_apart: true, warmup: 3, iterations: 10 };
const QUICK: Rounds = Rounds { first_apart: true, warmup: 0, iterations: 2 };

impl From<tilewright_bench::Error> for Failure {
    fn from(error: tilewright_bench::Error) -> Self {
        match error.is_input() {
            true => Failure::Input(error.into()),
            false => Failure::Work(error.into()),
        }
    }
}

/// Measures or generates as asked.
pub fn run(arguments: &Bench) -> Outcome {
    match &arguments.command {
        None => contest(arguments),
        Some(BenchCommand::Suite(suite)) => run_suite(suite),
        Some(BenchCommand::Sweep(sweep)) => run_sweep(sweep),
        Some(BenchCommand::Weights(weights)) => generate_weights(weights),
        Some(BenchCommand::Latent(latent)) => generate_latent(latent),
    }
}

fn contest(arguments: &Bench) -> Outcome {
    let (Some(latent), Some(vae_path)) = (&arguments.latent, &arguments.vae) else {
        return Err(Failure::input("a latent and --vae are needed"));
    };
    // Everything that can be wrong with the arguments comes before anything that takes time.
    let against = match &arguments.against {
        Against::None => None,
        Against::Policy(spelling) => Some(spelling.clone()),
    };
    let policies = Policies::checked(arguments.policies.iter().chain(&against), &arguments.common)?;
    let overrides =
        Overrides { family: arguments.family, scaling: arguments.scaling_factor, shift: arguments.shift_factor };
    let vae = Vae::open(vae_path, overrides)?;
    let machine = machine(&arguments.common)?;
    let mut latent = Latent::read(latent, arguments.tensor.as_deref())?;
    vae.check(&latent)?;
    if arguments.scaled {
        unscale(&mut latent, &vae, vae_path)?;
    }
    let memory_limit = arguments.memory_limit.unwrap_or((machine.facts.free_bytes as f64 * SHARE_OF_FREE) as u64);
    let objective = arguments.objective.into();
    let entry = |spelling: &Spelling| Entry { spelling: spelling.clone(), memory_limit, objective };
    let contest = Contest {
        machine: &machine,
        vae: &vae,
        latents: &latent.pictures()?,
        entries: arguments.policies.iter().map(entry).collect(),
        against,
        rounds: Rounds { first_apart: true, warmup: arguments.warmup, iterations: arguments.iterations },
    };
    let mut waiting = Waiting::new();
    let report = contest.hold(&policies.planner(), &mut waiting)?;
    waiting.finish();
    publish(&arguments.common, &report, || tables::contest(&report), || pages::contest(&report))?;
    ended(report.interrupted)?;
    match report.runs.iter().all(|row| row.samples_ms.is_empty()) {
        true => Err(Failure::work("no policy was measured: the table says why of each")),
        false => Ok(()),
    }
}

fn run_suite(arguments: &Suite) -> Outcome {
    let policies = Policies::checked(arguments.policies.iter(), &arguments.common)?;
    let (path, weights) = match &arguments.vae {
        Some(path) => (path.clone(), path.display().to_string()),
        None => (generated(arguments.network)?, format!("{}'s size, generated from seed 0", arguments.network.name)),
    };
    let vae = Vae::open(&path, Overrides::default())?;
    let machine = machine(&arguments.common)?;
    let rounds = if arguments.quick { QUICK } else { FULL };
    let rounds = Rounds { iterations: arguments.iterations.unwrap_or(rounds.iterations), ..rounds };
    let suite = suite::Suite {
        machine: &machine,
        vae: &vae,
        weights,
        policies: arguments.policies.clone(),
        rounds,
        quick: arguments.quick,
    };
    let mut waiting = Waiting::new();
    let report = suite.run(&policies.planner(), &mut waiting)?;
    waiting.finish();
    publish(&arguments.common, &report, || tables::suite(&report), || pages::suite(&report))?;
    ended(report.interrupted)
}

fn run_sweep(arguments: &Sweep) -> Outcome {
    let policies = Policies::checked([&arguments.policy], &arguments.common)?;
    let path = match &arguments.vae {
        Some(path) => path.clone(),
        None => generated(Network::FLUX)?,
    };
    let vae = Vae::open(&path, Overrides::default())?;
    let machine = machine(&arguments.common)?;
    let sweep = sweep::Sweep {
        machine: &machine,
        vae: &vae,
        sizes: arguments.sizes.clone(),
        limits: arguments.limits.clone(),
        objectives: arguments.objectives.iter().map(|objective| (*objective).into()).collect(),
        iterations: arguments.iterations,
        policy: arguments.policy.clone(),
        plans: arguments.plans,
        any_precision: arguments.any_precision,
        seed: arguments.seed,
    };
    let mut waiting = Waiting::new();
    let report = sweep.run(&policies.planner(), &mut waiting)?;
    waiting.finish();
    publish(&arguments.common, &report, || tables::sweep(&report), || pages::sweep(&report))?;
    ended(report.interrupted)
}

fn generate_weights(arguments: &GenerateWeights) -> Outcome {
    Weights { network: arguments.network, seed: arguments.seed }.write(&arguments.output)?;
    wrote(&arguments.output)
}

fn generate_latent(arguments: &GenerateLatent) -> Outcome {
    let (width, height) = arguments.size;
    let latents = Latents {
        batch: arguments.batch.into(),
        channels: arguments.channels.into(),
        height: (height / tilewright_bench::SCALE) as usize,
        width: (width / tilewright_bench::SCALE) as usize,
        seed: arguments.seed,
    };
    latents.write(&arguments.output)?;
    wrote(&arguments.output)
}

fn wrote(path: &Path) -> Outcome {
    Ok(writeln!(io::stdout().lock(), "wrote  {}", path.display())?)
}

fn generated(network: Network) -> Outcome<PathBuf> {
    Ok(Weights { network, seed: 0 }.kept()?)
}

/// Puts policies to work. One sandbox serves them all: each has a clock of its own, which would tick while others are measured.
struct Policies(PolicyHost);

impl Policies {
    /// A policy that is not there, a wrong setting or a report that can't be written is the arguments' fault: nothing is measured
    /// then.
    fn checked<'a>(spellings: impl IntoIterator<Item = &'a Spelling>, common: &Common) -> Outcome<Self> {
        let policies = Self(PolicyHost::new(Limits::default(), &CacheDir::User)?);
        for spelling in spellings {
            policies.configured(spelling)?;
        }
        if let Some(plot) = &common.plot {
            Page::check(plot)?;
        }
        Ok(policies)
    }

    fn configured(&self, spelling: &Spelling) -> Result<Box<dyn Planner>, PolicyError> {
        Ok(Box::new(self.0.find(&spelling.policy)?.configure(&spelling.settings)?))
    }

    fn planner(&self) -> impl Fn(&Spelling) -> Result<Box<dyn Planner>, Box<dyn std::error::Error + Send + Sync>> {
        |spelling| Ok(self.configured(spelling)?)
    }
}

fn machine(common: &Common) -> Outcome<Machine> {
    if let Some(threads) = common.threads {
        tilewright_torch::set_threads(threads);
    }
    Ok(Machine::open(common.device, Probe::Kept)?)
}

fn unscale(latent: &mut Latent, vae: &Vae, file: &Path) -> Outcome {
    if latent.origin != Origin::Plain {
        let shown = latent.path.display();
        return Err(Failure::input(format!("{shown}: a ComfyUI latent carries no scaling: leave --scaled out")));
    }
    let unknown = || {
        let shown = file.display();
        Failure::input(format!("{shown}: no scaling is known of this VAE: give --family, or --scaling-factor"))
    };
    Ok(latent.unscale(&vae.scaling().ok_or_else(unknown)?)?)
}

/// The table or the JSON on standard output; the report into its file.
fn publish(
    common: &Common,
    report: &impl Serialize,
    table: impl FnOnce() -> String,
    page: impl FnOnce() -> Page,
) -> Outcome {
    let text = match common.json {
        true => serde_json::to_string_pretty(report).map_err(Failure::work)?,
        false => table(),
    };
    writeln!(io::stdout().lock(), "{text}")?;
    if let Some(plot) = &common.plot {
        page().write(plot)?;
        eprintln!("wrote {}", plot.display());
    }
    Ok(())
}

fn ended(interrupted: bool) -> Outcome {
    if interrupted { Err(Failure::work("interrupted: the report holds what was measured until then")) } else { Ok(()) }
}
