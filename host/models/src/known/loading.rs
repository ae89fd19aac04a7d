//! Weights of an autoencoder, loaded to a device.

use std::cell::{Cell, RefCell};

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
        let all_bytes = stored.filter_map(|name| self.known.file.bytes(name)).map(<[u8]>::len).sum();
        OnDevice { known: &self.known, device, step: RefCell::new(step), all_bytes, done_bytes: Cell::new(0) }
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

/// Weights of a file, each copied to a device when it is asked for.
pub(crate) struct OnDevice<'w, 'a, 's> {
    known: &'w Known<'a>,
    device: Device,
    // A source is shared between layers.
    step: RefCell<Option<LoadStep<'s>>>,
    /// Stored bytes of all weights.
    all_bytes: usize,
    /// Stored bytes of those that were asked for.
    done_bytes: Cell<usize>,
}

impl OnDevice<'_, '_, '_> {
    fn step(&self, bytes: usize) -> Result<()> {
        let done = self.done_bytes.replace(self.done_bytes.get() + bytes);
        let share = (done as f64 / self.all_bytes.max(1) as f64).min(1.0);
        self.step.borrow_mut().as_mut().map_or(Ok(()), |step| step(share))
    }
}

impl Source<Torch> for OnDevice<'_, '_, '_> {
    fn weight(&self, name: &str, shapes: &[&[i64]], dtype: Dtype) -> tilewright_nn::Result<Tensor> {
        let extents = |shape: &&[i64]| shape.iter().map(|&extent| extent as usize).collect();
        let needed = Needed { name: name.to_owned(), shapes: shapes.iter().map(extents).collect() };
        let (name, found) = self.known.locate(&needed)?;
        self.step(self.known.file.bytes(name).map_or(0, <[u8]>::len))?;
        let tensor = self.known.file.load(name, found, kind(dtype)?, self.device).map_err(Error::from)?;
        Ok(if found == needed.shapes[0] { tensor } else { tensor.f_reshape(shapes[0])? })
    }
}
