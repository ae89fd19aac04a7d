//! The prices of a sample's plans: the network's own `forward` on a meter.

mod metered_step;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tilewright_kernels::Kernels;
use tilewright_models::{ComputeFormat, DenoiserConfig, DenoiserFile, transformer::Residency};
use tilewright_nn::{Costs, LayerSeconds, Meter};
use tilewright_plan::{
    Attention, Denoise, DenoiseCapabilities, DenoiseCost, DenoiseOutcome, DenoisePlan, DenoiseRecord, DenoiserModel,
    Dtype, FP8_SUMS, LEAST_QUERIES, Layout, MOST_BLOCKS_AHEAD, MOST_PARTS, PlanOption, Products, QUICK, Release, Stage,
    Trial, WeightForm, Work,
};

use super::{Denoiser, passes::passes, shape::SampleShape};
use crate::{
    Basis, Error, Result,
    costs::{DTYPES, Prices, loading_bytes, ratio},
};

/// The blocks that a streamed network holds at once besides those that are read ahead: the one at
/// work, and the one before, which is given back meanwhile.
const AT_WORK: u64 = 2;

/// The times that libtorch's products go over weights that lie in memory in their type: measured on
/// blocks of Flux and WAN of the published widths.
pub(crate) const EXPANDED_TRAVERSALS: f64 = 7.0;

/// The share of a block's weights that a feed-forward layer in parts reads again for each part:
/// measured likewise.
const FEED_FORWARD_SHARE: f64 = 0.25;

/// The name of the time in which weights are read, beside those of layers.
const READING: &str = "(weights read)";

/// Peak beside the weights in bytes, and seconds of a step.
type Metered = std::result::Result<(u64, f64), String>;

/// The prices of plans for one sample. Without tensors, so that a policy may ask from any thread.
#[derive(Debug)]
pub struct DenoisePrices {
    experts: Vec<Arc<DenoiserFile>>,
    model: DenoiserModel,
    shape: SampleShape,
    basis: Basis,
    /// The results for the parts of plans that a meter sees.
    metered: Mutex<HashMap<DenoisePlan, Metered>>,
}

impl DenoisePrices {
    pub(super) fn new(basis: &Basis, denoiser: &Denoiser, shape: &SampleShape) -> Self {
        Self {
            experts: denoiser.files().to_vec(),
            model: denoiser.model(),
            shape: shape.clone(),
            basis: basis.clone(),
            metered: Mutex::default(),
        }
    }

    fn config(&self) -> &DenoiserConfig {
        &self.experts[0].config
    }

    fn kernels(&self) -> Kernels {
        self.basis.kernels
    }

    /// The plans that can be carried out.
    pub(super) fn capabilities(&self) -> DenoiseCapabilities {
        let is_measured = |dtype: &Dtype| self.basis.measured.speeds.iter().any(|speed| speed.dtype == *dtype);
        let fused = self.format(&DenoisePlan::plain());
        DenoiseCapabilities {
            options: PlanOption::offered(
                Stage::Denoise,
                |name| name == FP8_SUMS && self.has_fp8_products().is_ok(),
                |_| false,
            ),
            dtypes: DTYPES.into_iter().filter(is_measured).collect(),
            fp8_products: self.has_fp8_products().is_ok(),
            int8_products: self.has_int8_products().is_ok(),
            fused_attention: fused.is_ok_and(|format| self.fuses_attention(format)),
            queries_least: LEAST_QUERIES,
            ahead_most: MOST_BLOCKS_AHEAD,
            parts_most: MOST_PARTS,
            reuse_most: self.shape.reuse.unwrap_or(0.0),
        }
    }

