//! `tilewright inspect`: says what a file is.

use std::io::{self, Write};

use serde::Serialize;
use tilewright_models::{Architecture, Checkpoint, Inspection, Kind, kl, wan};
use tilewright_plan::bytes;

use crate::{
    args::Inspect,
    failure::{Failure, Outcome},
    table,
};

/// Names that are listed before the rest is only counted.
const SHOWN: usize = 12;

#[derive(Serialize)]
struct Tensor<'a> {
    name: &'a str,
    shape: &'a [usize],
    stored: String,
}

#[derive(Serialize)]
struct Report<'a> {
    file: String,
    #[serde(flatten)]
    inspection: Inspection,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    listing: Vec<Tensor<'a>>,
}

/// Looks at a file without loading it.
pub fn run(arguments: &Inspect) -> Outcome {
    let file = Checkpoint::open(&arguments.file)?;
    let inspection = Inspection::of(&file);
    let tensors = file.names().map(|name| Tensor {
        name,
        shape: file.shape(name).unwrap_or_default(),
        stored: file.stored(name).map_or(String::new(), |stored| format!("{stored:?}").to_lowercase()),
    });
    let listing = if arguments.tensors { tensors.collect() } else { Vec::new() };
    let report = Report { file: arguments.file.display().to_string(), inspection, listing };
    let mut stdout = io::stdout().lock();
    if arguments.json {
        let text = serde_json::to_string_pretty(&report).map_err(Failure::work)?;
        return Ok(writeln!(stdout, "{text}")?);
    }
    writeln!(stdout, "{}", table::facts(rows(&report)))?;
    if !report.listing.is_empty() {
        let rows = report
            .listing
            .iter()
            .map(|tensor| vec![tensor.name.to_owned(), format!("{:?}", tensor.shape), tensor.stored.clone()]);
        writeln!(stdout, "\n{}", table::listing(&["tensor", "shape", "type"], &[], rows))?;
    }
    Ok(())
}

fn rows(report: &Report<'_>) -> Vec<(&'static str, String)> {
    let inspection = &report.inspection;
    let identity = &inspection.identity;
    let kind = match identity.kind {
        Kind::KlAutoencoder => "KL autoencoder (VAE)",
        Kind::VideoAutoencoder => "causal video autoencoder (VAE)",
        Kind::TinyAutoencoder => "tiny autoencoder: can't be decoded with",
        Kind::Latent => "latent",
        Kind::Other => "nothing that is known",
    };
    let stored: Vec<String> = inspection
        .stored
        .iter()
        .map(|(dtype, elements)| format!("{dtype} {}", table::count(*elements as f64)))
        .collect();
    let mut rows = vec![("file", report.file.clone()), ("kind", kind.into())];
    if matches!(identity.kind, Kind::KlAutoencoder | Kind::VideoAutoencoder) {
        let family = inspection
            .decoder
            .as_ref()
            .and_then(|decoder| decoder.config.as_ref())
            .map_or(identity.family, Architecture::family);
        let or = identity.or_family.filter(|_| family == identity.family);
        let or =
            or.map_or(String::new(), |other| format!(" (or {other}, which has the same shapes: --family {other})"));
        rows.push(("family", format!("{family}{or}")));
        let prefix = if identity.prefix.is_empty() { String::new() } else { format!(", below {}", identity.prefix) };
        rows.push(("layout", format!("{}{prefix}", identity.layout)));
    }
    rows.push(("tensors", inspection.tensors.to_string()));
    rows.push(("elements", format!("{} ({})", table::count(inspection.parameters as f64), stored.join(", "))));
    for (name, shape) in &inspection.latents {
        rows.push(("tensor", format!("{name} {shape:?}")));
    }
    if let Some(decoder) = &inspection.decoder {
        let stored = decoder.stored.map_or("mixed".to_owned(), |dtype| dtype.to_string());
        rows.push((
            "decoder",
            format!(
                "{} parameters, {} as {stored}",
                table::count(decoder.parameters as f64),
                bytes::display(decoder.parameter_bytes)
            ),
        ));
        match &decoder.config {
            Some(Architecture::Kl(config)) => rows.extend(picture_decoder(config)),
            Some(Architecture::Wan(config)) => rows.extend(video_decoder(config)),
            None => {}
        }
        rows.extend(some("missing", &decoder.missing));
        rows.extend(some("left over", &decoder.left_over));
    }
    if matches!(identity.kind, Kind::KlAutoencoder | Kind::VideoAutoencoder) {
        rows.push(("encoder", if inspection.encoder { "in the file" } else { "not in the file" }.into()));
    }
    rows.extend(
        inspection.texts.iter().map(|(name, length)| ("text", format!("{name}, {}", bytes::display(*length as u64)))),
    );
    rows
}

fn picture_decoder(config: &kl::Config) -> [(&'static str, String); 2] {
    let blocks: Vec<String> =
        config.up_blocks.iter().map(|block| format!("{}×{}", block.channels, block.layers)).collect();
    let network = format!(
        "{} latent channels, ×{}, {} in the middle{}{}, then {}",
        config.latent_channels,
        config.spatial_scale(),
        config.middle_channels,
        if config.middle_attention { " with attention" } else { "" },
        if config.post_quant { ", post_quant_conv" } else { "" },
        blocks.join(", ")
    );
    let scaling = config.scaling.map_or("unknown".into(), |factor| format!("{factor}, shift {}", config.shift));
    [("", network), ("scaling", scaling)]
}

fn video_decoder(config: &wan::Config) -> [(&'static str, String); 2] {
    let blocks: Vec<String> =
        config.up_blocks.iter().map(|block| format!("{}×{}", block.channels, block.layers)).collect();
    let network = format!(
        "{} latent channels, ×{}, 1 + {}·(T − 1) frames, {} in the middle, then {}",
        config.latent_channels,
        config.spatial_scale(),
        config.temporal_scale(),
        config.middle_channels,
        blocks.join(", ")
    );
    let scaling = match config.latents_mean {
        Some(_) => "a mean and a deviation for each latent channel".into(),
        None => "unknown".into(),
    };
    [("", network), ("scaling", scaling)]
}

fn some(what: &'static str, lines: &[String]) -> Vec<(&'static str, String)> {
    let mut rows: Vec<_> = lines.iter().take(SHOWN).map(|line| (what, line.clone())).collect();
    if lines.len() > SHOWN {
        rows.push((what, format!("and {} more", lines.len() - SHOWN)));
    }
    rows
}
