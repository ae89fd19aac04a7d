//! The tensors of WAN's decoders, by their original names.

/// A decoder's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecoderShape {
    /// The unit of the stages' channels.
    pub base: usize,
    pub latent_channels: usize,
    /// Channels of the last convolution.
    pub out: usize,
    /// True for 2.2: blocks number their layers separately and keep their width when upsampling.
    pub nested: bool,
}

/// The stages' channels as multiples of the base, from the middle outwards; the middle has the
/// first.
const MULTIPLES: [usize; 4] = [4, 4, 2, 1];

/// Residual layers of a stage.
const LAYERS: usize = 3;

/// True for stages whose end doubles the frames, too; the last stage has no end.
const DOUBLES: [bool; 3] = [true, true, false];

/// Layers of one kind by name, with their channels.
struct Tensors(Vec<(String, Vec<usize>)>);

impl Tensors {
    fn conv(&mut self, name: &str, out: usize, into: usize, kernel: &[usize]) {
        self.0.push((format!("{name}.weight"), [&[out, into], kernel].concat()));
        self.0.push((format!("{name}.bias"), vec![out]));
    }

    fn norm(&mut self, name: &str, channels: usize, axes: usize) {
        self.0.push((format!("{name}.gamma"), [vec![channels], vec![1; axes]].concat()));
    }

    fn residual(&mut self, name: &str, into: usize, out: usize) {
        self.norm(&format!("{name}.residual.0"), into, 3);
        self.conv(&format!("{name}.residual.2"), out, into, &[3, 3, 3]);
        self.norm(&format!("{name}.residual.3"), out, 3);
        self.conv(&format!("{name}.residual.6"), out, out, &[3, 3, 3]);
        if into != out {
            self.conv(&format!("{name}.shortcut"), out, into, &[1, 1, 1]);
        }
    }
}

impl DecoderShape {
    /// Every tensor of the decoder, with its shape.
    pub fn tensors(self) -> Vec<(String, Vec<usize>)> {
        let Self { base, latent_channels, out, nested } = self;
        let middle = base * MULTIPLES[0];
        let mut tensors = Tensors(Vec::new());
        tensors.conv("conv2", latent_channels, latent_channels, &[1, 1, 1]);
        tensors.conv("decoder.conv1", middle, latent_channels, &[3, 3, 3]);
        tensors.residual("decoder.middle.0", middle, middle);
        tensors.norm("decoder.middle.1.norm", middle, 2);
        tensors.conv("decoder.middle.1.to_qkv", 3 * middle, middle, &[1, 1]);
        tensors.conv("decoder.middle.1.proj", middle, middle, &[1, 1]);
        tensors.residual("decoder.middle.2", middle, middle);
        let mut into = middle;
        for (stage, multiple) in MULTIPLES.into_iter().enumerate() {
            let channels = base * multiple;
            let name = |layer: usize| match nested {
                true => format!("decoder.upsamples.{stage}.upsamples.{layer}"),
                false => format!("decoder.upsamples.{}", stage * (LAYERS + 1) + layer),
            };
            for layer in 0..LAYERS {
                tensors.residual(&name(layer), if layer == 0 { into } else { channels }, channels);
            }
            into = channels;
            if let Some(doubles) = DOUBLES.get(stage) {
                into = if nested { channels } else { channels / 2 };
                tensors.conv(&format!("{}.resample.1", name(LAYERS)), into, channels, &[3, 3]);
                if *doubles {
                    tensors.conv(&format!("{}.time_conv", name(LAYERS)), 2 * channels, channels, &[3, 1, 1]);
                }
            }
        }
        tensors.norm("decoder.head.0", into, 3);
        tensors.conv("decoder.head.2", out, into, &[3, 3, 3]);
        tensors.0
    }
}
