//! The parts of a sample's plan as settings, for policies whose users may choose some of them.

use super::{Attention, Guidance, Plan, Products, Request, Residency, Reuse};
use crate::{Description, Precision, Settings, WeightForm};

/// The most blocks, queries, samples and parts that can be asked for.
const MOST: u32 = 1 << 16;

/// The parts of a plan that the user chose; none of a part that is left to the policy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    /// The operands of products.
    pub products: Option<Products>,
    /// The form of the weights.
    pub weights: Option<WeightForm>,
    /// The place of weights that are kept as stored.
    pub residency: Option<Residency>,
    /// The way of attention.
    pub attention: Option<Attention>,
    /// The order of a step's passes.
    pub guidance: Option<Guidance>,
    /// Samples at once; of the inner option, none for all.
    pub samples: Option<Option<u32>>,
    /// The parts of a feed-forward layer.
    pub feed_forward: Option<u32>,
    /// The kind of reuse, where the user allows it.
    pub reuse: Option<Reuse>,
}

impl Choice {
    /// Declares the settings, each of them `auto` by default.
    #[must_use]
    pub fn declare(description: Description) -> Description {
        description
            .setting("weights", "Samples, text: weights packed (as stored), expanded, or auto.", "auto")
            .setting("ahead", "Samples: blocks of weights read ahead, a number, all or auto.", "auto")
            .setting("attention", "Samples: fused, a number of queries at once, or auto.", "auto")
            .setting("guidance", "Samples: the passes of guidance together, in-turn, or auto.", "auto")
            .setting("samples", "Samples: how many go through the network at once, all or auto.", "auto")
            .setting("feed-forward", "Samples: parts of a feed-forward layer, a number or auto.", "auto")
            .setting("products", "Samples: products in the precision, in fp8 or in int8, or auto.", "auto")
            .setting(
                "reuse",
                "Samples: what is reused where the user allows it: output, first-block, off or auto.",
                "auto",
            )
    }

    /// Reads the settings.
    ///
    /// # Errors
    /// One line that names the setting and the allowed values.
    pub fn read(settings: &Settings) -> Result<Self, String> {
        Ok(Self {
            products: settings.word_or_auto(
                "products",
                &[("precision", Products::Precision), ("fp8", Products::Fp8), ("int8", Products::Int8)],
            )?,
            weights: settings.word_or_auto("weights", &WeightForm::WORDS)?,
            residency: number_or(settings, "ahead", &[("all", Residency::Resident)], 0, |blocks| match blocks {
                0 => Residency::Host,
                blocks => Residency::Streamed(blocks),
            })?,
            attention: number_or(settings, "attention", &[("fused", Attention::Fused)], 1, Attention::Pieces)?,
            guidance: settings
                .word_or_auto("guidance", &[("together", Guidance::Together), ("in-turn", Guidance::InTurn)])?,
            samples: number_or(settings, "samples", &[("all", None)], 1, Some)?,
            feed_forward: number_or(settings, "feed-forward", &[], 1, |parts| parts)?,
            reuse: settings.word_or_auto(
                "reuse",
                &[("output", Reuse::Output(0.0)), ("first-block", Reuse::FirstBlock(0.0)), ("off", Reuse::Off)],
            )?,
        })
    }

    /// The plan with the parts that the user chose.
    #[must_use]
    pub fn apply(&self, plan: Plan, request: &Request) -> Plan {
        let Self { products, weights, residency, attention, guidance, samples, feed_forward, reuse } = *self;
        let plan = match reuse {
            None => plan,
            Some(reuse) => plan.reusing_by(reuse, request),
        };
        Plan {
            products: products.unwrap_or(plan.products),
            weights: weights.unwrap_or(plan.weights),
            residency: residency.unwrap_or(plan.residency),
            attention: attention.unwrap_or(plan.attention),
            guidance: guidance.unwrap_or(plan.guidance),
            samples: samples.unwrap_or(plan.samples),
            feed_forward: feed_forward.unwrap_or(plan.feed_forward),
            ..plan
        }
    }
}

/// The setting that every policy with a choice of types has.
///
/// # Errors
/// One line with the words, if the text is none of them.
pub fn precision(settings: &Settings) -> Result<Option<Precision>, String> {
    settings.word_or_auto("precision", &Precision::WORDS)
}

/// A setting of words, `auto` among them, or of a number.
fn number_or<T: Copy>(
    settings: &Settings,
    name: &str,
    words: &[(&str, T)],
    least: u32,
    number: impl FnOnce(u32) -> T,
) -> Result<Option<T>, String> {
    let text = settings.text(name)?;
    if text == "auto" {
        return Ok(None);
    }
    if let Some((_, meaning)) = words.iter().find(|(word, _)| *word == text) {
        return Ok(Some(*meaning));
    }
    let given = text.parse().ok().filter(|given| (least..=MOST).contains(given));
    given.map(|given| Some(number(given))).ok_or_else(|| {
        let words: String = words.iter().map(|(word, _)| [*word, ", "].concat()).collect();
        [name, "=", text, ": allowed is auto, ", &words, &least.to_string(), " to ", &MOST.to_string()].concat()
    })
}
