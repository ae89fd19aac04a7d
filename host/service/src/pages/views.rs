//! The data of the pages, gathered from the server's state. It is the API's own where the API has
//! it.

mod prompt;

use std::{fs, sync::Arc};

use axum::http::{HeaderMap, header};
use tilewright_config::{Role, Route};
use tilewright_dashboard::views::{
    AnyTrace, CanaryView, Charts, DecisionTrace, DeviceView, DumpFile, Health, IncumbentRun, JobPage, JobQuery,
    JobView, JobsPage, LatencySamples, LoginPage, OverviewPage, PageFrame, PolicyPage, PolicyView, ProblemPage,
    RouteChoice, RouteView, ShadowView, Standing, TimeSeries, WatchdogView,
};
use tilewright_pipeline::Kept;
use tilewright_plan::{AnyPlan, Backend, Record, Stage, VariantOf, Work, of_any, records::AnyRecord};
use tilewright_rollout::{CanaryFacts, CanaryState, RULE, ShadowFacts, SlotFacts};
use tilewright_service_api::{JobStage, JobState, PlanGrid};

use crate::{
    api::{device_body, event_body, policy_body},
    app::App,
    clock,
    device::DeviceState,
    job_traces::{AnyJobTrace, JobTrace},
    jobs::{StoredJob, live::step_grid, store::JobFilter},
    problem::Problem,
    state::ServerState,
    work::{Followed, split_stages},
};

pub use self::prompt::{AskedPrompt, prompt};

/// Jobs that ended, on the overview.
const RECENT: u32 = 20;

/// Jobs that wait, on the overview.
const WAITING: usize = 50;

/// Jobs on a page of their list.
const PAGE: u32 = 50;

/// Events on the overview.
const EVENTS: usize = 40;

/// A route with what is on trial on it.
type RouteOnTrial = (Route, Option<ShadowFacts>, Option<CanaryFacts>);

/// The frame of every page.
pub fn frame(app: &App, headers: &HeaderMap, notice: Option<&str>) -> PageFrame {
    let server = &app.server;
    let role = app.auth.callers.identify(headers).map_or(Role::Read, |caller| caller.role);
    let health = match (server.is_draining(), server.config.fault()) {
        (true, _) => Health::Draining,
        (false, Some(fault)) => Health::Degraded(fault.for_role(role).to_owned()),
        (false, None) => Health::Ready,
    };
    let now = clock::time(clock::now_ms());
    let config = server.config.in_force();
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).map(str::to_owned);
    let is_encrypted = config.server.tls.is_some();
    PageFrame {
        version: env!("CARGO_PKG_VERSION").into(),
        now,
        started: now.checked_sub(server.started.elapsed()).unwrap_or(now),
        health,
        form_token: app.auth.form_token.clone(),
        address: host.map_or_else(
            || config.server.listen.url(is_encrypted),
            |host| format!("{}://{host}", if is_encrypted { "https" } else { "http" }),
        ),
        has_token: app.auth.callers.has_tokens(),
        notice: notice.and_then(|number| app.notices.get(number)),
        role,
    }
}

/// A page of jobs.
///
/// # Errors
/// The store can't be read.
pub fn jobs(app: &App, headers: &HeaderMap, query: JobQuery, notice: Option<&str>) -> crate::Result<JobsPage> {
    let server = &app.server;
    let filter = JobFilter {
        state: query.state,
        policy: query.policy.clone(),
        before: query.before.clone(),
        limit: PAGE,
        model: query.model.clone(),
        device: query.device.clone(),
        text: query.text.clone(),
        ..JobFilter::default()
    };
    let (found, next) = server.jobs.store.search(&filter)?;
    Ok(JobsPage {
        frame: frame(app, headers, notice),
        jobs: found.into_iter().map(|stored| job_view(server, stored, None)).collect(),
        query,
        next,
        models: model_names(server),
        devices: server.devices.names(),
        policies: server.rollout.policies().into_iter().map(|policy| policy.name).collect(),
    })
}

