//! The policies that ship, through the sandbox: they describe themselves, decide for every kind of
//! request, recover, spend the same fuel on the same question, and come out of the cache as they
//! went in.

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt, sync::Arc, time::Duration};

use tilewright_plan::{
    Attempt, Backend, Capabilities, Cost, CostModel, Device, Dtype, Failure, FallbackReason, Hint, HostMemory, Model,
    Objective, Outcome, Plan, Planner, PoolStatistics, Precision, Question, Request, Space, Stage, Tile, Time, Trial,
    UnderWay, Value,
};
use tilewright_policy::{CacheDir, Limits, LoadedPolicy, PolicyHost, key_value, shipped_names};

/// 1000 bytes per pixel at once in f32, 10 ns per pixel; exact bands take 40 % of whole's memory
/// and 3 % more time.
struct Prices(Request);

impl CostModel for Prices {
    fn estimate_one(&self, plan: &Plan) -> Result<Cost, String> {
        let (height, width) = plan.space.tile().map_or((self.0.height, self.0.width), |tile| (tile.height, tile.width));
        let mut pixels = u64::from(height) * u64::from(width);
        let mut tiles = self.0.height.div_ceil(height) * self.0.width.div_ceil(width);
        let mut share = u64::from(plan.precision.dtype().bits());
        let mut slower = share;
        if matches!(plan.space, Space::Exact(_)) {
            (pixels, tiles) = (u64::from(self.0.height) * u64::from(self.0.width), 1);
            (share, slower) = (share * 2 / 5, share * 103 / 100);
        }
        Ok(Cost {
            peak_bytes: pixels * 1000 * share / 32 * u64::from(plan.batch),
            elapsed: Duration::from_nanos(pixels * 10 * u64::from(tiles) * slower / 32),
            tiles,
            shapes: 1,
            rework: 1.0,
            weights_bytes: 0,
        })
    }

    fn trials(&self, most: u32) -> Vec<Trial> {
        let _ = most;
        Vec::new()
    }
}

/// A WAN decoder in f32: 1600 bytes of activations per pixel and frame that runs through the
/// largest layers at once, and 1200 bytes of causal state per pixel. Bands hold their share of the
/// activations and an eighth; tiles that run over the whole clip only their own state, a latent
/// frame at a time. What leaves together at the end is held as f32. 400 ns per pixel and frame, and
/// 3 % on top for each halving of the chunk below 16.
struct WanPrices(Request);

impl CostModel for WanPrices {
    fn estimate_one(&self, plan: &Plan) -> Result<Cost, String> {
        let request = &self.0;
        let area = |height: u32, width: u32| u64::from(height) * u64::from(width);
        let picture = area(request.height, request.width);
        let tile = plan.space.tile().map_or(picture, |tile| area(tile.height, tile.width));
        let tiles = plan.space.tile().map_or(1, |tile| {
            let along = |extent: u32, side: u32| (extent - side).div_ceil((side - tile.overlap).max(1)) + 1;
            along(request.height, tile.height) * along(request.width, tile.width)
        });
        let (at_once, work) = match plan.space {
            Space::Exact(_) => (tile + picture / 8, picture * 103 / 100),
            Space::Whole | Space::Blended(_) => (tile, tile * u64::from(tiles)),
        };
        let latent_frame = request.model.temporal_scale.min(request.frames);
        let is_clip = request.frames > 1;
        let (chunk, state, together) = match (plan.time, plan.space) {
            (Time::Carried { frames }, _) => (frames, picture, 0),
            (_, Space::Blended(_)) => (latent_frame, tile, request.frames),
            _ => (request.frames, picture, request.frames),
        };
        let state = if is_clip { state * 1200 } else { 0 };
        let bits = u64::from(plan.precision.dtype().bits());
        let halvings = 4u64.saturating_sub(u64::from(chunk.max(1).ilog2()));
        Ok(Cost {
            peak_bytes: (at_once * 1600 * u64::from(chunk) + state) * bits / 32 * u64::from(plan.batch)
                + picture * 12 * u64::from(together),
            elapsed: Duration::from_nanos(work * u64::from(request.frames) * 4 * (100 + 3 * halvings) * bits / 32),
            tiles,
            shapes: 1,
            rework: work as f64 / picture as f64,
            weights_bytes: 0,
        })
    }
}

