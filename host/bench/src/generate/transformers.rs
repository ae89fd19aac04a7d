//! Transformers of the published widths with one block of each kind, in the types that files store
//! weights in.

use std::{
    borrow::Cow,
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
};

use half::{bf16, f16};
use rand_chacha::rand_core::Rng;
use safetensors::{SafeTensorError, View, tensor::Dtype};
use tilewright_models::{AnyConfig, DenoiserConfig, Stored, flux, wan};
use tilewright_nn::Needed;

use super::Noise;
use crate::{Error, Result};

/// The width of a head of denoisers, and of text encoders.
const HEAD: usize = 128;
const TEXT_HEAD: usize = 64;

/// Tokens of an encoder's vocabulary. Published ones have more: they are looked up on the host.
const VOCABULARY: usize = 512;

/// A transformer with one block of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transformer {
    /// The model that has its width.
    pub name: &'static str,
    /// Heads side by side in its width.
    pub heads: usize,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Flux,
    Wan,
    T5,
    Clip,
}

impl Transformer {
    /// Flux.1's denoiser: a double and a single block.
    pub const FLUX: Self = Self { name: "flux", heads: 24, kind: Kind::Flux };
    /// The smaller denoiser of WAN 2.1.
    pub const WAN: Self = Self { name: "wan-2.1", heads: 12, kind: Kind::Wan };
    /// T5's encoder of version 1.1, XXL.
    pub const T5: Self = Self { name: "t5-xxl", heads: 64, kind: Kind::T5 };
    /// OpenAI's CLIP-L.
    pub const CLIP: Self = Self { name: "clip-l", heads: 12, kind: Kind::Clip };

    /// The same with fewer heads, and so much narrower.
    #[must_use]
    pub const fn of_heads(self, heads: usize) -> Self {
        Self { heads, ..self }
    }

    /// The width of its tokens.
    pub const fn width(self) -> usize {
        let head = match self.kind {
            Kind::Flux | Kind::Wan => HEAD,
            Kind::T5 | Kind::Clip => TEXT_HEAD,
        };
        self.heads * head
    }

    /// Weights in all.
    pub fn parameters(self) -> u64 {
        self.tensors().iter().map(|(_, shape)| shape.iter().product::<usize>() as u64).sum()
    }

    /// The matrices of its blocks by their published names, with rows and columns.
    pub fn matrices(self) -> impl Iterator<Item = (String, [usize; 2])> {
        let tensors = self.tensors().into_iter().filter(|(name, _)| is_of_a_block(name));
        tensors.filter_map(|(name, shape)| Some((name, <[usize; 2]>::try_from(shape).ok()?)))
    }

    /// Every tensor by its published name, with its shape.
    fn tensors(self) -> Vec<(String, Vec<usize>)> {
        let (hidden, heads) = (self.width(), self.heads as i64);
        match self.kind {
            Kind::Flux => listed(DenoiserConfig::Flux(flux::Config {
                hidden: hidden as i64,
                heads,
                axes: [16, 56, 56],
                double_blocks: 1,
                single_blocks: 1,
                feed_forward: 4 * hidden as i64,
                text: 4096,
                pooled: 768,
                latent_channels: 16,
                guidance: true,
            })),
            Kind::Wan => listed(DenoiserConfig::Wan(wan::Config {
                hidden: hidden as i64,
                heads,
                blocks: 1,
                feed_forward: hidden as i64 / 6 * 35,
                time: 256,
                text: 4096,
                image: None,
                input_channels: 16,
                latent_channels: 16,
            })),
            Kind::T5 => t5(hidden, self.heads),
            Kind::Clip => clip(hidden),
        }
    }
}