/// The overview.
///
/// # Errors
/// The store can't be read.
pub fn overview(app: &App, headers: &HeaderMap, notice: Option<&str>) -> crate::Result<OverviewPage> {
    let server = &app.server;
    let list = |state, limit| server.jobs.store.list(&JobFilter { state, limit, ..JobFilter::default() });
    let running = list(Some(JobState::Running), 16)?;
    let mut queue = Vec::new();
    for device in server.devices.iter() {
        for (place, id) in device.queue.order().into_iter().take(WAITING).enumerate() {
            if let Some(stored) = server.jobs.store.get(&id)? {
                let mut view = job_view(server, stored, None);
                view.job.position = Some(place as u32);
                queue.push(view);
            }
        }
    }
    let recent = list(None, RECENT + 60)?.into_iter().filter(|(stored, _)| stored.job.state.is_end());
    let recent = recent.take(RECENT as usize);
    let (policies, routes) = (server.rollout.policies(), server.rollout.routes());
    let charts = Charts { latency: latency(server, None), work: work_times(server), regret: shadow_regret(&routes) };
    Ok(OverviewPage {
        frame: frame(app, headers, notice),
        models: decoding_models(server),
        devices: server.devices.iter().map(|device| device_view(server, device)).collect(),
        running: running.into_iter().map(|(stored, _)| job_view(server, stored, None)).collect(),
        queue,
        recent: recent.map(|(stored, _)| job_view(server, stored, None)).collect(),
        routes: routes.iter().map(|route| route_view(route, &policies)).collect(),
        policies: policies.into_iter().map(|policy| policy_view(server, policy, &routes)).collect(),
        sources: sources(),
        charts,
        events: server.rollout.events().into_iter().take(EVENTS).map(event_body).collect(),
    })
}

fn model_names(server: &ServerState) -> Vec<String> {
    server.models.by_name().keys().cloned().collect()
}

/// Models that the form for latents can name.
fn decoding_models(server: &ServerState) -> Vec<String> {
    let models = server.models.by_name();
    models.values().filter(|model| model.vae.is_some()).map(|model| model.name.clone()).collect()
}

/// Names that a swap may give as its source.
fn sources() -> Vec<String> {
    tilewright_policy::shipped_names().map(str::to_owned).collect()
}

fn latency(server: &ServerState, policy: Option<&str>) -> Vec<LatencySamples> {
    let times = server.traces.decision_times().into_iter();
    let times = times.filter(|((name, _), _)| policy.is_none_or(|policy| policy == name));
    let samples = times.map(|((policy, revision), seconds)| LatencySamples {
        policy,
        revision,
        samples_us: seconds.into_iter().map(|seconds| seconds * 1e6).collect(),
    });
    samples.collect()
}

/// The times of each stage, a series per route.
fn work_times(server: &ServerState) -> Vec<(Stage, Vec<TimeSeries>)> {
    let of_stage = |stage: Stage| {
        let mut series: Vec<TimeSeries> = Vec::new();
        for (route, time, seconds) in server.traces.work_times(stage) {
            let point = (time, seconds * 1e3);
            match series.iter_mut().find(|series| series.name == route) {
                Some(series) => series.points.push(point),
                None => series.push(TimeSeries { name: route, points: vec![point] }),
            }
        }
        (stage, series)
    };
    Stage::ALL.into_iter().map(of_stage).filter(|(_, series)| !series.is_empty()).collect()
}

fn shadow_regret(routes: &[RouteOnTrial]) -> Vec<TimeSeries> {
    let series = routes.iter().filter_map(|(route, shadow, _)| {
        let regrets = &shadow.as_ref()?.regrets;
        let points = regrets.iter().map(|regret| (clock::parse(&regret.time), regret.shadow)).collect();
        Some(TimeSeries { name: route.name.clone(), points })
    });
    series.collect()
}

fn device_view(server: &ServerState, device: &DeviceState) -> DeviceView {
    let free = match device.facts.backend {
        Backend::Cpu => tilewright_torch::device::system_memory().ok().map(|memory| memory.available),
        _ => None,
    };
    let queue = server.config.in_force().server.limits.queue;
    let device = device_body(device, queue, server.models.weights());
    let own_bytes = device.in_use_bytes + device.pooled_bytes;
    DeviceView { used_bytes: free.map_or(own_bytes, |free| device.facts.total_bytes.saturating_sub(free)), device }
}

/// A job with its plan: the one under way, or that of its record.
fn job_view(server: &ServerState, stored: StoredJob, record: Option<&AnyRecord>) -> JobView {
    let (prompt, seeds) = (stored.request.prompt.clone(), seeds_of(&stored));
    let job = server.jobs.view(stored);
    let activity = server.jobs.live.get(&job.id).map(|handle| handle.activity()).unwrap_or_default();
    // Until the next stage is decided, the last plan is of the one before.
    let is_current = |plan: &AnyPlan| job.at.is_none_or(|at| is_of(plan, at));
    let under_way = activity.planned.filter(|planned| is_current(&planned.plan));
    let decided_by = under_way.as_ref().map(|planned| (planned.policy.clone(), planned.revision));
    let recorded = || record.map(planned).filter(|(plan, _)| is_current(plan));
    let (plan, grid) = under_way.map(|planned| (planned.plan, planned.grid)).or_else(recorded).unzip();
    JobView { job, plan, decided_by, prompt, seeds, grid }
}

