//! Version 0.2.0 of the contract: `wit/policy.wit`.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tilewright_plan::{self as plan, Denoise, Each, FieldOf, Question, Stage, Text, Trial, Vae, Value, Work, of_kinds};
use wasmtime::{
    Result, Store,
    component::{
        self, Component, ComponentExportIndex, ComponentNamedList, HasSelf, InstancePre, Lift, Linker, Lower, TypedFunc,
    },
};

use self::{
    bindings::{
        exports::tilewright::policy::lifecycle,
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

/// A linked component, and the functions that it exports.
struct Exports {
    component: InstancePre<Guest>,
    functions: Arc<Functions>,
}

/// The functions of a component.
struct Functions {
    describe: Function,
    configure: Function,
    stages: Stages,
}

/// The functions for each kind of work, if the component has them.
type Stages = Each<Option<StageFunctions>, Option<StageFunctions>, Option<StageFunctions>>;

/// The functions for one kind of work.
struct StageFunctions {
    decide: Function,
    learn: Function,
}

/// An exported function.
struct Function {
    /// The interface and the function in it.
    name: [&'static str; 2],
    index: ComponentExportIndex,
    /// An instance's function was found to have the contract's types. They are those of the
    /// component, so that they are the same in every instance.
    is_checked: AtomicBool,
}

/// The function that takes settings.
type Configure<'a> = TypedFunc<(&'a [(&'a str, &'a lifecycle::Value)],), (std::result::Result<(), String>,)>;

/// An instance, and the functions that it exports.
struct Policy {
    instance: component::Instance,
    functions: Arc<Functions>,
}

fn link(mut linker: Linker<Guest>, component: &Component) -> Result<Box<dyn Linked>> {
    bindings::Policy::add_to_linker::<_, HasSelf<_>>(&mut linker, |guest| guest)?;
    let component = linker.instantiate_pre(component)?;
    let missing = |name: &str| wasmtime::Error::msg(format!("it does not export {name}"));
    let interface = |(name, _): Interface| component.component().get_export_index(None, name);
    let function = |(interface, _): Interface, within: &ComponentExportIndex, function: &'static str| {
        let index = component.component().get_export_index(Some(within), function);
        let index = index.ok_or_else(|| missing(&format!("{interface}#{function}")))?;
        Ok::<_, wasmtime::Error>(Function { name: [interface, function], index, is_checked: AtomicBool::new(false) })
    };
    let stage = |of: Interface| -> Result<Option<StageFunctions>> {
        let Some(within) = interface(of) else { return Ok(None) };
        Ok(Some(StageFunctions { decide: function(of, &within, "decide")?, learn: function(of, &within, "learn")? }))
    };
    let lifecycle = WORLD.lifecycle;
    let within = interface(lifecycle).ok_or_else(|| missing(lifecycle.0))?;
    let functions = Arc::new(Functions {
        describe: function(lifecycle, &within, "describe")?,
        configure: function(lifecycle, &within, "configure")?,
        stages: Each { vae: stage(VAE)?, denoise: stage(DENOISE)?, text: stage(TEXT)? },
    });
    Ok(Box::new(Exports { component, functions }))
}

impl Linked for Exports {
    fn instantiate(&self, store: &mut Store<Guest>) -> Result<Box<dyn Instance>> {
        let instance = self.component.instantiate(&mut *store)?;
        Ok(Box::new(Policy { instance, functions: self.functions.clone() }))
    }
}

impl Policy {
    /// The functions for a kind of work. The policy has them: it is not asked about a stage that it
    /// does not answer.
    fn stage<W: StageTypes>(&self) -> Result<&StageFunctions> {
        W::of(&self.functions.stages).as_ref().ok_or_else(unanswered)
    }

    /// A function of these types. They are compared when the policy is loaded: to do so field by
    /// field takes longer than a call.
    ///
    /// # Errors
    /// It is of other types.
    fn typed<P, R>(&self, store: &mut Store<Guest>, function: &Function) -> Result<TypedFunc<P, R>>
    where
        P: ComponentNamedList + Lower,
        R: ComponentNamedList + Lift,
    {
        let Function { name: [interface, name], index, is_checked } = function;
        let called = self.instance.get_func(&mut *store, *index).ok_or_else(unanswered)?;
        if is_checked.load(Ordering::Relaxed) {
            // SAFETY: this function was found to have these types in another instance of the same
            // component; the types of each function stand once in this file.
            #[allow(unsafe_code, reason = "the check of types takes longer than a call, and has been made")]
            return Ok(unsafe { TypedFunc::new_unchecked(called) });
        }
        let typed = called.typed(&*store).map_err(|error| {
            wasmtime::Error::msg(format!("{interface}#{name} is not of the contract's type: {error:#}"))
        })?;
        is_checked.store(true, Ordering::Relaxed);
        Ok(typed)
    }

    fn configure<'a>(&self, store: &mut Store<Guest>) -> Result<Configure<'a>> {
        self.typed(store, &self.functions.configure)
    }

    fn call_describe(&self, store: &mut Store<Guest>) -> Result<lifecycle::Description> {
        // Loading asks for the description alone, and finds settings of another type by this.
        self.configure(store)?;
        let describe: TypedFunc<(), (lifecycle::Description,)> = self.typed(store, &self.functions.describe)?;
        Ok(describe.call(store, ())?.0)
    }

    fn call_configure(
        &self,
        store: &mut Store<Guest>,
        settings: &[(&str, &lifecycle::Value)],
    ) -> Result<std::result::Result<(), String>> {
        Ok(self.configure(store)?.call(store, (settings,))?.0)
    }
}

/// The types of the functions for one kind of work.
trait StageTypes: FieldOf<Stages, Field = Option<StageFunctions>> {
    type Decide<'a>;
    type Learn<'a>;
}

lifecycle!(Policy, |policy| policy, |policy| of_kinds!(W => Some(policy as &dyn Asks<W>)), |said| said
    .stages
    .into_iter()
    .map(Into::into)
    .collect());

/// Writes the questions to a policy about one kind of work, and the policy's own to the host.
macro_rules! stage {
    ($work:ident, $of:ident, $host:ident, $request:ident) => {
        impl StageTypes for $work {
            type Decide<'a> = TypedFunc<
                (contract::$of::Request<'a>, &'a [contract::$of::Attempt<'a>]),
                (std::result::Result<contract::$of::Plan, String>,),
            >;
            type Learn<'a> =
                TypedFunc<(contract::$of::Request<'a>, &'a contract::$of::Plan, contract::$of::Outcome), ()>;
        }

        impl Asks<$work> for Policy {
            fn check_types(&self, store: &mut Store<Guest>) -> Result<()> {
                let Ok(StageFunctions { decide, learn }) = self.stage::<$work>() else { return Ok(()) };
                let _: <$work as StageTypes>::Decide<'_> = self.typed(store, decide)?;
                let _: <$work as StageTypes>::Learn<'_> = self.typed(store, learn)?;
                Ok(())
            }

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
                let decide: <$work as StageTypes>::Decide<'_> = self.typed(store, &self.stage::<$work>()?.decide)?;
                let (answer,) = decide.call(store, (request.lend(&request.options()), &failed))?;
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
                let (options, plan) = (request.options(), contract::$of::Plan::from(plan));
                let outcome = contract::$of::Outcome::from(outcome);
                let learn: <$work as StageTypes>::Learn<'_> = self.typed(store, &self.stage::<$work>()?.learn)?;
                learn.call(store, (request.lend(&options), &plan, outcome))
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
