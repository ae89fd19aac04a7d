//! The samplers that ComfyUI knows.

use std::{fmt, str::FromStr};

use tilewright_plan::words::unknown;

use super::{Method, unipc::Form};

/// The noise of a sampler's steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoiseKind {
    /// None.
    None,
    /// Each draw by itself.
    Independent,
    /// The differences of one Brownian path over sigma, so that steps of any length meet the same
    /// path.
    Brownian,
}

/// A trait of a sampler besides its method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trait {
    /// It asks for a step more, and leaves the last sigma above 0 out.
    SkipsLast,
    /// It reads the negative conditioning's latents on their own, also at a guidance of 1.
    NeedsNegative,
    /// The kept part of a mask has noise of its own, by the next seed.
    OtherMaskNoise,
    /// It divides by the signal of the first latents.
    NeedsSignal,
}

/// A row of the table.
struct Row {
    name: &'static str,
    method: Method,
    noise: NoiseKind,
    /// The most calls of the model in a step, and the most latents that it leaves to the next one.
    most: [u32; 2],
    traits: &'static [Trait],
}

const fn row(name: &'static str, method: Method, noise: NoiseKind, most: [u32; 2], traits: &'static [Trait]) -> Row {
    Row { name, method, noise, most, traits }
}

use Method::{
    CfgPpHistory, Ddpm, Deis, Dpm2, Dpm2Ancestral, DpmAdaptive, DpmFast, Dpmpp2m, Dpmpp2mCfgPp, Dpmpp2mSde,
    Dpmpp2sAncestral, Dpmpp2sAncestralCfgPp, Dpmpp3mSde, DpmppSde, ErSde, Euler, EulerAncestral, EulerCfgPp,
    GradientEstimation, Heun, HeunPp2, Ipndm, IpndmV, Lcm, Lms, ResMultistep, SaSolver, Seeds2, Seeds3, UniPc,
};
use NoiseKind::{Brownian, Independent, None as Silent};
use Trait::{NeedsNegative, NeedsSignal, OtherMaskNoise, SkipsLast};

const HEUN_X0: Method = Seeds2 { eta: 0.0, ratio: 1.0, second_order: true };
const HEUN_X0_SDE: Method = Seeds2 { eta: 1.0, ratio: 1.0, second_order: true };
const SEEDS_2: Method = Seeds2 { eta: 1.0, ratio: 0.5, second_order: false };
const MIDPOINT_SDE: Method = Dpmpp2mSde { heun: false };
const HEUN_SDE: Method = Dpmpp2mSde { heun: true };

const fn res(eta: f64, cfg_pp: bool) -> Method {
    ResMultistep { eta, cfg_pp }
}

/// In ComfyUI's order. Its forms for GPUs differ by the device of the noise alone, and noise is a
/// CPU's here.
static ROWS: [Row; 45] = [
    row("euler", Euler, Silent, [1, 0], &[]),
    row("euler_cfg_pp", EulerCfgPp { eta: 0.0 }, Silent, [1, 0], &[NeedsNegative]),
    row("euler_ancestral", EulerAncestral, Independent, [1, 0], &[]),
    row("euler_ancestral_cfg_pp", EulerCfgPp { eta: 1.0 }, Independent, [1, 0], &[NeedsNegative]),
    row("heun", Heun, Silent, [2, 0], &[]),
    row("heunpp2", HeunPp2, Silent, [3, 0], &[]),
    row("exp_heun_2_x0", HEUN_X0, Silent, [2, 0], &[NeedsSignal]),
    row("exp_heun_2_x0_sde", HEUN_X0_SDE, Independent, [2, 0], &[NeedsSignal]),
    row("dpm_2", Dpm2, Silent, [2, 0], &[SkipsLast]),
    row("dpm_2_ancestral", Dpm2Ancestral, Independent, [2, 0], &[SkipsLast]),
    row("lms", Lms, Silent, [1, 3], &[]),
    row("dpm_fast", DpmFast, Silent, [3, 0], &[]),
    row("dpm_adaptive", DpmAdaptive, Silent, [3, 1], &[]),
    row("dpmpp_2s_ancestral", Dpmpp2sAncestral, Independent, [2, 0], &[]),
    row("dpmpp_2s_ancestral_cfg_pp", Dpmpp2sAncestralCfgPp, Independent, [2, 0], &[NeedsNegative]),
    row("dpmpp_sde", DpmppSde, Brownian, [2, 0], &[NeedsSignal]),
    row("dpmpp_sde_gpu", DpmppSde, Brownian, [2, 0], &[NeedsSignal]),
    row("dpmpp_2m", Dpmpp2m, Silent, [1, 1], &[]),
    row("dpmpp_2m_cfg_pp", Dpmpp2mCfgPp, Silent, [1, 1], &[NeedsNegative]),
    row("dpmpp_2m_sde", MIDPOINT_SDE, Brownian, [1, 1], &[NeedsSignal]),
    row("dpmpp_2m_sde_gpu", MIDPOINT_SDE, Brownian, [1, 1], &[NeedsSignal]),
    row("dpmpp_2m_sde_heun", HEUN_SDE, Brownian, [1, 1], &[NeedsSignal]),
    row("dpmpp_2m_sde_heun_gpu", HEUN_SDE, Brownian, [1, 1], &[NeedsSignal]),
    row("dpmpp_3m_sde", Dpmpp3mSde, Brownian, [1, 2], &[NeedsSignal]),
    row("dpmpp_3m_sde_gpu", Dpmpp3mSde, Brownian, [1, 2], &[NeedsSignal]),
    row("ddpm", Ddpm, Independent, [1, 0], &[]),
    row("lcm", Lcm, Independent, [1, 0], &[]),
    row("ipndm", Ipndm, Silent, [1, 3], &[]),
    row("ipndm_v", IpndmV, Silent, [1, 3], &[]),
    row("deis", Deis, Silent, [1, 2], &[]),
    row("cfgpp_ud10_ab", CfgPpHistory, Silent, [1, 3], &[NeedsNegative]),
    row("res_multistep", res(0.0, false), Silent, [1, 1], &[]),
    row("res_multistep_cfg_pp", res(0.0, true), Silent, [1, 1], &[NeedsNegative]),
    row("res_multistep_ancestral", res(1.0, false), Independent, [1, 1], &[]),
    row("res_multistep_ancestral_cfg_pp", res(1.0, true), Independent, [1, 1], &[NeedsNegative]),
    row("gradient_estimation", GradientEstimation { cfg_pp: false }, Silent, [1, 1], &[]),
    row("gradient_estimation_cfg_pp", GradientEstimation { cfg_pp: true }, Silent, [1, 1], &[NeedsNegative]),
    row("er_sde", ErSde, Independent, [1, 2], &[NeedsSignal]),
    row("seeds_2", SEEDS_2, Independent, [2, 0], &[NeedsSignal]),
    row("seeds_3", Seeds3, Independent, [3, 0], &[NeedsSignal]),
    row("sa_solver", SaSolver { evaluates_twice: false }, Independent, [1, 5], &[NeedsSignal]),
    row("sa_solver_pece", SaSolver { evaluates_twice: true }, Independent, [2, 5], &[NeedsSignal]),
    row("ddim", Euler, Silent, [1, 0], &[OtherMaskNoise]),
    row("uni_pc", UniPc(Form { second: false, order: 3, native: false }), Silent, [1, 3], &[SkipsLast]),
    row("uni_pc_bh2", UniPc(Form { second: true, order: 3, native: false }), Silent, [1, 3], &[SkipsLast]),
];

