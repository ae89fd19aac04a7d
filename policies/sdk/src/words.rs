//! What the contract's records and variants can do beyond being built.

use crate::{Dtype, Layout, Plan, Precision, Release, Request, Space, Tile, Time};

impl Plan {
    /// The whole picture at once: batch 1, channels-first, memory handed back at the end. A start to change from.
    pub const fn whole(precision: Precision) -> Self {
        Self {
            space: Space::Whole,
            time: Time::Whole,
            batch: 1,
            precision,
            layout: Layout::ChannelsFirst,
            release: Release::AtEnd,
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

    /// The tile, where there is one.
    pub const fn tile(&self) -> Option<Tile> {
        match self.space {
            Space::Whole => None,
            Space::Blended(tile) | Space::Exact(tile) => Some(tile),
        }
    }

    /// Whether the two are run alike, whatever their reasons.
    pub fn is_like(&self, other: &Plan) -> bool {
        self.space == other.space
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

    /// The longer side, in pixels.
    pub fn longest(&self) -> u32 {
        self.height.max(self.width)
    }
}
