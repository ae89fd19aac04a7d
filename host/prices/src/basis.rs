//! [`Basis`]: all that prices are made from.

use std::{fmt::Debug, sync::Arc};

use serde::{Deserialize, Serialize};
use tilewright_kernels::{Kernels, Measured};
use tilewright_plan::{CONVOLUTION, Device as Facts, Dtype, HostMemory, PlanOption, Stage, records::fault_of_device};

use crate::{Error, Result};

/// The share of free memory that is used if nobody sets a limit.
const SHARE_OF_FREE: f64 = 0.8;

/// Tells which attention of several heads is fused on a device.
pub trait Attention: Debug + Send + Sync {
    /// True if it is fused, with heads of this width, in this type.
    fn is_fused(&self, width: i64, dtype: Dtype) -> bool;

    /// False if the answer for this width was not asked for where it could have been.
    fn is_known(&self, _width: i64) -> bool {
        true
    }
}

/// Attention that is fused at every width and in every type, as it is on CPUs.
#[derive(Clone, Copy, Debug)]
pub struct Everywhere;

impl Attention for Everywhere {
    fn is_fused(&self, _: i64, _: Dtype) -> bool {
        true
    }
}

/// Attention at the widths that were tried on a device. At any other one it counts as not fused,
/// which takes more memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Widths(Vec<Width>);

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Width {
    width: i64,
    dtype: Dtype,
    fused: bool,
}

impl Widths {
    /// The widths of heads that transformers have: the published ones, and the small ones that come
    /// along with this project.
    pub const TRIED: [i64; 7] = [32, 40, 64, 72, 80, 96, 128];

    /// Tries attention at each width in each type.
    pub fn of(attention: &dyn Attention) -> Self {
        let of = |width| {
            let dtypes = [Dtype::F32, Dtype::Bf16, Dtype::F16];
            dtypes.map(|dtype| Width { width, dtype, fused: attention.is_fused(width, dtype) })
        };
        Self(Self::TRIED.into_iter().flat_map(of).collect())
    }
}

impl Attention for Widths {
    fn is_fused(&self, width: i64, dtype: Dtype) -> bool {
        self.0.iter().any(|tried| tried.width == width && tried.dtype == dtype && tried.fused)
    }

    fn is_known(&self, width: i64) -> bool {
        // A description that is written again has no other widths either.
        !Self::TRIED.contains(&width) || self.0.iter().any(|tried| tried.width == width)
    }
}

/// All that prices are made from: a device's facts as they are now, its measured speeds and its
/// kernels.
#[derive(Clone, Debug)]
pub struct Basis {
    /// The facts that policies receive.
    pub facts: Facts,
    /// The memory of the host, and its way to the device.
    pub host: HostMemory,
    /// Measured speeds.
    pub measured: Measured,
    /// The kernels of the process that does the work.
    pub kernels: Kernels,
    /// The device has products in FP8.
    pub fp8_products: bool,
    /// The attention of several heads that the device fuses.
    pub attention: Arc<dyn Attention>,
}

/// The part of a basis that a device's description has beside its facts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Described {
    /// Everything about the device, its driver and libtorch that changes how fast it is.
    pub fingerprint: String,
    /// Measured speeds.
    pub measured: Measured,
    /// [`Measured::large_convolutions`], which is no measurement.
    pub large_convolutions: bool,
    /// The kernels of the process.
    pub kernels: Kernels,
    /// The device has products in FP8.
    pub fp8_products: bool,
    /// The attention of several heads that a GPU fuses; none of a CPU, which fuses all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heads: Option<Widths>,
    /// Memory of the host.
    pub host: HostMemory,
}

/// The parts of a description that [`Basis::of_json`] reads; other keys are left alone.
#[derive(Deserialize)]
struct Description {
    device: Facts,
    #[serde(flatten)]
    described: Option<Described>,
}

impl Basis {
    /// Reads the JSON that `tilewright device --json` writes. Returns the device's fingerprint,
    /// too: a history's records are of one.
    ///
    /// # Errors
    /// [`Error::Device`] if it is no such description, is an earlier program's, or makes no sense.
    pub fn of_json(text: &str) -> Result<(Self, String)> {
        let refused = |reason: &str| {
            Error::Device(format!("the device's description {reason}: write it with `tilewright device --json`"))
        };
        let Description { device, described } =
            serde_json::from_str(text).map_err(|error| refused(&format!("can't be read ({error})")))?;
        if let Some(fault) = fault_of_device(&device) {
            return Err(refused(&format!("makes no sense ({fault})")));
        }
        let described = described.ok_or_else(|| refused("has no measurements, or those of another release"))?;
        let Described { fingerprint, measured, large_convolutions, kernels, fp8_products, heads, host } = described;
        if !measured.is_sound() || kernels.block < 1 || kernels.threads < 1 {
            return Err(refused("has speeds that no device has"));
        }
        let attention: Arc<dyn Attention> = match heads {
            Some(widths) => Arc::new(widths),
            None if kernels.on_cpu => Arc::new(Everywhere),
            None => return Err(refused("lacks the widths of attention that the GPU fuses")),
        };
        let measured = Measured { large_convolutions, ..measured };
        Ok((Self { facts: device, host, measured, kernels, fp8_products, attention }, fingerprint))
    }

    /// The part of the description that `tilewright device --json` writes beside the facts.
    pub fn described(&self, fingerprint: String) -> Described {
        Described {
            fingerprint,
            measured: self.measured.clone(),
            large_convolutions: self.measured.large_convolutions,
            kernels: self.kernels,
            fp8_products: self.fp8_products,
            heads: (!self.kernels.on_cpu).then(|| Widths::of(&*self.attention)),
            host: self.host,
        }
    }

    /// The same device with other memory that is free, of its own and of the host, in bytes.
    #[must_use]
    pub fn with_memory(mut self, free_bytes: Option<u64>, host_total: Option<u64>, host_free: Option<u64>) -> Self {
        self.facts.free_bytes = free_bytes.unwrap_or(self.facts.free_bytes);
        self.host.total_bytes = host_total.unwrap_or(self.host.total_bytes);
        self.host.free_bytes = host_free.unwrap_or(self.host.free_bytes);
        self
    }

    /// The memory limit in bytes if nobody sets one.
    pub fn default_limit(&self) -> u64 {
        default_limit(&self.facts)
    }

    /// The options of decodes or encodes that the device has.
    pub(crate) fn vae_options(&self, stage: Stage) -> Vec<PlanOption> {
        let is_filtered = self.kernels.has_products(Dtype::F32);
        PlanOption::offered(stage, |name| name == CONVOLUTION && is_filtered, |_| false)
    }

    /// True if tensors on the device take none of the host's memory, so that they can wait there.
    pub(crate) fn has_own_memory(&self) -> bool {
        !self.kernels.on_cpu && !self.facts.unified
    }
}

/// The memory limit in bytes of a device for which nobody sets one.
pub fn default_limit(facts: &Facts) -> u64 {
    (facts.free_bytes as f64 * SHARE_OF_FREE) as u64
}
