//! Tests of the work of transformers on a GPU that is no product, convolution or attention: its
//! launches and the bytes that it moves, at the published widths.

use tilewright_kernels::Kernels;
use tilewright_nn::{ComputeFormat, Costs, Glue, Listing, Meter, Ops, TokenOps, TokenScope};
use tilewright_plan::{Dtype, Layout, Precision};

use crate::{BlockChoice, Inputs, flux, t5, wan};

/// A GPU on which matrices lie in bf16.
fn meter() -> Meter {
    let format = ComputeFormat::new(Precision::Uniform(Dtype::Bf16), Layout::ChannelsFirst).unwrap();
    let kernels = Kernels::of_a_gpu();
    Meter::new(format, Costs { expands_rows: false, kernels, ..Costs::default() })
}

fn since(meter: &Meter, before: Glue) -> Glue {
    let now = meter.glue();
    Glue { launches: now.launches - before.launches, bytes: now.bytes - before.bytes }
}

/// A forward of Flux.1's transformer with numbers of blocks, of a picture of a side in pixels.
fn flux_forward([double_blocks, single_blocks]: [usize; 2], side: i64) -> Glue {
    let config = flux::Config {
        hidden: 3072,
        heads: 24,
        axes: [16, 56, 56],
        double_blocks,
        single_blocks,
        feed_forward: 12_288,
        text: 4096,
        pooled: 768,
        latent_channels: 16,
        guidance: true,
    };
    let (meter, listing) = (meter(), Listing::default());
    let network = flux::Network::build(&config, &TokenScope::new(&listing, &meter)).unwrap();
    let given = |shape: &[i64]| meter.input(shape, Dtype::F32).unwrap();
    let (text, pooled) = (given(&[1, 512, 4096]), given(&[1, 768]));
    let inputs = Inputs { text: &text, pooled: Some(&pooled), image: None, guidance: Some(3.5) };
    let context = network.prepare(&meter, &inputs, [1, side / 8, side / 8]).unwrap();
    let (latents, before) = (given(&[1, 16, side / 8, side / 8]), meter.glue());
    network.forward(&meter, &latents, &[0.5], &context, &mut |_, _| Ok(BlockChoice::Run)).unwrap();
    since(&meter, before)
}

#[test]
fn a_forward_of_flux_moves_little_beside_its_products() {
    let whole = flux_forward([19, 38], 1024);
    assert!(whole.bytes <= 130e9 && whole.launches <= 2600.0, "{whole:?}");
    // 20 bytes a value for a norm with its modulation, 28 for one of heads with its turn, 6 for a
    // gate, 4 for a gelu; of 4608 tokens.
    let values = 4608.0 * 3072.0;
    let blocks = flux_forward([1, 0], 1024);
    let none = flux_forward([0, 0], 1024);
    let double = (blocks.bytes - none.bytes) / values;
    assert!((120.0..150.0).contains(&double), "{double} bytes a value");
    assert!((blocks.launches - none.launches) <= 52.0, "{blocks:?}");
    let single = (flux_forward([0, 1], 1024).bytes - none.bytes) / values;
    assert!((90.0..120.0).contains(&single), "{single} bytes a value");
}

#[test]
fn a_block_of_wan_moves_little_beside_its_products() {
    let forward = |blocks: usize| {
        let config = wan::Config {
            hidden: 5120,
            heads: 40,
            blocks,
            feed_forward: 13_824,
            time: 256,
            text: 4096,
            image: None,
            input_channels: 16,
            latent_channels: 16,
        };
        let (meter, listing) = (meter(), Listing::default());
        let network = wan::Network::build(&config, &TokenScope::new(&listing, &meter)).unwrap();
        let given = |shape: &[i64]| meter.input(shape, Dtype::F32).unwrap();
        let text = given(&[1, 512, 4096]);
        let inputs = Inputs { text: &text, pooled: None, image: None, guidance: None };
        let context = network.prepare(&meter, &inputs, [5, 60, 104]).unwrap();
        let (latents, before) = (given(&[1, 16, 5, 60, 104]), meter.glue());
        network.forward(&meter, &latents, &[0.5], &context, &mut |_, _| Ok(BlockChoice::Run)).unwrap();
        since(&meter, before)
    };
    let (none, one) = (forward(0), forward(1));
    let each = (one.bytes - none.bytes) / (5.0 * 30.0 * 52.0 * 5120.0);
    assert!(each < 190.0, "{each} bytes a value");
    assert!(one.launches - none.launches <= 52.0, "{none:?} {one:?}");
}

#[test]
fn a_block_of_t5_moves_little_beside_its_products() {
    let forward = |blocks: usize| {
        let config = t5::Config {
            hidden: 4096,
            heads: 64,
            attention: 4096,
            blocks,
            feed_forward: 10_240,
            vocabulary: 32_128,
            distances: 32,
            farthest: 128,
            own_distances: false,
            epsilon: 1e-6,
        };
        let (meter, listing) = (meter(), Listing::default());
        let network = t5::Network::build(&config, &TokenScope::new(&listing, &meter)).unwrap();
        let (tokens, before) = (meter.unset(&[1, 512, 4096], Dtype::F32).unwrap(), meter.glue());
        network.forward(&meter, meter.share(&tokens), 0).unwrap();
        since(&meter, before)
    };
    let (one, two) = (forward(1), forward(2));
    let each = (two.bytes - one.bytes) / (512.0 * 4096.0);
    assert!(each < 90.0, "{each} bytes a value");
    assert!(two.launches - one.launches <= 12.0, "{one:?} {two:?}");
}
