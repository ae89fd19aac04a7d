//! The prices of an encoder's plans: the network's own `forward` on a meter.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::{
    Basis, Error, Priced, Quote, Result,
    costs::{DTYPES, Prices, loading_bytes, ratio},
    denoise::EXPANDED_TRAVERSALS,
};
use tilewright_kernels::{Kernels, Measured};
use tilewright_models::{ComputeFormat, EncoderFile, transformer::Residency};
use tilewright_nn::{Costs, LayerSeconds, Meter};
use tilewright_plan::{
    Dtype, EncoderModel, Layout, Objective, Place, Precision, Stage, StoredType, Text, TextCapabilities, TextCost,
    TextOutcome, TextPlan, TextRecord, TextRequest, Trial, WeightForm,
};

/// The most tokens of a text that models are trained with.
pub const USUAL_TOKENS: i64 = 512;

impl Priced for Text {
    type Prices = TextPrices;
}

/// The answer of a store of weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// The store has room for the weights, so that they can stay in it.
    pub may_stay: bool,
    /// The weights are in it, and no task uses them.
    pub is_idle: bool,
}

/// Asks the store of weights about those of a plan, by the encoder's place, types, residency and
/// bytes.
pub type AskStore<'a> = &'a dyn Fn(Place, ComputeFormat, Residency, u64) -> Stored;

/// Texts for one encoder, by their shapes.
#[derive(Clone)]
pub struct TextsShape<'a> {
    /// The encoder.
    pub encoder: &'a Arc<EncoderFile>,
    /// Samples and tokens of each text.
    pub shapes: Vec<[i64; 2]>,
    /// Blocks of an encoder of CLIP's kind that come after its inner states.
    pub left_out: usize,
    /// The store that the encoder's weights are in.
    pub store: AskStore<'a>,
}

impl Quote<Text> {
    /// Runs of texts in turn, within a limit of the device's memory that counts the weights. `host`
    /// is the processor beside a GPU, if the encoder may run there.
    ///
    /// # Errors
    /// [`Error::EncoderDoesNotFit`] if not even the leanest plan fits, and [`Error::PromptTooLong`]
    /// if it would with a shorter text.
    pub fn text(
        basis: &Basis,
        host: Option<&Basis>,
        texts: TextsShape<'_>,
        memory_limit: u64,
        objective: Objective,
    ) -> Result<Self> {
        let tokens = texts.shapes.iter().map(|[samples, tokens]| (samples * tokens) as u32).collect();
        let model = encoder_model(texts.encoder);
        let prices = TextPrices::new(basis, host, texts)?;
        prices.check(memory_limit)?;
        let request = TextRequest { model, tokens, memory_limit, objective, host: basis.host };
        let capabilities = prices.capabilities();
        Ok(Self::new_unchecked(basis, Stage::Text, request, capabilities, prices))
    }
}

/// Checks texts by their tokens, before they are embedded: the vectors of a long one take
/// gigabytes.
///
/// # Errors
/// As [`Quote::text`].
pub fn check_lengths(basis: &Basis, host: Option<&Basis>, texts: TextsShape<'_>, memory_limit: u64) -> Result<()> {
    if texts.shapes.iter().all(|[_, tokens]| *tokens <= USUAL_TOKENS) {
        return Ok(());
    }
    TextPrices::new(basis, host, texts)?.check(memory_limit)
}

/// The facts of an encoder that plans depend on.
pub fn encoder_model(encoder: &EncoderFile) -> EncoderModel {
    let config = &encoder.config;
    let types = encoder.stored_types.iter();
    EncoderModel {
        kind: config.id(),
        stored_types: types
            .map(|(stored, bytes)| StoredType { name: stored.name().to_owned(), bytes: *bytes })
            .collect(),
        parameter_bytes: encoder.stored_bytes,
        blocks: config.blocks() as u32,
        width: config.hidden() as u32,
        head_width: config.head_width() as u32,
    }
}

/// A device that an encoder can run on.
#[derive(Clone, Debug)]
pub struct Seat {
    /// The place that plans name.
    pub place: Place,
    kernels: Kernels,
    measured: Measured,
    /// The seat's memory is the host's beside a device with its own, and no limit counts it.
    pub is_apart: bool,
}

/// Bytes of weights: in the pool, and in the pages of their file.
#[derive(Clone, Copy, Debug)]
pub struct WeightBytes {
    /// In the pool.
    pub pooled: u64,
    /// In the pages of their file.
    pub mapped: u64,
}

