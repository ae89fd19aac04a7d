//! Version 0.2.0 of the contract: `wit/policy.wit`.

use tilewright_plan::{Cost, LogLevel, Outcome, Plan, Question, Stage, Value};
use wasmtime::{
    Result, Store,
    component::{Component, HasSelf, InstancePre, Linker},
};

use self::{
    bindings::{
        exports::tilewright::policy::{lifecycle, vae_policy},
        tilewright::policy as contract,
    },
    conversions::GuestRequest,
};
use super::{Instance, Interface, Linked, World};
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

const VAE: Interface = ("tilewright:policy/vae-policy@0.2.0", &["decide", "learn"]);

pub(super) const WORLD: World = World {
    version: "0.2.0",
    wit: include_str!("../../../../wit/policy.wit"),
    offered: &["tilewright:policy/host@0.2.0", "tilewright:policy/vae-host@0.2.0"],
    types: &["tilewright:policy/types@0.2.0", "tilewright:policy/vae@0.2.0"],
    lifecycle: ("tilewright:policy/lifecycle@0.2.0", &["describe", "configure"]),
    stages: &[(VAE, &[Stage::Decode, Stage::Encode])],
    link,
};

/// A linked component, and the exports that it has.
struct Exports {
    component: InstancePre<Guest>,
    lifecycle: lifecycle::GuestIndices,
    vae: Option<vae_policy::GuestIndices>,
}

/// An instance's exports.
struct Policy {
    lifecycle: lifecycle::Guest,
    vae: Option<vae_policy::Guest>,
}

fn link(mut linker: Linker<Guest>, component: &Component) -> Result<Box<dyn Linked>> {
    bindings::Policy::add_to_linker::<_, HasSelf<_>>(&mut linker, |guest| guest)?;
    let exports_vae = component.get_export_index(None, VAE.0).is_some();
    let component = linker.instantiate_pre(component)?;
    let lifecycle = lifecycle::GuestIndices::new(&component)?;
    let vae = if exports_vae { Some(vae_policy::GuestIndices::new(&component)?) } else { None };
    Ok(Box::new(Exports { component, lifecycle, vae }))
}

impl Linked for Exports {
    fn instantiate(&self, store: &mut Store<Guest>) -> Result<Box<dyn Instance>> {
        let instance = self.component.instantiate(&mut *store)?;
        let lifecycle = self.lifecycle.load(&mut *store, &instance)?;
        let vae = self.vae.as_ref().map(|indices| indices.load(&mut *store, &instance)).transpose()?;
        Ok(Box::new(Policy { lifecycle, vae }))
    }
}

impl Policy {
    /// The interface for decodes and encodes. It is there: a policy is not asked about a stage that
    /// it does not answer.
    fn vae(&self) -> Result<&vae_policy::Guest> {
        self.vae.as_ref().ok_or_else(|| wasmtime::Error::msg("it exports no interface for this stage"))
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

    fn decide(&self, store: &mut Store<Guest>, question: &Question<'_>) -> Result<std::result::Result<Plan, String>> {
        let request = GuestRequest::new(question, question.under_way);
        let plans: Vec<contract::vae::Plan> = question.attempts.iter().map(|attempt| (&attempt.plan).into()).collect();
        let failed = question.attempts.iter().zip(&plans);
        let attempts: Vec<_> =
            failed.map(|(attempt, plan)| contract::vae::Attempt { plan, failure: attempt.failure.into() }).collect();
        let answer = self.vae()?.call_decide(store, request.lend(&request.hints()), &attempts)?;
        Ok(answer.map(Into::into))
    }

    fn learn(&self, store: &mut Store<Guest>, question: &Question<'_>, plan: &Plan, outcome: &Outcome) -> Result<()> {
        // The outcome is of the clip as a whole.
        let request = GuestRequest::new(question, None);
        self.vae()?.call_learn(store, request.lend(&request.hints()), &plan.into(), outcome.into())
    }
}

impl contract::types::Host for Guest {}

impl contract::vae::Host for Guest {}

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
        let costs = self.estimate_all(plans.into_iter().map(Into::into))?;
        Ok(costs.into_iter().map(|cost: std::result::Result<Cost, String>| cost.map(Into::into)).collect())
    }

    fn trials(&mut self, most: u32) -> Result<Vec<contract::vae::Trial>> {
        Ok(Guest::trials(self, most)?.into_iter().map(Into::into).collect())
    }
}
