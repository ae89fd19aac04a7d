//! The table. Columns: device, weights, size, memory, objective; then the special properties.

use tilewright_plan::{Dtype, Objective, Precision, Stage};

use Events::{Fail, Learn};
use FailureKind::{NonFinite, OutOfMemory, OverLimit};
use Form::{Bands, Tiles, Whole};
use MemoryLimit::{Hopeless, Percent, Plenty};
use Objective::{Balanced, Fastest, Leanest};

use super::{Form, Row, Shape};
use crate::{
    golden::{Events, FailureKind, MemoryLimit},
    machines::*,
};

const F32: Precision = Precision::Uniform(Dtype::F32);
const BF16: Precision = Precision::Uniform(Dtype::Bf16);
const F16: Precision = Precision::Uniform(Dtype::F16);
const MIXED: Precision = Precision::Mixed(Dtype::Bf16);

/// A request to decode a picture, without special properties.
const fn ask(
    machine: &'static Machine,
    weights: &'static Weights,
    (width, height): (u32, u32),
    room: MemoryLimit,
    objective: Objective,
) -> Row {
    let (stage, then) = (Stage::Decode, Events::Nothing);
    Row {
        machine,
        weights,
        width,
        height,
        frames: 1,
        batch: 1,
        room,
        objective,
        stage,
        is_bare: false,
        may_blend: false,
        tried: &[],
        then,
        begun: None,
    }
}

impl Row {
    const fn frames(self, frames: u32) -> Self {
        Self { frames, ..self }
    }

    const fn batch(self, batch: u32) -> Self {
        Self { batch, ..self }
    }

    const fn encode(self) -> Self {
        Self { stage: Stage::Encode, ..self }
    }

    const fn bare(self) -> Self {
        Self { is_bare: true, ..self }
    }

    const fn blending(self) -> Self {
        Self { may_blend: true, ..self }
    }

    const fn trials(self, tried: &'static [(Shape, f64, f64)]) -> Self {
        Self { tried, ..self }
    }

    const fn then(self, then: Events) -> Self {
        Self { then, ..self }
    }

    const fn under_way(self, shape: Shape, done: u32, fails: &'static [FailureKind]) -> Self {
        Self { then: Events::UnderWay(fails), begun: Some((shape, done)), ..self }
    }
}

const fn shape(form: Form, precision: Precision, chunk: u32) -> Shape {
    Shape { form, precision, chunk }
}

const HD: (u32, u32) = (1664, 928);
const K1: (u32, u32) = (1024, 1024);
const BIG: (u32, u32) = (1536, 1536);
const K2: (u32, u32) = (2048, 2048);
const UHD: (u32, u32) = (4096, 2160);
/// Latents of 17 × 23.
const ODD: (u32, u32) = (136, 184);
const STRIP: (u32, u32) = (8192, 256);
const TOWER: (u32, u32) = (64, 4096);
const W480: (u32, u32) = (832, 480);
const W720: (u32, u32) = (1280, 704);

/// Slow whole and fast in tiles, as on gfx1151; 10 % more memory than the price.
pub(super) const SLOW_WHOLE: &[(Shape, f64, f64)] =
    &[(shape(Whole, BF16, 0), 3.5, 1.1), (shape(Tiles(768), BF16, 0), 0.6, 1.1), (shape(Whole, F32, 0), 3.0, 1.05)];
/// Every plan takes more time and memory than its price.
pub(super) const DEARER: &[(Shape, f64, f64)] =
    &[(shape(Whole, F32, 0), 1.8, 1.25), (shape(Bands(128), F32, 0), 1.6, 1.3)];
/// Clips by chunk: the longer, the faster.
pub(super) const CHUNKS: &[(Shape, f64, f64)] = &[
    (shape(Whole, BF16, 4), 1.3, 1.1),
    (shape(Whole, BF16, 16), 0.8, 1.1),
    (shape(Bands(128), BF16, 4), 1.4, 1.2),
    (shape(Whole, F32, 4), 1.0, 1.0),
];