impl WeightBytes {
    /// Both.
    pub fn all(self) -> u64 {
        self.pooled.saturating_add(self.mapped)
    }
}

/// Peak beside the weights in bytes, and seconds of all texts.
type Metered = std::result::Result<(u64, f64), String>;

/// The prices of plans for one run. Without tensors, so that a policy may ask from any thread.
#[derive(Debug)]
pub struct TextPrices {
    encoder: Arc<EncoderFile>,
    seats: Vec<Seat>,
    /// Samples and tokens of each text.
    shapes: Vec<[i64; 2]>,
    left_out: usize,
    /// The weights that are idle in their store.
    idle: Vec<(Place, ComputeFormat, Residency)>,
    /// The store has room for the weights by the leanest plan, so that they can stay in it.
    can_keep: bool,
    metered: Mutex<HashMap<(Precision, Place, WeightForm), Metered>>,
}

impl TextPrices {
    fn new(basis: &Basis, host: Option<&Basis>, texts: TextsShape<'_>) -> Result<Self> {
        let TextsShape { encoder, shapes, left_out, store } = texts;
        let seat =
            |place, of: &Basis, is_apart| Seat { place, kernels: of.kernels, measured: of.measured.clone(), is_apart };
        let seats = match (basis.kernels.on_cpu, host) {
            (true, _) => vec![seat(Place::Host, basis, false)],
            (false, None) => vec![seat(Place::Device, basis, false)],
            (false, Some(host)) => {
                vec![seat(Place::Device, basis, false), seat(Place::Host, host, basis.has_own_memory())]
            }
        };
        let mut prices = Self {
            encoder: encoder.clone(),
            seats,
            shapes,
            left_out,
            idle: Vec::new(),
            can_keep: false,
            metered: Mutex::default(),
        };
        for plan in prices.plans() {
            let (key, bytes) = (prices.key(&plan)?, prices.weight_bytes(&plan)?.pooled);
            let (place, format, residency) = key;
            let stored = store(place, format, residency, bytes);
            prices.can_keep |= stored.may_stay;
            if stored.is_idle {
                prices.idle.push(key);
            }
        }
        Ok(prices)
    }

    /// A plan of each type, place and form of weights.
    fn plans(&self) -> Vec<TextPlan> {
        let mut plans = Vec::new();
        for place in self.seats.iter().map(|seat| seat.place) {
            for dtype in DTYPES.into_iter().filter(|dtype| self.runs(*dtype)) {
                for precision in [Precision::Uniform(dtype), Precision::Mixed(dtype)] {
                    let plan = |weights| TextPlan { precision, weights, ..TextPlan::plain(place) };
                    plans.extend([WeightForm::Packed, WeightForm::Expanded].map(plan));
                }
            }
        }
        plans
    }

    /// Checks that a plan fits within a limit of the device's memory.
    ///
    /// # Errors
    /// [`Error::PromptTooLong`] if one would with a shorter text, else
    /// [`Error::EncoderDoesNotFit`].
    fn check(&self, limit: u64) -> Result<()> {
        let fits = |least: Option<u64>| least.is_none_or(|least| least <= limit);
        let least = self.least_bytes();
        if fits(least) {
            return Ok(());
        }
        let encoder = self.encoder.config.model();
        let longest = self.shapes.iter().map(|[_, tokens]| *tokens).max().unwrap_or_default();
        let of_usual = self.cut_to(USUAL_TOKENS).least_bytes();
        if longest <= USUAL_TOKENS || !fits(of_usual) {
            let least = of_usual.or(least).unwrap_or_default();
            return Err(Error::EncoderDoesNotFit { encoder, limit, least });
        }
        let (mut most, mut too_many) = (USUAL_TOKENS, longest);
        while too_many - most > 1 {
            let middle = most + (too_many - most) / 2;
            match fits(self.cut_to(middle).least_bytes()) {
                true => most = middle,
                false => too_many = middle,
            }
        }
        Err(Error::PromptTooLong { encoder, tokens: longest as u64, most: most as u64, limit })
    }

    /// The prices of the same texts, of which none has more tokens than these.
    fn cut_to(&self, most: i64) -> Self {
        Self {
            encoder: self.encoder.clone(),
            seats: self.seats.clone(),
            shapes: self.shapes.iter().map(|[samples, tokens]| [*samples, most.min(*tokens)]).collect(),
            idle: self.idle.clone(),
            metered: Mutex::default(),
            ..*self
        }
    }

