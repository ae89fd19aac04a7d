//! Weights and latents from a seed: the published networks' sizes without their files. The same
//! seed gives the same bytes on every machine, since only additions, multiplications and square
//! roots are used.

mod kl;
mod transformers;
mod wan;

use std::{
    fs,
    path::{Path, PathBuf},
    str::FromStr,
};

pub use self::transformers::{Transformer, TransformerWeights};

use half::bf16;
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};
use safetensors::tensor::{Dtype, TensorView};
use tch::Tensor;
use tilewright_pipeline::Model;

use crate::{Error, Result, cache_folder, write_whole};

/// The version of the recipe: it changes whenever the same seed would give other bytes, so that no
/// older file is taken for a new one.
const RECIPE: u32 = 2;

/// Sides of the cells that a latent's noise is summed over, in latent pixels, and the weight of
/// each: coarse detail is stronger, as in photographs.
const OCTAVES: [(usize, f64); 5] = [(32, 1.0), (16, 0.8), (8, 0.6), (4, 0.4), (1, 0.25)];

/// Latent frames over which a clip's noise passes from one field to another: about a second and a
/// half.
const KEY: usize = 6;

/// A published autoencoder's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// As in `--family`.
    pub name: &'static str,
    /// Channels of its latents.
    pub latent_channels: usize,
    /// Output pixels per latent pixel.
    pub scale: u32,
    layers: Layers,
}

/// The layers of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layers {
    /// An image autoencoder, whose latent may pass through 1×1 convolutions.
    Kl { quant: bool },
    /// A video autoencoder.
    Wan(wan::Shape),
}

const fn image(name: &'static str, latent_channels: usize, quant: bool) -> Network {
    Network { name, latent_channels, scale: 8, layers: Layers::Kl { quant } }
}

const fn video(name: &'static str, scale: u32, shape: wan::Shape) -> Network {
    Network { name, latent_channels: shape.latent_channels, scale, layers: Layers::Wan(shape) }
}

impl Network {
    /// The networks that can be generated.
    pub const ALL: [Network; 6] = [
        image("flux", 16, false),
        image("sdxl", 4, true),
        image("sd3", 16, false),
        image("sd", 4, true),
        video("wan-2.1", 8, wan::Shape { base: 96, encoder_base: 96, latent_channels: 16, picture: 3, nested: false }),
        video(
            "wan-2.2",
            16,
            wan::Shape { base: 256, encoder_base: 160, latent_channels: 48, picture: 12, nested: true },
        ),
    ];

    /// Flux's.
    pub const FLUX: Network = Self::ALL[0];

    /// Stable Diffusion 1's and 2's.
    pub const SD: Network = Self::ALL[3];

    /// WAN 2.1's.
    pub const WAN_21: Network = Self::ALL[4];

    /// WAN 2.2's.
    pub const WAN_22: Network = Self::ALL[5];

    /// True if it decodes clips.
    pub fn is_video(self) -> bool {
        matches!(self.layers, Layers::Wan(_))
    }

    /// Output frames per latent frame, except the first.
    pub fn temporal_scale(self) -> u32 {
        if self.is_video() { 4 } else { 1 }
    }

    /// Every tensor by its original name, with its shape.
    fn tensors(self) -> Vec<(String, Vec<usize>)> {
        match self.layers {
            Layers::Kl { quant } => kl::tensors(self.latent_channels, quant),
            Layers::Wan(shape) => shape.tensors(),
        }
    }
}

impl FromStr for Network {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|network| network.name == text).ok_or_else(|| Error::Unknown {
            what: "network",
            given: text.to_owned(),
            known: Self::ALL.map(|network| network.name).join(", "),
        })
    }
}

/// Weights of a network, bf16 as published files are, under the original code's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weights {
    /// The network.
    pub network: Network,
    /// The seed.
    pub seed: u64,
}

