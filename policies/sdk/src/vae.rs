//! Decodes and encodes: methods of the contract's records for them.

use crate::{Attempt, Direction, Failure, Layout, Plan, Precision, Release, Request, Space, Stage, Tile, Time};

/// The division of the picture, from the one that certainly gives the whole's output to one that
/// only approximates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// No division.
    Whole,
    /// Bands whose output is that of the whole picture.
    Exact,
    /// Tiles that run alone and are cross-faded.
    Blended,
}

impl Plan {
    /// The whole picture and all frames at once: batch 1, channels-first, nothing offloaded or
    /// copied ahead, and the pool keeps its memory for the next job. A start to change from.
    pub const fn whole(precision: Precision) -> Self {
        Self {
            space: Space::Whole,
            time: Time::Whole,
            batch: 1,
            precision,
            layout: Layout::ChannelsFirst,
            release: Release::Keep,
            offload: false,
            prefetch: 0,
            options: Vec::new(),
            reason: String::new(),
        }
    }

    /// The same plan in exact bands of this many pixels in height. They are as wide as the picture
    /// and need no overlap. A band that covers the picture is the whole picture.
    ///
    /// The host blends bands instead if its capabilities don't include `exact`.
    #[must_use]
    pub fn exact(self, request: &Request, height: u32) -> Self {
        let band = Tile { height, width: request.width, overlap: 0 };
        Self { space: if height < request.height { Space::Exact(band) } else { Space::Whole }, ..self }
    }

    /// The same plan in blended tiles. A tile that covers the picture is the whole picture.
    #[must_use]
    pub fn blended(self, request: &Request, tile: Tile) -> Self {
        let covers = tile.height >= request.height && tile.width >= request.width;
        Self { space: if covers { Space::Whole } else { Space::Blended(tile) }, ..self }
    }

    /// The division of the picture.
    pub const fn kind(&self) -> Kind {
        match self.space {
            Space::Whole => Kind::Whole,
            Space::Exact(_) => Kind::Exact,
            Space::Blended(_) => Kind::Blended,
        }
    }

    /// True if parts of the output are cross-faded, in space or in time.
    pub const fn is_blended(&self) -> bool {
        matches!(self.space, Space::Blended(_)) || matches!(self.time, Time::Blended(_))
    }

    /// The tile, if there is one.
    pub const fn tile(&self) -> Option<Tile> {
        match self.space {
            Space::Whole => None,
            Space::Blended(tile) | Space::Exact(tile) => Some(tile),
        }
    }

    /// True if the host takes the plan for one that has failed. After an overflow, that is any plan
    /// of the same type. After out of memory, it is a plan with parts of the same size, the same
    /// batch, type and chunks, and the same offload: memory order, release, overlap and prefetch
    /// make no difference.
    pub fn repeats(&self, attempt: &Attempt) -> bool {
        let tried = &attempt.plan;
        if self.precision != tried.precision {
            return false;
        }
        let same_space = match (self.space, tried.space) {
            (Space::Exact(one), Space::Exact(other)) => one.height == other.height,
            (Space::Blended(one), Space::Blended(other)) => (one.height, one.width) == (other.height, other.width),
            (one, other) => one == other,
        };
        match attempt.failure {
            Failure::NonFinite(_) => true,
            Failure::OutOfMemory(_) | Failure::OverLimit(_) => {
                same_space
                    && self.time == tried.time
                    && self.batch == tried.batch
                    && self.offload == tried.offload
                    && self.options == tried.options
            }
        }
    }

    /// True if both divide the work alike, in the same batch, types and memory order. Of exact
    /// bands only the height counts: the host gives them the picture's width and no overlap.
    /// Reason, release, offload and prefetch make no difference.
    pub fn is_like(&self, other: &Plan) -> bool {
        let same_space = match (self.space, other.space) {
            (Space::Exact(one), Space::Exact(other)) => one.height == other.height,
            (one, other) => one == other,
        };
        same_space
            && self.time == other.time
            && self.batch == other.batch
            && self.precision == other.precision
            && self.layout == other.layout
            && self.options == other.options
    }
}

impl Tile {
    /// A tile as high as wide.
    pub const fn square(side: u32, overlap: u32) -> Self {
        Self { height: side, width: side, overlap }
    }
}

impl Request {
    /// The stage of the request.
    pub const fn stage(&self) -> Stage {
        match self.direction {
            Direction::Decode => Stage::Decode,
            Direction::Encode => Stage::Encode,
        }
    }

