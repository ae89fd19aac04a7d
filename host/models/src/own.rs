//! A denoiser of a test's own: this module, its line in the list and a row of parts.rs for each
//! layout are all that a network takes. Each pixel is a token, and each block adds a linear layer's
//! output, multiplied by a gate of the text.

use serde::Serialize;
use tch::{Device, Kind, Tensor};
use tilewright_nn::{ComputeFormat, Costs, Dense, Meter, TokenOps, TokenScope};
use tilewright_plan::Dtype;
use tilewright_sampling::{Shift, Times};

use crate::{
    BeforeBlock, BlockChoice, Checkpoint, EncoderKind, Family, Inputs, Lora, Result,
    denoiser::{Architecture, DenoiserFile, Sign},
    network_file::{AnyConfig, NetworkConfig},
    published::{ComfyUi, Facts, Published, Start, Usual, Widths},
    transformer::{Join, Layout, Residency, Row, TransformerFile},
};

pub(crate) const NAME: &str = "a test's";

pub(crate) const SIGNS: &[Sign] =
    &[Sign { part: "a test's transformer", layout: Layout::Diffusers, mark: "own_embedder.weight", companion: None }];

const DIFFUSERS: &[Row] = &[Row("first.{p}", &["own_embedder.{p}"], Join::Rows)];

const PUBLISHED: Published = Published {
    scales: [8, 1],
    usual: Usual {
        size: [64, 64],
        frames: 1,
        steps: 2,
        cfg: 1.0,
        sampler: "euler",
        shifts: [Shift::Flow(1.0), Shift::Flow(1.0)],
    },
    usual_of_experts: None,
    boundary: 0.0,
    times: Times::Pipeline,
    text_tokens: [77, 77],
    comfyui: ComfyUi { clip_type: "own", shift: "ModelSamplingSD3", empty_latent: "EmptyLatentImage" },
};

pub(crate) fn rows(layout: Layout) -> &'static [Row] {
    if layout == Layout::Diffusers { DIFFUSERS } else { &[] }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Config {
    hidden: i64,
    blocks: usize,
    text: i64,
    latent_channels: i64,
}

impl Config {
    pub(crate) fn read(file: &TransformerFile) -> Result<Self> {
        Ok(Self {
            hidden: file.extent("first.weight", 0)?,
            blocks: file.blocks("blocks")?,
            text: file.extent("text.weight", 1)?,
            latent_channels: file.extent("first.weight", 1)?,
        })
    }
}

impl NetworkConfig for Config {
    fn head_width(&self) -> i64 {
        self.hidden
    }

    fn block_names(&self) -> Vec<(&'static str, usize)> {
        vec![("blocks", self.blocks)]
    }
}

impl Architecture for Config {
    fn model(&self) -> String {
        "a test's".into()
    }

    fn shape(&self) -> String {
        format!("a width of {}", self.hidden)
    }

    fn facts(&self) -> Facts {
        Facts {
            family: Family::Sdxl,
            latent_channels: self.latent_channels,
            condition_channels: 0,
            is_video: false,
            patch: 1,
            widths: Widths { text: self.text, pooled: None, image: None },
            guidance: None,
            start: Some(Start::Latent),
            published: &PUBLISHED,
        }
    }

    fn text_encoders(&self) -> Vec<(EncoderKind, i64)> {
        vec![(EncoderKind::Clip, self.text)]
    }
}

#[derive(Debug)]
pub struct Context<T> {
    /// [N, tokens, hidden]
    text: T,
    size: [i64; 3],
}

#[derive(Debug)]
pub struct Network<O: TokenOps> {
    first: Dense<O>,
    text: Dense<O>,
    blocks: Vec<Dense<O>>,
    last: Dense<O>,
}

impl<O: TokenOps> Network<O> {
    pub fn build(config: &Config, scope: &TokenScope<'_, O>) -> Result<Self> {
        let Config { hidden, latent_channels: channels, .. } = *config;
        let block = |index| Dense::build_unbiased(&scope.at("blocks").at(index), hidden, hidden);
        Ok(Self {
            first: Dense::build(&scope.at("first"), channels, hidden)?,
            text: Dense::build_unbiased(&scope.at("text"), config.text, hidden)?,
            blocks: (0..config.blocks).map(block).collect::<std::result::Result<_, _>>()?,
            last: Dense::build_unbiased(&scope.at("last"), hidden, channels)?,
        })
    }

    pub fn prepare(&self, ops: &O, inputs: &Inputs<'_, O::Tensor>, size: [i64; 3]) -> Result<Context<O::Tensor>> {
        Ok(Context { text: self.text.forward(ops, inputs.text, Dtype::F32)?, size })
    }

    pub fn forward(
        &self,
        ops: &O,
        latents: &O::Tensor,
        _sigmas: &[f32],
        context: &Context<O::Tensor>,
        before_block: BeforeBlock<'_, O::Tensor>,
    ) -> Result<O::Tensor> {
        let [batch, channels, height, width] = ops.extents(latents)?;
        let [_, rows, columns] = context.size;
        let tokens = ops.reshape(latents, &[batch, channels, rows * columns])?;
        let tokens = ops.contiguous(&ops.permute(&tokens, &[0, 2, 1])?)?;
        let tokens = self.first.forward(ops, &tokens, Dtype::F32)?;
        let gate = ops.contiguous(&ops.narrow(&context.text, 1, 0, 1)?)?;
        for index in 0..=self.blocks.len() {
            if before_block(index, &tokens)? == BlockChoice::SkipRest {
                break;
            }
            if let Some(block) = self.blocks.get(index) {
                ops.add_gated(&tokens, Some(&gate), block.forward(ops, &tokens, Dtype::F32)?)?;
            }
        }
        let velocity = ops.permute(&self.last.forward(ops, &tokens, Dtype::F32)?, &[0, 2, 1])?;
        Ok(ops.reshape(&ops.contiguous(&velocity)?, &[batch, channels, height, width])?)
    }
}

