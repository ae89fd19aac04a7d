//! Frames between tensors and files.

use tch::Tensor;
use tilewright_engine::Sink;
use tilewright_media::Frame;

use crate::Result;

/// Copies a picture [C, H, W] in −1…1, f32, in host memory, into a frame.
///
/// # Errors
/// It has another shape or type.
pub fn frame(picture: &Tensor) -> Result<Frame, tilewright_torch::Error> {
    let (channels, height, width) = picture.size3()?;
    let picture = picture.f_contiguous()?;
    let mut values = vec![0.0_f32; picture.numel()];
    picture.f_copy_data(&mut values, picture.numel())?;
    Ok(Frame { width: width as u32, height: height as u32, channels: channels as usize, values })
}

/// Frames that are kept to be compared, or dropped. They are held outside of libtorch's allocator,
/// so that they don't count in a job's measured memory.
#[derive(Debug)]
pub struct FrameStore {
    keeps: bool,
    values: Vec<f32>,
    /// Channels, height and width of a frame.
    extents: [i64; 3],
}

impl FrameStore {
    /// A store that keeps frames, or drops them.
    pub const fn new(keeps: bool) -> Self {
        Self { keeps, values: Vec::new(), extents: [0; 3] }
    }

    /// All frames [N·T, C, H, W], sample by sample.
    ///
    /// # Errors
    /// None came, or memory runs out.
    pub fn tensor(&self) -> Result<Tensor> {
        let [channels, height, width] = self.extents;
        Ok(Tensor::f_from_slice(&self.values)?.f_view([-1, channels, height, width])?)
    }
}

impl Sink for FrameStore {
    fn frames(
        &mut self,
        _sample: u32,
        _first: u32,
        frames: &Tensor,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        if !self.keeps {
            return Ok(());
        }
        let (_, channels, height, width) = frames.size4()?;
        self.extents = [channels, height, width];
        let before = self.values.len();
        self.values.resize(before + frames.numel(), 0.0);
        Ok(frames.f_contiguous()?.f_copy_data(&mut self.values[before..], frames.numel())?)
    }
}
