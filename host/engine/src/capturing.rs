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
use tilewright_capture::{Capture, Dtype, End as CaptureEnd, Manifest, StageWriter, TensorView};
use tilewright_nn::{End, LayerCalls, Watch};
use tilewright_plan::Stage;
use tilewright_torch::bytes_of;

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

    /// Finishes the capture; returns what is in it. One of no stage is none: nothing is left of it.
    ///
    /// # Errors
    /// The first error that ended it: nothing of it is left then.
    pub fn finish(self) -> tilewright_capture::Result<Option<Manifest>> {
        match self.error.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None if self.begun.into_inner() == 0 => Ok(None),
            None => self.capture.finish().map(Some),
        }
    }

    fn note<T>(&self, outcome: tilewright_capture::Result<T>) -> Option<T> {
        match outcome {
            Ok(value) => Some(value),
            Err(error) => {
                let mut first = self.error.lock().unwrap_or_else(PoisonError::into_inner);
                if first.is_none() {
                    tracing::debug!(%error, "the capture has ended");
                    *first = Some(error);
                }
                None
            }
        }
    }
}

/// The fact of a stage that more than one plan had a part in: a replay would follow one of them.
pub const BY_SEVERAL_PLANS: &str = "by_several_plans";

/// The inputs of a stage, and what running it again takes beside them.
#[derive(Debug, Default)]
pub(crate) struct Inputs {
    pub values: Values,
    pub facts: Value,
}

impl Inputs {
    /// Inputs with facts that are written down.
    pub fn new(values: Values, facts: &impl Serialize) -> Self {
        Self { values, facts: serde_json::to_value(facts).unwrap_or_default() }
    }
}

/// A stage at work that is captured.
pub(crate) struct StageCapture {
    capturing: Arc<Capturing>,
    writer: Rc<RefCell<Option<StageWriter>>>,
    calls: Rc<RefCell<LayerCalls>>,
    begun: Instant,
    by_several_plans: bool,
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
                let written = Raw::of(tensor).map_err(unreadable(layer)).and_then(|raw| match raw {
                    Some(raw) => stage.layer(layer, call, end, raw.view()),
                    None => Ok(false),
                });
                if capturing.note(written).is_none() {
                    *writer = None;
                }
                Ok(())
            }))
        };
        Self { capturing, writer, calls, begun: Instant::now(), by_several_plans: false, _watch: watch }
    }

    /// Another attempt begins, with nothing of the one before, whose layers don't count.
    pub fn begin_anew(&self) {
        self.calls.replace(LayerCalls::default());
        if let Some(writer) = self.writer.borrow_mut().as_mut() {
            let _ = self.capturing.note(writer.forget_layers());
        }
    }

    /// Another plan goes on where one before it came to: no plan alone makes what comes out.
    pub fn go_on(&mut self) {
        self.by_several_plans = true;
    }

    /// Ends the stage with what went in and came out; nothing came out of work that failed.
    pub fn end(
        self,
        inputs: tilewright_capture::Result<Inputs>,
        outputs: tilewright_capture::Result<Values>,
        record: Option<&impl Serialize>,
    ) {
        let Some(mut writer) = self.writer.borrow_mut().take() else { return };
        let elapsed = self.begun.elapsed();
        let written = (|| {
            let Inputs { values, mut facts } = inputs?;
            if let (true, Value::Object(facts)) = (self.by_several_plans, &mut facts) {
                facts.insert(BY_SEVERAL_PLANS.into(), true.into());
            }
            writer.inputs(&values.views())?;
            writer.outputs(&outputs?.views())?;
            writer.facts(&facts)?;
            if let Some(record) = record.and_then(|record| serde_json::to_value(record).ok()) {
                writer.record(&record)?;
            }
            writer.finish(elapsed)
        })();
        self.capturing.note(written);
    }
}

/// The error of a tensor that can't be brought to host memory.
fn unreadable(name: &str) -> impl FnOnce(tilewright_torch::Error) -> tilewright_capture::Error {
    let name = name.to_owned();
    move |error| tilewright_capture::Error::Tensor { name, reason: error.to_string() }
}

/// A tensor's values in host memory that is not libtorch's.
#[derive(Debug)]
pub(crate) struct Raw {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Raw {
    /// A tensor's values; none of a type that no file has.
    fn of(tensor: &Tensor) -> tilewright_torch::Result<Option<Self>> {
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
        Ok(Some(Self { dtype, shape, bytes: bytes_of(&tensor.f_to_device(Device::Cpu)?)? }))
    }

    fn view(&self) -> TensorView<'_> {
        TensorView { dtype: self.dtype, shape: &self.shape, bytes: &self.bytes }
    }
}

/// Values by name.
#[derive(Debug, Default)]
pub(crate) struct Values(Vec<(String, Raw)>);

impl Values {
    /// Adds a tensor's values.
    ///
    /// # Errors
    /// The tensor can't be brought to host memory.
    pub fn add(&mut self, name: impl Into<String>, tensor: &Tensor) -> tilewright_capture::Result<()> {
        let name = name.into();
        self.0.extend(Raw::of(tensor).map_err(unreadable(&name))?.map(|raw| (name, raw)));
        Ok(())
    }

    /// The values of tensors.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn of<'t>(tensors: impl IntoIterator<Item = (String, &'t Tensor)>) -> tilewright_capture::Result<Self> {
        let mut values = Self::default();
        for (name, tensor) in tensors {
            values.add(name, tensor)?;
        }
        Ok(values)
    }

    fn views(&self) -> Vec<(&str, TensorView<'_>)> {
        self.0.iter().map(|(name, raw)| (name.as_str(), raw.view())).collect()
    }
}

/// Values that go by, if they are kept for a capture.
#[derive(Debug, Default)]
pub(crate) struct Passing(Option<tilewright_capture::Result<Values>>);

impl Passing {
    /// Keeps what goes by from here on.
    pub fn begin(&mut self) {
        self.0 = Some(Ok(Values::default()));
    }

    /// Keeps a tensor's values, if they are wanted. An error is the capture's, not the work's.
    pub fn keep(&mut self, name: impl FnOnce(usize) -> String, tensor: &Tensor) {
        if let Some(Ok(values)) = &mut self.0
            && let Err(error) = values.add(name(values.0.len()), tensor)
        {
            self.0 = Some(Err(error));
        }
    }

    /// All that was kept.
    ///
    /// # Errors
    /// The first error of [`Self::keep`].
    pub fn take(&mut self) -> tilewright_capture::Result<Values> {
        self.0.take().unwrap_or_else(|| Ok(Values::default()))
    }
}
