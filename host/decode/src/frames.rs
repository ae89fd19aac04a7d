//! From tensors to the frames that files are made of.

use tch::Tensor;
use tilewright_media::Frame;

/// One picture [C, H, W] in −1…1, f32, in host memory.
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

/// Pictures [N, C, H, W], as [`frame`].
///
/// # Errors
/// They have another shape or type.
pub fn frames(pictures: &Tensor) -> Result<Vec<Frame>, tilewright_torch::Error> {
    (0..pictures.size4()?.0).map(|index| frame(&pictures.f_get(index)?)).collect()
}