/// The weights of a denoiser, whose own names are those of published files.
fn listed(config: DenoiserConfig) -> Vec<(String, Vec<usize>)> {
    /// Matrices that the network has together and WAN's files apart, by their ends.
    const APART: [(&str, &[&str]); 2] = [("self_attn.qkv.", &["q.", "k.", "v."]), ("cross_attn.kv.", &["k.", "v."])];
    let needed = config.weights().expect("listing loads nothing");
    let parts = |needed: Needed| -> Vec<(String, Vec<usize>)> {
        let (name, shape) = (needed.name, needed.shapes[0].clone());
        let joined = APART.iter().find(|(joined, _)| name.contains(joined));
        let Some((joined, parts)) = joined else { return vec![(name, shape)] };
        let shape = [&[shape[0] / parts.len()], &shape[1..]].concat();
        let attention = joined.split_inclusive('.').next().unwrap_or_default();
        parts.iter().map(|part| (name.replace(joined, &format!("{attention}{part}")), shape.clone())).collect()
    };
    needed.into_iter().flat_map(parts).collect()
}

/// By transformers' names (`T5EncoderModel`).
fn t5(hidden: usize, heads: usize) -> Vec<(String, Vec<usize>)> {
    let (block, wide) = ("encoder.block.0.layer", hidden / 2 * 5);
    let attention = ["q", "k", "v", "o"].map(|name| (format!("{block}.0.SelfAttention.{name}"), [hidden, hidden]));
    let feed_forward = [("wi_0", [wide, hidden]), ("wi_1", [wide, hidden]), ("wo", [hidden, wide])]
        .map(|(name, shape)| (format!("{block}.1.DenseReluDense.{name}"), shape));
    let tables = [
        ("shared".to_owned(), [VOCABULARY, hidden]),
        (format!("{block}.0.SelfAttention.relative_attention_bias"), [32, heads]),
    ];
    let norms = [format!("{block}.0.layer_norm"), format!("{block}.1.layer_norm"), "encoder.final_layer_norm".into()];
    let matrices = tables.into_iter().chain(attention).chain(feed_forward).map(|(name, shape)| (name, shape.to_vec()));
    let tensors = matrices.chain(norms.into_iter().map(|name| (name, vec![hidden])));
    tensors.map(|(name, shape)| (format!("{name}.weight"), shape)).collect()
}

/// By transformers' names (`CLIPTextModel`).
fn clip(hidden: usize) -> Vec<(String, Vec<usize>)> {
    let (block, wide) = ("text_model.encoder.layers.0", 4 * hidden);
    let mut tensors = Vec::from(
        [("token", VOCABULARY), ("position", 77)]
            .map(|(name, rows)| (format!("text_model.embeddings.{name}_embedding.weight"), vec![rows, hidden])),
    );
    let attention = ["q_proj", "k_proj", "v_proj", "out_proj"];
    let attention = attention.map(|name| (format!("{block}.self_attn.{name}"), vec![hidden, hidden]));
    let feed_forward = [("fc1", vec![wide, hidden]), ("fc2", vec![hidden, wide])]
        .map(|(name, shape)| (format!("{block}.mlp.{name}"), shape));
    let norms = [format!("{block}.layer_norm1"), format!("{block}.layer_norm2"), "text_model.final_layer_norm".into()]
        .map(|name| (name, vec![hidden]));
    for (name, shape) in attention.into_iter().chain(feed_forward).chain(norms) {
        tensors.push((format!("{name}.bias"), vec![shape[0]]));
        tensors.push((format!("{name}.weight"), shape));
    }
    tensors
}

/// True of the tensors of a block, by their names.
fn is_of_a_block(name: &str) -> bool {
    ["blocks.", "block.", "layers."].iter().any(|part| name.contains(part)) && !name.contains("relative_attention")
}

