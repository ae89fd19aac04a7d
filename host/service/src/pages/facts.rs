//! What the pages are made from.

use std::{fs, time::SystemTime};

use axum::http::{HeaderMap, header};
use tilewright_config::{Between, Conditions, Role, Route};
use tilewright_dashboard::facts as told;
use tilewright_plan::{Backend, Plan, Record};
use tilewright_rollout::{CanaryFacts, CanaryState, Event, RULE, Revision, ShadowFacts, SlotFacts};

use crate::{
    App, clock,
    house::House,
    jobs::{
        Job, Kept, State,
        live::{GridFacts, Unit},
        store::{Filter, Search},
    },
    problem::Problem,
};

/// Jobs that ended, on the overview.
const RECENT: u32 = 20;

/// Jobs that wait, on the overview.
const WAITING: usize = 50;

/// Jobs on a page of their list.
const PAGE: u32 = 50;

/// Events on the overview.
const EVENTS: usize = 40;

/// The frame of every page.
pub fn frame(app: &App, headers: &HeaderMap, notice: Option<&str>) -> told::Frame {
    let house = &app.house;
    let health = match (house.is_draining(), house.config_fault().clone()) {
        (true, _) => told::Health::Draining,
        (false, Some(fault)) => told::Health::Degraded(fault),
        (false, None) => told::Health::Ready,
    };
    let config = house.config.load();
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).map(str::to_owned);
    let scheme = if config.server.tls.is_some() { "https" } else { "http" };
    let address = format!("{scheme}://{}", host.unwrap_or_else(|| config.server.listen.to_string()));
    let notice = notice.and_then(|number| app.notices.of(number));
    told::Frame {
        version: env!("CARGO_PKG_VERSION").into(),
        now: SystemTime::now(),
        started: house.started,
        health,
        form_token: app.door.form_token.clone(),
        address,
        has_token: app.door.callers.has_tokens(),
        notice,
        role: match app.door.callers.of(headers).map(|caller| caller.role) {
            Some(Role::Operate) => told::Role::Operate,
            Some(Role::Submit) => told::Role::Submit,
            Some(Role::Read) | None => told::Role::Read,
        },
    }
}

/// A search for jobs.
pub type Query = told::JobQuery;

/// The state with this name.
pub fn state_of(name: &str) -> Option<told::State> {
    State::ALL.iter().find(|(_, known)| *known == name).map(|(known, _)| state(*known))
}

/// A page of jobs.
///
/// # Errors
/// The store can't be read.
pub fn jobs(app: &App, headers: &HeaderMap, query: Query, notice: Option<&str>) -> crate::Result<told::JobsPage> {
    let house = &app.house;
    let wanted = query.state.and_then(|wanted| State::ALL.iter().find(|(known, _)| state(*known) == wanted));
    let filter = Filter {
        state: wanted.map(|(known, _)| *known),
        policy: query.policy.clone(),
        before: query.before.clone(),
        limit: PAGE,
        ..Filter::default()
    };
    let search = Search { model: query.model.clone(), device: query.device.clone(), text: query.text.clone() };
    let (found, next) = house.store.search(&filter, &search)?;
    Ok(told::JobsPage {
        frame: frame(app, headers, notice),
        jobs: found.into_iter().map(|kept| shown(house, kept, None)).collect(),
        query,
        next,
        models: house.models.load().keys().cloned().collect(),
        devices: house.devices.iter().map(|device| device.name.clone()).collect(),
        policies: house.rollout.policies().into_iter().map(|policy| policy.name).collect(),
    })
}

