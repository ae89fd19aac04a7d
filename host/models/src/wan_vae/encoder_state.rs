//! The place of an encode in its clip: the frames before that the layers remember. It can be kept,
//! and laid out again for other parts of the frames.

use tch::{Device, Kind, Tensor};
use tilewright_plan::Layout;
use tilewright_torch::to_layout;

use super::encoder_layers::Past;
use crate::Result;

/// A part of a clip's frames in pixels: rows and columns, first and count. All are multiples of the
/// encoder's scale.
pub type Place = [(i64, i64); 2];

/// The place of an encode in its clip.
#[derive(Debug, Default)]
pub struct EncoderState {
    pub(super) past: Past<Tensor>,
    /// Height and width of the frames; none before the first.
    pub(super) size: Option<[i64; 2]>,
}

/// The state of one part of the frames.
#[derive(Clone, Copy, Debug)]
pub struct PlacedState<'a> {
    /// The state of the frames at `place`.
    pub state: &'a EncoderState,
    /// The part that was encoded.
    pub place: Place,
    /// The share of it that is taken; the parts' shares cover the frames.
    pub share: Place,
}

impl EncoderState {
    /// The same state, to go back to. It shares its tensors, which are replaced and never written
    /// to: it holds memory only after the encode has gone on.
    pub fn snapshot(&self) -> Self {
        Self { past: self.past.snapshot(Tensor::shallow_clone), size: self.size }
    }

    /// Bytes of the frames that are remembered on a device.
    pub fn bytes(&self, device: Device) -> usize {
        let of = |tensor: &Tensor| tensor.numel() * tensor.kind().elt_size_in_bytes();
        self.past.frames.iter().flatten().filter(|tensor| tensor.device() == device).map(of).sum()
    }

    /// The state's tensors, for the state to wait in other memory.
    pub fn state_mut(&mut self) -> Vec<&mut Tensor> {
        self.past.frames.iter_mut().flatten().collect()
    }

    /// The states of other parts of the same frames. All parts have to have seen the same frames of
    /// the clip.
    ///
    /// # Errors
    /// Memory is out; the parts stay as they are.
    pub fn relaid(parts: &[PlacedState<'_>], places: &[Place]) -> Result<Vec<Self>> {
        let state = |place: &Place| -> Result<Self> {
            let mut state = Self::default();
            parts.iter().try_for_each(|part| state.absorb(part, place))?;
            Ok(state)
        };
        places.iter().map(state).collect()
    }

    /// Takes a part's share in, as far as it lies in `place`, which this is the state of.
    ///
    /// # Errors
    /// Memory is out.
    pub fn absorb(&mut self, part: &PlacedState<'_>, place: &Place) -> Result<()> {
        let overlap = |axis: usize| {
            let (share, wanted) = (part.share[axis], place[axis]);
            let start = share.0.max(wanted.0);
            (start, (share.0 + share.1).min(wanted.0 + wanted.1) - start)
        };
        let both = [overlap(0), overlap(1)];
        let Some(size) = part.state.size else { return Ok(()) };
        if both.iter().any(|(_, count)| *count <= 0) {
            return Ok(());
        }
        self.size = Some([place[0].1, place[1].1]);
        self.past.frames.resize_with(part.state.past.frames.len(), || None);
        for (whole, from) in self.past.frames.iter_mut().zip(&part.state.past.frames) {
            let Some(from) = from else { continue };
            let (count, channels, height, width) = from.size4()?;
            let scaled = [(height, size[0]), (width, size[1])];
            let at = |axis: usize, pixels: i64| pixels * scaled[axis].0 / scaled[axis].1;
            let taken = match whole.take() {
                // After a change of plans some may be in another type: a wider one does no
                // harm.
                Some(taken) if taken.kind() != from.kind() => taken.f_to_kind(Kind::Float)?,
                Some(taken) => taken,
                None => {
                    let shape = [count, channels, at(0, place[0].1), at(1, place[1].1)];
                    to_layout(&Tensor::f_empty(shape, (from.kind(), from.device()))?, layout_of(from))?
                }
            };
            let cut = |tensor: &Tensor, origin: &Place| -> Result<Tensor> {
                let mut tensor = tensor.shallow_clone();
                for (axis, (start, count)) in both.iter().enumerate() {
                    tensor = tensor.f_narrow(axis as i64 + 2, at(axis, start - origin[axis].0), at(axis, *count))?;
                }
                Ok(tensor)
            };
            cut(&taken, place)?.f_copy_(&cut(from, &part.place)?)?;
            *whole = Some(taken);
        }
        Ok(())
    }
}

/// The order that a tensor [T, C, H, W] has in memory.
fn layout_of(tensor: &Tensor) -> Layout {
    let last = tensor.stride().get(1) == Some(&1) && tensor.size().get(1) != Some(&1);
    if last { Layout::ChannelsLast } else { Layout::ChannelsFirst }
}
