//! The picture that a clip begins from: its first frame, and what a vision encoder makes of it.

mod stage;

use std::{path::Path, sync::Arc};

use tch::{Device, Kind, Tensor};
use tilewright_engine::{Budget, Finished, Machine, Observer, TextJob, Texts, WeightStore};
use tilewright_media::{Filter, Frame, read_picture, resize};
use tilewright_models::{Checkpoint, EncoderFile, Error as ModelError};
use tilewright_plan::Objective;
use tilewright_sampling::Convention;
use tilewright_torch::scalar;
use tilewright_wording::Setting;

pub use self::stage::{StartFile, StartStage};
use crate::{EncoderRun, Error, Parts, Result, SampleModel, TextPlanning};

/// The folder of a vision encoder in a pipeline's.
const FOLDERS: [&str; 1] = ["image_encoder"];

/// Mean and deviation of the channels that CLIP was trained with
/// (huggingface.co/openai/clip-vit-large-patch14, preprocessor_config.json).
const MEAN: [f32; 3] = [0.481_454_66, 0.457_827_5, 0.408_210_73];
const DEVIATION: [f32; 3] = [0.268_629_54, 0.261_302_6, 0.275_777_1];

/// Channels of a condition's mask.
const MASK_CHANNELS: i64 = 4;

/// A picture that a clip begins from.
#[derive(Debug)]
pub struct StartImage {
    frame: Frame,
    convention: Convention,
}

/// A vision encoder, opened and not loaded.
#[derive(Debug)]
pub struct VisionEncoder(Arc<EncoderFile>);

impl StartImage {
    /// Reads a picture, of which red, green and blue count.
    ///
    /// # Errors
    /// It is no picture.
    pub fn open(path: &Path, convention: Convention) -> Result<Self> {
        let (mut frame, _) = read_picture(path)?;
        let area = frame.width as usize * frame.height as usize;
        match frame.channels {
            1 => frame.values = frame.values.repeat(3),
            _ => frame.values.truncate(3 * area),
        }
        frame.channels = 3;
        Ok(Self { frame, convention })
    }

    /// The first frame [3, height, width] in −1…1. ComfyUI scales the middle of the picture
    /// (`common_upscale`, bilinear, center), diffusers all of it (`VaeImageProcessor`, Lanczos).
    ///
    /// # Errors
    /// Memory is out.
    pub fn first_frame(&self, [width, height]: [u32; 2]) -> Result<Tensor> {
        if [self.frame.width, self.frame.height] == [width, height] {
            return planes(&self.frame);
        }
        match self.convention {
            Convention::Diffusers => planes(&resize(&self.frame, width, height, Filter::Lanczos)),
            Convention::ComfyUi => {
                let (old, new) =
                    (f64::from(self.frame.width) / f64::from(self.frame.height), f64::from(width) / f64::from(height));
                let whole = planes(&self.frame)?;
                let [tall, wide] = [whole.size()[1], whole.size()[2]];
                let margin =
                    |side: i64, share: f64| ((side as f64 - side as f64 * share) / 2.0).round_ties_even() as i64;
                let (x, y) = match old > new {
                    true => (margin(wide, new / old), 0),
                    false => (0, margin(tall, old / new)),
                };
                let middle = whole.f_narrow(1, y, tall - 2 * y)?.f_narrow(2, x, wide - 2 * x)?;
                let size = [i64::from(height), i64::from(width)];
                let scaled = middle.f_unsqueeze(0)?.f_upsample_bilinear2d(size, false, None::<f64>, None::<f64>)?;
                Ok(scaled.f_squeeze_dim(0)?)
            }
        }
    }

