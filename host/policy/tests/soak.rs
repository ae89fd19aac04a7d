//! Two hundred thousand decisions with hundreds of failures strewn in: every answer is what it has
//! to be, memory stays flat, and what each kind of decision costs is printed.
//! `TILEWRIGHT_SOAK=1000000` for a million decisions.

#[path = "hostile/clock.rs"]
#[allow(dead_code, reason = "the hostile tests use the rest")]
mod clock;
#[path = "hostile/guest.rs"]
#[allow(dead_code, reason = "the hostile tests use the rest")]
mod guest;

use std::{
    collections::BTreeSet,
    env, fs,
    sync::Arc,
    time::{Duration, Instant},
};

use clock::OwnClock;
use guest::{Guest, HEALTHY, HOSTILE_BATCH};
use tilewright_plan::{
    Attempt, Backend, Capabilities, Cost, CostModel, Decision, Device, Dtype, Failure, FallbackReason, Hint,
    HostMemory, Layout, Model, Objective, Plan, Planner, Question, Request, Space, Stage, Tile,
};
use tilewright_policy::{CacheDir, Limits, LoadedPolicy, Policy, PolicyHost};

/// Decisions, unless the environment gives another number.
const DECISIONS: u64 = 200_000;
/// One decision in this many fails: of 200,000, over two hundred make a new instance necessary.
const RARE: u64 = 700;
/// The percentage of failures by the clock instead of the fuel.
const TIMEOUTS: u64 = 5;
/// After this many failures, three in a row take the policy out of service.
const RELAPSE: u64 = 50;
/// The most that the resident memory may grow after the first tenth.
const GROWTH: u64 = 6 << 20;
/// Units of fuel that no decision of `fixed` takes more than. The time that one takes is printed.
const FIXED_FUEL: u64 = 3_000;

/// A guest's action if the first hint's value is this digit, and the host's reason for a fallback.
const COMMANDS: [(&str, FallbackReason); 8] = [
    ("trap", FallbackReason::Trap),
    ("loop", FallbackReason::OutOfFuel),
    ("grow", FallbackReason::OutOfMemory),
    ("nonsense", FallbackReason::Nonsense),
    ("stack", FallbackReason::Trap),
    ("bounds", FallbackReason::Trap),
    ("variant", FallbackReason::Trap),
    ("error", FallbackReason::Error),
];

/// Obeys the digit: the hints' list is at 116 of the request, a hint's value at 8 of it.
const OBEDIENT: Guest = Guest {
    fields: r#"
  (func $deep (param i32) (result i32) (i32.add (call $deep (i32.add (local.get 0) (i32.const 1))) (i32.const 1)))
  ;; at 3072 a plan whose batch is zero, at 4096 an answer whose variant is 7, at 5120 the error "no"
  (data (i32.const 4096) "\07")
  (data (i32.const 5120) "\01\00\00\00\20\14\00\00\02\00\00\00")
  (data (i32.const 5152) "no")"#,
    decide: r#"
    (block $error (block $variant (block $bounds (block $stack (block $nonsense (block $grow (block $loop (block $trap
      (br_table $trap $loop $grow $nonsense $stack $bounds $variant $error
        (i32.sub (i32.load8_u (i32.load offset=8 (i32.load offset=116 (local.get $request)))) (i32.const 48))))
      unreachable)
      (loop $again (br $again)))
      (drop (memory.grow (i32.const 4000))))
      (return (i32.const 3072)))
      (drop (call $deep (i32.const 0))))
      (return (i32.const 262140)))
      (return (i32.const 4096)))
    (return (i32.const 5120))"#,
    ..HEALTHY
};

struct Prices;

impl CostModel for Prices {
    fn estimate_one(&self, plan: &Plan) -> Result<Cost, String> {
        let pixels = plan.space.tile().map_or(1 << 20, |tile| u64::from(tile.height) * u64::from(tile.width));
        Ok(Cost {
            peak_bytes: pixels * 1000,
            elapsed: Duration::from_millis(5),
            tiles: 1,
            shapes: 1,
            rework: 1.0,
            weights_bytes: 0,
        })
    }
}

/// The same numbers in every run: splitmix64.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % most
    }
}

/// Time and number of one kind of decision.
#[derive(Default)]
struct Tally {
    runs: u64,
    elapsed: Duration,
}

