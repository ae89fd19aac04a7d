//! The published cases.

use std::{fmt, str::FromStr};

use tilewright_plan::{Objective, Plan, Time};

use crate::{Error, Spelling};

/// The case in a half type.
pub const HALF: &str = "512-half";

/// The case that measures frame transitions.
pub const SMOOTH: &str = "video-320x10-17";

/// Output frames per chunk of the baseline: one latent frame, as other programs decode clips.
const CHUNK: u32 = 4;

/// A published case.
#[derive(Debug)]
pub struct Case {
    pub id: &'static str,
    pub what: &'static str,
    pub of: Of,
    /// The type set for the policies, not for the baseline.
    pub precision: Option<&'static str>,
    pub objective: Objective,
    /// The memory limit of the policies: a share of the baseline's peak in this case.
    pub share_of: Option<(f64, &'static str)>,
}

/// The input, in pixels and frames at full size.
#[derive(Clone, Copy, Debug)]
pub enum Of {
    Pictures { side: u32, batch: u32 },
    Clips(Clips),
}

/// Clips of 1 + 4k frames: the nearest that cover the published ones.
#[derive(Clone, Copy, Debug)]
pub struct Clips {
    pub width: u32,
    pub height: u32,
    pub samples: u32,
    pub frames: u32,
    /// Samples and frames with `quick`.
    pub quick: (u32, u32),
}

const fn case(id: &'static str, what: &'static str, of: Of) -> Case {
    Case { id, what, of, precision: None, objective: Objective::Fastest, share_of: None }
}

const fn picture(id: &'static str, what: &'static str, side: u32, batch: u32) -> Case {
    case(id, what, Of::Pictures { side, batch })
}

const fn lean(case: Case, share: f64, of: &'static str) -> Case {
    Case { objective: Objective::Leanest, share_of: Some((share, of)), ..case }
}

const fn video(id: &'static str, what: &'static str, side: u32, frames: u32, quick: u32) -> Case {
    case(id, what, Of::Clips(Clips { width: side, height: side, samples: 1, frames, quick: (1, quick) }))
}

/// All of them.
pub const CASES: [Case; 14] = [
    picture("256", "256×256", 256, 1),
    picture("512", "512×512", 512, 1),
    picture("1024", "1024×1024", 1024, 1),
    picture("256x4", "256×256, four at once", 256, 4),
    Case {
        precision: Some("bf16"),
        ..picture(HALF, "512×512 in bf16 (published: f16, which overflows in KL autoencoders)", 512, 1)
    },
    lean(picture("1024-memory", "1024×1024 in a third of the memory", 1024, 1), 1.0 / 3.0, "1024"),
    video("video-256x16", "256×256, 17 frames (published: 16; clips have 1 + 4k)", 256, 17, 5),
    case(
        "video-512x4x8",
        "512×512, 4 clips of 9 frames (published: 8; clips have 1 + 4k)",
        Of::Clips(Clips { width: 512, height: 512, samples: 4, frames: 9, quick: (2, 5) }),
    ),
    video("video-320x1", "WAN 320×320, 1 frame", 320, 1, 1),
    video("video-320x2-5", "WAN 320×320, 5 frames (published: 2 to 5)", 320, 5, 5),
    video(SMOOTH, "WAN 320×320, 17 frames (published: 10 to 17)", 320, 17, 9),
    video("video-320x33", "WAN 320×320, 33 frames (published: 2 s of video; 16 frames a second, 1 + 4k)", 320, 33, 9),
    case(
        "video-480x720x30",
        "WAN 720×480, 33 frames (published: 30 and more; clips have 1 + 4k)",
        Of::Clips(Clips { width: 720, height: 480, samples: 1, frames: 33, quick: (1, 5) }),
    ),
    lean(video("video-memory", "512×512, 9 frames in three fifths of the memory", 512, 9, 5), 0.6, "video-512x4x8"),
];

/// A case by its name.
#[derive(Clone, Copy, Debug)]
pub struct CaseName(pub(super) &'static Case);

impl CaseName {
    /// True if it is about clips.
    pub fn is_of_clips(self) -> bool {
        matches!(self.0.of, Of::Clips(_))
    }
}

impl FromStr for CaseName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        CASES.iter().find(|case| case.id == text).map(Self).ok_or_else(|| Error::Unknown {
            what: "case",
            given: text.to_owned(),
            known: CASES.iter().map(|case| case.id).collect::<Vec<_>>().join(", "),
        })
    }
}

impl fmt::Display for CaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.id)
    }
}

impl Of {
    /// The baseline, as a plain program decodes: a picture as a whole, a clip latent frame by
    /// latent frame.
    pub fn baseline(self) -> Plan {
        Plan {
            time: match self {
                Of::Pictures { .. } | Of::Clips(Clips { frames: 1, .. }) => Time::Whole,
                Of::Clips(_) => Time::Carried { frames: CHUNK },
            },
            ..Plan::plain()
        }
    }
}

/// The baseline's spelling: [`Of::baseline`], with the defaults of everything that policies do not
/// choose.
pub fn baseline(of: Of) -> Spelling {
    Spelling::fixed(&of.baseline())
}
