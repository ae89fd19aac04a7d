//! The names by which messages call settings, and the ways out that they advise.
//!
//! A library writes a [`Setting`] or a [`Remedy`] into its message. A program that shows such
//! messages has names of its own for them, options or fields of a request, and gives them to
//! [`speak`] when it starts. Until then they are called by plain words.
//!
//! ```
//! use tilewright_wording::Setting::{Latent, Size};
//!
//! assert_eq!(format!("no size: give {Size} or {Latent}"), "no size: give size or latent");
//! ```

#![forbid(unsafe_code)]

use std::{borrow::Cow, fmt, sync::RwLock};

/// The names that the users of a program know.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    /// The name of a setting.
    pub setting: fn(Setting) -> Cow<'static, str>,
    /// The advice of a remedy.
    pub remedy: fn(Remedy) -> Cow<'static, str>,
}

/// An error and its causes, each after a colon.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        text.push_str(": ");
        text.push_str(&source.to_string());
        cause = source.source();
    }
    text
}

static WORDS: RwLock<Words> =
    RwLock::new(Words { setting: |setting| setting.plain().into(), remedy: |remedy| remedy.plain().into() });

/// Has all messages that are written from now on use these names.
pub fn speak(words: Words) {
    *WORDS.write().unwrap_or_else(std::sync::PoisonError::into_inner) = words;
}

fn words() -> Words {
    *WORDS.read().unwrap_or_else(std::sync::PoisonError::into_inner)
}

macro_rules! names {
    ($(#[$doc:meta])* $name:ident by $field:ident: $($(#[$of:meta])* $variant:ident $plain:literal)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$of])* $variant,)*
        }

        impl $name {
            /// The plain words for it.
            pub const fn plain(self) -> &'static str {
                match self {
                    $(Self::$variant => $plain,)*
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&(words().$field)(*self))
            }
        }
    };
}

names! {
    /// A setting that users give.
    Setting by setting:
    /// The convention to follow: ComfyUI's or diffusers'.
    As "as"
    /// The number of samples.
    Batch "batch"
    /// The bits of a channel of pictures.
    Bits "bits"
    /// The factor of guidance by a negative conditioning.
    Cfg "cfg"
    /// The conditioning to sample by.
    Conditioning "conditioning"
    /// The share of the way from noise.
    Denoise "denoise"
    /// The device to run on.
    Device "device"
    /// The step before which a sample ends.
    EndStep "end-step"
    /// The family of a VAE.
    Family "family"
    /// The format of an output.
    Format "format"
    /// The frames of a clip.
    Frames "frames"
    /// The guidance of a network that has it as an input.
    Guidance "guidance"
    /// The height in pixels.
    Height "height"
    /// The picture to begin with.
    Image "image"
    /// The latent to begin with.
    Latent "latent"
    /// A LoRA.
    Lora "lora"
    /// The most bytes to hold at once.
    MemoryLimit "memory-limit"
    /// The model by its name, or its folder.
    Model "model"
    /// Folders in which models are looked for.
    Models "models"
    /// The conditioning to lead away from.
    Negative "negative"
    /// Outputs that exist are not replaced.
    NoClobber "no-clobber"
    /// The path of an output.
    Output "output"
    /// HTTP without TLS.
    PlainHttp "plain-http"
    /// The policy that decides.
    Policy "policy"
    /// The quality of a lossy format.
    Quality "quality"
    /// The name that a signature is bound to.
    Reference "reference"
    /// An interrupted output is continued.
    Resume "resume"
    /// The change up to which outputs serve once more.
    Reuse "reuse"
    /// The sampler.
    Sampler "sampler"
    /// Latents that carry the model's scaling.
    Scaled "scaled"
    /// The factor of a VAE's scaling.
    ScalingFactor "scaling-factor"
    /// The scheduler.
    Scheduler "scheduler"
    /// A setting of the policy.
    Set "set"
    /// The shift of sigmas.
    Shift "shift"
    /// Sigmas by hand.
    Sigmas "sigmas"
    /// The width and the height in pixels.
    Size "size"
    /// The first step that is taken, and the one before which it ends.
    Span "start-step and end-step"
    /// The first step that is taken.
    StartStep "start-step"
    /// The number of steps.
    Steps "steps"
    /// The name of a tensor in a file.
    Tensor "tensor"
    /// The text encoders.
    TextEncoder "text-encoder"
    /// The transformer.
    Transformer "transformer"
    /// The VAE.
    Vae "vae"
    /// The encoder of a picture to begin with.
    VisionEncoder "vision-encoder"
    /// The width in pixels.
    Width "width"
}

names! {
    /// A way out that programs offer differently.
    Remedy by remedy:
    /// More memory for a policy.
    GrantMemory "a policy can be granted more"
    /// A look into a WebAssembly module.
    InspectPolicy "it is given as a policy"
    /// The latent is given where the VAE was.
    LatentFirst "give the latent"
    /// The list of models.
    ListModels "list the models to see them"
    /// A picture becomes a latent first.
    MakeLatent "encode it into a latent; a VAE is a .safetensors file"
    /// The outputs that hold whatever a picture or a clip is, at the end of a list.
    OtherOutputs ", a folder or .safetensors"
    /// The history in a database.
    ReadHistory "give a latent"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_names_settings_once_for_all_messages() {
        let line = || format!("give {}, or {}", Setting::TextEncoder, Remedy::MakeLatent);
        assert_eq!(line(), "give text-encoder, or encode it into a latent; a VAE is a .safetensors file");
        speak(Words { setting: |setting| format!("--{}", setting.plain()).into(), remedy: |_| "send a latent".into() });
        assert_eq!(line(), "give --text-encoder, or send a latent");
    }
}
