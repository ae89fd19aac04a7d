//! Version 0.1.0 of the contract: `wit/released/0.1.0/policy.wit`.

use tilewright_plan::{Each, Outcome, Plan, Question, Stage, Trial, Vae, Value};
use wasmtime::{
    Result, Store,
    component::{Component, HasSelf, Linker},
};

use self::{
    bindings::{PolicyPre, exports::tilewright::policy::lifecycle, tilewright::policy as contract},
    conversions::GuestRequest,
};
use super::{Answer, Asks, Instance, Linked, World, conversions::lifecycle};
use crate::{guest::Guest, host::Description, settings::Setting};

#[allow(missing_docs, reason = "generated from the released text, where the documentation stands")]
mod bindings {
    wasmtime::component::bindgen!({
        path: "../../wit/released/0.1.0",
        world: "policy",
        imports: { default: trappable },
        // Values that only go into the guest are lent: a request is lowered from its own place, and
        // nothing of it is copied first.
        ownership: Borrowing { duplicate_if_necessary: false },
    });
}
mod conversions;

pub(super) const WORLD: World = World {
    version: "0.1.0",
    wit: include_str!("../../../../wit/released/0.1.0/policy.wit"),
    offered: &["tilewright:policy/host@0.1.0", "tilewright:policy/decoding-host@0.1.0"],
    types: &["tilewright:policy/types@0.1.0", "tilewright:policy/decoding@0.1.0"],
    lifecycle: ("tilewright:policy/lifecycle@0.1.0", &["describe", "configure"]),
    // The decisions of this version are of both stages: a hint names the stage.
    stages: &[(
        ("tilewright:policy/decoding-policy@0.1.0", &["decide", "recover", "learn"]),
        &[Stage::Decode, Stage::Encode],
    )],
    link,
};

fn link(mut linker: Linker<Guest>, component: &Component) -> Result<Box<dyn Linked>> {
    bindings::Policy::add_to_linker::<_, HasSelf<_>>(&mut linker, |guest| guest)?;
    Ok(Box::new(PolicyPre::new(linker.instantiate_pre(component)?)?))
}

impl Linked for PolicyPre<Guest> {
    fn instantiate(&self, store: &mut Store<Guest>) -> Result<Box<dyn Instance>> {
        Ok(Box::new(PolicyPre::instantiate(self, store)?))
    }
}

// Descriptions of this version name no stages.
lifecycle!(
    bindings::Policy,
    |policy| policy.tilewright_policy_lifecycle(),
    |policy| Each { vae: Some(policy), ..Each::default() },
    |said| vec![Stage::Decode, Stage::Encode]
);

impl Asks<Vae> for bindings::Policy {
    fn decide(&self, store: &mut Store<Guest>, question: &Question<'_>) -> Result<Answer<Plan>> {
        let (told, policy) = (GuestRequest::decide(question), self.tilewright_policy_decoding_policy());
        let (hints, attempts) = (told.hints(), question.attempts);
        let plans: Vec<_> = attempts.iter().map(|attempt| contract::decoding::Plan::from(&attempt.plan)).collect();
        let failed = attempts.iter().zip(&plans);
        let failed: Vec<_> = failed
            .map(|(attempt, plan)| contract::decoding::Attempt { plan, failure: attempt.failure.into() })
            .collect();
        let answer = match failed.is_empty() {
            true => policy.call_decide(store, told.request(&hints))?,
            false => policy.call_recover(store, told.request(&hints), &failed)?,
        };
        Ok(answer.map(Into::into))
    }

    fn learn(&self, store: &mut Store<Guest>, question: &Question<'_>, plan: &Plan, outcome: &Outcome) -> Result<()> {
        let told = GuestRequest::learn(question);
        let policy = self.tilewright_policy_decoding_policy();
        policy.call_learn(store, told.request(&told.hints()), &plan.into(), outcome.into())
    }
}

impl contract::decoding::Host for Guest {}

impl contract::decoding_host::Host for Guest {
    fn estimate(
        &mut self,
        plan: contract::decoding::Plan,
    ) -> Result<std::result::Result<contract::decoding::Cost, String>> {
        Ok(Guest::estimate::<Vae>(self, plan.into())?.map(Into::into))
    }

    fn trials(&mut self, most: u32) -> Result<Vec<contract::decoding::Trial>> {
        let told = |Trial { plan, outcome }: Trial| contract::decoding::Trial {
            plan: (&plan).into(),
            outcome: (&outcome).into(),
        };
        Ok(Guest::trials::<Vae>(self, most)?.into_iter().map(told).collect())
    }
}