/// The overview.
///
/// # Errors
/// The store can't be read.
pub fn overview(app: &App, headers: &HeaderMap, notice: Option<&str>) -> crate::Result<told::Overview> {
    let house = &app.house;
    let list = |state: Option<State>, limit| house.store.list(&Filter { state, limit, ..Filter::default() });
    let running = list(Some(State::Running), 16)?.into_iter().map(|(kept, _)| shown(house, kept, None)).collect();
    let mut queue = Vec::new();
    for device in &house.devices {
        for (place, id) in device.queue.order().into_iter().take(WAITING).enumerate() {
            if let Some(kept) = house.store.get(&id)? {
                let mut job = shown(house, kept, None);
                job.position = Some(place as u32 + 1);
                queue.push(job);
            }
        }
    }
    let recent = list(None, RECENT + 60)?.into_iter().filter(|(kept, _)| kept.job.state.is_end());
    let recent = recent.take(RECENT as usize).map(|(kept, _)| shown(house, kept, None)).collect();
    let (policies, routes) = (house.rollout.policies(), house.rollout.routes());
    let regret = routes.iter().filter_map(|(route, shadow, _)| {
        let points = shadow.as_ref()?.regrets.iter().map(|regret| (clock::read(&regret.time), regret.shadow)).collect();
        Some(told::Series { name: route.name.clone(), points })
    });
    let charts = told::Charts { latency: latency(house, None), decode: decodes(house), regret: regret.collect() };
    Ok(told::Overview {
        frame: frame(app, headers, notice),
        models: house.models.load().keys().cloned().collect(),
        devices: house.devices.iter().map(|device| shown_device(house, device)).collect(),
        running,
        queue,
        recent,
        policies: policies.iter().map(|policy| shown_policy(policy, &routes)).collect(),
        routes: routes.iter().map(|route| shown_route(route, &policies)).collect(),
        sources: sources(),
        charts,
        events: house.rollout.events().iter().take(EVENTS).map(shown_event).collect(),
    })
}

/// What can be named in a swap.
fn sources() -> Vec<String> {
    tilewright_policy::shipped_names().map(str::to_owned).collect()
}

fn latency(house: &House, policy: Option<&str>) -> Vec<told::Latency> {
    let times = house.stories.times().into_iter().filter(|((name, _), _)| policy.is_none_or(|policy| policy == name));
    let shown = times.map(|((policy, revision), seconds)| told::Latency {
        policy,
        revision,
        samples_us: seconds.into_iter().map(|seconds| seconds * 1e6).collect(),
    });
    shown.collect()
}

fn decodes(house: &House) -> Vec<told::Series> {
    let mut series: Vec<told::Series> = Vec::new();
    for (route, time, seconds) in house.stories.decodes() {
        let point = (time, seconds * 1e3);
        match series.iter_mut().find(|series| series.name == route) {
            Some(series) => series.points.push(point),
            None => series.push(told::Series { name: route, points: vec![point] }),
        }
    }
    series
}

fn shown_device(house: &House, device: &crate::device::Device) -> told::Device {
    let ((queued, running), held) = (device.queue.load(), device.held());
    let free = match device.facts.backend {
        Backend::Cpu => tilewright_torch::device::system_memory().ok().map(|memory| memory.available),
        _ => None,
    };
    let ours = held.in_use + held.pooled;
    told::Device {
        name: device.name.clone(),
        backend: format!("{:?}", device.facts.backend).to_lowercase(),
        about: device.facts.name.clone(),
        total_bytes: device.facts.total_bytes,
        used_bytes: free.map_or(ours, |free| device.facts.total_bytes.saturating_sub(free)),
        held_bytes: Some(ours),
        limit_bytes: device.memory_limit,
        running: u32::from(running),
        queued: queued as u32,
        queue_most: house.config.load().server.limits.queue,
        fault: None,
    }
}

