//! Carries plans out on a clip, chunk by chunk, and remembers across attempts what was asked for
//! and what was encoded.

use std::time::{Duration, Instant};

use tch::{Device, Tensor};
use tilewright_models::{
    ComputeFormat, LoadStep, PlanFormat,
    wan_vae::{Encoder, EncoderState, Place, PlacedState},
};
use tilewright_plan::{Failure, Outcome, Plan, Stage, Vae};
use tilewright_prices::chunk;
use tilewright_torch::{
    device::synchronize,
    kernels, memory, non_finite,
    profile::{self, Part, Profiler},
};

use super::{ClipEncodeJob, ClipSource, EncodedClip, Frames, division::Division};
use crate::{
    Error, Result,
    capturing::{Inputs, Passing, Values},
    offload::Turns,
    profiling::{Unit, rehearsed},
    task::{Allowance, AttemptContext, AttemptError, Attempted, Task, check_peak, likely, load, settle, trim_between},
    weights::Lease,
};

/// An encode on its way.
pub(super) struct ClipEncoding<'a> {
    job: &'a ClipEncodeJob<'a>,
    source: &'a mut Frames<'a>,
    /// The latents of every chunk that is done, [1, C, t, h, w], in host memory.
    latents: Vec<Tensor>,
    /// Frames of the chunks that are done.
    encoded: u32,
    /// The clip had fewer frames than it promised.
    ended: bool,
    division: Division,
    /// The state of each tile: all have seen the same frames but for the chunk at work.
    states: Vec<EncoderState>,
    turns: Turns,
    chunk: Option<Chunk>,
    encoder: Option<Lease<Encoder>>,
    /// Chunks that came to their end.
    chunks: u32,
    /// Time spent encoding, failed attempts included: what was encoded in them is not encoded
    /// again.
    elapsed: Duration,
    /// Time that others took meanwhile: the source, and loading.
    aside: Duration,
    /// Bytes in use that are not this encode's.
    base: u64,
    /// The frames that the source gave, for a capture.
    kept: Passing,
}

/// Frames that are kept until all tiles have taken them.
struct Chunk {
    /// [T, C, H, W], in host memory.
    frames: Tensor,
    /// The tile at work.
    tile: usize,
    /// Frames that are through it.
    done: i64,
    /// The latents of the tile at work.
    latents: Vec<Tensor>,
    /// The latents of the tiles so far.
    gathered: Option<Tensor>,
}

impl<'a> ClipEncoding<'a> {
    pub fn new(job: &'a ClipEncodeJob<'a>, source: &'a mut Frames<'a>) -> Self {
        let (height, width) = (job.request().height, job.request().width);
        Self {
            job,
            source,
            latents: Vec::new(),
            encoded: 0,
            ended: false,
            division: Division::new(&tilewright_plan::Space::Whole, height, width, job.input.config.spatial_scale()),
            states: vec![EncoderState::default()],
            turns: Turns::default(),
            chunk: None,
            encoder: None,
            chunks: 0,
            elapsed: Duration::ZERO,
            aside: Duration::ZERO,
            base: 0,
            kept: Passing::default(),
        }
    }

    /// The division that a plan asks for.
    fn division(&self, plan: &Plan) -> Division {
        let request = self.job.request();
        Division::new(&plan.space, request.height, request.width, self.job.input.config.spatial_scale())
    }

    /// Asks for the next frames; none after the last.
    fn pull(&mut self, plan: &Plan) -> Attempted<Option<Chunk>> {
        let request = self.job.request();
        let temporal = self.job.input.config.temporal_scale();
        let count = match self.encoded {
            0 => 1,
            encoded => chunk(plan, temporal, request.frames).min(request.frames - encoded),
        };
        if count == 0 || self.ended {
            return Ok(None);
        }
        let start = Instant::now();
        let frames = (self.source)(count);
        self.aside += start.elapsed();
        let broken = |error| AttemptError::Broken(Error::Source(error));
        let frames = frames.map_err(broken)?;
        let size = frames.size();
        let expected =
            [self.job.input.config.image_channels as i64, i64::from(request.height), i64::from(request.width)];
        if size.len() != 4 || size[1..] != expected || size[0] > i64::from(count) {
            let reason = format!("frames of shape {size:?}: at most {count} of {expected:?} expected");
            return Err(broken(reason.into()));
        }
        self.ended = size[0] < i64::from(count);
        self.kept.keep(|index| format!("frames.{index}"), &frames);
        // Frames that make no whole latent frame are left out.
        let whole = if self.encoded == 0 { size[0] } else { size[0] - size[0] % i64::from(temporal) };
        if self.encoded == 0 && whole == 0 {
            return Err(broken("the clip has no frames".into()));
        }
        let frames = frames.f_narrow(0, 0, whole)?;
        let kept = Chunk { frames, tile: 0, done: 0, latents: Vec::new(), gathered: None };
        Ok((whole > 0).then_some(kept))
    }