impl Tally {
    fn time<R>(&mut self, run: impl FnOnce() -> R) -> R {
        let started = Instant::now();
        let result = run();
        self.elapsed += started.elapsed();
        self.runs += 1;
        result
    }

    fn each_us(&self) -> f64 {
        self.elapsed.as_secs_f64() * 1e6 / self.runs.max(1) as f64
    }
}

/// A request, and what `fixed` as it is set here has to answer.
struct Case {
    request: Request,
    device: Device,
    fixed: Plan,
    adaptive: Plan,
}

struct Soak {
    offer: Capabilities,
    facts: Arc<dyn CostModel>,
    cases: Vec<Case>,
}

impl Soak {
    fn ask(&self, policy: &mut Policy, request: &Request, device: &Device) -> Decision {
        policy.decide(&Question::new(Stage::Decode, request, device, &self.offer), self.facts.clone())
    }

    /// A command to the obedient guest.
    fn command(&self, digit: usize) -> Request {
        // A request that names its stage in a hint reaches the guest unchanged, so that this hint
        // comes first.
        let hint = Hint { name: Stage::HINT.into(), value: digit.to_string() };
        Request { batch: HOSTILE_BATCH, hints: vec![hint], ..self.cases[0].request.clone() }
    }

    /// The decision fails as expected, and the fallback plan replaces the answer.
    fn assert_fails(&self, decision: &Decision, reason: FallbackReason) {
        let fallback = decision.fallback.as_ref().unwrap_or_else(|| panic!("no fallback: {decision:?}"));
        assert_eq!(fallback.reason, reason, "{}", fallback.detail);
        assert!(decision.plan.reason.starts_with("native default"), "{}", decision.plan.reason);
    }
}

/// Taken as it was answered.
fn assert_taken(decision: &Decision, plan: &Plan) {
    assert_eq!(decision.fallback, None);
    assert_eq!(decision.plan, *plan);
}

fn request(frames: u32, height: u32, width: u32) -> Request {
    Request {
        model: Model {
            family: "flux".into(),
            stored: Dtype::Bf16,
            quantized: false,
            parameter_bytes: 1 << 27,
            spatial_scale: 8,
            temporal_scale: 1,
        },
        batch: 1,
        frames,
        height,
        width,
        memory_limit: 3 << 29,
        limit_counts_weights: false,
        allows_blended: true,
        objective: Objective::Balanced,
        hints: Vec::new(),
        host: HostMemory::default(),
    }
}

fn device(backend: Backend, arch: &str) -> Device {
    Device {
        backend,
        name: "soak".into(),
        arch: arch.into(),
        compute_units: 40,
        total_bytes: 1 << 35,
        free_bytes: 1 << 34,
        unified: false,
        fast_dtypes: vec![Dtype::Bf16],
        hints: Vec::new(),
    }
}

fn plan(space: Space, layout: Layout, reason: &str) -> Plan {
    Plan { space, layout, reason: reason.into(), ..Plan::plain() }
}

/// Pictures on three devices; `fixed` is set to tiles of 512, which does not divide a smaller
/// picture.
fn cases() -> Vec<Case> {
    let devices = [(Backend::Cpu, "x86-64-v4"), (Backend::Cuda, "sm_90"), (Backend::Rocm, "gfx1151")];
    let mut cases = Vec::new();
    for (backend, arch) in devices {
        for (height, width) in [(256, 384), (512, 512), (1024, 1024), (1536, 1024), (2048, 3072)] {
            let tile = Tile { height: 512, width: 512, overlap: 64 };
            let layout = if backend == Backend::Rocm { Layout::ChannelsFirst } else { Layout::ChannelsLast };
            let space = if height.max(width) <= 512 { Space::Whole } else { Space::Blended(tile) };
            let fixed = plan(space, layout, "as set");
            let request = request(1, height, width);
            cases.push(Case { request, device: device(backend, arch), adaptive: fixed.clone(), fixed });
        }
    }
    cases
}

fn settings(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// Resident bytes of this process; `None` if the system does not report them.
fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kilobytes| kilobytes << 10)
}

/// Processor time of this thread; the wall clock if the system does not report it.
fn processor_time(since: Instant) -> Duration {
    let told = fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = told.and_then(|text| text.split(' ').next()?.parse().ok());
    nanoseconds.map_or_else(|| since.elapsed(), Duration::from_nanos)
}

