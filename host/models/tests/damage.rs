//! Checkpoints with something wrong in them: each is refused with the tensor's own name and what
//! was expected.

#![cfg(feature = "torch")]

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tch::Device;
use tilewright_fixtures::fixture;
use tilewright_models::{
    Checkpoint, ComputeFormat, HalfConfig, Identity,
    kl::{Config, Decoder},
};
use tilewright_plan::{Dtype, Layout, Precision};

/// A fixture's header and data, to be changed and written elsewhere.
struct Draft {
    header: BTreeMap<String, Value>,
    data: Vec<u8>,
}

impl Draft {
    fn of(name: &str) -> Self {
        let bytes = std::fs::read(fixture(name)).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        Self { header, data: bytes[8 + length..].to_vec() }
    }

    fn rename(mut self, from: &str, to: &str) -> Self {
        let tensor = self.header.remove(from).unwrap();
        self.header.insert(to.into(), tensor);
        self
    }

    fn reshape(mut self, name: &str, shape: &[usize]) -> Self {
        self.header.get_mut(name).unwrap()["shape"] = json!(shape);
        self
    }

    fn add(mut self, name: &str, elements: usize) -> Self {
        let start = self.data.len();
        self.data.resize(start + 4 * elements, 0);
        let tensor = json!({"dtype": "F32", "shape": [elements], "data_offsets": [start, self.data.len()]});
        self.header.insert(name.into(), tensor);
        self
    }

    /// Why the file can't be loaded.
    fn refusal(self, config: Option<&str>) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vae.safetensors");
        let header = serde_json::to_vec(&self.header).unwrap();
        let bytes = [(header.len() as u64).to_le_bytes().as_slice(), &header, &self.data].concat();
        std::fs::write(&path, bytes).unwrap();
        if let Some(text) = config {
            std::fs::write(folder.path().join("config.json"), text).unwrap();
        }
        let load = || {
            let file = Checkpoint::open(&path)?;
            let identity = Identity::of_decoder(&file)?;
            let config = Config::read(&file, &identity)?;
            let format = ComputeFormat::new(Precision::Uniform(Dtype::F32), Layout::ChannelsFirst)?;
            Decoder::load(&file, &identity, &config, format, Device::Cpu)
        };
        let message: String = load().map(|_| ()).unwrap_err().to_string();
        assert!(!message.contains('\n') && message.contains(folder.path().to_str().unwrap()), "{message:?}");
        message
    }
}

const SDXL: &str = "sdxl-diffusers/diffusion_pytorch_model.fp16.safetensors";
const BFL: &str = "flux-bfl/ae.safetensors";

fn assert_says(message: &str, words: &[&str]) {
    for words in words {
        assert!(message.contains(words), "{message:?} lacks {words:?}");
    }
}

#[test]
fn a_missing_tensor_is_named_as_the_file_would() {
    // Renamed out of the decoder's part of the file, so that nothing else is wrong.
    let message = Draft::of(SDXL).rename("decoder.mid_block.resnets.1.conv2.weight", "elsewhere.weight").refusal(None);
    assert_says(&message, &["decoder.mid_block.resnets.1.conv2.weight is missing", "[64, 64, 3, 3] expected"]);
    let message = Draft::of(SDXL).rename("decoder.up_blocks.0.upsamplers.0.conv.bias", "elsewhere.bias").refusal(None);
    assert_says(&message, &["decoder.up_blocks.0.upsamplers.0.conv.bias is missing", "[64] expected"]);

    let message = Draft::of(BFL).rename("decoder.mid.block_2.conv2.weight", "elsewhere.weight").refusal(None);
    assert_says(&message, &["decoder.mid.block_2.conv2.weight is missing", "[32, 32, 3, 3] expected"]);
    let message = Draft::of(BFL).rename("decoder.up.2.block.0.norm2.bias", "elsewhere.bias").refusal(None);
    assert_says(&message, &["decoder.up.2.block.0.norm2.bias is missing"]);
    let message = Draft::of(BFL).rename("decoder.mid.attn_1.q.weight", "elsewhere.weight").refusal(None);
    assert_says(&message, &["decoder.mid.attn_1.q.weight is missing", "[32, 32] expected"]);
}

#[test]
fn a_misshapen_tensor_is_named_with_both_shapes() {
    let message = Draft::of(SDXL).reshape("decoder.mid_block.resnets.0.conv1.weight", &[64, 576]).refusal(None);
    assert_says(&message, &["decoder.mid_block.resnets.0.conv1.weight has shape [64, 576], [64, 64, 3, 3] expected"]);
    let message = Draft::of(BFL).reshape("decoder.conv_in.weight", &[16, 32, 3, 3]).refusal(None);
    assert_says(&message, &["decoder.conv_in.weight", "shape"]);
    let message = Draft::of(BFL).reshape("decoder.norm_out.weight", &[4, 8]).refusal(None);
    assert_says(&message, &["decoder.norm_out.weight has shape [4, 8], [32] expected"]);
}

#[test]
fn a_tensor_without_a_place_is_named() {
    let message = Draft::of(SDXL).add("decoder.mid_block.gate.weight", 4).refusal(None);
    assert_says(&message, &["decoder.mid_block.gate.weight has no place in the decoder:"]);
    let message =
        Draft::of(BFL).add("decoder.up.1.attn.0.q.weight", 4).add("decoder.up.1.attn.0.q.bias", 4).refusal(None);
    assert_says(&message, &["decoder.up.1.attn.0.q.", "has no place in the decoder (and 1 more)"]);
}

#[test]
fn a_broken_config_is_refused() {
    let cases = [
        ("{", "config.json: no valid configuration"),
        ("[1, 2]", "config.json: no valid configuration"),
        (r#"{"norm_num_groups": -1}"#, "config.json: no valid configuration"),
        (r#"{"act_fn": "gelu"}"#, "the activation 'gelu' is not supported"),
        (r#"{"scaling_factor": 0}"#, "a scaling_factor of 0 is nonsense"),
        (r#"{"norm_num_groups": 0}"#, "can't be normed in 0 groups"),
        (
            r#"{"norm_num_groups": 24}"#,
            "channels of [64, 64, 32] can't be normed in 24 groups: put norm_num_groups into a config.json",
        ),
    ];
    for (config, words) in cases {
        assert_says(&Draft::of(SDXL).refusal(Some(config)), &[words]);
    }
    // 24 and 40 channels, and no config.json that says 8 groups.
    let message = Draft::of("groups-8/diffusion_pytorch_model.safetensors").refusal(None);
    assert_says(&message, &["channels of [40, 40, 24] can't be normed in 32 groups"]);
}