    /// Seconds that a processor takes for weights on their way into products: a product of few
    /// tokens reads them from memory, lays them out in its type and reads them again. `stored`
    /// counts the bytes of blocks, once for each run through the network. A GPU's products read
    /// them beside the work, and the meter counts their expansion.
    fn reading(&self, plan: &DenoisePlan, format: ComputeFormat, stored: u64) -> f64 {
        if !self.basis.kernels.on_cpu {
            return 0.0;
        }
        let share = stored as f64 / self.model.stored_bytes.max(1) as f64;
        let bytes = match (plan.products, format.product_dtype) {
            (Products::Int8, _) => 1.0,
            (_, Dtype::F32) => 4.0,
            _ => 2.0,
        };
        let computed = self.model.parameters as f64 * share * bytes;
        let once = match plan.weights {
            WeightForm::Packed => stored as f64 + 2.0 * computed,
            WeightForm::Expanded => EXPANDED_TRAVERSALS * computed,
        };
        let again = FEED_FORWARD_SHARE * f64::from(plan.feed_forward.saturating_sub(1));
        once * (1.0 + again) / self.basis.measured.bytes_per_second.max(1.0)
    }

    /// The shapes of the sample's input.
    pub fn shape(&self) -> &SampleShape {
        &self.shape
    }

    /// The change of the output up to which a plan reuses it: no more than the user allows.
    pub fn reuse(&self, plan: &DenoisePlan) -> Option<f64> {
        self.shape.reuse.map(|most| most.min(plan.reuse.threshold())).filter(|threshold| *threshold > 0.0)
    }

    /// True if attention is fused on the device in a format, as heads of the network's width are.
    fn fuses_attention(&self, format: ComputeFormat) -> bool {
        self.basis.attention.is_fused(self.config().head_width(), format.product_dtype)
    }

    /// Bytes of a plan's weights that take the device's memory while the network runs.
    pub fn pooled_bytes(&self, plan: &DenoisePlan, cost: Option<&DenoiseCost>, resident: u64) -> u64 {
        match residency(plan, self.basis.kernels.on_cpu) {
            Residency::Streamed => cost.map_or(resident, |cost| cost.weights_bytes),
            _ => resident,
        }
    }

    /// The types that a plan computes in.
    ///
    /// # Errors
    /// [`Error::NotOffered`] if the device or the weights don't allow it.
    pub fn format(&self, plan: &DenoisePlan) -> Result<ComputeFormat> {
        let queries = match plan.attention {
            Attention::Fused => None,
            Attention::Pieces { queries } => Some(queries.into()),
        };
        let feed_forward_parts = plan.feed_forward.into();
        let format = ComputeFormat::new(plan.precision, Layout::ChannelsFirst)?;
        let speed = self.basis.measured.speeds.iter().find(|speed| speed.dtype == format.product_dtype);
        let heads_apart = speed.and_then(|speed| speed.heads).is_some_and(|heads| heads.apart);
        let format = ComputeFormat { queries, feed_forward_parts, heads_apart, ..format };
        let refused = |reason: &str| Err(Error::NotOffered(reason.into()));
        match plan.products {
            Products::Precision => {}
            Products::Fp8 => {
                self.has_fp8_products()?;
                let narrow = matches!(plan.precision.dtype(), Dtype::Bf16 | Dtype::F16);
                if !narrow || plan.weights != WeightForm::Packed || plan.ahead.is_some() {
                    return refused(
                        "products=fp8: its results are in 16 bits, of weights as stored and on the device: set precision=bf16 and weights=packed",
                    );
                }
            }
            Products::Int8 => {
                self.has_int8_products()?;
                if plan.weights != WeightForm::Packed || plan.precision.dtype() == Dtype::F16 {
                    return refused("products=int8: takes weights as stored, beside f32 or bf16: set weights=packed");
                }
            }
        }
        let quick_fp8_sums = plan.products == Products::Fp8 && plan.options.is(FP8_SUMS, QUICK);
        Ok(ComputeFormat { product_form: plan.products, quick_fp8_sums, ..format })
    }

