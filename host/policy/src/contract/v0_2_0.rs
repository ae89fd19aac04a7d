//! Version 0.2.0 of the contract: `wit/policy.wit`.

use std::sync::{Arc, OnceLock};

use tilewright_plan::{
    Cost, Denoise, DenoiseCost, DenoiseOutcome, DenoisePlan, LogLevel, Outcome, Plan, Question, Stage, Text, TextCost,
    TextOutcome, TextPlan, Vae, Value,
};
use wasmtime::{
    Result, Store,
    component::{self, Component, HasSelf, InstancePre, Linker},
};

use self::{
    bindings::{
        exports::tilewright::policy::{denoise_policy, lifecycle, text_policy, vae_policy},
        tilewright::policy as contract,
    },
    denoise::SampleRequest,
    text::EncoderRequest,
    vae::VaeRequest,
};
use super::{Answer, Instance, Interface, Linked, World, unanswered};
use crate::{guest::Guest, host::Description};

#[allow(missing_docs, reason = "generated from the contract's text, where the documentation stands")]
#[allow(dead_code, reason = "instances are made from the exports that are there, not from the world as a whole")]
mod bindings {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "policy",
        imports: { default: trappable },
        // Values that only go into the guest are lent: a request is lowered from its own place, and
        // nothing of it is copied first.
        ownership: Borrowing { duplicate_if_necessary: false },
    });
}
mod conversions;
mod denoise;
mod text;
mod vae;

const VAE: Interface = ("tilewright:policy/vae-policy@0.2.0", &["decide", "learn"]);
const DENOISE: Interface = ("tilewright:policy/denoise-policy@0.2.0", &["decide", "learn"]);
const TEXT: Interface = ("tilewright:policy/text-policy@0.2.0", &["decide", "learn"]);

pub(super) const WORLD: World = World {
    version: "0.2.0",
    wit: include_str!("../../../../wit/policy.wit"),
    offered: &[
        "tilewright:policy/host@0.2.0",
        "tilewright:policy/vae-host@0.2.0",
        "tilewright:policy/denoise-host@0.2.0",
        "tilewright:policy/text-host@0.2.0",
    ],
    types: &[
        "tilewright:policy/types@0.2.0",
        "tilewright:policy/vae@0.2.0",
        "tilewright:policy/denoise@0.2.0",
        "tilewright:policy/text@0.2.0",
    ],
    lifecycle: ("tilewright:policy/lifecycle@0.2.0", &["describe", "configure"]),
    stages: &[(VAE, &[Stage::Decode, Stage::Encode]), (DENOISE, &[Stage::Denoise]), (TEXT, &[Stage::Text])],
    link,
};

/// A linked component, and the exports that it has.
struct Exports {
    component: InstancePre<Guest>,
    lifecycle: lifecycle::GuestIndices,
    stages: Arc<Stages>,
}

/// The exports for stages.
struct Stages {
    vae: Option<vae_policy::GuestIndices>,
    denoise: Option<denoise_policy::GuestIndices>,
    text: Option<text_policy::GuestIndices>,
}

/// An instance's exports. Those for a stage are loaded when it is first asked about: a load
/// compares the types of the functions field by field, which takes longer than a call, and most
/// instances answer one question.
struct Policy {
    instance: component::Instance,
    exports: Arc<Stages>,
    lifecycle: lifecycle::Guest,
    vae: OnceLock<vae_policy::Guest>,
    denoise: OnceLock<denoise_policy::Guest>,
    text: OnceLock<text_policy::Guest>,
}

fn link(mut linker: Linker<Guest>, component: &Component) -> Result<Box<dyn Linked>> {
    bindings::Policy::add_to_linker::<_, HasSelf<_>>(&mut linker, |guest| guest)?;
    let [exports_vae, exports_denoise, exports_text] =
        [VAE, DENOISE, TEXT].map(|(interface, _)| component.get_export_index(None, interface).is_some());
    let component = linker.instantiate_pre(component)?;
    let lifecycle = lifecycle::GuestIndices::new(&component)?;
    let vae = if exports_vae { Some(vae_policy::GuestIndices::new(&component)?) } else { None };
    let denoise = if exports_denoise { Some(denoise_policy::GuestIndices::new(&component)?) } else { None };
    let text = if exports_text { Some(text_policy::GuestIndices::new(&component)?) } else { None };
    Ok(Box::new(Exports { component, lifecycle, stages: Arc::new(Stages { vae, denoise, text }) }))
}