impl Weights {
    /// The file in this user's cache folder; generated if it is missing.
    ///
    /// # Errors
    /// There is no cache folder, or the file can't be written.
    pub fn cached_file(self) -> Result<PathBuf> {
        let folder = cache_folder()?;
        let path = folder.join(format!("generated-{}-{}-{RECIPE}.safetensors", self.network.name, self.seed));
        if !path.is_file() {
            fs::create_dir_all(&folder).map_err(|source| Error::Cache { path: folder, source })?;
            self.write(&path).map_err(|error| match error {
                Error::Write { path, source } => Error::Cache { path, source },
                other => other,
            })?;
        }
        Ok(path)
    }

    /// Writes the file: about 170 MB, 254 MB for WAN 2.1, 1.4 GB for WAN 2.2.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn write(self, path: &Path) -> Result<()> {
        let tensors: Vec<_> = self
            .network
            .tensors()
            .into_iter()
            .map(|(name, shape)| {
                let bytes = self.values(&name, &shape);
                (name, shape, bytes)
            })
            .collect();
        let views = tensors
            .iter()
            .map(|(name, shape, bytes)| Ok((name.as_str(), TensorView::new(Dtype::BF16, shape.clone(), bytes)?)))
            .collect::<Result<Vec<_>>>()?;
        write_whole(path, &serialize(views)?)
    }

    /// Values that depend on the seed and the tensor's name alone. Norms and biases are not ones
    /// and zeros, and convolutions keep activations near 1, as trained networks do.
    fn values(self, name: &str, shape: &[usize]) -> Vec<u8> {
        let mut noise = Noise::new(self.seed, name);
        let count: usize = shape.iter().product();
        let norm = name.contains("norm") || name.ends_with(".gamma");
        let scale: f64 = match () {
            () if norm => 0.2,
            () if name.ends_with(".bias") => 0.1,
            () => gain(name) / (shape[1..].iter().product::<usize>() as f64).sqrt(),
        };
        let centre = if norm && !name.ends_with(".bias") { 1.0 } else { 0.0 };
        let value = |_| bf16::from_f64(centre + scale * noise.next()).to_le_bytes();
        (0..count).flat_map(value).collect()
    }
}

/// The gain that keeps a layer's output at variance near 1, by a part of its name: less if no norm
/// and activation precede it, so that the published clamp of WAN's frames seldom applies.
const GAINS: [(&str, f64); 10] = [
    ("quant_conv", 1.0),
    ("conv_in", 1.0),
    ("nin_shortcut", 1.0),
    ("conv_out", 0.8),
    ("coder.conv1", 1.0),
    ("middle.1.", 1.0),
    (".shortcut", 1.0),
    ("resample.1", 1.0),
    ("time_conv", 1.0),
    ("head.2", 0.6),
];

fn gain(name: &str) -> f64 {
    if name.starts_with("conv1.") || name.starts_with("conv2.") {
        // WAN's layers next to the latent; inner layers of other networks end in these names.
        return 1.0;
    }
    GAINS.iter().find(|(part, _)| name.contains(part)).map_or(1.5, |(_, gain)| *gain)
}

/// Layers by name, with their tensors' shapes.
#[derive(Default)]
struct Tensors(Vec<(String, Vec<usize>)>);

impl Tensors {
    fn conv(&mut self, name: &str, out: usize, into: usize, kernel: &[usize]) {
        self.0.push((format!("{name}.weight"), [&[out, into], kernel].concat()));
        self.0.push((format!("{name}.bias"), vec![out]));
    }
}

/// A latent of smooth noise that passes slowly from one field to others: per channel and frame of
/// mean 0 and variance 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latents {
    /// Samples.
    pub batch: usize,
    /// Channels.
    pub channels: usize,
    /// Latent pixels.
    pub height: usize,
    /// Latent pixels.
    pub width: usize,
    /// Latent frames of a clip; none for pictures.
    pub frames: Option<usize>,
    /// The seed.
    pub seed: u64,
}

