//! `[[routes]]`: the policy that decides for a job. The first route that matches counts.

use serde::{Deserialize, Deserializer, Serialize};
use tilewright_plan::{Objective, Stage};

use crate::{
    conditions::{Between, Conditions},
    values::{self, Name, Word},
};

/// The default route when none is configured: its name and its policy.
const IMPLIED: (&str, &str) = ("default", "adaptive");

/// `[[routes]]`
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// The route's own name, or by default `route-1`, `route-2` … by its index.
    pub name: String,
    /// The conditions on its jobs.
    pub conditions: Conditions,
    /// The policy that decides: one of the configuration, or else a shipped one.
    pub policy: String,
    /// A policy that is asked beside it and only compared.
    pub shadow: Option<String>,
    /// A policy that takes a share of the jobs.
    pub canary: Option<Canary>,
    /// The objective of jobs that state none.
    pub objective: Option<Objective>,
    /// Blended tiles and chunks are allowed where an exact plan fits.
    pub allows_blended: bool,
    /// The most memory that a job may hold at once, without weights, in bytes.
    pub memory_limit_bytes: Option<u64>,
    /// The moment when a job takes a new revision.
    pub take_over: TakeOver,
}

/// `canary = { … }`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub struct Canary {
    /// The policy on trial.
    #[serde(deserialize_with = "name")]
    pub policy: String,
    /// The share of the route's jobs that it decides, above 0 and below 1. It is compared with the
    /// jobs that it does not get.
    #[serde(deserialize_with = "share")]
    pub share: f64,
    /// The share of those that are decoded a second time with the incumbent's plan, to compare: 0
    /// to 1. By default a quarter.
    #[serde(default = "quarter", deserialize_with = "sample")]
    pub sample: f64,
    /// The lowest PSNR between the two pictures, in dB: above 0. By default 45.
    #[serde(rename = "psnr", default = "alike", deserialize_with = "psnr")]
    pub psnr_db: f64,
}

/// The moment when a job takes a new revision of its policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TakeOver {
    /// Never: only the next job does.
    #[default]
    NextJob,
    /// A clip does at its next chunk.
    NextChunk,
}

impl Route {
    /// The policies that it names, each with its key.
    pub(crate) fn policies(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let shadow = self.shadow.iter().map(|name| ("shadow", name.as_str()));
        let canary = self.canary.iter().map(|canary| ("canary/policy", canary.policy.as_str()));
        [("policy", self.policy.as_str())].into_iter().chain(shadow).chain(canary)
    }
}

/// The defaults when none is configured.
pub(crate) fn default_routes() -> Vec<Route> {
    let (name, policy) = IMPLIED;
    vec![RawRoute { name: Some(Name(name.into())), policy: policy.into(), ..RawRoute::default() }.at(0)]
}

/// A route as it is written, with its conditions beside the other keys.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table")]
pub(crate) struct RawRoute {
    name: Option<Name>,
    #[serde(default, deserialize_with = "values::some")]
    stage: Vec<Stage>,
    #[serde(default, deserialize_with = "values::some")]
    family: Vec<Word>,
    #[serde(default, deserialize_with = "values::some")]
    model: Vec<Name>,
    #[serde(default, deserialize_with = "values::some")]
    arch: Vec<Word>,
    #[serde(default, deserialize_with = "values::some")]
    device: Vec<Name>,
    #[serde(default, deserialize_with = "values::some")]
    tag: Vec<Word>,
    quantized: Option<bool>,
    pixels: Option<Between>,
    frames: Option<Between>,
    #[serde(deserialize_with = "name")]
    policy: String,
    shadow: Option<Name>,
    canary: Option<Canary>,
    objective: Option<Objective>,
    #[serde(default, rename = "allow", deserialize_with = "values::allows_blended")]
    allows_blended: bool,
    #[serde(default, deserialize_with = "values::memory_limit")]
    memory_limit: Option<u64>,
    #[serde(default)]
    take_over: TakeOver,
}

