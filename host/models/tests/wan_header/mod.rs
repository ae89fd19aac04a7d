//! The tensors of WAN's autoencoders by name and shape, after the constructors of diffusers'
//! `AutoencoderKLWan` and the original names that its conversion scripts list.

use std::{
    collections::BTreeMap,
    fs::File,
    io::Write,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use serde_json::json;
use tilewright_models::{Checkpoint, FileLayout, Result};

/// Arguments of the constructor.
#[derive(Clone, Copy)]
pub struct Network {
    pub encoder: usize,
    pub decoder: usize,
    pub latent: usize,
    pub layers: usize,
    pub residual: bool,
    pub image: usize,
    pub patch: usize,
}

pub const WAN_21: Network =
    Network { encoder: 96, decoder: 96, latent: 16, layers: 2, residual: false, image: 3, patch: 1 };
pub const WAN_22: Network =
    Network { encoder: 160, decoder: 256, latent: 48, layers: 2, residual: true, image: 12, patch: 2 };
pub const SMALL_21: Network = Network { encoder: 8, decoder: 8, latent: 4, ..WAN_21 };
pub const SMALL_22: Network = Network { encoder: 8, decoder: 12, latent: 4, ..WAN_22 };

/// Tensors, to be changed and written.
#[derive(Default)]
pub struct Header(BTreeMap<String, Vec<usize>>);

/// A layer's names: diffusers' and the original one.
struct Names(String, String);

impl Header {
    pub fn of(network: &Network, layout: FileLayout) -> Self {
        let mut writer = Writer { original: layout == FileLayout::WanOriginal, header: Self::default() };
        writer.encoder(network);
        writer.decoder(network);
        writer.header
    }

    /// Leaves out the tensors whose name begins so; there are some.
    pub fn without(mut self, start: &str) -> Self {
        let before = self.0.len();
        self.0.retain(|name, _| !name.starts_with(start));
        assert!(self.0.len() < before, "{start}");
        self
    }

    pub fn with(mut self, name: &str, shape: &[usize]) -> Self {
        assert!(self.0.insert(name.into(), shape.into()).is_none(), "{name}");
        self
    }

    pub fn reshaped(mut self, name: &str, shape: &[usize]) -> Self {
        *self.0.get_mut(name).unwrap() = shape.into();
        self
    }

    pub fn under(self, prefix: &str) -> Self {
        Self(self.0.into_iter().map(|(name, shape)| (format!("{prefix}{name}"), shape)).collect())
    }

    /// Writes the header; the zeros behind it take no space on the disk. The last byte is none: a
    /// download that broke off ends in zeros.
    pub fn write(&self, folder: &Path) -> PathBuf {
        let mut end = 0;
        let mut entries = serde_json::Map::new();
        for (name, shape) in &self.0 {
            let start = end;
            end += 4 * shape.iter().product::<usize>();
            entries.insert(name.clone(), json!({"dtype": "F32", "shape": shape, "data_offsets": [start, end]}));
        }
        let header = serde_json::to_vec(&entries).unwrap();
        let path = folder.join("wan.safetensors");
        let mut file = File::create(&path).unwrap();
        file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
        file.write_all(&header).unwrap();
        let length = (8 + header.len() + end) as u64;
        file.set_len(length).unwrap();
        file.write_all_at(&[1], length - 1).unwrap();
        path
    }

    pub fn open(&self, folder: &Path) -> Result<Checkpoint> {
        Ok(Checkpoint::open(&self.write(folder))?)
    }
}

struct Writer {
    original: bool,
    header: Header,
}

impl Writer {
    fn put(&mut self, names: &Names, part: [&str; 2], parameter: &str, shape: &[usize]) {
        let (layer, part) = if self.original { (&names.1, part[1]) } else { (&names.0, part[0]) };
        let dot = if part.is_empty() { "" } else { "." };
        self.header.0.insert(format!("{layer}{dot}{part}.{parameter}"), shape.into());
    }

    fn conv(&mut self, names: &Names, part: [&str; 2], shape: &[usize]) {
        self.put(names, part, "weight", shape);
        self.put(names, part, "bias", &shape[..1]);
    }

    fn plain(&mut self, diffusers: &str, original: &str, shape: &[usize]) {
        self.conv(&Names(diffusers.into(), original.into()), ["", ""], shape);
    }

    fn resnet(&mut self, names: &Names, into: usize, out: usize) {
        self.put(names, ["norm1", "residual.0"], "gamma", &[into, 1, 1, 1]);
        self.conv(names, ["conv1", "residual.2"], &[out, into, 3, 3, 3]);
        self.put(names, ["norm2", "residual.3"], "gamma", &[out, 1, 1, 1]);
        self.conv(names, ["conv2", "residual.6"], &[out, out, 3, 3, 3]);
        if into != out {
            self.conv(names, ["conv_shortcut", "shortcut"], &[out, into, 1, 1, 1]);
        }
    }

    fn middle(&mut self, coder: &str, width: usize) {
        for (resnet, place) in [(0, 0), (1, 2)] {
            let names = Names(format!("{coder}.mid_block.resnets.{resnet}"), format!("{coder}.middle.{place}"));
            self.resnet(&names, width, width);
        }
        let names = Names(format!("{coder}.mid_block.attentions.0"), format!("{coder}.middle.1"));
        self.put(&names, ["norm"; 2], "gamma", &[width, 1, 1]);
        self.conv(&names, ["to_qkv"; 2], &[3 * width, width, 1, 1]);
        self.conv(&names, ["proj"; 2], &[width, width, 1, 1]);
    }

    fn head(&mut self, coder: &str, width: usize, out: usize) {
        let names = Names(format!("{coder}.norm_out"), format!("{coder}.head.0"));
        self.put(&names, ["", ""], "gamma", &[width, 1, 1, 1]);
        self.plain(&format!("{coder}.conv_out"), &format!("{coder}.head.2"), &[out, width, 3, 3, 3]);
    }

    fn encoder(&mut self, network: &Network) {
        let base = network.encoder;
        self.plain("encoder.conv_in", "encoder.conv1", &[base, network.image, 3, 3, 3]);
        let (mut into, mut flat) = (base, 0);
        for (block, multiple) in [1, 2, 4, 4].into_iter().enumerate() {
            let out = base * multiple;
            for layer in 0..network.layers {
                let names = if network.residual {
                    Names(
                        format!("encoder.down_blocks.{block}.resnets.{layer}"),
                        format!("encoder.downsamples.{block}.downsamples.{layer}"),
                    )
                } else {
                    Names(format!("encoder.down_blocks.{flat}"), format!("encoder.downsamples.{flat}"))
                };
                self.resnet(&names, into, out);
                (into, flat) = (out, flat + 1);
            }
            if block < 3 {
                let names = if network.residual {
                    let layers = network.layers;
                    Names(
                        format!("encoder.down_blocks.{block}.downsampler"),
                        format!("encoder.downsamples.{block}.downsamples.{layers}"),
                    )
                } else {
                    Names(format!("encoder.down_blocks.{flat}"), format!("encoder.downsamples.{flat}"))
                };
                self.conv(&names, ["resample.1"; 2], &[out, out, 3, 3]);
                if block > 0 {
                    self.conv(&names, ["time_conv"; 2], &[out, out, 3, 1, 1]);
                }
                flat += 1;
            }
        }
        self.middle("encoder", into);
        self.head("encoder", into, 2 * network.latent);
        self.plain("quant_conv", "conv1", &[2 * network.latent, 2 * network.latent, 1, 1, 1]);
    }

    fn decoder(&mut self, network: &Network) {
        self.plain("post_quant_conv", "conv2", &[network.latent, network.latent, 1, 1, 1]);
        let middle = 4 * network.decoder;
        self.plain("decoder.conv_in", "decoder.conv1", &[middle, network.latent, 3, 3, 3]);
        self.middle("decoder", middle);
        let (mut into, mut flat) = (middle, 0);
        for (block, multiple) in [4, 4, 2, 1].into_iter().enumerate() {
            let out = network.decoder * multiple;
            for layer in 0..=network.layers {
                let original = if network.residual {
                    format!("decoder.upsamples.{block}.upsamples.{layer}")
                } else {
                    format!("decoder.upsamples.{flat}")
                };
                self.resnet(&Names(format!("decoder.up_blocks.{block}.resnets.{layer}"), original), into, out);
                (into, flat) = (out, flat + 1);
            }
            if block < 3 {
                let (names, width) = if network.residual {
                    let layers = network.layers + 1;
                    let original = format!("decoder.upsamples.{block}.upsamples.{layers}");
                    (Names(format!("decoder.up_blocks.{block}.upsampler"), original), out)
                } else {
                    let original = format!("decoder.upsamples.{flat}");
                    (Names(format!("decoder.up_blocks.{block}.upsamplers.0"), original), out / 2)
                };
                self.conv(&names, ["resample.1"; 2], &[width, out, 3, 3]);
                if block < 2 {
                    self.conv(&names, ["time_conv"; 2], &[2 * out, out, 3, 1, 1]);
                }
                (into, flat) = (width, flat + 1);
            }
        }
        self.head("decoder", into, network.image);
    }
}
