//! Carries plans out on clips, chunk by chunk, and remembers across attempts what was delivered.

use std::time::{Duration, Instant};

use tch::{Device, Kind, Tensor};
use tilewright_models::{
    ComputeFormat, LoadStep, PlanFormat,
    wan_vae::{Clip, Decoder, Spread},
};
use tilewright_plan::{Dtype, Failure, Outcome, Plan, Space, Stage, UnderWay, Vae};
use tilewright_prices::Chunks;
use tilewright_torch::{
    device::synchronize,
    kernels, memory, non_finite,
    profile::{self, Part, Profiler},
    transfer,
};

use super::{ClipJob, ClipLatents, Sink};
use crate::{
    Error, Grid, Result,
    capturing::{Inputs, Passing, Values},
    offload::Turns,
    profiling::{Unit, rehearsed},
    task::{Allowance, AttemptContext, AttemptError, Attempted, Task, check_peak, likely, load, settle, trim_between},
    tiles::ramps,
    weights::Lease,
};

/// A decode on its way.
pub(super) struct ClipDecoding<'a> {
    job: &'a ClipJob<'a>,
    sink: &'a mut dyn Sink,
    /// Frames that each sample has delivered.
    delivered: Vec<u32>,
    /// Frames of all samples that an earlier process has delivered.
    resumed: u32,
    /// The sample at work, as far as it came.
    live: Option<ClipState>,
    decoders: Vec<Lease<Decoder>>,
    /// Time spent decoding, failed attempts included: nothing of them that was delivered is done
    /// again.
    elapsed: Duration,
    /// Time that others took meanwhile: the sink, and loading.
    aside: Duration,
    /// Bytes in use that are not this decode's.
    base: u64,
    /// The last attempt ended at values that were not finite.
    not_finite: bool,
    /// The frames that were delivered, for a capture.
    kept: Passing,
}

/// The frames of a rehearsal go nowhere.
struct Nowhere;

impl Sink for Nowhere {
    fn frames(
        &mut self,
        _: u32,
        _: u32,
        _: &Tensor,
    ) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(())
    }
}

/// The state of one sample under one division of the area.
struct ClipState {
    sample: usize,
    plan: Plan,
    format: ComputeFormat,
    tiles: Vec<Tile>,
    turns: Turns,
    /// None if the area is not divided.
    grid: Option<Faded>,
    chunk: Option<Chunk>,
    /// Chunks that came to their end.
    chunks: u32,
}

/// A tile, or all of the area.
struct Tile {
    clip: Clip,
    /// The format, if it is not the plan's: the tile alone is computed in a wider type.
    format: Option<ComputeFormat>,
    /// Latent pixels: rows and columns, first and count.
    place: [(i64, i64); 2],
}

/// The ramps that fade tiles into each other.
struct Faded {
    rows: Vec<Tensor>,
    columns: Vec<Tensor>,
    /// For each tile its row and column.
    places: Vec<(usize, usize)>,
    scale: i64,
}

/// Latent frames that all tiles take before any frame leaves.
struct Chunk {
    /// The latent frame after the last.
    until: i64,
    tile: usize,
    /// Frames of the tile at work.
    frames: Vec<Tensor>,
    /// [T, C, H, W], the tiles so far, if there are several.
    gathered: Option<Tensor>,
}

impl<'a> ClipDecoding<'a> {
    pub fn new(job: &'a ClipJob<'a>, sink: &'a mut dyn Sink, done: &[u32]) -> Self {
        let samples = job.request().batch as usize;
        let delivered: Vec<u32> = (0..samples).map(|sample| done.get(sample).copied().unwrap_or(0)).collect();
        let resumed = delivered.iter().sum();
        let (elapsed, aside) = (Duration::ZERO, Duration::ZERO);
        Self {
            job,
            sink,
            delivered,
            resumed,
            live: None,
            decoders: Vec::new(),
            elapsed,
            aside,
            base: 0,
            not_finite: false,
            kept: Passing::default(),
        }
    }

