//! The versions of the contract that this host speaks: one adapter each, in a table that loading a
//! policy consults once. All later code talks to an [`Instance`] in [`tilewright_plan`]'s types and
//! never asks for the version again.
//!
//! A new version is a folder in `wit/released/`, a module here and a row in [`WORLDS`]. A new stage
//! is a pair of interfaces in the newest version: a row in its [`World::stages`].

use tilewright_plan::{FieldOf, Question, Stage, Value, Work, each, of_each};
use wasmtime::{
    Engine, Result, Store,
    component::{Component, Linker},
};

use crate::{
    PolicyError,
    guest::Guest,
    host::Description,
    load::ModuleKind,
    wasi::{self, Wasi},
    work::Planned,
};

mod conversions;
mod v0_1_0;
mod v0_2_0;

/// The package of every version's interfaces, before their own name.
const PACKAGE: &str = "tilewright:policy/";

/// The most versions of a policy's that an error names.
const MENTIONED: usize = 4;

/// A version of the contract: its names, its text, and the way to its adapter.
#[derive(Debug)]
pub(crate) struct World {
    /// The number behind the `@` of its interfaces.
    pub version: &'static str,
    /// The text, with a world named `policy`.
    pub wit: &'static str,
    /// The interfaces that a policy may import and call.
    pub offered: &'static [&'static str],
    /// Interfaces that hold nothing but types: importing them gives a guest nothing to call.
    pub types: &'static [&'static str],
    /// The interface that every policy has to export.
    pub lifecycle: Interface,
    /// The interfaces of stages, of which a policy has to export at least one, and the stages that
    /// each answers.
    pub stages: &'static [(Interface, &'static [Stage])],
    /// Links a component with everything that the world offers.
    pub link: Link,
}

