//! Conditions of a route on a job.

use serde::{Deserialize, Serialize};
use tilewright_plan::Stage;

use crate::values;

/// The most pixels or frames that a condition can name.
const MOST: u64 = 1_000_000_000_000;

/// The families that jobs are of, as the engine names them.
pub(crate) const FAMILIES: [&str; 7] = ["sd", "sdxl", "sd3", "flux", "kl", "wan-2.1", "wan-2.2"];

/// The jobs that a route takes: those that meet every condition. An empty list or `None` is a
/// condition that was left out, which every job meets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Conditions {
    /// Decoding or encoding.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stage: Vec<Stage>,
    /// The model's family, as the engine names it: "flux", "wan-2.1", …
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub family: Vec<String>,
    /// Names of models in the configuration.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub model: Vec<String>,
    /// The device's architecture: "gfx1151", "sm_90", …
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub arch: Vec<String>,
    /// Names of devices in the configuration.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub device: Vec<String>,
    /// The job's tag; a job without one meets none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tag: Vec<String>,
    /// True if the model's weights have to be quantized, false if they must not be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantized: Option<bool>,
    /// Height times width of a frame, in pixels of the output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pixels: Option<Between>,
    /// Frames of the output; 1 for pictures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frames: Option<Between>,
}

/// A range that includes both ends; an end that is left out is open. It is never empty, and at
/// least one end is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written")]
pub struct Between {
    /// The least, at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<u64>,
    /// The most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
}

/// A job's facts for routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case<'a> {
    /// Decoding or encoding.
    pub stage: Stage,
    /// The model's family, as the engine names it.
    pub family: &'a str,
    /// The model's name in the configuration.
    pub model: &'a str,
    /// The device's architecture.
    pub arch: &'a str,
    /// The device's name in the configuration.
    pub device: &'a str,
    /// The tag that the job has.
    pub tag: Option<&'a str>,
    /// True if the model's weights are quantized.
    pub quantized: bool,
    /// Height times width of a frame, in pixels of the output.
    pub pixels: u64,
    /// Frames of the output; 1 for pictures.
    pub frames: u32,
}

impl Conditions {
    /// True if the job meets every condition.
    pub fn matches(&self, case: &Case<'_>) -> bool {
        let texts = [
            (&self.family, Some(case.family)),
            (&self.model, Some(case.model)),
            (&self.arch, Some(case.arch)),
            (&self.device, Some(case.device)),
            (&self.tag, case.tag),
        ];
        (self.stage.is_empty() || self.stage.contains(&case.stage))
            && texts.iter().all(|(allowed, text)| {
                allowed.is_empty() || text.is_some_and(|text| allowed.iter().any(|allowed| allowed == text))
            })
            && self.quantized.is_none_or(|quantized| quantized == case.quantized)
            && self.pixels.is_none_or(|pixels| pixels.contains(case.pixels))
            && self.frames.is_none_or(|frames| frames.contains(u64::from(case.frames)))
    }

    /// True if there are no conditions, so that every job meets them.
    pub fn is_unconditional(&self) -> bool {
        *self == Self::default()
    }

    /// True if every job that meets the others certainly meets these, judged by each condition
    /// alone.
    pub fn cover(&self, others: &Self) -> bool {
        fn texts(Conditions { family, model, arch, device, tag, .. }: &Conditions) -> [&[String]; 5] {
            [family, model, arch, device, tag]
        }
        all(&self.stage, &others.stage)
            && texts(self).into_iter().zip(texts(others)).all(|(these, those)| all(these, those))
            && (self.quantized.is_none() || self.quantized == others.quantized)
            && within(self.pixels, others.pixels)
            && within(self.frames, others.frames)
    }
}

/// True if one list allows everything that another does.
fn all<T: PartialEq>(these: &[T], those: &[T]) -> bool {
    these.is_empty() || (!those.is_empty() && those.iter().all(|one| these.contains(one)))
}

/// The same for ranges.
fn within(these: Option<Between>, those: Option<Between>) -> bool {
    let ends = |range: Option<Between>| range.map_or((1, u64::MAX), Between::ends);
    let ((from, to), (least, most)) = (ends(these), ends(those));
    from <= least && most <= to
}

impl Between {
    /// True if the range includes the number.
    pub fn contains(self, number: u64) -> bool {
        let (from, to) = self.ends();
        (from..=to).contains(&number)
    }

    fn ends(self) -> (u64, u64) {
        (self.from.unwrap_or(1), self.to.unwrap_or(u64::MAX))
    }
}

