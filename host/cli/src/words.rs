//! The names that messages use: this program's options and commands.

use tilewright_wording::{Remedy, Setting, Words};

/// The names of this program's options.
pub const WORDS: Words = Words {
    setting: |setting| match setting {
        Setting::Width | Setting::Height => "--size".into(),
        Setting::Span => "--start-step and --end-step".into(),
        Setting::Output => "-o".into(),
        option => format!("--{}", option.plain()).into(),
    },
    remedy: |remedy| {
        let advice = match remedy {
            Remedy::GrantMemory => "--policy-memory SIZE grants a policy more",
            Remedy::InspectPolicy => "policies come after --policy; 'tilewright policy inspect' looks into them",
            Remedy::LatentFirst => "the latent comes first, the VAE after --vae",
            Remedy::ListModels => "tilewright models lists what is there",
            Remedy::MakeLatent => "'tilewright encode' makes a latent of it; a VAE is a .safetensors file",
            Remedy::OtherOutputs => remedy.plain(),
            Remedy::ReadHistory => "'tilewright history' reads the history",
        };
        advice.into()
    },
};
