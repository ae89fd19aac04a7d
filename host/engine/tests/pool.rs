//! The pool over many decodes: memory is found again, and none is lost.

mod scripted;

use scripted::{Quiet, Scripted, alone, latent, machine, plan, square, vae};
use tilewright_engine::DecodeJob;
use tilewright_fixtures::fixture;
use tilewright_plan::{Dtype, Layout, Objective, Plan, Precision, Release, Space, Tile};

/// Memory of this process that is in physical pages, in bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    4096 * pages
}

/// Whole, exact and blended plans over sizes that change all the time, the same in every run.
fn decodes() -> impl Iterator<Item = (i64, i64, Plan)> {
    let mut state = 1_u64;
    let mut next = move |most: u64| {
        // Knuth's MMIX constants.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % most
    };
    (0..).map(move |index| {
        // The largest of all come first, so that what is held later is no more than what is needed.
        let (height, width) = match index {
            0..3 => (31, 31),
            _ => (12 + next(20) as i64, 12 + next(20) as i64),
        };
        let space = match if index < 3 { index } else { next(3) } {
            0 => Space::Whole,
            1 => Space::Exact(Tile { height: 64, width: 8 * width as u32, overlap: 0 }),
            _ => square(64, 16),
        };
        let f32 = Precision::Uniform(Dtype::F32);
        (height, width, Plan { release: Release::Keep, ..plan(space, 1, f32, Layout::ChannelsLast) })
    })
}

#[test]
fn decodes_of_changing_sizes_reuse_memory_and_lose_none() {
    let _alone = alone();
    let vae = vae(&fixture("flux-bfl/ae.safetensors"));
    let mut after_ten = 0;
    let (mut hits, mut requests) = (0, 0);
    for (index, (height, width, plan)) in decodes().take(200).enumerate() {
        let latents = latent([1, 16, height, width]);
        let job = DecodeJob::new(machine(), &vae, &latents, 1_u64 << 32, Objective::Balanced).unwrap();
        let finished = job.run(&mut Scripted::new([plan]), &mut Quiet).unwrap();
        let pool = finished.record.outcome.unwrap().pool;
        if index > 0 {
            hits += pool.hits;
            requests += pool.hits + pool.misses;
        }
        if index == 9 {
            after_ten = resident();
        }
    }
    let now = resident();
    assert!(hits as f64 >= 0.95 * requests as f64, "{hits} of {requests} were served from what was held");
    assert!(now as f64 <= 1.05 * after_ten as f64, "{now} bytes resident after 200 decodes, {after_ten} after ten");
}

#[test]
fn the_second_decode_finds_what_the_first_one_took() {
    let _alone = alone();
    let vae = vae(&fixture("flux-bfl/ae.safetensors"));
    let latents = latent([1, 16, 24, 24]);
    let job = DecodeJob::new(machine(), &vae, &latents, 1_u64 << 32, Objective::Balanced).unwrap();
    for space in [Space::Whole, Space::Exact(Tile { height: 64, width: 192, overlap: 0 }), square(96, 16)] {
        let plan =
            Plan { release: Release::Keep, ..plan(space, 1, Precision::Uniform(Dtype::F32), Layout::ChannelsLast) };
        let run = || job.run(&mut Scripted::new([plan.clone()]), &mut Quiet).unwrap().record.outcome.unwrap();
        run();
        let second = run();
        let pool = second.pool;
        assert!(pool.hits > 0 && 20 * pool.hits >= 19 * (pool.hits + pool.misses), "{space}: {pool:?}");
        assert!(second.load.is_zero(), "{space}: the weights were loaded again");
    }
}