impl Linked for Exports {
    fn instantiate(&self, store: &mut Store<Guest>) -> Result<Box<dyn Instance>> {
        let instance = self.component.instantiate(&mut *store)?;
        let lifecycle = self.lifecycle.load(&mut *store, &instance)?;
        let exports = self.stages.clone();
        let (vae, denoise, text) = Default::default();
        Ok(Box::new(Policy { instance, exports, lifecycle, vae, denoise, text }))
    }
}

/// The exports for a stage, loaded if they are not. The policy has them: it is not asked about a
/// stage that it does not answer.
fn loaded<'a, I, G>(guest: &'a OnceLock<G>, indices: &Option<I>, load: impl FnOnce(&I) -> Result<G>) -> Result<&'a G> {
    if let Some(guest) = guest.get() {
        return Ok(guest);
    }
    let loaded = load(indices.as_ref().ok_or_else(unanswered)?)?;
    Ok(guest.get_or_init(|| loaded))
}

impl Policy {
    /// The interface for decodes and encodes.
    fn vae(&self, store: &mut Store<Guest>) -> Result<&vae_policy::Guest> {
        loaded(&self.vae, &self.exports.vae, |indices| indices.load(store, &self.instance))
    }

    /// The interface for samples.
    fn denoise(&self, store: &mut Store<Guest>) -> Result<&denoise_policy::Guest> {
        loaded(&self.denoise, &self.exports.denoise, |indices| indices.load(store, &self.instance))
    }

    /// The interface for text encoders.
    fn text(&self, store: &mut Store<Guest>) -> Result<&text_policy::Guest> {
        loaded(&self.text, &self.exports.text, |indices| indices.load(store, &self.instance))
    }
}

impl Instance for Policy {
    fn describe(&self, store: &mut Store<Guest>) -> Result<Description> {
        self.lifecycle.call_describe(store).map(Into::into)
    }

    fn configure(
        &self,
        store: &mut Store<Guest>,
        settings: &[(String, Value)],
    ) -> Result<std::result::Result<(), String>> {
        let values: Vec<_> = settings.iter().map(|(_, value)| lifecycle::Value::from(value.clone())).collect();
        let settings: Vec<_> = settings.iter().zip(&values).map(|((name, _), value)| (&**name, value)).collect();
        self.lifecycle.call_configure(store, &settings)
    }

    fn decide(&self, store: &mut Store<Guest>, question: &Question<'_>) -> Result<Answer<Plan>> {
        let request = VaeRequest::new(question, question.under_way);
        let plans: Vec<contract::vae::Plan> = question.attempts.iter().map(|attempt| (&attempt.plan).into()).collect();
        let failed = question.attempts.iter().zip(&plans);
        let attempts: Vec<_> =
            failed.map(|(attempt, plan)| contract::vae::Attempt { plan, failure: attempt.failure.into() }).collect();
        let answer =
            self.vae(store)?.call_decide(store, request.lend(&request.hints(), &request.options()), &attempts)?;
        Ok(answer.map(Into::into))
    }

    fn learn(&self, store: &mut Store<Guest>, question: &Question<'_>, plan: &Plan, outcome: &Outcome) -> Result<()> {
        // The outcome is of the clip as a whole.
        let request = VaeRequest::new(question, None);
        self.vae(store)?.call_learn(
            store,
            request.lend(&request.hints(), &request.options()),
            &plan.into(),
            outcome.into(),
        )
    }