/// So many frames of 832×480 from WAN 2.1, or of 1280×704 from WAN 2.2.
fn clip(family: &str, frames: u32, memory_limit: u64) -> Request {
    let (width, height, spatial_scale) = if family == "wan-2.2" { (1280, 704, 16) } else { (832, 480, 8) };
    let mut request = Request { batch: 1, frames, height, width, ..request(0, memory_limit) };
    request.model.family = family.into();
    (request.model.spatial_scale, request.model.temporal_scale) = (spatial_scale, 4);
    request
}

/// The capabilities for a WAN model.
fn wan_offer(backend: Backend) -> Capabilities {
    let on_gpu = backend != Backend::Cpu;
    Capabilities { exact: true, carried: true, offload: on_gpu, prefetch_most: if on_gpu { 2 } else { 0 }, ..offer() }
}

fn request(side: u32, memory_limit: u64) -> Request {
    Request {
        model: Model {
            family: "flux".into(),
            stored: Dtype::Bf16,
            quantized: false,
            parameter_bytes: 1 << 27,
            spatial_scale: 8,
            temporal_scale: 1,
        },
        batch: 2,
        frames: 1,
        height: side,
        width: side + 64,
        memory_limit,
        limit_counts_weights: false,
        allows_blended: true,
        objective: Objective::Balanced,
        hints: Vec::new(),
        host: HostMemory::default(),
    }
}

fn device(backend: Backend) -> Device {
    Device {
        backend,
        name: "test".into(),
        arch: "gfx1151".into(),
        compute_units: 2,
        total_bytes: 1 << 37,
        free_bytes: 1 << 36,
        unified: true,
        fast_dtypes: if backend == Backend::Cpu { vec![] } else { vec![Dtype::Bf16] },
        hints: Vec::new(),
    }
}

fn offer() -> Capabilities {
    Capabilities {
        dtypes: vec![Dtype::F32, Dtype::Bf16, Dtype::F16],
        tile_unit: 8,
        tile_least: 64,
        batch_most: 16,
        exact: false,
        carried: false,
        offload: false,
        prefetch_most: 0,
        options: Vec::new(),
    }
}

fn host() -> PolicyHost {
    PolicyHost::new(Limits::default(), &CacheDir::Off).unwrap()
}

fn set(pairs: &[&str]) -> Vec<(String, String)> {
    pairs.iter().map(|pair| key_value(pair).unwrap()).collect()
}

#[test]
fn each_describes_itself() {
    let host = host();
    for name in shipped_names() {
        let inspection = host.load_shipped(name).unwrap().inspection().clone();
        assert_eq!(inspection.description.name, name);
        assert!(!inspection.description.summary.is_empty());
        assert!(inspection.digest.starts_with("sha256:") && inspection.digest.len() == 71);
        assert!(inspection.size_bytes < 192 << 10, "{name} has {} bytes", inspection.size_bytes);
        assert!(
            inspection.imports.iter().all(|import| import.starts_with("tilewright:policy/")),
            "{:?}",
            inspection.imports
        );
        serde_json::to_string(&inspection).unwrap();
    }
    let error = host.find("adaptve").err().unwrap().to_string();
    assert_eq!(
        error,
        "unknown policy 'adaptve' (did you mean adaptive?): give a file that ends in .wasm, or one of adaptive, gfx1151, comfyui, diffusers, fixed"
    );
    let error = host.find("no/such.wasm").err().unwrap().to_string();
    assert!(error.starts_with("policy no/such.wasm: can't be read"), "{error}");
}

#[test]
fn each_decides_and_recovers() {
    let host = host();
    for name in shipped_names() {
        let mut policy = host.load_shipped(name).unwrap().configure(&[]).unwrap();
        for backend in [Backend::Cpu, Backend::Cuda, Backend::Rocm] {
            for (side, limit) in [(256, 1 << 34), (1024, 1 << 34), (2048, 1 << 34), (2048, 1 << 29)] {
                let request = request(side, limit);
                let facts = Arc::new(Prices(request.clone()));
                let decision =
                    policy.decide(&Question::new(Stage::Decode, &request, &device(backend), &offer()), facts.clone());
                assert_eq!(decision.fallback, None, "{name} {backend:?} {side}");
                let failures = [
                    Failure::OutOfMemory { bytes: 1 },
                    Failure::NonFinite { values: 1 },
                    Failure::OverLimit { bytes: 1 },
                ];
                for failure in failures {
                    let attempts = [Attempt { plan: decision.plan.clone(), failure }];
                    let again = policy.decide(
                        &Question::new(Stage::Decode, &request, &device(backend), &offer()).after(&attempts),
                        facts.clone(),
                    );
                    // A rule of thumb may have no answer left; none of them traps or answers
                    // nonsense.
                    let reason = again.fallback.map_or(FallbackReason::Error, |fallback| fallback.reason);
                    assert_eq!(reason, FallbackReason::Error, "{name} {backend:?} {side} {failure}");
                }
            }
        }
        assert!(!policy.is_out_of_service());
    }
}

