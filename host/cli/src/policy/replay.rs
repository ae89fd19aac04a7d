//! `tilewright policy replay`: recorded decisions, made again.

use std::{
    collections::HashMap,
    io::{self, BufRead, BufReader, Write},
    path::Path,
};

use tilewright_kit::replay::{
    CallVerdict, OtherPolicyReport, OtherPolicyRow, PlanVerdict, Recorded, ReplayError, SamePolicyReport,
    SamePolicyRow, check_full, describe_any, gather, replay_other_policy, replay_same_policy,
};
use tilewright_plan::{
    FieldOf, Planner, PolicyIdentity, Record, bytes, each, of_any, of_each, of_kinds,
    records::{self, AnyRecord, Damage},
    terminal::shorten,
    words::with_noun,
};
use tilewright_policy::{LoadedPolicy, Policy, PolicyHost, shipped_names};

use crate::{
    args::Replay,
    failure::{Failure, Outcome},
    files, printer, table,
    tell::tell,
};

/// Characters of a digest that are shown.
const DIGEST: usize = 19;

/// Characters of one line of a difference.
const LINE: usize = 400;

/// Replays records.
pub fn run(arguments: &Replay) -> Outcome {
    let read = read(&arguments.records)?;
    let [ordinary, records] = count(&read);
    if ordinary > 0 {
        tell!("note: {ordinary} of {records} records were made without --record full, and are not replayed");
    }
    let host = super::host(arguments.loaded.grants)?;
    let patient = |policy: LoadedPolicy| {
        let time_budget = policy.inspection().limits.time_budget(records);
        policy.with_time_budget(time_budget)
    };
    let find = |policy: &str| Ok::<_, Failure>(patient(super::verify(&host, policy)?.load(&host)?));
    let files = arguments.policy_file.iter().map(|path| Ok(patient(super::verify_file(&host, path)?.load(&host)?)));
    let mut known = files.collect::<Outcome<Vec<_>>>()?;
    let asked = arguments.policy.as_deref().map(find).transpose()?;
    let decided = |policy: &LoadedPolicy| deciders(&read).all(|decided| decided.digest == policy.inspection().digest);
    match asked {
        // The policy that decided then, by its file or name.
        Some(policy) if arguments.set.is_empty() && decided(&policy) => known.push(policy),
        Some(policy) => return compare(arguments, &read, &|_| Ok(policy.clone())),
        None => {}
    }
    let policies = find_deciders(&host, &read, known)?;
    let find = |identity: &PolicyIdentity| policies[&identity.digest].clone();
    if !arguments.set.is_empty() {
        return compare(arguments, &read, &|identity| Ok(find(identity)));
    }
    let configured = |identity: &PolicyIdentity| -> Result<Policy, String> {
        let settings: Vec<_> =
            identity.settings.iter().map(|(name, value)| (name.clone(), value.to_string())).collect();
        let policy = find(identity).configure(&settings).map_err(|error| error.to_string())?;
        if policy.identity() != identity {
            return Err(format!(
                "policy {}: the record's name, version or settings are not what the policy says: the record is damaged",
                shorten(&identity.name, 64)
            ));
        }
        Ok(policy)
    };
    let reports = of_kinds!(W => {
        let mut planner = |identity: &PolicyIdentity| Ok(Box::new(configured(identity)?) as Box<dyn Planner<W>>);
        replay_same_policy(W::of(&read), &mut planner).map_err(|error| input_failure(&arguments.records, &error))?
    });
    let report = reports.merged(SamePolicyReport::and);
    policies.values().try_for_each(LoadedPolicy::check_time_budget)?;
    if arguments.loaded.json {
        printer::json(&report)?;
    } else {
        print_report(&report, arguments.all)?;
    }
    match report.totals.different {
        0 => Ok(()),
        different => Err(Failure::work(format!(
            "{different} of {} differ from the record",
            with_noun(report.totals.calls, "call")
        ))),
    }
}

fn input_failure(path: &Path, error: &ReplayError) -> Failure {
    let path = path.display();
    Failure::input(match error {
        ReplayError::NothingFull { records } => {
            format!("{path}: none of {records} records was made with --record full, which a replay needs")
        }
        error => format!("{path}: {error}"),
    })
}

/// The contents of a file of records.
type Read = each!(Recorded);