impl RawRoute {
    /// The route at this index, from 0.
    pub(crate) fn at(self, place: usize) -> Route {
        let names = |list: Vec<Name>| list.into_iter().map(|Name(name)| name).collect();
        let words = |list: Vec<Word>| list.into_iter().map(|Word(word)| word).collect();
        Route {
            name: self.name.map_or_else(|| format!("route-{}", place + 1), |Name(name)| name),
            conditions: Conditions {
                stage: self.stage,
                family: words(self.family),
                model: names(self.model),
                arch: words(self.arch),
                device: names(self.device),
                tag: words(self.tag),
                quantized: self.quantized,
                pixels: self.pixels,
                frames: self.frames,
            },
            policy: self.policy,
            shadow: self.shadow.map(|Name(name)| name),
            canary: self.canary,
            objective: self.objective,
            allows_blended: self.allows_blended,
            memory_limit_bytes: self.memory_limit,
            take_over: self.take_over,
        }
    }
}

fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(Name::deserialize(deserializer)?.0)
}

fn share<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    values::number(deserializer, "a share above 0 and below 1", |share| share > 0.0 && share < 1.0)
}

fn sample<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    values::number(deserializer, "a share from 0 to 1", |share| (0.0..=1.0).contains(&share))
}

fn psnr<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    values::number(deserializer, "decibels above 0", |psnr| psnr.is_finite() && psnr > 0.0)
}

fn quarter() -> f64 {
    0.25
}

fn alike() -> f64 {
    45.0
}

#[cfg(test)]
mod tests {
    use crate::tests::expect_error;

