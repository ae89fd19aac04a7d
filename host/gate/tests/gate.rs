//! The gate: the shipped policies pass it, and each kind of problem is found.

use std::{collections::BTreeSet, fs, path::PathBuf, time::Duration};

use tilewright_gate::{
    Admission, AdmittedPolicy, Call, Finding, GoldenSet, Problem, Severity, State, Step, Verdict, admit, golden,
    work::Judged,
};
use tilewright_plan::{Planner, Vae};
use tilewright_policy::{CacheDir, Limits, PolicyError, PolicyHost, shipped_names};

#[path = "../../policy/tests/hostile/clock.rs"]
#[allow(dead_code, reason = "the hostile tests use the rest")]
mod clock;

use clock::OwnClock;

/// A guest in the canonical ABI by hand. Its memory: at 256 the description, at 384 configure's
/// result, at 1024 decide's (whole, f32, batch 1), at 1200 an error, from 8192 the heap.
#[derive(Clone, Copy)]
struct Guest {
    /// Further fields of the module.
    fields: &'static str,
    /// Code that runs in each function before it answers; `$request` is the address of the request.
    describe: &'static str,
    configure: &'static str,
    decide: &'static str,
    /// The body of `recover`; an error if it is empty.
    recover: &'static str,
    learn: &'static str,
}

/// Answers whole in f32 to every request, and gives up after a failure.
const HEALTHY: Guest = Guest { fields: "", describe: "", configure: "", decide: "", recover: "", learn: "" };

/// Abbreviations for longer texts in guests.
const WORDS: [(&str, &str); 3] = [
    ("IS_CLIP", "(i32.gt_u (i32.load offset=92 (local.get $request)) (i32.const 1))"),
    ("HAS_16", "(i32.eq (i32.load offset=88 (local.get $request)) (i32.const 16))"),
    ("COUNT", "(global.set $count (i32.add (global.get $count) (i32.const 1)))"),
];
const FOR_EVER: &str = "(loop $for_ever (br $for_ever))";
/// The other memory order.
const CHANNELS_LAST: &str = "(i32.store8 (i32.const 1062) (i32.const 1))";
/// Prices the whole picture in f32.
const ESTIMATE: &str = "(call $estimate
    (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)  (i32.const 0) (i32.const 0) (i32.const 0)  (i32.const 1)
    (i32.const 0) (i32.const 0)  (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)  (i32.const 0) (i32.const 0)  (i32.const 2048))";

/// Loads a policy and puts it to work.
fn admitted_by(
    host: &PolicyHost,
    name_or_file: &str,
    settings: &[(String, String)],
    admission: Admission,
) -> Result<AdmittedPolicy, PolicyError> {
    admit(host, &host.find(name_or_file)?, settings, admission)
}

impl Guest {
    fn build(&self) -> Vec<u8> {
        let Guest { fields, describe, configure, decide, recover, learn } = self;
        let recover = if recover.is_empty() { "(return (i32.const 1200))" } else { recover };
        let text = format!(
            r#"(module
  (import "tilewright:policy/decoding-host@0.1.0" "estimate" (func $estimate
    (param i32 i32 i32 i32  i32 i32 i32  i32  i32 i32  i32 i32 i32 i32  i32 i32  i32)))
  (memory (export "memory") 4)
  (global $heap (mut i32) (i32.const 8192))
  (global $count (mut i32) (i32.const 0))
  (data (i32.const 256) "\00\02\00\00\05\00\00\00\10\02\00\00\05\00\00\00\00\02\00\00\05\00\00\00\08\00\00\00\00\00\00\00")
  (data (i32.const 512) "guest")
  (data (i32.const 528) "1.0.0")
  (data (i32.const 1056) "\01\00\00\00")
  (data (i32.const 1200) "\01\00\00\00\00\02\00\00\05\00\00\00")
  {fields}
  (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32)
    (global.set $heap (i32.and (i32.add (global.get $heap) (i32.const 7)) (i32.const -8)))
    (global.get $heap)
    (global.set $heap (i32.add (global.get $heap) (local.get 3))))
  (func (export "tilewright:policy/lifecycle@0.1.0#describe") (result i32) {describe} (i32.const 256))
  (func (export "tilewright:policy/lifecycle@0.1.0#configure") (param i32 i32) (result i32) {configure} (i32.const 384))
  (func $decide (export "tilewright:policy/decoding-policy@0.1.0#decide") (param $request i32) (result i32)
    (local $left i32)
    (global.set $heap (i32.const 8192))
    {decide} (i32.const 1024))
  (func (export "tilewright:policy/decoding-policy@0.1.0#recover") (param $request i32) (result i32)
    (global.set $heap (i32.const 8192))
    {recover} (i32.const 1024))
  (func (export "tilewright:policy/decoding-policy@0.1.0#learn") (param $request i32) (global.set $heap (i32.const 8192)) {learn}))"#
        );
        let text = WORDS.iter().fold(text, |text, (word, meaning)| text.replace(word, meaning));
        wat::parse_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }
}