    /// The bytes of the device's memory that the leanest plan is expected to hold, weights
    /// included; none if no plan has a price.
    fn least_bytes(&self) -> Option<u64> {
        let plans = self.plans().into_iter().filter(|plan| matches!(plan.precision, Precision::Uniform(_)));
        plans.filter_map(|plan| self.price(&plan).ok()).map(|cost| cost.held_bytes()).min()
    }

    /// True if a device of the run has measured a type.
    fn runs(&self, dtype: Dtype) -> bool {
        self.seats.iter().any(|seat| seat.runs(dtype))
    }

    /// The weights that a plan needs: where, in which types, and how they are held.
    fn key(&self, plan: &TextPlan) -> Result<(Place, ComputeFormat, Residency)> {
        Ok((self.seat(plan.place)?.place, format(plan.precision)?, self.residency(plan)?))
    }

    /// The plans that can be carried out.
    fn capabilities(&self) -> TextCapabilities {
        TextCapabilities {
            options: Vec::new(),
            dtypes: DTYPES.into_iter().filter(|dtype| self.runs(*dtype)).collect(),
            places: self.seats.iter().map(|seat| seat.place).collect(),
            weights: vec![WeightForm::Packed, WeightForm::Expanded],
            kept: self.can_keep,
        }
    }

    /// The device of a place.
    ///
    /// # Errors
    /// [`Error::NotOffered`] if the encoder can't run there.
    pub fn seat(&self, place: Place) -> Result<&Seat> {
        let found = self.seats.iter().find(|seat| seat.place == place);
        found.ok_or_else(|| Error::NotOffered(format!("place={place}: the encoder can't run there")))
    }

    /// Seconds of loading, and those that a processor takes in all texts for weights on their way
    /// into products: a product of few tokens reads them from memory, lays them out in its type and
    /// reads them again. A GPU's products read them beside the work, and the meter counts their
    /// expansion.
    fn weight_seconds(&self, weights: WeightForm, format: ComputeFormat, seat: &Seat) -> Result<(f64, f64)> {
        let stored = self.encoder.stored_bytes as f64;
        let expanded = self.encoder.resident_bytes(format, Residency::Expanded)? as f64;
        let rate = seat.measured.bytes_per_second.max(1.0);
        if !seat.kernels.on_cpu {
            let copied = stored / seat.measured.transfer_bytes_per_second.unwrap_or(rate).max(1.0);
            let unpacked = if weights == WeightForm::Expanded { expanded / rate } else { 0.0 };
            return Ok((copied + unpacked, 0.0));
        }
        let (load, each) = match weights {
            WeightForm::Packed => (0.0, stored + 2.0 * expanded),
            WeightForm::Expanded => (stored + expanded, EXPANDED_TRAVERSALS * expanded),
        };
        Ok((load / rate, each * self.shapes.len() as f64 / rate))
    }

    /// Bytes of a plan's weights.
    ///
    /// # Errors
    /// The plan can't be carried out.
    pub fn weight_bytes(&self, plan: &TextPlan) -> Result<WeightBytes> {
        let residency = self.residency(plan)?;
        let pooled = self.encoder.resident_bytes(format(plan.precision)?, residency)?;
        let mapped = if residency == Residency::Mapped { self.encoder.stored_bytes } else { 0 };
        Ok(WeightBytes { pooled, mapped })
    }

    /// The place of weights by a plan: packed ones stay in their file on a processor.
    ///
    /// # Errors
    /// The encoder can't run at the plan's place.
    pub fn residency(&self, plan: &TextPlan) -> Result<Residency> {
        let is_processor = self.seat(plan.place)?.kernels.on_cpu;
        Ok(match plan.weights {
            WeightForm::Expanded => Residency::Expanded,
            WeightForm::Packed if is_processor => Residency::Mapped,
            WeightForm::Packed => Residency::Packed,
        })
    }

    /// The result of [`TextPrices::meter`], from the last time if it is the same work.
    fn metered(&self, plan: &TextPlan, format: ComputeFormat, seat: &Seat) -> Metered {
        // A processor with products of its own expands as much of either form.
        let has_products = seat.kernels.has_products(format.product_dtype);
        let weights = if has_products { WeightForm::Packed } else { plan.weights };
        let key = (plan.precision, seat.place, weights);
        if let Some(known) = self.lock().get(&key) {
            return known.clone();
        }
        let expands_rows = weights == WeightForm::Packed;
        let metered = self.meter(plan.precision, format, seat, expands_rows).map_err(|error| error.to_string());
        self.lock().insert(key, metered.clone());
        metered
    }