/// Every family, length and limit of clips, on every kind of device.
fn clips() -> impl Iterator<Item = (&'static str, u32, u64, Backend)> {
    let families = ["wan-2.1", "wan-2.2"].into_iter();
    let frames = |family| [1, 17, 81].into_iter().map(move |frames| (family, frames));
    let limits =
        |(family, frames)| [64 << 30, 6 << 30, 1500 << 20].into_iter().map(move |limit| (family, frames, limit));
    let backends = |(family, frames, limit)| {
        [Backend::Cpu, Backend::Cuda, Backend::Rocm].into_iter().map(move |backend| (family, frames, limit, backend))
    };
    families.flat_map(frames).flat_map(limits).flat_map(backends)
}

#[test]
fn each_decides_about_clips() {
    let host = host();
    for name in shipped_names() {
        let mut policy = host.load_shipped(name).unwrap().configure(&[]).unwrap();
        for (family, frames, limit, backend) in clips() {
            let case = format!("{name}, {family}, {frames} frames, {limit} bytes, {backend:?}");
            let offer = wan_offer(backend);
            let request = clip(family, frames, limit);
            let facts = Arc::new(WanPrices(request.clone()));
            let decision =
                policy.decide(&Question::new(Stage::Decode, &request, &device(backend), &offer), facts.clone());
            assert_eq!(decision.fallback, None, "{case}");
            assert!(decision.candidates.len() <= 64, "{case}: {} estimates", decision.candidates.len());
            // Answers for clips are legal as they are.
            assert!(frames == 1 || decision.adjusted.is_empty(), "{case}: {:?}", decision.adjusted);
            assert!(decision.plan.time == Time::Whole || frames > 1, "{case}: {:?}", decision.plan);
            // Policies that ask for prices keep to the limit.
            if ["adaptive", "gfx1151"].contains(&name) {
                assert!(facts.estimate_one(&decision.plan).unwrap().peak_bytes <= limit, "{case}: {:?}", decision.plan);
            }
        }
        assert!(!policy.is_out_of_service());
    }
}

#[test]
fn each_goes_on_with_a_clip_under_way() {
    let host = host();
    for name in shipped_names() {
        let mut policy = host.load_shipped(name).unwrap().configure(&[]).unwrap();
        for (family, frames, limit, backend) in clips().filter(|(_, frames, ..)| *frames > 1) {
            let offer = wan_offer(backend);
            let request = clip(family, frames, limit);
            let facts = Arc::new(WanPrices(request.clone()));
            let begun =
                policy.decide(&Question::new(Stage::Decode, &request, &device(backend), &offer), facts.clone()).plan;
            let under_way = UnderWay { done: 13, plan: begun.clone() };
            let failures = [
                Failure::OutOfMemory { bytes: 1 },
                Failure::OverLimit { bytes: limit + 1 },
                Failure::NonFinite { values: 1 },
            ];
            for failure in failures {
                let case = format!("{name}, {family}, {frames} frames, {limit} bytes, {backend:?}, {failure}");
                let attempts = [Attempt { plan: begun.clone(), failure }];
                let again = policy.decide(
                    &Question::new(Stage::Decode, &request, &device(backend), &offer)
                        .going_on(Some(&under_way))
                        .after(&attempts),
                    facts.clone(),
                );
                // A rule of thumb may have no answer left, or one that can't go on and comes out as
                // what has failed.
                let is_rule = !["adaptive", "gfx1151"].contains(&name);
                let reason = again.fallback.clone().map_or(FallbackReason::Error, |fallback| fallback.reason);
                let allowed = if is_rule {
                    vec![FallbackReason::Error, FallbackReason::Nonsense]
                } else {
                    vec![FallbackReason::Error]
                };
                assert!(allowed.contains(&reason), "{case}: {:?}", again.fallback);
                // Policies that know of the clip under way answer nothing that has to be changed.
                assert!(is_rule || again.adjusted.is_empty(), "{case}: {:?}", again.adjusted);
                let is_tiled = |plan: &Plan| matches!(plan.space, Space::Blended(_));
                assert_eq!(is_tiled(&again.plan), is_tiled(&begun), "{case}");
                assert_eq!(again.plan.time == Time::Whole, begun.time == Time::Whole, "{case}");
                assert_eq!(again.plan.layout, begun.layout, "{case}");
            }
        }
        assert!(!policy.is_out_of_service());
    }
}

