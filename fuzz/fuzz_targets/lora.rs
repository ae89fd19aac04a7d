//! LoRAs: whatever a file holds, it is refused or has a place in a transformer, whose network then
//! loads.

#![no_main]

mod checkpoints;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tilewright_fixtures::fixture;
use tilewright_models::{Checkpoint, ComputeFormat, DenoiserFile, Lora, transformer::Residency};

/// Transformers by their files.
static TRANSFORMERS: LazyLock<Vec<std::path::PathBuf>> = LazyLock::new(|| {
    ["sample-flux-diffusers/diffusion_pytorch_model", "sample-wan-t2v-diffusers/diffusion_pytorch_model"]
        .map(|name| fixture(format!("{name}.safetensors")))
        .into()
});

fuzz_target!(|bytes: &[u8]| {
    for transformer in &*TRANSFORMERS {
        let Some(file) = checkpoints::open("lora", bytes) else { return };
        let Ok(lora) = Lora::read(file, 0.5) else { return };
        let transformer = Checkpoint::open(transformer).expect("a fixture");
        let mut transformer = DenoiserFile::open(transformer).expect("a transformer");
        let Ok(fit) = transformer.add(lora) else { continue };
        assert!(fit.fitting > 0 && fit.fitting <= fit.keys);
        transformer
            .load(ComputeFormat::single(), tch::Device::Cpu, Residency::Mapped, &mut |_| Ok(()))
            .expect("what fits can be loaded");
    }
});