    fn latent_frames(&self) -> i64 {
        self.job.input.latents.size()[2]
    }

    /// The plan's decoder, leased if none is in its types.
    fn load(&mut self, format: ComputeFormat, step: LoadStep<'_>) -> Result<((), Duration)> {
        if self.decoders.iter().any(|decoder| decoder.format() == format) {
            return Ok(((), Duration::ZERO));
        }
        let start = Instant::now();
        let (decoder, took) = self.job.input.vae.decoder(format, self.job.machine.device, step)?;
        self.decoders.push(decoder);
        self.aside += start.elapsed();
        Ok(((), took))
    }

    /// The bytes of weights in use that the limit counts: those of each type that a tile is in.
    fn weights(&self) -> u64 {
        self.job.counted_weights(self.decoders.iter().map(Lease::bytes).sum())
    }

    /// Makes the sample's state fit the plan. Other chunk or band sizes keep it. Another precision
    /// keeps it only if a tile's values were not finite: that tile alone starts again. Anything
    /// else starts again from the last delivered frame.
    fn prepare(&mut self, sample: usize, plan: &Plan, format: ComputeFormat) -> Result<()> {
        if let Some(live) = &mut self.live
            && live.sample == sample
            && live.divides_as(plan)
        {
            if live.format == format {
                live.plan = plan.clone();
                return Ok(());
            }
            // After a tile that was not finite the others stay as they are; after anything else all
            // change.
            if let Some(tile) = live.failed_tile().filter(|_| self.not_finite) {
                let done = self.delivered[sample];
                let tile = &mut live.tiles[tile];
                (tile.clip, tile.format) = (Clip::from_frame(&self.job.input.vae.config, done), Some(format));
                if let Some(chunk) = &mut live.chunk {
                    chunk.frames.clear();
                }
                let precision = live.plan.precision;
                live.plan = Plan { precision, ..plan.clone() };
                return Ok(());
            }
        }
        self.live = None;
        self.live = Some(ClipState::new(self.job, sample, self.delivered[sample], plan, format)?);
        Ok(())
    }

    /// Decodes the first chunk apart, and drops its frames.
    fn rehearse(&mut self, plan: &Plan, format: ComputeFormat, context: &mut AttemptContext<'_>) -> Attempted<()> {
        let mut sink = Nowhere;
        let mut rehearsal = ClipDecoding::new(self.job, &mut sink, &self.delivered);
        rehearsal.decoders = std::mem::take(&mut self.decoders);
        rehearsal.base = self.base;
        let sample = rehearsal.delivered.iter().position(|delivered| *delivered < self.job.request().frames);
        let ended = match sample {
            Some(sample) => rehearsal
                .prepare(sample, plan, format)
                .map_err(AttemptError::from)
                .and_then(|()| rehearsal.chunk(sample, context)),
            None => Ok(()),
        };
        self.decoders = std::mem::take(&mut rehearsal.decoders);
        ended
    }

    /// [`Self::samples`], under the profiler if the job asks for it.
    fn samples_profiled(
        &mut self,
        plan: &Plan,
        format: ComputeFormat,
        context: &mut AttemptContext<'_>,
    ) -> Attempted<()> {
        if !context.profiling.is_wanted {
            return self.samples(plan, format, context);
        }
        // State that an earlier attempt left takes the memory that a rehearsal would.
        let is_fresh = self.live.is_none() && self.delivered.iter().sum::<u32>() == self.resumed;
        let (device, start) = (self.job.machine.device, Instant::now());
        let plain = match is_fresh {
            true => rehearsed(context, device, |context| self.rehearse(plan, format, context)),
            false => Ok(Duration::ZERO),
        };
        self.aside += start.elapsed();
        let plain = plain?;
        let profiler = Profiler::begin(device, &Stage::Decode.to_string())?;
        self.samples(plan, format, context)?;
        context.profiling.keep(profiler.end()?, Unit::Chunk, plain, device);
        Ok(())
    }

