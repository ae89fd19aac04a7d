//! Embeddings of times and places.

use tch::{Kind, Tensor};
use tilewright_torch::scalar;

use crate::Result;

/// The longest period of a time's embedding, and the base of rotations.
const LONGEST: f64 = 10_000.0;

/// Cosines and then sines of each time at `width` / 2 frequencies, in f32 as in the references
/// (diffusers 0.42.1, `get_timestep_embedding` with `flip_sin_to_cos`; BFL's flux,
/// `timestep_embedding`): [times, width].
///
/// # Errors
/// libtorch's failures.
pub fn sinusoid(times: &[f32], width: i64) -> Result<Vec<f32>> {
    let half = width / 2;
    let steps = Tensor::f_arange(half, (Kind::Float, tch::Device::Cpu))?;
    let exponents = scalar::multiply(&steps, -LONGEST.ln())?;
    let frequencies = scalar::divide(&exponents, half as f64)?.f_exp()?;
    let times = Tensor::f_from_slice(times)?.f_unsqueeze(1)?;
    let phases = times.f_mul(&frequencies.f_unsqueeze(0)?)?;
    let both = Tensor::f_cat(&[phases.f_cos()?, phases.f_sin()?], 1)?;
    Ok(Vec::try_from(&both.f_reshape([-1])?)?)
}

/// Cosines and sines by which pairs of a head's values are turned, for each place: along each axis
/// in turn, `widths` values of the head belong to it. Angles are computed in f64. [places, width
/// of a head], cosine and sine of a pair side by side.
pub fn rotation<const AXES: usize>(places: impl Iterator<Item = [i64; AXES]>, widths: [i64; AXES]) -> Vec<f32> {
    let frequencies: Vec<(usize, f64)> = widths
        .iter()
        .enumerate()
        .flat_map(|(axis, &width)| {
            (0..width / 2).map(move |pair| (axis, LONGEST.powf(-2.0 * pair as f64 / width as f64)))
        })
        .collect();
    let mut table = Vec::new();
    for place in places {
        for &(axis, frequency) in &frequencies {
            let (sine, cosine) = (place[axis] as f64 * frequency).sin_cos();
            table.extend([cosine as f32, sine as f32]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_turned_along_each_axis() {
        let table = rotation([[0, 0], [1, 2]].into_iter(), [2, 4]);
        assert_eq!(table[..6], [1.0, 0.0, 1.0, 0.0, 1.0, 0.0]);
        let expected = [1.0_f64, 2.0, 2.0 * 0.01].map(|angle| [angle.cos() as f32, angle.sin() as f32]).concat();
        assert_eq!(table[6..], expected);
    }

    #[test]
    fn times_have_cosines_first() {
        let found = sinusoid(&[0.0, 1.0], 4).unwrap();
        assert_eq!(found[..4], [1.0, 1.0, 0.0, 0.0]);
        assert!((f64::from(found[4]) - 1f64.cos()).abs() < 1e-6 && (f64::from(found[7]) - 0.01).abs() < 1e-5);
    }
}
