//! The tensors that the networks are made of, with their shapes.

use super::EncoderConfig;
use crate::known::Needed;

/// Tensors, layer by layer.
#[derive(Default)]
struct List(Vec<Needed>);

impl List {
    /// A convolution over frames, height and width.
    fn conv(&mut self, name: &str, out: usize, into: usize, extents: [usize; 3]) {
        let [time, height, width] = extents;
        self.weight(name, vec![out, into, time, height, width]);
    }

    fn weight(&mut self, name: &str, shape: Vec<usize>) {
        let out = shape[0];
        self.0.push(Needed { name: format!("{name}.weight"), shapes: vec![shape] });
        self.0.push(Needed { name: format!("{name}.bias"), shapes: vec![vec![out]] });
    }

    fn norm(&mut self, name: &str, channels: usize) {
        let shapes = vec![vec![channels, 1, 1, 1], vec![channels, 1, 1], vec![channels]];
        self.0.push(Needed { name: format!("{name}.gamma"), shapes });
    }

    fn resnet(&mut self, name: &str, into: usize, out: usize) {
        self.norm(&format!("{name}.norm1"), into);
        self.conv(&format!("{name}.conv1"), out, into, [3, 3, 3]);
        self.norm(&format!("{name}.norm2"), out);
        self.conv(&format!("{name}.conv2"), out, out, [3, 3, 3]);
        if into != out {
            self.conv(&format!("{name}.conv_shortcut"), out, into, [1, 1, 1]);
        }
    }

    fn middle(&mut self, coder: &str, channels: usize) {
        let attention = format!("{coder}.mid_block.attentions.0");
        self.resnet(&format!("{coder}.mid_block.resnets.0"), channels, channels);
        self.norm(&format!("{attention}.norm"), channels);
        self.weight(&format!("{attention}.to_qkv"), vec![3 * channels, channels, 1, 1]);
        self.weight(&format!("{attention}.proj"), vec![channels, channels, 1, 1]);
        self.resnet(&format!("{coder}.mid_block.resnets.1"), channels, channels);
    }

    fn resnets(&mut self, block: &str, layers: usize, into: usize, out: usize) {
        for layer in 0..layers {
            self.resnet(&format!("{block}.resnets.{layer}"), if layer == 0 { into } else { out }, out);
        }
    }
}

impl EncoderConfig {
    /// Every tensor that the encoder needs.
    pub(super) fn needed(&self) -> Vec<Needed> {
        let mut list = List::default();
        list.conv("encoder.conv_in", self.first_channels, self.in_channels, [3, 3, 3]);
        for (index, block) in self.down_blocks.iter().enumerate() {
            let name = format!("encoder.down_blocks.{index}");
            list.resnets(&name, block.layers, block.into, block.channels);
            let Some(downsample) = block.downsample else { continue };
            list.weight(&format!("{name}.downsampler.resample.1"), vec![block.channels, block.channels, 3, 3]);
            if downsample.temporal {
                list.conv(&format!("{name}.downsampler.time_conv"), block.channels, block.channels, [3, 1, 1]);
            }
        }
        list.middle("encoder", self.middle_channels());
        list.norm("encoder.norm_out", self.middle_channels());
        list.conv("encoder.conv_out", 2 * self.latent_channels, self.middle_channels(), [3, 3, 3]);
        list.conv("quant_conv", 2 * self.latent_channels, 2 * self.latent_channels, [1, 1, 1]);
        list.0
    }
}