/// The shapes of the weights of a network of two blocks.
const WEIGHTS: [(&str, &[i64]); 6] = [
    ("own_embedder.weight", &[8, 4]),
    ("own_embedder.bias", &[8]),
    ("text.weight", &[8, 3]),
    ("blocks.0.weight", &[8, 8]),
    ("blocks.1.weight", &[8, 8]),
    ("last.weight", &[4, 8]),
];

/// A file of tensors in f32, with values that tell them apart.
fn file(folder: &std::path::Path, name: &str, weights: &[(&str, &[i64])]) -> std::path::PathBuf {
    let path = folder.join(name);
    let tensors: Vec<(String, Tensor)> = weights
        .iter()
        .enumerate()
        .map(|(index, (name, shape))| {
            let count: i64 = shape.iter().product();
            let values = (Tensor::arange(count, (Kind::Float, Device::Cpu)) * 0.37 + index as f64).sin();
            ((*name).to_owned(), values.reshape(*shape))
        })
        .collect();
    Tensor::write_safetensors(&tensors, &path).unwrap();
    path
}

#[test]
fn a_network_is_a_folder_and_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "own.safetensors", &WEIGHTS);
    let mut found = DenoiserFile::open(Checkpoint::open(&path).unwrap()).unwrap();
    assert_eq!((found.config.model().as_str(), found.config.blocks(), found.config.facts().patch), ("a test's", 2, 1));
    assert_eq!(found.parameters, 32 + 8 + 24 + 64 + 64 + 32);
    assert_eq!(found.block_bytes(), [256, 256]);
    let changes = file(
        folder.path(),
        "lora.safetensors",
        &[("transformer.blocks.0.lora_A.weight", &[1, 8]), ("transformer.blocks.0.lora_B.weight", &[8, 1])],
    );

    let latents = Tensor::arange(2 * 4 * 3 * 5, (Kind::Float, Device::Cpu)).reshape([2, 4, 3, 5]).cos();
    let text = Tensor::arange(12, (Kind::Float, Device::Cpu)).reshape([2, 2, 3]).sin();
    let inputs = Inputs { text: &text, pooled: None, image: None, guidance: None };
    let run = |found: &DenoiserFile| {
        let loaded = found.load(ComputeFormat::single(), Device::Cpu, Residency::Mapped, &mut |_| Ok(())).unwrap();
        let context = loaded.prepare(&inputs, [1, 3, 5]).unwrap();
        loaded.velocity(&latents, &[0.5], &context, &mut |_, _| Ok(BlockChoice::Run)).unwrap()
    };
    let by_hand = |changed: bool| {
        let checkpoint = Checkpoint::open(&path).unwrap();
        let of = |name: &str| {
            let shape = checkpoint.shape(name).unwrap().to_vec();
            checkpoint.load(name, &shape, Kind::Float, Device::Cpu).unwrap()
        };
        let mut tokens = latents.flatten(2, 3).transpose(1, 2).matmul(&of("own_embedder.weight").tr());
        tokens += of("own_embedder.bias");
        let gate = text.matmul(&of("text.weight").tr()).narrow(1, 0, 1);
        for block in 0..2 {
            let mut weight = of(&format!("blocks.{block}.weight"));
            if changed && block == 0 {
                let lora = Checkpoint::open(&changes).unwrap();
                let of = |name: &str, shape: [usize; 2]| {
                    lora.load(&format!("transformer.blocks.0.{name}.weight"), &shape, Kind::Float, Device::Cpu).unwrap()
                };
                weight += of("lora_B", [8, 1]).matmul(&of("lora_A", [1, 8])) * 0.5;
            }
            tokens += &gate * tokens.matmul(&weight.tr());
        }
        tokens.matmul(&of("last.weight").tr()).transpose(1, 2).reshape([2, 4, 3, 5])
    };
    let near = |one: &Tensor, other: &Tensor| (one - other).abs().max().double_value(&[]) < 1e-4;
    assert!(near(&run(&found), &by_hand(false)));
    found.add(Lora::open(&changes, 0.5).unwrap()).unwrap();
    assert!(near(&run(&found), &by_hand(true)) && !near(&run(&found), &by_hand(false)));

    // The same network on a meter, which counts what it holds.
    let meter = Meter::new(ComputeFormat::single(), Costs::default());
    let network = found.config.build(&TokenScope::new(found.file(), &meter)).unwrap();
    let occupied = |shape: &[i64]| meter.occupied(shape, Dtype::F32).unwrap();
    let (latents, text) = (occupied(&[2, 4, 3, 5]), occupied(&[2, 2, 3]));
    let inputs = Inputs { text: &text, pooled: None, image: None, guidance: None };
    let context = network.prepare(&meter, &inputs, [1, 3, 5]).unwrap();
    network.forward(&meter, &latents, &[0.5], &context, &mut |_, _| Ok(BlockChoice::Run)).unwrap();
    assert!(meter.peak_bytes() >= 4 * (2 * 4 * 15 + 2 * 8 * 15), "{}", meter.peak_bytes());
}