impl Latents {
    /// The latents of pictures of a size in pixels, or of clips of some latent frames.
    pub fn of(model: &Model, size: [u32; 2], batch: u32, frames: Option<u32>, seed: u64) -> Self {
        let [width, height] = size.map(|side| (side / model.spatial_scale()).max(1) as usize);
        let frames = frames.map(|frames| frames as usize);
        Self { batch: batch as usize, channels: model.latent_channels(), height, width, frames, seed }
    }

    /// [N, C, h, w], or [N, C, T, h, w] of clips.
    pub fn shape(self) -> Vec<usize> {
        let Self { batch, channels, height, width, frames, seed: _ } = self;
        [batch, channels].into_iter().chain(frames).chain([height, width]).collect()
    }

    /// The values in row-major order.
    pub fn values(self) -> Vec<f32> {
        let sample = |sample| (0..self.channels).flat_map(move |channel| self.channel(&format!("{sample}.{channel}")));
        (0..self.batch).flat_map(sample).collect()
    }

    /// A tensor of [`Self::shape`].
    ///
    /// # Errors
    /// Memory is out.
    pub fn tensor(self) -> Result<Tensor> {
        let shape: Vec<i64> = self.shape().into_iter().map(|extent| extent as i64).collect();
        Ok(Tensor::f_from_slice(&self.values())?.f_view(&shape[..])?)
    }

    fn channel(self, name: &str) -> Vec<f32> {
        let Some(frames) = self.frames else { return normal(self.field(name)) };
        let fields: Vec<Vec<f64>> = (0..frames / KEY + 2).map(|key| self.field(&format!("{name}@{key}"))).collect();
        let frame = |frame: usize| {
            let (key, share) = place(frame, KEY);
            let pairs = fields[key].iter().zip(&fields[key + 1]);
            normal(pairs.map(|(one, next)| one + (next - one) * share).collect())
        };
        (0..frames).flat_map(frame).collect()
    }

    fn field(self, name: &str) -> Vec<f64> {
        let mut sum = vec![0.0; self.height * self.width];
        for (cell, weight) in OCTAVES {
            let mut noise = Noise::new(self.seed, &format!("{name}.{cell}"));
            let (rows, columns) = (self.height / cell + 2, self.width / cell + 2);
            let grid: Vec<f64> = (0..rows * columns).map(|_| noise.next()).collect();
            for (index, value) in sum.iter_mut().enumerate() {
                let (row, down) = place(index / self.width, cell);
                let (column, across) = place(index % self.width, cell);
                let at = |row: usize, column: usize| grid[row * columns + column];
                let above = at(row, column) + (at(row, column + 1) - at(row, column)) * across;
                let below = at(row + 1, column) + (at(row + 1, column + 1) - at(row + 1, column)) * across;
                *value += weight * (above + (below - above) * down);
            }
        }
        sum
    }

    /// Writes one tensor `latents` in f32, in the autoencoder's own space.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn write(self, path: &Path) -> Result<()> {
        let bytes: Vec<u8> = self.values().into_iter().flat_map(f32::to_le_bytes).collect();
        write_whole(path, &serialize(vec![("latents", TensorView::new(Dtype::F32, self.shape(), &bytes)?)])?)
    }
}

/// Normalises values to mean 0 and variance 1.
fn normal(values: Vec<f64>) -> Vec<f32> {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>() / count;
    let spread = if variance > 0.0 { variance.sqrt() } else { 1.0 };
    values.into_iter().map(|value| ((value - mean) / spread) as f32).collect()
}

/// The cell of a pixel and its position in it, smoothed so that cells don't show.
fn place(pixel: usize, cell: usize) -> (usize, f64) {
    let share = (pixel % cell) as f64 / cell as f64;
    (pixel / cell, share * share * (3.0 - 2.0 * share))
}

