//! From tensors to the frames that files are made of.

use tch::Tensor;
use tilewright_media::Frame;

use crate::failure::{Failure, Outcome};

/// One picture [C, H, W] in −1…1, f32, in host memory.
pub fn frame(picture: &Tensor) -> Outcome<Frame> {
    let copied = || -> Result<Frame, tch::TchError> {
        let (channels, height, width) = picture.size3()?;
        let picture = picture.f_contiguous()?;
        let mut values = vec![0.0_f32; picture.numel()];
        picture.f_copy_data(&mut values, picture.numel())?;
        Ok(Frame { width: width as u32, height: height as u32, channels: channels as usize, values })
    };
    copied().map_err(|error| Failure::from(tilewright_torch::Error::from(error)))
}

/// Pictures [N, C, H, W].
pub fn frames(pictures: &Tensor) -> Outcome<Vec<Frame>> {
    (0..pictures.size()[0]).map(|index| frame(&pictures.get(index))).collect()
}
