//! Each write fails, alone and with all that follow: acknowledged changes are in force after a
//! restart, and no number is used twice.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
    sync::Arc,
};

use tempfile::TempDir;
use tilewright_config::{Case, Config, Source, Stage};
use tilewright_policy::CacheDir;

use super::{Change, Replacement, Rollout};
use crate::{Disk, Error, Result, Revision, StoredAssignment};

const ROUTE: &str = "[[routes]]\nname = 'all'\npolicy = 'own'\ncanary = { policy = 'new', share = 0.5 }\n";

fn config(policies: &str) -> Config {
    let own = "[policies.own]\nsource = 'fixed'\n[policies.new]\nsource = 'fixed'\nset = { tile = 96 }\n";
    Config::parse(&format!("{own}{policies}{ROUTE}"), Path::new("test.toml")).unwrap()
}

/// A folder for the state, and one for compiled code that all places share.
struct TestFolder {
    data: TempDir,
    cache: Arc<TempDir>,
}

impl TestFolder {
    fn new(cache: &Arc<TempDir>) -> Self {
        Self { data: tempfile::tempdir().unwrap(), cache: cache.clone() }
    }

    fn open(&self, disk: Disk, used: &BTreeMap<String, u64>, policies: &str) -> Result<Arc<Rollout>> {
        let cache = CacheDir::At(self.cache.path().join("policies"));
        Rollout::open(self.data.path(), disk, used, &config(policies), cache, Box::new(|_| ()))
    }
}

fn cache() -> Arc<TempDir> {
    Arc::new(tempfile::tempdir().unwrap())
}

type Settings = Vec<(String, String)>;

fn tile(tile: u32) -> Settings {
    vec![("tile".to_owned(), tile.to_string())]
}

/// The visible state of a policy: numbers and settings of the revisions in force and before, and
/// its pause.
type Facts = BTreeMap<String, (u64, Settings, Option<(u64, Settings)>, bool)>;

fn facts(rollout: &Rollout) -> (Facts, bool) {
    let of = |revision: &Arc<Revision>| (revision.number, revision.settings.clone());
    let policies = rollout.policies().into_iter().map(|policy| {
        let (number, settings) = of(&policy.in_force);
        (policy.name, (number, settings, policy.previous.as_ref().map(of), policy.paused))
    });
    let is_on_trial = rollout.on_trial("all").is_ok();
    (policies.collect(), is_on_trial)
}

type Step = fn(&Rollout) -> Result<()>;

/// Changes of every kind to what is in force.
const STEPS: [Step; 11] = [
    |rollout| swap(rollout, "own", 64).map(drop),
    |rollout| rollout.pause("own", true),
    |rollout| swap(rollout, "own", 72).map(drop),
    |rollout| rollout.pause("own", false),
    |rollout| rollout.roll_back("own").map(drop),
    |rollout| rollout.reload(&config("[policies.two]\nsource = 'fixed'\nset = { tile = 80 }\n")).map(drop),
    |rollout| swap(rollout, "own", 88).map(drop),
    |rollout| rollout.reload(&config("")).map(drop),
    |rollout| rollout.swap("new", &Replacement::From(Source::Shipped("adaptive".into())), Some(&[])).map(drop),
    |rollout| rollout.stop("all"),
    |rollout| rollout.reload(&config("[policies.two]\nsource = 'fixed'\nset = { tile = 104 }\n")).map(drop),
];

fn swap(rollout: &Rollout, policy: &str, size: u32) -> Result<Change> {
    rollout.swap(policy, &Replacement::From(Source::Shipped("fixed".into())), Some(&tile(size)))
}

/// The module and the settings of every number.
#[derive(Default)]
struct Numbers(HashMap<(String, u64), (String, Settings)>);

impl Numbers {
    fn look(&mut self, rollout: &Rollout) {
        for policy in rollout.policies() {
            for revision in [Some(&policy.in_force), policy.previous.as_ref()].into_iter().flatten() {
                let found = (revision.digest.clone(), revision.settings.clone());
                let known = self.0.entry((policy.name.clone(), revision.number)).or_insert_with(|| found.clone());
                assert_eq!(*known, found, "number {} of {} is used twice", revision.number, policy.name);
            }
        }
    }
}

