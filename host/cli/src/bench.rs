//! `tilewright bench …`: from arguments to contests, and from results to tables, JSON and reports.

mod estimates;
mod pages;
mod samples;
mod tables;
mod waiting;

use std::{
    collections::BTreeSet,
    error::Error,
    io::Write,
    path::{Path, PathBuf},
};

use serde::Serialize;
use tilewright_bench::{Contest, Latents, Network, Rounds, Spelling, Weights, suite, sweep};
use tilewright_engine::{Machine, Overrides, Probe};
use tilewright_outputs::Roles;
use tilewright_pipeline::Model;
use tilewright_plan::{Planner, Work};
use tilewright_plot::Page;
use tilewright_policy::{Policy, PolicyHost};

use crate::{
    args::{Bench, BenchCommand, Common, GenerateLatent, GenerateWeights, Suite, Sweep},
    bench::waiting::watched,
    failure::{Failure, Outcome},
    files, model, output, policy, printer,
    tell::tell,
};

/// The default frames of a generated clip.
const FRAMES: u32 = 17;

/// Runs of the suite: by default and with --quick.
const FULL: Rounds = Rounds { first_apart: true, warmup: 3, iterations: 10, profiled: false };
/// Runs of the full suite if a decode takes over a minute.
const SLOW: Rounds = Rounds { first_apart: true, warmup: 0, iterations: 3, profiled: false };
const QUICK: Rounds = Rounds { first_apart: true, warmup: 0, iterations: 2, profiled: false };

/// Measures or generates, by the command.
pub fn run(arguments: &Bench) -> Outcome {
    match &arguments.command {
        None => contest(arguments),
        Some(BenchCommand::Suite(suite)) => run_suite(suite),
        Some(BenchCommand::Sweep(sweep)) => run_sweep(sweep),
        Some(BenchCommand::Sample(sample)) => samples::run(sample),
        Some(BenchCommand::Estimates(estimates)) => estimates::run(estimates),
        Some(BenchCommand::Weights(weights)) => generate_weights(weights),
        Some(BenchCommand::Latent(latent)) => generate_latent(latent),
    }
}

fn contest(arguments: &Bench) -> Outcome {
    let (Some(latent), Some(vae_path)) = (&arguments.latent, &arguments.vae) else {
        return Err(Failure::input("a latent and --vae are needed"));
    };
    // All arguments are checked before anything that takes time.
    let against = arguments.contest.against();
    let roles = files::reads_vae(files::roles().reads("the latent", latent), vae_path);
    let roles = arguments.contest.profile.begin(roles, false)?;
    let policies = Policies::check(arguments.contest.policies.iter().chain(&against), &arguments.common, roles)?;
    let model = model::open(vae_path, arguments.scaling.overrides())?;
    let machine = machine(&arguments.common)?;
    let mut latent = model.read_latent(latent, arguments.tensor.as_deref())?;
    if arguments.scaling.scaled {
        model.unscale(&mut latent, vae_path)?;
    }
    let latents = model.tensor(&latent)?;
    let contest = Contest {
        machine: &machine,
        model: &model,
        latents: &latents,
        entries: arguments.contest.entries(&machine),
        against,
        rounds: arguments.contest.rounds(),
        allows_blended: arguments.allow.blended(),
    };
    let report = watched(|waiting| contest.run(&policies.planner(), waiting))?;
    let outcome = (&report, report.interrupted);
    let published = publish(&arguments.common, outcome, || tables::contest(&report), || pages::contest(&report));
    let profiles = report.runs.iter().filter_map(|row| row.profile.clone());
    arguments.contest.profile.finish_contest(profiles, arguments.common.json, published)?;
    expect_some(report.runs.iter().any(|row| !row.samples_ms.is_empty()))
}

/// Refuses a report without figures.
fn expect_some(is_measured: bool) -> Outcome {
    match is_measured {
        true => Ok(()),
        false => Err(Failure::work("no policy was measured: the table says why of each")),
    }
}

