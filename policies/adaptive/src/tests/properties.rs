//! Properties of every request, price and history.

use proptest::{collection::vec, option, prelude::*, sample::select};
use tilewright_sdk::{
    Attempt, Backend, Dtype, Failure, Kind, Layout, Objective, Plan, Policy, Precision, Tile, Time, Trial,
};

use super::{adaptive, prices::Case};

prop_compose! {
    pub(super) fn any_case()(
        backend in select(vec![Backend::Cpu, Backend::Cuda, Backend::Rocm, Backend::Metal]),
        height in 8u32..512,
        width in 8u32..512,
        batch in 1u32..6,
        latent_frames in prop_oneof![3 => Just(0u32), 2 => 1u32..24],
        per_chunk in 0.0..0.5f64,
        // From a thousandth of what whole needs to four times as much.
        power in -10.0..2.0f64,
        objective in select(vec![Objective::Fastest, Objective::Balanced, Objective::Leanest]),
        family in select(vec!["flux", "sdxl", "wan-2.1"]),
        exact in any::<bool>(),
        fast in select(vec![vec![], vec![Dtype::Bf16], vec![Dtype::F16], vec![Dtype::F16, Dtype::Bf16], vec![Dtype::Bf16, Dtype::Tf32]]),
        offered in select(vec!["f32", "f32,bf16", "f32,bf16,f16", "f32,tf32,bf16,f16"]),
        half in 0.3..1.5f64,
        blended in any::<bool>(),
    ) -> Case {
        let (height, width) = (height * 8, width * 8);
        let (frames, begun) = (1 + 4 * latent_frames, None);
        let offload = (backend != Backend::Cpu).then_some(per_chunk / 10.0);
        Case { frames, begun, per_chunk, offload, backend, height, width, batch, limit: power.exp2(), objective, family, exact, fast, offered, half, blended }
    }
}

prop_compose! {
    fn any_plan()(
        kind in 0..3, side in 8u32..100, layout in any::<bool>(), batch in 1u32..5, precision in select(&Precision::WORDS[..]),
        time in select(vec![Time::Whole, Time::Carried(1), Time::Carried(4), Time::Carried(16)]),
    ) -> Plan {
        let side = 8 * side;
        let layout = if layout { Layout::ChannelsLast } else { Layout::ChannelsFirst };
        let plan = Plan { batch, layout, time, ..Plan::whole(precision.1) };
        match kind {
            0 => plan,
            1 => Plan { space: tilewright_sdk::Space::Exact(Tile { height: side, width: 1 << 20, overlap: 0 }), ..plan },
            _ => Plan { space: tilewright_sdk::Space::Blended(Tile::square(side, side / 8)), ..plan },
        }
    }
}

/// Plans as this host would have run them: pictures whole in time, a clip's samples one by one.
fn ran(case: &Case, measured: Vec<(Plan, f64, f64)>) -> Vec<(Plan, f64, f64)> {
    let mut measured = measured;
    for (plan, ..) in &mut measured {
        match case.frames {
            1 => plan.time = Time::Whole,
            _ => plan.batch = 1,
        }
    }
    measured
}

fn history(case: &Case, measured: &[(Plan, f64, f64)]) -> Vec<Trial> {
    measured.iter().map(|(plan, time, memory)| case.trial(plan, *time, *memory)).collect()
}

fn any_history() -> impl Strategy<Value = Vec<(Plan, f64, f64)>> {
    vec((any_plan(), 0.1..8.0f64, 0.3..5.0f64), 0..20)
}

/// The least that a plan holds: whole, the smallest band or tile, in every type that the policy may
/// use.
fn least(case: &Case) -> u64 {
    let is_kl = case.family != "wan-2.1";
    let mut least = u64::MAX;
    for (word, precision) in Precision::WORDS {
        let is_offered = case.request().offers(precision.dtype());
        if !is_offered || (is_kl && word == "f16") {
            continue;
        }
        for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
            let time = if case.frames > 1 { Time::Carried(1) } else { Time::Whole };
            let whole = Plan { layout, time, ..Plan::whole(precision) };
            let request = case.request();
            let tile = Tile { height: 64.min(case.height), width: 64.min(case.width), overlap: 8 };
            let tiles = Plan { time: Time::Whole, ..whole.clone() }.blended(&request, tile);
            let mut plans = vec![whole.clone(), tiles];
            if case.exact {
                plans.push(whole.exact(&request, 64));
            }
            least = plans.iter().map(|plan| case.price(plan).held()).fold(least, u64::min);
        }
    }
    least
}

