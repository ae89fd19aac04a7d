//! Tensors of bodies as files that jobs read.

use std::{
    fs::File,
    io::{self, BufWriter, Read, Write},
    path::Path,
};

use super::Element;

/// Values that are read at once.
const PIECE: usize = 1 << 18;

/// The scaling of latents: `(latent − shift) · factor`, as diffusers' pipelines apply it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scaling {
    /// The factor, if there is one.
    pub factor: Option<f64>,
    /// The value that is taken away before.
    pub shift: Option<f64>,
}

impl Scaling {
    /// A value without the scaling, as pipelines take it away: in single precision, one step after
    /// the other.
    fn remove(self, value: f32) -> f32 {
        let divided = self.factor.map_or(value, |factor| value / factor as f32);
        self.shift.map_or(divided, |shift| divided + shift as f32)
    }

    /// A value with the scaling.
    pub fn apply(self, value: f32) -> f32 {
        let shifted = self.shift.map_or(value, |shift| value - shift as f32);
        self.factor.map_or(shifted, |factor| shifted * factor as f32)
    }
}

/// A tensor in a file, as it came.
#[derive(Debug)]
pub struct Input<'a> {
    /// The file of its bytes and nothing else.
    pub path: &'a Path,
    /// Extents of the tensor.
    pub shape: &'a [i64],
    /// The type of its values.
    pub element: Element,
}

impl Input<'_> {
    /// Writes a .safetensors in f32 with the tensor under a name, without a scaling, and returns
    /// the number of values that are NaN or infinite then. Flux' packed latents [N, height · width
    /// / 4, 4 · C], of which each token is a square of 2 by 2, become [N, C, height, width] if
    /// those two are given.
    ///
    /// # Errors
    /// A file can't be read or written.
    pub fn write(&self, to: &mut File, name: &str, scaling: Scaling, packed: Option<[i64; 2]>) -> io::Result<usize> {
        let values: i64 = self.shape.iter().product();
        let shape = match packed {
            Some([height, width]) => vec![self.shape[0], self.shape[2] / 4, height, width],
            None => self.shape.to_vec(),
        };
        let description = serde_json::json!({
            name: { "dtype": "F32", "shape": shape, "data_offsets": [0, 4 * values] },
        });
        let mut header = description.to_string();
        while !header.len().is_multiple_of(8) {
            header.push(' ');
        }
        let mut to = BufWriter::new(to);
        to.write_all(&(header.len() as u64).to_le_bytes())?;
        to.write_all(header.as_bytes())?;
        let from = File::open(self.path)?;
        let mut unsound = 0;
        let mut write = |values: Vec<f32>| {
            let values: Vec<f32> = values.into_iter().map(|value| scaling.remove(value)).collect();
            unsound += values.iter().filter(|value| !value.is_finite()).count();
            to.write_all(&Element::Float32.write(values.into_iter()))
        };
        let mut bytes = Vec::new();
        match packed {
            Some([height, width]) => {
                (&from).read_to_end(&mut bytes)?;
                write(unpacked(&self.element.read(&bytes), shape[1] as usize, [height as usize, width as usize]))?;
            }
            None => {
                while (&from).take((PIECE * self.element.bytes()) as u64).read_to_end(&mut bytes)? > 0 {
                    write(self.element.read(&bytes))?;
                    bytes.clear();
                }
            }
        }
        to.flush()?;
        Ok(unsound)
    }
}

/// Latents [N, C, height, width] of Flux' packed ones: what `FluxPipeline._unpack_latents` does.
/// There are as many values as these extents have.
fn unpacked(packed: &[f32], channels: usize, [height, width]: [usize; 2]) -> Vec<f32> {
    let tokens = (height / 2) * (width / 2);
    let mut latents = Vec::with_capacity(packed.len());
    for sample in packed.chunks_exact((tokens * channels * 4).max(1)) {
        for channel in 0..channels {
            for row in 0..height {
                let line = &sample[row / 2 * (width / 2) * channels * 4..];
                let corner = channel * 4 + row % 2 * 2;
                latents.extend((0..width).map(|column| line[column / 2 * channels * 4 + corner + column % 2]));
            }
        }
    }
    latents
}

#[cfg(test)]
mod tests {
    use tilewright_models::Checkpoint;

    use super::*;

    #[test]
    fn a_body_becomes_a_file_of_latents() {
        let folder = tempfile::tempdir().unwrap();
        let [raw, written] = ["raw", "latent.safetensors"].map(|name| folder.path().join(name));
        let values: Vec<f32> = (0..2 * 4 * 3 * 5).map(|value| value as f32 / 8.0).collect();
        for element in [Element::Float32, Element::Float16, Element::BFloat16] {
            std::fs::write(&raw, element.write(values.iter().copied())).unwrap();
            let input = Input { path: &raw, shape: &[2, 4, 3, 5], element };
            let scaling = Scaling { factor: Some(0.5), shift: Some(1.0) };
            let unsound = input.write(&mut File::create(&written).unwrap(), "latent", scaling, None).unwrap();
            assert_eq!(unsound, 0);
            let file = Checkpoint::open(&written).unwrap();
            let found = file.values("latent", &[2, 4, 3, 5]).unwrap();
            let expected: Vec<f32> = values.iter().map(|value| value / 0.5 + 1.0).collect();
            assert_eq!(found, expected, "{element:?}");
            assert!(found.iter().zip(&values).all(|(found, value)| scaling.apply(*found) == *value));
        }
    }

    #[test]
    fn values_that_are_no_numbers_are_counted_as_they_are_after_scaling() {
        let folder = tempfile::tempdir().unwrap();
        let [raw, written] = ["raw", "written"].map(|name| folder.path().join(name));
        std::fs::write(&raw, Element::Float32.write([f32::NAN, 1e38, 1.0, f32::INFINITY].into_iter())).unwrap();
        let input = Input { path: &raw, shape: &[1, 1, 2, 2], element: Element::Float32 };
        for (factor, expected) in [(None, 2), (Some(1e-3), 3)] {
            let scaling = Scaling { factor, shift: None };
            let unsound = input.write(&mut File::create(&written).unwrap(), "latent", scaling, None).unwrap();
            assert_eq!(unsound, expected);
        }
    }

    #[test]
    fn tokens_are_squares_of_two_by_two() {
        // [1, 2, 8]: two tokens of two channels.
        let packed: Vec<f32> = (0..16).map(|value| value as f32).collect();
        let expected = [0., 1., 8., 9., 2., 3., 10., 11., 4., 5., 12., 13., 6., 7., 14., 15.];
        assert_eq!(unpacked(&packed, 2, [2, 4]), expected);
    }
}
