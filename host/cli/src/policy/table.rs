//! `tilewright policy table`: measurements of a device as a table for simulations.

use std::path::Path;

use tilewright_kit::simulate::{Builder, MOST_TABLE_BYTES};
use tilewright_plan::{of_each, records, words::with_noun};

use crate::{
    args::Table,
    failure::{Failure, Outcome},
    files,
    tell::tell,
};

/// Makes a table.
pub fn run(arguments: &Table) -> Outcome {
    let sources = arguments.sources.iter().fold(files::roles(), |roles, path| roles.reads("a source", path));
    files::check_file(sources, "-o", Some(&arguments.output))?;
    let mut builder = Builder::new(arguments.device.clone(), arguments.priced);
    for path in &arguments.sources {
        take(&mut builder, path)?;
    }
    let left = builder.left;
    for (count, what) in [
        (left.other_devices, "made on other devices"),
        (left.without_outcome, "without an outcome"),
        (left.without_offer, "that don't say what could be carried out"),
    ] {
        if count > 0 {
            tell!("note: left out: measurements {what}, {count} in all");
        }
    }
    let table = builder.finish(arguments.name.clone().unwrap_or_default(), arguments.about.clone());
    let mut table = table.map_err(Failure::input)?;
    if table.name.is_empty() {
        table.name.clone_from(&table.device.name);
    }
    let text = table.text().map_err(Failure::work)?;
    let output = &arguments.output;
    tilewright_outputs::write_whole(output, text.as_bytes())
        .map_err(|error| Failure::input(format!("{}: can't be written: {error}", output.display())))?;
    let plans = of_each!(&table.cases, cases => cases.iter().map(|case| case.plans.len()).sum::<usize>());
    let plans: usize = plans.into_iter().sum();
    tell!("wrote {}: {} in {}", output.display(), with_noun(plans, "plan"), with_noun(table.count(), "case"));
    Ok(())
}

/// Adds a file: a sweep's report is one object over many lines, records are one a line.
fn take(builder: &mut Builder, path: &Path) -> Outcome {
    let wrong = |what: &dyn std::fmt::Display| Failure::input(format!("{}: {what}", path.display()));
    let text = super::read_bounded(path, MOST_TABLE_BYTES)?;
    if text.iter().all(u8::is_ascii_whitespace) {
        return Err(wrong(&"empty"));
    }
    let first = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    // A report in one line is not a record either, and its error is as good as any.
    if records::parse_any(1, first).is_err() && serde_json::from_slice::<serde_json::Value>(&text).is_ok() {
        let of_sample = builder.sample_sweep(&text);
        return of_sample.or_else(|_| builder.sweep(&text)).map_err(|error| wrong(&error));
    }
    for read in records::read_any(&text[..]) {
        builder.record(&read.map_err(|damage| wrong(&damage))?.1);
    }
    Ok(())
}
