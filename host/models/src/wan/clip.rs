//! A clip on its way through the network. Latent frames are pushed in, frames come out; between pushes only the causal state is held.
//!
//! Few frames go all the way through the layers before the next ones follow, as few as the caller asks for: what is held besides the
//! state depends on that number and not on the clip. What is not through when memory is out stays where it was, and goes on from there.

use tch::Tensor;

use super::{
    Config,
    decoder::{Decoder, Loaded},
    layers::{Origin, Past, prepare, unpatch},
};
use crate::{ComputeFormat, Result};

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
pub(super) const LEAST_ROWS: i64 = 8;

/// Frames somewhere in the network.
#[derive(Debug)]
pub(super) struct Piece {
    /// The layer that comes next.
    pub layer: usize,
    /// Which of the clip's frames comes first here.
    pub first: i64,
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
        Ok(Self { layer: self.layer, first: self.first + count, frames, hidden, done: 0, convolved: false, origins })
    }

    /// Each frame but the clip's first has become two.
    pub fn double(&mut self) {
        let mut doubled = Vec::new();
        for (index, origin) in self.origins.drain(..).enumerate() {
            if self.first + index as i64 > 0 {
                doubled.push(Origin { frame: origin.frame.shallow_clone(), phase: 0 });
            }
            doubled.push(Origin { frame: origin.frame, phase: 1 });
        }
        self.first = (2 * self.first - 1).max(0);
        self.origins = doubled;
    }
}

/// The causal state of a clip, and what of it is under way.
#[derive(Debug, Default)]
pub struct Clip {
    pasts: Vec<Past>,
    /// For each layer the first frame that is needed of its input, and the first that is needed of the output; empty where all are.
    needed: Vec<i64>,
    /// Latent frames that were pushed, or skipped at the beginning.
    pushed: i64,
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

    /// A clip of which output frames before `frame` are there already: they are not computed again but for what later ones depend on, which is a matter of some
    /// latent frames, and few of the last layers'. The latents are pushed from [`Self::pushed`] on.
    pub fn from_frame(config: &Config, frame: u32) -> Self {
        let needed = config.first_needed(i64::from(frame));
        Self { pushed: needed[0], needed, ..Self::default() }
    }

    /// Latent frames that it has taken, or needs not.
    pub fn pushed(&self) -> u32 {
        self.pushed.try_into().unwrap_or(u32::MAX)
    }

    /// Nothing is under way: the last push came to its end.
    pub fn is_settled(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Gives the causal state back, where no frame will follow.
    pub fn end(&mut self) {
        self.pasts.clear();
    }

    /// Bytes of the causal state, and of what is under way.
    pub fn bytes(&self) -> usize {
        let of = |tensor: &Tensor| tensor.numel() * tensor.kind().elt_size_in_bytes();
        let under_way = self.pieces.iter().map(|piece| of(&piece.frames) + piece.hidden.as_ref().map_or(0, of));
        self.pasts.iter().map(Past::bytes).sum::<usize>() + under_way.sum::<usize>()
    }

    /// Brings the state of a settled clip to another type, memory order or device.
    ///
    /// # Errors
    /// Where memory is out.
    pub fn convert(&mut self, format: &ComputeFormat, device: tch::Device) -> Result<()> {
        for past in &mut self.pasts {
            for frame in &mut past.frames {
                // The pasts of convolutions are in their type; where norms have another, that is as good for those of doublings.
                let moved = frame.f_to_device(device)?.f_to_kind(format.convolution)?;
                *frame = tilewright_torch::to_layout(&moved, format.layout)?;
            }
        }
        Ok(())
    }
}

impl Decoder {
    /// Decodes the next latent frames of a clip, [1, C, T, h, w] in the autoencoder's own space, or, without any, what an earlier push left under way.
    /// `emit` is called with frames [T, C, H, W] in −1…1, f32, on the device, in their order; `step` with the share of this push that is done. The clip's
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
        let format = self.format();
        clip.pasts.resize_with(self.layers.len(), Past::default);
        if let Some(latents) = latents {
            // [1, C, T, h, w] → [T, C, h, w]
            let frames = prepare(&latents.f_squeeze_dim(0)?.f_transpose(0, 1)?, &format)?;
            let (count, _, height, width) = frames.size4()?;
            let (first, last) = (clip.pushed, clip.pushed + count);
            // The first latent frame becomes one frame, each later one `scale`.
            let reached = |latent: i64, scale: u32| if latent == 0 { 0 } else { (latent - 1) * i64::from(scale) + 1 };
            let of = |(index, Loaded { layer, .. }): (usize, &Loaded)| {
                let needed = clip.needed.get(index).copied().unwrap_or(0).max(reached(first, layer.frames));
                layer.products() * (reached(last, layer.frames) - needed).max(0) as f64
            };
            let pixels = (height * width) as f64;
            let all = self.layers.iter().enumerate().map(of).sum::<f64>() * pixels;
            clip.work = Work { pixels, all, done: 0.0 };
            let piece = Piece { layer: 0, first, frames, hidden: None, done: 0, convolved: false, origins: Vec::new() };
            clip.pieces.push(piece);
            clip.pushed = last;
        }
        let scale = self.config().temporal_scale().max(1);
        while let Some(piece) = clip.pieces.last_mut() {
            let count = piece.frames.size()[0];
            let spare = clip.needed.get(piece.layer).map_or(0, |needed| needed - piece.first);
            if spare >= count {
                clip.pieces.pop();
                continue;
            }
            let fresh = piece.done == 0 && !piece.convolved;
            if spare > 0 && fresh {
                let rest = piece.split(spare)?;
                *piece = rest;
                continue;
            }
            let Some(Loaded { layer, .. }) = self.layers.get(piece.layer) else {
                let frames = unpatch(piece.frames.shallow_clone(), self.config().patch as i64)?;
                let frames = frames.f_to_kind(tch::Kind::Float)?.f_clamp(-1.0, 1.0)?;
                clip.pieces.pop();
                emit(frames)?;
                continue;
            };
            let most = (u64::from(spread.frames) * u64::from(layer.frames) / u64::from(scale)).max(1) as i64;
            if count > most && fresh {
                let rest = piece.split(most)?;
                let last = clip.pieces.len() - 1;
                clip.pieces.insert(last, rest);
                continue;
            }
            let products = layer.products() * count as f64 * clip.work.pixels;
            let past = &mut clip.pasts[piece.layer];
            // Where the clip was not decoded from its beginning, its first frame is no matter of this layer.
            past.begun |= piece.first > 0;
            self.layers[piece.layer].run(piece, past, spread, &format)?;
            clip.work.done += products;
            step((clip.work.done / clip.work.all.max(1.0)).min(1.0))?;
        }
        Ok(())
    }
}