#[test]
fn adaptive_streams_a_clip_where_it_can() {
    let loaded = host().load_shipped("adaptive").unwrap();
    let decide = |settings: &[&str], limit: u64| {
        let offer = wan_offer(Backend::Cpu);
        let request = Request { objective: Objective::Fastest, ..clip("wan-2.1", 81, limit) };
        let mut policy = loaded.configure(&set(settings)).unwrap();
        let decision = policy.decide(
            &Question::new(Stage::Decode, &request, &device(Backend::Cpu), &offer),
            Arc::new(WanPrices(request.clone())),
        );
        (decision.plan.space, decision.plan.time)
    };
    // Longer chunks save more than 2 % with each doubling up to 16; all at once saves nothing more.
    assert_eq!(decide(&[], 1 << 40), (Space::Whole, Time::Carried { frames: 16 }));
    assert_eq!(decide(&["chunk=2"], 1 << 40), (Space::Whole, Time::Carried { frames: 2 }));
    assert_eq!(decide(&["precision=f32"], 6 << 30), (Space::Whole, Time::Carried { frames: 8 }));
    let (space, time) = decide(&["precision=f32"], 1 << 30);
    assert!(matches!((space, time), (Space::Exact(_), Time::Carried { .. })), "{space} {time:?}");
    // Less than the picture's state: tiles, one after the other over the whole clip.
    let (space, time) = decide(&["precision=f32"], 470 << 20);
    assert!(matches!((space, time), (Space::Blended(_), Time::Whole)), "{space} {time:?}");
}

#[test]
fn adaptive_spends_the_same_fuel_every_time() {
    let loaded = host().load_shipped("adaptive").unwrap();
    let request = request(2048, 1 << 30);
    let facts = Arc::new(Prices(request.clone()));
    let decide = |policy: &mut tilewright_policy::Policy| {
        let decision =
            policy.decide(&Question::new(Stage::Decode, &request, &device(Backend::Cuda), &offer()), facts.clone());
        (decision.fuel, decision.plan, decision.candidates.len())
    };
    let mut warm = loaded.configure(&[]).unwrap();
    let first = decide(&mut warm);
    assert!((10..=64).contains(&first.2), "{} estimates", first.2);
    for _ in 0..20 {
        assert_eq!(decide(&mut warm), first);
        assert_eq!(decide(&mut loaded.configure(&[]).unwrap()), first);
    }
}

#[test]
fn adaptive_stays_within_the_limit() {
    let mut policy = host().load_shipped("adaptive").unwrap().configure(&[]).unwrap();
    for limit in [1u64 << 33, 1 << 31, 1 << 29, 1 << 27, 1 << 26] {
        let request = request(2048, limit);
        let facts = Arc::new(Prices(request.clone()));
        let plan = policy
            .decide(&Question::new(Stage::Decode, &request, &device(Backend::Cuda), &offer()), facts.clone())
            .plan;
        assert!(facts.estimate_one(&plan).unwrap().peak_bytes <= limit, "{plan:?}");
    }
}

#[test]
fn adaptive_takes_exact_bands_where_they_are_offered() {
    let mut policy = host().load_shipped("adaptive").unwrap().configure(&[]).unwrap();
    let request = Request { objective: Objective::Fastest, ..request(2048, 3 << 30) };
    let facts = Arc::new(Prices(request.clone()));
    let offer = Capabilities { exact: true, ..offer() };
    let first = policy.decide(&Question::new(Stage::Decode, &request, &device(Backend::Cpu), &offer), facts.clone());
    let Space::Exact(band) = first.plan.space else { panic!("{:?}", first.plan) };
    // The answer is legal as it is: nothing of it had to be adjusted.
    assert_eq!((band.width, band.overlap, first.adjusted), (request.width, 0, vec![]));
    assert!(first.plan.reason.starts_with("exact bands of "), "{}", first.plan.reason);
    let attempts = [Attempt { plan: first.plan.clone(), failure: Failure::OutOfMemory { bytes: 1 } }];
    let again = policy
        .decide(&Question::new(Stage::Decode, &request, &device(Backend::Cpu), &offer).after(&attempts), facts.clone());
    assert_eq!(again.fallback, None);
    let peak = |plan: &Plan| facts.estimate_one(plan).unwrap().peak_bytes;
    assert!(peak(&again.plan) * 10 <= peak(&first.plan) * 7, "{:?}", again.plan);
}

