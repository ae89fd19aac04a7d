//! The tensors of image autoencoders, by the original code's names.

use super::Tensors;

/// Channels of the stages, from the picture inwards.
const STAGES: [usize; 4] = [128, 256, 512, 512];

/// Residual layers of a stage of the decoder; the encoder's have one less.
const LAYERS: usize = 3;

const MIDDLE: usize = 512;

/// Every tensor of encoder and decoder, with its shape. `quant`: with a 1×1 convolution before the
/// decoder and after the encoder.
pub fn tensors(latent_channels: usize, quant: bool) -> Vec<(String, Vec<usize>)> {
    let mut tensors = Tensors::default();
    if quant {
        tensors.conv("post_quant_conv", latent_channels, latent_channels, &[1, 1]);
        tensors.conv("quant_conv", 2 * latent_channels, 2 * latent_channels, &[1, 1]);
    }
    tensors.decoder(latent_channels);
    tensors.encoder(latent_channels);
    tensors.0
}

impl Tensors {
    fn decoder(&mut self, latent_channels: usize) {
        self.conv("decoder.conv_in", MIDDLE, latent_channels, &[3, 3]);
        self.mid("decoder.mid");
        let mut into = MIDDLE;
        // LDM counts from the picture inwards.
        for (stage, out) in STAGES.into_iter().enumerate().rev() {
            let up = format!("decoder.up.{stage}");
            self.stage(&up, LAYERS, into, out);
            if stage > 0 {
                self.conv(&format!("{up}.upsample.conv"), out, out, &[3, 3]);
            }
            into = out;
        }
        self.group_norm("decoder.norm_out", into);
        self.conv("decoder.conv_out", 3, into, &[3, 3]);
    }

    fn encoder(&mut self, latent_channels: usize) {
        let mut into = STAGES[0];
        self.conv("encoder.conv_in", into, 3, &[3, 3]);
        for (stage, out) in STAGES.into_iter().enumerate() {
            let down = format!("encoder.down.{stage}");
            self.stage(&down, LAYERS - 1, into, out);
            if stage + 1 < STAGES.len() {
                self.conv(&format!("{down}.downsample.conv"), out, out, &[3, 3]);
            }
            into = out;
        }
        self.mid("encoder.mid");
        self.group_norm("encoder.norm_out", MIDDLE);
        self.conv("encoder.conv_out", 2 * latent_channels, MIDDLE, &[3, 3]);
    }

    fn mid(&mut self, name: &str) {
        self.block(&format!("{name}.block_1"), MIDDLE, MIDDLE);
        self.group_norm(&format!("{name}.attn_1.norm"), MIDDLE);
        for part in ["q", "k", "v", "proj_out"] {
            self.conv(&format!("{name}.attn_1.{part}"), MIDDLE, MIDDLE, &[1, 1]);
        }
        self.block(&format!("{name}.block_2"), MIDDLE, MIDDLE);
    }

    fn stage(&mut self, name: &str, layers: usize, into: usize, out: usize) {
        for layer in 0..layers {
            self.block(&format!("{name}.block.{layer}"), if layer == 0 { into } else { out }, out);
        }
    }

    fn block(&mut self, name: &str, into: usize, out: usize) {
        self.group_norm(&format!("{name}.norm1"), into);
        self.conv(&format!("{name}.conv1"), out, into, &[3, 3]);
        self.group_norm(&format!("{name}.norm2"), out);
        self.conv(&format!("{name}.conv2"), out, out, &[3, 3]);
        if into != out {
            self.conv(&format!("{name}.nin_shortcut"), out, into, &[1, 1]);
        }
    }

    fn group_norm(&mut self, name: &str, channels: usize) {
        self.0.push((format!("{name}.weight"), vec![channels]));
        self.0.push((format!("{name}.bias"), vec![channels]));
    }
}