/// A range, as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a range such as { from = 1, to = 9 }")]
struct Written {
    #[serde(default, deserialize_with = "values::large::<_, _, MOST>")]
    from: Option<u64>,
    #[serde(default, deserialize_with = "values::large::<_, _, MOST>")]
    to: Option<u64>,
}

impl TryFrom<Written> for Between {
    type Error = String;

    fn try_from(Written { from, to }: Written) -> Result<Self, String> {
        match (from, to) {
            (None, None) => Err("a range without ends: give `from`, `to` or both".into()),
            (Some(from), Some(to)) if from > to => {
                Err(format!("a range from {from} to {to} holds nothing: `from` has to be at most `to`"))
            }
            _ => Ok(Self { from, to }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASE: Case<'_> = Case {
        stage: Stage::Decode,
        family: "flux",
        model: "mine",
        arch: "gfx1151",
        device: "main",
        tag: None,
        quantized: false,
        pixels: 512 * 512,
        frames: 1,
    };

    fn conditions(change: impl FnOnce(&mut Conditions)) -> Conditions {
        let mut conditions = Conditions::default();
        change(&mut conditions);
        conditions
    }

    fn texts(list: &[&str]) -> Vec<String> {
        list.iter().map(|text| (*text).to_owned()).collect()
    }

    fn between(from: impl Into<Option<u64>>, to: impl Into<Option<u64>>) -> Option<Between> {
        Some(Between { from: from.into(), to: to.into() })
    }

    #[test]
    fn a_job_has_to_meet_every_condition() {
        let clip = Case { stage: Stage::Encode, tag: Some("comfy"), quantized: true, pixels: 100, frames: 9, ..CASE };
        for (conditions, picture, encode) in [
            (Conditions::default(), true, true),
            (conditions(|of| of.stage = vec![Stage::Decode]), true, false),
            (conditions(|of| of.stage = vec![Stage::Encode, Stage::Decode]), true, true),
            (conditions(|of| of.family = texts(&["sd", "flux"])), true, true),
            (conditions(|of| of.family = texts(&["sd"])), false, false),
            (conditions(|of| of.model = texts(&["mine"])), true, true),
            (conditions(|of| of.model = texts(&["yours"])), false, false),
            (conditions(|of| of.arch = texts(&["sm_90"])), false, false),
            (conditions(|of| of.device = texts(&["main", "second"])), true, true),
            (conditions(|of| of.tag = texts(&["comfy"])), false, true),
            (conditions(|of| of.quantized = Some(false)), true, false),
            (conditions(|of| of.pixels = between(512 * 512, 512 * 512)), true, false),
            (conditions(|of| of.pixels = between(None, 512 * 512 - 1)), false, true),
            (conditions(|of| of.frames = between(2, None)), false, true),
            (
                conditions(|of| {
                    of.tag = texts(&["comfy"]);
                    of.quantized = Some(false);
                }),
                false,
                false,
            ),
        ] {
            assert_eq!((conditions.matches(&CASE), conditions.matches(&clip)), (picture, encode), "{conditions:?}");
            assert_eq!(conditions.is_unconditional(), conditions == Conditions::default());
        }
    }

    #[test]
    fn what_takes_less_does_not_cover_more() {
        for (wide, narrow) in [
            (Conditions::default(), conditions(|of| of.tag = texts(&["a"]))),
            (conditions(|of| of.tag = texts(&["a", "b"])), conditions(|of| of.tag = texts(&["b"]))),
            (
                conditions(|of| of.stage = vec![Stage::Decode, Stage::Encode]),
                conditions(|of| of.stage = vec![Stage::Encode]),
            ),
            (Conditions::default(), conditions(|of| of.quantized = Some(true))),
            (conditions(|of| of.pixels = between(None, 9)), conditions(|of| of.pixels = between(2, 9))),
            (conditions(|of| of.frames = between(2, None)), conditions(|of| of.frames = between(3, 4))),
        ] {
            assert!(wide.cover(&wide) && narrow.cover(&narrow) && wide.cover(&narrow), "{wide:?} {narrow:?}");
            assert!(!narrow.cover(&wide), "{wide:?} {narrow:?}");
        }
        let either = [conditions(|of| of.tag = texts(&["a"])), conditions(|of| of.family = texts(&["sd"]))];
        assert!(!either[0].cover(&either[1]) && !either[1].cover(&either[0]));
        // One that is written and takes everything, too.
        assert!(conditions(|of| of.frames = between(1, None)).cover(&Conditions::default()));
    }
}
