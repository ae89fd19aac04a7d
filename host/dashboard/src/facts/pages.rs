//! A page's facts.

use std::time::SystemTime;

use tilewright_plan::{Candidate, Cost, LogLine, Outcome, Plan, Record};

use super::{Charts, Conditions, Device, Event, Job, Latency, Policy, Route, State, Watchdog};

/// What every page shows.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// The service's version.
    pub version: String,
    /// What relative times are counted from.
    pub now: SystemTime,
    /// When the service started.
    pub started: SystemTime,
    /// How it is.
    pub health: Health,
    /// Goes into every form as `form`.
    pub form_token: String,
    /// The API's address, for the lines to copy: `http://127.0.0.1:7590`.
    pub address: String,
    /// A token is configured, so that there is something to sign out of, and the lines to copy need it.
    pub has_token: bool,
    /// What became of the last action.
    pub notice: Option<Notice>,
    /// The viewer's role: only buttons for what it may do are shown.
    pub role: Role,
}

/// A viewer's role. Each may also do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// See everything.
    Read,
    /// Submit and cancel jobs.
    Submit,
    /// Change policies and routes, too.
    Operate,
}

/// How the service is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Takes jobs.
    Ready,
    /// Loads its models.
    Starting,
    /// Takes jobs, but something is wrong; one line.
    Degraded(String),
    /// Finishes what it has and takes no more.
    Draining,
}

/// What became of an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Whether it went well.
    pub tone: Tone,
    /// One line or several.
    pub text: String,
}

/// Whether something went well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tone {
    /// It did.
    Good,
    /// It did not.
    Bad,
    /// Neither.
    Plain,
}

/// The page at `/`.
#[derive(Clone, Debug, PartialEq)]
pub struct Overview {
    /// What every page shows.
    pub frame: Frame,
    /// As configured, for the form.
    pub models: Vec<String>,
    /// In order.
    pub devices: Vec<Device>,
    /// Jobs that run, the oldest first.
    pub running: Vec<Job>,
    /// Jobs that wait, the next first.
    pub queue: Vec<Job>,
    /// Jobs that ended, the newest first.
    pub recent: Vec<Job>,
    /// First match wins.
    pub routes: Vec<Route>,
    /// In order.
    pub policies: Vec<Policy>,
    /// What a swap may name beside a digest, as suggestions: names of what ships, `sha256:…` of stored modules.
    pub sources: Vec<String>,
    /// What is charted.
    pub charts: Charts,
    /// The newest first.
    pub events: Vec<Event>,
}

/// The page at `/jobs`.
#[derive(Clone, Debug, PartialEq)]
pub struct JobsPage {
    /// The part that every page has.
    pub frame: Frame,
    /// The newest first.
    pub jobs: Vec<Job>,
    /// The search that they answer.
    pub query: JobQuery,
    /// The next page's [`JobQuery::before`]; none on the last page.
    pub next: Option<String>,
    /// Models to choose from.
    pub models: Vec<String>,
    /// Devices to choose from.
    pub devices: Vec<String>,
    /// Policies to choose from.
    pub policies: Vec<String>,
}

/// A search for jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobQuery {
    /// In this state.
    pub state: Option<State>,
    /// Of this model.
    pub model: Option<String>,
    /// On this device.
    pub device: Option<String>,
    /// Decided by this policy.
    pub policy: Option<String>,
    /// With this text somewhere.
    pub text: Option<String>,
    /// Accepted before this one.
    pub before: Option<String>,
}

/// The page at `/jobs/{id}`.
#[derive(Clone, Debug, PartialEq)]
pub struct JobPage {
    /// What every page shows.
    pub frame: Frame,
    /// The job.
    pub job: Job,
    /// Its decision; none before there is one.
    pub story: Option<Story>,
}

/// A decision's whole story.
#[derive(Clone, Debug, PartialEq)]
pub struct Story {
    /// Who decided, and why they.
    pub chosen: Chosen,
    /// The decision and its outcome.
    pub record: Record,
    /// The record as JSON, indented.
    pub json: String,
    /// The plans that the policy asked the price of, in order.
    pub candidates: Vec<Candidate>,
    /// What the policy logged.
    pub log: Vec<LogLine>,
    /// What others would have decided, or did: the shadow, and the canary's second decode.
    pub comparisons: Vec<Comparison>,
}

/// Why this policy decided.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    /// The route that took the job.
    pub route: String,
    /// The conditions that the job met.
    pub conditions: Conditions,
    /// The policy.
    pub policy: String,
    /// Its revision.
    pub revision: u64,
    /// The canary's share, from 0 to 1, where the job fell into it.
    pub canary: Option<f64>,
    /// The policy was paused: it was not asked.
    pub paused: bool,
}

/// Another policy's plan for the same job.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// `shadow`, `canary` or `incumbent`.
    pub role: String,
    /// The policy.
    pub policy: String,
    /// Its revision.
    pub revision: u64,
    /// What it answered; none where it failed.
    pub plan: Option<Plan>,
    /// What that would cost.
    pub estimate: Option<Cost>,
    /// What was measured, where it was carried out too.
    pub outcome: Option<Outcome>,
    /// Against this job's output, in dB, where both were decoded; infinite where outputs are the same.
    pub psnr: Option<f64>,
    /// One line; may be empty.
    pub remark: String,
}

/// The page at `/policies/{name}`.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyPage {
    /// What every page shows.
    pub frame: Frame,
    /// The policy.
    pub policy: Policy,
    /// As in [`Overview::sources`].
    pub sources: Vec<String>,
    /// How long its decisions took, a row per revision.
    pub latency: Vec<Latency>,
    /// What watches over it, where it is watched.
    pub watchdog: Option<Watchdog>,
    /// What it left behind.
    pub dumps: Vec<Dump>,
}

/// Something to download.
#[derive(Clone, Debug, PartialEq)]
pub struct Dump {
    /// When it was written.
    pub time: SystemTime,
    /// One line.
    pub what: String,
    /// A path of this service, from `/`; anything else is shown but not linked.
    pub path: String,
    /// Its size.
    pub bytes: u64,
}

/// The page at `/login`.
#[derive(Clone, Debug, PartialEq)]
pub struct Login {
    /// The service's version.
    pub version: String,
    /// As in [`Frame::form_token`].
    pub form_token: String,
    /// A path of this service to go on to; anything else becomes `/`.
    pub next: String,
    /// Why the last attempt failed.
    pub error: Option<String>,
}

/// An error page.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// The service's version.
    pub version: String,
    /// As in HTTP.
    pub status: u16,
    /// In a few words.
    pub title: String,
    /// One line.
    pub detail: String,
}