/// Picoseconds that a unit of fuel takes by these tests' clock, so that a verdict is the same on
/// every machine.
const FUEL_PS: u64 = 250;

fn host() -> PolicyHost {
    host_at(FUEL_PS)
}

/// A host whose processor takes `fuel_ps` picoseconds for a unit of fuel.
fn host_at(fuel_ps: u64) -> PolicyHost {
    PolicyHost::with_clock(Limits::default(), &CacheDir::Off, OwnClock::by_fuel(fuel_ps)).unwrap()
}

/// A folder with one policy in it.
struct Place(tempfile::TempDir);

impl Place {
    fn with(guest: &Guest) -> (Self, String) {
        let place = Self(tempfile::tempdir().unwrap());
        let path = place.0.path().join("p.wasm");
        fs::write(&path, guest.build()).unwrap();
        let path = path.display().to_string();
        (place, path)
    }

    fn cache(&self) -> PathBuf {
        self.0.path().join("cache")
    }
}

fn check(guest: Guest) -> Verdict {
    check_at(FUEL_PS, guest)
}

fn check_at(fuel_ps: u64, guest: Guest) -> Verdict {
    let (_place, path) = Place::with(&guest);
    tilewright_gate::check(&host_at(fuel_ps), &path, &[], None).unwrap()
}

fn of(verdict: &Verdict, problem: Problem) -> Vec<&Finding> {
    verdict.findings.iter().filter(|finding| finding.problem == problem).collect()
}

/// The verdict's findings of this problem, all of this severity and step. A few bad choices on
/// drawn requests are excused, and so are notes.
fn found(verdict: &Verdict, problem: Problem, severity: Severity, step: Step) -> Vec<Finding> {
    let is_excused = |finding: &&Finding| {
        finding.severity == Severity::Note && finding.request.as_deref().is_some_and(golden::is_drawn)
    };
    let findings =
        of(verdict, problem).into_iter().filter(|finding| severity == Severity::Note || !is_excused(finding));
    let findings: Vec<Finding> = findings.cloned().collect();
    assert!(!findings.is_empty(), "no {problem:?}: {verdict:#?}");
    for finding in &findings {
        assert_eq!((finding.severity, finding.step), (severity, step), "{finding:?}");
        assert!(
            !finding.found.is_empty() && !finding.found.contains('\n') && !finding.advice.is_empty(),
            "{finding:?}"
        );
    }
    assert_eq!(verdict.passes(), verdict.counts.errors == 0);
    findings
}

/// The only errors are of this problem.
fn only(verdict: &Verdict, problem: Problem) {
    let errors = verdict.findings.iter().filter(|finding| finding.severity == Severity::Error);
    let problems: BTreeSet<Problem> = errors.map(|finding| finding.problem).collect();
    assert_eq!(problems, BTreeSet::from([problem]), "{verdict:#?}");
}

