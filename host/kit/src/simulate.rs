//! Devices as tables of measured and priced plans. Policies run through whole workloads on them in
//! microseconds, without the hardware.
//!
//! Every number is measured. A plan's time and memory are its own in the table, or those of the
//! nearest plan by the rule of [`Case::nearest`], or unknown; the report counts each kind. A price
//! is the one that the host gave, or an error.

mod builder;
mod facts;
mod nearest;
mod report;
mod run;
mod simulated;
mod table;
#[cfg(test)]
mod tests;
mod workload;

pub use builder::{Builder, SkippedEntries};
pub use report::{PolicyRow, RequestResult, RequestRow, Simulation};
pub use run::{Entrant, Options, PlannerOf, run};
pub(crate) use simulated::Distance;
pub use simulated::Simulated;
pub use table::{Case, CaseIndex, Cases, Choice, Entry, MOST_TABLE_BYTES, Table, TableError};
pub use workload::{Item, WorkloadError, builtin, from_records, read as read_workload};