    /// Refuses products in 8-bit integers where the processor or the weights have none.
    fn has_int8_products(&self) -> Result<()> {
        let stored = self.experts[0].stored();
        if !self.kernels().has_int8() {
            let needed = "a processor with AVX-512 VNNI has them";
            return Err(Error::NotOffered(format!(
                "products=int8: {} has no products in INT8: {needed}",
                self.basis.facts.name
            )));
        }
        if !stored.suits_int8_products() {
            return Err(Error::NotOffered(format!(
                "products=int8: the weights are stored as {}, and blocks of integers are needed, as q8_0 and q4_k have",
                stored.name()
            )));
        }
        Ok(())
    }

    /// Refuses products in FP8 where the device or the weights have none.
    fn has_fp8_products(&self) -> Result<()> {
        if !self.basis.fp8_products {
            return Err(Error::NotOffered(format!("products=fp8: {} has no products in FP8", self.basis.facts.name)));
        }
        if !self.experts.iter().all(|file| file.has_fp8_products()) {
            let needed = "matrices in f8_e4m3 with one scale each are needed";
            let stored = &self.model.stored;
            return Err(Error::NotOffered(format!("products=fp8: the weights are stored as {stored}, and {needed}")));
        }
        Ok(())
    }

    /// Bytes of memory that weights are held in beside their file.
    ///
    /// # Errors
    /// The weights can't be held so.
    pub fn resident_bytes(&self, plan: &DenoisePlan, format: ComputeFormat) -> Result<u64> {
        let residency = residency(plan, self.basis.kernels.on_cpu);
        let of = |file: &Arc<DenoiserFile>| file.resident_bytes(format, residency).map_err(Error::Model);
        let all = self.experts.iter().map(of).collect::<Result<Vec<u64>>>()?;
        Ok(all.into_iter().max().unwrap_or_default())
    }

    /// False if matrices are expanded already and it matters: a processor with products of its own
    /// holds no more for the others.
    fn expands_rows(&self, plan: &DenoisePlan, format: ComputeFormat) -> bool {
        plan.weights != WeightForm::Expanded || self.kernels().has_products(format.product_dtype)
    }