#[test]
fn every_write_fails_and_nothing_acknowledged_is_lost() {
    let cache = cache();
    let place = TestFolder::new(&cache);
    let disk = Disk::default();
    let whole = place.open(disk.clone(), &BTreeMap::new(), "").unwrap();
    let trace: Vec<_> = STEPS
        .iter()
        .map(|step| {
            step(&whole).unwrap();
            facts(&whole)
        })
        .collect();
    let writes = disk.steps();
    assert!(writes > 60, "{writes}");
    for fault in 1..=writes {
        for (and_all_after, goes_on) in [(false, false), (false, true), (true, false)] {
            let place = TestFolder::new(&cache);
            let (mut numbers, mut acknowledged, mut may_be) = (Numbers::default(), None, None);
            if let Ok(rollout) = place.open(Disk::failing(fault, and_all_after), &BTreeMap::new(), "") {
                numbers.look(&rollout);
                acknowledged = Some(facts(&rollout));
                for (step, after) in STEPS.iter().zip(&trace) {
                    let before = facts(&rollout);
                    may_be = None;
                    match step(&rollout) {
                        // A reload reports the changes that failed, and the next one makes them.
                        Ok(()) => {}
                        Err(Error::Storage { .. }) => {
                            assert_eq!(facts(&rollout), before, "{fault}: a change that was refused is not in force");
                            may_be = Some(after.clone());
                        }
                        Err(error) => panic!("{fault}: {error}"),
                    }
                    numbers.look(&rollout);
                    acknowledged = Some(facts(&rollout));
                    if may_be.is_some() && !goes_on {
                        break;
                    }
                }
            }
            let again = place.open(Disk::default(), &BTreeMap::new(), "[policies.two]\nsource = 'fixed'\n").unwrap();
            let mut found = facts(&again);
            numbers.look(&again);
            // A policy of the last configuration alone starts again if no reload got that far.
            for facts in [&mut acknowledged, &mut may_be].into_iter().flatten().chain([&mut found]) {
                facts.0.remove("two");
            }
            let is_either = [&acknowledged, &may_be].into_iter().flatten().any(|expected| *expected == found);
            assert!(
                acknowledged.is_none() || is_either || goes_on && may_be.is_some(),
                "{fault} {and_all_after} {goes_on}: {found:?} after {acknowledged:?}, {may_be:?} was tried"
            );
            // A change that is tried again gets a number of its own.
            swap(&again, "own", 120).unwrap();
            swap(&again, "two", 128).unwrap();
            numbers.look(&again);
        }
    }
}

fn case() -> Case<'static> {
    Case {
        stage: Stage::Decode,
        family: "flux",
        model: "test",
        arch: "test",
        device: "main",
        tag: None,
        quantized: false,
        pixels: 1 << 20,
        frames: 1,
    }
}

#[test]
fn a_swap_by_hand_outlives_another_way_of_writing_the_configuration_down() {
    let cache = cache();
    let place = TestFolder::new(&cache);
    let rollout = place.open(Disk::default(), &BTreeMap::new(), "").unwrap();
    swap(&rollout, "own", 64).unwrap();
    drop(rollout);
    let path = place.data.path().join("rollout.json");
    let grants = "Grants { memory_bytes: None, fuel: None, wall_ms: None, inert_wasi: false }";
    let configured = |source: &str| {
        format!("Wanted {{ source: Shipped(\"{source}\"), digest: None, settings: [], grants: {grants}, watch: true }}")
    };
    // The texts of earlier versions; and another configuration, which does change the revision in
    // force.
    for (source, expected) in [("fixed", tile(64)), ("adaptive", Vec::new())] {
        let mut state: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        state["policies"]["own"]["configured"] = configured(source).into();
        std::fs::write(&path, state.to_string()).unwrap();
        let rollout = place.open(Disk::default(), &BTreeMap::new(), "").unwrap();
        assert_eq!(rollout.policy("own").unwrap().in_force.settings, expected, "{source}");
    }
}

#[test]
fn what_is_refused_is_told_by_what_was_asked_for_and_without_a_password() {
    let cache = cache();
    let place = TestFolder::new(&cache);
    let rollout = place.open(Disk::default(), &BTreeMap::new(), "").unwrap();
    let digest = format!("sha256:{}", "a1".repeat(32));
    let stored = Replacement::Stored { digest };
    let from = |text: &str| Replacement::From(text.parse().unwrap());
    for (replacement, origin) in [
        (stored, "module sha256:a1a1a1a1a1a1"),
        (from("nix"), "nix"),
        (from("oci://127.0.0.1:22/x/y:1"), "oci://127.0.0.1:22/x/y:1"),
        (from("oci://ada:secret@host/x:1"), "oci://host/x:1"),
    ] {
        let error = rollout.swap("own", &replacement, None).unwrap_err().for_callers();
        let refused = rollout.policy("own").unwrap().refused;
        assert_eq!(refused[0].origin, origin);
        let told = format!("{error} {refused:?} {:?}", rollout.events());
        assert!(!told.contains("secret"), "{told}");
    }
}

