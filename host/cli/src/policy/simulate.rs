//! `tilewright policy simulate`: policies on a workload, on a device that is only a table.

mod page;

use std::{io::Write, path::Path};

use tilewright_bench::Spelling;
use tilewright_kit::simulate::{
    Entrant, Item, MOST_TABLE_BYTES, Options, PlannerOf, Simulation, Table, builtin, from_records, read_workload,
    run as simulated,
};
use tilewright_plan::{bytes, of_kinds, records, terminal::shorten, words::with_noun};
use tilewright_plot::Page;
use tilewright_policy::LoadedPolicy;

use crate::{
    args::Simulate,
    failure::{Failure, Outcome},
    files, printer, table,
    tell::tell,
};

/// The default policies: all shipped ones but `fixed`, which only follows its settings.
const ENTRANTS: [&str; 4] = ["adaptive", "gfx1151", "comfyui", "diffusers"];

/// The workload that needs no file.
const BUILTIN: &str = "builtin";

/// Simulates policies.
pub fn run(arguments: &Simulate) -> Outcome {
    if let Some(plot) = &arguments.plot {
        Page::check(plot)?;
        let roles =
            files::roles().reads("the device's table", &arguments.device).reads("the workload", &arguments.workload);
        let policies = arguments.policies.iter().map(|spelling| spelling.policy.as_str());
        files::check_file(policies.fold(roles, files::reads_policy), "--plot", Some(plot))?;
    }
    let path = &arguments.device;
    let text = super::read_bounded(path, MOST_TABLE_BYTES)?;
    let device = Table::read(&text).map_err(|error| Failure::input(format!("{}: {error}", path.display())))?;
    let workload = workload(&device, &arguments.workload)?;
    let host = super::host(arguments.loaded.grants)?;
    let shipped = ENTRANTS.map(|name| Spelling { policy: name.into(), settings: Vec::new() });
    let spellings = if arguments.policies.is_empty() { &shipped[..] } else { &arguments.policies };
    let (mut entrants, mut policies) = (Vec::new(), Vec::new());
    for spelling in spellings {
        let loaded = super::verify(&host, &spelling.policy)?.load(&host)?;
        let time_budget = loaded.inspection().limits.time_budget(workload.len());
        let loaded = loaded.with_time_budget(time_budget);
        let planners = of_kinds!(W => Box::new(loaded.configure(&spelling.settings)?) as PlannerOf<W>);
        entrants.push(Entrant { label: spelling.to_string(), planners });
        policies.push(loaded);
    }
    let options = Options { nearest: !arguments.exact_only, allows_blended: arguments.allow.blended() };
    let report = simulated(&device, &workload, entrants, options);
    policies.iter().try_for_each(LoadedPolicy::check_time_budget)?;
    if arguments.loaded.json {
        printer::json(&report)?;
    } else {
        print_report(&report)?;
    }
    if let Some(plot) = &arguments.plot {
        page::of(&report).write(plot)?;
        tell!("wrote {}", plot.display());
    }
    Ok(())
}

fn workload(device: &Table, path: &Path) -> Outcome<Vec<Item>> {
    if path == Path::new(BUILTIN) {
        return Ok(builtin(device));
    }
    let wrong = |what: &dyn std::fmt::Display| Failure::input(format!("{}: {what}", path.display()));
    let text = super::read_bounded(path, MOST_TABLE_BYTES)?;
    let first = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    if records::parse_any(1, first).is_err() {
        return read_workload(device, &text).map_err(|error| wrong(&error));
    }
    let read: Result<Vec<_>, _> = records::read_any(&text[..]).map(|read| read.map(|(_, record)| record)).collect();
    let read = read.map_err(|damage| wrong(&damage))?;
    let (items, left) = from_records(device, &read).map_err(|error| wrong(&error))?;
    if left > 0 {
        tell!("note: the table has nothing of {left} of {}: left out", with_noun(read.len(), "request"));
    }
    Ok(items)
}

fn print_report(report: &Simulation) -> Outcome {
    let mut stdout = printer::stdout();
    let device = &report.device;
    let facts = [
        ("device", format!("{} ({}), as a table", shorten(&device.name, 80), shorten(&device.arch, 40))),
        ("measured", shorten(&report.about, 400)),
        ("workload", extent(report)),
    ];
    writeln!(stdout, "{}\n", table::facts(facts.into_iter().filter(|(_, value)| !value.is_empty())))?;
    let heading = [
        "policy",
        "done",
        "failed",
        "attempts failed",
        "not in table",
        "stood in",
        "time",
        "best",
        "memory",
        "mean regret",
        "worst",
    ];
    Ok(writeln!(stdout, "{}", table::listing(&heading, &heading[1..], rows(report, 0)))?)
}

/// The extent of the workload.
fn extent(report: &Simulation) -> String {
    format!("{} over {}", with_noun(report.requests, "request"), with_noun(report.cases.len(), "case"))
}

/// A row per policy, as text; `digits` stand after the point of shares.
fn rows(report: &Simulation, digits: usize) -> impl Iterator<Item = Vec<String>> + '_ {
    let share =
        move |regret: Option<f64>| regret.map(|regret| format!("{:.digits$} %", regret * 100.0)).unwrap_or_default();
    report.policies.iter().map(move |row| {
        vec![
            row.label.clone(),
            row.done.to_string(),
            row.failed.to_string(),
            row.failed_attempts.to_string(),
            row.not_in_table.to_string(),
            row.stood_in.to_string(),
            table::milliseconds(row.elapsed_ms),
            table::milliseconds(row.best_ms),
            bytes::display(row.peak_bytes),
            share(row.mean_regret),
            share(row.worst_regret),
        ]
    })
}