/// The most that was measured over what was expected of plans of this kind; the margin if
/// nothing was.
fn memory_factor(plan: &Plan, measured: &[(Plan, f64, f64)], margin: f64) -> f64 {
    let alike = measured.iter().filter(|(known, ..)| {
        let is_carried = |plan: &Plan| matches!(plan.time, Time::Carried(_));
        known.kind() == plan.kind()
            && is_carried(known) == is_carried(plan)
            && known.precision == plan.precision
            && known.layout == plan.layout
    });
    alike.map(|(.., memory)| memory.clamp(0.5, 4.0)).reduce(f64::max).unwrap_or(margin)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn an_answer_fits_wherever_one_does(case in any_case()) {
        let request = case.request();
        let count = case.install(Vec::new());
        match adaptive().decide(&request, &[]) {
            Ok(plan) => {
                let margin = if case.may_be_tight(&plan) { 1.0 } else { 1.03 };
                prop_assert!(case.price(&plan).held() as f64 * margin <= request.limit_bytes as f64, "{plan:?}");
            }
            Err(_) => prop_assert!(least(&case) as f64 * 1.03 > request.limit_bytes as f64),
        }
        prop_assert!(count.get() <= 64, "{} estimates", count.get());
    }

    #[test]
    fn an_answer_fits_by_what_was_measured(case in any_case(), measured in any_history()) {
        let measured = ran(&case, measured);
        let request = case.request();
        let count = case.install(history(&case, &measured));
        // Only the six newest plans are looked up.
        let mut newest: Vec<&Plan> = Vec::new();
        for (plan, ..) in measured.iter().take(16) {
            if newest.len() < 6 && !newest.iter().any(|known| known.is_like(plan)) {
                newest.push(plan);
            }
        }
        let looked_up: Vec<_> = (measured.iter().take(16))
            .filter(|(plan, ..)| newest.iter().any(|known| known.is_like(plan))).cloned().collect();
        if let Ok(plan) = adaptive().decide(&request, &[]) {
            let unmeasured = if case.may_be_tight(&plan) { 1.0 } else { 1.03 };
            let peak = case.price(&plan).held() as f64 * memory_factor(&plan, &looked_up, unmeasured);
            // Sizes are whole bytes, so a ratio taken from them is off by a hair.
            prop_assert!(peak <= request.limit_bytes as f64 * 1.0001, "{plan:?}");
        }
        prop_assert!(count.get() <= 64, "{} estimates", count.get());
    }

    #[test]
    fn a_fresh_instance_answers_the_same(case in any_case(), measured in any_history(), other in any_case()) {
        let measured = ran(&case, measured);
        let request = case.request();
        case.install(history(&case, &measured));
        let first = adaptive().decide(&request, &[]);
        let mut warm = adaptive();
        prop_assert_eq!(&warm.decide(&request, &[]), &first);
        // Other decisions leave nothing behind.
        let _ = warm.decide(&other.request(), &[]);
        prop_assert_eq!(&warm.decide(&request, &[]), &first);
        if let Ok(plan) = first {
            let attempts = [Attempt { plan, failure: Failure::OutOfMemory(1) }];
            prop_assert_eq!(warm.decide(&request, &attempts), adaptive().decide(&request, &attempts));
        }
    }

    #[test]
    fn recovery_shrinks_and_ends_in_a_picture(case in any_case(), there_is in 0.0..1.0f64) {
        let mut request = case.request();
        let count = case.install(Vec::new());
        let least = least(&case);
        request.limit_bytes = request.limit_bytes.max((least as f64 * 1.03).ceil() as u64);
        // Much less memory than promised, but enough for some plan with its margin.
        let real = least as f64 + there_is * (request.limit_bytes as f64 - least as f64);
        let mut policy = adaptive();
        let mut plan = policy.decide(&request, &[]).unwrap();
        let mut attempts: Vec<Attempt> = Vec::new();
        while case.price(&plan).held() as f64 > real {
            let held = case.price(&plan).held();
            attempts.push(Attempt { plan, failure: Failure::OutOfMemory(1 << 20) });
            prop_assert!(attempts.len() <= 3, "the fourth attempt failed too: {attempts:?}");
            count.set(0);
            let next = policy.decide(&request, &attempts);
            // The only plan left may be a failed one in the other memory order, which the host
            // takes for the same.
            prop_assert!(next.is_ok() || real < 1.3 * least as f64, "{next:?} with room");
            let Ok(next) = next else { return Ok(()) };
            plan = next;
            prop_assert!(count.get() <= 64, "{} estimates", count.get());
            prop_assert!(!attempts.iter().any(|attempt| plan.repeats(attempt)));
            let peak = case.price(&plan).held();
            prop_assert!(peak < held);
            // More than 70 % only if there is nothing below.
            prop_assert!(peak as f64 <= 0.7 * held as f64 || least as f64 > 0.7 * held as f64, "{peak} of {held}, least {least}");
            let exact_fits = (case.exact && case.height > 64 && case.frames == 1).then(|| {
                let bands = Plan { reason: String::new(), ..plan.clone() }.exact(&request, 64);
                let bands = Plan { batch: 1, ..bands };
                let tried = attempts.iter().any(|attempt| bands.repeats(attempt));
                !tried && case.price(&bands).held() as f64 <= 0.7 * held as f64
            });
            if attempts.len() < 3 && exact_fits == Some(true) {
                prop_assert!(plan.kind() != Kind::Blended, "{plan:?}");
            }
        }
    }

    #[test]
    fn a_clip_under_way_goes_on(
        case in any_case(), plan in any_plan(), non_finite in any::<bool>(), more in vec(any::<bool>(), 0..3),
    ) {
        let begun = Some(Plan { batch: 1, ..plan.clone() });
        let case = Case { frames: case.frames.max(5), begun, ..case };
        let request = case.request();
        let count = case.install(Vec::new());
        let failure = |non_finite| if non_finite { Failure::NonFinite(1) } else { Failure::OutOfMemory(1) };
        let mut attempts = vec![Attempt { plan: Plan { batch: 1, ..plan.clone() }, failure: failure(non_finite) }];
        for non_finite in more.into_iter().map(Some).chain([None]) {
            count.set(0);
            let Ok(next) = adaptive().decide(&request, &attempts) else { break };
            prop_assert!(count.get() <= 64, "{} estimates", count.get());
            let is_tiled = |plan: &Plan| plan.kind() == Kind::Blended;
            prop_assert_eq!(is_tiled(&plan), is_tiled(&next));
            prop_assert!(!is_tiled(&plan) || next.space == plan.space);
            prop_assert_eq!(plan.time == Time::Whole, next.time == Time::Whole);
            prop_assert!(crate::width(next.precision) >= crate::width(plan.precision));
            prop_assert_eq!(next.layout, plan.layout);
            prop_assert!(!attempts.iter().any(|attempt| next.repeats(attempt)));
            match non_finite {
                Some(non_finite) => attempts.push(Attempt { plan: next, failure: failure(non_finite) }),
                None => break,
            }
        }
    }

    #[test]
    fn recovery_never_repeats(case in any_case(), failures in vec(option::of(0.5..2.0f64), 1..8), measured in any_history()) {
        let measured = ran(&case, measured);
        let request = case.request();
        let count = case.install(history(&case, &measured));
        let mut policy = adaptive();
        let Ok(mut plan) = policy.decide(&request, &[]) else { return Ok(()) };
        let mut attempts: Vec<Attempt> = Vec::new();
        for failure in failures {
            let failure = match failure {
                None => Failure::NonFinite(1),
                Some(over) => Failure::OverLimit((request.limit_bytes as f64 * over) as u64),
            };
            attempts.push(Attempt { plan: plan.clone(), failure });
            count.set(0);
            let Ok(next) = policy.decide(&request, &attempts) else { break };
            prop_assert!(count.get() <= 64, "{} estimates", count.get());
            prop_assert!(!attempts.iter().any(|attempt| next.repeats(attempt)), "{next:?} again");
            if matches!(failure, Failure::NonFinite(_)) {
                prop_assert!(crate::width(next.precision) > crate::width(plan.precision));
            }
            plan = next;
        }
    }
}