#[test]
fn what_ships_passes() {
    let host = host();
    for name in shipped_names() {
        let verdict = tilewright_gate::check(&host, name, &[], None).unwrap();
        assert!(verdict.passes(), "{name}: {verdict:#?}");
        assert_eq!(verdict.golden.tried, verdict.golden.requests);
        assert_eq!(of(&verdict, Problem::Remembers), Vec::<&Finding>::new(), "{name}");
        assert!(verdict.steps.iter().all(|row| row.state == State::Passed));
        assert!(verdict.worst.fuel > 0 && verdict.worst.memory_bytes > 0 && verdict.worst.elapsed_ms > 0.0);
        let text = serde_json::to_string(&verdict).unwrap();
        assert_eq!(serde_json::from_str::<Verdict>(&text).unwrap(), verdict, "{name}");
    }
}

#[test]
fn what_ships_blends_nowhere_that_an_exact_plan_fits() {
    let host = host();
    for name in shipped_names() {
        for seed in 0..3 {
            let verdict = tilewright_gate::check(&host, name, &[], Some(seed)).unwrap();
            assert_eq!(of(&verdict, Problem::Blends), Vec::<&Finding>::new(), "{name}, seed {seed}");
        }
    }
}

#[test]
fn a_policy_that_blends_where_an_exact_plan_fits_is_told() {
    // Tiles of 256 with an overlap of 32, whatever the request.
    let tiles = "(i32.store8 (i32.const 1028) (i32.const 1)) (i32.store (i32.const 1032) (i32.const 256))
        (i32.store (i32.const 1036) (i32.const 256)) (i32.store (i32.const 1040) (i32.const 32))";
    let verdict = check(Guest { decide: tiles, ..HEALTHY });
    let findings = of(&verdict, Problem::Blends);
    let findings: Vec<_> =
        findings.into_iter().filter(|finding| !finding.request.as_deref().is_some_and(golden::is_drawn)).collect();
    let are_warnings =
        findings.iter().all(|finding| (finding.severity, finding.step) == (Severity::Warning, Step::Golden));
    assert!(are_warnings, "{findings:?}");
    assert!(verdict.passes(), "{verdict:#?}");
    let of_request =
        |words: &str| findings.iter().filter(|finding| finding.request.as_ref().unwrap().contains(words)).count();
    assert!(findings[0].found.starts_with("blended 256×256/32, f32 where "), "{}", findings[0].found);
    assert!(of_request("1536×1536 365%") >= 6);
    assert_eq!((of_request("may blend"), of_request("hopeless")), (0, 0));
}

#[test]
fn a_rule_of_thumb_passes_with_warnings() {
    let verdict = check(HEALTHY);
    assert!(verdict.passes(), "{verdict:#?}");
    let over = found(&verdict, Problem::OverLimit, Severity::Warning, Step::Golden);
    assert!(over[0].found.contains("without asking for its price"), "{}", over[0].found);
    assert_eq!(over[0].call, Some(Call::Decide));
    assert!(over[0].request.is_some());
}

#[test]
fn what_is_asked_and_answered_over_the_limit_is_an_error() {
    let verdict = check(Guest { decide: ESTIMATE, ..HEALTHY });
    let over = found(&verdict, Problem::OverLimit, Severity::Error, Step::Golden);
    assert!(over.iter().all(|finding| !finding.request.as_ref().unwrap().contains("hopeless")), "nothing fits there");
    only(&verdict, Problem::OverLimit);
}

