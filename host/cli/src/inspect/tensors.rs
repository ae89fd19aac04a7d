//! Facts about models and latents, from the names and shapes of their tensors.

use std::path::Path;

use serde::Serialize;
use tilewright_models::{
    Architecture, Checkpoint, DenoiserInspection, EncoderInspection, Inspection, Kind, LatentFile, LoraInspection,
    Part, kl, wan_vae,
};
use tilewright_plan::{bytes, terminal::shorten, words::with_noun};

use super::texts;
use crate::table;

/// Names that are listed before the rest is only counted.
const SHOWN: usize = 12;

/// One tensor of a listing.
#[derive(Serialize)]
pub struct Tensor {
    name: String,
    shape: Vec<usize>,
    stored: String,
}

impl Tensor {
    /// The tensor's row in a listing.
    pub fn row(&self) -> Vec<String> {
        vec![self.name.clone(), format!("{:?}", self.shape), self.stored.clone()]
    }
}

/// Every tensor of a file, by name.
pub fn listing(file: &Checkpoint) -> Vec<Tensor> {
    let tensor = |name: &str| Tensor {
        name: name.to_owned(),
        shape: file.shape(name).unwrap_or_default().to_vec(),
        stored: file.find_stored(name).map_or(String::new(), |stored| stored.name().to_owned()),
    };
    file.names().map(tensor).collect()
}

/// The kind in words, with a note if nothing can be decoded or encoded with it.
fn kind(inspection: &Inspection) -> String {
    let whole = match (inspection.decoder.is_some(), inspection.encoder) {
        (false, _) => ", the encoder alone: nothing can be decoded with it",
        (true, false) => ", the decoder alone: nothing can be encoded with it",
        (true, true) => "",
    };
    match inspection.identity.kind {
        Kind::KlAutoencoder => format!("KL autoencoder (VAE){whole}"),
        Kind::VideoAutoencoder => format!("causal video autoencoder (VAE){whole}"),
        Kind::Latent => "latent".into(),
        Kind::Pixels => "pixels: raw frames of a picture or a clip".into(),
        Kind::Transformer => inspection
            .transformer
            .as_ref()
            .map_or("transformer".into(), |found| format!("transformer: {}", found.model)),
        Kind::Conditioning => "conditioning: what text encoders hand to a transformer".into(),
        Kind::Other if inspection.lora.is_some() || inspection.vision_encoder.is_some() => {
            Part::list_names(&inspection.parts)
        }
        Kind::Other if !inspection.text_encoders.is_empty() && !inspection.parts.is_empty() => {
            Part::list_names(&inspection.parts)
        }
        Kind::Other if !inspection.text_encoders.is_empty() => encoders(inspection),
        Kind::TinyAutoencoder | Kind::Other if !inspection.parts.is_empty() => {
            format!("{}: neither a latent nor a VAE that can be decoded with", Part::list_names(&inspection.parts))
        }
        Kind::TinyAutoencoder => "tiny autoencoder: can't be decoded with".into(),
        Kind::Other if inspection.problem.is_some() => "weights of a network that can't be run".into(),
        Kind::Other if inspection.tensors == 0 => "nothing: no tensors are in it".into(),
        Kind::Other => "nothing that is known: --tensors lists what is in it".into(),
    }
}

/// The encoders in a file whose names alone tell no published network.
fn encoders(inspection: &Inspection) -> String {
    let found = inspection.text_encoders.iter().map(|encoder| format!("text encoder: {}", encoder.model));
    let vision = inspection.vision_encoder.iter().map(|encoder| format!("vision encoder: {}", encoder.model));
    found.chain(vision).collect::<Vec<_>>().join("; ")
}

/// The reason that a latent can't be decoded, whatever the VAE; none for other files, and if one of
/// its tensors can be.
pub fn refusal(path: &Path, inspection: &Inspection) -> Option<String> {
    let refused = |tensor: Option<&str>| LatentFile::open(path, tensor).err().map(|error| error.to_string());
    if inspection.identity.kind != Kind::Latent
        || inspection.latents.keys().any(|name| refused(Some(name.as_str())).is_none())
    {
        return None;
    }
    let reason = refused(None)?;
    // The table has the file's name already.
    Some(reason.strip_prefix(&format!("{}: ", path.display())).unwrap_or(&reason).to_owned())
}

