//! Decodes and encodes. If frames of a clip are delivered already, the causal cache of their plan
//! goes on under the next one: in one piece or in bands as before, in the same tiles, and in no
//! narrower type.
//!
//! The fallback plan is whole if that fits, else in exact bands, else in the largest tiles that
//! fit; tiles before bands if the user allows them. In a type that loses nothing unless the device
//! is known to be fast in bf16, or nothing fits in that type. A clip that carries its causal cache
//! is decoded a latent frame at a time, whole or in bands. Only if not even its cache fits, it runs
//! in tiles over the whole clip.

mod bounds;
mod rules;

use std::mem::discriminant;

use tilewright_plan::{
    Attempt, Backend, Capabilities, CostModel, Device, Dtype, Failure, Layout, Options, Plan, Precision, Question,
    Release, Request, Space, Tile, Time, Vae,
};

use self::{
    bounds::Bounds,
    rules::{NONSENSE, RULES},
};
use super::Planned;
use crate::{
    check::{Nonsense, Rule, rank_precision},
    exact,
    fallback::Fitting,
};

impl Planned for Vae {
    type Bounds = Bounds;

    const NONSENSE: &'static [Nonsense<Self>] = NONSENSE;

    const RULES: &'static [Rule<Self>] = RULES;

    fn bounds(question: &Question<'_>) -> Bounds {
        Bounds::new(question.request, question.capabilities, question.under_way)
    }

    fn offer(bounds: &Bounds) -> &Capabilities {
        &bounds.capabilities
    }

    fn begun_options(bounds: &Bounds) -> Option<&Options> {
        bounds.running.as_ref().map(|running| &running.options)
    }

    fn values(bounds: &Bounds) -> Vec<(&'static str, u32)> {
        vec![
            ("{unit}", bounds.unit()),
            ("{least}", bounds.capabilities.tile_least),
            ("{batch}", bounds.capabilities.batch_most),
            ("{prefetch}", bounds.capabilities.prefetch_most),
            ("{scale}", bounds.scale),
        ]
    }