#[test]
fn a_set_that_takes_too_much_in_all_is_cut_short_and_fails() {
    let busy = "(local.set $left (i32.const 4000000))
        (loop $more (br_if $more (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))";
    let verdict = check(Guest { decide: busy, ..HEALTHY });
    let told = found(&verdict, Problem::CutShort, Severity::Error, Step::Golden);
    assert!(told[0].found.starts_with("more than 1500000000 units of fuel for "), "{told:?}");
    assert!(verdict.golden.tried < verdict.golden.requests / 2 && !verdict.passes(), "{verdict:#?}");
}

#[test]
fn instances_that_are_slow_to_begin_are_cut_short_as_well() {
    // No call uses up much fuel, and each question has an instance of its own.
    let slow = "(local.set 0 (i32.const 8000000))
        (loop $more (br_if $more (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))";
    // A processor twice as fast, one as fast, and one half as fast.
    let tried = [FUEL_PS / 2, FUEL_PS, FUEL_PS * 2].map(|fuel_ps| {
        let verdict = check_at(fuel_ps, Guest { configure: slow, ..HEALTHY });
        let told = found(&verdict, Problem::CutShort, Severity::Error, Step::Golden);
        assert!(told[0].found.starts_with("more than 1.29 s of processor time for "), "{told:?}");
        assert!(verdict.golden.tried < verdict.golden.requests && !verdict.passes(), "{verdict:#?}");
        verdict.golden.tried
    });
    assert!(tried[0] > tried[1] && tried[1] > tried[2], "{tried:?}");
}

#[test]
fn a_trap_on_clips_is_told_of_clips() {
    let verdict = check(Guest { decide: "(if IS_CLIP (then (unreachable)))", ..HEALTHY });
    let traps = found(&verdict, Problem::Trap, Severity::Error, Step::Golden);
    let set = [Vae::golden(), Vae::draw(verdict.golden.seed)].concat();
    for finding in &traps {
        let golden = set.iter().find(|golden| Some(&golden.name) == finding.request.as_ref()).unwrap();
        assert!(golden.request.frames > 1, "{finding:?}");
    }
    assert!(verdict.golden.failing > 10 && verdict.golden.failing < verdict.golden.requests);
    let requests: BTreeSet<_> = traps.iter().map(|finding| &finding.request).collect();
    let all = verdict.golden.requests;
    assert_eq!(verdict.fails(), format!("fails {} of {all} golden requests (trap)", requests.len()));
}

#[test]
fn fuel_and_memory_are_told() {
    let once = check(Guest { decide: "(if HAS_16 (then (loop $for_ever (br $for_ever))))", ..HEALTHY });
    let is_exhausted =
        |finding: &&Finding| finding.severity == Severity::Error && finding.problem == Problem::OutOfFuel;
    assert_eq!(once.findings.iter().filter(is_exhausted).count(), 1, "{once:#?}");
    assert_eq!(once.golden.tried, once.golden.requests);
    let always = check(Guest { decide: FOR_EVER, recover: FOR_EVER, ..HEALTHY });
    assert!(always.findings.iter().any(|finding| is_exhausted(&finding)), "{always:#?}");
    found(&always, Problem::CutShort, Severity::Note, Step::Golden);
    assert!(always.fails().starts_with("fails 3 of the first 3 golden requests ("), "{}", always.fails());
    let memory = check(Guest { decide: "(loop $more (drop (memory.grow (i32.const 64))) (br $more))", ..HEALTHY });
    found(&memory, Problem::OutOfMemory, Severity::Error, Step::Golden);
    only(&memory, Problem::OutOfMemory);
}

#[test]
fn much_of_a_limit_is_a_warning() {
    let busy = check(Guest {
        decide: "(if HAS_16 (then
            (local.set $left (i32.const 6000000))
            (loop $more (br_if $more (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))))",
        ..HEALTHY
    });
    let near = found(&busy, Problem::NearLimit, Severity::Warning, Step::Golden);
    assert!(near.iter().any(|finding| finding.found.contains("fuel")), "{near:?}");
    assert!(busy.passes());
    let large = check(Guest { decide: "(drop (memory.grow (i32.const 190)))", ..HEALTHY });
    let near = found(&large, Problem::NearLimit, Severity::Warning, Step::Golden);
    assert!(near.iter().any(|finding| finding.found.contains("bytes of memory")), "{near:?}");
}

#[test]
fn nonsense_and_repetition_are_errors() {
    let nonsense = check(Guest { decide: "(i32.store (i32.const 1056) (i32.const 0))", ..HEALTHY });
    let findings = found(&nonsense, Problem::Nonsense, Severity::Error, Step::Golden);
    assert_eq!(findings[0].found, "a batch of nothing");
    let repeats = check(Guest { recover: "(return (call $decide (local.get $request)))", ..HEALTHY });
    let findings = found(&repeats, Problem::Repeats, Severity::Error, Step::Golden);
    assert!(findings.iter().all(|finding| finding.call == Some(Call::Recover)));
    only(&repeats, Problem::Repeats);
}

#[test]
fn recoveries_that_lead_nowhere_are_warnings() {
    // The same in the other memory order, first in f32 and then in bf16.
    let same_size = check(Guest { recover: CHANNELS_LAST, ..HEALTHY });
    found(&same_size, Problem::NotLeaner, Severity::Warning, Step::Golden);
    let narrow = check(Guest {
        recover: "(i32.store8 (i32.const 1062) (i32.const 1)) (i32.store8 (i32.const 1061) (i32.const 2))",
        ..HEALTHY
    });
    found(&narrow, Problem::NotWider, Severity::Warning, Step::Golden);
}

#[test]
fn what_the_host_changes_or_cannot_price_is_told() {
    let ahead = check(Guest { decide: "(i32.store (i32.const 1068) (i32.const 99))", ..HEALTHY });
    let findings = found(&ahead, Problem::Adjusted, Severity::Note, Step::Golden);
    assert!(findings.iter().any(|finding| finding.found.contains("prefetch 99 → 8")), "{findings:?}");
    let blended = check(Guest {
        decide: "(i32.store8 (i32.const 1044) (i32.const 2)) (i32.store (i32.const 1048) (i32.const 8)) (i32.store (i32.const 1052) (i32.const 2))",
        ..HEALTHY
    });
    let findings = found(&blended, Problem::Unpriced, Severity::Warning, Step::Golden);
    assert!(findings[0].found.contains("causal state"), "{findings:?}");
    let error = check(Guest { decide: "(return (i32.const 1200))", ..HEALTHY });
    let declined: Vec<_> = of(&error, Problem::Declines);
    assert!(declined.iter().any(|finding| finding.severity == Severity::Warning), "{declined:?}");
    assert!(declined.iter().any(|finding| finding.severity == Severity::Note), "where nothing fits");
    assert!(error.passes());
}

#[test]
fn state_that_leaks_between_decisions_is_an_error_and_at_work_there_is_none() {
    let answer = "COUNT
        (i32.store8 (i32.const 1062) (i32.and (global.get $count) (i32.const 1)))";
    let leaks = Guest { decide: answer, ..HEALTHY };
    let verdict = check(leaks);
    let findings = found(&verdict, Problem::Remembers, Severity::Error, Step::Golden);
    assert!(findings.len() > 20, "every other request: {}", findings.len());
    only(&verdict, Problem::Remembers);
    assert!(!verdict.passes());
    // Every answer is the same as the first.
    let (_place, path) = Place::with(&leaks);
    let mut policy = host().find(&path).unwrap().configure(&[]).unwrap();
    let golden = Vae::golden().remove(0);
    let mut ask = || policy.decide(&golden.question(), golden.costs());
    let first = ask();
    for _ in 0..10 {
        let again = ask();
        assert_eq!((&again.plan, again.fuel, &again.fallback), (&first.plan, first.fuel, &None));
    }
    let fuel = "COUNT
        (local.set $left (global.get $count))
        (loop $more (br_if $more (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))";
    // An allocator that has its memory already takes less: the answers are what counts.
    let slower = check(Guest { decide: fuel, ..HEALTHY });
    assert!(slower.passes() && of(&slower, Problem::Remembers).is_empty(), "{slower:#?}");
    // Learning may change answers.
    let learnt = check(Guest { learn: "(i32.store8 (i32.const 1062) (i32.const 1))", ..HEALTHY });
    assert!(learnt.passes() && of(&learnt, Problem::Remembers).is_empty(), "{learnt:#?}");
}

#[test]
fn what_is_learnt_outlives_the_instance_and_nothing_else_does() {
    // Answers in the other memory order after it has learnt three times, and traps if an instance
    // is asked twice.
    let guest = Guest {
        fields: "(global $asked (mut i32) (i32.const 0))",
        decide: "(if (global.get $asked) (then (unreachable)))
            (global.set $asked (i32.const 1))
            (i32.store8 (i32.const 1062) (i32.ge_u (global.get $count) (i32.const 3)))",
        learn: "COUNT",
        ..HEALTHY
    };
    let (_place, path) = Place::with(&guest);
    let mut policy = host().find(&path).unwrap().configure(&[]).unwrap();
    let golden = Vae::golden().remove(0);
    let outcome: tilewright_plan::Outcome = serde_json::from_value(serde_json::json!({
        "elapsed_ms": 1.0, "load_ms": 0.0, "peak_bytes": 1, "attempts": 1,
        "pool": {"hits": 0, "misses": 0, "held_bytes": 0, "fragmentation": 0.0},
    }))
    .unwrap();
    let mut layouts = Vec::new();
    for _ in 0..5 {
        for _ in 0..3 {
            let decision = policy.decide(&golden.question(), golden.costs());
            assert_eq!(decision.fallback, None);
            layouts.push(decision.plan.layout == tilewright_plan::Layout::ChannelsLast);
        }
        let plan = policy.decide(&golden.question(), golden.costs()).plan;
        let report = policy.learn(&golden.question(), &plan, &outcome);
        assert_eq!(report.failure, None);
    }
    assert_eq!(layouts, [[false; 9].as_slice(), &[true; 6]].concat());
}

#[test]
fn a_seed_draws_requests_that_can_be_asked_again() {
    // Traps only for clips of 37 frames, of which the table has none.
    let rare = Guest {
        decide: "(if (i32.eq (i32.load offset=92 (local.get $request)) (i32.const 37)) (then (unreachable)))",
        ..HEALTHY
    };
    let (_place, path) = Place::with(&rare);
    let seed = (0..200).find(|seed| Vae::draw(*seed).iter().any(|golden| golden.request.frames == 37)).unwrap();
    let check = |seed| tilewright_gate::check(&host(), &path, &[], Some(seed)).unwrap();
    let verdict = check(seed);
    only(&verdict, Problem::Trap);
    assert_eq!(verdict.golden.seed, seed);
    assert!(
        verdict
            .findings
            .iter()
            .filter(|finding| finding.severity == Severity::Error)
            .all(|finding| { finding.request.as_ref().is_some_and(|request| request.starts_with("drawn ")) })
    );
    let bare = |verdict: Verdict| (verdict.golden, verdict.findings);
    assert_eq!(bare(check(seed)), bare(verdict), "the same seed finds the same");
    let seeds: BTreeSet<u32> =
        (0..4).map(|_| tilewright_gate::check(&host(), &path, &[], None).unwrap().golden.seed).collect();
    assert!(seeds.len() > 1, "each check draws its own: {seeds:?}");
}

#[test]
fn what_ships_passes_whatever_is_drawn() {
    for name in shipped_names() {
        for seed in 0..8 {
            let verdict = tilewright_gate::check(&host(), name, &[], Some(seed)).unwrap();
            let errors: Vec<_> =
                verdict.findings.iter().filter(|finding| finding.severity == Severity::Error).collect();
            assert!(verdict.passes(), "{name}, seed {seed}: {errors:#?}");
        }
    }
}

#[test]
fn an_outcome_that_cannot_be_learnt_from_is_an_error() {
    let verdict = check(Guest { learn: "(unreachable)", ..HEALTHY });
    let findings = found(&verdict, Problem::Trap, Severity::Error, Step::Golden);
    assert!(findings.iter().all(|finding| finding.call == Some(Call::Learn)), "{findings:?}");
    let endless = check(Guest { learn: FOR_EVER, ..HEALTHY });
    assert!(endless.findings.iter().any(|finding| finding.problem == Problem::OutOfFuel), "{endless:#?}");
}

#[test]
fn earlier_steps_end_the_gate() {
    let stray = r#"(import "wasi:clocks/wall-clock@0.2.0" "now" (func (param i32)))"#;
    let cases = [
        (Guest { fields: "(memory i64 1)", ..HEALTHY }, Problem::Feature, Step::Features, "64-bit memory"),
        (
            Guest { fields: "(func $s (unreachable)) (start $s)", ..HEALTHY },
            Problem::Start,
            Step::Limits,
            "unreachable",
        ),
        (Guest { fields: "(table 30000 funcref)", ..HEALTHY }, Problem::Start, Step::Limits, "table elements"),
        (Guest { describe: "(unreachable)", ..HEALTHY }, Problem::Description, Step::Describe, "describe"),
        (Guest { configure: "(unreachable)", ..HEALTHY }, Problem::Settings, Step::Configure, "configure"),
        (Guest { configure: "(return (i32.const 1200))", ..HEALTHY }, Problem::Settings, Step::Configure, "guest"),
    ];
    for (guest, problem, step, words) in cases {
        let verdict = check(guest);
        let findings = found(&verdict, problem, Severity::Error, step);
        assert!(findings[0].found.contains(words), "{:?}", findings[0]);
        let state = |step: Step| verdict.steps.iter().find(|row| row.step == step).unwrap().state;
        assert_eq!(
            (state(Step::Parse), state(step), state(Step::Golden)),
            (State::Passed, State::Failed, State::NotReached)
        );
        assert!(verdict.fails().starts_with(&format!("fails at {step} (")), "{}", verdict.fails());
        assert!(verdict.digest.starts_with("sha256:"));
    }
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("p.wasm");
    let texts = [format!("(module {stray})"), "(module)".into()];
    for text in texts {
        fs::write(&path, wat::parse_str(&text).unwrap()).unwrap();
        let verdict = tilewright_gate::check(&host(), &path.display().to_string(), &[], None).unwrap();
        found(&verdict, Problem::World, Severity::Error, Step::World);
    }
}

#[test]
fn what_is_no_policy_has_no_verdict() {
    let host = host();
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("p.wasm");
    let file = path.display().to_string();
    assert!(matches!(tilewright_gate::check(&host, &file, &[], None), Err(PolicyError::Unreadable { .. })));
    assert!(matches!(tilewright_gate::check(&host, "adaptve", &[], None), Err(PolicyError::Unknown { .. })));
    fs::write(&path, b"# a policy").unwrap();
    assert!(matches!(tilewright_gate::check(&host, &file, &[], None), Err(PolicyError::NotWebAssembly { .. })));
    let mut torn = HEALTHY.build();
    torn.truncate(200);
    fs::write(&path, torn).unwrap();
    assert!(matches!(tilewright_gate::check(&host, &file, &[], None), Err(PolicyError::Invalid { .. })));
    let set = [("no-such".to_owned(), "1".to_owned())];
    assert!(matches!(tilewright_gate::check(&host, "fixed", &set, None), Err(PolicyError::UnknownSetting { .. })));
    let set = [("tile".to_owned(), "nine".to_owned())];
    assert!(
        matches!(tilewright_gate::check(&host, "fixed", &set, None), Err(PolicyError::Refused { .. })),
        "the user's setting, not the policy's fault"
    );
}

#[test]
fn a_file_is_admitted_with_a_warning_or_not_at_all() {
    let host = host();
    let (_place, path) = Place::with(&Guest { decide: "(unreachable)", ..HEALTHY });
    let admitted = admitted_by(&host, &path, &[], Admission::default()).unwrap();
    assert_eq!(admitted.policy.identity().name, "guest");
    let verdict = admitted.verdict.as_ref().unwrap();
    let GoldenSet { failing, requests, .. } = verdict.golden;
    assert_eq!(
        admitted.warning().unwrap(),
        format!("{path} fails {failing} of {requests} golden requests (trap): see 'tilewright policy check {path}'")
    );
    let strict = Admission { require_checked: true };
    let error = admitted_by(&host, &path, &[], strict).err().unwrap();
    // A module's name does not make it a shipped one.
    let named = host.load("fixed", &std::fs::read(&path).unwrap()).unwrap();
    assert!(matches!(admit(&host, &named, &[], strict), Err(PolicyError::NotAdmitted { .. })));
    assert!(admit(&host, &host.find("fixed").unwrap(), &[], strict).unwrap().verdict.is_none());
    assert!(matches!(&error, PolicyError::NotAdmitted { .. }), "{error}");
    assert!(error.to_string().contains("golden requests (trap)"), "{error}");
    let (_place, path) = Place::with(&HEALTHY);
    let admitted = admitted_by(&host, &path, &[], strict).unwrap();
    assert_eq!((admitted.warning(), admitted.verdict.unwrap().passes()), (None, true));
    let shipped = admitted_by(&host, "adaptive", &[], strict).unwrap();
    assert!(shipped.verdict.is_none() && shipped.warning().is_none());
}

#[test]
fn a_verdict_is_kept_with_the_compiled_code() {
    let (place, path) = Place::with(&Guest { decide: "(unreachable)", ..HEALTHY });
    let admit = || {
        let host = PolicyHost::new(Limits::default(), &CacheDir::At(place.cache())).unwrap();
        admitted_by(&host, &path, &[], Admission::default()).unwrap().verdict.unwrap()
    };
    let first = admit();
    let verdicts = || -> Vec<PathBuf> {
        let entries = fs::read_dir(place.cache()).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.extension().is_some_and(|ending| ending == "verdict")).collect()
    };
    assert_eq!(verdicts().len(), 1);
    // The time of the golden set is the same to the millisecond: the verdict was read, not made
    // again.
    assert_eq!(admit(), first);
    let limits = Limits { fuel: 40_000_000, ..Limits::default() };
    admitted_by(&PolicyHost::new(limits, &CacheDir::At(place.cache())).unwrap(), &path, &[], Admission::default())
        .unwrap();
    assert_eq!(verdicts().len(), 2, "other limits, another verdict");
    for verdict in verdicts() {
        fs::write(verdict, "damaged").unwrap();
    }
    // Damaged verdicts are not used: other requests were drawn.
    assert!(admit().fails().ends_with("golden requests (trap)"), "{}", first.fails());
}

#[test]
fn a_verdict_of_a_slow_day_is_not_kept_and_a_check_renews_it() {
    let late = format!("(if IS_CLIP (then {FOR_EVER}))");
    let (place, path) = Place::with(&Guest { decide: Box::leak(late.into_boxed_str()), ..HEALTHY });
    // So much fuel that the clock comes first.
    let limits = Limits { fuel: u64::MAX >> 8, wall_ms: 3, failures: 1, ..Limits::default() };
    let clock = OwnClock::passing(Duration::from_millis(1), Duration::from_micros(300));
    let host = PolicyHost::with_clock(limits, &CacheDir::At(place.cache()), clock).unwrap();
    let admitted = admitted_by(&host, &path, &[], Admission::default()).unwrap();
    only(admitted.verdict.as_ref().unwrap(), Problem::Timeout);
    let verdicts = || -> Vec<PathBuf> {
        let entries = fs::read_dir(place.cache()).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.extension().is_some_and(|ending| ending == "verdict")).collect()
    };
    assert_eq!(verdicts(), Vec::<PathBuf>::new());

    let (place, path) = Place::with(&HEALTHY);
    let host = PolicyHost::new(Limits::default(), &CacheDir::At(place.cache())).unwrap();
    let verdict = tilewright_gate::check(&host, &path, &[], None).unwrap();
    let kept = admitted_by(&host, &path, &[], Admission::default()).unwrap().verdict.unwrap();
    assert_eq!(kept, verdict, "what was checked is admitted by what was found");
}
