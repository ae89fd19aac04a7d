//! The tensors of video autoencoders, by the original code's names.

use super::Tensors;

/// A published size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The unit of the decoder's channels.
    pub base: usize,
    /// The unit of the encoder's channels.
    pub encoder_base: usize,
    pub latent_channels: usize,
    /// Channels of the picture, patches unfolded.
    pub picture: usize,
    /// True for 2.2: blocks number their layers separately, and keep their width when upsampling.
    pub nested: bool,
}

/// The stages' channels as multiples of the base, from the middle outwards; the middle has the
/// first.
const MULTIPLES: [usize; 4] = [4, 4, 2, 1];

/// Residual layers of a stage of the decoder; the encoder's have one less.
const LAYERS: usize = 3;

/// True for stages of the decoder whose end doubles the frames, too; the last stage has no end. The
/// encoder's go the other way.
const DOUBLES: [bool; 3] = [true, true, false];

impl Shape {
    /// Every tensor of encoder and decoder, with its shape.
    pub fn tensors(self) -> Vec<(String, Vec<usize>)> {
        let mut tensors = Tensors::default();
        let latent = self.latent_channels;
        tensors.conv("conv2", latent, latent, &[1, 1, 1]);
        tensors.conv("conv1", 2 * latent, 2 * latent, &[1, 1, 1]);
        self.decoder(&mut tensors);
        self.encoder(&mut tensors);
        tensors.0
    }

    fn decoder(self, tensors: &mut Tensors) {
        let middle = self.base * MULTIPLES[0];
        tensors.conv("decoder.conv1", middle, self.latent_channels, &[3, 3, 3]);
        tensors.middle("decoder.middle", middle);
        let mut into = middle;
        for (stage, multiple) in MULTIPLES.into_iter().enumerate() {
            let channels = self.base * multiple;
            let name = |layer: usize| match self.nested {
                true => format!("decoder.upsamples.{stage}.upsamples.{layer}"),
                false => format!("decoder.upsamples.{}", stage * (LAYERS + 1) + layer),
            };
            for layer in 0..LAYERS {
                tensors.residual(&name(layer), if layer == 0 { into } else { channels }, channels);
            }
            into = channels;
            if let Some(doubles) = DOUBLES.get(stage) {
                into = if self.nested { channels } else { channels / 2 };
                tensors.conv(&format!("{}.resample.1", name(LAYERS)), into, channels, &[3, 3]);
                if *doubles {
                    tensors.conv(&format!("{}.time_conv", name(LAYERS)), 2 * channels, channels, &[3, 1, 1]);
                }
            }
        }
        tensors.head("decoder.head", self.picture, into);
    }

    fn encoder(self, tensors: &mut Tensors) {
        let layers = LAYERS - 1;
        let mut into = self.encoder_base;
        tensors.conv("encoder.conv1", into, self.picture, &[3, 3, 3]);
        for (stage, multiple) in MULTIPLES.into_iter().rev().enumerate() {
            let channels = self.encoder_base * multiple;
            let name = |layer: usize| match self.nested {
                true => format!("encoder.downsamples.{stage}.downsamples.{layer}"),
                false => format!("encoder.downsamples.{}", stage * (layers + 1) + layer),
            };
            for layer in 0..layers {
                tensors.residual(&name(layer), if layer == 0 { into } else { channels }, channels);
            }
            into = channels;
            if let Some(halves) = DOUBLES.into_iter().rev().nth(stage) {
                tensors.conv(&format!("{}.resample.1", name(layers)), channels, channels, &[3, 3]);
                if halves {
                    tensors.conv(&format!("{}.time_conv", name(layers)), channels, channels, &[3, 1, 1]);
                }
            }
        }
        tensors.middle("encoder.middle", into);
        tensors.head("encoder.head", 2 * self.latent_channels, into);
    }
}

impl Tensors {
    fn rms_norm(&mut self, name: &str, channels: usize, axes: usize) {
        self.0.push((format!("{name}.gamma"), [vec![channels], vec![1; axes]].concat()));
    }

    fn residual(&mut self, name: &str, into: usize, out: usize) {
        self.rms_norm(&format!("{name}.residual.0"), into, 3);
        self.conv(&format!("{name}.residual.2"), out, into, &[3, 3, 3]);
        self.rms_norm(&format!("{name}.residual.3"), out, 3);
        self.conv(&format!("{name}.residual.6"), out, out, &[3, 3, 3]);
        if into != out {
            self.conv(&format!("{name}.shortcut"), out, into, &[1, 1, 1]);
        }
    }

    fn middle(&mut self, name: &str, channels: usize) {
        self.residual(&format!("{name}.0"), channels, channels);
        self.rms_norm(&format!("{name}.1.norm"), channels, 2);
        self.conv(&format!("{name}.1.to_qkv"), 3 * channels, channels, &[1, 1]);
        self.conv(&format!("{name}.1.proj"), channels, channels, &[1, 1]);
        self.residual(&format!("{name}.2"), channels, channels);
    }

    fn head(&mut self, name: &str, out: usize, into: usize) {
        self.rms_norm(&format!("{name}.0"), into, 3);
        self.conv(&format!("{name}.2"), out, into, &[3, 3, 3]);
    }
}
