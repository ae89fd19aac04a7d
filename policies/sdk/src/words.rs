//! What the contract's records and variants can do beyond being built.

use crate::{Attempt, Dtype, Failure, Layout, Plan, Precision, Release, Request, Space, Tile, Time};

/// How the picture is divided, from what is surely the whole's output to what only comes near it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Not at all.
    Whole,
    /// Into bands whose output is that of the whole picture.
    Exact,
    /// Into tiles that are decoded alone and cross-faded.
    Blended,
}

impl Plan {
    /// The whole picture at once: batch 1, channels-first, memory handed back at the end. A start to change from.
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
            reason: String::new(),
        }
    }

    /// The same plan with a reason.
    #[must_use]
    pub fn because(self, reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), ..self }
    }

    /// The same plan in exact bands of this many pixels in height. They are as wide as the picture, so only the height is to be chosen,
    /// and they need no overlap. A band that covers the picture is the whole picture.
    ///
    /// Only worth answering where [`Request::offers_exact`]; otherwise the host blends bands instead.
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

    /// How the picture is divided.
    pub const fn kind(&self) -> Kind {
        match self.space {
            Space::Whole => Kind::Whole,
            Space::Exact(_) => Kind::Exact,
            Space::Blended(_) => Kind::Blended,
        }
    }

    /// The tile, where there is one.
    pub const fn tile(&self) -> Option<Tile> {
        match self.space {
            Space::Whole => None,
            Space::Blended(tile) | Space::Exact(tile) => Some(tile),
        }
    }

    /// True if the host takes the plan for one that has failed. If values were not finite, that is any plan of the same
    /// type. If memory ran out, it is a plan of the same parts, as many together, in the same type and chunks, with the
    /// same offload: memory order, release, overlap and prefetch make no difference.
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
                same_space && self.time == tried.time && self.batch == tried.batch && self.offload == tried.offload
            }
        }
    }

    /// Whether the two are run alike, whatever their reasons. Of exact bands only the height counts: the host gives them the picture's
    /// width and no overlap.
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
    }
}

impl Tile {
    /// As many pixels high as wide.
    pub const fn square(side: u32, overlap: u32) -> Self {
        Self { height: side, width: side, overlap }
    }
}

impl Dtype {
    /// Bytes of one element; i4 counts as one.
    pub const fn bytes(self) -> u64 {
        match self {
            Dtype::F32 => 4,
            Dtype::Bf16 | Dtype::F16 => 2,
            Dtype::F8E4m3 | Dtype::F8E5m2 | Dtype::I8 | Dtype::I4 => 1,
        }
    }
}

impl Precision {
    /// The words for precisions in settings.
    pub const WORDS: [(&'static str, Precision); 5] = [
        ("f32", Precision::Uniform(Dtype::F32)),
        ("bf16", Precision::Uniform(Dtype::Bf16)),
        ("f16", Precision::Uniform(Dtype::F16)),
        ("mixed-bf16", Precision::Mixed(Dtype::Bf16)),
        ("mixed-f16", Precision::Mixed(Dtype::F16)),
    ];

    /// The type that convolutions run in.
    pub const fn dtype(self) -> Dtype {
        match self {
            Precision::Uniform(dtype) | Precision::Mixed(dtype) => dtype,
        }
    }

    /// The word for it, or that of its nearest.
    pub fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, known)| *known == self).map_or("f32", |(word, _)| word)
    }
}

impl Request {
    /// A fact that has no field.
    pub fn hint(&self, name: &str) -> Option<&str> {
        self.hints.iter().find(|hint| hint.name == name).map(|hint| hint.value.as_str())
    }

    /// A fact that has no field and is a number.
    pub fn hinted(&self, name: &str) -> Option<u32> {
        self.hint(name)?.parse().ok()
    }

    /// Whether the host can run convolutions in this type; f32 always.
    pub fn offers(&self, dtype: Dtype) -> bool {
        let name = match dtype {
            Dtype::F32 => return true,
            Dtype::Bf16 => "bf16",
            Dtype::F16 => "f16",
            Dtype::F8E4m3 => "f8-e4m3",
            Dtype::F8E5m2 => "f8-e5m2",
            Dtype::I8 => "i8",
            Dtype::I4 => "i4",
        };
        self.hint("offer.dtypes").is_some_and(|dtypes| dtypes.split(',').any(|offered| offered == name))
    }

    /// Whether the type was measured to be no slower than f32 on this device, and can be had.
    pub fn is_fast(&self, dtype: Dtype) -> bool {
        self.device.fast_dtypes.contains(&dtype) && self.offers(dtype)
    }