    #[test]
    fn routes_that_are_wrong() {
        for (text, line, words) in [
            ("", 1, "missing field `policy`"),
            ("policy = 1", 2, "expected a name"),
            ("policy = \"./p.wasm\"", 2, "'./p.wasm' is no name"),
            (
                "policy = \"wide\"",
                2,
                "unknown policy 'wide', expected one of adaptive, fixed, or a table [policies.wide]",
            ),
            ("policy = \"fixed\"\nshadow = \"wide\"", 3, "unknown policy 'wide'"),
            ("policy = \"fixed\"\nshadow = \"fixed\"", 3, "'fixed' decides for the route 'route-1' already"),
            ("policy = \"fixed\"\nname = \"Video\"", 3, "'Video' is no name"),
            (
                "policy = \"fixed\"\nstage = \"train\"",
                3,
                "unknown variant `train`, expected one of `text`, `denoise`, `decode`, `encode`",
            ),
            (
                "policy = \"fixed\"\nstage = \"encode\"\nframes = { from = 5 }",
                4,
                "a picture that a job begins with has one frame: no job would come to this route",
            ),
            ("policy = \"fixed\"\nmemory-limit = \"1KiB\"", 3, "allowed is 1MiB or more"),
            ("policy = \"fixed\"\nstage = []", 3, "an empty list: name at least one"),
            ("policy = \"fixed\"\nfamily = 1", 3, "expected a text or a list of texts"),
            ("policy = \"fixed\"\nfamily = [\"\"]", 3, "allowed are 1 to 64 characters"),
            (
                "policy = \"fixed\"\nfamily = \"wan\"",
                3,
                "unknown family 'wan', expected one of sd, sdxl, sd3, flux, kl, wan-2.1, wan-2.2",
            ),
            ("policy = \"fixed\"\nfamily = [\n\"flux\",\n\"flux2\"]", 5, "(did you mean flux?)"),
            ("policy = \"fixed\"\ntag = \"a\\u0007\"", 3, "allowed are 1 to 64 characters"),
            ("policy = \"fixed\"\nmodel = \"flux\"", 3, "unknown model 'flux', expected a table [models.flux]"),
            (
                "policy = \"fixed\"\ndevice = [\n\"main\",\n\"second\"]",
                5,
                "unknown device 'second', expected one of main, or",
            ),
            ("policy = \"fixed\"\nquantized = \"no\"", 3, "expected a boolean"),
            ("policy = \"fixed\"\npixels = 5", 3, "expected a range such as { from = 1, to = 9 }"),
            ("policy = \"fixed\"\npixels = {}", 3, "a range without ends: give `from`, `to` or both"),
            ("policy = \"fixed\"\npixels = { from = 2, to = 1 }", 3, "a range from 2 to 1 holds nothing"),
            ("policy = \"fixed\"\nframes = { to = 0 }", 3, "expected a whole number from 1"),
            ("policy = \"fixed\"\nframes = { least = 1 }", 3, "expected `from` or `to`"),
            ("policy = \"fixed\"\ncanary = { share = 0.5 }", 3, "missing field `policy`"),
            ("policy = \"fixed\"\ncanary = { policy = \"adaptive\" }", 3, "missing field `share`"),
            ("policy = \"fixed\"\ncanary = { policy = \"wide\", share = 0.9 }", 3, "unknown policy 'wide'"),
            ("policy = \"fixed\"\ncanary = { policy = \"fixed\", share = 0.9 }", 3, "'fixed' decides for the route"),
            (
                "policy = \"fixed\"\ncanary = { policy = \"adaptive\", share = 0 }",
                3,
                "expected a share above 0 and below 1",
            ),
            (
                "policy = \"fixed\"\ncanary = { policy = \"adaptive\", share = 1 }",
                3,
                "expected a share above 0 and below 1",
            ),
            (
                "policy = \"fixed\"\ncanary = { policy = \"adaptive\", share = nan }",
                3,
                "expected a share above 0 and below 1",
            ),
            (
                "policy = \"fixed\"\n[routes.canary]\npolicy = \"adaptive\"\nshare = 0.9\nsample = 1.1",
                6,
                "expected a share from 0 to 1",
            ),
            (
                "policy = \"fixed\"\n[routes.canary]\npolicy = \"adaptive\"\nshare = 1\npsnr = inf",
                6,
                "expected decibels above 0",
            ),
            (
                "policy = \"fixed\"\n[routes.canary]\npolicy = \"adaptive\"\nshare = 1\npsnr = 0",
                6,
                "expected decibels above 0",
            ),
            ("policy = \"fixed\"\nobjective = \"best\"", 3, "expected one of `fastest`, `balanced`, `leanest`"),
            ("policy = \"fixed\"\nobjective = 1", 3, "expected a text"),
            ("policy = \"fixed\"\nmemory-limit = \"lots\"", 3, "'lots' is not a size"),
            ("policy = \"fixed\"\ntake-over = \"now\"", 3, "expected `next-job` or `next-chunk`"),
            ("policy = \"fixed\"\nwidth = 1", 3, "unknown field `width`, expected one of `name`, `stage`, `family`"),
            (
                "policy = \"fixed\"\n[[routes]]\nname = \"b\"\npolicy = \"fixed\"",
                3,
                "the route 'b' can never match: 'route-1' before it takes everything",
            ),
            (
                "policy = \"fixed\"\ntag = [\"a\", \"b\"]\n[[routes]]\npolicy = \"fixed\"\ntag = \"b\"\nquantized = true",
                4,
                "the route 'route-2' can never match: 'route-1' before it takes all that it would",
            ),
            (
                "policy = \"fixed\"\nname = \"a\"\ntag = \"a\"\n[[routes]]\npolicy = \"fixed\"\nname = \"a\"",
                7,
                "'a' is the name of another route, too: give each its own",
            ),
            (
                "policy = \"fixed\"\nname = \"route-2\"\ntag = \"a\"\n[[routes]]\npolicy = \"fixed\"",
                5,
                "'route-2' is the name of another route, too",
            ),
        ] {
            let message = expect_error(&format!("[[routes]]\n{text}"), line);
            assert!(message.contains(words), "{message}");
        }
    }
}