#[test]
fn decisions_are_right_with_failures_strewn_in() {
    let decisions = env::var("TILEWRIGHT_SOAK").map_or(DECISIONS, |text| text.parse().expect("TILEWRIGHT_SOAK=N"));
    let limits = Limits { fuel: 3_000_000, ..Limits::default() };
    let host = PolicyHost::with_clock(limits, &CacheDir::Off, OwnClock::still()).unwrap();
    // So much fuel that the clock comes first.
    let impatient = Limits { fuel: u64::MAX >> 8, wall_ms: 30, ..Limits::default() };
    let clock = OwnClock::passing(Duration::from_millis(10), Duration::from_millis(10));
    let impatient = PolicyHost::with_clock(impatient, &CacheDir::Off, clock).unwrap();
    let load = |host: &PolicyHost, guest: &Guest| host.load("obedient", &guest.build()).unwrap();
    let (obedient, looping) = (load(&host, &OBEDIENT), load(&impatient, &OBEDIENT));
    let put = |policy: &LoadedPolicy| policy.configure(&[]).unwrap();

    let offer = Capabilities {
        dtypes: vec![Dtype::F32, Dtype::Bf16],
        tile_unit: 8,
        tile_least: 64,
        batch_most: 16,
        exact: true,
        carried: false,
        offload: false,
        prefetch_most: 0,
        options: Vec::new(),
    };
    let mut soak = Soak { cases: cases(), offer, facts: Arc::new(Prices) };
    let tiles = settings(&[("space", "blended"), ("tile", "512"), ("overlap", "64")]);
    let mut fixed = host.load_shipped("fixed").unwrap().configure(&tiles).unwrap();
    let adaptive = host.load_shipped("adaptive").unwrap();
    // A fresh instance says what every other one has to: the same inputs, the same answer.
    for index in 0..soak.cases.len() {
        let Case { request, device, .. } = &soak.cases[index];
        let decision = soak.ask(&mut put(&adaptive), request, device);
        assert_eq!(decision.fallback, None);
        soak.cases[index].adaptive = decision.plan;
    }
    let (mut adaptive, mut guest, mut late) = (put(&adaptive), put(&obedient), put(&looping));
    let healthy = plan(Space::Whole, Layout::ChannelsFirst, "");

    let mut numbers = Numbers(2026);
    let rare = (decisions / RARE).max(1);
    let mut failing = BTreeSet::new();
    while (failing.len() as u64) < rare {
        failing.insert(numbers.below(decisions));
    }
    let (mut by_fixed, mut by_adaptive, mut by_guest) = (Tally::default(), Tally::default(), Tally::default());
    let (mut rebuilt, mut failed) = (Tally::default(), COMMANDS.map(|_| Tally::default()));
    let (mut timeouts, mut timed_out, mut retired, mut failures) = (Tally::default(), 0, 0, 0);
    let (mut baseline, mut most) = (None, 0);
    let started = Instant::now();
    for index in 0..decisions {
        let case = &soak.cases[index as usize % soak.cases.len()];
        if failing.contains(&index) {
            failures += 1;
            if failures % (100 / TIMEOUTS) == 0 {
                let decision = timeouts.time(|| soak.ask(&mut late, &soak.command(1), &case.device));
                soak.assert_fails(&decision, FallbackReason::Timeout);
                let next = rebuilt.time(|| soak.ask(&mut late, &case.request, &case.device));
                assert_taken(&next, &healthy);
                timed_out += 1;
                // One more failure would be too many among its last calls.
                if timed_out % limits.failures == 0 {
                    late = put(&looping);
                }
            } else {
                let digit = numbers.below(COMMANDS.len() as u64) as usize;
                let (command, (what, reason)) = (soak.command(digit), COMMANDS[digit]);
                let times = if failures % RELAPSE == 1 { limits.failures } else { 1 };
                for _ in 0..times {
                    // With several recent failures, this one may be too many already.
                    if guest.is_out_of_service() {
                        break;
                    }
                    let decision = failed[digit].time(|| soak.ask(&mut guest, &command, &case.device));
                    soak.assert_fails(&decision, reason);
                }
                let honest = reason == FallbackReason::Error;
                assert!(guest.is_out_of_service() || times == 1 || honest, "{what}");
                if guest.is_out_of_service() {
                    retired += 1;
                    let decision = soak.ask(&mut guest, &case.request, &case.device);
                    soak.assert_fails(&decision, FallbackReason::OutOfService);
                    guest = put(&obedient);
                }
                let tally = if honest || reason == FallbackReason::Nonsense { &mut by_guest } else { &mut rebuilt };
                assert_taken(&tally.time(|| soak.ask(&mut guest, &case.request, &case.device)), &healthy);
            }
        }
        match index % 10 {
            8 => {
                let decision = by_adaptive.time(|| soak.ask(&mut adaptive, &case.request, &case.device));
                assert_taken(&decision, &case.adaptive);
            }
            9 => {
                let decision = by_guest.time(|| soak.ask(&mut guest, &case.request, &case.device));
                assert_taken(&decision, &healthy);
            }
            _ => {
                let decision = by_fixed.time(|| soak.ask(&mut fixed, &case.request, &case.device));
                assert_taken(&decision, &case.fixed);
                assert_eq!(decision.answer.as_ref().map(|answer| answer.layout), Some(case.fixed.layout));
            }
        }
        if index % 1000 == 0 {
            let failure = Failure::OutOfMemory { bytes: 1 << 30 };
            let tried = [Attempt { plan: case.fixed.clone(), failure }];
            let decision = fixed.decide(
                &Question::new(Stage::Decode, &case.request, &case.device, &soak.offer).after(&tried),
                soak.facts.clone(),
            );
            soak.assert_fails(&decision, FallbackReason::Error);
            assert_ne!(
                Plan { reason: String::new(), ..decision.plan },
                Plan { reason: String::new(), ..case.fixed.clone() }
            );
            if let (Some(resident), true) = (resident_bytes(), index >= decisions / 10) {
                let baseline = *baseline.get_or_insert(resident);
                most = most.max(resident.saturating_sub(baseline));
            }
        }
    }
    let elapsed = started.elapsed();
    assert!(!fixed.is_out_of_service() && !adaptive.is_out_of_service() && !late.is_out_of_service());

    // On their own, by processor time: a core's worth, on a busy machine too.
    let began = processor_time(started);
    let alone = (decisions / 5).max(1);
    let mut fixed_fuel = 0;
    for index in 0..alone {
        let case = &soak.cases[index as usize % soak.cases.len()];
        let decision = soak.ask(&mut fixed, &case.request, &case.device);
        assert_taken(&decision, &case.fixed);
        fixed_fuel = fixed_fuel.max(decision.fuel);
    }
    let alone_each = (processor_time(started) - began).as_secs_f64() / alone as f64;

    let mebibytes = |bytes: u64| bytes as f64 / (1 << 20) as f64;
    println!("{decisions} decisions and {failures} failures in {:.1} s, in one thread", elapsed.as_secs_f64());
    println!("fixed: {:.0} decisions per second and core ({alone} more of them, by processor time)", 1.0 / alone_each);
    let kinds = [("fixed", &by_fixed), ("adaptive", &by_adaptive), ("obedient guest", &by_guest)];
    for (name, tally) in kinds {
        println!("  {name:24} {:8} {:9.2} µs each", tally.runs, tally.each_us());
    }
    for ((what, reason), tally) in COMMANDS.iter().zip(&failed) {
        println!("  {:24} {:8} {:9.2} µs each", format!("{what} → {reason}"), tally.runs, tally.each_us());
    }
    println!("  {:24} {:8} {:9.2} µs each", "loop → timeout", timeouts.runs, timeouts.each_us());
    println!("  {:24} {:8} {:9.2} µs each", "a new instance, decided", rebuilt.runs, rebuilt.each_us());
    println!("  taken out of service {retired} times");
    match baseline {
        Some(baseline) => {
            println!(
                "  {:.1} MiB resident after a tenth, {:.2} MiB more at most since",
                mebibytes(baseline),
                mebibytes(most)
            );
            assert!(most <= GROWTH, "resident memory grew by {:.1} MiB", mebibytes(most));
        }
        None => println!("  resident memory: not known on this system"),
    }
    println!("  {fixed_fuel} units of fuel at most for a decision of fixed");
    assert!((1..=FIXED_FUEL).contains(&fixed_fuel), "{fixed_fuel} units of fuel for a decision of fixed");
}
