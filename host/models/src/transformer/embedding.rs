//! Rotary position embeddings (RoPE).

/// The base θ of the rotations' frequencies.
const THETA: f64 = 10_000.0;

/// Cosines and sines of the rotary embedding of each place, [places, head width], a pair's side by
/// side. Each axis turns its own `widths` values of a head; angles are computed in f64.
pub fn rotation<const AXES: usize>(places: impl Iterator<Item = [i64; AXES]>, widths: [i64; AXES]) -> Vec<f32> {
    let frequencies: Vec<(usize, f64)> = widths
        .iter()
        .enumerate()
        .flat_map(|(axis, &width)| {
            (0..width / 2).map(move |pair| (axis, THETA.powf(-2.0 * pair as f64 / width as f64)))
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
}
