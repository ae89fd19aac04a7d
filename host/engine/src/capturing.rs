//! Captures of jobs: what went into a stage and what came out of it, and with them the tensors of
//! layers. A capture that fails never fails the work.

use std::{
    cell::RefCell,
    rc::Rc,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Instant,
};

use serde::Serialize;
use serde_json::Value;
use tch::{Device, Kind, Tensor};
use tilewright_capture::{Capture, Dtype, End as CaptureEnd, StageWriter, TensorView};
use tilewright_nn::{End, LayerCalls, Watch};
use tilewright_plan::Stage;
use tilewright_torch::bytes_of;

use crate::Result;

/// A capture of a run that stages are added to in the order in which they begin.
#[derive(Debug)]
pub struct Capturing {
    capture: Capture,
    begun: AtomicU32,
    /// The error that ended the capture.
    error: Mutex<Option<tilewright_capture::Error>>,
}

impl Capturing {
    /// Adds stages to a capture that was begun.
    pub fn new(capture: Capture) -> Self {
        Self { capture, begun: AtomicU32::new(0), error: Mutex::new(None) }
    }

    /// Finishes the capture; returns the number of its stages.
    ///
    /// # Errors
    /// The first error that ended it: nothing of it is left then.
    pub fn finish(self) -> tilewright_capture::Result<u32> {
        match self.error.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => self.capture.finish().map(|()| self.begun.into_inner()),
        }
    }

    fn note<T>(&self, outcome: tilewright_capture::Result<T>) -> Option<T> {
        match outcome {
            Ok(value) => Some(value),
            Err(error) => {
                let mut first = self.error.lock().unwrap_or_else(PoisonError::into_inner);
                if first.is_none() {
                    tracing::warn!(%error, "the capture has ended");
                    *first = Some(error);
                }
                None
            }
        }
    }
}

/// The inputs of a stage, and what running it again takes beside them.
#[derive(Debug, Default)]
pub(crate) struct Inputs {
    pub tensors: Vec<(String, Tensor)>,
    pub facts: Value,
}

impl Inputs {
    /// Inputs with facts that are written down.
    pub fn new(tensors: Vec<(String, Tensor)>, facts: &impl Serialize) -> Self {
        Self { tensors, facts: serde_json::to_value(facts).unwrap_or_default() }
    }
}

/// A stage at work that is captured.
pub(crate) struct StageCapture {
    capturing: Arc<Capturing>,
    writer: Rc<RefCell<Option<StageWriter>>>,
    calls: Rc<RefCell<LayerCalls>>,
    begun: Instant,
    _watch: Watch,
}

impl StageCapture {
    /// Begins a stage, whose layers are watched from here on.
    pub fn begin(capturing: Arc<Capturing>, stage: Stage) -> Self {
        let number = capturing.begun.fetch_add(1, Ordering::Relaxed) + 1;
        let writer = Rc::new(RefCell::new(capturing.note(capturing.capture.stage(stage, number))));
        let calls: Rc<RefCell<LayerCalls>> = Rc::default();
        let watch = {
            let (capturing, writer, calls) = (Arc::clone(&capturing), Rc::clone(&writer), Rc::clone(&calls));
            Watch::begin(Box::new(move |layer, end, tensor| {
                let mut writer = writer.borrow_mut();
                let Some(stage) = writer.as_mut().filter(|stage| stage.wants(layer)) else { return Ok(()) };
                let call = calls.borrow_mut().number(layer, end);
                let end = if end == End::In { CaptureEnd::In } else { CaptureEnd::Out };
                let Some((dtype, shape, bytes)) = on_host(tensor)? else { return Ok(()) };
                let written = stage.layer(layer, call, end, TensorView { dtype, shape: &shape, bytes: &bytes });
                if capturing.note(written).is_none() {
                    *writer = None;
                }
                Ok(())
            }))
        };
        Self { capturing, writer, calls, begun: Instant::now(), _watch: watch }
    }

    /// Another attempt begins: the layers of the one before don't count.
    pub fn begin_attempt(&self) {
        self.calls.replace(LayerCalls::default());
        if let Some(writer) = self.writer.borrow_mut().as_mut() {
            let _ = self.capturing.note(writer.forget_layers());
        }
    }

    /// Ends the stage with what went in and came out; nothing came out of work that failed.
    pub fn end(self, inputs: &Inputs, outputs: &[(String, Tensor)], record: Option<&impl Serialize>) {
        let Some(mut writer) = self.writer.borrow_mut().take() else { return };
        let elapsed = self.begun.elapsed();
        let written = (|| -> Result<()> {
            write(&inputs.tensors, |views| writer.inputs(views))?;
            write(outputs, |views| writer.outputs(views))?;
            writer.facts(&inputs.facts)?;
            if let Some(record) = record.and_then(|record| serde_json::to_value(record).ok()) {
                writer.record(&record)?;
            }
            Ok(writer.finish(elapsed)?)
        })();
        match written {
            Err(crate::Error::Capture(error)) => drop(self.capturing.note::<()>(Err(error))),
            Err(error) => tracing::warn!(%error, "a stage is not captured"),
            Ok(()) => {}
        }
    }
}

/// A tensor's type, shape and bytes.
type Raw = (Dtype, Vec<usize>, Vec<u8>);

/// A tensor's values in host memory; none of a type that no file has.
fn on_host(tensor: &Tensor) -> tilewright_torch::Result<Option<Raw>> {
    let dtype = match tensor.f_kind()? {
        Kind::Float => Dtype::F32,
        Kind::BFloat16 => Dtype::BF16,
        Kind::Half => Dtype::F16,
        Kind::Double => Dtype::F64,
        Kind::Int64 => Dtype::I64,
        Kind::Uint8 => Dtype::U8,
        _ => return Ok(None),
    };
    let shape = tensor.size().iter().map(|&extent| extent as usize).collect();
    Ok(Some((dtype, shape, bytes_of(&tensor.f_to_device(Device::Cpu)?)?)))
}

fn write(
    tensors: &[(String, Tensor)],
    write: impl FnOnce(&[(&str, TensorView)]) -> tilewright_capture::Result<()>,
) -> Result<()> {
    let mut raw = Vec::new();
    for (name, tensor) in tensors {
        raw.extend(on_host(tensor)?.map(|raw| (name.as_str(), raw)));
    }
    let views: Vec<(&str, TensorView)> =
        raw.iter().map(|(name, (dtype, shape, bytes))| (*name, TensorView { dtype: *dtype, shape, bytes })).collect();
    Ok(write(&views)?)
}