#[rustfmt::skip]
pub(super) static ROWS: &[Row] = &[
    // Pictures, with room.
    ask(&GFX1030, &SD_F16,    (256, 256), Plenty, Balanced),
    ask(&GFX1030, &SDXL_F16,  K1,         Plenty, Balanced),
    ask(&GFX1100, &FLUX_BF16, K1,         Plenty, Fastest),
    ask(&GFX1151, &FLUX_BF16, (512, 512), Plenty, Balanced),
    ask(&GFX1151, &FLUX_BF16, HD,         Plenty, Balanced),
    ask(&GFX1151, &SDXL_F32,  K1,         Plenty, Leanest),
    ask(&GFX1201, &SD3_BF16,  K1,         Plenty, Balanced),
    ask(&GFX942,  &FLUX_F32,  UHD,        Plenty, Fastest),
    ask(&SM_75,   &SDXL_F16,  K1,         Plenty, Fastest),
    ask(&SM_89,   &FLUX_BF16, K2,         Plenty, Balanced),
    ask(&SM_90,   &FLUX_BF16, K1,         Plenty, Fastest),
    ask(&SM_90,   &FLUX_F8,   UHD,        Plenty, Balanced),
    ask(&X86_V3,  &SD_F16,    (512, 512), Plenty, Balanced),
    ask(&X86_V4,  &FLUX_F32,  K1,         Plenty, Balanced),
    ask(&X86_AMX, &FLUX_BF16, HD,         Plenty, Fastest),
    ask(&ARM_BIG, &SDXL_F32,  K1,         Plenty, Balanced),
    ask(&ARM,     &SD_F16,    (256, 256), Plenty, Leanest),
    ask(&X86_V4,  &OTHER,     (500, 300), Plenty, Balanced),
    // Pictures of odd and extreme shapes.
    ask(&GFX1151, &FLUX_BF16, ODD,        Plenty,      Balanced),
    ask(&X86_V3,  &FLUX_F32,  ODD,        Percent(60), Balanced),
    ask(&SM_89,   &SD3_BF16,  STRIP,      Plenty,      Fastest),
    ask(&GFX1100, &FLUX_BF16, STRIP,      Percent(25), Balanced),
    ask(&X86_V4,  &SDXL_F32,  TOWER,      Percent(40), Leanest),
    ask(&SM_90,   &FLUX_BF16, (64, 64),   Plenty,      Balanced),
    ask(&GFX1201, &FLUX_BF16, (1344, 768), Percent(70), Fastest),
    // Pictures in little memory, down to none.
    ask(&GFX1030, &FLUX_BF16, K2,  Percent(50), Balanced),
    ask(&GFX1100, &SDXL_F16,  K2,  Percent(30), Fastest),
    ask(&GFX1151, &FLUX_F32,  UHD, Percent(20), Balanced),
    ask(&GFX1201, &SDXL_F32,  HD,  Percent(45), Leanest),
    ask(&GFX942,  &SD3_BF16,  K2,  Percent(10), Balanced),
    ask(&SM_75,   &FLUX_BF16, UHD, Percent(15), Fastest),
    ask(&SM_89,   &SDXL_F16,  UHD, Percent(5),  Balanced),
    ask(&SM_90,   &FLUX_BF16, K2,  Percent(90), Leanest),
    ask(&X86_V3,  &FLUX_F32,  K1,  Percent(80), Balanced),
    ask(&X86_V4,  &FLUX_F32,  HD,  Percent(30), Fastest),
    ask(&ARM,     &SDXL_F16,  K1,  Percent(8),  Leanest),
    ask(&X86_V4,  &FLUX_F32,  K1,  Hopeless,    Balanced),
    ask(&GFX1151, &FLUX_BF16, HD,  Hopeless,    Fastest),
    // Batches.
    ask(&SM_90,   &SDXL_F16,  K1,         Plenty,      Fastest).batch(4),
    ask(&GFX942,  &SD_F16,    (512, 512), Plenty,      Balanced).batch(16),
    ask(&GFX1151, &SD_F16,    (512, 512), Percent(150), Balanced).batch(3),
    ask(&X86_V4,  &FLUX_F32,  (256, 256), Percent(250), Balanced).batch(4),
    // Quantized weights.
    ask(&GFX1151, &FLUX_I8,   HD, Plenty,      Balanced),
    ask(&GFX1100, &FLUX_I4,   K1, Percent(35), Fastest),
    ask(&SM_75,   &FLUX_I4,   K2, Plenty,      Balanced),
    ask(&X86_V3,  &FLUX_I8,   K1, Percent(60), Leanest),
    // Encodes, and hosts that offer little.
    ask(&SM_89,   &FLUX_BF16, K1,  Plenty,      Balanced).encode(),
    ask(&GFX1151, &SDXL_F16,  K2,  Percent(20), Fastest).encode(),
    ask(&SM_90,   &FLUX_BF16, UHD, Plenty,      Fastest).encode(),
    ask(&X86_V4,  &FLUX_F32,  K1,  Percent(60), Balanced).encode(),
    ask(&ARM_BIG, &SDXL_F32,  HD,  Plenty,      Leanest).encode(),
    ask(&X86_V3,  &SD_F16,    (512, 512), Percent(150), Balanced).batch(3).encode(),
    ask(&GFX1100, &FLUX_BF16, STRIP, Plenty,    Balanced).encode(),
    ask(&SM_89,   &FLUX_BF16, K2,  Hopeless,    Balanced).encode(),
    ask(&X86_V3,  &SD_F16,    K1,  Percent(50), Balanced).bare(),
    ask(&GFX1100, &FLUX_BF16, HD,  Plenty,      Fastest).bare(),
    // Exact bands and the whole fit where tiles would take less time, or less memory: at 1536×1536
    // within 18 GiB, and with hardly enough for bands.
    ask(&SM_90,   &FLUX_BF16, BIG, Percent(365), Fastest),
    ask(&SM_90,   &FLUX_BF16, BIG, Percent(365), Balanced),
    ask(&SM_90,   &FLUX_BF16, BIG, Percent(365), Leanest),
    ask(&X86_V4,  &FLUX_F32,  BIG, Percent(365), Fastest),
    ask(&X86_V4,  &FLUX_F32,  BIG, Percent(365), Balanced),
    ask(&X86_V4,  &FLUX_F32,  BIG, Percent(365), Leanest),
    ask(&GFX1151, &FLUX_BF16, BIG, Percent(90),  Fastest),
    ask(&X86_V4,  &FLUX_F32,  BIG, Percent(79),  Balanced),
    ask(&X86_V4,  &FLUX_F32,  BIG, Percent(38),  Leanest),
    ask(&SM_89,   &SDXL_F16,  BIG, Percent(10),  Balanced),
    // The user allows blended tiles.
    ask(&SM_90,   &FLUX_BF16, BIG, Percent(365), Balanced).blending(),
    ask(&X86_V4,  &FLUX_F32,  BIG, Percent(365), Leanest).blending(),
    ask(&GFX1151, &FLUX_BF16, HD,  Plenty,       Balanced).blending(),
    ask(&X86_V3,  &SD_F16,    K1,  Percent(60),  Fastest).blending(),
    // Clips.
    ask(&GFX1151, &WAN21_BF16, W480,       Plenty,      Balanced).frames(81),
    ask(&GFX1151, &WAN21_BF16, (320, 320), Plenty,      Fastest).frames(17),
    ask(&GFX1100, &WAN21_BF16, W480,       Percent(60), Balanced).frames(33),
    ask(&GFX1030, &WAN21_F16,  W480,       Percent(40), Balanced).frames(33),
    ask(&GFX1201, &WAN22_BF16, W720,       Plenty,      Balanced).frames(121),
    ask(&GFX942,  &WAN22_BF16, W720,       Plenty,      Fastest).frames(121),
    ask(&SM_75,   &WAN21_F8,   (320, 320), Percent(50), Fastest).frames(17),
    ask(&SM_89,   &WAN21_BF16, W720,       Plenty,      Balanced).frames(81),
    ask(&SM_89,   &WAN22_I8,   W720,       Percent(25), Leanest).frames(81),
    ask(&SM_90,   &WAN21_F32,  W720,       Plenty,      Fastest).frames(81),
    ask(&X86_V3,  &WAN21_F32,  (320, 320), Plenty,      Balanced).frames(17),
    ask(&X86_V4,  &WAN21_F32,  W480,       Percent(20), Balanced).frames(33),
    ask(&ARM_BIG, &WAN22_BF16, W720,       Percent(50), Leanest).frames(121),
    ask(&GFX1151, &WAN21_BF16, ODD,        Plenty,      Balanced).frames(5),
    ask(&X86_V4,  &WAN21_F32,  W480,       Plenty,      Balanced),
    ask(&SM_90,   &WAN21_BF16, W480,       Hopeless,    Balanced).frames(81),
    ask(&SM_90,   &WAN21_BF16, (320, 320), Plenty,      Balanced).frames(33).batch(2),
    ask(&GFX1151, &WAN21_BF16, W480,       Percent(50), Balanced).frames(81).encode(),
    ask(&SM_90,   &WAN22_BF16, W720,       Plenty,      Fastest).frames(81).encode(),
    ask(&X86_V4,  &WAN21_F32,  (320, 320), Plenty,      Balanced).frames(17).encode(),
    ask(&X86_V3,  &WAN21_F32,  (320, 320), Plenty,      Balanced).frames(17).bare(),
    ask(&X86_V3,  &WAN21_F32,  (320, 320), Plenty,      Balanced).frames(17).bare().blending(),
    // With measurements.
    ask(&GFX1151, &FLUX_BF16,  K1,   Plenty,      Balanced).trials(SLOW_WHOLE),
    ask(&X86_V4,  &FLUX_F32,   K1,   Percent(95), Fastest).trials(DEARER),
    ask(&SM_90,   &WAN21_BF16, W480, Plenty,      Fastest).frames(81).trials(CHUNKS),
    // After failures of the policy's own plans.
    ask(&GFX1151, &FLUX_BF16,  HD,         Plenty,      Balanced).then(Fail(&[OutOfMemory, OutOfMemory, OutOfMemory])),
    ask(&SM_75,   &SDXL_F16,   K2,         Plenty,      Fastest).then(Fail(&[OverLimit, OutOfMemory])),
    ask(&SM_89,   &SDXL_F16,   K1,         Plenty,      Balanced).then(Fail(&[NonFinite, NonFinite])),
    ask(&GFX1030, &SD_F16,     (512, 512), Plenty,      Balanced).then(Fail(&[NonFinite, OverLimit])),
    ask(&X86_V4,  &FLUX_F32,   K1,         Percent(60), Balanced).then(Fail(&[OverLimit, OverLimit, OverLimit])),
    ask(&ARM,     &SD_F16,     (256, 256), Plenty,      Balanced).then(Fail(&[OutOfMemory])),
    ask(&GFX1100, &WAN21_BF16, W480,       Plenty,      Balanced).frames(81).then(Fail(&[OutOfMemory, OutOfMemory])),
    ask(&SM_90,   &WAN22_BF16, W720,       Plenty,      Fastest).frames(121).then(Fail(&[NonFinite])),
    ask(&SM_75,   &SDXL_F16,   K2,         Plenty,      Balanced).encode().then(Fail(&[OutOfMemory])),
    ask(&X86_V4,  &FLUX_F32,   HD,         Plenty,      Balanced).encode().then(Fail(&[OverLimit])),
    // Clips under way.
    ask(&GFX1151, &WAN21_BF16, W480,       Plenty,      Balanced).frames(81).under_way(shape(Whole, BF16, 16), 17, &[OutOfMemory, OverLimit]),
    ask(&X86_V4,  &WAN21_F32,  W480,       Percent(60), Balanced).frames(33).under_way(shape(Bands(128), F32, 4), 5, &[OutOfMemory]),
    ask(&SM_89,   &WAN21_BF16, W720,       Plenty,      Fastest).frames(81).under_way(shape(Tiles(256), MIXED, 8), 9, &[OverLimit]),
    ask(&GFX1030, &WAN21_F16,  (320, 320), Plenty,      Balanced).frames(17).under_way(shape(Whole, F16, 4), 5, &[NonFinite]),
    // Outcomes to learn from.
    ask(&GFX1151, &FLUX_BF16,  K1,   Plenty,      Balanced).then(Learn),
    ask(&X86_V4,  &FLUX_F32,   HD,   Percent(50), Leanest).then(Learn),
    ask(&SM_90,   &WAN21_BF16, W480, Plenty,      Fastest).frames(33).then(Learn),
    ask(&X86_V4,  &FLUX_F32,   K1,   Plenty,      Balanced).encode().then(Learn),
];
