//! The names that messages use: the fields of requests and the keys of the configuration.

use tilewright_wording::{Remedy, Setting, Words};

/// The names that callers and operators know.
pub const WORDS: Words = Words {
    setting: |setting| {
        use Setting::{
            As, Batch, Cfg, Denoise, EndStep, Family, Frames, Guidance, Height, MemoryLimit, Model, Models, Reuse,
            Sampler, ScalingFactor, Scheduler, Shift, Sigmas, Size, Span, StartStep, Steps, TextEncoder, Transformer,
            Vae, VisionEncoder, Width,
        };
        match setting {
            Size => "sample.width and sample.height".into(),
            Span => "sample.start_step and sample.end_step".into(),
            MemoryLimit => "memory_limit_bytes".into(),
            As | Batch | Cfg | Denoise | EndStep | Frames | Guidance | Height | Reuse | Sampler | Scheduler | Shift
            | Sigmas | StartStep | Steps | Width => format!("sample.{}", setting.plain().replace('-', "_")).into(),
            Family | Model | Models | ScalingFactor | TextEncoder | Transformer | Vae | VisionEncoder => {
                format!("the configuration's {}", setting.plain()).into()
            }
            other => other.plain().into(),
        }
    },
    remedy: |remedy| {
        let advice = match remedy {
            Remedy::GrantMemory => {
                "one that the configuration names as a file may be given more, as `memory` beside it"
            }
            Remedy::InspectPolicy => "modules go to /v1/modules",
            Remedy::LatentFirst => "send the latent",
            Remedy::MakeLatent | Remedy::ReadHistory => "send a latent",
            Remedy::OtherOutputs => " or .safetensors",
            Remedy::ListModels => "the configuration names the models",
        };
        advice.into()
    },
};
