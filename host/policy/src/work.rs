//! The kinds of work, as far as the checks and the fallback plans differ.

mod denoise;
mod text;
mod vae;

use tilewright_plan::{Attempt, CostModel, Options, Question, Work};

use crate::check::{Nonsense, Rule};

/// Work whose plans the host checks, and makes itself where a policy has none.
pub(crate) trait Planned: Work {
    /// The ranges that a plan has to lie in.
    type Bounds: Clone + Send + Sync + 'static;

    /// Answers without a meaning: no range says what was meant.
    const NONSENSE: &'static [Nonsense<Self>];

    /// Every range, in the order of application: a later one may rely on the earlier ones.
    const RULES: &'static [Rule<Self>];

    /// The bounds of a question's plans.
    fn bounds(question: &Question<'_, Self>) -> Self::Bounds;

    /// The plans that can be carried out, as the bounds have them.
    fn offer(bounds: &Self::Bounds) -> &Self::Capabilities;

    /// The options of work under way that has to keep them.
    fn begun_options(_bounds: &Self::Bounds) -> Option<&Options> {
        None
    }

    /// The values that names in reasons stand for.
    fn values(bounds: &Self::Bounds) -> Vec<(&'static str, u32)>;

    /// The illegal parts of a plan that was checked; empty if the rules are right.
    fn breaches(plan: &Self::Plan, bounds: &Self::Bounds) -> Vec<&'static str>;

    /// True if a plan repeats a failed one: it differs in nothing that makes the failure less
    /// likely.
    fn repeats(plan: &Self::Plan, attempt: &Attempt<Self>) -> bool;

    /// True if an outcome of one request shows the price of the other.
    fn is_same_model_and_size(one: &Self::Request, other: &Self::Request) -> bool;

    /// The fallback plan of a request that has no usable answer: the first one, or the next one
    /// after its attempts failed.
    fn host_plan(question: &Question<'_, Self>, costs: &dyn CostModel<Self>) -> Self::Plan;

    /// The fallback plan for a request after the attempts of a policy are used up. `None` if no
    /// plan is left that has not failed.
    fn last_resort(question: &Question<'_, Self>, costs: &dyn CostModel<Self>) -> Option<Self::Plan>;

    /// The plan that replaces one whose output is not quite what was asked for, since the user does
    /// not allow that and another plan fits; and a note of each change.
    fn allowed(
        _plan: &Self::Plan,
        _question: &Question<'_, Self>,
        _costs: &dyn CostModel<Self>,
    ) -> Option<(Self::Plan, Vec<String>)> {
        None
    }
}

/// The invariants that don't hold.
fn unheld(invariants: &[(&'static str, bool)]) -> Vec<&'static str> {
    invariants.iter().filter(|(_, holds)| !holds).map(|(what, _)| *what).collect()
}
