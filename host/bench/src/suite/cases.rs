//! The published cases.

use tilewright_plan::Objective;

use crate::Spelling;

/// The case in a half type.
pub const HALF: &str = "512-half";

/// The side of the largest pictures; the plain whole decode's peak there is what the memory case starts from.
pub const LARGEST: u32 = 1024;

/// A published case.
#[derive(Debug)]
pub struct Case {
    pub id: &'static str,
    pub what: &'static str,
    /// How it is measured; none for video, which can't be decoded yet.
    pub picture: Option<Picture>,
}

/// A case of pictures.
#[derive(Clone, Copy, Debug)]
pub struct Picture {
    /// Pixels, at full size.
    pub side: u32,
    pub batch: u32,
    /// Set for the policies, not for the baseline.
    pub precision: Option<&'static str>,
    pub objective: Objective,
    /// The policies get a third of the baseline's peak at the largest size.
    pub third: bool,
}

const fn picture(id: &'static str, what: &'static str, side: u32, batch: u32) -> Case {
    let picture = Picture { side, batch, precision: None, objective: Objective::Fastest, third: false };
    Case { id, what, picture: Some(picture) }
}

const fn video(id: &'static str, what: &'static str) -> Case {
    Case { id, what, picture: None }
}

/// All of them.
pub const CASES: [Case; 12] = [
    picture("256", "256×256", 256, 1),
    picture("512", "512×512", 512, 1),
    picture("1024", "1024×1024", LARGEST, 1),
    picture("256x4", "256×256, four at once", 256, 4),
    Case {
        id: HALF,
        what: "512×512 in bf16 (published: f16, which overflows in KL autoencoders)",
        picture: Some(Picture {
            side: 512,
            batch: 1,
            precision: Some("bf16"),
            objective: Objective::Fastest,
            third: false,
        }),
    },
    Case {
        id: "1024-memory",
        what: "1024×1024 in a third of the memory",
        picture: Some(Picture { side: LARGEST, batch: 1, precision: None, objective: Objective::Leanest, third: true }),
    },
    video("video-256x16", "256×256, 16 frames"),
    video("video-512x4x8", "512×512, 4 clips of 8 frames"),
    video("video-320x1", "WAN 320×320, 1 frame"),
    video("video-320x2-5", "WAN 320×320, 2 to 5 frames"),
    video("video-320x10-17", "WAN 320×320, 10 to 17 frames"),
    video("video-480x720x30", "WAN 480×720, 30 frames and more"),
];

/// What everything is measured against: the picture as a whole, as a plain program decodes it.
pub fn baseline() -> Spelling {
    let settings = [("space", "whole"), ("layout", "channels-first"), ("precision", "f32")];
    Spelling {
        policy: "fixed".into(),
        settings: settings.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec(),
    }
}