/// The containers of weights, with the types that the matrices of blocks may have in them.
const STORED: [(Stored, Container); 4] = [
    (Stored::Bf16, Container::Safetensors),
    (Stored::F8E4m3, Container::Safetensors),
    (Stored::Q8_0, Container::Gguf),
    (Stored::Q4K, Container::Gguf),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Container {
    Safetensors,
    Gguf,
}

/// Weights of a transformer. The matrices of its blocks are stored in one type: in blocks with
/// scales that differ, or with one scale beside each matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransformerWeights {
    /// The transformer.
    pub transformer: Transformer,
    /// The type: BF16, F8_E4M3, Q8_0 or Q4_K.
    pub stored: Stored,
    /// The seed.
    pub seed: u64,
}

/// A tensor of a file.
struct Piece {
    name: String,
    shape: Vec<usize>,
    stored: Stored,
    values: Values,
}

/// The way to a tensor's bytes.
#[derive(Clone, Copy)]
enum Values {
    /// Spread about a centre.
    Spread(Spread),
    /// One value.
    Single(f32),
}

/// Values about `centre`, with this deviation.
#[derive(Clone, Copy)]
struct Spread {
    centre: f64,
    deviation: f64,
}

impl TransformerWeights {
    /// Writes the file: one tensor at a time is in memory.
    ///
    /// # Errors
    /// The type is not among those that are generated, or the file can't be written.
    pub fn write(self, path: &Path) -> Result<()> {
        let container = STORED.iter().find(|row| row.0 == self.stored).map(|row| row.1);
        let container = container.ok_or_else(|| Error::Unknown {
            what: "type of generated weights",
            given: self.stored.to_string(),
            known: STORED.map(|row| row.0.to_string()).join(", "),
        })?;
        let pieces = self.pieces(container);
        match container {
            Container::Safetensors => self.write_safetensors(path, &pieces),
            Container::Gguf => {
                self.write_gguf(path, &pieces).map_err(|source| Error::Write { path: path.to_owned(), source })
            }
        }
    }

    fn pieces(self, container: Container) -> Vec<Piece> {
        let plain = if container == Container::Gguf { Stored::F32 } else { Stored::Bf16 };
        let mut pieces = Vec::new();
        for (name, shape) in self.transformer.tensors() {
            let is_packed =
                is_of_a_block(&name) && shape.len() == 2 && shape[1].is_multiple_of(self.stored.block_values());
            let stored = if is_packed { self.stored } else { plain };
            let spread = spread(&name, &shape);
            if stored == Stored::F8E4m3 {
                let scale = Values::Single((spread.deviation / F8_DEVIATION) as f32);
                let name = name.replace(".weight", ".scale_weight");
                pieces.push(Piece { name, shape: vec![1], stored: Stored::F32, values: scale });
            }
            pieces.push(Piece { name, shape, stored, values: Values::Spread(spread) });
        }
        if self.stored == Stored::F8E4m3 {
            // The mark of ComfyUI's files with such scales.
            let values = Values::Single(0.0);
            pieces.push(Piece { name: "scaled_fp8".into(), shape: vec![0], stored: Stored::F8E4m3, values });
        }
        pieces
    }

    fn bytes(self, piece: &Piece) -> Vec<u8> {
        let count: usize = piece.shape.iter().product();
        let mut noise = Noise::new(self.seed, &piece.name);
        let Spread { centre, deviation } = match piece.values {
            Values::Spread(spread) => spread,
            Values::Single(value) => return value.to_le_bytes().repeat(count),
        };
        let mut next = || centre + deviation * noise.next();
        match piece.stored {
            Stored::F32 => (0..count).flat_map(|_| (next() as f32).to_le_bytes()).collect(),
            Stored::Bf16 => (0..count).flat_map(|_| bf16::from_f64(next()).to_le_bytes()).collect(),
            stored => {
                let mut bytes = vec![0; stored.bytes(&piece.shape).expect("rows are whole blocks")];
                noise.0.fill_bytes(&mut bytes);
                bytes.chunks_exact_mut(stored.block_bytes()).for_each(|block| with_scale(block, stored, deviation));
                bytes
            }
        }
    }