    /// Makes the next chunk the one at work, unless one is under way: that ends in the division
    /// that it began in.
    fn begin_chunk(&mut self, plan: &Plan, wanted: &Division) -> Attempted<()> {
        if self.chunk.is_some() {
            return Ok(());
        }
        if self.division != *wanted {
            let places = wanted.places();
            self.states = self.division.relaid(self.states.iter(), &places)?;
            self.turns = Turns::default();
            self.division = wanted.clone();
        }
        self.chunk = self.pull(plan)?;
        Ok(())
    }

    /// Encodes the frames of the chunk at work apart, and drops their latents.
    fn rehearse(&mut self, plan: &Plan, context: &mut AttemptContext<'_>) -> Attempted<()> {
        let wanted = self.division(plan);
        let Some(frames) = self.chunk.as_ref().map(|chunk| chunk.frames.shallow_clone()) else { return Ok(()) };
        let mut source = |_| Ok(frames.shallow_clone());
        let mut rehearsal = ClipEncoding::new(self.job, &mut source);
        rehearsal.encoder = self.encoder.take();
        let ended = rehearsal.begin_chunk(plan, &wanted).and_then(|()| match rehearsal.chunk.take() {
            Some(mut chunk) => rehearsal.tiles(&mut chunk, plan, &wanted, context),
            None => Ok(()),
        });
        self.encoder = rehearsal.encoder.take();
        ended
    }

    /// [`Self::chunks`], under the profiler if the job asks for it.
    fn chunks_profiled(&mut self, plan: &Plan, context: &mut AttemptContext<'_>) -> Attempted<Tensor> {
        if !context.profiling.is_wanted {
            return self.chunks(plan, context);
        }
        // Only the beginning can be taken twice: the source gives each frame once.
        let is_fresh = self.encoded == 0 && self.chunk.is_none();
        let device = self.job.machine.device;
        let plain = match is_fresh {
            true => {
                self.begin_chunk(plan, &self.division(plan))?;
                let start = Instant::now();
                let plain = rehearsed(context, device, |context| self.rehearse(plan, context));
                self.aside += start.elapsed();
                plain?
            }
            false => Duration::ZERO,
        };
        let profiler = Profiler::begin(device, &Stage::Encode.to_string())?;
        let latents = self.chunks(plan, context)?;
        context.profiling.keep(profiler.end()?, Unit::Chunk, plain, device);
        Ok(latents)
    }

    fn chunks(&mut self, plan: &Plan, context: &mut AttemptContext<'_>) -> Attempted<Tensor> {
        let wanted = self.division(plan);
        loop {
            self.begin_chunk(plan, &wanted)?;
            let Some(mut chunk) = self.chunk.take() else { break };
            let (number, from) = (self.chunks, self.encoded);
            let in_profile = profile::part(Part::Chunk, || format!("chunk {number}, from frame {from}"));
            let (start, aside) = (Instant::now(), self.aside);
            let outcome = self.tiles(&mut chunk, plan, &wanted, context);
            if let Err(error) = outcome {
                self.chunk = Some(chunk);
                return Err(error);
            }
            let (frames, gathered) = (chunk.frames.size()[0] as u32, chunk.gathered.take());
            drop(chunk);
            synchronize(self.job.machine.device)?;
            drop(in_profile);
            self.latents.extend(gathered.map(|latents| latents.f_to_device(Device::Cpu)).transpose()?);
            self.encoded += frames;
            self.chunks += 1;
            self.ended_chunk(frames, start.elapsed().saturating_sub(self.aside - aside), plan, context)?;
        }
        Ok(Tensor::f_cat(&self.latents, 2)?)
    }