/// The policies that decided.
fn deciders(read: &Read) -> impl Iterator<Item = &PolicyIdentity> {
    let of = of_each!(read, read => read.sessions.iter().map(|session| &session.policy).collect::<Vec<_>>());
    of.into_iter().flatten()
}

/// Records without an exchange, and all of them.
fn count(read: &Read) -> [usize; 2] {
    let counts = of_each!(read, read => [read.ordinary, read.records]);
    counts.merged(|[ordinary, records], other| [ordinary + other[0], records + other[1]])
}

fn read(path: &Path) -> Outcome<Read> {
    let source: Box<dyn BufRead> = if path == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(BufReader::new(tilewright_files::open(path).map_err(files::unreadable(path))?))
    };
    let mut others = of_kinds!(W => Vec::<std::result::Result<(u64, Record<W>), Damage>>::new());
    let vae = records::read_any(source).filter_map(|read| match read {
        Ok((line, AnyRecord::Vae(record))) => Some(Ok((line, *record))),
        Ok((line, record)) => {
            of_any!(record, record: W => W::of_mut(&mut others).push(Ok((line, *record))));
            None
        }
        Err(damage) => Some(Err(damage)),
    });
    let gathered = gather(vae).and_then(|vae| {
        let read = Read { vae, ..of_each!(others, records => gather(records)?) };
        let [ordinary, records] = count(&read);
        check_full(records, ordinary)?;
        Ok(read)
    });
    gathered.map_err(|error| input_failure(path, &error))
}

/// The policies that decided then, by their digests: of the given files, or shipped.
fn find_deciders(host: &PolicyHost, read: &Read, known: Vec<LoadedPolicy>) -> Outcome<HashMap<String, LoadedPolicy>> {
    let mut policies: HashMap<_, _> =
        known.into_iter().map(|policy| (policy.inspection().digest.clone(), policy)).collect();
    let given = !policies.is_empty();
    for decided in deciders(read) {
        let PolicyIdentity { name, version, digest, .. } = decided;
        if policies.contains_key(digest) {
            continue;
        }
        let mut shipped = None;
        if shipped_names().any(|shipped| shipped == name) {
            shipped = Some(host.load_shipped(name)?);
        }
        if let Some(policy) = shipped.as_ref().filter(|policy| policy.inspection().digest == *digest) {
            policies.insert(digest.clone(), policy.clone());
            continue;
        }
        let short = |digest: &str| shorten(digest, DIGEST);
        let known = match (given, &shipped) {
            (true, _) => "none of the files given is that one".to_owned(),
            (false, None) => "that does not ship with this program".to_owned(),
            (false, Some(policy)) => {
                format!("the {name} that ships with this program is {}", short(&policy.inspection().digest))
            }
        };
        let (name, version) = (shorten(name, 64), shorten(version, 64));
        return Err(Failure::input(format!(
            "decided by {name} {version}, {}, and {known}: give its file with --policy-file, or say with --policy who shall decide instead",
            short(digest),
        )));
    }
    Ok(policies)
}

/// Asks another policy, or the same with other settings. A policy of the same name gets the
/// recorded settings that it has.
fn compare(arguments: &Replay, read: &Read, find: &dyn Fn(&PolicyIdentity) -> Outcome<LoadedPolicy>) -> Outcome {
    let mut asked = Vec::new();
    let mut configured = |identity: &PolicyIdentity| -> Result<Policy, String> {
        let policy = find(identity).map_err(|failure| failure.to_string())?;
        asked.push(policy.clone());
        let description = policy.description();
        let has = |name: &str| description.settings.iter().any(|setting| setting.name == name);
        let kept = identity.settings.iter().filter(|(name, _)| description.name == identity.name && has(name));
        let kept = kept.map(|(name, value)| (name.clone(), value.to_string()));
        let settings: Vec<_> = kept.chain(arguments.set.iter().cloned()).collect();
        policy.configure(&settings).map_err(|error| error.to_string())
    };
    let wrong = |error| input_failure(&arguments.records, &error);
    let reports = of_kinds!(W => {
        let mut planner = |identity: &PolicyIdentity| Ok(Box::new(configured(identity)?) as Box<dyn Planner<W>>);
        replay_other_policy(W::of(read), &mut planner).map_err(wrong)?
    });
    let report = reports.merged(OtherPolicyReport::and);
    asked.iter().try_for_each(LoadedPolicy::check_time_budget)?;
    if arguments.loaded.json {
        return printer::json(&report);
    }
    print_other(&report, arguments.all)
}