/// The seeds that a prompt's job takes.
fn seeds_of(stored: &StoredJob) -> Vec<u64> {
    let settings = stored.job.request.as_ref().filter(|_| stored.job.stage == JobStage::Generate);
    settings.map_or_else(Vec::new, |settings| settings.seeds.clone())
}

fn is_of(plan: &AnyPlan, stage: Stage) -> bool {
    of_any!(plan, _: W => W::STAGES.contains(&stage))
}

/// The plan of a record, and the parts that it divided the work into.
fn planned(record: &AnyRecord) -> (AnyPlan, PlanGrid) {
    of_any!(record, record: W => {
        let grid = W::grid(Some(&record.request), &record.plan);
        (record.plan.clone().into(), grid.unwrap_or_else(|| step_grid(1)))
    })
}

fn policy_view(server: &ServerState, policy: SlotFacts, routes: &[RouteOnTrial]) -> PolicyView {
    let takes_part = |route: &Route| {
        let canary = route.canary.as_ref().map(|canary| &canary.policy);
        [Some(&route.policy), route.shadow.as_ref(), canary].into_iter().flatten().any(|name| *name == policy.name)
    };
    let routes = routes.iter().filter(|(route, ..)| takes_part(route)).map(|(route, ..)| route.name.clone()).collect();
    PolicyView { policy: policy_body(&server.rollout, policy), routes }
}

fn route_view((route, shadow, canary): &RouteOnTrial, policies: &[SlotFacts]) -> RouteView {
    let policy = |name: &str| policies.iter().find(|policy| policy.name == name);
    let own = policy(&route.policy);
    let shadow = shadow.as_ref().map(|shadow| ShadowView {
        policy: shadow.policy.clone(),
        revision: policy(&shadow.policy).map(|policy| policy.in_force.number),
        decisions: shadow.asked,
        same: shadow.agreed,
        failures: shadow.failed,
        regret: shadow.regrets.back().map(|regret| regret.shadow),
        standing: match shadow.predicted_gain {
            None => Standing::Gathering,
            Some(gain) if gain >= 1.0 => Standing::Good,
            Some(_) => Standing::Poor,
        },
        why: shadow
            .predicted_gain
            .map_or_else(String::new, |gain| format!("its plans are predicted to be {gain:.2} times as fast")),
    });
    let canary = canary.as_ref().zip(route.canary.as_ref()).map(|(facts, configured)| CanaryView {
        policy: configured.policy.clone(),
        revision: Some(facts.revision),
        share: configured.share,
        jobs: facts.jobs,
        compared: u64::from(facts.samples),
        failures: policy(&configured.policy).map_or(0, |policy| policy.in_force.tally().failures),
        psnr: facts.least_psnr,
        psnr_least: Some(configured.psnr_db),
        standing: match facts.state {
            CanaryState::Trial => Standing::Gathering,
            CanaryState::Promoted => Standing::Promoted,
            CanaryState::Stopped => Standing::Stopped,
        },
        why: facts.why.clone().unwrap_or_else(|| facts.comparison.words()),
    });
    RouteView {
        name: route.name.clone(),
        conditions: route.conditions.clone(),
        policy: route.policy.clone(),
        revision: own.map(|policy| policy.in_force.number),
        paused: own.is_some_and(|policy| policy.paused),
        at_chunks: route.take_over == tilewright_config::TakeOver::NextChunk,
        jobs: own.map_or(0, |policy| policy.in_force.tally().jobs),
        shadow,
        canary,
    }
}

/// A job's page; none if there is no such job.
///
/// # Errors
/// The store can't be read.
pub fn job_page(app: &App, headers: &HeaderMap, id: &str, notice: Option<&str>) -> crate::Result<Option<JobPage>> {
    let server = &app.server;
    let Some(stored) = server.jobs.store.get(id)? else { return Ok(None) };
    let json = server.jobs.store.record(id)?;
    let records = json.as_deref().map(stages).unwrap_or_default();
    let mut kept = server.traces.get(&stored.job.id);
    let traces = records.iter().map(|(record, json)| any_trace(server, &stored, &mut kept, record.clone(), json));
    let traces = traces.collect();
    let profile = stored.request.profile.then(|| server.jobs.files.profiles(&stored.job.id));
    let has_trace = server.jobs.files.profile_trace(&stored.job.id).is_file();
    let mut job = job_view(server, stored, records.last().map(|(record, _)| record));
    job.job.profile = profile;
    Ok(Some(JobPage { frame: frame(app, headers, notice), job, traces, has_trace }))
}