/// diffusers' own, under the names that stand for them with its conventions.
static NATIVE: [Row; 3] = [
    row("uni_pc", UniPc(Form { second: true, order: 2, native: true }), Silent, [1, 3], &[]),
    row("uni_pc_bh2", UniPc(Form { second: true, order: 2, native: true }), Silent, [1, 3], &[]),
    row("dpmpp_2m", Method::Dpmpp2mNative, Silent, [1, 1], &[]),
];

/// The samplers that ComfyUI lacks.
const BEYOND: [&str; 1] = ["cfgpp_ud10_ab"];

/// A sampler, by its place in the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sampler(usize);

impl fmt::Display for Sampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().name)
    }
}

impl FromStr for Sampler {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = ROWS.iter().position(|row| row.name == text);
        known.map(Self).ok_or_else(|| unknown("sampler", text, "", Self::names()))
    }
}

impl Sampler {
    /// Every sampler.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..ROWS.len()).map(Self)
    }

    /// The names of all samplers.
    pub fn names() -> impl Iterator<Item = &'static str> {
        ROWS.iter().map(|row| row.name)
    }

    fn row(self) -> &'static Row {
        ROWS.iter().chain(&NATIVE).nth(self.0).unwrap_or(&ROWS[0])
    }

    /// True if ComfyUI has it under its name.
    pub fn is_comfyui(self) -> bool {
        !BEYOND.contains(&self.row().name)
    }

    /// diffusers' sampler of the same name, for models of flows; the same one if it has none.
    #[must_use]
    pub fn native(self) -> Self {
        let native = NATIVE.iter().position(|row| row.name == self.row().name);
        native.map_or(self, |place| Self(ROWS.len() + place))
    }

    /// True if it is diffusers' own, which ComfyUI has another sampler of that name for.
    pub fn is_native(self) -> bool {
        self.0 >= ROWS.len()
    }

    pub(crate) fn method(self) -> Method {
        self.row().method
    }

    /// The most calls of the model in a step.
    pub fn calls(self) -> u32 {
        self.row().most[0]
    }

    /// The most latents that a step leaves to the next one, besides the sample's own.
    pub fn remembered(self) -> u32 {
        self.row().most[1]
    }

    /// The noise of its steps.
    pub fn noise(self) -> NoiseKind {
        self.row().noise
    }

    /// True if it asks for a step more, and leaves the last sigma above 0 out.
    pub fn skips_last(self) -> bool {
        self.row().traits.contains(&SkipsLast)
    }

    /// True if it reads the negative conditioning's latents on their own, also at a guidance of 1.
    pub fn needs_negative(self) -> bool {
        self.row().traits.contains(&NeedsNegative)
    }

    /// True if it divides by the signal of the first latents.
    pub(super) fn needs_signal(self) -> bool {
        self.row().traits.contains(&NeedsSignal)
    }

    /// True if the kept part of a mask has noise of its own, by the next seed.
    pub fn has_other_mask_noise(self) -> bool {
        self.row().traits.contains(&OtherMaskNoise)
    }
}
