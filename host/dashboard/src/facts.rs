//! What the dashboard is told. Plain data that the service fills in; all text in it may come from strangers and is escaped where it is
//! shown. Times are the service's clock, and relative ones are counted back from [`Frame::now`].

mod charts;
mod jobs;
mod pages;
mod policies;
mod routes;

pub use charts::{Charts, Latency, Series};
pub use jobs::{File, Grid, Job, State, Unit};
pub use pages::{
    Chosen, Comparison, Dump, Frame, Health, JobPage, JobQuery, JobsPage, Login, Notice, Overview, PolicyPage, Problem,
    Role, Story, Tone,
};
pub use policies::{Place, Policy, Reading, Refused, Revision, Watchdog};
pub use routes::{Canary, Conditions, Device, Event, Route, Shadow, Span, Standing};
