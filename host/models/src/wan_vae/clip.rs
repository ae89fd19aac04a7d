//! A clip on its way through the network. Latent frames are pushed in, frames come out; between
//! pushes only the causal state is held.
//!
//! Few frames go all the way through the layers before the next ones follow, as few as the caller
//! asks for: what is held besides the state depends on that number and not on the clip. Frames
//! that are not through when memory is out stay in their layer, and go on from there.

use tilewright_nn::CausalOps;

use super::{
    Config,
    layers::{Origin, Past, prepare, unpatch},
    network::Network,
};
use crate::{HalfConfig, Result, metered::list_weights};

/// The spread of a clip over time and memory. Nothing of it changes the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// Output frames that run through the last layers at once; earlier layers take as many as these
    /// are made of, one at least.
    pub frames: u32,
    /// Output rows of a band, if libtorch's convolutions take their input in bands.
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
pub(super) struct Piece<T> {
    /// The layer that comes next.
    pub layer: usize,
    /// Which of the clip's frames comes first here.
    pub first: i64,
    /// [T, C, H, W]
    pub frames: T,
    /// Within a residual layer: the hidden frames, beside those that they will be added to.
    pub hidden: Option<T>,
    /// The point that the layer came to.
    pub done: i64,
    /// The layer's convolution is done, its shortcut not yet.
    pub convolved: bool,
    /// Within a block whose input is added to its output: the input that each frame came from.
    pub origins: Vec<Origin<T>>,
}

impl<T> Piece<T> {
    /// Takes the frames after the first `count` off.
    fn split<O: CausalOps<Tensor = T>>(&mut self, ops: &O, count: i64) -> Result<Self> {
        let rest = |tensor: &T| -> Result<T> { Ok(ops.narrow(tensor, 0, count, ops.extents(tensor)?[0] - count)?) };
        let first = |tensor: &T| -> Result<T> { Ok(ops.narrow(tensor, 0, 0, count)?) };
        let (frames, hidden) = (rest(&self.frames)?, self.hidden.as_ref().map(rest).transpose()?);
        self.hidden = self.hidden.as_ref().map(first).transpose()?;
        self.frames = first(&self.frames)?;
        let kept = self.origins.len().min(count as usize);
        let origins = self.origins.split_off(kept);
        Ok(Self { layer: self.layer, first: self.first + count, frames, hidden, done: 0, convolved: false, origins })
    }

    /// Each frame but the clip's first has become two.
    pub fn double(&mut self, share: impl Fn(&T) -> T) {
        let mut doubled = Vec::new();
        for (index, origin) in self.origins.drain(..).enumerate() {
            if self.first + index as i64 > 0 {
                doubled.push(Origin { frame: share(&origin.frame), phase: 0 });
            }
            doubled.push(Origin { frame: origin.frame, phase: 1 });
        }
        self.first = (2 * self.first - 1).max(0);
        self.origins = doubled;
    }
}

/// The causal state of a clip, and its frames that are under way.
#[derive(Debug)]
pub struct Clip<T> {
    pub(super) pasts: Vec<Past<T>>,
    /// For each layer the first frame that is needed of its input, and the first that is needed of
    /// the output; empty if all are.
    needed: Vec<i64>,
    /// Latent frames that were pushed, or skipped at the beginning.
    pushed: i64,
    /// The last one goes first.
    pieces: Vec<Piece<T>>,
    work: Work,
}

/// The work that the latents pushed last are, in products per latent pixel.
#[derive(Debug, Default)]
struct Work {
    all: f64,
    done: f64,
}

impl<T> Default for Clip<T> {
    fn default() -> Self {
        Self { pasts: Vec::new(), needed: Vec::new(), pushed: 0, pieces: Vec::new(), work: Work::default() }
    }
}

impl<T> Clip<T> {
    /// A clip of which output frames before `frame` are there already: they are not computed again,
    /// except for the values that later ones depend on: those of some latent frames, and of few
    /// frames in the last layers. The latents are pushed from [`Self::frames_pushed`] on.
    pub fn from_frame(config: &Config, frame: u32) -> Self {
        // An architecture that no network can be built of has no decoder that this clip could be
        // pushed to.
        let network = (frame > 0).then(|| list_weights(|scope| config.build(scope)).ok()).flatten();
        let needed = network.map(|(network, _)| network.first_inputs(i64::from(frame))).unwrap_or_default();
        Self { pushed: needed.first().copied().unwrap_or(0), needed, ..Self::default() }
    }