    fn samples(&mut self, plan: &Plan, format: ComputeFormat, context: &mut AttemptContext<'_>) -> Attempted<()> {
        let all = self.job.request().frames;
        for sample in 0..self.delivered.len() {
            if self.delivered[sample] >= all {
                continue;
            }
            self.prepare(sample, plan, format)?;
            while self.delivered[sample] < all {
                let is_between = self.live.as_ref().is_some_and(|live| live.chunks > 1 && live.chunk.is_none());
                if is_between {
                    context.between_chunks()?;
                }
                self.chunk(sample, context)?;
            }
            self.live = None;
        }
        Ok(())
    }

    /// One chunk: the next latent frames through every tile, and the frames that come of them
    /// delivered.
    fn chunk(&mut self, sample: usize, context: &mut AttemptContext<'_>) -> Attempted<()> {
        let (device, latent_frames) = (self.job.machine.device, self.latent_frames());
        let (start, aside) = (Instant::now(), self.aside);
        let Some(mut live) = self.live.take() else { return Ok(()) };
        let (number, from) = (live.chunks, self.delivered[sample]);
        let in_profile = profile::part(Part::Chunk, || format!("chunk {number}, from frame {from}"));
        let outcome = self.tiles(&mut live, sample, latent_frames, context);
        let until = live.chunk.as_ref().map_or(0, |chunk| chunk.until);
        let (chunks, plan) = (live.chunks, live.plan.clone());
        let ended = outcome.is_ok();
        if ended {
            live.chunk = None;
            live.chunks += 1;
        }
        self.live = Some(live);
        outcome?;
        if in_profile.is_some() {
            synchronize(device)?;
        }
        drop(in_profile);
        trim_between(device, plan.release)?;
        let peak = memory::of(device)?.peak.saturating_sub(self.base).saturating_add(self.weights());
        // The first frame's cost says little of the others; the last chunk is in the outcome of
        // the whole.
        if chunks > 0 && until < latent_frames {
            let spent = start.elapsed().saturating_sub(self.aside - aside);
            let pushed = f64::from(
                Chunks::of(&plan, self.job.input.vae.config.temporal_scale(), latent_frames as u32).latent_frames,
            );
            let clips = self.delivered.len() as f64;
            let share = pushed / latent_frames as f64 / clips;
            (context.learn)(&likely(spent, share, [peak, self.weights()]));
        }
        if until < latent_frames {
            check_peak(device, peak, self.job.request().memory_limit)?;
        }
        Ok(())
    }

    fn tiles(
        &mut self,
        live: &mut ClipState,
        sample: usize,
        latent_frames: i64,
        context: &mut AttemptContext<'_>,
    ) -> Attempted<()> {
        let config = &self.job.input.vae.config;
        let chunks = Chunks::of(&live.plan, config.temporal_scale(), latent_frames as u32);
        if live.chunk.is_none() {
            let pushed = live.tiles.iter().map(|tile| i64::from(tile.clip.frames_pushed())).min().unwrap_or(0);
            let until = (pushed + i64::from(chunks.latent_frames)).min(latent_frames);
            live.chunk = Some(Chunk { until, tile: 0, frames: Vec::new(), gathered: None });
        }
        loop {
            let (Some(chunk), count) = (&mut live.chunk, live.tiles.len()) else { return Ok(()) };
            if chunk.tile == count {
                break;
            }
            self.tile(live, sample, &chunks, context)?;
            if let Some(chunk) = &mut live.chunk {
                chunk.tile += 1;
            }
        }
        if let Some(gathered) = live.chunk.as_mut().and_then(|chunk| chunk.gathered.take()) {
            self.deliver(sample, &gathered)?;
        }
        Ok(())
    }

