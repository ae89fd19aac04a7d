//! Blended decodes against the NumPy reference in `tests/fixtures/blend_reference.py`.

mod scripted;

use scripted::{Quiet, Scripted, cases, largest, machine, plan, reference, stored_latent, vae};
use tilewright_engine::{DecodeJob, Grid};
use tilewright_fixtures::fixture;
use tilewright_plan::{Dtype, Layout, Objective, Precision, Space, Tile};

#[test]
fn blended_decodes_agree_with_numpy_in_batches_and_both_memory_orders() {
    let blends = cases("blends");
    assert!(!blends.is_empty());
    for case in blends {
        let name = case["name"].as_str().unwrap();
        let vae = vae(&fixture(case["vae"].as_str().unwrap()));
        let latents = stored_latent(&case);
        let expected = reference(&case);
        let tolerance = 1e-4 * largest(&expected).max(1.0);
        let job = DecodeJob::new(machine(), &vae, &latents, 1_u64 << 30, Objective::Fastest).unwrap();
        let number = |value: &serde_json::Value| value.as_u64().unwrap() as u32;
        let tile = Tile {
            height: number(&case["tile"][0]),
            width: number(&case["tile"][1]),
            overlap: number(&case["overlap"]),
        };
        let grid = Grid::new(job.request().height, job.request().width, tile);
        let starts = |axis: &str| case[axis].as_array().unwrap().iter().map(number).collect::<Vec<_>>();
        assert_eq!(
            (grid.rows.starts.clone(), grid.columns.starts.clone()),
            (starts("rows"), starts("columns")),
            "{name}"
        );
        for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
            let mut first = None;
            for batch in 1..=3 {
                let plan = plan(Space::Blended(tile), batch, Precision::Uniform(Dtype::F32), layout);
                let finished = job.run(&mut Scripted::new([plan]), &mut Quiet).unwrap();
                assert_eq!(finished.output.size(), expected.size(), "{name}");
                let difference = largest(&(&finished.output - &expected));
                assert!(difference <= tolerance, "{name} {layout}, {batch} at once: {difference} > {tolerance}");
                // Kernels may sum in another order for another batch.
                let first = first.get_or_insert_with(|| finished.output.copy());
                let apart = largest(&(&finished.output - &*first));
                assert!(apart <= tolerance / 10.0, "{name} {layout}, {batch} at once: {apart} from one at once");
                let cost = finished.record.estimate.unwrap();
                assert_eq!(u64::from(cost.tiles), (grid.len() as u64) * latents.size()[0] as u64, "{name}");
            }
        }
    }
}
