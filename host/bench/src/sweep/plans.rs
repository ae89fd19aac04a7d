//! The exhaustive list, most telling plans first.

use tilewright_plan::{Capabilities, Dtype, Layout, Plan, Precision, Request, Space, Tile};

/// Sides of tiles in pixels.
const SIDES: [u32; 8] = [1024, 768, 512, 384, 256, 192, 128, 64];

/// The sides that are also tried in bf16 and in batches.
const FEWER_SIDES: [u32; 3] = [512, 256, 128];

/// Batches of blended tiles.
const BATCHES: [u32; 2] = [2, 4];

const LAYOUTS: [Layout; 2] = [Layout::ChannelsLast, Layout::ChannelsFirst];

/// A tile's overlap when blended: an eighth of its side.
const OVERLAP: u32 = 8;

/// Every plan for a request that the engine offers: whole, exact and blended in f32 in both memory
/// orders, then blended in batches, then bf16.
pub fn list(request: &Request, capabilities: &Capabilities) -> Vec<Plan> {
    let mut plans = Vec::new();
    let f32 = Precision::Uniform(Dtype::F32);
    let mut add = |space, precision, layout, batch| plans.push(plan(space, precision, layout, batch));
    for layout in LAYOUTS {
        add(Space::Whole, f32, layout, 1);
    }
    for space in spaces(request, capabilities, &SIDES) {
        for layout in LAYOUTS {
            add(space, f32, layout, 1);
        }
    }
    for space in spaces(request, capabilities, &FEWER_SIDES).filter(|space| matches!(space, Space::Blended(_))) {
        for batch in BATCHES.into_iter().filter(|batch| *batch <= capabilities.batch_most) {
            add(space, f32, LAYOUTS[0], batch);
        }
    }
    if capabilities.dtypes.contains(&Dtype::Bf16) {
        for space in [Space::Whole].into_iter().chain(spaces(request, capabilities, &FEWER_SIDES)) {
            for layout in LAYOUTS {
                add(space, Precision::Uniform(Dtype::Bf16), layout, 1);
            }
        }
    }
    plans
}

/// Exact tiles where they are offered, and blended ones, smaller than the picture.
fn spaces<'a>(
    request: &'a Request,
    capabilities: &'a Capabilities,
    sides: &'a [u32],
) -> impl Iterator<Item = Space> + 'a {
    let longest = request.height.max(request.width);
    let allowed = move |side: &u32| {
        *side < longest && *side >= capabilities.tile_least && side.is_multiple_of(capabilities.tile_unit)
    };
    sides.iter().copied().filter(move |side| allowed(side)).flat_map(move |side| {
        let (height, width) = (side.min(request.height), side.min(request.width));
        let overlap = side / OVERLAP / capabilities.tile_unit.max(1) * capabilities.tile_unit;
        let bands = Tile { height, width: request.width, overlap: 0 };
        let exact = (capabilities.exact && height < request.height).then_some(Space::Exact(bands));
        exact.into_iter().chain([Space::Blended(Tile { height, width, overlap })])
    })
}

fn plan(space: Space, precision: Precision, layout: Layout, batch: u32) -> Plan {
    Plan { space, batch, precision, layout, ..Plan::plain() }
}

#[cfg(test)]
mod tests {
    use tilewright_plan::{HostMemory, Model, Objective};

    use super::*;

    #[test]
    fn the_list_has_each_plan_once_and_only_what_is_offered() {
        let request = Request {
            model: Model {
                family: "flux".into(),
                stored: Dtype::Bf16,
                quantized: false,
                parameter_bytes: 0,
                spatial_scale: 8,
                temporal_scale: 1,
            },
            batch: 1,
            frames: 1,
            height: 512,
            width: 512,
            memory_limit: 1 << 30,
            limit_counts_weights: false,
            allows_blended: false,
            objective: Objective::Fastest,
            hints: Vec::new(),
            host: HostMemory::default(),
        };
        let capabilities = Capabilities {
            dtypes: vec![Dtype::F32, Dtype::Bf16],
            tile_unit: 8,
            tile_least: 64,
            batch_most: 64,
            exact: true,
            carried: false,
            offload: false,
            prefetch_most: 0,
            options: Vec::new(),
        };
        let plans = list(&request, &capabilities);
        assert!(plans.len() >= 24, "{}", plans.len());
        assert!(plans.iter().enumerate().all(|(index, plan)| !plans[..index].contains(plan)));
        assert!(plans.iter().any(|plan| matches!(plan.space, Space::Exact(_))));
        let without = list(&request, &Capabilities { exact: false, dtypes: vec![Dtype::F32], ..capabilities });
        assert!(without.iter().all(|plan| !matches!(plan.space, Space::Exact(_))));
        assert!(without.iter().all(|plan| plan.precision == Precision::Uniform(Dtype::F32)));
        for plan in &plans {
            if let Some(tile) = plan.space.tile() {
                let is_band = matches!(plan.space, Space::Exact(_)) && tile.width == 512;
                assert!(
                    (tile.width < 512 || is_band)
                        && tile.height < 512
                        && tile.overlap <= tile.width / 4
                        && tile.overlap.is_multiple_of(8),
                    "{plan:?}"
                );
            }
        }
    }
}