    /// The chunk's latent frames through one tile.
    fn tile(
        &mut self,
        live: &mut ClipState,
        sample: usize,
        chunks: &Chunks,
        context: &mut AttemptContext<'_>,
    ) -> Attempted<()> {
        let (device, all) = (self.job.machine.device, self.latent_frames());
        let ClipState { tiles, turns, chunk: Some(chunk), grid, plan, format, .. } = live else { return Ok(()) };
        let index = chunk.tile;
        let _tile = profile::part(Part::Tile, || format!("tile {index}"));
        let count = tiles.len();
        turns.take(device, tiles, index, plan.offload, |tile| tile.clip.state_mut())?;
        let tile = &mut tiles[index];
        let wanted = tile.format.unwrap_or(*format);
        let decoders = std::mem::take(&mut self.decoders);
        let decoder = decoders.iter().find(|decoder| decoder.format() == wanted);
        let outcome = (|| -> Attempted<()> {
            let decoder = decoder.ok_or_else(|| tilewright_torch::Error::Torch("a decoder is not loaded".into()))?;
            let band = if let Space::Exact(tile) = plan.space { Some(tile.height) } else { None };
            let height = tile.place[0].1 as u32 * self.job.input.vae.config.spatial_scale();
            let spread = Spread { frames: chunks.frames, band, height };
            loop {
                let pushed = i64::from(tile.clip.frames_pushed());
                let latents = match tile.clip.is_settled() {
                    false => None,
                    true if pushed >= chunk.until => break,
                    true => {
                        let most = i64::from(chunks.pushed).min(chunk.until - pushed);
                        Some(self.latents(sample, pushed, most, &tile.place)?)
                    }
                };
                self.push(
                    decoder,
                    &mut tile.clip,
                    latents.as_ref(),
                    &spread,
                    chunk,
                    (sample, index, count),
                    grid.is_some(),
                    context,
                )?;
            }
            if i64::from(tile.clip.frames_pushed()) >= all {
                tile.clip.end();
            }
            if let Some(grid) = grid {
                grid.gather(chunk, index, &tile.place, self.job)?;
            }
            Ok(())
        })();
        self.decoders = decoders;
        outcome
    }

    #[allow(clippy::too_many_arguments, reason = "what one push needs, borrowed from different places")]
    fn push(
        &mut self,
        decoder: &Decoder,
        clip: &mut Clip,
        latents: Option<&Tensor>,
        spread: &Spread,
        chunk: &mut Chunk,
        (sample, index, count): (usize, usize, usize),
        gathers: bool,
        context: &mut AttemptContext<'_>,
    ) -> Attempted<()> {
        let all = f64::from(self.job.request().frames) * self.delivered.len() as f64;
        let before = self.delivered.iter().map(|frames| f64::from(*frames)).sum::<f64>();
        let temporal = f64::from(self.job.input.vae.config.temporal_scale());
        let latent_frames = latents.map_or(1.0, |latents| latents.size()[2] as f64);
        let part = latent_frames * temporal / all;
        let mut refused: Option<AttemptError> = None;
        let mut step = |share: f64| {
            let tiles = (index as f64 + share) / count as f64;
            // Frames of this push that have left are in `before` next time.
            context.progress(((before / all) + part * tiles).min(1.0))
        };
        let mut emit = |frames: Tensor| {
            let outcome = match non_finite(&frames) {
                Ok(0) if gathers => {
                    chunk.frames.push(frames);
                    Ok(())
                }
                Ok(0) => self.deliver(sample, &frames),
                Ok(values) => Err(AttemptError::Failed(Failure::NonFinite { values })),
                Err(error) => Err(error.into()),
            };
            outcome.map_err(|stopped| {
                refused = Some(stopped);
                tilewright_models::Error::Cancelled
            })
        };
        let outcome = decoder.push(clip, latents, spread, &mut step, &mut emit);
        if let Some(stopped) = refused {
            return Err(stopped);
        }
        Ok(outcome?)
    }