    /// Latent frames that it has taken, or needs not.
    pub fn frames_pushed(&self) -> u32 {
        self.pushed.try_into().unwrap_or(u32::MAX)
    }

    /// Nothing is under way: the last push came to its end.
    pub fn is_settled(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Gives the causal state back: no frame will follow.
    pub fn end(&mut self) {
        self.pasts.clear();
    }

    /// Bytes of the causal state and of frames under way, by those of a tensor.
    pub(super) fn bytes_by(&self, of: impl Fn(&T) -> u64) -> u64 {
        let under_way = self.pieces.iter().flat_map(|piece| [Some(&piece.frames), piece.hidden.as_ref()]);
        let pasts = self.pasts.iter().flat_map(|past| &past.frames);
        pasts.chain(under_way.flatten()).map(of).sum()
    }
}

impl<O: CausalOps> Network<O> {
    /// As [`super::Decoder::push`]. `products` are those of each step per frame of its input, by
    /// which progress is reported; none on a meter.
    ///
    /// # Errors
    /// As there.
    pub fn push(
        &self,
        (ops, products): (&O, &[f64]),
        clip: &mut Clip<O::Tensor>,
        latents: Option<&O::Tensor>,
        spread: &Spread,
        step: &mut dyn FnMut(f64) -> Result<()>,
        emit: &mut dyn FnMut(O::Tensor) -> Result<()>,
    ) -> Result<()> {
        clip.pasts.resize_with(self.steps.len(), Past::default);
        if let Some(latents) = latents {
            self.enter(ops, products, clip, latents)?;
        }
        while let Some(piece) = clip.pieces.last_mut() {
            let [count, ..] = ops.extents(&piece.frames)?;
            let spare = clip.needed.get(piece.layer).map_or(0, |needed| needed - piece.first);
            if spare >= count {
                clip.pieces.pop();
                continue;
            }
            let fresh = piece.done == 0 && !piece.convolved;
            if spare > 0 && fresh {
                let rest = piece.split(ops, spare)?;
                *piece = rest;
                continue;
            }
            let Some(placed) = self.steps.get(piece.layer) else {
                let frames = unpatch(ops, ops.share(&piece.frames), self.patch, self.order)?;
                let frames = ops.clamp(&ops.in_f32(&frames)?)?;
                clip.pieces.pop();
                emit(frames)?;
                continue;
            };
            let most = (u64::from(spread.frames) * u64::from(placed.frames) / u64::from(self.scale)).max(1) as i64;
            if count > most && fresh {
                let rest = piece.split(ops, most)?;
                let last = clip.pieces.len() - 1;
                clip.pieces.insert(last, rest);
                continue;
            }
            let done = products.get(piece.layer).copied().unwrap_or_default() * count as f64;
            let past = &mut clip.pasts[piece.layer];
            // If a clip was not decoded from its beginning, its first frame never reaches this
            // layer.
            past.begun |= piece.first > 0;
            placed.run(ops, piece, past, spread)?;
            clip.work.done += done;
            step((clip.work.done / clip.work.all.max(1.0)).min(1.0))?;
        }
        Ok(())
    }

    /// Puts latent frames before the first step.
    fn enter(&self, ops: &O, products: &[f64], clip: &mut Clip<O::Tensor>, latents: &O::Tensor) -> Result<()> {
        // [1, C, T, h, w] → [T, C, h, w]
        let shape = ops.shape(latents);
        let frames = prepare(ops, &ops.transpose(&ops.reshape(latents, &shape[1..])?, 0, 1)?)?;
        let [count, ..] = ops.extents(&frames)?;
        let (first, last) = (clip.pushed, clip.pushed + count);
        // The first latent frame becomes one frame, each later one `scale`.
        let reached = |latent: i64, scale: u32| if latent == 0 { 0 } else { (latent - 1) * i64::from(scale) + 1 };
        let mut all = 0.0;
        for (index, (placed, products)) in self.steps.iter().zip(products).enumerate() {
            let needed = clip.needed.get(index).copied().unwrap_or(0).max(reached(first, placed.frames));
            all += products * (reached(last, placed.frames) - needed).max(0) as f64;
        }
        clip.work = Work { all, done: 0.0 };
        let piece = Piece { layer: 0, first, frames, hidden: None, done: 0, convolved: false, origins: Vec::new() };
        clip.pieces.push(piece);
        clip.pushed = last;
        Ok(())
    }
}