    /// The picture as a vision encoder sees it, [1, 3, side, side]. ComfyUI scales it without
    /// regard to its sides' ratio (`clip_preprocess`, crop none), diffusers its shorter side
    /// (`CLIPImageProcessor`).
    fn seen(&self, side: i64) -> Result<Tensor> {
        let to = u32::try_from(side).unwrap_or(u32::MAX);
        let pixels = match self.convention {
            Convention::Diffusers => {
                let [width, height] = [self.frame.width, self.frame.height].map(u64::from);
                let shorter = width.min(height).max(1);
                let scaled = |own: u64| u32::try_from(own * u64::from(to) / shorter).unwrap_or(u32::MAX).max(1);
                let resized = resize(&self.frame, scaled(width), scaled(height), Filter::Bicubic);
                let [tall, wide] = [i64::from(resized.height), i64::from(resized.width)];
                let pixels = planes(&resized)?;
                pixels.f_narrow(1, (tall - side) / 2, side)?.f_narrow(2, (wide - side) / 2, side)?.f_unsqueeze(0)?
            }
            Convention::ComfyUi => {
                let whole = unit(&planes(&self.frame)?.f_unsqueeze(0)?)?;
                let scaled = whole.f_internal_upsample_bicubic2d_aa([side, side], false, None::<f64>, None::<f64>)?;
                let bytes = scalar::clamp(&scalar::multiply(&scaled, 255.0)?, 0.0, 255.0)?.f_round()?;
                scalar::add(&scalar::multiply(&bytes, 2.0 / 255.0)?, -1.0)?
            }
        };
        let of = |values: &[f32; 3]| Tensor::f_from_slice(values)?.f_reshape([1, 3, 1, 1]);
        Ok(unit(&pixels)?.f_sub(&of(&MEAN)?)?.f_divide(&of(&DEVIATION)?)?)
    }
}

/// −1…1 as 0…1.
fn unit(pixels: &Tensor) -> Result<Tensor> {
    Ok(scalar::multiply(&scalar::add(pixels, 1.0)?, 0.5)?)
}

fn planes(frame: &Frame) -> Result<Tensor> {
    let shape = [frame.channels as i64, i64::from(frame.height), i64::from(frame.width)];
    Ok(Tensor::f_from_slice(&frame.values)?.f_reshape(shape)?)
}

impl VisionEncoder {
    /// Opens the encoder in a file, a folder or a checkpoint of several networks.
    ///
    /// # Errors
    /// The file is unsound, or holds no such encoder.
    pub fn open(path: &Path) -> Result<Self> {
        let checkpoint = Arc::new(Checkpoint::open_part(path, &FOLDERS).map_err(ModelError::from)?);
        let encoder = EncoderFile::find_vision(&checkpoint)?;
        encoder.check()?;
        Ok(Self(Arc::new(encoder)))
    }

    /// The encoder among a model's parts whose states of a picture its transformer takes; none for
    /// a transformer that takes none.
    ///
    /// # Errors
    /// There is none, or it is another.
    pub fn of(model: &SampleModel, parts: &Parts) -> Result<Option<Self>> {
        let Some(width) = model.image_width() else { return Ok(None) };
        let path = parts.vision_encoder.as_deref().ok_or(Error::NoVisionEncoder { width })?;
        let encoder = Self::open(path)?;
        encoder.check(model)?;
        Ok(Some(encoder))
    }

    /// Checks that a transformer was trained with it.
    ///
    /// # Errors
    /// The transformer takes no such states, or others.
    pub fn check(&self, transformer: &SampleModel) -> Result<()> {
        let (width, own) = (transformer.image_width(), self.0.config.hidden());
        if width == Some(own) {
            return Ok(());
        }
        let reason = match width {
            Some(width) => {
                format!("states {own} wide, and the transformer takes {width}: give clip_vision_h.safetensors")
            }
            None => {
                format!("a vision encoder, and the transformer takes none: leave {} out", Setting::VisionEncoder)
            }
        };
        Err(self.refused(&reason))
    }

