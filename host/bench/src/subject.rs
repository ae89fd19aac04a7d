//! What is decoded, pictures or clips, so that a contest need not know which.

use std::error::Error as StdError;

use tch::Tensor;
use tilewright_engine::{ClipJob, DecodeJob, Machine, Observer, Sink, Unfinished, Vae, VideoVae};
use tilewright_plan::{Cost, Objective, Plan, Planner, Record, Request};

/// Latents in the autoencoder's own space, f32, and the weights that they are decoded with.
#[derive(Clone, Copy, Debug)]
pub enum Subject<'a> {
    /// [N, C, h, w].
    Pictures(&'a Vae, &'a Tensor),
    /// [N, C, T, h, w].
    Clips(&'a VideoVae, &'a Tensor),
}

impl<'a> Subject<'a> {
    /// A request for a decode within a limit in bytes, weights aside; in one line why not.
    pub(crate) fn job(
        self,
        machine: &'a Machine,
        memory_limit: u64,
        objective: Objective,
    ) -> std::result::Result<Box<dyn Decode + 'a>, String> {
        let made: tilewright_engine::Result<Box<dyn Decode + 'a>> = match self {
            Subject::Pictures(vae, latents) => {
                DecodeJob::new(machine, vae, latents, memory_limit, objective).map(|job| Box::new(job) as _)
            }
            Subject::Clips(vae, latents) => {
                ClipJob::new(machine, vae, latents, memory_limit, objective).map(|job| Box::new(job) as _)
            }
        };
        made.map_err(|error| error.to_string())
    }
}

/// A decode that came to its end.
pub(crate) struct Decoded {
    pub record: Record,
    /// Pictures [N, C, H, W] in about −1…1, f32, in host memory; of clips [N·T, C, H, W]. None where they were not to be kept.
    pub pictures: Option<Tensor>,
}

/// One of the engine's jobs.
pub(crate) trait Decode {
    fn request(&self) -> &Request;

    /// The price of a plan, or in one line why it can't be carried out.
    fn estimate(&self, plan: &Plan) -> std::result::Result<Cost, String>;

    fn decode(
        &self,
        planner: &mut dyn Planner,
        observer: &mut dyn Observer,
        keeps: bool,
    ) -> std::result::Result<Decoded, Unfinished>;
}

impl Decode for DecodeJob<'_> {
    fn request(&self) -> &Request {
        self.request()
    }

    fn estimate(&self, plan: &Plan) -> std::result::Result<Cost, String> {
        self.estimate(plan)
    }

    fn decode(
        &self,
        planner: &mut dyn Planner,
        observer: &mut dyn Observer,
        keeps: bool,
    ) -> std::result::Result<Decoded, Unfinished> {
        let finished = self.run(planner, observer)?;
        Ok(Decoded { record: finished.record, pictures: keeps.then_some(finished.output) })
    }
}

impl Decode for ClipJob<'_> {
    fn request(&self) -> &Request {
        self.request()
    }

    fn estimate(&self, plan: &Plan) -> std::result::Result<Cost, String> {
        self.estimate(plan)
    }

    fn decode(
        &self,
        planner: &mut dyn Planner,
        observer: &mut dyn Observer,
        keeps: bool,
    ) -> std::result::Result<Decoded, Unfinished> {
        let mut kept = Kept { keeps, ..Kept::default() };
        let finished = self.run(planner, observer, &mut kept, &[])?;
        let pictures = if keeps { Some(kept.pictures()?) } else { None };
        Ok(Decoded { record: finished.record, pictures })
    }
}

/// Keeps frames outside of libtorch's memory, which is what is measured; or lets them go.
#[derive(Default)]
struct Kept {
    keeps: bool,
    values: Vec<f32>,
    /// Channels, height and width of a frame.
    frame: [i64; 3],
}

impl Sink for Kept {
    fn frames(
        &mut self,
        _sample: u32,
        _first: u32,
        frames: &Tensor,
    ) -> std::result::Result<(), Box<dyn StdError + Send + Sync>> {
        if self.keeps {
            let (_, channels, height, width) = frames.size4()?;
            self.frame = [channels, height, width];
            let before = self.values.len();
            self.values.resize(before + frames.numel(), 0.0);
            frames.f_copy_data(&mut self.values[before..], frames.numel())?;
        }
        Ok(())
    }
}

impl Kept {
    /// Frames came in order, sample by sample.
    fn pictures(&self) -> tilewright_engine::Result<Tensor> {
        let [channels, height, width] = self.frame;
        Ok(Tensor::f_from_slice(&self.values)?.f_view([-1, channels, height, width])?)
    }
}
