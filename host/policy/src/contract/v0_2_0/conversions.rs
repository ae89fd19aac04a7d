//! Conversions between the types of contract 0.2.0 that all stages share and [`tilewright_plan`]'s.

use tilewright_plan as plan;

use super::bindings::{
    exports::tilewright::policy::lifecycle,
    tilewright::policy::{host, types, vae},
};
use crate::contract::conversions::{alike, conversions};

conversions!(vae, types);
alike!(types::Dtype, Dtype, F32, Tf32, Bf16, F16, F8E4m3, F8E5m2, I8, I4);
alike!(types::WeightForm, WeightForm, Packed, Expanded);

/// Writes both directions of a conversion between plans of the contract and of [`tilewright_plan`],
/// which is in scope as `plan`: their parts have the same names, but for those that are given as a
/// pair.
macro_rules! plans {
    ($module:ident, $plan:ident, $($part:ident),+ $(; $theirs:ident = $ours:ident)?) => {
        impl From<$module::Plan> for plan::$plan {
            fn from(answer: $module::Plan) -> Self {
                Self {
                    $($part: answer.$part.into(),)+
                    $($ours: answer.$theirs.into(),)?
                    options: options(answer.options),
                    reason: answer.reason,
                }
            }
        }

        impl From<&plan::$plan> for $module::Plan {
            fn from(plan: &plan::$plan) -> Self {
                Self {
                    $($part: plan.$part.into(),)+
                    $($theirs: plan.$ours.into(),)?
                    options: lower_options(&plan.options),
                    reason: plan.reason.clone(),
                }
            }
        }
    };
}

pub(super) use plans;

impl From<plan::HostMemory> for types::HostMemory {
    fn from(host: plan::HostMemory) -> Self {
        let plan::HostMemory { total_bytes, free_bytes, transfer_rate } = host;
        Self { total_bytes, free_bytes, transfer_rate }
    }
}

impl<'a> From<&'a plan::StoredType> for types::StoredType<'a> {
    fn from(stored: &'a plan::StoredType) -> Self {
        Self { name: &stored.name, bytes: stored.bytes }
    }
}

/// An option that is offered: the parts that can't be lent as they are.
struct Offered<'a> {
    option: &'a plan::PlanOption,
    words: Vec<&'a str>,
    default: types::Value,
}

/// A question in the contract's form: the parts that can't be lent as they are. `P` is a plan
/// there, and `X` is what one kind of work has beside the others.
pub(super) struct Facts<'a, W: plan::Work, P, X = ()> {
    pub question: &'a plan::Question<'a, W>,
    fast_dtypes: Vec<types::Dtype>,
    /// The types that the host can run.
    pub dtypes: Vec<types::Dtype>,
    stored_types: Vec<types::StoredType<'a>>,
    options: Vec<Offered<'a>>,
    /// Facts that have no field: the request's own, and the device's.
    pub hints: Vec<types::Hint<'a>>,
    /// The part that is done of work under way, and its plan.
    pub under_way: Option<(u32, P)>,
    pub own: X,
}

impl<'a, W: plan::Work, P: for<'p> From<&'p W::Plan>, X> Facts<'a, W, P, X> {
    pub fn new(
        question: &'a plan::Question<'a, W>,
        under_way: Option<&plan::UnderWay<W>>,
        dtypes: &[plan::Dtype],
        stored: impl Iterator<Item = types::StoredType<'a>>,
        hints: impl Iterator<Item = &'a plan::Hint>,
        own: X,
    ) -> Self {
        let named = |dtypes: &[plan::Dtype]| dtypes.iter().copied().map(Into::into).collect();
        let offered = W::offered_options(question.capabilities).iter().map(|option| Offered {
            option,
            words: match &option.values {
                plan::Values::Text { words } => words.iter().map(String::as_str).collect(),
                _ => Vec::new(),
            },
            default: option.default.clone().into(),
        });
        Self {
            question,
            fast_dtypes: named(&question.device.fast_dtypes),
            dtypes: named(dtypes),
            stored_types: stored.collect(),
            options: offered.collect(),
            hints: hints
                .chain(&question.device.hints)
                .map(|plan::Hint { name, value }| types::Hint { name, value })
                .collect(),
            under_way: under_way.map(|under_way| (under_way.done, (&under_way.plan).into())),
            own,
        }
    }

    pub fn device(&self) -> types::Device<'_> {
        lend_device(self.question.device, &self.fast_dtypes)
    }

    pub fn weights(&self, stored_bytes: u64) -> types::Weights<'_> {
        types::Weights { stored_bytes, stored_types: &self.stored_types }
    }

    pub fn options(&self) -> Vec<types::PlanOption<'_>> {
        let options = self.options.iter();
        options
            .map(|offered| types::PlanOption {
                name: &offered.option.name,
                summary: &offered.option.summary,
                values: match offered.option.values {
                    plan::Values::Flag => types::Values::Flag,
                    plan::Values::Integer { least, most } => types::Values::Integer((least, most)),
                    plan::Values::Number { least, most } => types::Values::Number((least, most)),
                    plan::Values::Text { .. } => types::Values::Text(&offered.words),
                },
                default: &offered.default,
                lossy: offered.option.lossy,
            })
            .collect()
    }
}

/// The most characters of a name or a text: no option has a longer one.
const MOST_CHARS: usize = 256;

/// A plan's options, as the policy named them: one more than is allowed says that there are too
/// many.
pub(super) fn options(named: Vec<(String, types::Value)>) -> plan::Options {
    let named = named.into_iter().take(plan::MOST_OPTIONS + 1);
    let cut = |text: String| if text.len() > MOST_CHARS { text.chars().take(MOST_CHARS).collect() } else { text };
    let value = |value| match value {
        types::Value::Text(text) => plan::Value::Text(cut(text)),
        value => value.into(),
    };
    plan::Options::new(named.map(|(name, given)| (cut(name), value(given))).collect())
}

/// A plan's options for a policy.
pub(super) fn lower_options(options: &plan::Options) -> Vec<(String, types::Value)> {
    options.iter().map(|(name, value)| (name.to_owned(), value.clone().into())).collect()
}