    /// The states of a picture before the last block, [1, tokens, width], and the encoder's run, as
    /// the planner decides it.
    ///
    /// # Errors
    /// The encoder can't be loaded or run; memory is out; the user ended it.
    pub fn encode(
        &self,
        (machine, host): (&Machine, Option<&Machine>),
        (memory_limit, objective): (u64, Objective),
        image: &StartImage,
        planning: &mut TextPlanning<'_>,
        observer: &mut dyn Observer,
    ) -> Result<(Tensor, EncoderRun)> {
        let _no_grad = tch::no_grad_guard();
        let embedded = [self.embed(image)?];
        // A picture is seen once.
        let weights = WeightStore::new(Budget::Bytes(0));
        let texts = Texts { encoder: &self.0, weights: &weights, embedded: &embedded, left_out: 1 };
        let job = TextJob::new(machine, host, texts, memory_limit, objective)?;
        let (Finished { output, record, candidates, log }, exchange) = planning.run(job, observer)?;
        let inner = output.into_iter().next().and_then(|states| states.inner);
        let states = inner.ok_or_else(|| self.refused("no states of a picture"))?;
        Ok((states, EncoderRun { exchange, log, candidates, ..self.run(record)? }))
    }

    /// Decides about the run on a picture that nobody has looked at, and carries nothing out.
    ///
    /// # Errors
    /// Not even the leanest plan fits.
    pub fn decide(
        &self,
        (machine, host): (&Machine, Option<&Machine>),
        (memory_limit, objective): (u64, Objective),
        planning: &mut TextPlanning<'_>,
    ) -> Result<EncoderRun> {
        let (embedded, weights) = ([self.stand_in()?], WeightStore::new(Budget::Bytes(0)));
        let texts = Texts { encoder: &self.0, weights: &weights, embedded: &embedded, left_out: 1 };
        let job = planning.trials.remind(TextJob::new(machine, host, texts, memory_limit, objective)?);
        let (record, candidates) = job.decide(planning.planner);
        let exchange = planning.planner.take();
        Ok(EncoderRun { exchange, candidates, ..self.run(record)? })
    }

    /// Refuses an encoder that does not fit in a limit, before a picture is read for it.
    ///
    /// # Errors
    /// Not even the leanest plan fits.
    pub fn check_fit(&self, machines: (&Machine, Option<&Machine>), memory_limit: u64) -> Result<()> {
        let ((machine, host), embedded, weights) = (machines, [self.stand_in()?], WeightStore::new(Budget::Bytes(0)));
        let texts = Texts { encoder: &self.0, weights: &weights, embedded: &embedded, left_out: 1 };
        Ok(TextJob::new(machine, host, texts, memory_limit, Objective::Leanest).map(drop)?)
    }

    /// The run of a decision, with nothing beside it.
    fn run(&self, record: tilewright_plan::TextRecord) -> Result<EncoderRun> {
        let (_, [tokens, _]) = self.extents()?;
        Ok(EncoderRun::of(&self.0, tokens as usize, record))
    }

    /// The states that stand for those of a picture to come.
    fn stand_in(&self) -> Result<Tensor> {
        let (_, [tokens, width]) = self.extents()?;
        Ok(scalar::stand_in(&[1, tokens, width])?)
    }

    fn refused(&self, reason: &str) -> Error {
        Error::input(self.0.file().file().path(), reason)
    }

    /// Pixels along a side of the picture that it sees, and the tokens of its states with their
    /// width.
    fn extents(&self) -> Result<(i64, [i64; 2])> {
        let config = &self.0.config;
        match (config.picture(), config.positions()) {
            (Some(picture), Some(tokens)) => Ok((picture.side, [tokens, config.hidden()])),
            _ => Err(self.refused("an encoder of text, not of pictures")),
        }
    }

    fn embed(&self, image: &StartImage) -> Result<Tensor> {
        let (side, _) = self.extents()?;
        Ok(self.0.embed_pictures(&image.seen(side)?)?)
    }
}

impl SampleModel {
    /// The width of the states of a picture that the transformer takes, if it takes some.
    pub fn image_width(&self) -> Option<i64> {
        self.denoiser.config().facts().widths.image
    }

