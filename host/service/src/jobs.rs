//! Jobs: what is asked for, what is kept of it, who waits for which device, and what is seen of those at work.

pub mod files;
pub mod job;
pub mod live;
pub mod queue;
pub mod store;

pub use job::{Job, JobRequest, JobResult, Kept, OutputFormat, State};
