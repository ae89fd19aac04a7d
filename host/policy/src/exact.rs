//! Exact plans in the place of blended ones: blended tiles and chunks are the last resort unless
//! the user allows them, whichever policy answers.
//!
//! A user allows them in the request, or by a setting of the policy whose value is `blended`, as
//! `space=blended` of `fixed`. A default allows nothing: a policy would allow itself.

use tilewright_plan::{
    Attempt, Capabilities, CostModel, Failure, Plan, PolicyIdentity, Question, Request, Space, Tile, Time, Trial, Value,
};

use crate::{fallback::Fitting, settings::Setting};

/// Heights of exact bands to try, in output pixels, largest first.
const BANDS: [u32; 3] = [256, 128, 64];

/// Chunks below a latent frame, for when memory is short: frames that run through the largest
/// layers at once.
const SHORT: [u32; 2] = [2, 1];

/// After this many failures for memory no expectation is relied on.
const PATIENCE: usize = 3;

/// Trials that are looked at for what exact plans held.
const TRIALS: u32 = 64;

/// The value of a setting that allows what it names.
const BLENDED: &str = "blended";

/// The reason in the note of a change.
const BECAUSE: &str = "blended is the last resort unless the user allows it, and an exact plan fits";

/// True if a setting asks for blended parts by that name, and not by the policy's own default.
pub(crate) fn asks_for_blended(identity: &PolicyIdentity, declared: &[Setting]) -> bool {
    let is_blended = |value: &Value| matches!(value, Value::Text(text) if text == BLENDED);
    declared
        .iter()
        .any(|setting| !is_blended(&setting.default) && identity.settings.get(&setting.name).is_some_and(is_blended))
}

/// Divisions that give the whole output, most memory first.
pub(crate) fn divisions(request: &Request, capabilities: &Capabilities) -> Vec<(Space, Time)> {
    let heights = BANDS.into_iter().filter(|_| capabilities.exact);
    let bands: Vec<Space> =
        heights.map(|height| Space::Exact(Tile { height, width: request.width, overlap: 0 })).collect();
    let spaces = [&[Space::Whole], bands.as_slice()].concat();
    if request.frames <= 1 || !capabilities.carried {
        return spaces.into_iter().map(|space| (space, Time::Whole)).collect();
    }
    let latent_frame = request.model.temporal_scale.max(1);
    let mut divisions: Vec<(Space, Time)> =
        spaces.into_iter().map(|space| (space, Time::Carried { frames: latent_frame })).collect();
    // Bands save more than shorter chunks do: those only come with the smallest.
    let smallest = bands.last().copied().unwrap_or(Space::Whole);
    let short = SHORT.into_iter().filter(|frames| *frames < latent_frame);
    divisions.extend(short.map(|frames| (smallest, Time::Carried { frames })));
    divisions
}

/// The best exact plan in the types and memory order of a blended one that was checked, but that
/// the request does not allow; `None` if it is allowed, if none fits, or if a clip is under way in
/// it.
pub fn in_place_of(plan: &Plan, question: &Question<'_>, costs: &dyn CostModel) -> Option<Plan> {
    let &Question { request, capabilities, under_way, .. } = question;
    // A clip that began in tiles can only go on in them.
    let began_blended = under_way.is_some_and(|under_way| under_way.plan.is_blended());
    let is_for_memory = |attempt: &&Attempt| !matches!(attempt.failure, Failure::NonFinite { .. });
    let gave_out = question.attempts.iter().filter(is_for_memory).count() >= PATIENCE;
    if request.allows_blended || !plan.is_blended() || began_blended || gave_out {
        return None;
    }
    let fitting = Fitting::new(question, costs);
    let room = Room::new(plan, question, costs);
    let own_time = Some(plan.time).filter(|time| !matches!(time, Time::Blended { .. }));
    let with_own_time = divisions(request, capabilities).into_iter().filter_map(|(space, _)| Some((space, own_time?)));
    let mut fits: Vec<(f64, u64, Plan)> = Vec::new();
    for (space, time) in divisions(request, capabilities).into_iter().chain(with_own_time) {
        let exact = Plan { space, time, batch: 1, offload: false, ..plan.clone() };
        let Some(exact) = fitting.make_legal(exact).filter(|exact| !exact.is_blended()) else { continue };
        if fits.iter().all(|(.., known)| *known != exact)
            && fitting.is_new(&exact)
            && let Some((seconds, peak)) = room.fits(&exact)
        {
            fits.push((seconds, peak, exact));
        }
    }
    let quickest = fits.iter().map(|(seconds, ..)| *seconds).min_by(f64::total_cmp)?;
    fits.retain(|(seconds, ..)| request.objective.allows(*seconds, quickest));
    let cost = |(seconds, peak, _): &(f64, u64, Plan)| request.objective.cost(*seconds, *peak, request.memory_limit);
    fits.into_iter().min_by(|one, other| cost(one).total_cmp(&cost(other))).map(|(.., exact)| exact)
}

/// The notes of a blended answer that an exact plan replaces, a line for each part that changed.
pub(crate) fn notes(answer: &Plan, exact: &Plan) -> Vec<String> {
    let parts = [
        ("space", answer.space.to_string(), exact.space.to_string()),
        ("time", answer.time.to_string(), exact.time.to_string()),
        ("batch", answer.batch.to_string(), exact.batch.to_string()),
    ];
    let changed = parts.into_iter().filter(|(_, from, to)| from != to);
    changed.map(|(part, from, to)| format!("{part} {from} → {to}: {BECAUSE}")).collect()
}

/// The memory that exact plans may be expected to hold.
struct Room<'a> {
    costs: &'a dyn CostModel,
    most: u64,
    /// Measured over estimated memory of exact plans in these types, the highest; at least 1.
    ratio: f64,
}

impl<'a> Room<'a> {
    fn new(plan: &Plan, question: &Question<'_>, costs: &'a dyn CostModel) -> Self {
        let estimated = |plan: &Plan| costs.estimate_one(plan).ok().map(|cost| cost.peak_bytes);
        // The measured peak of a plan that failed was above the expected one, so the next one has
        // to be expected well below.
        let below = |attempt: &Attempt| match attempt.failure {
            Failure::OutOfMemory { .. } | Failure::OverLimit { .. } => {
                estimated(&attempt.plan).map(|peak| peak / 10 * 7)
            }
            Failure::NonFinite { .. } => None,
        };
        let most = question.attempts.iter().filter_map(below).fold(question.request.memory_limit, u64::min);
        let alike = |trial: &Trial| !trial.plan.is_blended() && trial.plan.precision == plan.precision;
        let ratios = costs.trials(TRIALS).into_iter().filter(alike).filter_map(|trial| {
            let estimated = estimated(&trial.plan).filter(|estimated| *estimated > 0)?;
            Some(trial.outcome.peak_bytes as f64 / estimated as f64)
        });
        let ratio = ratios.fold(1.0, f64::max);
        Self { costs, most, ratio }
    }

    /// Seconds and bytes that a plan is expected to take, if it fits.
    fn fits(&self, plan: &Plan) -> Option<(f64, u64)> {
        let cost = self.costs.estimate_one(plan).ok()?;
        let peak = (cost.peak_bytes as f64 * self.ratio) as u64;
        (peak <= self.most).then_some((cost.elapsed.as_secs_f64(), peak))
    }
}

#[cfg(test)]
mod tests;
