//! `tilewright inspect`: describes files.

mod records;
mod tensors;

use std::{
    io::{Read, Write},
    path::Path,
};

use serde::Serialize;
use serde_json::Value;
use tilewright_files::{Format, LOOKED_AT};
use tilewright_media::MediaInfo;
use tilewright_models::{Checkpoint, Inspection};
use tilewright_pipeline::{RECORD_KEYWORD, Told};
use tilewright_plan::{Record, bytes, terminal::shorten, words::with_noun};

use crate::{args::Inspect, failure::Outcome, printer, table};
use records::Recorded;
use tensors::Tensor;

/// The most texts of a file that are listed before the rest is only counted: a PNG may have any
/// number.
const MOST_TEXTS: usize = 64;

/// Characters of a setting that are shown; --json has all.
const LONGEST: usize = 2000;

/// The facts known about a file.
#[derive(Serialize)]
struct Report {
    file: String,
    #[serde(flatten)]
    found: FileFacts,
}

#[derive(Serialize)]
#[serde(untagged)]
enum FileFacts {
    /// A model or a latent.
    Tensors {
        #[serde(flatten)]
        inspection: Box<Inspection>,
        /// The reason that a latent can't be decoded with any VAE.
        #[serde(skip_serializing_if = "Option::is_none")]
        undecodable: Option<String>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        listing: Vec<Tensor>,
        /// The settings that it was made with, if its texts tell them.
        #[serde(skip_serializing_if = "Option::is_none")]
        parameters: Option<Box<Told>>,
    },
    /// A picture or a clip.
    Pixels {
        kind: &'static str,
        format: &'static str,
        #[serde(flatten)]
        look: Box<MediaInfo>,
        /// The record of the decision that made it, if tilewright wrote one.
        decision: Option<Box<Record>>,
        /// The settings that it was made with, if its texts tell them.
        #[serde(skip_serializing_if = "Option::is_none")]
        parameters: Option<Box<Told>>,
    },
    /// Records of decisions.
    Records {
        kind: &'static str,
        #[serde(flatten)]
        recorded: Box<Recorded>,
    },
}

/// Inspects files without loading them.
pub fn run(arguments: &Inspect) -> Outcome {
    let mut stdout = printer::stdout();
    let (mut reports, mut failures) = (Vec::new(), Vec::new());
    let mut paths = Vec::new();
    for path in &arguments.files {
        match path.is_dir().then(|| tilewright_models::models_in(path)) {
            None => paths.push(path.clone()),
            Some(Ok(models)) => paths.extend(models),
            Some(Err(error)) => failures.push(tilewright_models::Error::from(error).into()),
        }
    }
    for path in &paths {
        match Report::of(path, arguments.tensors) {
            Ok(report) if arguments.json => reports.push(report),
            Ok(report) => report.write(&mut stdout, path != &paths[0])?,
            Err(failure) => failures.push(failure),
        }
    }
    if arguments.json && !reports.is_empty() {
        match (&reports[..], paths.len()) {
            ([only], 1) => printer::json(only)?,
            _ => printer::json(&reports)?,
        }
    }
    let more = failures.len().saturating_sub(1);
    match failures.into_iter().next() {
        None => Ok(()),
        Some(first) if more == 0 => Err(first),
        Some(first) => Err(first.and(format!("and {more} more of the files can't be looked into"))),
    }
}

impl Report {
    fn of(path: &Path, listed: bool) -> Outcome<Self> {
        let report = |found| Ok(Self { file: path.display().to_string(), found });
        let format = kind(path);
        if format == Some(Format::Json)
            && let Some(recorded) = Recorded::of(path)?
        {
            return report(FileFacts::Records { kind: "records", recorded: Box::new(recorded) });
        }
        match format {
            Some(format) if format.is_picture() || format.is_video() => {
                let look = MediaInfo::of(path, format)?;
                let text = look.texts.iter().find(|(keyword, _)| keyword == RECORD_KEYWORD);
                let decision = text.and_then(|(_, text)| tilewright_plan::records::parse(1, text.as_bytes()).ok());
                let kind = if look.shape.frames > 1 { "clip" } else { "picture" };
                report(FileFacts::Pixels {
                    parameters: Told::of(&look.texts).map(Box::new),
                    kind,
                    format: format.name(),
                    look: Box::new(look),
                    decision: decision.map(Box::new),
                })
            }
            _ => {
                // The error names the kind of a file without tensors.
                let file = Checkpoint::open(path).map_err(tilewright_models::Error::from)?;
                let inspection = Box::new(Inspection::of(&file));
                let undecodable = tensors::refusal(path, &inspection);
                let listing = if listed { tensors::listing(&file) } else { Vec::new() };
                let texts = file.texts().iter().map(|(name, text)| (name.clone(), text.clone())).collect();
                let parameters = Told::of(&texts).map(Box::new);
                report(FileFacts::Tensors { inspection, undecodable, listing, parameters })
            }
        }
    }

