//! A clip on its way through the network. Latent frames are pushed in, frames come out; between pushes only the causal state is held.
//!
//! Few frames go all the way through the layers before the next ones follow, as few as the caller asks for: what is held besides the
//! state depends on that number and not on the clip. What is not through when memory is out stays where it was, and goes on from there.

use tch::Tensor;

use super::{
    decoder::Decoder,
    layers::{Origin, Past, prepare, unpatch},
};
use crate::{Result, kl::Numeric};

/// How a clip is spread over time and memory. Nothing of it changes the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// Output frames that run through the last layers at once; earlier layers take as many as these are made of, one at least.
    pub frames: u32,
    /// Output rows of a band, where libtorch's convolutions take their input in bands.
    pub band: Option<u32>,
    /// Height of the output, which bands are measured in.
    pub height: u32,
}

impl Spread {
    /// Rows of a band in a layer of this height.
    pub(super) fn band_of(&self, height: i64) -> Option<i64> {
        let whole = i64::from(self.height.max(1));
        self.band.map(|band| (i64::from(band) * height / whole).max(LEAST_ROWS).min(height))
    }
}

/// The fewest rows of a band: below this most of it would be its neighbours' rows.
const LEAST_ROWS: i64 = 8;

/// Frames somewhere in the network.
#[derive(Debug)]
pub(super) struct Piece {
    /// The layer that comes next.
    pub layer: usize,
    /// [T, C, H, W]
    pub frames: Tensor,
    /// Within a residual layer: what is hidden, beside what it will be added to.
    pub hidden: Option<Tensor>,
    /// How far the layer came.
    pub done: i64,
    /// The layer's convolution is done, its shortcut not yet.
    pub convolved: bool,
    /// Within a block whose input is added to its output: the input that each frame came from.
    pub origins: Vec<Origin>,
}

impl Piece {
    /// Takes the frames after the first `count` off.
    fn split(&mut self, count: i64) -> Result<Self> {
        let rest = |tensor: &Tensor| -> Result<Tensor> { Ok(tensor.f_narrow(0, count, tensor.size()[0] - count)?) };
        let first = |tensor: &Tensor| -> Result<Tensor> { Ok(tensor.f_narrow(0, 0, count)?) };
        let (frames, hidden) = (rest(&self.frames)?, self.hidden.as_ref().map(rest).transpose()?);
        self.hidden = self.hidden.as_ref().map(first).transpose()?;
        self.frames = first(&self.frames)?;
        let kept = self.origins.len().min(count as usize);
        let origins = self.origins.split_off(kept);
        Ok(Self { layer: self.layer, frames, hidden, done: 0, convolved: false, origins })
    }

    /// Each frame but the clip's first has become two.
    pub fn double_origins(&mut self, first: bool) {
        let mut doubled = Vec::new();
        for (index, origin) in self.origins.drain(..).enumerate() {
            if index > 0 || !first {
                doubled.push(Origin { frame: origin.frame.shallow_clone(), phase: 0 });
            }
            doubled.push(Origin { frame: origin.frame, phase: 1 });
        }
        self.origins = doubled;
    }
}

/// The causal state of a clip, and what of it is under way.
#[derive(Debug, Default)]
pub struct Clip {
    pasts: Vec<Past>,
    /// The last one goes first.
    pieces: Vec<Piece>,
    work: Work,
}

/// How much work the latents pushed last are.
#[derive(Debug, Default)]
struct Work {
    /// Latent pixels of a frame.
    pixels: f64,
    /// Products, all and done.
    all: f64,
    done: f64,
}

impl Clip {
    /// A clip of which nothing has been decoded.
    pub fn new() -> Self {
        Self::default()
    }