    /// A tile's part of latent frames, on the device.
    fn latents(&self, sample: usize, first: i64, count: i64, place: &[(i64, i64); 2]) -> Result<Tensor> {
        let [(top, rows), (left, columns)] = *place;
        let part = self.job.input.latents.f_narrow(0, sample as i64, 1)?.f_narrow(2, first, count)?;
        Ok(part.f_narrow(3, top, rows)?.f_narrow(4, left, columns)?.f_to_device(self.job.machine.device)?)
    }

    fn deliver(&mut self, sample: usize, frames: &Tensor) -> Attempted<()> {
        synchronize(self.job.machine.device)?;
        let start = Instant::now();
        let mut frames = frames.shallow_clone();
        transfer::swap(self.job.machine.device, vec![&mut frames], Vec::new())?;
        let frames = frames.f_contiguous()?;
        if frames.size()[0] == 0 {
            return Ok(());
        }
        let outcome = self.sink.frames(sample as u32, self.delivered[sample], &frames);
        self.aside += start.elapsed();
        outcome.map_err(|error| AttemptError::Broken(Error::Sink(error)))?;
        let first = self.delivered[sample];
        self.kept.keep(|_| format!("{sample}.from_frame.{first}"), &frames);
        self.delivered[sample] += frames.size()[0] as u32;
        Ok(())
    }
}

impl Task<Vae> for ClipDecoding<'_> {
    type Output = ();

    fn inputs(&mut self) -> tilewright_capture::Result<Inputs> {
        let ClipLatents { vae, latents } = self.job.input;
        Ok(Inputs::new(Values::of([("input".into(), latents)])?, &vae.capture_facts()))
    }

    fn outputs(&mut self, _: &()) -> tilewright_capture::Result<Values> {
        self.kept.take()
    }

    fn goes_on(&self) -> bool {
        self.live.is_some() || self.delivered.iter().any(|delivered| *delivered > 0)
    }

    fn keep_for_capture(&mut self) {
        self.kept.begin();
    }

    fn attempt(&mut self, plan: &Plan, context: &mut AttemptContext<'_>) -> Attempted<((), Outcome)> {
        let device = self.job.machine.device;
        let format = PlanFormat::of(plan, &kernels(device)).compute()?;
        load(context, |step| self.load(format, step))?;
        // State that an earlier attempt left in the clip counts as this one's.
        let state = self.live.as_ref().map_or(0, |live| live.bytes(device));
        self.base = memory::of(device)?.in_use.saturating_sub(state);
        let aside = self.aside;
        let start = Instant::now();
        let allowance = Allowance { limit: self.job.request().memory_limit, weights: self.weights(), state };
        let outcome =
            self.job.input.vae.measure(device, allowance, || {
                settle(device, plan.release, self.samples_profiled(plan, format, context))
            });
        self.elapsed += start.elapsed().saturating_sub(self.aside - aside);
        self.not_finite = matches!(outcome, Err(AttemptError::Failed(Failure::NonFinite { .. })));
        if outcome.is_ok() {
            self.decoders.clear();
        }
        let ((), outcome) = outcome?;
        Ok(((), Outcome { elapsed: self.elapsed, ..outcome }))
    }

    fn check_files(&self) -> Result<()> {
        Ok(self.job.input.vae.check_unchanged()?)
    }

    fn advice(&self, plan: &Plan, failure: Failure) -> String {
        self.job.advice(plan, failure)
    }

    fn resumed(&self) -> u32 {
        self.resumed
    }

    fn under_way(&self, _: Option<&Plan>) -> Option<UnderWay> {
        // The first chunks show what a plan takes: what fails there may begin anew in any way.
        let live = self.live.as_ref().filter(|live| live.chunks > 1)?;
        Some(UnderWay { done: self.delivered[live.sample], plan: live.plan.clone() })
    }
}