fn run_suite(arguments: &Suite) -> Outcome {
    let given = [&arguments.vae, &arguments.video_vae].into_iter().flatten();
    let roles = given.fold(files::roles(), |roles, path| files::reads_vae(roles, path));
    let policies = Policies::check(arguments.policies.iter(), &arguments.common, roles)?;
    // Weights that no case needs are neither asked for nor generated.
    let of_pictures = arguments.transformer.is_some()
        || arguments.only.is_empty()
        || !arguments.only.iter().all(|case| case.is_of_clips());
    let of_clips = arguments.video_transformer.is_some()
        || arguments.only.is_empty()
        || arguments.only.iter().any(|case| case.is_of_clips());
    let mut weights = Vec::new();
    let mut vae = None;
    if of_pictures {
        let path = choose_weights(arguments.vae.as_deref(), arguments.network, &mut weights)?;
        refuse_clips(&path, "--vae takes an image VAE, --video-vae this one")?;
        vae = Some(Model::open(&path, Overrides::default())?);
    }
    let mut video = None;
    if of_clips {
        let path = choose_weights(arguments.video_vae.as_deref(), Network::WAN_21, &mut weights)?;
        video = Some(Model::open(&path, Overrides::default())?);
    }
    let machine = machine(&arguments.common)?;
    let (flux, wan) = samples::transformers(arguments)?;
    let workflows = [flux.as_ref().zip(vae.as_ref()), wan.as_ref().zip(video.as_ref())];
    let workflows = workflows.into_iter().flatten();
    let workflows = workflows
        .map(|(transformer, vae)| samples::workflow(transformer, vae, arguments.quick))
        .collect::<Outcome<_>>()?;
    let rounds = if arguments.quick { QUICK } else { FULL };
    // An explicit number of runs counts for slow cases, too.
    let slow = Some(SLOW).filter(|_| !arguments.quick && arguments.iterations.is_none());
    let rounds = Rounds { iterations: arguments.iterations.unwrap_or(rounds.iterations), ..rounds };
    let suite = suite::Suite {
        machine: &machine,
        vae: vae.as_ref(),
        video: video.as_ref(),
        weights: weights.join(", "),
        policies: arguments.policies.clone(),
        rounds,
        slow,
        quick: arguments.quick,
        only: arguments.only.clone(),
        workflows,
    };
    let report = watched(|waiting| suite.run(&policies.planner(), &policies.planner(), waiting))?;
    let outcome = (&report, report.interrupted);
    publish(&arguments.common, outcome, || tables::suite(&report), || pages::suite(&report))
}

fn run_sweep(arguments: &Sweep) -> Outcome {
    let roles = arguments.vae.iter().fold(files::roles(), |roles, path| files::reads_vae(roles, path));
    let policies = Policies::check([&arguments.policy], &arguments.common, roles)?;
    let path = match &arguments.vae {
        Some(path) => path.clone(),
        None => Weights { network: Network::FLUX, seed: 0 }.cached_file()?,
    };
    refuse_clips(&path, "bench sweep measures pictures: bench LATENT and bench suite measure clips, too")?;
    let model = Model::open(&path, Overrides::default())?;
    let machine = machine(&arguments.common)?;
    let sweep = sweep::Sweep {
        machine: &machine,
        model: &model,
        sizes: arguments.sizes.clone(),
        limits: arguments.limits.clone(),
        objectives: arguments.objectives.iter().map(|objective| (*objective).into()).collect(),
        iterations: arguments.iterations,
        policy: arguments.policy.clone(),
        plans: arguments.plans,
        any_precision: arguments.any_precision,
        allows_blended: arguments.allow.blended(),
        seed: arguments.seed,
    };
    let report = watched(|waiting| sweep.run(&policies.planner(), waiting))?;
    let outcome = (&report, report.interrupted);
    publish(&arguments.common, outcome, || tables::sweep(&report), || pages::sweep(&report))
}

fn generate_weights(arguments: &GenerateWeights) -> Outcome {
    files::check_file(files::roles(), "-o", Some(&arguments.output))?;
    output::writable(&arguments.output)?;
    Weights { network: arguments.network, seed: arguments.seed }.write(&arguments.output)?;
    report_written(&arguments.output)
}