    /// Says what the chunk makes likely for the clip.
    fn ended_chunk(
        &self,
        frames: u32,
        spent: Duration,
        plan: &Plan,
        context: &mut AttemptContext<'_>,
    ) -> Attempted<()> {
        let (device, request) = (self.job.machine.device, self.job.request());
        trim_between(device, plan.release)?;
        let peak = memory::of(device)?.peak.saturating_sub(self.base).saturating_add(self.weights());
        let last = self.encoded >= request.frames;
        // The first frame's cost says little of the others; the last chunk is in the outcome of
        // the whole.
        if self.chunks > 1 && !last {
            let share = f64::from(frames) / f64::from(request.frames);
            (context.learn)(&likely(spent, share, [peak, self.weights()]));
        }
        if !last {
            check_peak(device, peak, request.memory_limit)?;
        }
        Ok(())
    }

    /// The chunk through every tile that has not taken it.
    fn tiles(
        &mut self,
        chunk: &mut Chunk,
        plan: &Plan,
        wanted: &Division,
        context: &mut AttemptContext<'_>,
    ) -> Attempted<()> {
        let device = self.job.machine.device;
        let places = self.division.places();
        // A chunk that another plan failed at is ended in pieces no larger than this plan's tiles,
        // if these are smaller.
        let pieces = (*wanted != self.division).then_some(plan.space);
        while let Some(place) = places.get(chunk.tile) {
            let tile = chunk.tile;
            let _tile = profile::part(Part::Tile, || format!("tile {tile}"));
            self.turns.take(device, &mut self.states, chunk.tile, plan.offload, EncoderState::state_mut)?;
            self.tile(chunk, place, pieces.as_ref(), places.len(), context)?;
            let latents = Tensor::f_cat(&chunk.latents, 2)?;
            self.division.gather(&mut chunk.gathered, chunk.tile, latents, device)?;
            chunk.latents.clear();
            (chunk.tile, chunk.done) = (chunk.tile + 1, 0);
        }
        Ok(())
    }

    /// The chunk's frames through one tile, as few at once as the network takes.
    fn tile(
        &mut self,
        chunk: &mut Chunk,
        place: &Place,
        pieces: Option<&tilewright_plan::Space>,
        tiles: usize,
        context: &mut AttemptContext<'_>,
    ) -> Attempted<()> {
        let (job, device) = (self.job, self.job.machine.device);
        let count = chunk.frames.size()[0];
        let [(top, rows), (left, columns)] = *place;
        let pieces =
            pieces.map(|space| Division::new(space, rows as u32, columns as u32, job.input.config.spatial_scale()));
        let all = f64::from(job.request().frames);
        while chunk.done < count {
            let at_once = i64::from(job.input.config.temporal_scale()).min(count - chunk.done);
            let part = chunk.frames.f_narrow(0, chunk.done, at_once)?;
            let part = part.f_narrow(2, top, rows)?.f_narrow(3, left, columns)?;
            let part = part.f_to_device(device)?.f_contiguous()?.f_transpose(0, 1)?.f_unsqueeze(0)?;
            let through = (chunk.tile as i64 * count + chunk.done) as f64;
            let before = f64::from(self.encoded) + through / tiles as f64;
            let mut step =
                |share: f64| context.progress(((before + share * at_once as f64 / tiles as f64) / all).min(1.0));
            let Some(encoder) = &self.encoder else {
                return Err(tilewright_torch::Error::Torch("no encoder is loaded".into()).into());
            };
            let state = &self.states[chunk.tile];
            let pushed = match &pieces {
                Some(division) if division.len() > 1 => in_pieces(encoder, state, &part, division, device, &mut step),
                _ => {
                    let mut state = state.snapshot();
                    encoder.push(&mut state, &part, &mut step).map_err(Error::from).map(|latents| (state, latents))
                }
            };
            // Until here the tile's state is the one from before.
            let (state, latents) = pushed?;
            match non_finite(&latents)? {
                0 => {}
                values => return Err(AttemptError::Failed(Failure::NonFinite { values })),
            }
            self.states[chunk.tile] = state;
            chunk.latents.push(latents);
            chunk.done += at_once;
        }
        Ok(())
    }

    /// The plan's encoder, leased if it is not there.
    fn load(&mut self, format: ComputeFormat, step: LoadStep<'_>) -> Result<((), Duration)> {
        if self.encoder.as_ref().is_some_and(|encoder| encoder.format() == format) {
            return Ok(((), Duration::ZERO));
        }
        // The old weights go first: both at once may not fit.
        self.encoder = None;
        let start = Instant::now();
        let ClipSource { vae, config } = &self.job.input;
        let (encoder, took) = vae.encoder(config, format, self.job.machine.device, step)?;
        self.encoder = Some(encoder);
        self.aside += start.elapsed();
        Ok(((), took))
    }