    fn breaches(plan: &Plan, bounds: &Bounds) -> Vec<&'static str> {
        let capabilities = &bounds.capabilities;
        let mut breaches = Vec::new();
        let mut holds = |what: &'static str, does: bool| {
            if !does {
                breaches.push(what);
            }
        };
        if let Some(tile) = plan.space.tile() {
            for (side, extent) in [(tile.height, bounds.height), (tile.width, bounds.width)] {
                holds("a tile lies within the picture", side > 0 && side <= extent);
                holds("a tile ends on a unit", side == extent || side % capabilities.tile_unit.max(1) == 0);
                holds("a tile is not too small", side >= capabilities.tile_least.min(extent));
                holds("tiles overlap by a quarter at most", tile.overlap <= side / 4);
            }
            holds("tiles don't cover the picture", tile.height < bounds.height || tile.width < bounds.width);
            holds("exact tiles are offered", capabilities.exact || matches!(plan.space, Space::Blended(_)));
        }
        holds("a batch is within the offer", (1..=capabilities.batch_most.max(1)).contains(&plan.batch));
        let dtype = plan.precision.dtype();
        holds("the type is offered", dtype == Dtype::F32 || capabilities.dtypes.contains(&dtype));
        holds("there is something to mix", plan.precision != Precision::Mixed(Dtype::F32));
        holds("no tensor has the type tf32", plan.precision != Precision::Uniform(Dtype::Tf32));
        holds("waiting in host memory is offered", capabilities.offload || !plan.offload);
        holds("no more is copied ahead than offered", plan.prefetch <= capabilities.prefetch_most);
        match plan.time {
            Time::Whole => {}
            Time::Carried { frames } => {
                let scale = bounds.scale.max(1);
                let is_natural = if frames < scale { frames.is_power_of_two() } else { frames.is_multiple_of(scale) };
                holds("a state is carried where there is one", bounds.is_carried() && frames > 0);
                holds("a chunk can be run", frames == bounds.frames || (frames < bounds.frames && is_natural));
            }
            Time::Blended { frames, overlap } => {
                let is_within = !capabilities.carried && frames < bounds.frames && overlap <= frames / 2;
                holds("chunks that fade are within the clip", is_within);
            }
        }
        let is_offered = |name: &str| capabilities.options.iter().any(|option| option.name == name);
        let has_begun = bounds.running.is_some();
        holds("options are offered", has_begun || plan.options.iter().all(|(name, _)| is_offered(name)));
        holds("a clip runs one after the other", bounds.frames <= 1 || plan.batch == 1);
        if let Some(running) = &bounds.running {
            let is_tiled = |plan: &Plan| matches!(plan.space, Space::Blended(_));
            holds("tiles stay tiles", is_tiled(running) == is_tiled(plan));
            holds("tiles stay as they were cut", !is_tiled(running) || running.space == plan.space);
            holds("time stays as it was begun", discriminant(&running.time) == discriminant(&plan.time));
            holds("types get no narrower", rank_precision(plan.precision) >= rank_precision(running.precision));
            holds("the memory order stays", running.layout == plan.layout);
            holds("options stay", running.options == plan.options);
        }
        breaches
    }

    /// Memory use and overflow come from the work that runs at once: parts of the same size, as
    /// many together, in the same type and with as much kept in host memory. Plans that differ only
    /// in the release of memory, memory order, overlap of parts or prefetch are the same plan here.
    fn repeats(plan: &Plan, attempt: &Attempt) -> bool {
        let tried = &attempt.plan;
        let bare = |space: Space| match space {
            Space::Whole => Space::Whole,
            Space::Blended(tile) => Space::Blended(Tile { overlap: 0, ..tile }),
            Space::Exact(tile) => Space::Exact(Tile { overlap: 0, ..tile }),
        };
        plan.precision == tried.precision
            && bare(plan.space) == bare(tried.space)
            && plan.time == tried.time
            && plan.batch == tried.batch
            && plan.offload == tried.offload
            && plan.options == tried.options
    }

    fn is_same_model_and_size(one: &Self::Request, other: &Self::Request) -> bool {
        let size = |request: &Self::Request| (request.batch, request.frames, request.height, request.width);
        one.model == other.model && size(one) == size(other)
    }

    fn host_plan(question: &Question<'_>, costs: &dyn CostModel) -> Plan {
        let &Question { request, device, capabilities, attempts, .. } = question;
        let fitting = Fitting::new(question, costs);
        let Some(last) = attempts.last() else {
            let plan = Plan { precision: precision(device, capabilities), ..plain_plan(device) };
            return fitting.plan(plan, request.memory_limit, "native default");
        };
        match last.failure {
            Failure::NonFinite { .. } => {
                let reason = "native default: f32 after values overflowed";
                let precision = Precision::Uniform(Dtype::F32);
                let wider = Plan { precision, reason: reason.into(), ..last.plan.clone() };
                match costs.estimate_one(&wider) {
                    Ok(cost) if cost.peak_bytes <= request.memory_limit && fitting.is_new(&wider) => {
                        fitting.make_legal(wider).unwrap_or(last.plan.clone())
                    }
                    _ => fitting.plan(wider, request.memory_limit, reason),
                }
            }
            Failure::OutOfMemory { .. } | Failure::OverLimit { .. } => {
                let expected = costs.estimate_one(&last.plan).map_or(request.memory_limit, |cost| cost.peak_bytes);
                // The measured peak is above the expected one, so the next plan has to be expected
                // well below.
                let most = request.memory_limit.min(expected / 10 * 7);
                // In a type that the device is slow in, the host would repeat a policy's bad
                // choice.
                let is_slow = |dtype: Dtype| dtype != Dtype::F32 && !device.fast_dtypes.contains(&dtype);
                let kept = Some(last.plan.precision).filter(|precision| !is_slow(precision.dtype()));
                let precision = fitting.finite(kept.unwrap_or_else(|| self::precision(device, capabilities)));
                let plan = Plan { precision, release: Release::EachStep, ..plain_plan(device) };
                fitting.plan(plan, most, "native default: smaller after memory ran out")
            }
        }
    }

    /// The same as without a policy, except that no failed plan is run again, and that values that
    /// overflowed get the widest type.
    ///
    /// A clip under way goes on with its causal cache. If no plan that fits can do so, it begins
    /// again in another division; delivered frames are not delivered again.
    fn last_resort(question: &Question<'_>, costs: &dyn CostModel) -> Option<Plan> {
        let &Question { request, device, capabilities, .. } = question;
        let anew = question.going_on(None);
        let questions = if question.under_way.is_some() { vec![question, &anew] } else { vec![question] };
        let reason = "native default: the last resort";
        for question in &questions {
            let fitting = Fitting::new(question, costs);
            let plan = Plan { precision: fitting.finite(precision(device, capabilities)), ..plain_plan(device) };
            let untried = question.after(&[]);
            let first = Fitting::new(&untried, costs).plan(plan, request.memory_limit, reason);
            if fitting.is_new(&first) && fitting.fits(&first) {
                return Some(first);
            }
        }
        let mut left: Vec<(bool, Plan)> = Vec::new();
        for question in questions {
            let fitting = Fitting::new(question, costs);
            let next = Some(Self::host_plan(question, costs)).filter(|plan| fitting.is_new(plan));
            left.extend(next.map(|plan| (fitting.fits(&plan), plan)));
        }
        // Plans that are expected to fit come first.
        left.sort_by_key(|(fits, _)| !fits);
        left.into_iter().next().map(|(_, plan)| plan)
    }

    fn allowed(plan: &Plan, question: &Question<'_>, costs: &dyn CostModel) -> Option<(Plan, Vec<String>)> {
        let exact = exact::in_place_of(plan, question, costs)?;
        let notes = exact::notes(plan, &exact);
        Some((exact, notes))
    }
}

