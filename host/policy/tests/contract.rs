//! The gate that keeps released policies working: what was released stays as it is, the contract of
//! today takes every policy that was built for a released version, or there is an adapter for that
//! version in the host.

use sha2::{Digest, Sha256};
use tilewright_policy::{CacheDir, Limits, PolicyError, PolicyHost};
use wit_component::{ComponentEncoder, StringEncoding, dummy_module, embed_component_metadata, semver_check, targets};
use wit_parser::{ManglingAndAbi, Resolve, WorldId};

/// A version that policies have been built for.
struct Released {
    version: &'static str,
    text: &'static str,
    /// SHA-256 of the text.
    digest: &'static str,
}

/// Every released version. A row is added with a release and never changed.
const RELEASED: [Released; 2] = [
    Released {
        version: "0.1.0",
        text: include_str!("../../../wit/released/0.1.0/policy.wit"),
        digest: "8942230e961db9cc53c904855cd82126d11e795d1da67fccfd8d59f82fe2b506",
    },
    Released {
        version: "0.2.0",
        text: include_str!("../../../wit/released/0.2.0/policy.wit"),
        digest: "e4c9af7a86d67ab614a0a8efcfdda4595e1bdc26e829a5e602ee059efce1764d",
    },
];

const TODAY: &str = include_str!("../../../wit/policy.wit");

fn world(resolve: &mut Resolve, text: &str) -> anyhow::Result<WorldId> {
    let package = resolve.push_str("policy.wit", text)?;
    resolve.select_world(&[package], Some("policy"))
}

/// The least that fits a world: it asks for everything that is offered, and traps in every call.
fn least(text: &str) -> anyhow::Result<Vec<u8>> {
    let mut resolve = Resolve::default();
    let world = world(&mut resolve, text)?;
    let mut module = dummy_module(&resolve, world, ManglingAndAbi::Standard32);
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8)?;
    ComponentEncoder::default().module(&module)?.validate(true).encode()
}

/// The version in a text's first `package` line.
fn version(text: &str) -> &str {
    let line = text.lines().find(|line| line.starts_with("package ")).unwrap_or_default();
    line.rsplit('@').next().unwrap_or_default().trim_end_matches(';')
}

/// Fails if a policy that was built for `released` does not fit `today`'s text any more.
fn fits(released: &str, today: &str) -> Result<(), String> {
    let told = |error: anyhow::Error| format!("{error:#}");
    let mut resolve = Resolve::default();
    let world_today = world(&mut resolve, today).map_err(told)?;
    // The same version twice is one package to a resolver, so the structure is compared under
    // another number.
    let renamed = released.replacen(version(released), "9999.0.0", 1);
    let mut both = Resolve::default();
    let before = world(&mut both, &renamed).map_err(told)?;
    let after = world(&mut both, today).map_err(told)?;
    semver_check(both, before, after).map_err(told)?;
    if version(released) == version(today) {
        targets(&resolve, world_today, &least(released).map_err(told)?).map_err(told)?;
    }
    Ok(())
}

/// Fails if the host can't run policies of a version: the least policy gets as far as its first
/// call.
fn runs(text: &str) -> Result<(), String> {
    let host = PolicyHost::new(Limits::default(), &CacheDir::Off).map_err(|error| error.to_string())?;
    match host.load("least.wasm", &least(text).map_err(|error| format!("{error:#}"))?) {
        Err(PolicyError::Failed { during: "describe", .. }) => Ok(()),
        Err(error) => Err(error.to_string()),
        Ok(_) => Err("a policy that traps describes itself".into()),
    }
}

#[test]
fn what_was_released_stays_as_it_is() {
    for Released { version: name, text, digest } in &RELEASED {
        let found: String = Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            found, *digest,
            "wit/released/{name}/policy.wit was changed: put it back, and change wit/policy.wit"
        );
        assert_eq!(version(text), *name);
    }
}

#[test]
fn the_host_runs_policies_of_every_released_version() {
    for Released { version, text, .. } in &RELEASED {
        runs(text).unwrap_or_else(|why| panic!("no adapter for {version} in host/policy/src/contract: {why}"));
    }
}