/// A job for people; `record` is its record, where it is at hand.
fn shown(house: &House, kept: Kept, record: Option<&Record>) -> told::Job {
    let job = house.told(kept);
    let seen = house.live.get(&job.id).map(|seen| seen.now()).unwrap_or_default();
    let planned = seen.planned.map(|planned| (planned.plan, planned.grid));
    let recorded = || record.map(|record| (record.plan.clone(), GridFacts::of(&record.request, &record.plan)));
    let planned = planned.or_else(recorded);
    let share = if job.state == State::Done { 1.0 } else { seen.progress.map_or(0.0, |progress| progress.share) };
    let grid = planned.as_ref().map(|(plan, grid)| shown_grid(grid, plan, share, job.batch));
    let time = |text: &Option<String>| text.as_deref().map(clock::read);
    told::Job {
        state: state(job.state),
        model: job.model.clone(),
        device: job.device.clone(),
        tag: job.tag.clone(),
        route: Some(job.route.clone()),
        policy: Some(job.policy.clone()),
        revision: Some(job.revision),
        digest: Some(job.digest.clone()),
        canary: job.canary,
        format: job.format.ending().into(),
        batch: job.batch,
        frames: job.frames,
        height: job.height,
        width: job.width,
        created: clock::read(&job.created),
        started: time(&job.started),
        finished: time(&job.finished),
        position: job.position.map(|position| position + 1),
        progress: job.progress,
        error: job.error.clone(),
        plan: planned.map(|(plan, _)| plan),
        grid,
        results: results(&job),
        id: job.id,
    }
}

fn results(job: &Job) -> Vec<told::File> {
    let file = |result: &crate::jobs::JobResult| told::File {
        sample: result.sample,
        bytes: result.bytes,
        content_type: result.content_type.clone(),
    };
    job.results.iter().map(file).collect()
}

fn shown_grid(grid: &GridFacts, plan: &Plan, share: f64, batch: u32) -> told::Grid {
    let steps = match grid.unit {
        Unit::Chunk => grid.total,
        _ => batch.max(1),
    };
    told::Grid {
        rows: grid.rows,
        columns: grid.columns,
        steps,
        unit: match grid.unit {
            Unit::Tile => told::Unit::Tile,
            Unit::Band => told::Unit::Band,
            Unit::Chunk => told::Unit::Chunk,
            Unit::Pass => told::Unit::Pass,
        },
        done: grid.done(share),
        total: grid.total,
        together: plan.batch.max(1),
    }
}

fn state(state: State) -> told::State {
    match state {
        State::Queued => told::State::Queued,
        State::Running => told::State::Running,
        State::Done => told::State::Done,
        State::Failed => told::State::Failed,
        State::Cancelled => told::State::Cancelled,
        State::Expired => told::State::Expired,
    }
}

fn shown_policy(policy: &SlotFacts, routes: &[(Route, Option<ShadowFacts>, Option<CanaryFacts>)]) -> told::Policy {
    let mut revisions = vec![shown_revision(&policy.in_force, told::Place::InForce)];
    revisions.extend(policy.previous.iter().map(|revision| shown_revision(revision, told::Place::Previous)));
    revisions.extend(policy.draining.iter().rev().map(|revision| shown_revision(revision, told::Place::Draining)));
    let refused = policy.refused.iter().map(|refused| told::Refused {
        time: clock::read(&refused.time),
        origin: refused.origin.clone(),
        digest: None,
        why: refused.why.clone(),
    });
    let names = |route: &Route| {
        let canary = route.canary.as_ref().map(|canary| &canary.policy);
        [Some(&route.policy), route.shadow.as_ref(), canary].into_iter().flatten().any(|name| *name == policy.name)
    };
    told::Policy {
        name: policy.name.clone(),
        source: policy.source.clone(),
        paused: policy.paused,
        revisions,
        refused: refused.collect(),
        routes: routes.iter().filter(|(route, ..)| names(route)).map(|(route, ..)| route.name.clone()).collect(),
    }
}

fn shown_revision(revision: &std::sync::Arc<Revision>, place: told::Place) -> told::Revision {
    let tally = revision.tally();
    let settings = revision.identity.settings.iter().map(|(name, value)| (name.clone(), value.to_string()));
    told::Revision {
        number: revision.number,
        name: revision.identity.name.clone(),
        version: revision.identity.version.clone(),
        digest: revision.identity.digest.clone(),
        settings: settings.collect(),
        origin: revision.origin.clone(),
        place,
        since: clock::read(&revision.since),
        jobs: tally.jobs,
        decisions: tally.decisions,
        failures: tally.failures,
        held: 0,
    }
}

fn span(between: Option<Between>) -> told::Span {
    between.map_or_else(told::Span::default, |between| told::Span { from: between.from, to: between.to })
}

