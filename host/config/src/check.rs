//! Checks of the configuration as a whole: whether names are known, and which keys exclude each
//! other.

use std::collections::BTreeMap;

use tilewright_plan::{ModelPart, Stage, words::did_you_mean};

use crate::{Conditions, Config, Route, Source, conditions::FAMILIES, origin::Fault};

/// The first fault that does not depend on the shipped policies.
pub(crate) fn find_fault(config: &Config) -> Result<(), Fault> {
    if let Some(detail) = config.server.exposure() {
        return fault("server/listen", detail);
    }
    for (place, token) in config.server.tokens.iter().enumerate() {
        // The audit's lines could not tell them apart.
        if config.server.tokens[..place].iter().any(|other| other.name == token.name) {
            let detail = format!("'{}' is the name of another token, too: give each its own", token.name);
            return fault(format!("server/tokens/{place}/name"), detail);
        }
    }
    for (name, model) in &config.models {
        let at = |key: &str| format!("models/{name}{key}");
        if !model.has(ModelPart::Vae) && !model.has(ModelPart::Transformer) {
            return fault(at(""), "none of model, vae and transformer: name one of them, or more");
        }
        let of_vae = [
            ("family", model.family.is_some()),
            ("scaling-factor", model.scaling_factor.is_some()),
            ("shift-factor", model.shift_factor.is_some()),
        ];
        if let Some((key, _)) = of_vae.iter().find(|(_, given)| *given && !model.has(ModelPart::Vae)) {
            return fault(at(&format!("/{key}")), format!("{key} is for a vae, and there is none: leave it out"));
        }
        if !model.loras.is_empty() && !model.has(ModelPart::Transformer) {
            return fault(at("/loras"), "loras are for a transformer, and there is none: leave them out");
        }
    }
    for (place, route) in config.routes().iter().enumerate() {
        let at = format!("routes/{place}");
        unique(&config.routes()[..place], route, &at)?;
        reachable(&config.routes()[..place], route, &at)?;
        let Conditions { stage, frames, .. } = &route.conditions;
        if stage.iter().all(|stage| *stage == Stage::Encode)
            && !stage.is_empty()
            && frames.is_some_and(|frames| !frames.contains(1))
        {
            let detail =
                "a picture that a job begins with has one frame: no job would come to this route: leave the key out";
            return fault(format!("{at}/frames"), detail);
        }
        families(&route.conditions.family, &at)?;
        check_names(&config.models, "model", &route.conditions.model, &at)?;
        check_names(config.devices(), "device", &route.conditions.device, &at)?;
        if let Some((key, name)) = route.policies().skip(1).find(|(_, name)| *name == route.policy) {
            return fault(
                format!("{at}/{key}"),
                format!("'{name}' decides for the route '{}' already: name another", route.name),
            );
        }
    }
    Ok(())
}

/// The first fault if only these policies ship.
pub(crate) fn find_policy_fault(config: &Config, shipped: &[&str]) -> Result<(), Fault> {
    // The address may have been overridden on the command line since.
    if let Some(detail) = config.server.exposure() {
        return fault("server/listen", detail);
    }
    for (own, policy) in &config.policies.named {
        if let Source::Shipped(name) = &policy.source
            && !shipped.contains(&name.as_str())
        {
            return fault(
                format!("policies/{own}/source"),
                format!(
                    "no policy '{name}' ships: expected {}, a file (with a / or ending with .wasm), or oci://REGISTRY/NAME:TAG",
                    shipped.join(", ")
                ),
            );
        }
    }
    for (place, route) in config.routes().iter().enumerate() {
        for (key, name) in route.policies() {
            if !config.policies.named.contains_key(name) && !shipped.contains(&name) {
                let own = config.policies.named.keys().map(String::as_str);
                let all = join_names(own.chain(shipped.iter().copied()));
                return fault(
                    format!("routes/{place}/{key}"),
                    format!(
                        "unknown policy '{name}', expected one of {all}, or a table [policies.{name}]{}",
                        did_you_mean(name, all.split(", "))
                    ),
                );
            }
        }
    }
    Ok(())
}

fn fault(at: impl Into<String>, detail: impl Into<String>) -> Result<(), Fault> {
    Err(Fault { at: at.into(), detail: detail.into() })
}

fn unique(before: &[Route], route: &Route, at: &str) -> Result<(), Fault> {
    match before.iter().any(|other| other.name == route.name) {
        true => fault(
            format!("{at}/name"),
            format!("'{}' is the name of another route, too: give each its own", route.name),
        ),
        false => Ok(()),
    }
}

fn reachable(before: &[Route], route: &Route, at: &str) -> Result<(), Fault> {
    let Some(other) = before.iter().find(|other| other.conditions.cover(&route.conditions)) else { return Ok(()) };
    let what = if other.conditions.is_unconditional() { "everything" } else { "all that it would" };
    fault(at, format!("the route '{}' can never match: '{}' before it takes {what}", route.name, other.name))
}

fn families(named: &[String], at: &str) -> Result<(), Fault> {
    let mut unknown = named.iter().enumerate().filter(|(_, family)| !FAMILIES.contains(&family.as_str()));
    let Some((place, family)) = unknown.next() else { return Ok(()) };
    let meant = did_you_mean(family, FAMILIES);
    fault(
        format!("{at}/family/{place}"),
        format!("unknown family '{family}', expected one of {}{meant}", FAMILIES.join(", ")),
    )
}

fn check_names<T>(known: &BTreeMap<String, T>, kind: &str, names: &[String], at: &str) -> Result<(), Fault> {
    let Some((place, name)) = names.iter().enumerate().find(|(_, name)| !known.contains_key(*name)) else {
        return Ok(());
    };
    let all = join_names(known.keys().map(String::as_str));
    let others = if known.is_empty() { String::new() } else { format!("one of {all}, or ") };
    let meant = did_you_mean(name, known.keys().map(String::as_str));
    let detail = format!("unknown {kind} '{name}', expected {others}a table [{kind}s.{name}]{meant}");
    fault(format!("{at}/{kind}/{place}"), detail)
}

fn join_names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}