/// Sides of tiles to try, in output pixels, largest first.
const SIDES: [u32; 11] = [2048, 1536, 1024, 768, 512, 384, 256, 192, 128, 96, 64];

/// The type that loses nothing, unless the device is known to be fast in bf16.
fn precision(device: &Device, capabilities: &Capabilities) -> Precision {
    let usable = |dtype: Dtype| capabilities.dtypes.contains(&dtype) && device.fast_dtypes.contains(&dtype);
    match device.backend {
        Backend::Cpu => Precision::Uniform(Dtype::F32),
        _ if usable(Dtype::Bf16) => Precision::Uniform(Dtype::Bf16),
        _ => Precision::Uniform(Dtype::F32),
    }
}

impl Fitting<'_, Vae> {
    /// The plan as it is if it fits into `most` bytes, else with the largest parts that do, else
    /// the same in bf16, else with the least memory possible. A plan that was tried is returned
    /// only if no other is left.
    fn plan(&self, plan: Plan, most: u64, reason: &str) -> Plan {
        let Question { request, capabilities, .. } = *self.question;
        // A narrow type comes last, since it alone changes the values of a whole picture.
        let narrow = self.has_narrower(plan.precision).then_some(Precision::Uniform(Dtype::Bf16));
        let precisions = [Some(plan.precision), narrow].into_iter().flatten();
        let plans = precisions.flat_map(|precision| {
            let divisions = divisions(request, capabilities).into_iter();
            divisions.map(move |(space, time)| (precision, space, time))
        });
        let plans = plans.filter_map(|(precision, space, time)| {
            let reason = reason.into();
            self.make_legal(Plan { space, time, batch: 1, precision, reason, ..plan.clone() })
        });
        let mut least: Option<((bool, u64), Plan)> = None;
        for plan in plans {
            let Ok(cost) = self.costs.estimate_one(&plan) else { continue };
            let is_new = self.is_new(&plan);
            if is_new && cost.peak_bytes <= most {
                return plan;
            }
            let rank = (!is_new, cost.peak_bytes);
            if least.as_ref().is_none_or(|(known, _)| rank < *known) {
                least = Some((rank, plan));
            }
        }
        least.map_or(Plan { space: Space::Whole, batch: 1, reason: reason.into(), ..plan }, |(_, plan)| plan)
    }

    /// True if bf16 may be taken instead of a wider type: it is offered, and nothing has
    /// overflowed.
    fn has_narrower(&self, precision: Precision) -> bool {
        let offers = self.question.capabilities.dtypes.contains(&Dtype::Bf16);
        precision.dtype() == Dtype::F32 && offers && !self.has_overflowed()
    }

    fn fits(&self, plan: &Plan) -> bool {
        self.held(plan).is_some_and(|held| held <= self.question.request.memory_limit)
    }

    /// The type, or f32 if values were not finite in one that keeps as much.
    fn finite(&self, precision: Precision) -> Precision {
        let overflowed = |attempt: &Attempt| {
            matches!(attempt.failure, Failure::NonFinite { .. })
                && rank_precision(attempt.plan.precision) >= rank_precision(precision)
        };
        if self.question.attempts.iter().any(overflowed) { Precision::Uniform(Dtype::F32) } else { precision }
    }
}