/// The records of a job, each with its JSON: one, or those of its stages.
fn stages(json: &str) -> Vec<(AnyRecord, String)> {
    split_stages(json).into_iter().filter_map(|json| Some((AnyRecord::from_json(json)?, json.to_owned()))).collect()
}

/// The trace of a stage's decision: the first of its kind that is kept, which it takes out. Without
/// one the record says what it can.
fn any_trace(
    server: &ServerState,
    stored: &StoredJob,
    kept: &mut Vec<AnyJobTrace>,
    record: AnyRecord,
    json: &str,
) -> AnyTrace {
    of_any!(record, record: W => {
        let place = kept.iter().position(|trace| W::of_any(trace).is_some());
        let trace: Option<Box<JobTrace<W>>> = place.and_then(|place| W::of_any(&kept.remove(place)).cloned());
        W::any(Box::new(decision_trace(server, stored, *record, trace.map_or_else(JobTrace::default, |trace| *trace), json)))
    })
}

fn decision_trace<W: Kept>(
    server: &ServerState,
    stored: &StoredJob,
    record: Record<W>,
    trace: JobTrace<W>,
    json: &str,
) -> DecisionTrace<W> {
    let pinned = stored.pinned_of(record.stage());
    let (policy, revision) = pinned.revision();
    let routes = server.rollout.routes();
    let route = routes.iter().find(|(route, ..)| route.name == pinned.route()).map(|(route, ..)| route);
    let pretty = serde_json::from_str::<serde_json::Value>(json)
        .ok()
        .and_then(|value| serde_json::to_string_pretty(&value).ok());
    let incumbent = trace.incumbent.map(|(revision, record, psnr)| IncumbentRun { revision, record: *record, psnr });
    let paused = record.fallback.as_ref().is_some_and(|fallback| fallback.detail.ends_with("is paused"));
    DecisionTrace {
        chosen: RouteChoice {
            route: pinned.route().to_owned(),
            conditions: route.map(|route| route.conditions.clone()).unwrap_or_default(),
            policy: policy.to_owned(),
            revision,
            canary: route
                .and_then(|route| route.canary.as_ref())
                .filter(|_| pinned.is_canary())
                .map(|canary| canary.share),
            paused,
        },
        record,
        json: pretty.unwrap_or_else(|| json.to_owned()),
        candidates: trace.candidates,
        log: trace.log,
        incumbent,
    }
}

/// A policy's page; none if no policy of that name is in service.
pub fn policy_page(app: &App, headers: &HeaderMap, name: &str, notice: Option<&str>) -> Option<PolicyPage> {
    let server = &app.server;
    let policy = server.rollout.policy(name).ok()?;
    let in_force = Arc::clone(&policy.in_force);
    let tally = in_force.tally();
    let watchdog = WatchdogView {
        rule: RULE.into(),
        standing: if tally.jobs == 0 { Standing::Gathering } else { Standing::Good },
        why: policy.previous.as_ref().map_or_else(String::new, |_| in_force.standing()),
        failed: tally.failures as f64 / tally.decisions.max(1) as f64,
    };
    Some(PolicyPage {
        frame: frame(app, headers, notice),
        policy: policy_view(server, policy, &server.rollout.routes()),
        sources: sources(),
        latency: latency(server, Some(name)),
        watchdog,
        dumps: dumps(server, name),
    })
}

fn dumps(server: &ServerState, policy: &str) -> Vec<DumpFile> {
    let files = fs::read_dir(server.jobs.files.dumps()).into_iter().flatten().flatten();
    let own = files.filter_map(|entry| {
        let path = entry.path();
        let (name, revision) = path.file_stem()?.to_str()?.rsplit_once('-')?;
        let metadata = entry.metadata().ok().filter(|_| name == policy)?;
        Some(DumpFile {
            time: metadata.modified().ok()?,
            what: format!("revision {}", revision.trim_start_matches('0')),
            path: path.display().to_string(),
            bytes: metadata.len(),
        })
    });
    let mut dumps: Vec<DumpFile> = own.collect();
    dumps.sort_by_key(|dump| std::cmp::Reverse(dump.time));
    dumps
}

/// The page to sign in on.
pub fn login_page(app: &App, next: Option<&str>, error: Option<&str>) -> LoginPage {
    let next = next.filter(|next| next.len() <= 200).unwrap_or("/").to_owned();
    LoginPage {
        version: env!("CARGO_PKG_VERSION").into(),
        form_token: app.auth.form_token.clone(),
        next,
        error: error.map(str::to_owned),
    }
}

/// The page of a problem.
pub fn problem_page(problem: &Problem) -> ProblemPage {
    ProblemPage {
        version: env!("CARGO_PKG_VERSION").into(),
        status: problem.status,
        title: problem.title.clone(),
        detail: problem.detail.clone(),
    }
}
