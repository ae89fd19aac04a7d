//! The versions of the contract that this host speaks: one adapter each, in a table that loading a policy consults once. What comes
//! after talks to an [`Instance`] in [`tilewright_plan`]'s words and never asks for the version again.
//!
//! A new version is a folder in `wit/released/`, a module here and a row in [`WORLDS`].

use tilewright_plan::{Outcome, Plan, Question, Value};
use wasmtime::{
    Engine, Result, Store,
    component::{Component, Linker},
};

use crate::{
    PolicyError,
    guest::Guest,
    host::Description,
    wasi::{self, Wasi},
};

mod v0_1_0;

/// Where the interfaces of every version stand, before their own name.
const PACKAGE: &str = "tilewright:policy/";

/// The most versions of a policy's that an error names.
const MENTIONED: usize = 4;

/// A version of the contract: its names, its text, and the way to its adapter.
#[derive(Debug)]
pub(crate) struct World {
    /// As it stands behind the `@` of its interfaces.
    pub version: &'static str,
    /// The released text, with a world named `policy`.
    pub wit: &'static str,
    /// The interfaces that a policy may import and call.
    pub offered: &'static [&'static str],
    /// Interfaces that hold nothing but types: importing them gives a guest nothing to call.
    pub types: &'static [&'static str],
    /// The interfaces that a policy has to export, and what a core module has to export for them, behind a `#`.
    pub required: &'static [(&'static str, &'static [&'static str])],
    /// Gives a component what the world offers.
    pub link: Link,
}

/// Puts a component together with what a world offers, which is added to an empty linker.
pub(crate) type Link = fn(Linker<Guest>, &Component) -> Result<Box<dyn Linked>>;

/// Every version that is known, the oldest first.
pub(crate) static WORLDS: [&World; 1] = [&v0_1_0::WORLD];

/// A component with everything that it imports: instances are made from it.
pub(crate) trait Linked: Send + Sync {
    /// Makes an instance; the module's start function runs.
    fn instantiate(&self, store: &mut Store<Guest>) -> Result<Box<dyn Instance>>;
}

/// An instance of a policy, whatever its version. What it says is neither checked nor cleaned yet. The outer errors are wasmtime's:
/// after one, the store is spent. The inner ones are the policy's own words.
pub(crate) trait Instance: Send + Sync {
    /// What the policy says of itself.
    fn describe(&self, store: &mut Store<Guest>) -> Result<Description>;

    /// Hands the policy its settings.
    fn configure(
        &self,
        store: &mut Store<Guest>,
        settings: &[(String, Value)],
    ) -> Result<std::result::Result<(), String>>;

    /// Asks for a plan, or for another one after attempts failed.
    fn decide(&self, store: &mut Store<Guest>, question: &Question<'_>) -> Result<std::result::Result<Plan, String>>;

    /// Tells the outcome of a plan.
    fn learn(&self, store: &mut Store<Guest>, question: &Question<'_>, plan: &Plan, outcome: &Outcome) -> Result<()>;
}

impl World {
    /// The newest version that these exports speak; the newest of all where they speak none, to say what is missing.
    pub fn of<'a>(
        policy: &str,
        exports: impl Iterator<Item = &'a str>,
    ) -> std::result::Result<&'static Self, PolicyError> {
        choose(policy, &WORLDS, exports)
    }

    /// Whether a policy may import the interface.
    pub fn offers(&self, interface: &str) -> bool {
        self.offered.contains(&interface) || self.types.contains(&interface)
    }

    /// The functions that a core module has to export.
    pub fn functions(&self) -> impl Iterator<Item = String> {
        self.required
            .iter()
            .flat_map(|(interface, functions)| functions.iter().map(move |name| format!("{interface}#{name}")))
    }

    /// A linker that has what the world offers, a WASI where one is granted and nothing else, put together with the component.
    pub fn link(&self, engine: &Engine, component: &Component, wasi: Wasi) -> Result<Box<dyn Linked>> {
        let mut linker = Linker::new(engine);
        if wasi == Wasi::Inert {
            wasi::link(&mut linker, component)?;
        }
        (self.link)(linker, component)
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
    // Where a policy names no version, it lacks everything: the newest says what.
    match worlds.iter().rev().find(|world| found.is_empty() || found.contains(&world.version)) {
        Some(world) => Ok(world),
        None => Err(PolicyError::UnknownContract {
            policy: policy.into(),
            found: found[..found.len().min(MENTIONED)].join(" and "),
            known: worlds.iter().map(|world| world.version).collect::<Vec<_>>().join(", "),
        }),
    }
}

/// The version in the name of one of the contract's interfaces, or of a function in one: at most 32 characters, for people to read.
fn version(export: &str) -> Option<&str> {
    let (_, version) = export.strip_prefix(PACKAGE)?.split_once('@')?;
    let version = version.split('#').next().unwrap_or(version);
    (version.len() <= 32 && version.bytes().all(|byte| byte.is_ascii_graphic())).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    static SECOND: World = World { version: "0.2.0", ..v0_1_0::WORLD };

    fn chosen(worlds: &[&'static World], exports: &[&str]) -> std::result::Result<&'static str, String> {
        let world = choose("p.wasm", worlds, exports.iter().copied());
        world.map(|world| world.version).map_err(|error| error.to_string())
    }

    #[test]
    fn the_table_decides_which_versions_are_spoken() {
        let old = "tilewright:policy/lifecycle@0.1.0";
        let new = "tilewright:policy/decoding-policy@0.2.0#decide";
        let both = [&v0_1_0::WORLD, &SECOND];
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
}
