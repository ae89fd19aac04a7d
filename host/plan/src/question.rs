//! The question that a planner answers: the request, the capabilities, the work under way and the
//! attempts that failed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Attempt, Device, Dtype, Hint, PlanOption, Stage, Vae, Work};

/// The smallest tile in latent pixels: below this a tile is mostly border.
pub const LEAST_TILE: u32 = 8;

/// Tiles or samples that may run together.
pub const MOST_BATCH: u32 = 64;

/// Chunks of latents that may be copied ahead to a GPU.
pub const MOST_AHEAD: u32 = 8;

/// The engine's capabilities for the request at hand; answers are checked against them. The default
/// stands for capabilities that were not recorded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Capabilities {
    /// The types that convolutions can run in on this device.
    pub dtypes: Vec<Dtype>,
    /// Tiles and overlaps are multiples of this many pixels.
    pub tile_unit: u32,
    /// The smallest side of a tile, in pixels.
    pub tile_least: u32,
    /// The most samples or tiles that run together.
    pub batch_most: u32,
    /// `exact` tiles can be run.
    pub exact: bool,
    /// Chunks that carry the causal cache can be run.
    pub carried: bool,
    /// Activations can wait in host memory.
    pub offload: bool,
    /// The most inputs that can be copied ahead.
    pub prefetch_most: u32,
    /// The options that are offered beside a plan's fields.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<PlanOption>,
}

impl Capabilities {
    /// The capabilities in a request's hints, as programs wrote them before records had a field for
    /// them. `None` if a hint is missing or its value is not valid.
    pub fn of_hints(hints: &[Hint]) -> Option<Self> {
        let of = |name: &str| hints.iter().find(|hint| hint.name == name).map(|hint| hint.value.as_str());
        let number = |name: &str| of(name)?.parse::<u32>().ok();
        let flag = |name: &str| of(name)?.parse::<bool>().ok();
        Some(Self {
            dtypes: of("offer.dtypes")?.split(',').map(|name| name.parse().ok()).collect::<Option<_>>()?,
            tile_unit: number("offer.tile-unit")?,
            tile_least: number("offer.tile-least")?,
            batch_most: number("offer.batch-most")?,
            exact: flag("offer.exact")?,
            carried: flag("offer.carried")?,
            offload: flag("offer.offload")?,
            prefetch_most: number("offer.prefetch-most")?,
            options: Vec::new(),
        })
    }
}

/// Work of which a part is done. A clip's causal cache goes on under the next plan: in one piece or
/// bands, or in the same tiles; carried or whole in time, as before; in the same memory order and
/// in no narrower type. A sample goes on under any plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(bound = "")]
#[schemars(rename = "UnderWay")]
pub struct UnderWay<W: Work = Vae> {
    /// Output frames that are delivered, or steps that are finished.
    pub done: u32,
    /// The plan that they were made by.
    pub plan: W::Plan,
}

/// A question to a planner.
#[derive(Debug)]
pub struct Question<'a, W: Work = Vae> {
    /// The kind of work.
    pub stage: Stage,
    /// The work itself.
    pub request: &'a W::Request,
    /// The device that it will run on.
    pub device: &'a Device,
    /// The plans that can be carried out.
    pub capabilities: &'a W::Capabilities,
    /// The work that the answer goes on with; `None` before the first frame or step, and for
    /// pictures.
    pub under_way: Option<&'a UnderWay<W>>,
    /// The attempts that failed, the latest last. Empty for a first decision and after a renewed
    /// question.
    pub attempts: &'a [Attempt<W>],
}

impl<W: Work> Clone for Question<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W: Work> Copy for Question<'_, W> {}

impl<'a, W: Work> Question<'a, W> {
    /// A first question: nothing is under way, and nothing failed.
    pub const fn first(
        stage: Stage,
        request: &'a W::Request,
        device: &'a Device,
        capabilities: &'a W::Capabilities,
    ) -> Self {
        Self { stage, request, device, capabilities, under_way: None, attempts: &[] }
    }

    /// The same question after these attempts failed.
    #[must_use]
    pub const fn after(self, attempts: &'a [Attempt<W>]) -> Self {
        Self { attempts, ..self }
    }

    /// The same question about work that goes on.
    #[must_use]
    pub const fn going_on(self, under_way: Option<&'a UnderWay<W>>) -> Self {
        Self { under_way, ..self }
    }
}