    fn new_meter(&self, precision: Precision, format: ComputeFormat, seat: &Seat, expands_rows: bool) -> Result<Meter> {
        let speed = seat.measured.speeds.iter().find(|speed| speed.dtype == precision.dtype());
        let speed = speed.ok_or_else(|| Error::NotOffered(format!("{precision} can't be run on this device")))?;
        let costs = Costs { expands_rows, ..Costs::new(speed, &seat.measured, &seat.kernels) };
        Ok(Meter::new(format, costs))
    }

    fn meter_layers(&self, plan: &TextPlan) -> Result<Vec<LayerSeconds>> {
        let seat = self.seat(plan.place)?;
        let meter =
            self.new_meter(plan.precision, format(plan.precision)?, seat, plan.weights == WeightForm::Packed)?;
        meter.count_layers();
        for shape in &self.shapes {
            self.encoder.meter(&meter, *shape, self.left_out)?;
        }
        Ok(meter.layers())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(Precision, Place, WeightForm), Metered>> {
        self.metered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn meter(
        &self,
        precision: Precision,
        format: ComputeFormat,
        seat: &Seat,
        expands_rows: bool,
    ) -> Result<(u64, f64)> {
        let meter = self.new_meter(precision, format, seat, expands_rows)?;
        let mut kept = Vec::new();
        for shape in &self.shapes {
            let states = self.encoder.meter(&meter, *shape, self.left_out)?;
            // On a processor they stay where they are.
            kept.extend(seat.kernels.on_cpu.then_some(states));
        }
        drop(kept);
        Ok((meter.peak_bytes(), meter.seconds()))
    }
}

impl Seat {
    fn runs(&self, dtype: Dtype) -> bool {
        self.measured.speeds.iter().any(|speed| speed.dtype == dtype)
    }
}

impl Prices<Text> for TextPrices {
    fn layers(&self, plan: &TextPlan) -> Vec<LayerSeconds> {
        self.meter_layers(plan).unwrap_or_default()
    }

    fn price(&self, plan: &TextPlan) -> std::result::Result<TextCost, String> {
        let words = |error: Error| error.to_string();
        let seat = self.seat(plan.place).map_err(words)?;
        let format = format(plan.precision).map_err(words)?;
        let (peak, seconds) = self.metered(plan, format, seat)?;
        let peak = peak.max(loading_bytes(&self.encoder, plan.weights, seat.kernels.on_cpu, format.product_dtype));
        let weights = self.weight_bytes(plan).map_err(words)?;
        let (load, reading) = self.weight_seconds(plan.weights, format, seat).map_err(words)?;
        let is_loaded = self.idle.contains(&self.key(plan).map_err(words)?);
        let duration = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        let [peak_bytes, weights_bytes, host_bytes] = match seat.is_apart {
            true => [0, 0, peak.saturating_add(weights.all())],
            false => [peak, weights.all(), 0],
        };
        Ok(TextCost {
            elapsed: duration(seconds + reading),
            load: if is_loaded { Duration::ZERO } else { duration(load) },
            peak_bytes,
            weights_bytes,
            host_bytes,
        })
    }

    fn trial(&self, record: &TextRecord) -> Option<Trial<Text>> {
        let (outcome, then) = (record.outcome?, record.estimate.as_ref()?);
        let now = self.price(&record.plan).ok()?;
        let time = ratio(outcome.elapsed.as_secs_f64(), then.elapsed.as_secs_f64())?;
        let memory = ratio(outcome.peak_bytes as f64, then.peak_bytes as f64).unwrap_or(1.0);
        let elapsed = Duration::try_from_secs_f64(now.elapsed.as_secs_f64() * time).ok()?;
        let peak_bytes = (now.peak_bytes as f64 * memory) as u64;
        let TextCost { weights_bytes, host_bytes, .. } = now;
        let outcome = TextOutcome { elapsed, peak_bytes, weights_bytes, host_bytes, ..outcome };
        Some(Trial { plan: record.plan.clone(), outcome })
    }
}

/// The types that a precision computes in.
///
/// # Errors
/// They are none that networks can be run in.
pub fn format(precision: Precision) -> Result<ComputeFormat> {
    Ok(ComputeFormat::new(precision, Layout::ChannelsFirst)?)
}

/// True if an encoder that was loaded by one plan serves the other.
pub fn is_held_alike(one: &TextPlan, other: &TextPlan) -> bool {
    (one.precision, one.place, one.weights) == (other.precision, other.place, other.weights)
}