    /// The result of a step on a meter, from the last time if it is the same work.
    fn metered(&self, format: ComputeFormat, costs: Costs, plan: &DenoisePlan) -> Metered {
        let mut seen = Denoise::without_reason(plan);
        (seen.ahead, seen.release) = (None, Release::Keep);
        if costs.expands_rows {
            seen.weights = WeightForm::Packed;
        }
        if let Some(known) = self.lock().get(&seen) {
            return known.clone();
        }
        let meter = Meter::new(format, costs);
        let metered = metered_step::measure(self, plan, &meter).map_err(|error| error.to_string());
        self.lock().insert(seen, metered.clone());
        metered
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<DenoisePlan, Metered>> {
        self.metered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DenoisePrices {
    /// The costs of operations by a plan.
    fn costs(&self, plan: &DenoisePlan, format: ComputeFormat) -> std::result::Result<Costs, String> {
        let speed = self.basis.measured.speeds.iter().find(|speed| speed.dtype == plan.precision.dtype());
        let speed = speed.ok_or_else(|| format!("{} can't be run on this device", plan.precision))?;
        let fused_attention = self.fuses_attention(format);
        let expands_rows = self.expands_rows(plan, format);
        Ok(Costs { fused_attention, expands_rows, ..Costs::new(speed, &self.basis.measured, &self.kernels()) })
    }

    /// Runs through the network in a step.
    fn runs(&self, plan: &DenoisePlan) -> u64 {
        passes(&self.shape, plan).iter().map(|pass| pass.groups.len() as u64).sum()
    }
}

impl Prices<Denoise> for DenoisePrices {
    fn layers(&self, plan: &DenoisePlan) -> Vec<LayerSeconds> {
        let metered = || -> std::result::Result<Vec<LayerSeconds>, String> {
            let format = self.format(plan).map_err(|error| error.to_string())?;
            let meter = Meter::new(format, self.costs(plan, format)?);
            metered_step::measure_layers(self, plan, &meter).map_err(|error| error.to_string())?;
            let stored: u64 = self.experts[0].block_bytes().iter().sum();
            let reading = self.reading(plan, format, self.runs(plan) * stored);
            let reading = LayerSeconds { name: READING.into(), is_block: false, runs: 1.0, seconds: reading };
            Ok(meter.layers().into_iter().chain([reading]).collect())
        };
        metered().unwrap_or_default()
    }

    fn price(&self, plan: &DenoisePlan) -> std::result::Result<DenoiseCost, String> {
        let format = self.format(plan).map_err(|error| error.to_string())?;
        let costs = self.costs(plan, format)?;
        let (peak, seconds) = self.metered(format, costs, plan)?;
        let loading = |file: &Arc<DenoiserFile>| {
            loading_bytes(file, plan.weights, self.basis.kernels.on_cpu, format.product_dtype)
        };
        let peak = self.experts.iter().map(loading).fold(peak, u64::max);
        let model = &self.model;
        let resident = self.resident_bytes(plan, format).map_err(|error| error.to_string())?;
        let blocks = self.experts[0].block_bytes();
        let at_once = plan.ahead.map(|ahead| (u64::from(ahead) + AT_WORK) * model.largest_block_bytes);
        let whole: u64 = blocks.iter().sum();
        // Bytes of the blocks that are held at once.
        let streamed = at_once.map_or(whole, |at_once| at_once.min(whole));
        let waiting = match residency(plan, self.basis.kernels.on_cpu) {
            Residency::Mapped => model.stored_bytes.saturating_sub(whole) + streamed,
            Residency::Streamed => streamed,
            Residency::Packed | Residency::Expanded => 0,
        };
        let weights_bytes = waiting + resident;
        // Every run through the network takes all blocks.
        let runs = self.runs(plan);
        let moved_bytes = if plan.ahead.is_some() && plan.weights == WeightForm::Packed { runs * whole } else { 0 };
        let seconds = seconds + self.reading(plan, format, runs * whole);
        let copying = self.basis.measured.transfer_bytes_per_second.map_or(0.0, |rate| moved_bytes as f64 / rate);
        // Blocks that are read ahead come beside the work on the one before.
        let seconds = if plan.ahead == Some(0) { seconds + copying } else { seconds.max(copying) };
        let step = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        Ok(DenoiseCost { peak_bytes: peak, weights_bytes, moved_bytes, step })
    }

    fn trial(&self, record: &DenoiseRecord) -> Option<Trial<Denoise>> {
        let outcome = record.own_outcome()?;
        let (then, now) = (record.estimate.as_ref()?, self.price(&record.plan).ok()?);
        let time = ratio(outcome.step.as_secs_f64(), then.step.as_secs_f64())?;
        let memory = ratio(outcome.peak_bytes as f64, then.peak_bytes as f64)?;
        let step = Duration::try_from_secs_f64(now.step.as_secs_f64() * time).ok()?;
        let outcome = DenoiseOutcome {
            step,
            elapsed: step.saturating_mul(self.shape.steps() as u32),
            peak_bytes: (now.peak_bytes as f64 * memory) as u64,
            weights_bytes: now.weights_bytes,
            moved_bytes: now.moved_bytes.saturating_mul(self.shape.steps() as u64),
            ..*outcome
        };
        Some(Trial { plan: record.plan.clone(), outcome })
    }
}

/// The place of weights by a plan.
pub fn residency(plan: &DenoisePlan, on_cpu: bool) -> Residency {
    match (plan.weights, plan.ahead) {
        (WeightForm::Expanded, _) => Residency::Expanded,
        (WeightForm::Packed, _) if on_cpu => Residency::Mapped,
        (WeightForm::Packed, None) => Residency::Packed,
        (WeightForm::Packed, Some(_)) => Residency::Streamed,
    }
}