    fn decide_denoise(
        &self,
        store: &mut Store<Guest>,
        question: &Question<'_, Denoise>,
    ) -> Result<Answer<DenoisePlan>> {
        let request = SampleRequest::new(question, question.under_way);
        let plans: Vec<contract::denoise::Plan> =
            question.attempts.iter().map(|attempt| (&attempt.plan).into()).collect();
        let failed = question.attempts.iter().zip(&plans);
        let attempts: Vec<_> = failed
            .map(|(attempt, plan)| contract::denoise::Attempt { plan, failure: attempt.failure.into() })
            .collect();
        let answer = self.denoise(store)?.call_decide(store, request.lend(&request.options()), &attempts)?;
        Ok(answer.map(Into::into))
    }

    fn learn_denoise(
        &self,
        store: &mut Store<Guest>,
        question: &Question<'_, Denoise>,
        plan: &DenoisePlan,
        outcome: &DenoiseOutcome,
    ) -> Result<()> {
        let request = SampleRequest::new(question, None);
        self.denoise(store)?.call_learn(store, request.lend(&request.options()), &plan.into(), outcome.into())
    }

    fn decide_text(&self, store: &mut Store<Guest>, question: &Question<'_, Text>) -> Result<Answer<TextPlan>> {
        let request = EncoderRequest::new(question);
        let plans: Vec<contract::text::Plan> = question.attempts.iter().map(|attempt| (&attempt.plan).into()).collect();
        let failed = question.attempts.iter().zip(&plans);
        let attempts: Vec<_> =
            failed.map(|(attempt, plan)| contract::text::Attempt { plan, failure: attempt.failure.into() }).collect();
        let answer = self.text(store)?.call_decide(store, request.lend(&request.options()), &attempts)?;
        Ok(answer.map(Into::into))
    }

    fn learn_text(
        &self,
        store: &mut Store<Guest>,
        question: &Question<'_, Text>,
        plan: &TextPlan,
        outcome: &TextOutcome,
    ) -> Result<()> {
        let request = EncoderRequest::new(question);
        self.text(store)?.call_learn(store, request.lend(&request.options()), &plan.into(), outcome.into())
    }
}

impl contract::types::Host for Guest {}

impl contract::vae::Host for Guest {}

impl contract::denoise::Host for Guest {}

impl contract::text::Host for Guest {}

impl contract::host::Host for Guest {
    fn log(&mut self, level: contract::host::Level, message: String) -> Result<()> {
        Guest::log(self, LogLevel::from(level), message)
    }
}

impl contract::vae_host::Host for Guest {
    fn estimate(
        &mut self,
        plans: Vec<contract::vae::Plan>,
    ) -> Result<Vec<std::result::Result<contract::vae::Cost, String>>> {
        let costs = self.estimate_all::<Vae>(plans.into_iter().map(Into::into))?;
        Ok(costs.into_iter().map(|cost: std::result::Result<Cost, String>| cost.map(Into::into)).collect())
    }

    fn trials(&mut self, most: u32) -> Result<Vec<contract::vae::Trial>> {
        Ok(Guest::trials::<Vae>(self, most)?.into_iter().map(Into::into).collect())
    }
}

impl contract::denoise_host::Host for Guest {
    fn estimate(
        &mut self,
        plans: Vec<contract::denoise::Plan>,
    ) -> Result<Vec<std::result::Result<contract::denoise::Cost, String>>> {
        let costs = self.estimate_all::<Denoise>(plans.into_iter().map(Into::into))?;
        Ok(costs.into_iter().map(|cost: std::result::Result<DenoiseCost, String>| cost.map(Into::into)).collect())
    }

    fn trials(&mut self, most: u32) -> Result<Vec<contract::denoise::Trial>> {
        Ok(Guest::trials::<Denoise>(self, most)?.into_iter().map(Into::into).collect())
    }
}

impl contract::text_host::Host for Guest {
    fn estimate(
        &mut self,
        plans: Vec<contract::text::Plan>,
    ) -> Result<Vec<std::result::Result<contract::text::Cost, String>>> {
        let costs = self.estimate_all::<Text>(plans.into_iter().map(Into::into))?;
        Ok(costs.into_iter().map(|cost: std::result::Result<TextCost, String>| cost.map(Into::into)).collect())
    }

    fn trials(&mut self, most: u32) -> Result<Vec<contract::text::Trial>> {
        Ok(Guest::trials::<Text>(self, most)?.into_iter().map(Into::into).collect())
    }
}
