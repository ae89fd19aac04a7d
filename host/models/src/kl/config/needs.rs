//! The tensors that a network needs, listed layer by layer.

use crate::known::Needed;

/// A list that grows.
#[derive(Default)]
pub(super) struct Needs {
    pub list: Vec<Needed>,
}

impl Needs {
    fn parameters(&mut self, name: &str, weights: Vec<Vec<usize>>, out: usize) {
        self.list.push(Needed { name: format!("{name}.weight"), shapes: weights });
        self.list.push(Needed { name: format!("{name}.bias"), shapes: vec![vec![out]] });
    }

    /// A square convolution.
    pub fn conv(&mut self, name: &str, into: usize, out: usize, side: usize) {
        self.parameters(name, vec![vec![out, into, side, side]], out);
    }

    pub fn norm(&mut self, name: &str, channels: usize) {
        self.parameters(name, vec![vec![channels]], channels);
    }

    pub fn resnet(&mut self, name: &str, into: usize, out: usize) {
        self.norm(&format!("{name}.norm1"), into);
        self.conv(&format!("{name}.conv1"), into, out, 3);
        self.norm(&format!("{name}.norm2"), out);
        self.conv(&format!("{name}.conv2"), out, out, 3);
        if into != out {
            self.conv(&format!("{name}.conv_shortcut"), into, out, 1);
        }
    }

    /// The middle block of the network `decoder` or `encoder`.
    pub fn middle(&mut self, network: &str, width: usize, layers: usize, attention: bool) {
        for layer in 0..layers {
            self.resnet(&format!("{network}.mid_block.resnets.{layer}"), width, width);
        }
        if !attention {
            return;
        }
        let name = format!("{network}.mid_block.attentions.0");
        self.norm(&format!("{name}.group_norm"), width);
        for part in ["to_q", "to_k", "to_v", "to_out.0"] {
            // A linear layer, or the 1×1 convolution that it was first.
            let weights = vec![vec![width, width], vec![width, width, 1, 1]];
            self.parameters(&format!("{name}.{part}"), weights, width);
        }
    }
}