    /// The bytes of weights in use that the limit counts.
    fn weights(&self) -> u64 {
        self.job.counted_weights(self.encoder.as_ref().map_or(0, Lease::bytes))
    }

    /// Bytes of the states on the device, and of what is under way.
    fn bytes(&self) -> u64 {
        let of = |tensor: &Tensor| 4 * tensor.numel();
        let chunk =
            self.chunk.iter().flat_map(|chunk| chunk.latents.iter().chain(&chunk.gathered)).map(of).sum::<usize>();
        let waiting = match self.job.machine.device {
            Device::Cpu => {
                self.chunk.iter().map(|chunk| of(&chunk.frames)).sum::<usize>()
                    + self.latents.iter().map(of).sum::<usize>()
            }
            _ => 0,
        };
        (self.states.iter().map(|state| state.bytes(self.job.machine.device)).sum::<usize>() + chunk + waiting) as u64
    }
}

/// Frames through a part of the clip in smaller pieces, whose states come out of the part's and
/// make up its next one.
fn in_pieces(
    encoder: &Encoder,
    state: &EncoderState,
    frames: &Tensor,
    division: &Division,
    device: Device,
    step: &mut dyn FnMut(f64) -> tilewright_models::Result<()>,
) -> Result<(EncoderState, Tensor)> {
    let (.., height, width) = frames.size5()?;
    let area: Place = [(0, height), (0, width)];
    let whole = PlacedState { state, place: area, share: area };
    let places = division.places();
    let (mut after, mut gathered) = (EncoderState::default(), None);
    for (index, (place, own)) in places.iter().zip(division.shares()).enumerate() {
        let mut state = EncoderState::relaid(&[whole], &[*place])?.into_iter().next().unwrap_or_default();
        let [(top, rows), (left, columns)] = *place;
        let piece = frames.f_narrow(3, top, rows)?.f_narrow(4, left, columns)?;
        let mut within = |share: f64| step((index as f64 + share) / places.len() as f64);
        let latents = encoder.push(&mut state, &piece, &mut within)?;
        division.gather(&mut gathered, index, latents, device)?;
        after.absorb(&PlacedState { state: &state, place: *place, share: own }, &area)?;
    }
    Ok((after, gathered.unwrap_or_default()))
}

impl Task<Vae> for ClipEncoding<'_> {
    type Output = EncodedClip;

    fn inputs(&mut self) -> tilewright_capture::Result<Inputs> {
        Ok(Inputs::new(self.kept.take()?, &self.job.input.vae.capture_facts()))
    }

    fn outputs(&mut self, output: &EncodedClip) -> tilewright_capture::Result<Values> {
        Values::of([("output".into(), &output.latents)])
    }

    fn goes_on(&self) -> bool {
        self.encoded > 0 || self.chunk.is_some()
    }

    fn keep_for_capture(&mut self) {
        self.kept.begin();
    }

    fn attempt(&mut self, plan: &Plan, context: &mut AttemptContext<'_>) -> Attempted<(EncodedClip, Outcome)> {
        let device = self.job.machine.device;
        let format = PlanFormat::of(plan, &kernels(device)).compute()?;
        load(context, |step| self.load(format, step))?;
        // State that an earlier attempt left in the clip counts as this one's.
        let state = self.bytes();
        self.base = memory::of(device)?.in_use.saturating_sub(state);
        let aside = self.aside;
        let start = Instant::now();
        let allowance = Allowance { limit: self.job.request().memory_limit, weights: self.weights(), state };
        let vae = &self.job.input.vae;
        let outcome =
            vae.measure(device, allowance, || settle(device, plan.release, self.chunks_profiled(plan, context)));
        self.elapsed += start.elapsed().saturating_sub(self.aside - aside);
        if outcome.is_ok() {
            self.encoder = None;
        }
        let (latents, outcome) = outcome?;
        Ok((EncodedClip { latents, frames: self.encoded }, Outcome { elapsed: self.elapsed, ..outcome }))
    }

    fn check_files(&self) -> Result<()> {
        Ok(self.job.input.vae.check_unchanged()?)
    }

    fn advice(&self, plan: &Plan, failure: Failure) -> String {
        self.job.advice(plan, failure)
    }
}