/// Prints a line per call that is not equal, and its differences.
fn print_report(report: &SamePolicyReport, all: bool) -> Outcome {
    let mut stdout = printer::stdout();
    for row in report.calls.iter().filter(|row| all || row.verdict != CallVerdict::Equal) {
        let SamePolicyRow { line, session, sequence, call, verdict, note, .. } = row;
        let verdict = match verdict {
            CallVerdict::Equal => "equal",
            CallVerdict::Different => "different",
            CallVerdict::NotReproducible => "not reproducible",
        };
        let note = note.as_ref().map(|note| format!(": {}", shorten(note, LINE))).unwrap_or_default();
        writeln!(stdout, "line {line}: {call} {sequence} of {}: {verdict}{note}", shorten(session, 64))?;
        for difference in &row.differences {
            let (then, now) = (shorten(&difference.recorded, LINE), shorten(&difference.replayed, LINE));
            writeln!(stdout, "  {:<9} then {then}\n  {:<9} now  {now}", difference.what, "")?;
        }
    }
    let totals = &report.totals;
    Ok(writeln!(
        stdout,
        "{} in {}: {} equal, {} different, {} not reproducible",
        with_noun(totals.calls, "call"),
        with_noun(totals.sessions, "session"),
        totals.equal,
        totals.different,
        totals.not_reproducible
    )?)
}

fn print_other(report: &OtherPolicyReport, all: bool) -> Outcome {
    let heading = ["line", "call", "recorded", "the other's", "from", "time", "its time", "memory", "its memory", ""];
    let rows = report.decisions.iter().filter(|row| all || row.verdict != PlanVerdict::Same);
    let rows: Vec<_> = rows.map(other_row).collect();
    let mut stdout = printer::stdout();
    if !rows.is_empty() {
        let numbers = ["line", "time", "its time", "memory", "its memory"];
        writeln!(stdout, "{}\n", table::listing(&heading, &numbers, rows))?;
    }
    let totals = &report.totals;
    writeln!(
        stdout,
        "{}: {} the same, {} compared, {} not priced, {} not known; nothing can be said of {:.0} %",
        with_noun(totals.decisions, "decision"),
        totals.same,
        totals.compared,
        totals.not_priced,
        totals.not_known,
        totals.nothing_said * 100.0
    )?;
    if totals.compared > 0 {
        writeln!(
            stdout,
            "of those compared, which took or were priced at {:.1} ms: {:+.1} ms by measurements, {:+.1} ms by prices",
            totals.compared_ms, totals.measured_difference_ms, totals.estimated_difference_ms
        )?;
    }
    if report.failed_to_learn > 0 {
        writeln!(stdout, "it failed to learn {}", with_noun(report.failed_to_learn, "time"))?;
    }
    Ok(())
}

fn other_row(row: &OtherPolicyRow) -> Vec<String> {
    let time = |worth: Option<tilewright_kit::replay::PlanCost>| {
        worth.map(|worth| format!("{:.1} ms", worth.elapsed_ms)).unwrap_or_default()
    };
    let memory = |worth: Option<tilewright_kit::replay::PlanCost>| {
        worth.map(|worth| bytes::display(worth.peak_bytes)).unwrap_or_default()
    };
    let from = row.basis.map_or("", |basis| match basis {
        tilewright_kit::replay::Basis::Measured => "measured",
        tilewright_kit::replay::Basis::Estimated => "prices",
    });
    let note = match row.verdict {
        PlanVerdict::Same => "the same".into(),
        PlanVerdict::Compared => String::new(),
        PlanVerdict::NotPriced => "no record says what it is worth".into(),
        PlanVerdict::NotKnown if row.missing_prices > 0 => {
            format!("not known: asked for {} prices that no record holds", row.missing_prices)
        }
        PlanVerdict::NotKnown if row.missing_trials => "not known: asked for trials that the record lacks".into(),
        PlanVerdict::NotKnown => "not known: ran into the limit of time".into(),
    };
    let fallback = row.fallback.as_ref().map(|fallback| format!("{}; ", shorten(fallback, 80))).unwrap_or_default();
    vec![
        row.line.to_string(),
        format!("{} {}", row.call, row.sequence),
        describe_any(&row.recorded),
        describe_any(&row.other),
        from.into(),
        time(row.recorded_worth),
        time(row.other_worth),
        memory(row.recorded_worth),
        memory(row.other_worth),
        format!("{fallback}{note}"),
    ]
}