#[test]
fn adaptive_learns_from_outcomes() {
    let loaded = host().load_shipped("adaptive").unwrap();
    let mut policy = loaded.configure(&[]).unwrap();
    let request = Request { objective: Objective::Fastest, ..request(1024, 1_300_000_000) };
    let facts = Arc::new(Prices(request.clone()));
    let cpu = device(Backend::Cpu);
    let decide = |policy: &mut tilewright_policy::Policy| {
        policy.decide(&Question::new(Stage::Decode, &request, &cpu, &offer()), facts.clone()).plan
    };
    let first = decide(&mut policy);
    assert_eq!(first.space, Space::Whole);
    // In either memory order whole turns out to need half as much again, which does not fit.
    for _ in 0..2 {
        let plan = decide(&mut policy);
        let cost = facts.estimate_one(&plan).unwrap();
        let outcome = Outcome {
            elapsed: cost.elapsed,
            load: Duration::ZERO,
            peak_bytes: cost.peak_bytes / 2 * 3,
            attempts: 1,
            pool: PoolStatistics::default(),
            cold: false,
            weights_bytes: 0,
        };
        policy.learn(&Question::new(Stage::Decode, &request, &cpu, &offer()), &plan, &outcome);
    }
    assert_ne!(decide(&mut policy).space, Space::Whole);
    assert_eq!(decide(&mut loaded.configure(&[]).unwrap()), first);
}

#[test]
fn fixed_does_what_it_is_set_to() {
    let loaded = host().load_shipped("fixed").unwrap();
    let settings = set(&[
        "space=blended",
        "tile=768x512",
        "overlap=300",
        "precision=mixed-bf16",
        "layout=channels-last",
        "batch=4",
    ]);
    let mut policy = loaded.configure(&settings).unwrap();
    assert_eq!(policy.identity().settings["overlap"], Value::Integer(300));
    assert_eq!(policy.identity().settings.len(), loaded.description().settings.len());
    let request = request(2048, 1 << 33);
    let decision = policy.decide(
        &Question::new(Stage::Decode, &request, &device(Backend::Cpu), &offer()),
        Arc::new(Prices(request.clone())),
    );
    assert_eq!(decision.plan.space, Space::Blended(Tile { height: 512, width: 768, overlap: 128 }));
    assert_eq!(decision.plan.precision, Precision::Mixed(Dtype::Bf16));
    assert_eq!(decision.adjusted, ["overlap 300 → 128: at most a quarter of the tile"]);
    let clip_of = |settings: &[&str]| {
        let offer = wan_offer(Backend::Cpu);
        let request = clip("wan-2.1", 81, 1 << 40);
        let mut policy = loaded.configure(&set(settings)).unwrap();
        let decision = policy.decide(
            &Question::new(Stage::Decode, &request, &device(Backend::Cpu), &offer),
            Arc::new(WanPrices(request.clone())),
        );
        (decision.plan.time, decision.adjusted)
    };
    assert_eq!(clip_of(&["time=carried", "chunk=8"]), (Time::Carried { frames: 8 }, vec![]));
    let said = "time blended 16/2 → carried 16: this model carries its causal state, which needs no overlap";
    assert_eq!(clip_of(&["time=blended"]), (Time::Carried { frames: 16 }, vec![said.into()]));
    let mut exact = loaded.configure(&set(&["space=exact"])).unwrap();
    let decision = exact.decide(
        &Question::new(Stage::Decode, &request, &device(Backend::Cpu), &offer()),
        Arc::new(Prices(request.clone())),
    );
    assert_eq!(decision.adjusted, ["exact is not offered yet: blended instead"]);
}