    /// Whether the host can run exact bands: the whole picture's output in less memory.
    pub fn offers_exact(&self) -> bool {
        self.hint("offer.exact") == Some("true")
    }

    /// Whether this is a clip that the host can run in chunks with the causal state carried across: the whole clip's output, in less memory.
    pub fn offers_carried(&self) -> bool {
        self.frames > 1 && self.hint("offer.carried") == Some("true")
    }

    /// Output frames of a clip that have left already. Where there are any, the last attempt's plan is under way and its state goes on: what
    /// ran whole or in bands can't go on in tiles, tiles stay as they were cut, and types get no narrower. The host sees to that.
    pub fn delivered(&self) -> u32 {
        self.hinted("clip.done").unwrap_or(0)
    }

    /// Sides of tiles, heights of bands and overlaps are multiples of this, in pixels: as offered, else the pixels of one latent pixel.
    pub fn tile_unit(&self) -> u32 {
        self.hinted("offer.tile-unit").unwrap_or(self.model.spatial_scale).max(1)
    }

    /// The least side of a tile and the least height of a band, in pixels, where the picture is not smaller: as offered, in whole units.
    pub fn tile_least(&self) -> u32 {
        let unit = self.tile_unit();
        self.hinted("offer.tile-least").unwrap_or(unit).max(1).checked_next_multiple_of(unit).unwrap_or(unit)
    }

    /// The longer side, in pixels.
    pub fn longest(&self) -> u32 {
        self.height.max(self.width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Backend, Device, Hint, Model, Objective};

    fn request(hints: &[(&str, &str)]) -> Request {
        Request {
            model: Model {
                family: "flux".into(),
                stored: Dtype::Bf16,
                quantized: false,
                parameter_bytes: 1,
                spatial_scale: 8,
                temporal_scale: 1,
            },
            device: Device {
                backend: Backend::Cpu,
                name: "test".into(),
                arch: "test".into(),
                compute_units: 1,
                total_bytes: 1,
                free_bytes: 1,
                unified: false,
                fast_dtypes: vec![],
            },
            batch: 1,
            frames: 1,
            height: 512,
            width: 768,
            memory_limit: 1,
            objective: Objective::Balanced,
            hints: hints.iter().map(|(name, value)| Hint { name: (*name).into(), value: (*value).into() }).collect(),
        }
    }

    #[test]
    fn a_part_that_covers_the_picture_is_the_whole() {
        let (request, plan) = (request(&[]), Plan::whole(Precision::Uniform(Dtype::F32)));
        let bands = plan.clone().exact(&request, 128);
        assert_eq!(bands.space, Space::Exact(Tile { height: 128, width: 768, overlap: 0 }));
        assert_eq!(plan.clone().exact(&request, 512).kind(), Kind::Whole);
        assert_eq!(plan.clone().blended(&request, Tile::square(512, 64)).kind(), Kind::Blended);
        assert_eq!(plan.clone().blended(&request, Tile::square(768, 64)).kind(), Kind::Whole);
        // What the host makes of the width does not tell bands apart; their height does.
        let clamped = Plan { space: Space::Exact(Tile { height: 128, width: 640, overlap: 8 }), ..plan.clone() };
        assert!(bands.is_like(&clamped) && !bands.is_like(&plan.exact(&request, 64)));
    }

    #[test]
    fn offers_are_read_with_their_defaults() {
        let bare = request(&[]);
        assert_eq!((bare.offers_exact(), bare.tile_unit(), bare.tile_least()), (false, 8, 8));
        let full = request(&[("offer.exact", "true"), ("offer.tile-unit", "16"), ("offer.tile-least", "40")]);
        assert_eq!((full.offers_exact(), full.tile_unit(), full.tile_least()), (true, 16, 48));
        assert!(!Request { frames: 1, ..request(&[("offer.carried", "true")]) }.offers_carried());
        let clip = Request { frames: 5, ..request(&[("offer.carried", "true"), ("clip.done", "4")]) };
        assert_eq!((clip.offers_carried(), clip.delivered(), bare.delivered()), (true, 4, 0));
        let odd = request(&[("offer.exact", "yes"), ("offer.tile-unit", "0"), ("offer.tile-least", "-1")]);
        assert_eq!((odd.offers_exact(), odd.tile_unit(), odd.tile_least()), (false, 1, 1));
        assert_eq!(request(&[("offer.tile-least", "4294967295")]).tile_least(), 8);
    }
}
