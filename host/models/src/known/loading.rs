//! Weights of an autoencoder, loaded to a device.

use std::cell::RefCell;

use tch::{Device, Tensor};
use tilewright_nn::{Needed, Source, Torch};
use tilewright_plan::Dtype;
use tilewright_torch::kind;

use super::{Known, LoadStep, Weights};
use crate::{Error, Result};

impl<'a> Weights<'a> {
    /// The weights as a network on a device asks for them.
    pub(crate) fn on<'s>(&self, Destination { device, step }: Destination<'s>) -> OnDevice<'_, 'a, 's> {
        let stored = self.needed.iter().filter_map(|needed| self.known.names.get(&needed.name));
        let all = stored.filter_map(|name| self.known.file.bytes(name)).map(|bytes| bytes.len() as u64).sum();
        OnDevice { known: &self.known, device, progress: RefCell::new(LoadProgress { done: 0, all, step }) }
    }
}

/// The device that weights are loaded to, and perhaps a listener to the load.
pub struct Destination<'s> {
    device: Device,
    step: Option<LoadStep<'s>>,
}

impl<'s> Destination<'s> {
    /// A device, and a listener that is called before each tensor.
    pub fn with_steps(device: Device, step: LoadStep<'s>) -> Self {
        Self { device, step: Some(step) }
    }

    /// The device.
    pub(crate) fn device(&self) -> Device {
        self.device
    }
}

impl From<Device> for Destination<'_> {
    fn from(device: Device) -> Self {
        Self { device, step: None }
    }
}

/// The bytes of a load that are done, all of its bytes, and its listener.
pub(crate) struct LoadProgress<'s> {
    pub done: u64,
    pub all: u64,
    pub step: Option<LoadStep<'s>>,
}

impl LoadProgress<'_> {
    /// Reports the share that is done, before a weight of these bytes is loaded.
    pub fn step(&mut self, bytes: u64) -> Result<()> {
        let share = (self.done as f64 / self.all.max(1) as f64).min(1.0);
        self.done += bytes;
        self.step.as_mut().map_or(Ok(()), |step| step(share))
    }
}

/// Weights of a file, each copied to a device when it is asked for.
pub(crate) struct OnDevice<'w, 'a, 's> {
    known: &'w Known<'a>,
    device: Device,
    // A source is shared between layers.
    progress: RefCell<LoadProgress<'s>>,
}

impl Source<Torch> for OnDevice<'_, '_, '_> {
    fn weight(&self, name: &str, shapes: &[&[i64]], dtype: Dtype) -> tilewright_nn::Result<Tensor> {
        let extents = |shape: &&[i64]| shape.iter().map(|&extent| extent as usize).collect();
        let needed = Needed { name: name.to_owned(), shapes: shapes.iter().map(extents).collect() };
        let (name, found) = self.known.locate(&needed)?;
        self.progress.borrow_mut().step(self.known.file.bytes(name).map_or(0, |bytes| bytes.len() as u64))?;
        let tensor = self.known.file.load(name, found, kind(dtype)?, self.device).map_err(Error::from)?;
        Ok(if found == needed.shapes[0] { tensor } else { tensor.f_reshape(shapes[0])? })
    }
}