    /// A fact that has no field.
    pub fn hint(&self, name: &str) -> Option<&str> {
        self.hints.iter().find(|hint| hint.name == name).map(|hint| hint.value.as_str())
    }

    /// True if this is a clip that the host can run in chunks that carry the causal cache: the
    /// whole clip's output, in less memory.
    pub fn offers_carried(&self) -> bool {
        self.frames > 1 && self.capabilities.carried
    }

    /// The plan of a clip under way, some of whose frames are delivered.
    pub fn begun(&self) -> Option<&Plan> {
        self.under_way.as_ref().map(|under_way| &under_way.plan)
    }

    /// The unit of tile sides, band heights and overlaps in pixels; at least 1.
    pub fn tile_unit(&self) -> u32 {
        self.capabilities.tile_unit.max(1)
    }

    /// The least side of a tile and the least height of a band, in whole units, if the picture is
    /// not smaller.
    pub fn tile_least(&self) -> u32 {
        let unit = self.tile_unit();
        self.capabilities.tile_least.max(1).checked_next_multiple_of(unit).unwrap_or(unit)
    }

    /// The longer side, in pixels.
    pub fn longest(&self) -> u32 {
        self.height.max(self.width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Backend, Capabilities, Device, Dtype, HostMemory, Model, Objective, StoredType, Weights};

    fn request() -> Request {
        Request {
            direction: Direction::Decode,
            model: Model {
                family: "flux".into(),
                weights: Weights {
                    stored_bytes: 100,
                    stored_types: vec![StoredType { name: "bf16".into(), bytes: 100 }],
                },
                sample_size: None,
            },
            device: Device {
                backend: Backend::Cpu,
                name: "test".into(),
                arch: "test".into(),
                compute_units: 1,
                total_bytes: 1,
                free_bytes: 1,
                unified: false,
                fast_dtypes: vec![Dtype::Bf16, Dtype::F16],
            },
            host: HostMemory { total_bytes: 0, free_bytes: 0, transfer_rate: 0 },
            limit_bytes: 300,
            objective: Objective::Balanced,
            allows_blended: false,
            batch: 1,
            frames: 1,
            height: 512,
            width: 768,
            spatial_scale: 8,
            temporal_scale: 1,
            capabilities: Capabilities {
                dtypes: vec![Dtype::F32, Dtype::Bf16],
                tile_unit: 16,
                tile_least: 40,
                batch_most: 1,
                prefetch_most: 0,
                exact: true,
                carried: true,
                offload: false,
                options: vec![],
            },
            under_way: None,
            hints: vec![],
        }
    }

    #[test]
    fn a_part_that_covers_the_picture_is_the_whole() {
        let (request, plan) = (request(), Plan::whole(Precision::Uniform(Dtype::F32)));
        let bands = plan.clone().exact(&request, 128);
        assert_eq!(bands.space, Space::Exact(Tile { height: 128, width: 768, overlap: 0 }));
        assert_eq!(plan.clone().exact(&request, 512).kind(), Kind::Whole);
        assert_eq!(plan.clone().blended(&request, Tile::square(512, 64)).kind(), Kind::Blended);
        assert_eq!(plan.clone().blended(&request, Tile::square(768, 64)).kind(), Kind::Whole);
        // The width that the host gives bands does not tell them apart; their height does.
        let clamped = Plan { space: Space::Exact(Tile { height: 128, width: 640, overlap: 8 }), ..plan.clone() };
        assert!(bands.is_like(&clamped) && !bands.is_like(&plan.exact(&request, 64)));
    }

    #[test]
    fn capabilities_are_read_with_care() {
        let mut request = request();
        assert_eq!((request.tile_unit(), request.tile_least(), request.offers_carried()), (16, 48, false));
        assert_eq!([Dtype::F32, Dtype::Bf16, Dtype::F16].map(|dtype| request.is_fast(dtype)), [false, true, false]);
        request.frames = 5;
        assert!(request.offers_carried());
        (request.capabilities.tile_unit, request.capabilities.tile_least) = (0, 0);
        assert_eq!((request.tile_unit(), request.tile_least()), (1, 1));
        (request.capabilities.tile_unit, request.capabilities.tile_least) = (8, u32::MAX);
        assert_eq!(request.tile_least(), 8);
    }
}