    fn write_safetensors(self, path: &Path, pieces: &[Piece]) -> Result<()> {
        let views = pieces.iter().map(|piece| (piece.name.as_str(), Lazy { weights: self, piece }));
        let format = [("format".to_owned(), "pt".to_owned())].into();
        safetensors::serialize_to_file(views, Some(format), path).map_err(|error| match error {
            SafeTensorError::IoError(source) => Error::Write { path: path.to_owned(), source },
            other => Error::Weights(other),
        })
    }

    /// Version 3 of the format (github.com/ggml-org/ggml, docs/gguf.md).
    fn write_gguf(self, path: &Path, pieces: &[Piece]) -> io::Result<()> {
        const ALIGNMENT: usize = 32;
        let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
        let size = |piece: &Piece| piece.stored.bytes(&piece.shape).expect("rows are whole blocks");
        let mut header = b"GGUF".to_vec();
        header.extend(3_u32.to_le_bytes());
        header.extend([pieces.len() as u64, 1].into_iter().flat_map(u64::to_le_bytes));
        header.extend(text("general.architecture"));
        // A text.
        header.extend(8_u32.to_le_bytes());
        header.extend(text(self.transformer.name));
        let mut offset = 0_u64;
        for piece in pieces {
            header.extend(text(&piece.name));
            header.extend((piece.shape.len() as u32).to_le_bytes());
            header.extend(piece.shape.iter().rev().flat_map(|extent| (*extent as u64).to_le_bytes()));
            let code: u32 = match piece.stored {
                Stored::Q8_0 => 8,
                Stored::Q4K => 12,
                _ => 0,
            };
            header.extend(code.to_le_bytes());
            header.extend(offset.to_le_bytes());
            offset += size(piece).next_multiple_of(ALIGNMENT) as u64;
        }
        header.resize(header.len().next_multiple_of(ALIGNMENT), 0);
        let mut file = BufWriter::new(File::create(path)?);
        file.write_all(&header)?;
        for piece in pieces {
            let mut bytes = self.bytes(piece);
            bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
            file.write_all(&bytes)?;
        }
        file.flush()
    }
}

/// A tensor whose bytes are generated when they are written.
struct Lazy<'a> {
    weights: TransformerWeights,
    piece: &'a Piece,
}

impl View for Lazy<'_> {
    fn dtype(&self) -> Dtype {
        match self.piece.stored {
            Stored::F8E4m3 => Dtype::F8_E4M3,
            Stored::F32 => Dtype::F32,
            _ => Dtype::BF16,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.piece.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Owned(self.weights.bytes(self.piece))
    }

    fn data_len(&self) -> usize {
        self.piece.shape.iter().product::<usize>() * self.piece.stored.block_bytes()
    }
}

/// Norms and biases that are not ones and zeros, and matrices that keep values near 1. The inputs
/// of modulations have passed a SiLU: theirs are larger, so that gates are near 1 and every block
/// counts.
fn spread(name: &str, shape: &[usize]) -> Spread {
    let fan_in = shape[1..].iter().product::<usize>().max(1) as f64;
    let is = |parts: &[&str]| parts.iter().any(|part| name.contains(part));
    let (centre, deviation) = match () {
        () if is(&["norm"]) && !name.ends_with(".bias") => (1.0, 0.2),
        () if name.ends_with(".bias") => (0.0, 0.02),
        () if is(&["token_embedding", "position_embedding", "shared", "relative_attention"]) => (0.0, 1.0),
        () if is(&["modulation"]) && shape.len() > 2 => (0.0, 0.3),
        () if is(&["_mod.", "modulation", "time_projection"]) => (0.0, 2.0 / fan_in.sqrt()),
        () => (0.0, 1.0 / fan_in.sqrt()),
    };
    Spread { centre, deviation }
}

/// The deviation of a code of FP8 (E4M3) that is drawn evenly from all that are numbers.
const F8_DEVIATION: f64 = 99.67;