#[test]
fn a_job_is_decided_under_exactly_what_it_was_accepted_under() {
    let cache = cache();
    let place = TestFolder::new(&cache);
    let rollout = place.open(Disk::default(), &BTreeMap::new(), "").unwrap();
    swap(&rollout, "own", 64).unwrap();
    let pinned = StoredAssignment::from(&rollout.admit(&case()).unwrap());
    let in_force = rollout.policy("own").unwrap().in_force;
    assert!(Arc::ptr_eq(&rollout.revive_assignment(&pinned).unwrap().revision, &in_force));
    // The same number with other settings, or other grants, is another revision.
    let (mut other, mut granted) = (pinned.clone(), pinned);
    other.revision.settings = tile(72);
    granted.revision.grants.fuel = Some(1 << 30);
    for pinned in [other, granted] {
        let revived = rollout.revive_assignment(&pinned).unwrap().revision;
        assert_eq!(
            (revived.number, &revived.settings, revived.grants),
            (2, &pinned.revision.settings, pinned.revision.grants)
        );
        assert!(!Arc::ptr_eq(&revived, &in_force));
        assert!(
            Arc::ptr_eq(&rollout.revive_assignment(&pinned).unwrap().revision, &revived),
            "made once for all its jobs"
        );
    }
}

#[test]
fn the_next_number_stands_above_every_one_that_a_job_was_given() {
    let cache = cache();
    let place = TestFolder::new(&cache);
    let used = BTreeMap::from([("own".to_owned(), 41), ("two".to_owned(), 7)]);
    let rollout = place.open(Disk::default(), &used, "").unwrap();
    assert_eq!(rollout.policy("own").unwrap().in_force.number, 42);
    assert_eq!(swap(&rollout, "own", 64).unwrap().in_force.number, 43);
    // A policy that is new to the configuration, and one that comes back to it.
    let two = "[policies.two]\nsource = 'fixed'\n";
    rollout.reload(&config(two)).unwrap();
    assert_eq!(rollout.policy("two").unwrap().in_force.number, 8);
    rollout.reload(&config("")).unwrap();
    drop(rollout);
    let rollout = place.open(Disk::default(), &BTreeMap::new(), "").unwrap();
    rollout.reload(&config(two)).unwrap();
    assert_eq!(rollout.policy("two").unwrap().in_force.number, 9);
}

#[test]
fn the_watchdog_does_not_wait_for_room_and_a_restart_knows_of_it_once_there_is() {
    let cache = cache();
    let place = TestFolder::new(&cache);
    let begun = Disk::default();
    let rollout = place.open(begun.clone(), &BTreeMap::new(), "").unwrap();
    swap(&rollout, "own", 64).unwrap();
    let until_now = begun.steps();
    drop(rollout);
    let disk = Disk::failing(1, true);
    let rollout = place.open(disk.clone(), &BTreeMap::new(), "").unwrap();
    assert!(until_now > 0 && disk.steps() == 0, "a start that changes nothing writes nothing");
    let slot = rollout.find("own").unwrap();
    let bad = slot.forces.load().in_force.clone();
    rollout.roll_back_failing(&slot, &bad, "a test");
    assert_eq!(rollout.policy("own").unwrap().in_force.number, 1);
    assert!(rollout.settle().is_err() && disk.trouble().is_some_and(|trouble| trouble.is_full));
    // An acknowledged change would be undone by a restart.
    assert!(matches!(rollout.pause("own", false), Err(Error::Storage { .. })));
    drop(rollout);
    let rollout = place.open(Disk::default(), &BTreeMap::new(), "").unwrap();
    assert_eq!(rollout.policy("own").unwrap().in_force.number, 2, "the bad one, which is found out again");
    let slot = rollout.find("own").unwrap();
    rollout.roll_back_failing(&slot, &slot.forces.load().in_force.clone(), "a test");
    drop(rollout);
    let rollout = place.open(Disk::default(), &BTreeMap::new(), "").unwrap();
    assert_eq!(rollout.policy("own").unwrap().in_force.number, 1);
    // With no revision before it, no policy is asked until another one takes over, even after a
    // restart.
    let slot = rollout.find("own").unwrap();
    rollout.roll_back_failing(&slot, &slot.forces.load().in_force.clone(), "a test");
    drop(rollout);
    let rollout = place.open(Disk::default(), &BTreeMap::new(), "").unwrap();
    assert!(rollout.policy("own").unwrap().paused);
    assert_eq!(swap(&rollout, "own", 72).unwrap().in_force.number, 3);
    assert!(!rollout.policy("own").unwrap().paused);
}