/// An exported interface: its name, and the functions that a core module has to export for it,
/// behind a `#`.
pub(crate) type Interface = (&'static str, &'static [&'static str]);

/// Links a component with everything that a world offers, which is added to an empty linker.
pub(crate) type Link = fn(Linker<Guest>, &Component) -> Result<Box<dyn Linked>>;

/// Every version that is known, the oldest first.
pub(crate) static WORLDS: [&World; 2] = [&v0_1_0::WORLD, &v0_2_0::WORLD];

/// A component with everything that it imports: instances are made from it.
pub(crate) trait Linked: Send + Sync {
    /// Makes an instance; the module's start function runs.
    fn instantiate(&self, store: &mut Store<Guest>) -> Result<Box<dyn Instance>>;
}

/// The answer of a policy: a plan, or the reason why it has none.
pub(crate) type Answer<P> = std::result::Result<P, String>;

/// An instance of a policy, whatever its version. Its answers are neither checked nor cleaned yet.
/// The outer errors are wasmtime's: after one, the store can't be used any more. The inner ones are
/// the policy's own. It is asked only about stages that it answers.
pub(crate) trait Instance: Send + Sync {
    /// The instance as far as it is asked about each kind of work.
    fn parts(&self) -> Parts<'_>;

    /// Compares the types of the functions for all kinds of work with the contract's.
    fn check_types(&self, store: &mut Store<Guest>) -> Result<()> {
        of_each!(self.parts(), part => part.map_or(Ok(()), |part| part.check_types(store))).into_iter().collect()
    }

    /// The policy's description of itself.
    fn describe(&self, store: &mut Store<Guest>) -> Result<Description>;

    /// Passes the policy its settings.
    fn configure(
        &self,
        store: &mut Store<Guest>,
        settings: &[(String, Value)],
    ) -> Result<std::result::Result<(), String>>;
}

/// The parts of an instance.
pub(crate) type Parts<'a> = each!(Part<'a>);

/// An instance as far as it is asked about one kind of work; `None` if its version has no such
/// questions.
pub(crate) type Part<'a, W> = Option<&'a dyn Asks<W>>;

/// The questions about one kind of work.
pub(crate) trait Asks<W: Work> {
    /// Compares the types of the functions with the contract's, if [`Linked::instantiate`] has not.
    fn check_types(&self, _store: &mut Store<Guest>) -> Result<()> {
        Ok(())
    }

    /// Asks for a plan, or for another one after attempts failed.
    fn decide(&self, store: &mut Store<Guest>, question: &Question<'_, W>) -> Result<Answer<W::Plan>>;

    /// Passes the policy the outcome of a plan.
    fn learn(
        &self,
        store: &mut Store<Guest>,
        question: &Question<'_, W>,
        plan: &W::Plan,
        outcome: &W::Outcome,
    ) -> Result<()>;
}

/// No policy is asked about a stage that it does not answer.
fn unanswered() -> wasmtime::Error {
    wasmtime::Error::msg("it exports no interface for this stage")
}

/// Work that an instance is asked about.
pub(crate) trait Answered: Planned + for<'a> FieldOf<Parts<'a>, Field = Part<'a, Self>> {
    /// An instance as far as it is asked about this work.
    fn part_of(instance: &dyn Instance) -> Result<&dyn Asks<Self>> {
        let parts = instance.parts();
        <Self as FieldOf<Parts<'_>>>::of(&parts).ok_or_else(unanswered)
    }
}

impl<W: Planned + for<'a> FieldOf<Parts<'a>, Field = Part<'a, W>>> Answered for W {}

impl World {
    /// The newest version that these exports speak. The newest of all if they speak none, so that
    /// an error can name the missing exports.
    pub fn of<'a>(
        policy: &str,
        exports: impl Iterator<Item = &'a str>,
    ) -> std::result::Result<&'static Self, PolicyError> {
        choose(policy, &WORLDS, exports)
    }

    /// True if a policy may import the interface.
    pub fn offers(&self, interface: &str) -> bool {
        self.offered.contains(&interface) || self.types.contains(&interface)
    }

    /// The exports that a policy lacks, by the names that this kind of file has for them. A policy
    /// without any stage lacks all of them.
    pub fn missing(&self, kind: ModuleKind, exports: &[impl AsRef<str>]) -> Vec<String> {
        let is_there = |name: &String| exports.iter().any(|export| export.as_ref() == name);
        let stages: Vec<Vec<String>> = self.stages.iter().map(|(interface, _)| names(kind, *interface)).collect();
        let begun: Vec<&Vec<String>> = stages.iter().filter(|names| names.iter().any(is_there)).collect();
        let stages = if begun.is_empty() { stages.iter().collect() } else { begun };
        let all = names(kind, self.lifecycle);
        all.iter().chain(stages.into_iter().flatten()).filter(|name| !is_there(name)).cloned().collect()
    }

    /// The stages whose interfaces a component exports.
    pub fn exported_stages(&self, exports: &[String]) -> Vec<Stage> {
        let exported = self.stages.iter().filter(|((interface, _), _)| exports.iter().any(|name| name == interface));
        exported.flat_map(|(_, stages)| stages.iter().copied()).collect()
    }

    /// Links the component with everything that the world offers, with a WASI if one is granted,
    /// and with nothing else.
    pub fn link(&self, engine: &Engine, component: &Component, wasi: Wasi) -> Result<Box<dyn Linked>> {
        let mut linker = Linker::new(engine);
        if wasi == Wasi::Inert {
            wasi::link(&mut linker, component)?;
        }
        (self.link)(linker, component)
    }
}

/// The names of an interface's exports: the instance in a component, the functions in a module.
fn names(kind: ModuleKind, (interface, functions): Interface) -> Vec<String> {
    match kind {
        ModuleKind::Component => vec![interface.to_owned()],
        ModuleKind::CoreModule => functions.iter().map(|name| format!("{interface}#{name}")).collect(),
    }
}

fn choose<'a>(
    policy: &str,
    worlds: &[&'static World],
    exports: impl Iterator<Item = &'a str>,
) -> std::result::Result<&'static World, PolicyError> {
    let mut found: Vec<&str> = exports.filter_map(version).collect();
    found.sort_unstable();
    found.dedup();
    // A policy that names no version lacks everything, by the newest version.
    match worlds.iter().rev().find(|world| found.is_empty() || found.contains(&world.version)) {
        Some(world) => Ok(world),
        None => Err(PolicyError::UnknownContract {
            policy: policy.into(),
            found: found[..found.len().min(MENTIONED)].join(" and "),
            known: worlds.iter().map(|world| world.version).collect::<Vec<_>>().join(", "),
        }),
    }
}