    /// Nothing is under way: the last push came to its end.
    pub fn is_settled(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The state as it is, for free: what goes on changes this one no more. Of a settled clip alone.
    #[must_use]
    pub fn snapshot(&self) -> Self {
        Self { pasts: self.pasts.iter().map(Past::snapshot).collect(), pieces: Vec::new(), work: Work::default() }
    }

    /// Bytes of the causal state.
    pub fn bytes(&self) -> usize {
        self.pasts.iter().map(Past::bytes).sum()
    }

    /// Brings the state of a settled clip to another type, memory order or device.
    ///
    /// # Errors
    /// Where memory is out.
    pub fn convert(&mut self, numeric: &Numeric, device: tch::Device) -> Result<()> {
        for past in &mut self.pasts {
            for frame in &mut past.frames {
                // The pasts of convolutions are in their type; where norms have another, that is as good for those of doublings.
                let moved = frame.f_to_device(device)?.f_to_kind(numeric.convolution)?;
                *frame = tilewright_torch::to_layout(&moved, numeric.layout)?;
            }
        }
        Ok(())
    }
}

impl Decoder {
    /// Decodes the next latent frames of a clip, [1, C, T, h, w] in the autoencoder's own space, or, without any, what an earlier push left under way.
    /// `emit` is called with frames [T, 3, H, W] in −1…1, f32, on the device, in their order; `step` with the share of this push that is done. The clip's
    /// first latent frame gives one frame, each later one [`super::Config::temporal_scale`] of them.
    ///
    /// # Errors
    /// libtorch's failures, out of memory included, and what `step` and `emit` return. Whatever was not through is still in the clip: call again
    /// without latents to go on, perhaps with another spread.
    pub fn push(
        &self,
        clip: &mut Clip,
        latents: Option<&Tensor>,
        spread: &Spread,
        step: &mut dyn FnMut(f64) -> Result<()>,
        emit: &mut dyn FnMut(Tensor) -> Result<()>,
    ) -> Result<()> {
        let numeric = self.numeric();
        clip.pasts.resize_with(self.layers.len(), Past::default);
        if let Some(latents) = latents {
            let begun = clip.pasts.iter().any(|past| past.begun);
            // [1, C, T, h, w] → [T, C, h, w]
            let frames = prepare(&latents.f_squeeze_dim(0)?.f_transpose(0, 1)?, &numeric)?;
            let (count, _, height, width) = frames.size4()?;
            let pixels = (height * width) as f64;
            let of = |frames: u32| f64::from(frames) * count as f64 - if begun { 0.0 } else { f64::from(frames - 1) };
            let all = self.layers.iter().map(|layer| layer.products * of(layer.frames) * pixels).sum();
            clip.work = Work { pixels, all, done: 0.0 };
            let piece = Piece { layer: 0, frames, hidden: None, done: 0, convolved: false, origins: Vec::new() };
            clip.pieces.push(piece);
        }
        let scale = self.config().temporal_scale().max(1);
        while let Some(piece) = clip.pieces.last_mut() {
            let Some(layer) = self.layers.get(piece.layer) else {
                let frames = unpatch(piece.frames.shallow_clone(), self.config().patch as i64)?;
                let frames = frames.f_to_kind(tch::Kind::Float)?.f_clamp(-1.0, 1.0)?;
                clip.pieces.pop();
                emit(frames)?;
                continue;
            };
            let most = i64::from((u64::from(spread.frames) * u64::from(layer.frames) / u64::from(scale)).max(1) as u32);
            let count = piece.frames.size()[0];
            if count > most && piece.done == 0 && !piece.convolved {
                let rest = piece.split(most)?;
                let last = clip.pieces.len() - 1;
                clip.pieces.insert(last, rest);
                continue;
            }
            let products = layer.products * count.min(most) as f64 * clip.work.pixels;
            layer.run(piece, &mut clip.pasts[piece.layer], spread, &numeric)?;
            clip.work.done += products;
            step((clip.work.done / clip.work.all.max(1.0)).min(1.0))?;
        }
        Ok(())
    }
}
