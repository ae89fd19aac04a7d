//! Stages of a route's jobs that its policy does not answer: there the native default decides,
//! which is no failure of the policy, and nothing else would tell of it.

use std::{collections::BTreeMap, fmt};

use tilewright_config::{Conditions, Config, Model, Route};
use tilewright_plan::Stage;

/// A stage that a route takes and its policy does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unanswered {
    /// The route.
    pub route: String,
    /// The policy, by its name in the configuration.
    pub policy: String,
    /// The policy's module, as it describes itself.
    pub module: String,
    /// The stages, in the order of work.
    pub stages: Vec<Stage>,
    /// True if the policy only decides for a share of the jobs, or is only compared.
    pub is_on_trial: bool,
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { route, policy, module, stages, is_on_trial } = self;
        let names: Vec<&str> = stages.iter().map(|stage| stage.name()).collect();
        let part = if *is_on_trial { ", where it is on trial" } else { "" };
        let same = if policy == module { String::new() } else { format!(" ({module})") };
        let of = if names.len() == 1 { "stage" } else { "stages" };
        let names = names.join(" and ");
        write!(f, "policy {policy}{same} does not answer the {of} {names} of route {route}{part}: ")?;
        f.write_str("the native default decides there")
    }
}

/// The stages of a route's jobs: those that some configured model has, and that no route before it
/// takes.
pub fn stages_of(routes: &[Route], place: usize, models: &BTreeMap<String, Model>) -> Vec<Stage> {
    let Some(Route { conditions, .. }) = routes.get(place) else { return Vec::new() };
    let is_named = |name: &String| conditions.model.is_empty() || conditions.model.contains(name);
    let models = || models.iter().filter(|(name, _)| is_named(name)).map(|(_, model)| model);
    let takes = |stage: &Stage| {
        let alone = Conditions { stage: vec![*stage], ..conditions.clone() };
        (conditions.stage.is_empty() || conditions.stage.contains(stage))
            && models().any(|model| stage.parts().iter().all(|part| model.has(*part)))
            && !routes[..place].iter().any(|before| before.conditions.cover(&alone))
    };
    Stage::ALL.into_iter().filter(takes).collect()
}

/// The stages of each route that a policy does not answer: a module of this name that answers
/// these stages.
pub fn unanswered(config: &Config, policy: &str, module: &str, answered: &[Stage]) -> Vec<Unanswered> {
    let part = |(place, route): (usize, &Route)| {
        let canary = route.canary.as_ref().map(|canary| &*canary.policy);
        let is_on_trial = route.policy != policy;
        if is_on_trial && canary != Some(policy) && route.shadow.as_deref() != Some(policy) {
            return None;
        }
        let mut stages = stages_of(config.routes(), place, &config.models);
        stages.retain(|stage| !answered.contains(stage));
        let (route, policy, module) = (route.name.clone(), policy.to_owned(), module.to_owned());
        (!stages.is_empty()).then_some(Unanswered { route, policy, module, stages, is_on_trial })
    };
    config.routes().iter().enumerate().filter_map(part).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_stage_is_unanswered_where_jobs_have_it_and_no_route_before_takes_it() {
        let lines = |models: &str, routes: &str, answered: &[Stage]| {
            let config = Config::parse(&format!("{models}{routes}"), Path::new("test.toml")).unwrap();
            unanswered(&config, "fixed", "own", answered).into_iter().map(|found| found.to_string()).collect::<Vec<_>>()
        };
        let whole = "[models.a]\nvae = '/v'\ntransformer = '/t'\ntext-encoder = '/e'\n";
        let all = "[[routes]]\nname = 'all'\npolicy = 'fixed'\n";
        let both = "policy fixed (own) does not answer the stages text and denoise and encode of route all: the native default decides there";
        assert_eq!(lines(whole, all, &[Stage::Decode]), [both]);
        assert_eq!(lines(whole, all, &[Stage::Decode, Stage::Denoise, Stage::Text, Stage::Encode]), [""; 0]);
        assert_eq!(lines("[models.a]\nvae = '/v'\n", all, &[Stage::Decode]), [""; 0], "its jobs are decodes");
        let named = "[models.a]\nmodel = 'flux-shapes'\n";
        assert_eq!(lines(named, all, &[Stage::Decode]), [both]);
        let before = "[[routes]]\nstage = ['denoise', 'text', 'encode']\npolicy = 'adaptive'\n";
        assert_eq!(lines(whole, &format!("{before}{all}"), &[Stage::Decode]), [""; 0], "the route before takes them");
        let some = "[[routes]]\nstage = 'denoise'\ntag = 'x'\npolicy = 'adaptive'\n";
        assert_eq!(lines(whole, &format!("{some}{all}"), &[Stage::Decode]), [both], "the route before takes some");
        let trial = "[[routes]]\nname = 'all'\nstage = 'denoise'\npolicy = 'adaptive'\nshadow = 'fixed'\n";
        let found = lines(whole, trial, &[Stage::Decode]);
        assert!(found.len() == 1 && found[0].contains("of route all, where it is on trial"), "{found:?}");
        let named = "[[routes]]\nname = 'all'\nmodel = 'b'\npolicy = 'fixed'\n";
        let two = format!("{whole}[models.b]\nvae = '/v'\n");
        assert_eq!(lines(&two, named, &[Stage::Decode]), [""; 0], "its model only decodes");
    }
}