fn generate_latent(arguments: &GenerateLatent) -> Outcome {
    let (width, height) = arguments.size;
    // The default network of a clip is WAN 2.1's, and so is that of a picture of its scale.
    let network = arguments.network.unwrap_or(Network::WAN_21);
    if !width.is_multiple_of(network.scale) || !height.is_multiple_of(network.scale) {
        let Network { name, scale, .. } = network;
        return Err(Failure::input(format!(
            "--size {width}x{height}: sides of {name}'s pictures are multiples of {scale}"
        )));
    }
    let named = arguments.network.is_some();
    if named && !network.is_video() && arguments.frames.is_some() {
        return Err(Failure::input(format!(
            "--frames: {} decodes pictures: leave it out, or name wan-2.1 or wan-2.2",
            network.name
        )));
    }
    let frames = arguments.frames.or((named && network.is_video()).then_some(FRAMES));
    let latents = Latents {
        batch: arguments.batch.into(),
        channels: arguments.network.map_or(arguments.channels.into(), |network| network.latent_channels),
        height: (height / network.scale) as usize,
        width: (width / network.scale) as usize,
        frames: frames.map(|frames| 1 + (frames - 1).div_ceil(network.temporal_scale()) as usize),
        seed: arguments.seed,
    };
    files::check_file(files::roles(), "-o", Some(&arguments.output))?;
    latents.write(&arguments.output)?;
    report_written(&arguments.output)
}

fn report_written(path: &Path) -> Outcome {
    Ok(writeln!(printer::summary(), "wrote  {}", path.display())?)
}

/// Loads policies. One sandbox serves them all: each sandbox has a clock of its own, which would
/// tick while others are measured.
struct Policies(PolicyHost);

impl Policies {
    /// Checks policies and report before anything is measured: a missing policy, a wrong setting or
    /// a report that can't be written is the arguments' fault.
    fn check<'a>(spellings: impl IntoIterator<Item = &'a Spelling>, common: &Common, roles: Roles) -> Outcome<Self> {
        let spellings: Vec<_> = spellings.into_iter().collect();
        let roles = spellings.iter().fold(roles, |roles, spelling| files::reads_policy(roles, &spelling.policy));
        files::check_file(roles, "--plot", common.plot.as_deref())?;
        let policies = Self(policy::host(common.grants)?);
        let mut warnings = BTreeSet::new();
        for spelling in spellings {
            let admitted = policy::verify_and_load(&policies.0, &spelling.policy, &spelling.settings)?;
            warnings.extend(admitted.warning());
        }
        for warning in warnings {
            tell!("warning: {warning}");
        }
        if let Some(plot) = &common.plot {
            Page::check(plot)?;
        }
        Ok(policies)
    }

    /// Loads a policy as a planner of one kind of work.
    fn planner<W: Work>(&self) -> impl Fn(&Spelling) -> Result<Box<dyn Planner<W>>, Box<dyn Error + Send + Sync>>
    where
        Policy: Planner<W>,
    {
        |spelling| {
            let loaded = policy::verify_and_load(&self.0, &spelling.policy, &spelling.settings);
            loaded.map(|admitted| Box::new(admitted.policy) as _).map_err(|failure| failure.to_string().into())
        }
    }
}

fn machine(common: &Common) -> Outcome<Machine> {
    common.on.set_threads();
    Ok(Machine::open(common.on.device, Probe::Kept)?)
}

fn refuse_clips(path: &Path, advice: &str) -> Outcome {
    match Model::is_video_file(path)? {
        true => Err(Failure::input(format!("{}: a video VAE: {advice}", path.display()))),
        false => Ok(()),
    }
}

/// The user's weights, or generated ones; adds their description to the list.
fn choose_weights(path: Option<&Path>, network: Network, weights: &mut Vec<String>) -> Outcome<PathBuf> {
    let (path, what) = match path {
        Some(path) => (path.to_owned(), path.display().to_string()),
        None => {
            (Weights { network, seed: 0 }.cached_file()?, format!("{}'s size, generated from seed 0", network.name))
        }
    };
    weights.push(what);
    Ok(path)
}

/// Prints the table or the JSON, and writes the report, which may have been interrupted.
fn publish(
    common: &Common,
    (report, interrupted): (&impl Serialize, bool),
    table: impl FnOnce() -> String,
    page: impl FnOnce() -> Page,
) -> Outcome {
    match common.json {
        true => printer::json(report)?,
        false => writeln!(printer::stdout(), "{}", table())?,
    }
    if let Some(plot) = &common.plot {
        page().write(plot)?;
        tell!("wrote {}", plot.display());
    }
    match interrupted {
        true => Err(Failure::work("interrupted: the report holds what was measured until then")),
        false => Ok(()),
    }
}