/// The same of a code of Q8_0 times a scale of 1.
const Q8_DEVIATION: f64 = 73.9;

/// The same of a code of Q4_K times a scale of 1, if the scale of its minimum is [`Q4_MINIMUM`]
/// times as large: the mean is 0 then.
const Q4_DEVIATION: f64 = 258.3;
const Q4_MINIMUM: f64 = 7.5;

/// Gives a block of random bytes its scales, which vary by half from block to block.
fn with_scale(block: &mut [u8], stored: Stored, deviation: f64) {
    let varied = 0.75 + 0.5 * f64::from(block[0]) / 255.0;
    let half = |value: f64| f16::from_f64(value * varied).to_le_bytes();
    match stored {
        // Codes that are no numbers.
        Stored::F8E4m3 if block[0] & 0x7f == 0x7f => block[0] &= 0x80,
        Stored::Q8_0 => block[..2].copy_from_slice(&half(deviation / Q8_DEVIATION)),
        Stored::Q4K => {
            block[..2].copy_from_slice(&half(deviation / Q4_DEVIATION));
            block[2..4].copy_from_slice(&half(Q4_MINIMUM * deviation / Q4_DEVIATION));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use tch::Device;
    use tilewright_models::{Checkpoint, DenoiserFile, EncoderFile};

    use super::*;

    #[test]
    fn blocks_have_as_many_parameters_as_published() {
        let of_blocks = |transformer: Transformer| -> usize {
            let tensors = transformer.tensors().into_iter().filter(|(name, _)| name.contains("block"));
            tensors.map(|(_, shape)| shape.iter().product::<usize>()).sum()
        };
        // diffusers' FluxTransformerBlock and FluxSingleTransformerBlock, WanTransformerBlock.
        assert_eq!(of_blocks(Transformer::FLUX), 339_831_296 + 141_591_808);
        assert_eq!(of_blocks(Transformer::WAN), 46_440_704);
    }

    #[test]
    fn files_are_read_and_their_matrices_are_spread_as_meant() {
        let folder = tempfile::tempdir().unwrap();
        for (transformer, heads) in [(Transformer::FLUX, 2), (Transformer::WAN, 2)] {
            for (stored, container) in STORED {
                if transformer == Transformer::WAN && container == Container::Gguf {
                    continue;
                }
                let path = folder.path().join(format!("{}-{stored}", transformer.name));
                TransformerWeights { transformer: transformer.of_heads(heads), stored, seed: 5 }.write(&path).unwrap();
                let file = DenoiserFile::open(Checkpoint::open(&path).unwrap()).unwrap();
                assert!(file.stored_types.iter().any(|(found, _)| *found == stored), "{} {stored}", transformer.name);
                file.check().unwrap();
                let name = match transformer.kind {
                    Kind::Flux => "double_blocks.0.img_attn.proj.weight",
                    _ => "blocks.0.self_attn.o.weight",
                };
                let matrix = file.file().file().load(name, &[256, 256], tch::Kind::Double, Device::Cpu).unwrap();
                let of = |tensor: tch::Tensor| f64::try_from(tensor).unwrap();
                let deviation = of(matrix.std(true)) * 16.0;
                assert!((0.95..1.1).contains(&deviation), "{stored}: {deviation}");
                assert!(of(matrix.mean(tch::Kind::Double)).abs() * 16.0 < 0.02, "{stored}");
            }
        }
        for transformer in [Transformer::T5.of_heads(2), Transformer::CLIP.of_heads(2)] {
            let path = folder.path().join(transformer.name);
            TransformerWeights { transformer, stored: Stored::Bf16, seed: 5 }.write(&path).unwrap();
            let found = EncoderFile::find_all(&std::sync::Arc::new(Checkpoint::open(&path).unwrap())).unwrap();
            assert_eq!(found.len(), 1, "{}", transformer.name);
            found[0].check().unwrap();
        }
    }
}
