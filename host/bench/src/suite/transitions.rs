//! The evenness of a clip across its chunks.

use serde::Serialize;
use tch::Tensor;

use crate::Result;

/// The mean change from frame to frame where chunks meet, over that elsewhere, relative to the same
/// ratio in the clip decoded in one go: 1 if chunks don't show. Larger and smaller changes count
/// alike. Undefined values are null.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Transitions {
    /// The lowest of the case's rows, which carry the causal cache across chunks.
    pub carried: Option<f64>,
    /// The value for chunks of two latent frames that were decoded alone and concatenated.
    pub alone: Option<f64>,
}

/// The mean absolute change from each frame of [T, C, H, W] to the next: T − 1 of them.
pub fn steps(frames: &Tensor) -> Result<Vec<f64>> {
    let count = frames.size()[0] - 1;
    let step = |frame| -> Result<f64> {
        let change = frames.f_select(0, frame + 1)?.f_sub(&frames.f_select(0, frame)?)?;
        Ok(change.f_abs()?.f_mean(tch::Kind::Float)?.f_double_value(&[])?)
    };
    (0..count).map(step).collect()
}

/// The mean step at the borders over the mean step elsewhere. Step i leads from frame i to the
/// next.
pub fn over_elsewhere(steps: &[f64], borders: &[usize]) -> Option<f64> {
    let mean = |wanted: bool| {
        let picked = steps.iter().enumerate().filter(|(index, _)| borders.contains(index) == wanted);
        let (sum, count) = picked.fold((0.0, 0_u32), |(sum, count), (_, step)| (sum + step, count + 1));
        (count > 0).then(|| sum / f64::from(count))
    };
    let ratio = mean(true)? / mean(false)?;
    ratio.is_finite().then_some(ratio)
}

/// The lesser of two ratios over the greater.
pub fn evenness(found: f64, whole: f64) -> Option<f64> {
    let share = found.min(whole) / found.max(whole);
    share.is_finite().then_some(share)
}

/// The steps across chunk borders: those into each latent frame that follows a multiple of `chunk`
/// others. Each latent frame gives `scale` frames, except the first, which gives one.
pub fn borders(latent_frames: usize, chunk: usize, scale: usize) -> Vec<usize> {
    (chunk..latent_frames).step_by(chunk.max(1)).map(|latent| scale * (latent - 1)).collect()
}

/// The steps across chunk borders if every chunk is decoded alone: its first latent frame gives one
/// frame.
pub fn borders_alone(latent_frames: usize, chunk: usize, scale: usize) -> Vec<usize> {
    let frames = 1 + scale * (chunk - 1);
    (1..latent_frames.div_ceil(chunk)).map(|index| index * frames - 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_where_chunks_meet_shows() {
        // Five latent frames: frames 0, 1–4, 5–8, 9–12, 13–16.
        assert_eq!(borders(5, 1, 4), [0, 4, 8, 12]);
        assert_eq!(borders(5, 2, 4), [4, 12]);
        // Alone: 5 and 5 frames and 1.
        assert_eq!(borders_alone(5, 2, 4), [4, 9]);
        assert_eq!(borders_alone(4, 2, 4), [4]);
        assert!(borders(1, 2, 4).is_empty() && borders_alone(1, 2, 4).is_empty());
        let even = Tensor::from_slice(&[0.0_f32, 0.1, 0.2, 0.3, 0.4, 0.5]).view([6, 1, 1, 1]);
        let jump = Tensor::from_slice(&[0.0_f32, 0.1, 0.2, 0.6, 0.7, 0.8]).view([6, 1, 1, 1]);
        let ratio = |clip: &Tensor| over_elsewhere(&steps(clip).unwrap(), &[2]).unwrap();
        assert!((ratio(&even) - 1.0).abs() < 1e-4 && (ratio(&jump) - 4.0).abs() < 1e-4);
        assert!((evenness(ratio(&jump), ratio(&even)).unwrap() - 0.25).abs() < 1e-4);
        assert_eq!(evenness(1.5, 1.5), Some(1.0));
        assert_eq!(
            (over_elsewhere(&[1.0], &[0]), over_elsewhere(&[0.0, 0.0], &[0]), evenness(0.0, 0.0)),
            (None, None, None)
        );
    }
}
