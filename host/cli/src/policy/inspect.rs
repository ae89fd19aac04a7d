//! `tilewright policy inspect`: a policy's description and properties, without asking it to decide.

use std::io::Write;

use tilewright_plan::bytes;
use tilewright_policy::{Inspection, Wasi};

use crate::{args::LoadOptions, failure::Outcome, printer, table};

/// Describes one policy.
pub fn run(name_or_file: &str, LoadOptions { json, grants }: LoadOptions) -> Outcome {
    let host = super::host(grants)?;
    let policy = super::verify(&host, name_or_file)?.load(&host)?;
    let inspection = policy.inspection();
    if json {
        return printer::json(inspection);
    }
    let mut stdout = printer::stdout();
    writeln!(stdout, "{}", table::facts(rows(inspection)))?;
    let settings = inspection.description.settings.iter();
    let settings =
        settings.map(|setting| vec![setting.name.clone(), setting.default.to_string(), setting.summary.clone()]);
    if settings.len() > 0 {
        writeln!(stdout, "\n{}", table::listing(&["setting", "default", "what it does"], &[], settings))?;
    }
    Ok(())
}

fn rows(inspection: &Inspection) -> Vec<(&'static str, String)> {
    let limits = &inspection.limits;
    let wasi = if limits.wasi == Wasi::Inert { ", an inert WASI" } else { "" };
    let allowed = format!(
        "per call {} fuel, {} ms, {} copied; {} of memory{wasi}",
        table::count(limits.fuel as f64),
        limits.wall_ms,
        bytes::display(limits.copied_bytes as u64),
        bytes::display(limits.memory_bytes as u64),
    );
    vec![
        ("policy", format!("{} {}", inspection.description.name, inspection.description.version)),
        ("summary", inspection.description.summary.clone()),
        ("digest", inspection.digest.clone()),
        ("size", bytes::display(inspection.size_bytes)),
        ("contract", inspection.contract.to_owned()),
        ("stages", inspection.description.stages.iter().map(|stage| stage.name()).collect::<Vec<_>>().join(", ")),
        ("imports", inspection.imports.join(", ")),
        ("exports", inspection.exports.join(", ")),
        ("limits", allowed),
    ]
}
