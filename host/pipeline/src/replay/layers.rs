//! Layers of a capture beside those of another run, compared while that runs.

use std::{cell::RefCell, collections::HashMap, rc::Rc, vec::IntoIter};

use serde::Serialize;
use tch::{Device, Tensor};
use tilewright_capture::{
    Captured, End as CapturedEnd, FileEntry, LayerPattern, LayerTensor, StageEntry, Tensor as Stored,
};
use tilewright_engine::{LayerCalls, LayerEnd, Watch};

use super::comparison::{TensorDifference, tensor};
use crate::Result;

/// The layers of a stage, compared.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LayersCompared {
    /// Tensors that were compared.
    pub compared: u64,
    /// Captured tensors that the run had none for: another plan divides the work otherwise.
    pub missing: u64,
    /// The first tensor that differs by more than the bound.
    pub first: Option<LayerDifference>,
    /// The tensor that differs most, over its own values.
    pub worst: Option<LayerDifference>,
}

/// The difference of a layer's tensor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerDifference {
    /// The layer, by the name that its weights begin with.
    pub layer: String,
    /// The number of its call in the stage, from 0.
    pub call: u32,
    /// `in` or `out`.
    pub end: &'static str,
    /// The largest difference over the largest captured value; none if the values can't be
    /// compared.
    pub relative: Option<f64>,
    /// The difference.
    pub difference: TensorDifference,
}

type Key = (String, u32, CapturedEnd);

/// Captured tensors in their order, which is mostly that of the run.
struct Stream {
    captured: Captured,
    rest: IntoIter<FileEntry>,
    pattern: Option<LayerPattern>,
    /// The files of those that the run has not come to.
    passed: HashMap<Key, FileEntry>,
    found: LayersCompared,
    calls: LayerCalls,
    bound: f64,
    error: Option<crate::Error>,
}

/// A comparison under way.
pub(super) struct Comparing {
    stream: Option<Rc<RefCell<Stream>>>,
    watch: Option<Watch>,
}

impl Comparing {
    /// Compares the layers that this thread runs from here on.
    pub fn begin(captured: &Captured, entry: &StageEntry, bound: f64) -> Self {
        let files = captured.layer_files(entry);
        if files.is_empty() {
            return Self { stream: None, watch: None };
        }
        let stream = Rc::new(RefCell::new(Stream {
            // The watch outlives every borrow, so that it has a capture of its own.
            captured: captured.clone(),
            rest: files.into_iter(),
            pattern: captured.manifest().layers.as_ref().and_then(|pattern| pattern.parse().ok()),
            passed: HashMap::new(),
            found: LayersCompared::default(),
            calls: LayerCalls::default(),
            bound,
            error: None,
        }));
        let seen = Rc::clone(&stream);
        let watch = Watch::begin(Box::new(move |layer, end, tensor| {
            let mut stream = seen.borrow_mut();
            if stream.error.is_none()
                && let Err(error) = stream.compare(layer, end, tensor)
            {
                stream.error = Some(error);
            }
            Ok(())
        }));
        Self { stream: Some(stream), watch: Some(watch) }
    }

    /// The comparison; none if no layer was captured.
    ///
    /// # Errors
    /// The capture can't be read.
    pub fn finish(self) -> Result<Option<LayersCompared>> {
        drop(self.watch);
        let Some(stream) = self.stream else { return Ok(None) };
        let mut stream = stream.borrow_mut();
        if let Some(error) = stream.error.take() {
            return Err(error);
        }
        let left = stream.rest.len() as u64;
        stream.found.missing = left + stream.passed.len() as u64;
        Ok(Some(std::mem::take(&mut stream.found)))
    }
}

impl Stream {
    fn compare(&mut self, layer: &str, end: LayerEnd, found: &Tensor) -> Result<()> {
        if self.pattern.as_ref().is_some_and(|pattern| !pattern.matches(layer)) {
            return Ok(());
        }
        let call = self.calls.number(layer, end);
        let end = if end == LayerEnd::In { CapturedEnd::In } else { CapturedEnd::Out };
        let Some(stored) = self.take(&(layer.to_owned(), call, end))? else { return Ok(()) };
        let Some(captured) = tensor(&stored)? else { return Ok(()) };
        let found = found.f_to_device(Device::Cpu).map_err(tilewright_torch::Error::from);
        let found = found.map_err(tilewright_engine::Error::from)?;
        let difference = TensorDifference::between(layer, Some(&captured), Some(&found))?;
        let relative = difference.relative();
        let end = if end == CapturedEnd::In { "in" } else { "out" };
        let row = || LayerDifference {
            layer: layer.to_owned(),
            call,
            end,
            relative: relative.is_finite().then_some(relative),
            difference: difference.clone(),
        };
        self.found.compared += 1;
        if relative > self.bound && self.found.first.is_none() {
            self.found.first = Some(row());
        }
        let worst = self.found.worst.as_ref().map_or(0.0, |worst| worst.difference.relative());
        if relative > worst {
            self.found.worst = Some(row());
        }
        Ok(())
    }

    /// The captured tensor of a name, if there is one.
    fn take(&mut self, key: &Key) -> Result<Option<Stored>> {
        if let Some(file) = self.passed.remove(key) {
            return Ok(Some(self.captured.layer(&file)?.tensor));
        }
        // A tensor that the limit left out would read all of the rest.
        const AHEAD: usize = 64;
        for _ in 0..AHEAD {
            let Some(next) = self.rest.next() else { return Ok(None) };
            let LayerTensor { layer, call, end, tensor } = self.captured.layer(&next)?;
            if (&layer, call, end) == (&key.0, key.1, key.2) {
                return Ok(Some(tensor));
            }
            self.passed.insert((layer, call, end), next);
        }
        Ok(None)
    }
}