/// The facts about a file of tensors, row by row.
pub fn rows(inspection: &Inspection) -> Vec<(&'static str, String)> {
    let identity = &inspection.identity;
    let stored: Vec<String> = inspection
        .stored
        .iter()
        .map(|(dtype, elements)| format!("{dtype} {}", table::count(*elements as f64)))
        .collect();
    let is_vae = matches!(identity.kind, Kind::KlAutoencoder | Kind::VideoAutoencoder);
    let mut rows = vec![("kind", kind(inspection))];
    if is_vae {
        rows.extend(inspection.parts.iter().map(|part| ("beside it", part.name.to_owned())));
    }
    rows.extend(command(inspection).map(|command| ("use", command)));
    rows.push((
        "format",
        match inspection.files {
            1 => inspection.format.to_owned(),
            files => format!("{}, {files} shards", inspection.format),
        },
    ));
    if is_vae {
        let family = inspection
            .decoder
            .as_ref()
            .and_then(|decoder| decoder.config.as_ref())
            .map_or(identity.family, Architecture::family);
        let or = identity.or_family.filter(|_| family == identity.family);
        let or =
            or.map_or(String::new(), |other| format!(" (or {other}, which has the same shapes: --family {other})"));
        rows.push(("family", format!("{family}{or}")));
        let prefix = if identity.prefix.is_empty() {
            String::new()
        } else {
            format!(", below {}", shorten(&identity.prefix, 200))
        };
        rows.push(("layout", format!("{}{prefix}", identity.layout)));
    }
    rows.push(("tensors", inspection.tensors.to_string()));
    rows.push(("elements", format!("{} ({})", table::count(inspection.parameters as f64), stored.join(", "))));
    for (name, shape) in &inspection.latents {
        rows.push(("tensor", format!("{} {shape:?}", name.to_owned())));
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
        if let Some(first) = decoder.uncomputable.first() {
            rows.push((
                "can't run",
                format!(
                    "{} of the decoder's tensors are stored in a type that can't be loaded, such as {}: give a file in f32, f16, bf16 or FP8",
                    decoder.uncomputable.len(),
                    first.to_owned()
                ),
            ));
        }
    }
    if is_vae && inspection.decoder.is_none() {
        rows.push(("decoder", "not in the file".into()));
    }
    if is_vae {
        rows.push(("encoder", if inspection.encoder { "in the file" } else { "not in the file" }.into()));
    }
    rows.extend(inspection.text_encoders.iter().flat_map(text_encoder));
    rows.extend(inspection.transformer.iter().flat_map(transformer));
    rows.extend(inspection.lora.iter().flat_map(lora));
    // The networks that it names have said so, too.
    if !rows.iter().any(|(name, _)| *name == "can't run") {
        rows.extend(inspection.problem.iter().map(|problem| ("can't run", problem.clone())));
    }
    rows.extend(texts(inspection.texts.iter().map(|(name, length)| (name.as_str(), *length))));
    rows
}

/// The command that takes a transformer.
const SAMPLE: &str = "tilewright sample --transformer FILE --conditioning CONDITIONING --size WxH -o OUT";

/// The commands that take the file, with the place that it has there.
fn command(inspection: &Inspection) -> Option<String> {
    let samples = inspection.transformer.as_ref().is_some_and(|found| found.problem.is_none());
    let line = match inspection.identity.kind {
        Kind::KlAutoencoder | Kind::VideoAutoencoder => match (&inspection.decoder, inspection.encoder) {
            (Some(_), true) => {
                "tilewright decode LATENT --vae FILE -o OUT; tilewright encode PICTURE --vae FILE -o OUT"
            }
            (Some(_), false) => "tilewright decode LATENT --vae FILE -o OUT",
            // An encoder alone is opened by no command.
            (None, _) => return None,
        },
        Kind::Latent => "tilewright decode FILE --vae VAE -o OUT",
        Kind::Pixels => "tilewright encode FILE --vae VAE -o OUT",
        Kind::Conditioning => "tilewright sample --transformer TRANSFORMER --conditioning FILE --size WxH -o OUT",
        Kind::Transformer if samples => SAMPLE,
        Kind::Other if inspection.lora.as_ref().is_some_and(|lora| lora.problem.is_none()) => {
            "tilewright sample --transformer TRANSFORMER --lora FILE:STRENGTH --conditioning CONDITIONING --size WxH -o OUT"
        }
        Kind::Other if inspection.text_encoders.iter().any(|encoder| encoder.problem.is_none()) => {
            "tilewright generate PROMPT --text-encoder FILE …; tilewright embed PROMPT --text-encoder FILE -o OUT"
        }
        Kind::Transformer | Kind::TinyAutoencoder | Kind::Other => return None,
    };
    // A whole checkpoint holds a VAE, too.
    Some(if samples && line != SAMPLE { format!("{line}; {SAMPLE}") } else { line.to_owned() })
}

