//! The data of each page. The service fills it in, with the types of its own API as far as they go.
//! Any text in it may come from strangers and is escaped on the page. Times are the service's
//! clock; relative ones count back from [`PageFrame::now`].

mod charts;
mod jobs;
mod pages;
mod policies;
mod prompt;
mod routes;

pub use charts::{Charts, LatencySamples, TimeSeries};
pub use jobs::JobView;
pub use pages::{
    AnyTrace, DecisionTrace, DumpFile, Health, IncumbentRun, JobPage, JobQuery, JobsPage, LoginPage, Notice,
    OverviewPage, PageFrame, PolicyPage, ProblemPage, RouteChoice, Tone,
};
pub use policies::{PolicyView, WatchdogView};
pub use prompt::{FilledForm, FormRest, PromptModel, PromptPage};
pub use routes::{CanaryView, DeviceView, RouteView, ShadowView, Standing};