/// The version in the name of one of the contract's interfaces, or of a function in one: at most 32
/// characters.
fn version(export: &str) -> Option<&str> {
    let (_, version) = export.strip_prefix(PACKAGE)?.split_once('@')?;
    let version = version.split('#').next().unwrap_or(version);
    (version.len() <= 32 && version.bytes().all(|byte| byte.is_ascii_graphic())).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(worlds: &[&'static World], exports: &[&str]) -> std::result::Result<&'static str, String> {
        let world = choose("p.wasm", worlds, exports.iter().copied());
        world.map(|world| world.version).map_err(|error| error.to_string())
    }

    #[test]
    fn the_table_decides_which_versions_are_spoken() {
        let old = "tilewright:policy/lifecycle@0.1.0";
        let new = "tilewright:policy/vae-policy@0.2.0#decide";
        let both = WORLDS;
        assert_eq!(chosen(&both, &[old]).unwrap(), "0.1.0");
        assert_eq!(chosen(&both, &[new, "memory"]).unwrap(), "0.2.0");
        assert_eq!(chosen(&both, &[new, old]).unwrap(), "0.2.0");
        assert_eq!(chosen(&both, &["memory"]).unwrap(), "0.2.0");
        assert_eq!(chosen(&both[..1], &[new, old]).unwrap(), "0.1.0");
        assert_eq!(
            chosen(&both[..1], &[new]).unwrap_err(),
            "policy p.wasm: built for version 0.2.0 of the contract, but this program speaks 0.1.0: build it for that, or use a newer program"
        );
        let third = "tilewright:policy/lifecycle@0.3.0";
        assert!(chosen(&both, &[third]).unwrap_err().contains("but this program speaks 0.1.0, 0.2.0:"));
    }

    #[test]
    fn versions_are_read_off_names() {
        assert_eq!(version("tilewright:policy/lifecycle@0.1.0#describe"), Some("0.1.0"));
        assert_eq!(version("tilewright:policy/lifecycle@0.1.0"), Some("0.1.0"));
        assert_eq!(version("tilewright:policy/lifecycle"), None);
        assert_eq!(version("other:policy/lifecycle@0.1.0"), None);
        assert_eq!(version("tilewright:policy/lifecycle@\n"), None);
    }

    #[test]
    fn a_policy_needs_its_lifecycle_and_one_stage() {
        static TWO: World = World {
            stages: &[
                (("tilewright:policy/vae-policy@0.2.0", &["decide", "learn"]), &[Stage::Decode, Stage::Encode]),
                (("tilewright:policy/text-policy@0.2.0", &["decide", "learn"]), &[Stage::Text]),
            ],
            ..v0_2_0::WORLD
        };
        let full = |name: &str| format!("tilewright:policy/{name}@0.2.0");
        let missing = |kind, names: &[&str]| {
            let exports: Vec<String> = names.iter().map(|name| name.replace('/', "@0.2.0#")).collect();
            let exports: Vec<String> = exports.iter().map(|name| format!("tilewright:policy/{name}")).collect();
            TWO.missing(kind, &exports)
        };
        let component =
            |names: &[&str]| TWO.missing(ModuleKind::Component, &names.iter().map(|n| full(n)).collect::<Vec<_>>());
        assert_eq!(component(&["lifecycle", "text-policy"]), Vec::<String>::new());
        assert_eq!(component(&["lifecycle"]), [full("vae-policy"), full("text-policy")]);
        assert_eq!(component(&["vae-policy"]), [full("lifecycle")]);
        assert_eq!(TWO.exported_stages(&[full("lifecycle"), full("text-policy")]), [Stage::Text]);
        // A module that exports some of a stage's functions lacks the others.
        let module = ["lifecycle/describe", "lifecycle/configure", "text-policy/decide"];
        assert_eq!(missing(ModuleKind::CoreModule, &module), ["tilewright:policy/text-policy@0.2.0#learn"]);
        assert_eq!(missing(ModuleKind::CoreModule, &module[..2]).len(), 4);
    }
}
