//! The JSON types of the service's HTTP interface. The service answers with them and describes them
//! in OpenAPI; the dashboard shows them. Plain data: no server, no database, no libtorch.

#![forbid(unsafe_code)]

mod device;
mod event;
mod grid;
mod job;
mod policy;
mod sample;
mod settings;

pub use device::DeviceBody;
pub use event::EventBody;
pub use grid::{GridUnit, PlanGrid};
pub use job::{
    EncodeFields, Job, JobRequest, JobResult, JobStage, JobState, LoraField, ObjectiveName, OutputFormat,
    SamplingProgress, StageAtWork,
};
pub use policy::{PolicyBody, RefusedBody, RevisionBody};
pub use sample::{Draw, SampleFields, SamplePaths, Seeds};
pub use settings::{JobSettings, LoraSetting, ModelPart};