fn shown_conditions(conditions: &Conditions) -> told::Conditions {
    let Conditions { stage, family, model, arch, device, tag, quantized, pixels, frames } = conditions.clone();
    told::Conditions {
        stage: stage.iter().map(|stage| format!("{stage:?}").to_lowercase()).collect(),
        family,
        model,
        arch,
        device,
        tag,
        quantized,
        pixels: span(pixels),
        frames: span(frames),
    }
}

fn shown_route(
    (route, shadow, canary): &(Route, Option<ShadowFacts>, Option<CanaryFacts>),
    policies: &[SlotFacts],
) -> told::Route {
    let policy = |name: &str| policies.iter().find(|policy| policy.name == name);
    let of = policy(&route.policy);
    let shadow = shadow.as_ref().map(|shadow| told::Shadow {
        policy: shadow.policy.clone(),
        revision: policy(&shadow.policy).map(|policy| policy.in_force.number),
        decisions: shadow.asked,
        same: shadow.agreed,
        failures: shadow.failed,
        regret: shadow.regrets.back().map(|regret| regret.shadow),
        standing: match shadow.predicted_gain {
            None => told::Standing::Gathering,
            Some(gain) if gain >= 1.0 => told::Standing::Good,
            Some(_) => told::Standing::Poor,
        },
        why: shadow
            .predicted_gain
            .map_or_else(String::new, |gain| format!("its plans are predicted to be {gain:.2} times as fast")),
    });
    let canary = canary.as_ref().zip(route.canary.as_ref()).map(|(facts, configured)| told::Canary {
        policy: configured.policy.clone(),
        revision: Some(facts.revision),
        share: configured.share,
        jobs: facts.jobs,
        compared: u64::from(facts.samples),
        failures: policy(&configured.policy).map_or(0, |policy| policy.in_force.tally().failures),
        psnr: facts.least_psnr,
        psnr_least: Some(configured.psnr_db),
        standing: match facts.state {
            CanaryState::Trial => told::Standing::Gathering,
            CanaryState::Promoted => told::Standing::Promoted,
            CanaryState::Stopped => told::Standing::Stopped,
        },
        why: facts.why.clone().unwrap_or_else(|| facts.comparison.words()),
    });
    told::Route {
        name: route.name.clone(),
        conditions: shown_conditions(&route.conditions),
        policy: route.policy.clone(),
        revision: of.map(|policy| policy.in_force.number),
        paused: of.is_some_and(|policy| policy.paused),
        at_chunks: route.take_over == tilewright_config::TakeOver::NextChunk,
        jobs: of.map_or(0, |policy| policy.in_force.tally().jobs),
        shadow,
        canary,
    }
}

fn shown_event(event: &Event) -> told::Event {
    let kind = serde_json::to_value(event.what).ok().and_then(|what| what.as_str().map(|what| what.replace('-', " ")));
    let place = [event.policy.as_deref(), event.route.as_deref()];
    let place: Vec<&str> = place.into_iter().flatten().collect();
    let what = if place.is_empty() { event.detail.clone() } else { format!("{}: {}", place.join(", "), event.detail) };
    told::Event { time: clock::read(&event.time), kind: kind.unwrap_or_default(), what }
}

/// A job's page; none where there is no such job.
///
/// # Errors
/// The store can't be read.
pub fn job_page(
    app: &App,
    headers: &HeaderMap,
    id: &str,
    notice: Option<&str>,
) -> crate::Result<Option<told::JobPage>> {
    let house = &app.house;
    let Some(kept) = house.store.get(id)? else { return Ok(None) };
    let json = house.store.record(id)?;
    let record: Option<Record> = json.as_deref().and_then(|json| serde_json::from_str(json).ok());
    let story = record.clone().zip(json).map(|(record, json)| story(house, &kept, record, &json));
    Ok(Some(told::JobPage { frame: frame(app, headers, notice), job: shown(house, kept, record.as_ref()), story }))
}

