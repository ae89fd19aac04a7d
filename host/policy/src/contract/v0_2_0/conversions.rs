//! Conversions between the types of contract 0.2.0 that all stages share and [`tilewright_plan`]'s.

use tilewright_plan as plan;

use super::bindings::{
    exports::tilewright::policy::lifecycle,
    tilewright::policy::{host, types, vae},
};
use crate::{
    contract::conversions::{alike, conversions},
    host::Description,
    settings::Setting,
};

conversions!(vae, types, std::convert::identity);
alike!(
    types::Dtype,
    plan::Dtype,
    F32 = F32,
    Tf32 = Tf32,
    Bf16 = Bf16,
    F16 = F16,
    F8E4m3 = F8E4m3,
    F8E5m2 = F8E5m2,
    I8 = I8,
    I4 = I4
);
alike!(types::Stage, plan::Stage, Text = Text, Denoise = Denoise, Decode = Decode, Encode = Encode);
alike!(types::WeightForm, plan::WeightForm, Packed = Packed, Expanded = Expanded);

impl From<plan::HostMemory> for types::HostMemory {
    fn from(host: plan::HostMemory) -> Self {
        let plan::HostMemory { total_bytes, free_bytes, transfer_rate } = host;
        Self { total_bytes, free_bytes, transfer_rate }
    }
}

/// An option that is offered: the parts that can't be lent as they are.
struct Offered<'a> {
    option: &'a plan::PlanOption,
    words: Vec<&'a str>,
    default: types::Value,
}

/// Facts of a question about any stage in the contract's form: the parts that can't be lent as they
/// are.
pub(super) struct Facts<'a> {
    device: &'a plan::Device,
    fast_dtypes: Vec<types::Dtype>,
    /// The types that the host can run.
    pub dtypes: Vec<types::Dtype>,
    stored_types: Vec<types::StoredType<'a>>,
    options: Vec<Offered<'a>>,
}

impl<'a> Facts<'a> {
    pub fn new<W: plan::Work>(
        question: &'a plan::Question<'a, W>,
        dtypes: &[plan::Dtype],
        stored: impl Iterator<Item = (&'a str, u64)>,
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
            device: question.device,
            fast_dtypes: named(&question.device.fast_dtypes),
            dtypes: named(dtypes),
            stored_types: stored.map(|(name, bytes)| types::StoredType { name, bytes }).collect(),
            options: offered.collect(),
        }
    }

    pub fn device(&self) -> types::Device<'_> {
        types::Device {
            backend: self.device.backend.into(),
            name: &self.device.name,
            arch: &self.device.arch,
            compute_units: self.device.compute_units,
            total_bytes: self.device.total_bytes,
            free_bytes: self.device.free_bytes,
            unified: self.device.unified,
            fast_dtypes: &self.fast_dtypes,
        }
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

impl From<lifecycle::Description> for Description {
    fn from(said: lifecycle::Description) -> Self {
        let setting =
            |lifecycle::Setting { name, summary, default }| Setting { name, summary, default: default.into() };
        Self {
            name: said.name,
            version: said.version,
            summary: said.summary,
            stages: said.stages.into_iter().map(Into::into).collect(),
            settings: said.settings.into_iter().map(setting).collect(),
        }
    }
}