    fn write(&self, to: &mut impl Write, after_another: bool) -> Outcome {
        let mut rows: Vec<(&str, String)> = vec![("file", self.file.clone())];
        let mut tensors: &[Tensor] = &[];
        match &self.found {
            FileFacts::Tensors { inspection, undecodable, listing, parameters } => {
                rows.extend(tensors::rows(inspection));
                rows.extend(parameters.iter().flat_map(|told| settings(told)));
                rows.extend(undecodable.iter().map(|reason| ("can't decode", reason.clone())));
                tensors = listing;
            }
            FileFacts::Pixels { format, look, decision, parameters, .. } => {
                rows.extend(pixels(format, look, (decision.as_deref(), parameters.as_deref())));
            }
            FileFacts::Records { recorded, .. } => rows.extend(recorded.rows()),
        }
        let blank = if after_another { "\n" } else { "" };
        writeln!(to, "{blank}{}", table::facts(rows))?;
        if !tensors.is_empty() {
            let rows = tensors.iter().map(Tensor::row);
            writeln!(to, "\n{}", table::listing(&["tensor", "shape", "type"], &[], rows))?;
        }
        Ok(())
    }
}

/// The format that a file's first bytes show; none also if it can't be read, which its next reader
/// reports.
fn kind(path: &Path) -> Option<Format> {
    let mut start = Vec::new();
    tilewright_files::open(path).ok()?.take(LOOKED_AT).read_to_end(&mut start).ok()?;
    match Format::of(&start) {
        // A record may quote the keys of other formats, but is JSON.
        Some(Format::Workflow | Format::DiffusersConfig) if start.starts_with(b"{\"tilewright\"") => Some(Format::Json),
        found => found,
    }
}

/// Texts by name with their lengths in bytes, row by row.
fn texts<'a>(mut found: impl Iterator<Item = (&'a str, usize)>) -> Vec<(&'static str, String)> {
    let row = |(name, length): (&'a str, usize)| {
        ("text", format!("{}, {}", shorten(name, 80), bytes::display(length as u64)))
    };
    let mut rows: Vec<_> = found.by_ref().take(MOST_TEXTS).map(row).collect();
    let more = found.count();
    if more > 0 {
        rows.push(("text", format!("and {more} more")));
    }
    rows
}

/// The settings that a file was made with, row by row.
fn settings(told: &Told) -> Vec<(&str, String)> {
    let value = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Array(all) => all.iter().map(Value::to_string).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    };
    let rows = told.settings.iter().map(|(name, of)| (name.as_str(), shorten(&value(of), LONGEST)));
    [("made by", told.written_by.to_owned())].into_iter().chain(rows).collect()
}

fn pixels<'a>(
    format: &str,
    look: &'a MediaInfo,
    (decision, told): (Option<&'a Record>, Option<&'a Told>),
) -> Vec<(&'a str, String)> {
    let shape = look.shape;
    let mut rows = vec![("kind", format.to_owned())];
    let size = format!("{}×{}", shape.width, shape.height);
    rows.push(match (shape.frames, look.rate) {
        (1, _) => ("size", format!("{size}, {}", with_noun(shape.channels as u64, "channel"))),
        (frames, Some(rate)) => ("size", format!("{size}, {frames} frames, {rate} per second")),
        (frames, None) => ("size", format!("{size}, {frames} frames")),
    });
    rows.extend(look.unencodable.iter().map(|reason| ("can't encode", reason.clone())));
    rows.extend(told.into_iter().flat_map(settings));
    let found = look.texts.iter().filter(|(keyword, _)| keyword != RECORD_KEYWORD || decision.is_none());
    rows.extend(texts(found.map(|(keyword, text)| (keyword.as_str(), text.len()))));
    if let Some(record) = decision {
        rows.extend(records::decision(record));
    }
    rows
}
