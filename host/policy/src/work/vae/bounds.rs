//! The bounds of a plan.

use tilewright_plan::{Capabilities, Plan, Request, Space, UnderWay};

/// The ranges that a plan has to lie in: capabilities, the extents of the request, and the plan of
/// a clip under way.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    pub batch: u32,
    pub frames: u32,
    pub height: u32,
    pub width: u32,
    /// Output frames per latent frame.
    pub scale: u32,
    pub capabilities: Capabilities,
    /// The plan that a clip is under way with.
    pub running: Option<Plan>,
}

impl Bounds {
    pub fn new(request: &Request, capabilities: &Capabilities, under_way: Option<&UnderWay>) -> Self {
        let &Request { batch, frames, height, width, .. } = request;
        let (scale, running) = (request.model.temporal_scale, under_way.map(|under_way| under_way.plan.clone()));
        Self { batch, frames, height, width, scale, capabilities: capabilities.clone(), running }
    }

    pub(super) fn is_clip(&self) -> bool {
        self.frames > 1
    }

    /// True if the request is a clip whose causal cache is carried from chunk to chunk.
    pub fn is_carried(&self) -> bool {
        self.is_clip() && self.capabilities.carried
    }

    /// A chunk as it can be run: whole latent frames, or a power of two of one's output frames, or
    /// the clip.
    pub(super) fn chunk(&self, frames: u32) -> u32 {
        let scale = self.scale.max(1);
        if frames >= self.frames {
            self.frames
        } else if frames >= scale {
            frames - frames % scale
        } else {
            1 << frames.max(1).ilog2()
        }
    }

    pub(super) fn unit(&self) -> u32 {
        self.capabilities.tile_unit.max(1)
    }

    /// The least side of a tile along an axis of this extent.
    pub(super) fn least(&self, extent: u32) -> u32 {
        self.capabilities.tile_least.max(1).checked_next_multiple_of(self.unit()).unwrap_or(u32::MAX).min(extent)
    }

    /// The number of samples or tiles that could run together.
    pub(super) fn work(&self, space: &Space) -> u32 {
        let tiles = space.tile().map_or(1, |tile| {
            let along = |extent: u32, side: u32| match side >= extent {
                true => 1,
                false => (extent - side).div_ceil(side.saturating_sub(tile.overlap).max(1)).saturating_add(1),
            };
            along(self.height, tile.height).saturating_mul(along(self.width, tile.width))
        });
        self.batch.saturating_mul(tiles).max(1)
    }
}