/// Ways to divide the request: exact ones, most memory first, then tiles.
fn divisions(request: &Request, capabilities: &Capabilities) -> Vec<(Space, Time)> {
    let tile =
        |side: u32| Space::Blended(Tile { height: side, width: side, overlap: (side / 8).max(32).min(side / 4) });
    let mut divisions = exact::divisions(request, capabilities);
    // A picture's largest tiles take less time than bands, if they are allowed. A clip can't go on
    // in tiles that it did not begin in, so they come last there in any case.
    let is_carried = request.frames > 1 && capabilities.carried;
    if request.allows_blended && !is_carried {
        divisions.truncate(1);
    }
    divisions.extend(SIDES.iter().map(|side| (tile(*side), Time::Whole)));
    divisions
}

fn plain_plan(device: &Device) -> Plan {
    // Channels-last is about 15 % faster on AVX-512 CPUs and slower on gfx11; NVIDIA's fast paths
    // want it for half types.
    let layout = match device.backend {
        Backend::Cpu | Backend::Cuda => Layout::ChannelsLast,
        Backend::Rocm | Backend::Metal => Layout::ChannelsFirst,
    };
    Plan { layout, ..Plan::plain() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tilewright_plan::{Cost, HostMemory, Model, Objective, Stage, UnderWay};

    use super::*;

    /// WAN in f32: 5,600 bytes of activations per pixel and frame at once, of which bands hold
    /// their share and a tenth; 4,000 bytes of state per pixel that is held of the picture; and the
    /// clip itself if it is delivered at once.
    struct Prices(Request);

    impl CostModel for Prices {
        fn estimate_one(&self, plan: &Plan) -> Result<Cost, String> {
            let request = &self.0;
            let picture = u64::from(request.height) * u64::from(request.width);
            let tile = plan.space.tile().map_or(picture, |tile| u64::from(tile.height) * u64::from(tile.width));
            let (worked, state) = match plan.space {
                Space::Whole => (picture, picture),
                Space::Exact(_) => (tile + picture / 10, picture),
                Space::Blended(_) if plan.time == Time::Whole => (tile, tile),
                Space::Blended(_) => (tile, picture),
            };
            let (frames, kept) = match plan.time {
                Time::Carried { frames } => (frames, 0),
                Time::Whole | Time::Blended { .. } => (4, request.frames),
            };
            let peak_bytes = worked * 5_600 * u64::from(frames) + state * 4_000 + picture * 12 * u64::from(kept);
            Ok(Cost { peak_bytes, elapsed: Duration::ZERO, tiles: 1, shapes: 1, rework: 1.0, weights_bytes: 0 })
        }
    }

    fn device() -> Device {
        Device {
            backend: Backend::Cpu,
            name: "test".into(),
            arch: "test".into(),
            compute_units: 1,
            total_bytes: 1 << 40,
            free_bytes: 1 << 40,
            unified: false,
            fast_dtypes: vec![],
            hints: Vec::new(),
        }
    }

    fn capabilities() -> Capabilities {
        Capabilities {
            dtypes: vec![Dtype::F32, Dtype::Bf16],
            tile_unit: 8,
            tile_least: 64,
            batch_most: 16,
            exact: true,
            carried: true,
            offload: false,
            prefetch_most: 0,
            options: Vec::new(),
        }
    }

    fn ask<T>(
        request: &Request,
        running: Option<&Plan>,
        attempts: &[Attempt],
        answer: fn(&Question<'_>, &dyn CostModel) -> T,
    ) -> T {
        let (device, capabilities) = (device(), capabilities());
        let under_way = running.map(|plan| UnderWay { done: 13, plan: plan.clone() });
        let question = Question::new(Stage::Decode, request, &device, &capabilities);
        answer(&question.after(attempts).going_on(under_way.as_ref()), &Prices(request.clone()))
    }

    fn clip(memory_limit: u64) -> Request {
        let model = Model {
            family: "wan-2.1".into(),
            stored: Dtype::F32,
            quantized: false,
            parameter_bytes: 1 << 28,
            spatial_scale: 8,
            temporal_scale: 4,
        };
        Request {
            model,
            batch: 1,
            frames: 81,
            height: 480,
            width: 832,
            memory_limit,
            limit_counts_weights: false,
            allows_blended: true,
            objective: Objective::Balanced,
            hints: Vec::new(),
            host: HostMemory::default(),
        }
    }

    /// The same prices, of which bf16 takes half.
    struct ByType(Prices);

    impl CostModel for ByType {
        fn estimate_one(&self, plan: &Plan) -> Result<Cost, String> {
            let cost = self.0.estimate_one(plan)?;
            let share = if plan.precision.dtype() == Dtype::F32 { 1 } else { 2 };
            Ok(Cost { peak_bytes: cost.peak_bytes / share, ..cost })
        }
    }

    #[test]
    fn a_narrow_type_is_for_what_fits_in_no_other_way() {
        let least = |precision| {
            let tile = Space::Blended(Tile { height: 64, width: 64, overlap: 16 });
            let plan = Plan { space: tile, precision: Precision::Uniform(precision), ..plain_plan(&device()) };
            ByType(Prices(clip(0))).estimate_one(&plan).unwrap().peak_bytes
        };
        let (device, capabilities) = (device(), capabilities());
        let ask = |limit: u64, attempts: &[Attempt], answer: fn(&Question<'_>, &dyn CostModel) -> Plan| {
            let request = clip(limit);
            let question = Question::new(Stage::Decode, &request, &device, &capabilities);
            answer(&question.after(attempts), &ByType(Prices(request.clone())))
        };
        let own = |limit, attempts: &[Attempt]| ask(limit, attempts, |question, costs| Vae::host_plan(question, costs));
        let dtype = |plan: &Plan| plan.precision.dtype();
        assert_eq!(dtype(&own(least(Dtype::F32), &[])), Dtype::F32);
        let narrow = own(least(Dtype::F32) - 1, &[]);
        assert_eq!(dtype(&narrow), Dtype::Bf16);
        // After a policy's plans, too, but not after values that overflowed.
        let tiles = Plan { precision: Precision::Uniform(Dtype::F32), ..narrow.clone() };
        let memory = Failure::OutOfMemory { bytes: 1 };
        let last = |question: &Question<'_>, costs: &dyn CostModel| Vae::last_resort(question, costs).unwrap();
        assert_eq!(dtype(&ask(least(Dtype::Bf16), &[failed(&tiles, memory)], last)), Dtype::Bf16);
        let overflowed = failed(&narrow, Failure::NonFinite { values: 1 });
        assert_eq!(dtype(&own(least(Dtype::F32) - 1, &[overflowed])), Dtype::F32);
    }

    #[test]
    fn a_clip_leaves_frame_by_frame_and_in_tiles_last() {
        let at = |limit: u64| {
            let request = clip(limit);
            let plan = ask(&request, None, &[], Vae::host_plan);
            assert!(Prices(request).estimate_one(&plan).unwrap().peak_bytes <= limit, "{plan:?}");
            (plan.space, plan.time)
        };
        let bands = |height| Space::Exact(Tile { height, width: 832, overlap: 0 });
        let carried = |frames| Time::Carried { frames };
        assert_eq!(at(12 << 30), (Space::Whole, carried(4)));
        assert_eq!(at(8 << 30), (bands(256), carried(4)));
        assert_eq!(at(4 << 30), (bands(64), carried(4)));
        assert_eq!(at(2_200 << 20), (bands(64), carried(1)));
        let (space, time) = at(1500 << 20);
        assert!(matches!(space, Space::Blended(_)) && time == Time::Whole, "{space:?}");
    }

    #[test]
    fn a_clip_under_way_is_not_cut() {
        let request = clip(2_200 << 20);
        let facts = Prices(request.clone());
        let begun = Plan { time: Time::Carried { frames: 4 }, layout: Layout::ChannelsFirst, ..plain_plan(&device()) };
        let attempts = [Attempt { plan: begun.clone(), failure: Failure::OutOfMemory { bytes: 1 } }];
        let next = ask(&request, Some(&begun), &attempts, Vae::host_plan);
        assert!(matches!((next.space, next.time), (Space::Exact(_), Time::Carried { .. })), "{next:?}");
        assert_eq!(next.layout, begun.layout);
        assert!(facts.estimate_one(&next).unwrap().peak_bytes <= request.memory_limit);
    }

    fn failed(plan: &Plan, failure: Failure) -> Attempt {
        Attempt { plan: plan.clone(), failure }
    }

    #[test]
    fn the_last_resort_is_what_the_host_would_have_done_and_then_what_is_left() {
        let request = clip(4 << 30);
        let facts = Prices(request.clone());
        let own = |attempts: &[Attempt]| ask(&request, None, attempts, Vae::last_resort);
        let memory = Failure::OutOfMemory { bytes: 1 };
        let first = ask(&request, None, &[], Vae::host_plan);
        // A policy's failed plans say nothing about the fallback plan.
        let whole = Plan { time: Time::Carried { frames: 81 }, ..plain_plan(&device()) };
        let told = own(&[failed(&whole, memory), failed(&whole, memory), failed(&whole, memory)]).unwrap();
        assert_eq!((told.space, told.time, told.precision), (first.space, first.time, first.precision));
        // If it has failed too, even in another form, smaller ones follow until none is left.
        let mut attempts = vec![failed(&Plan { release: Release::EachStep, prefetch: 3, ..first.clone() }, memory)];
        let mut peaks = vec![facts.estimate_one(&first).unwrap().peak_bytes];
        while let Some(next) = own(&attempts) {
            assert!(attempts.iter().all(|attempt| !Vae::repeats(&next, attempt)), "{next:?} again");
            peaks.push(facts.estimate_one(&next).unwrap().peak_bytes);
            attempts.push(failed(&next, memory));
            assert!(attempts.len() < 40, "it comes to an end");
        }
        assert!(peaks[1] < peaks[0] && attempts.len() > 3, "{peaks:?}");
        // A plan whose values overflowed in some type is followed by one in f32.
        let half = Plan { precision: Precision::Uniform(Dtype::F16), ..whole };
        let told = own(&[failed(&half, Failure::NonFinite { values: 1 })]).unwrap();
        assert_eq!(told.precision, Precision::Uniform(Dtype::F32));
    }

    #[test]
    fn a_clip_under_way_in_a_way_that_cannot_go_on_begins_anew() {
        let request = clip(2_200 << 20);
        let facts = Prices(request.clone());
        let tile = Space::Blended(Tile { height: 480, width: 416, overlap: 64 });
        let begun = Plan { space: tile, time: Time::Carried { frames: 8 }, ..plain_plan(&device()) };
        assert!(facts.estimate_one(&begun).unwrap().peak_bytes > request.memory_limit);
        let attempts = [4, 8].map(|frames| {
            let plan = Plan { time: Time::Carried { frames }, ..begun.clone() };
            failed(&plan, Failure::OverLimit { bytes: 3 << 30 })
        });
        let next = ask(&request, Some(&begun), &attempts, Vae::last_resort).unwrap();
        assert!(facts.estimate_one(&next).unwrap().peak_bytes <= request.memory_limit, "{next:?}");
    }
}
