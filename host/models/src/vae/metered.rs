//! The costs of passes on a measured device: the network runs on a meter, and the most bytes held
//! and the time are read off.

use std::{
    collections::HashMap,
    sync::{Mutex, OnceLock, PoisonError},
};

use tilewright_kernels::{Kernels, Measured};
use tilewright_nn::{ComputeFormat, Costs, LayerSeconds, Meter, PlanFormat};
use tilewright_plan::Dtype;

use super::HalfConfig;
use crate::{
    Result,
    metered::{self, Built},
};

/// The cost of a pass of pictures, or of a clip.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pass {
    /// The most bytes held at once, input and weights aside: the output is included, or the causal
    /// state and the frames of a clip that are on their way out.
    pub peak_bytes: u64,
    /// Bytes of a clip's causal state between two pushes, when it has grown to its end.
    pub state_bytes: u64,
    /// The time that it takes.
    pub seconds: f64,
}

impl Pass {
    /// More than there is of anything.
    pub(crate) const ENDLESS: Self = Self { peak_bytes: u64::MAX / 4, state_bytes: 0, seconds: f64::INFINITY };
}

/// Passes whose cost is remembered, of each format.
const REMEMBERED: usize = 4096;

/// A network that can be metered, and the formats that a device was measured in.
#[derive(Debug)]
pub struct Metered<C: HalfConfig> {
    config: C,
    course: OnceLock<C::Course>,
    formats: Vec<Format<C>>,
}

/// A format on a meter.
#[derive(Debug)]
struct Format<C: HalfConfig> {
    format: PlanFormat,
    compute: ComputeFormat,
    costs: Costs,
    /// Built when it is first asked for.
    network: Mutex<Option<Built<C::Network<Meter>>>>,
    passes: Mutex<HashMap<C::Extent, Pass>>,
}

impl<C: HalfConfig> Metered<C> {
    /// Takes every precision and memory order that the device was measured in.
    pub fn new(config: &C, measured: &Measured, kernels: &Kernels) -> Self {
        let mut formats = Vec::new();
        for speed in &measured.speeds {
            for format in PlanFormat::all(speed.dtype, speed.layout, kernels) {
                let Ok(compute) = format.compute() else { continue };
                let costs = Costs::new(speed, measured, kernels);
                formats.push(Format { format, compute, costs, network: Mutex::default(), passes: Mutex::default() });
            }
        }
        Self { config: config.clone(), course: OnceLock::new(), formats }
    }

    /// The types that convolutions can run in.
    pub fn dtypes(&self) -> Vec<Dtype> {
        let mut dtypes: Vec<Dtype> = self.formats.iter().map(|format| format.format.precision.dtype()).collect();
        dtypes.dedup();
        dtypes
    }

    /// The cost of a pass. That of an equal pass is remembered.
    ///
    /// # Errors
    /// One line, for the policy, if the device was not measured in the format, or the
    /// architecture's widths don't go together.
    pub fn pass(&self, format: PlanFormat, extent: &C::Extent) -> std::result::Result<Pass, String> {
        let format = self.find(format).ok_or_else(|| format!("{format} can't be run on this device"))?;
        let passes = || format.passes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pass) = passes().get(extent) {
            return Ok(*pass);
        }
        let run = |meter: &Meter, built: &Built<_>| self.config.pass(&built.network, meter, extent, &self.course);
        let pass = self.with(format, run).map_err(|error| error.to_string())?;
        let mut passes = passes();
        if passes.len() >= REMEMBERED {
            passes.clear();
        }
        passes.insert(*extent, pass);
        Ok(pass)
    }

    /// The time of each layer of a pass.
    ///
    /// # Errors
    /// As [`Self::pass`].
    pub fn layers(&self, format: PlanFormat, extent: &C::Extent) -> std::result::Result<Vec<LayerSeconds>, String> {
        let format = self.find(format).ok_or_else(|| format!("{format} can't be run on this device"))?;
        // The network of the others counts on a meter of its own.
        let meter = Meter::new(format.compute, format.costs);
        let run = || -> Result<Vec<LayerSeconds>> {
            let network = metered::build(&meter, |scope| self.config.build(scope))?.network;
            meter.count_layers();
            self.config.pass(&network, &meter, extent, &self.course)?;
            Ok(meter.layers())
        };
        run().map_err(|error| error.to_string())
    }

    /// Bytes of the weights as they are laid out; none if the device was not measured in the
    /// format.
    pub fn weight_bytes(&self, format: PlanFormat) -> Option<u64> {
        self.with(self.find(format)?, |_, built| Ok(built.weight_bytes)).ok()
    }

    fn find(&self, format: PlanFormat) -> Option<&Format<C>> {
        self.formats.iter().find(|known| known.format == format)
    }

    /// Looks at the network of a format, on a meter that has counted nothing else.
    fn with<T>(
        &self,
        format: &Format<C>,
        look: impl FnOnce(&Meter, &Built<C::Network<Meter>>) -> Result<T>,
    ) -> Result<T> {
        let meter = Meter::new(format.compute, format.costs);
        let mut network = format.network.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *network {
            Some(built) => look(&meter, built),
            none => look(&meter, none.insert(metered::build(&meter, |scope| self.config.build(scope))?)),
        }
    }

    /// The number of passes that are remembered.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.formats.iter().map(|format| format.passes.lock().unwrap().len()).sum()
    }
}