impl ClipState {
    fn new(job: &ClipJob<'_>, sample: usize, done: u32, plan: &Plan, format: ComputeFormat) -> Result<Self> {
        let scale = job.input.vae.config.spatial_scale();
        let (_, _, _, height, width) = job.input.latents.size5()?;
        let clip = || Clip::from_frame(&job.input.vae.config, done);
        let (tiles, grid) = match plan.space {
            Space::Whole | Space::Exact(_) => {
                (vec![Tile { clip: clip(), format: None, place: [(0, height), (0, width)] }], None)
            }
            Space::Blended(tile) => {
                let grid = Grid::new(job.request().height, job.request().width, tile);
                let latent = |extent: u32| i64::from(extent / scale);
                let places: Vec<_> = grid.tiles().collect();
                let tiles = places.iter().map(|(row, column)| Tile {
                    clip: clip(),
                    format: None,
                    place: [
                        (latent(grid.rows.starts[*row]), latent(grid.rows.tile)),
                        (latent(grid.columns.starts[*column]), latent(grid.columns.tile)),
                    ],
                });
                let (tiles, scale) = (tiles.collect(), i64::from(scale));
                let [rows, columns] = ramps(&grid, job.machine.device)?;
                (tiles, Some(Faded { rows, columns, places, scale }))
            }
        };
        Ok(Self { sample, plan: plan.clone(), format, tiles, turns: Turns::default(), grid, chunk: None, chunks: 0 })
    }

    /// Bytes of the state on a device, and of what is under way.
    fn bytes(&self, device: Device) -> u64 {
        let chunk = self.chunk.as_ref();
        let frames = chunk.into_iter().flat_map(|chunk| chunk.frames.iter().chain(&chunk.gathered));
        let frames: usize = frames.map(|frames| 4 * frames.numel()).sum();
        (self.tiles.iter().map(|tile| tile.clip.bytes(device)).sum::<usize>() + frames) as u64
    }

    /// True if a plan divides the area and orders the work so that the state can be kept.
    fn divides_as(&self, plan: &Plan) -> bool {
        let is_undivided = |space: &Space| !matches!(space, Space::Blended(_));
        let is_whole_in_time = |plan: &Plan| plan.time == tilewright_plan::Time::Whole;
        let [own, other] = [&self.plan, plan];
        (own.space == other.space || is_undivided(&own.space) && is_undivided(&other.space))
            && (is_undivided(&other.space) || is_whole_in_time(own) == is_whole_in_time(other))
            && own.layout == other.layout
    }

    /// The tile that failed, if a wider type may mend it; `None` if it was in f32 or TF32.
    fn failed_tile(&self) -> Option<usize> {
        let narrow = !matches!(self.plan.precision.dtype(), Dtype::F32 | Dtype::Tf32);
        self.chunk.as_ref().map(|chunk| chunk.tile).filter(|tile| narrow && *tile < self.tiles.len())
    }
}

impl Faded {
    /// Adds the frames of a tile, which are whole and finite, to those of the others.
    fn gather(&self, chunk: &mut Chunk, index: usize, place: &[(i64, i64); 2], job: &ClipJob<'_>) -> Result<()> {
        let count: i64 = chunk.frames.iter().map(|frames| frames.size()[0]).sum();
        let (height, width) = (i64::from(job.request().height), i64::from(job.request().width));
        let gathered = match chunk.gathered.take() {
            Some(gathered) => gathered,
            None => {
                let shape = [count, job.input.vae.config.image_channels as i64, height, width];
                Tensor::f_zeros(shape, (Kind::Float, job.machine.device))?
            }
        };
        let gathered = chunk.gathered.insert(gathered);
        let (row, column) = self.places[index];
        let (rows, columns) = (&self.rows[row], &self.columns[column]);
        let (tall, wide) = (rows.size()[2], columns.size()[3]);
        let [top, left] = place.map(|(first, _)| first * self.scale);
        let mut first = 0;
        for frames in chunk.frames.drain(..) {
            let weighted = frames.f_mul(rows)?.f_mul_(columns)?;
            let part = gathered.f_narrow(0, first, frames.size()[0])?;
            let _ = part.f_narrow(2, top, tall)?.f_narrow(3, left, wide)?.f_add_(&weighted)?;
            first += frames.size()[0];
        }
        Ok(())
    }
}