#[test]
fn the_host_runs_policies_of_today() {
    runs(TODAY).unwrap_or_else(|why| panic!("no adapter for wit/policy.wit in host/policy/src/contract: {why}"));
}

#[test]
fn today_takes_what_was_built_before() {
    for Released { version: name, text, .. } in &RELEASED {
        if version(TODAY) == *name {
            fits(text, TODAY).unwrap_or_else(|why| {
                panic!("wit/policy.wit breaks policies of {name}: give it a new version, or undo the change: {why}")
            });
        }
    }
}

/// Changes of the text, those that break policies first.
#[test]
fn the_gate_tells_what_breaks() {
    let released = RELEASED[0].text;
    let request = "u32,\n        /// 1 for pictures.";
    let breaking = [
        ("a field more", request, "u32,\n        seed: u64,\n        /// 1 for pictures."),
        ("a field less", "        quantized: bool,\n", ""),
        ("a field of another type", "compute-units: u32", "compute-units: u64"),
        ("a field of another name", "parameter-bytes: u64", "weight-bytes: u64"),
        ("fields in another order", "height: u32, width: u32, overlap: u32", "width: u32, height: u32, overlap: u32"),
        ("a case less in an enum", "cuda, rocm, metal }", "cuda, rocm }"),
        ("a case more in an enum", "cuda, rocm, metal }", "cuda, rocm, metal, vulkan }"),
        ("cases in another order", "fastest, balanced, leanest", "leanest, balanced, fastest"),
        ("a case more in a variant", "        carried(u32),\n", "        carried(u32),\n        skipped,\n"),
        ("a variant's case of another type", "out-of-memory(u64)", "out-of-memory(u32)"),
        ("a parameter more", "trials: func(most: u32)", "trials: func(most: u32, newest: bool)"),
        ("a parameter of another type", "trials: func(most: u32)", "trials: func(most: u64)"),
        (
            "another result",
            "learn: func(request: request, plan: plan, outcome: outcome);",
            "learn: func(request: request, plan: plan, outcome: outcome) -> bool;",
        ),
        ("an error less", "estimate: func(plan: plan) -> result<cost, string>", "estimate: func(plan: plan) -> cost"),
        (
            "a function that policies have to export",
            "    describe: func()",
            "    forget: func();\n    describe: func()",
        ),
        ("a function that the host no longer offers", "    log: func(level: level, message: string);\n", ""),
        (
            "an interface that policies have to export",
            "    export lifecycle;\n",
            "    export lifecycle;\n    export later;\n",
        ),
        ("an interface that the host no longer offers", "    import decoding-host;\n", ""),
    ];
    let later = "interface later { ask: func() -> u32; }\n\nworld policy {";
    for (what, from, to) in breaking {
        let text = changed(released, from, to).replace("world policy {", later);
        assert!(fits(released, &text).is_err(), "{what} is not found");
    }
    let harmless = [
        ("a comment", request, "u32,\n        /// 1 for pictures, more for clips."),
        ("an interface that no world has", "world policy {", later),
        (
            "an interface that the host offers besides",
            "world policy {",
            "interface clock { ticks: func() -> u32; }\n\nworld policy {\n    import clock;",
        ),
        ("a function that the host offers besides", "    log: func(", "    flush: func();\n    log: func("),
        ("a world of another name", "world policy {", "world sampling { import host; }\n\nworld policy {"),
    ];
    for (what, from, to) in harmless {
        fits(released, &changed(released, from, to)).unwrap_or_else(|why| panic!("{what} is taken for a break: {why}"));
    }
    // A new version may change what it likes, as long as there is an adapter for the one before,
    // which another test asks for.
    let next = changed(released, "@0.1.0;", "@0.3.0;");
    assert_eq!(version(&next), "0.3.0");
    let refused = runs(&next).unwrap_err();
    let expected = "built for version 0.3.0 of the contract, but this program speaks 0.1.0, 0.2.0:";
    assert!(refused.contains(expected), "{refused}");
}

fn changed(text: &str, from: &str, to: &str) -> String {
    assert_eq!(text.matches(from).count(), 1, "'{from}' stands once in the contract");
    text.replace(from, to)
}
