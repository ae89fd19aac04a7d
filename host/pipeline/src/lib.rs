//! Runs the stages of pictures and clips from input files to output files. The program, the service
//! and the benchmark share it, and supply planners, observers and the places of files.
//!
//! A prompt goes this way: a [`PromptOutline`] has the price of what is to come; the [`TextStage`]
//! makes its conditionings, the [`StartStage`] a latent of the picture that it begins with, if it
//! does; [`SampleModel::prepare`] reads them for a sample, whose latents a [`Decode`] turns into
//! frames for a [`Delivery`], with the texts of a [`Description`].
//!
//! | type | purpose |
//! |---|---|
//! | [`Model`] | an autoencoder's file, and the latents that it takes |
//! | [`Decode`], [`Encode`] | a stage's job, of pictures or of clips alike |
//! | [`SampleModel`] | a denoiser's files, and the input of a sample |
//! | [`PromptOutline`] | the stages of a prompt before any has run: their prices |
//! | [`Library`] | the models in the folders in which people keep them, and the [`Parts`] of one |
//! | [`TextEncoders`] | text encoders' files, and conditioning of prompts |
//! | [`TextStage`] | the conditionings of a prompt's picture: kept ones, or else made |
//! | [`StartStage`] | the picture that a sample begins with, put where the model takes it |
//! | [`StartImage`], [`VisionEncoder`] | the picture that a clip begins from |
//! | [`EncodeSource`] | frames to encode, cropped to what the autoencoder takes |
//! | [`Delivery`] | the way of frames into the output, the journal and the preview |
//! | [`Description`], [`Recipe`] | the texts of a picture, from which it can be made again |
//! | [`Told`] | the settings that texts tell, of other programs too |
//! | [`ModelIdentity`] | a name and digests by which a model is found again |
//! | [`OutputWriter`] | writes one output: a clip or pictures |
//! | [`KeptPlan`] | the plan under which an interrupted decode continues |
//! | [`FrameStore`] | frames kept in memory, to be compared |
//! | [`Session`], [`Trials`] | a measured device, and the history of its runs |
//!
//! Without the feature `torch` there are models, requests and the history alone, for whoever prices
//! stages and carries none out: nothing is linked with libtorch.

#![forbid(unsafe_code)]
#![cfg_attr(not(feature = "torch"), allow(dead_code, reason = "parts of what is read serve stages that run"))]

#[cfg(feature = "torch")]
mod decode;
#[cfg(feature = "torch")]
mod delivery;
#[cfg(feature = "torch")]
mod description;
#[cfg(feature = "torch")]
mod encode;
mod error;
mod files;
#[cfg(feature = "torch")]
mod frames;
mod history;
mod identity;
#[cfg(feature = "torch")]
mod latent_map;
#[cfg(feature = "torch")]
mod latent_output;
mod library;
mod metadata;
mod model;
#[cfg(feature = "torch")]
mod output;
#[cfg(feature = "torch")]
mod prompt;
mod recipe;
#[cfg(feature = "torch")]
mod replay;
#[cfg(feature = "torch")]
mod resume;
mod sample;
#[cfg(feature = "torch")]
mod session;
#[cfg(feature = "torch")]
mod source;
#[cfg(feature = "torch")]
mod start_image;
mod text;
mod told;
#[cfg(feature = "torch")]
mod vae_job;
#[cfg(feature = "torch")]
mod workflow;

#[cfg(feature = "torch")]
pub use decode::Decode;
#[cfg(feature = "torch")]
pub use delivery::{Delivery, Writing};
#[cfg(feature = "torch")]
pub use description::Description;
#[cfg(feature = "torch")]
pub use encode::{Encode, EncodeInput, Encoded};
pub use error::{Error, Result};
#[cfg(feature = "torch")]
pub use frames::{FrameStore, frame};
pub use history::{HistoryFault, Trials};
pub use identity::{LoraIdentity, ModelIdentity, PartIdentity};
#[cfg(feature = "torch")]
pub use latent_map::LatentMap;
#[cfg(feature = "torch")]
pub use latent_output::{LatentKind, LatentOutput};
pub use library::{Content, ExtraFolder, Item, Keeping, Library, LibraryModel, Need, OtherName, Parts, Place};
#[cfg(feature = "torch")]
pub use metadata::texts;
pub use metadata::{RECORD_KEYWORD, without_file_texts};
pub use model::{Model, check_scaling, published_rate};
#[cfg(feature = "torch")]
pub use output::OutputWriter;
#[cfg(feature = "torch")]
pub use prompt::{PromptOutline, PromptPrice};
pub use recipe::{NoRecipe, PARAMETERS_KEYWORD, RECIPE_KEYWORD, Recipe};
#[cfg(feature = "torch")]
pub use replay::{LayerDifference, LayersCompared, Replay, ReplayFiles, ReplayPlanners, Replayed, TensorDifference};
#[cfg(feature = "torch")]
pub use resume::{KeptPlan, fingerprint};
pub use sample::{
    Asked, Foreseen, LoraRequest, MASK, NOISY, NOISY_SIGMA, PromptRequest, SampleModel, SampleOutline, SampleRequest,
    Settings, Size, Steps, random_seed,
};
#[cfg(feature = "torch")]
pub use sample::{KeptSample, PacedSteps};
#[cfg(feature = "torch")]
pub use session::Session;
#[cfg(feature = "torch")]
pub use source::EncodeSource;
#[cfg(feature = "torch")]
pub use start_image::{StartFile, StartImage, StartStage, VisionEncoder};
#[cfg(feature = "torch")]
pub use text::{
    Conditioning, ConditioningOutput, Encoded as EncodedText, EncoderRun, KeptConditionings, Machines,
    PlacedConditioning, TextPlanning, TextStage, UnfinishedRun,
};
pub use text::{EmbeddingFolder, Purpose, TextEncoders, TextRequest, prompt_notes};
pub use told::Told;
#[cfg(feature = "torch")]
pub use vae_job::VaeJob;

pub use tilewright_history::Kept;

/// The memory limit in bytes of a device for which nobody sets one.
#[cfg(feature = "torch")]
pub fn default_limit(machine: &tilewright_engine::Machine) -> u64 {
    tilewright_prices::default_limit(&machine.facts)
}
