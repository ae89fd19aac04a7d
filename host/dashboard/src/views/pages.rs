//! The data of each page.

use std::time::SystemTime;

use tilewright_config::{Conditions, Role};
use tilewright_plan::{Candidate, LogLine, Record, Vae, Work, any};
use tilewright_service_api::{EventBody, JobState};

use super::{Charts, DeviceView, JobView, LatencySamples, PolicyView, RouteView, WatchdogView};

/// The data that every page shows.
#[derive(Clone, Debug, PartialEq)]
pub struct PageFrame {
    /// The service's version.
    pub version: String,
    /// The moment that relative times count from.
    pub now: SystemTime,
    /// The time of the service's start.
    pub started: SystemTime,
    /// The service's health.
    pub health: Health,
    /// The token that every form carries as `form`.
    pub form_token: String,
    /// The API's address, for the lines to copy: `http://127.0.0.1:7590`.
    pub address: String,
    /// True if a token is configured: there is something to sign out of, and the lines to copy need
    /// the token.
    pub has_token: bool,
    /// The outcome of the last action.
    pub notice: Option<Notice>,
    /// The viewer's role: only buttons for what it may do are shown.
    pub role: Role,
}

/// The health of the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// It takes jobs.
    Ready,
    /// It takes jobs, but something is wrong; one line.
    Degraded(String),
    /// It finishes the jobs at work and takes no more.
    Draining,
}

/// The outcome of an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Good or bad.
    pub tone: Tone,
    /// One line or several.
    pub text: String,
}

/// The tone of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tone {
    /// The action went well.
    Good,
    /// The action failed.
    Bad,
}

/// The page at `/`.
#[derive(Clone, Debug, PartialEq)]
pub struct OverviewPage {
    /// The data that every page shows.
    pub frame: PageFrame,
    /// Names of the configured models, for the form.
    pub models: Vec<String>,
    /// Devices in the configuration's order.
    pub devices: Vec<DeviceView>,
    /// Jobs that run, the oldest first.
    pub running: Vec<JobView>,
    /// Jobs that wait, the next first.
    pub queue: Vec<JobView>,
    /// Jobs that ended, the newest first.
    pub recent: Vec<JobView>,
    /// Routes in order; the first that matches takes a job.
    pub routes: Vec<RouteView>,
    /// Policies in the configuration's order.
    pub policies: Vec<PolicyView>,
    /// Suggestions for the source of a swap: policies that ship, and `sha256:…` of stored modules.
    pub sources: Vec<String>,
    /// The data of the charts.
    pub charts: Charts,
    /// Events, the newest first.
    pub events: Vec<EventBody>,
}

/// The page at `/jobs`.
#[derive(Clone, Debug, PartialEq)]
pub struct JobsPage {
    /// The data that every page shows.
    pub frame: PageFrame,
    /// Jobs, the newest first.
    pub jobs: Vec<JobView>,
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
    pub state: Option<JobState>,
    /// For this model.
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
    /// The data that every page shows.
    pub frame: PageFrame,
    /// The job.
    pub job: JobView,
    /// The traces of its decisions, stage by stage; none before there is one.
    pub traces: Vec<AnyTrace>,
    /// True if there is a trace of its profile to fetch, and a page.
    pub has_trace: bool,
}

/// The trace of a decision about any kind of work.
pub type AnyTrace = any!(Box<DecisionTrace>);

/// The trace of a decision: the question, the policy, the answer and the outcome.
#[derive(Clone, Debug, PartialEq)]
pub struct DecisionTrace<W: Work = Vae> {
    /// The policy that decided, and the route that chose it.
    pub chosen: RouteChoice,
    /// The decision and its outcome.
    pub record: Record<W>,
    /// The record as JSON, indented.
    pub json: String,
    /// The plans that the policy asked the price of, in order.
    pub candidates: Vec<Candidate<W>>,
    /// The lines that the policy logged.
    pub log: Vec<LogLine>,
    /// The second run of a canary's job, if it was compared.
    pub incumbent: Option<IncumbentRun<W>>,
}

/// The choice of a policy by a route.
#[derive(Clone, Debug, PartialEq)]
pub struct RouteChoice {
    /// The route that took the job.
    pub route: String,
    /// The conditions that the job met.
    pub conditions: Conditions,
    /// The policy.
    pub policy: String,
    /// The policy's revision.
    pub revision: u64,
    /// The canary's share, from 0 to 1, if the job fell into it.
    pub canary: Option<f64>,
    /// True if the policy was paused and not asked.
    pub paused: bool,
}

/// The run of a canary's job by the incumbent.
#[derive(Clone, Debug, PartialEq)]
pub struct IncumbentRun<W: Work = Vae> {
    /// The incumbent's revision.
    pub revision: u64,
    /// The incumbent's decision and outcome.
    pub record: Record<W>,
    /// The PSNR of both outputs in dB; infinite if they are the same.
    pub psnr: f64,
}

/// The page at `/policies/{name}`.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyPage {
    /// The data that every page shows.
    pub frame: PageFrame,
    /// The policy.
    pub policy: PolicyView,
    /// As in [`OverviewPage::sources`].
    pub sources: Vec<String>,
    /// Times of its decisions, a row per revision.
    pub latency: Vec<LatencySamples>,
    /// The watchdog over it.
    pub watchdog: WatchdogView,
    /// Dumps that the watchdog wrote.
    pub dumps: Vec<DumpFile>,
}

/// A dump that the watchdog wrote.
#[derive(Clone, Debug, PartialEq)]
pub struct DumpFile {
    /// The time when it was written.
    pub time: SystemTime,
    /// A description, in one line.
    pub what: String,
    /// The file's path on the server.
    pub path: String,
    /// The size in bytes.
    pub bytes: u64,
}

/// The page at `/login`.
#[derive(Clone, Debug, PartialEq)]
pub struct LoginPage {
    /// The service's version.
    pub version: String,
    /// As in [`PageFrame::form_token`].
    pub form_token: String,
    /// A path of this service to go on to; anything else becomes `/`.
    pub next: String,
    /// The reason that the last attempt failed.
    pub error: Option<String>,
}

/// An error page.
#[derive(Clone, Debug, PartialEq)]
pub struct ProblemPage {
    /// The service's version.
    pub version: String,
    /// The HTTP status.
    pub status: u16,
    /// The status in a few words.
    pub title: String,
    /// The problem, in one line.
    pub detail: String,
}