/// The facts about a text encoder that prompts are encoded with.
fn text_encoder(inspected: &EncoderInspection) -> Vec<(&'static str, String)> {
    let below = match inspected.prefix.as_str() {
        "" => String::new(),
        prefix => format!(", below {}", shorten(prefix, 200)),
    };
    let stored = format!("{} as {}", bytes::display(inspected.stored_bytes), inspected.stored);
    let mut rows = vec![
        ("encoder", format!("{}, {stored}, without its table of tokens", inspected.model)),
        ("", inspected.config.shape()),
        ("names", format!("{}{below}", inspected.layout)),
    ];
    rows.extend(inspected.problem.iter().map(|problem| ("can't run", problem.clone())));
    rows
}

/// The facts about a transformer that latents are sampled with.
fn transformer(inspected: &DenoiserInspection) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    if let Some(found) = &inspected.found {
        let below = match found.prefix.as_str() {
            "" => String::new(),
            prefix => format!(", below {}", shorten(prefix, 200)),
        };
        rows.push((
            "transformer",
            format!(
                "{} parameters, {} as {}",
                table::count(found.parameters as f64),
                bytes::display(found.stored_bytes),
                found.stored
            ),
        ));
        rows.push(("", found.config.shape()));
        rows.push(("names", format!("{}{below}", found.layout)));
        rows.push(("decoded by", format!("a VAE of the family {}", found.family)));
    }
    rows.extend(inspected.problem.iter().map(|problem| ("can't run", problem.clone())));
    rows
}

/// The facts about a LoRA.
fn lora(inspected: &LoraInspection) -> Vec<(&'static str, String)> {
    let LoraInspection { layers, ranks, scales, text_keys, second_keys, notes, problem } = inspected;
    let mut rows = Vec::new();
    if problem.is_none() {
        let ranks = match ranks {
            None => String::new(),
            Some([least, most]) if least == most => format!(" of rank {least}"),
            Some([least, most]) => format!(" of ranks {least} to {most}"),
        };
        let scales = scales.map(|both| both.map(|scale| (scale * 1e4).round() / 1e4));
        let scales = match scales {
            Some([least, most]) if least == most && least != 1.0 => format!(", times {least}"),
            Some([least, most]) if least != most => format!(", times {least} to {most}"),
            _ => String::new(),
        };
        rows.push(("changes", format!("{}{ranks}{scales}", with_noun(*layers as u64, "layer"))));
    }
    if *second_keys > 0 {
        let keys = with_noun(*second_keys as u64, "key");
        rows.push(("experts", format!("{keys} of the one for low noise (transformer_2)")));
    }
    if *text_keys > 0 {
        rows.push(("left out", format!("{} of text encoders", with_noun(*text_keys as u64, "key"))));
    }
    rows.extend(notes.iter().map(|note| ("note", note.clone())));
    rows.extend(problem.iter().map(|problem| ("can't run", problem.clone())));
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

fn video_decoder(config: &wan_vae::Config) -> [(&'static str, String); 2] {
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
    let mut rows: Vec<_> = lines.iter().take(SHOWN).map(|line| (what, line.to_owned())).collect();
    if lines.len() > SHOWN {
        rows.push((what, format!("and {} more", lines.len() - SHOWN)));
    }
    rows
}
