//! Causal states of tiles that wait in host memory.

use tch::{Device, Tensor};
use tilewright_torch::transfer;

use crate::Result;

/// The tile whose turn it is, of those that take turns on a GPU.
#[derive(Debug, Default)]
pub struct Turns {
    at_work: Option<usize>,
}

impl Turns {
    /// Brings the state of a tile to the device. If the others wait in host memory, the one that
    /// was at work before goes there. `tensors` lists those of a state.
    ///
    /// # Errors
    /// Memory is out, or a fault of the device. No state is lost.
    pub fn take<T>(
        &mut self,
        device: Device,
        tiles: &mut [T],
        tile: usize,
        others_wait: bool,
        tensors: impl Fn(&mut T) -> Vec<&mut Tensor>,
    ) -> Result<()> {
        let before = self.at_work.filter(|before| others_wait && *before != tile);
        let (leaving, arriving) = match before.and_then(|before| tiles.get_disjoint_mut([before, tile]).ok()) {
            Some([before, own]) => (tensors(before), tensors(own)),
            None => (Vec::new(), tiles.get_mut(tile).map(&tensors).unwrap_or_default()),
        };
        transfer::swap(device, leaving, arriving)?;
        self.at_work = Some(tile);
        Ok(())
    }
}