fn story(house: &House, kept: &Kept, record: Record, json: &str) -> told::Story {
    let job = &kept.job;
    let routes = house.rollout.routes();
    let route = routes.iter().find(|(route, ..)| route.name == job.route);
    let known = house.stories.of(&job.id).unwrap_or_default();
    let pretty = serde_json::from_str::<serde_json::Value>(json)
        .ok()
        .and_then(|value| serde_json::to_string_pretty(&value).ok());
    let comparisons = known.incumbent.map(|(revision, record, psnr)| told::Comparison {
        role: "incumbent".into(),
        policy: record.policy.name.clone(),
        revision,
        plan: Some(record.plan.clone()),
        estimate: record.estimate,
        outcome: record.outcome,
        psnr: Some(psnr),
        remark: String::new(),
    });
    let paused = record.fallback.as_ref().is_some_and(|fallback| fallback.detail.ends_with("is paused"));
    told::Story {
        chosen: told::Chosen {
            route: job.route.clone(),
            conditions: route.map(|(route, ..)| shown_conditions(&route.conditions)).unwrap_or_default(),
            policy: job.policy.clone(),
            revision: job.revision,
            canary: route
                .and_then(|(route, ..)| route.canary.as_ref())
                .filter(|_| job.canary)
                .map(|canary| canary.share),
            paused,
        },
        record,
        json: pretty.unwrap_or_else(|| json.to_owned()),
        candidates: known.candidates,
        log: known.log,
        comparisons: comparisons.into_iter().collect(),
    }
}

/// A policy's page; none where no policy of that name is in service.
///
/// # Errors
/// None now.
pub fn policy_page(
    app: &App,
    headers: &HeaderMap,
    name: &str,
    notice: Option<&str>,
) -> crate::Result<Option<told::PolicyPage>> {
    let house = &app.house;
    let Ok(policy) = house.rollout.policy(name) else { return Ok(None) };
    let tally = policy.in_force.tally();
    let share = |part: u64, all: u64| if all == 0 { 0.0 } else { 100.0 * part as f64 / all as f64 };
    let watchdog = told::Watchdog {
        rule: RULE.into(),
        standing: if tally.jobs == 0 { told::Standing::Gathering } else { told::Standing::Good },
        why: policy.previous.as_ref().map_or_else(String::new, |_| policy.in_force.standing()),
        readings: vec![told::Reading {
            what: "Decisions that failed or were invalid".into(),
            value: share(tally.failures, tally.decisions),
            limit: None,
            unit: "%".into(),
        }],
    };
    Ok(Some(told::PolicyPage {
        frame: frame(app, headers, notice),
        policy: shown_policy(&policy, &house.rollout.routes()),
        sources: sources(),
        latency: latency(house, Some(name)),
        watchdog: Some(watchdog),
        dumps: dumps(house, name),
    }))
}

fn dumps(house: &House, policy: &str) -> Vec<told::Dump> {
    let files = fs::read_dir(&house.dumps).into_iter().flatten().flatten();
    let of = files.filter_map(|entry| {
        let path = entry.path();
        let (name, revision) = path.file_stem()?.to_str()?.rsplit_once('-')?;
        let metadata = entry.metadata().ok().filter(|_| name == policy)?;
        Some(told::Dump {
            time: metadata.modified().ok()?,
            what: format!("revision {}", revision.trim_start_matches('0')),
            path: path.display().to_string(),
            bytes: metadata.len(),
        })
    });
    let mut dumps: Vec<told::Dump> = of.collect();
    dumps.sort_by_key(|dump| std::cmp::Reverse(dump.time));
    dumps
}

/// The page to sign in on.
pub fn login(app: &App, next: Option<&str>, error: Option<&str>) -> told::Login {
    let next = next.filter(|next| next.len() <= 200).unwrap_or("/").to_owned();
    told::Login {
        version: env!("CARGO_PKG_VERSION").into(),
        form_token: app.door.form_token.clone(),
        next,
        error: error.map(str::to_owned),
    }
}

/// A problem, for its page.
pub fn problem(problem: &Problem) -> told::Problem {
    told::Problem {
        version: env!("CARGO_PKG_VERSION").into(),
        status: problem.status,
        title: problem.title.clone(),
        detail: problem.detail.clone(),
    }
}