#[test]
fn fixed_refuses_nonsense() {
    let loaded = host().load_shipped("fixed").unwrap();
    let refused = |pair: &str| loaded.configure(&set(&["space=blended", pair])).err().unwrap().to_string();
    assert_eq!(refused("tile=0"), "policy fixed: tile=0: allowed is a side in pixels from 1 to 65536, or WIDTHxHEIGHT");
    assert_eq!(refused("overlap=-1"), "policy fixed: overlap=-1: allowed is 0 to 65536");
    assert_eq!(refused("overlap=512"), "policy fixed: overlap=512: has to be less than the tile (512)");
    assert_eq!(refused("overlap=much"), "policy fixed: setting overlap=much is not a whole number");
    assert_eq!(
        refused("precision=f64"),
        "policy fixed: precision=f64: allowed is f32, tf32, bf16, f16, mixed-bf16, mixed-f16"
    );
    assert_eq!(refused("time=half"), "policy fixed: time=half: allowed is whole, carried, blended");
    assert_eq!(refused("chunk=0"), "policy fixed: chunk=0: allowed is 1 to 65536");
    assert!(
        refused("tiel=3").starts_with("policy fixed has no setting 'tiel' (did you mean tile?): it has space, tile,")
    );
}

#[test]
fn published_rules_hold() {
    let host = host();
    let plan = |name: &str, backend, request: &Request| {
        let mut policy = host.load_shipped(name).unwrap().configure(&[]).unwrap();
        policy
            .decide(
                &Question::new(Stage::Decode, request, &device(backend), &offer()),
                Arc::new(Prices(request.clone())),
            )
            .plan
    };
    // The published case: 1664×928 in bf16 tiles.
    let case = Request { width: 1664, height: 928, ..request(928, 1 << 36) };
    let strix = plan("gfx1151", Backend::Rocm, &case);
    assert_eq!(strix.space.tile().map(|tile| tile.overlap), Some(96));
    assert_eq!(strix.precision, Precision::Uniform(Dtype::Bf16));
    let mut quantized = case.clone();
    (quantized.model.stored, quantized.model.quantized) = (Dtype::I8, true);
    let strix = plan("gfx1151", Backend::Rocm, &quantized);
    assert_eq!((strix.space.tile().map(|tile| tile.width), strix.batch), (Some(512), 1));
    let hinted = Request { hints: vec![Hint { name: "sample-size".into(), value: "512".into() }], ..case };
    assert_eq!(
        plan("diffusers", Backend::Cuda, &hinted).space,
        Space::Blended(Tile { height: 512, width: 512, overlap: 128 })
    );
}

fn facts_of(loaded: &LoadedPolicy) -> (String, BTreeMap<String, Value>) {
    (loaded.inspection().digest.clone(), loaded.configure(&[]).unwrap().identity().settings.clone())
}

#[test]
fn the_cache_is_private_and_mends_itself() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("deep").join("policies");
    let host = || PolicyHost::new(Limits::default(), &CacheDir::At(place.clone())).unwrap();
    let first = facts_of(&host().load_shipped("comfyui").unwrap());
    let kept = || fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&place), kept().len()), (0o700, 1));
    let file = kept().remove(0);
    assert_eq!(mode(&file), 0o600);
    let sound = fs::read(&file).unwrap();
    for damaged in [&sound[..sound.len() / 2], &sound[..3], &[&sound[..], b"x"].concat(), b""] {
        fs::write(&file, damaged).unwrap();
        assert_eq!(facts_of(&host().load_shipped("comfyui").unwrap()), first);
        assert_eq!(fs::read(&file).unwrap().len(), sound.len(), "compiled again");
    }
    // A file that others can write is not run, and a directory that others can write is left alone.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(facts_of(&host().load_shipped("comfyui").unwrap()), first);
    assert_eq!(mode(&file), 0o600);
    fs::set_permissions(&place, fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(facts_of(&host().load_shipped("fixed").unwrap()).0.len(), first.0.len());
    assert_eq!(kept().len(), 1);
}

#[test]
fn other_limits_are_other_code() {
    let dir = tempfile::tempdir().unwrap();
    let place = CacheDir::At(dir.path().join("policies"));
    PolicyHost::new(Limits::default(), &place).unwrap().load_shipped("fixed").unwrap();
    let tight = Limits { memory_bytes: 4 << 20, ..Limits::default() };
    PolicyHost::new(tight, &place).unwrap().load_shipped("fixed").unwrap().configure(&[]).unwrap();
}
