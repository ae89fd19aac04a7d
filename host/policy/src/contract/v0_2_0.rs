//! Version 0.2.0 of the contract: `wit/policy.wit`.

use std::sync::{Arc, OnceLock};

use tilewright_plan::{self as plan, Denoise, Question, Stage, Text, Trial, Vae, Value, Work, of_kinds};
use wasmtime::{
    Result, Store,
    component::{self, Component, HasSelf, InstancePre, Linker},
};

use self::{
    bindings::{
        exports::tilewright::policy::{denoise_policy, lifecycle, text_policy, vae_policy},
        tilewright::policy::{self as contract, types},
    },
    denoise::SampleRequest,
    text::EncoderRequest,
    vae::VaeRequest,
};
use super::{
    Answer, Asks, Instance, Interface, Linked, World,
    conversions::{alike, lifecycle},
    unanswered,
};
use crate::{guest::Guest, host::Description, settings::Setting};

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

alike!(types::Stage, Stage, Text, Denoise, Decode, Encode);

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

lifecycle!(Policy, |policy| policy.lifecycle, |policy| of_kinds!(W => Some(policy as &dyn Asks<W>)), |said| said
    .stages
    .into_iter()
    .map(Into::into)
    .collect());

/// Writes the questions to a policy about one kind of work, and the policy's own to the host.
macro_rules! stage {
    ($work:ident, $of:ident, $host:ident, $request:ident) => {
        impl Asks<$work> for Policy {
            fn decide(
                &self,
                store: &mut Store<Guest>,
                question: &Question<'_, $work>,
            ) -> Result<Answer<<$work as Work>::Plan>> {
                let request = $request::of(question, question.under_way);
                let attempts = question.attempts;
                let plans: Vec<contract::$of::Plan> = attempts.iter().map(|attempt| (&attempt.plan).into()).collect();
                let failed = attempts.iter().zip(&plans);
                let failed: Vec<_> = failed
                    .map(|(attempt, plan)| contract::$of::Attempt { plan, failure: attempt.failure.into() })
                    .collect();
                let guest = loaded(&self.$of, &self.exports.$of, |at| at.load(&mut *store, &self.instance))?;
                let answer = guest.call_decide(store, request.lend(&request.options()), &failed)?;
                Ok(answer.map(Into::into))
            }

            fn learn(
                &self,
                store: &mut Store<Guest>,
                question: &Question<'_, $work>,
                plan: &<$work as Work>::Plan,
                outcome: &<$work as Work>::Outcome,
            ) -> Result<()> {
                // The outcome is of the work as a whole.
                let request = $request::of(question, None);
                let guest = loaded(&self.$of, &self.exports.$of, |at| at.load(&mut *store, &self.instance))?;
                guest.call_learn(store, request.lend(&request.options()), &plan.into(), outcome.into())
            }
        }

        impl contract::$of::Host for Guest {}

        impl contract::$host::Host for Guest {
            fn estimate(
                &mut self,
                plans: Vec<contract::$of::Plan>,
            ) -> Result<Vec<std::result::Result<contract::$of::Cost, String>>> {
                let costs = self.estimate_all::<$work>(plans.into_iter().map(Into::into))?;
                Ok(costs.into_iter().map(|cost| cost.map(Into::into)).collect())
            }

            fn trials(&mut self, most: u32) -> Result<Vec<contract::$of::Trial>> {
                let told = |Trial { plan, outcome }: Trial<$work>| contract::$of::Trial {
                    plan: (&plan).into(),
                    outcome: (&outcome).into(),
                };
                Ok(Guest::trials::<$work>(self, most)?.into_iter().map(told).collect())
            }
        }
    };
}

stage!(Vae, vae, vae_host, VaeRequest);
stage!(Denoise, denoise, denoise_host, SampleRequest);
stage!(Text, text, text_host, EncoderRequest);
