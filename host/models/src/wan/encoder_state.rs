//! Where an encode stands in its clip: what the layers remember of the frames before. It can be kept, and laid out anew for other parts of the frames.

use tch::{Device, Kind, Tensor};
use tilewright_plan::Layout;
use tilewright_torch::to_layout;

use super::encoder_layers::Past;
use crate::Result;

/// A part of a clip's frames in pixels: rows and columns, first and count. All are multiples of the encoder's scale.
pub type Place = [(i64, i64); 2];

/// Where an encode stands in its clip.
#[derive(Debug, Default)]
pub struct EncoderState {
    pub(super) past: Past,
    /// Height and width of the frames, once there were some.
    pub(super) size: Option<[i64; 2]>,
}

/// The state of one part of the frames.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Of the frames at `place`.
    pub state: &'a EncoderState,
    /// What was encoded.
    pub place: Place,
    /// What of it is taken; the parts' shares cover the frames.
    pub share: Place,
}

impl EncoderState {
    /// The same state, to go back to. It shares its tensors, which are replaced and never written to: it holds memory only once the encode has gone on.
    pub fn snapshot(&self) -> Self {
        Self { past: self.past.snapshot(), size: self.size }
    }

    /// Bytes of what is remembered.
    pub fn bytes(&self) -> usize {
        let of = |tensor: &Tensor| tensor.numel() * tensor.kind().elt_size_in_bytes();
        self.past.frames.iter().flatten().map(of).sum()
    }

    /// Brings it to another device. An encode on another device, in another type or memory order goes on from any state; only that it is there costs
    /// memory in between.
    ///
    /// # Errors
    /// Where memory is out.
    pub fn move_to(&mut self, device: Device) -> Result<()> {
        for frames in self.past.frames.iter_mut().flatten() {
            *frames = frames.f_to_device(device)?;
        }
        Ok(())
    }

    /// The states of other parts of the same frames. All parts have to have seen the same frames of the clip.
    ///
    /// # Errors
    /// Where memory is out; the parts stay as they are.
    pub fn relaid(parts: &[Part<'_>], places: &[Place]) -> Result<Vec<Self>> {
        let Some(first) = parts.iter().find(|part| part.state.size.is_some()) else {
            return Ok(places.iter().map(|_| Self::default()).collect());
        };
        let layers = first.state.past.frames.len();
        let state = |place: &Place| -> Result<Self> {
            let frames = (0..layers).map(|layer| cut(parts, layer, place)).collect::<Result<_>>()?;
            Ok(Self { past: Past::of(frames), size: Some([place[0].1, place[1].1]) })
        };
        places.iter().map(state).collect()
    }

    /// The state of frames out of those of their parts, each given with its place and its share. The parts go layer by layer, so that both are never
    /// there at once.
    ///
    /// # Errors
    /// Where memory is out; the parts are gone then.
    pub fn merged(mut parts: Vec<(Self, Place, Place)>, place: &Place) -> Result<Self> {
        let layers = parts.iter().map(|(state, ..)| state.past.frames.len()).max().unwrap_or(0);
        let mut frames = Vec::new();
        for layer in 0..layers {
            let borrowed: Vec<Part<'_>> =
                parts.iter().map(|(state, place, share)| Part { state, place: *place, share: *share }).collect();
            frames.push(cut(&borrowed, layer, place)?);
            for (state, ..) in &mut parts {
                state.past.frames[layer] = None;
            }
        }
        Ok(Self { past: Past::of(frames), size: (layers > 0).then_some([place[0].1, place[1].1]) })
    }
}

/// What one layer remembers of the frames at a place.
fn cut(parts: &[Part<'_>], layer: usize, place: &Place) -> Result<Option<Tensor>> {
    let remembered = || parts.iter().filter_map(|part| part.state.past.frames.get(layer)?.as_ref());
    // After a change of plans some may be in another type: what is wider than it is does no harm.
    let kinds = || remembered().map(Tensor::kind);
    let kind = match kinds().all(|kind| Some(kind) == kinds().next()) {
        true => kinds().next().unwrap_or(Kind::Float),
        false => Kind::Float,
    };
    let mut output: Option<Tensor> = None;
    for part in parts {
        let (Some(Some(from)), Some(size)) = (part.state.past.frames.get(layer), part.state.size) else { continue };
        let (count, channels, height, width) = from.size4()?;
        let scaled = [(height, size[0]), (width, size[1])];
        let at = |axis: usize, pixels: i64| pixels * scaled[axis].0 / scaled[axis].1;
        let whole = match &mut output {
            Some(whole) => whole,
            None => {
                let shape = [count, channels, at(0, place[0].1), at(1, place[1].1)];
                let empty = Tensor::f_empty(shape, (kind, from.device()))?;
                output.insert(to_layout(&empty, layout_of(from))?)
            }
        };
        let overlap = |axis: usize| {
            let (share, wanted) = (part.share[axis], place[axis]);
            let start = share.0.max(wanted.0);
            (start, (share.0 + share.1).min(wanted.0 + wanted.1) - start)
        };
        let both = [overlap(0), overlap(1)];
        if both.iter().any(|(_, count)| *count <= 0) {
            continue;
        }
        let cut = |tensor: &Tensor, origin: &Place| -> Result<Tensor> {
            let mut tensor = tensor.shallow_clone();
            for (axis, (start, count)) in both.iter().enumerate() {
                tensor = tensor.f_narrow(axis as i64 + 2, at(axis, start - origin[axis].0), at(axis, *count))?;
            }
            Ok(tensor)
        };
        cut(whole, place)?.f_copy_(&cut(from, &part.place)?)?;
    }
    Ok(output)
}

/// The order that a tensor [T, C, H, W] has in memory.
pub(super) fn layout_of(tensor: &Tensor) -> Layout {
    let last = tensor.stride().get(1) == Some(&1) && tensor.size().get(1) != Some(&1);
    if last { Layout::ChannelsLast } else { Layout::ChannelsFirst }
}