    /// The condition [1, 4 + C, T, h, w] of a clip whose first frame is given: a mask, and then the
    /// latents [1, C, T, h, w] of that frame and grey ones, which are in the VAE's own space.
    ///
    /// # Errors
    /// Memory is out.
    pub fn condition_of(&self, latents: &Tensor) -> Result<Tensor> {
        let mut shape = latents.size();
        shape[1] = MASK_CHANNELS;
        let mask = Tensor::f_zeros(&shape, (Kind::Float, Device::Cpu))?;
        mask.f_narrow(2, 0, 1)?.f_copy_(&Tensor::f_ones([1], (Kind::Float, Device::Cpu))?)?;
        Ok(Tensor::f_cat(&[mask, self.from_vae(latents)?], 1)?)
    }

    /// Latents [1, C, T, h, w] of which the first frame is given, and their mask [1, 1, T, h, w]: 1
    /// where they are made again.
    ///
    /// # Errors
    /// Memory is out.
    pub fn held_first(&self, first: &Tensor, frames: u32) -> Result<[Tensor; 2]> {
        let [_, time] = self.scales();
        let mut shape = first.size();
        shape[2] = i64::from((frames.max(1) - 1) / time) + 1;
        let latents = Tensor::f_zeros(&shape, (Kind::Float, Device::Cpu))?;
        latents.f_narrow(2, 0, 1)?.f_copy_(&first.f_narrow(2, 0, 1)?)?;
        shape[1] = 1;
        let mask = Tensor::f_ones(&shape, (Kind::Float, Device::Cpu))?;
        mask.f_narrow(2, 0, 1)?.f_copy_(&Tensor::f_zeros([1], (Kind::Float, Device::Cpu))?)?;
        Ok([latents, mask])
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, path::PathBuf};

    use tilewright_fixtures::fixture;

    use super::*;

    fn picture(name: &str) -> PathBuf {
        fixture("text-clip-vision").join(name)
    }

    #[test]
    fn pictures_are_prepared_as_both_references_do() {
        let prepared: HashMap<String, Tensor> =
            Tensor::read_safetensors(picture("prepared.safetensors")).unwrap().into_iter().collect();
        // ComfyUI's are with its crop of the middle, which the others don't have.
        for (name, convention) in [
            ("37x23", Convention::Diffusers),
            ("50x91", Convention::Diffusers),
            ("64x64", Convention::Diffusers),
            ("64x64", Convention::ComfyUi),
        ] {
            let ending = if convention == Convention::ComfyUi { ".comfyui" } else { "" };
            let image = StartImage::open(&picture(&format!("{name}.png")), convention).unwrap();
            let apart = (image.seen(28).unwrap() - &prepared[&format!("{name}{ending}")]).abs();
            // A value between two bytes may be rounded to the other one.
            let (largest, mean) = (apart.max().double_value(&[]), apart.mean(Kind::Float).double_value(&[]));
            assert!(largest < 2e-2 && mean < 1e-5, "{name}{ending}: {largest}, {mean}");
        }
    }

    #[test]
    fn a_first_frame_is_all_of_the_picture_or_its_middle() {
        let open = |convention| StartImage::open(&picture("50x91.png"), convention).unwrap();
        for convention in [Convention::ComfyUi, Convention::Diffusers] {
            let same = open(convention).first_frame([50, 91]).unwrap();
            assert_eq!(same.size(), [3, 91, 50]);
            assert_eq!(open(convention).first_frame([48, 32]).unwrap().size(), [3, 32, 48]);
        }
        // 51 of 91 rows, since half of 41 is rounded to an even number.
        let whole = open(Convention::ComfyUi).first_frame([50, 91]).unwrap();
        let middle = open(Convention::ComfyUi).first_frame([50, 50]).unwrap();
        let expected = whole.narrow(1, 20, 51).unsqueeze(0).upsample_bilinear2d([50, 50], false, None, None);
        assert!(middle.equal(&expected.squeeze_dim(0)));
    }
}
