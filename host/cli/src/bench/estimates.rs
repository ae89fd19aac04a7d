//! `tilewright bench estimates`: the price of each layer beside its time.

use std::sync::Arc;

use tch::{Device, Kind, Tensor};
use tilewright_bench::{
    Spelling,
    estimates::{EstimateRow, Estimated, StageEstimates},
};
use tilewright_engine::{Budget, DenoiseJob, Machine, TextJob, Texts, WeightStore};
use tilewright_models::{Checkpoint, EncoderFile};
use tilewright_pipeline::{Decode, PromptRequest, SampleModel, SampleRequest, Size, default_limit};
use tilewright_plan::{Objective, Planner, Work, words::with_noun};
use tilewright_plot::Page;
use tilewright_policy::Policy;

use super::{Policies, machine, pages, publish, waiting::watched};
use crate::{
    args::Estimates,
    failure::{Failure, Outcome},
    files, model, table,
};

/// Text tokens of generated conditioning.
const TOKENS: u32 = 512;

/// The columns of the table.
const HEADING: [&str; 6] = ["layer", "runs", "priced", "measured", "ratio", "off"];

/// Compares estimates of the stages that are asked for.
pub fn run(arguments: &Estimates) -> Outcome {
    let roles = files::roles()
        .reads_all("the latent", &arguments.latent)
        .reads_all("the VAE", &arguments.vae)
        .reads_all("the transformer", &arguments.transformer)
        .reads_all("the text encoder", &arguments.text_encoder);
    let policies = Policies::check([&arguments.policy], &arguments.common, roles)?;
    if arguments.latent.is_none() && arguments.transformer.is_empty() && arguments.text_encoder.is_none() {
        return Err(Failure::input("nothing to measure: give LATENT and --vae, --transformer or --text-encoder"));
    }
    let machine = machine(&arguments.common)?;
    let mut stages = Vec::new();
    if let Some(encoder) = &arguments.text_encoder {
        let file = Arc::new(Checkpoint::open_part(encoder, &["text_encoder"]).map_err(tilewright_models::Error::from)?);
        let encoder = EncoderFile::find_all(&file)?.into_iter().next();
        let encoder = Arc::new(encoder.ok_or_else(|| Failure::input("no text encoder"))?);
        let shape = [1, i64::from(arguments.tokens), encoder.config.hidden()];
        let embedded = [Tensor::f_randn(shape, (Kind::Float, Device::Cpu)).map_err(Failure::work)?];
        let store = WeightStore::new(Budget::Last);
        let texts = Texts { encoder: &encoder, weights: &store, embedded: &embedded, left_out: 0 };
        let job = TextJob::new(&machine, None, texts, limit(arguments, &machine), Objective::Balanced)?;
        let mut planner = planner(&policies, &arguments.policy)?;
        stages.extend(measured(Estimated::Texts(&job, planner.as_mut()))?);
    }
    if !arguments.transformer.is_empty() {
        let model = SampleModel::open(&arguments.transformer, None)?;
        let [width, height] = arguments.size;
        let size = Size { width, height, frames: arguments.frames.unwrap_or_else(|| model.usual_frames()) };
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("generated conditioning");
        model.generate_conditioning(&path, TOKENS, size)?;
        let conditioning = vec![PromptRequest { path, within: None }];
        let sampling = model.prepare(&SampleRequest::plain(conditioning, size, arguments.steps))?;
        let limit = limit(arguments, &machine);
        let job = DenoiseJob::new(&machine, &model.denoiser, &sampling, limit, Objective::Balanced)?;
        let mut planner = planner(&policies, &arguments.policy)?;
        stages.extend(measured(Estimated::Sample(&job, planner.as_mut()))?);
    }
    if let (Some(latent), Some(vae)) = (&arguments.latent, &arguments.vae) {
        let model = model::open(vae, tilewright_engine::Overrides::default())?;
        let latents = model.tensor(&model.read_latent(latent, None)?)?;
        let job = Decode::new(&machine, &model, &latents, limit(arguments, &machine), Objective::Balanced)?;
        let job = job.allowing_blended(true);
        let mut planner = planner(&policies, &arguments.policy)?;
        stages.extend(measured(Estimated::Decode(&job, planner.as_mut()))?);
    }
    let text = || stages.iter().map(|stage| in_words(stage, arguments.rows)).collect::<Vec<_>>().join("\n\n");
    publish(&arguments.common, (&stages, stages.is_empty()), text, || page(&machine, &stages))
}

fn limit(arguments: &Estimates, machine: &Machine) -> u64 {
    arguments.memory_limit.unwrap_or_else(|| default_limit(machine))
}

fn planner<W: Work>(policies: &Policies, spelling: &Spelling) -> Outcome<Box<dyn Planner<W>>>
where
    Policy: Planner<W>,
{
    policies.planner()(spelling).map_err(Failure::input)
}

/// The estimates of a stage; none if it was interrupted.
fn measured(work: Estimated<'_, '_>) -> Outcome<Option<StageEstimates>> {
    let mut ended = Ok(None);
    watched(|waiting| {
        ended = work.profile(waiting);
        Ok(())
    })?;
    let profile = ended.map_err(Failure::work)?;
    Ok(profile.map(|found| StageEstimates::of(&found.profile)))
}

fn in_words(stage: &StageEstimates, most: usize) -> String {
    let priced = stage.estimated_ms.map_or_else(|| "no price".to_owned(), table::milliseconds);
    let ratio = stage.ratio.map_or_else(String::new, |ratio| format!(", {ratio:.2} of it"));
    let title = format!(
        "{} {}, {}: priced at {priced}{ratio}, measured {}",
        stage.stage,
        stage.request,
        stage.plan,
        table::milliseconds(stage.measured_ms)
    );
    let rows = table::listing(&HEADING, &HEADING[1..], stage.rows.iter().take(most).map(cells));
    let left = stage.rows.len().saturating_sub(most);
    let left = if left > 0 { format!("\n{} more", with_noun(left as u64, "row")) } else { String::new() };
    format!("{title}\n{rows}{left}")
}

fn cells(row: &EstimateRow) -> Vec<String> {
    vec![
        row.name.clone(),
        row.calls.to_string(),
        table::milliseconds(row.estimated_ms),
        table::milliseconds(row.measured_ms),
        row.ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}")),
        format!("{:+.1} ms", row.off_ms()),
    ]
}

fn page(machine: &Machine, stages: &[StageEstimates]) -> Page {
    let rows = stages.iter().flat_map(|stage| stage.rows.iter().map(cells));
    Page {
        title: "Tilewright bench estimates".into(),
        facts: pages::device(&machine.facts),
        table: table::headed(&HEADING, rows),
        charts: Vec::new(),
    }
}
