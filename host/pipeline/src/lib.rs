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

#![forbid(unsafe_code)]

mod decode;
mod delivery;
mod description;
mod encode;
mod error;
mod frames;
mod history;
mod identity;
mod latent_map;
mod latent_output;
mod library;
mod metadata;
mod model;
mod output;
mod prompt;
mod recipe;
mod replay;
mod resume;
mod sample;
mod session;
mod source;
mod start_image;
mod text;
mod told;
mod vae_job;
mod workflow;

pub use decode::Decode;
pub use delivery::{Delivery, Writing};
pub use description::Description;
pub use encode::{Encode, EncodeInput, Encoded};
pub use error::{Error, Result};
pub use frames::{FrameStore, frame};
pub use history::{HistoryFault, Trials};
pub use identity::{LoraIdentity, ModelIdentity, PartIdentity};
pub use latent_map::LatentMap;
pub use latent_output::{LatentKind, LatentOutput};
pub use library::{Content, ExtraFolder, Item, Keeping, Library, LibraryModel, Need, OtherName, Parts, Place};
pub use metadata::{RECORD_KEYWORD, texts, without_file_texts};
pub use model::{Model, check_scaling, published_rate};
pub use output::OutputWriter;
pub use prompt::{PromptOutline, PromptPrice};
pub use recipe::{NoRecipe, PARAMETERS_KEYWORD, RECIPE_KEYWORD, Recipe};
pub use replay::{LayerDifference, LayersCompared, Replay, ReplayFiles, ReplayPlanners, Replayed, TensorDifference};
pub use resume::{KeptPlan, fingerprint};
pub use sample::{
    Asked, Foreseen, KeptSample, LoraRequest, MASK, NOISY, NOISY_SIGMA, PacedSteps, PromptRequest, SampleModel,
    SampleOutline, SampleRequest, Settings, Size, Steps, random_seed,
};
pub use session::Session;
pub use source::EncodeSource;
pub use start_image::{StartFile, StartImage, StartStage, VisionEncoder};
pub use text::{
    Conditioning, ConditioningOutput, EmbeddingFolder, Encoded as EncodedText, EncoderRun, KeptConditionings,
    PlacedConditioning, Purpose, TextEncoders, TextPlanning, TextRequest, TextStage, UnfinishedRun, prompt_notes,
};
pub use told::Told;
pub use vae_job::VaeJob;

pub use tilewright_history::Kept;

use tilewright_engine::Machine;

/// The share of free memory that is used if nobody sets a limit.
const SHARE_OF_FREE: f64 = 0.8;

/// The memory limit in bytes of a device for which nobody sets one.
pub fn default_limit(machine: &Machine) -> u64 {
    (machine.facts.free_bytes as f64 * SHARE_OF_FREE) as u64
}