fn serialize(views: Vec<(&str, TensorView<'_>)>) -> Result<Vec<u8>> {
    let format = [("format".to_owned(), "pt".to_owned())].into();
    Ok(safetensors::serialize(views, Some(format))?)
}

/// Numbers of mean 0 and variance 1, nearly normal: sums of four uniform ones, which need no
/// logarithm that differs between machines.
struct Noise(ChaCha8Rng);

impl Noise {
    /// A stream of its own for each name.
    fn new(seed: u64, name: &str) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(tilewright_files::digest::fnv1a(name.as_bytes()));
        Self(random)
    }

    fn next(&mut self) -> f64 {
        let bits = self.0.next_u64();
        let sum: u64 = (0..4).map(|part| bits >> (16 * part) & 0xffff).sum();
        // Each part has the variance (2³² − 1) / 12.
        (sum as f64 - 2.0 * 65535.0) / ((65536.0 * 65536.0 - 1.0) / 3.0_f64).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_have_as_many_parameters_as_published() {
        let count = |network: Network, part: &str| -> usize {
            let tensors = network.tensors().into_iter().filter(|(name, _)| name.contains(part));
            tensors.map(|(_, shape)| shape.iter().product::<usize>()).sum()
        };
        assert_eq!(count(Network::FLUX, "decoder."), 49_545_475);
        assert_eq!(count(Network::FLUX, ""), 83_819_683);
        assert_eq!(count("sdxl".parse().unwrap(), ""), 83_653_863);
        let latent_side = 16 * 16 + 16;
        assert_eq!(count(Network::WAN_21, "decoder.") + latent_side, 73_295_603);
        assert_eq!(count(Network::WAN_21, ""), 126_892_531);
        assert_eq!(count(Network::WAN_22, ""), 704_688_668);
        assert!("sd4".parse::<Network>().is_err_and(|error| error.to_string().contains("flux, sdxl")));
    }

    #[test]
    fn values_depend_on_the_seed_and_the_name_alone() {
        let one = Weights { network: Network::FLUX, seed: 1 };
        let shape = [64, 16, 3, 3];
        assert_eq!(one.values("decoder.conv_in.weight", &shape), one.values("decoder.conv_in.weight", &shape));
        assert_ne!(one.values("decoder.conv_in.weight", &shape), one.values("decoder.mid.weight", &shape));
        let other = Weights { seed: 2, ..one };
        assert_ne!(one.values("decoder.conv_in.weight", &shape), other.values("decoder.conv_in.weight", &shape));
        // He-like: variance gain² / fan-in.
        let values = one.values("decoder.mid.block_1.conv1.weight", &[256, 16, 3, 3]);
        let values: Vec<f64> =
            values.chunks_exact(2).map(|pair| bf16::from_le_bytes([pair[0], pair[1]]).to_f64()).collect();
        let variance = values.iter().map(|value| value * value).sum::<f64>() / values.len() as f64;
        assert!((variance * 144.0 / 2.25 - 1.0).abs() < 0.05, "{variance}");
    }

    #[test]
    fn latents_are_smooth_and_of_unit_variance() {
        let latents = Latents { batch: 2, channels: 3, height: 48, width: 64, frames: None, seed: 7 };
        let values = latents.values();
        assert_eq!(values.len(), 2 * 3 * 48 * 64);
        assert_eq!(values, latents.values());
        for channel in values.chunks_exact(48 * 64) {
            let mean = channel.iter().sum::<f32>() / channel.len() as f32;
            let variance = channel.iter().map(|value| value * value).sum::<f32>() / channel.len() as f32;
            assert!(mean.abs() < 1e-4 && (variance - 1.0).abs() < 1e-3);
            let along: f32 =
                channel.chunks_exact(64).flat_map(|row| row.windows(2)).map(|pair| pair[0] * pair[1]).sum();
            assert!(along / (48.0 * 63.0) > 0.7, "neighbours are alike: {along}");
        }
        assert_ne!(values[..48 * 64], values[48 * 64..2 * 48 * 64]);
    }
    #[test]
    fn clips_pass_slowly_from_one_picture_to_another() {
        let latents = Latents { batch: 1, channels: 2, height: 32, width: 24, frames: Some(9), seed: 7 };
        assert_eq!(latents.shape(), [1, 2, 9, 32, 24]);
        let values = latents.values();
        assert_eq!(values.len(), 2 * 9 * 32 * 24);
        let frames: Vec<&[f32]> = values.chunks_exact(32 * 24).collect();
        let alike = |one: usize, other: usize| {
            let sum: f32 = frames[one].iter().zip(frames[other]).map(|(one, other)| one * other).sum();
            sum / (32.0 * 24.0)
        };
        for frame in 0..8 {
            assert!((alike(frame, frame) - 1.0).abs() < 1e-3 && alike(frame, frame + 1) > 0.7, "{frame}");
        }
        assert!(alike(0, 6) < 0.5, "another field: {}", alike(0, 6));
    }

    /// Both networks, with few channels: the file is a whole decoder, and frames are neither flat
    /// nor clamped.
    #[test]
    fn video_networks_are_read_and_decode_sanely() {
        use tch::{Device, Kind, Tensor};
        use tilewright_models::{
            Checkpoint, ComputeFormat, HalfConfig, Identity,
            wan_vae::{Clip, Config, Decoder, EncoderConfig, Spread},
        };
        use tilewright_plan::{Dtype, Layout, Precision};
        let folder = tempfile::tempdir().unwrap();
        for (nested, out, scale) in [(false, 3, 8), (true, 12, 16)] {
            let shape = wan::Shape { base: 16, encoder_base: 16, latent_channels: 16, picture: out, nested };
            let path = folder.path().join(format!("{out}.safetensors"));
            Weights { network: video("any", scale, shape), seed: 3 }.write(&path).unwrap();
            let file = Checkpoint::open(&path).unwrap();
            let identity = Identity::of_decoder(&file).unwrap();
            let config = Config::read(&file, &identity).unwrap();
            let weights = config.weights(&file, &identity).unwrap();
            assert!(weights.problems().is_empty() && weights.left_over().is_empty());
            assert_eq!((config.spatial_scale(), config.temporal_scale(), config.patch), (scale, 4, scale as usize / 8));
            EncoderConfig::read(&file, &identity).unwrap().check_weights(&file, &identity).unwrap();
            let format = ComputeFormat::new(Precision::Uniform(Dtype::F32), Layout::ChannelsLast).unwrap();
            let decoder = Decoder::load(&file, &identity, &config, format, Device::Cpu).unwrap();
            let latents = Latents { batch: 1, channels: 16, height: 6, width: 6, frames: Some(3), seed: 1 };
            let shape: Vec<i64> = latents.shape().into_iter().map(|extent| extent as i64).collect();
            let tensor = Tensor::from_slice(&latents.values()).view(&shape[..]);
            let spread = Spread { frames: 4, band: None, height: 6 * scale };
            let mut values: Vec<f32> = Vec::new();
            let mut emit = |frames: Tensor| {
                values.extend(Vec::<f32>::try_from(&frames.to_kind(Kind::Float).contiguous().view(-1)).unwrap());
                Ok(())
            };
            let _no_grad = tch::no_grad_guard();
            decoder
                .push(&mut Clip::from_frame(&config, 0), Some(&tensor), &spread, &mut |_| Ok(()), &mut emit)
                .unwrap();
            let side = 6 * scale as usize;
            assert_eq!(values.len(), 9 * 3 * side * side);
            let square = values.iter().map(|value| value * value).sum::<f32>() / values.len() as f32;
            let cut = values.iter().filter(|value| value.abs() >= 1.0).count() as f32 / values.len() as f32;
            assert!((0.05..0.5).contains(&square.sqrt()) && cut < 0.05, "{out}: {} {cut}", square.sqrt());
        }
    }
}
