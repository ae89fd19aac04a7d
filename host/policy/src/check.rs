//! Checks a plan against the engine's capabilities, by a table of rules that are applied in order.
//! A rule leaves the plan alone, or brings one part of it into range with a note. A plan that no
//! range could mend is nonsense.

use std::fmt::{self, Display};

use tilewright_plan::{Dtype, MOST_OPTIONS, OptionChange, Options, Precision, Work};

use crate::work::Planned;

/// The detail of a fallback for an answer that has failed before.
pub const REPEATED: &str = "a plan that has failed before";

/// A change that a rule made to a part of a plan, in the words that people read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Change {
    from: String,
    to: String,
}

pub(crate) fn said(from: impl Display, to: impl Display) -> Change {
    Change { from: from.to_string(), to: to.to_string() }
}

/// Changes a part; none if it is that already.
pub(crate) fn change<T: Copy + PartialEq + Display>(place: &mut T, to: T) -> Option<Change> {
    let from = std::mem::replace(place, to);
    (from != to).then(|| said(from, to))
}

pub(crate) fn change_if<T: Copy + PartialEq + Display>(applies: bool, place: &mut T, to: T) -> Option<Change> {
    if applies { change(place, to) } else { None }
}

pub(crate) fn fitted<T: Copy + PartialEq + Display>(place: &mut T, fit: impl FnOnce(T) -> T) -> Option<Change> {
    let to = fit(*place);
    change(place, to)
}

/// Changes a number that stands for all if it is missing.
pub(crate) fn number_or_all(place: &mut Option<u32>, to: Option<u32>) -> Option<Change> {
    let words = |number: Option<u32>| number.map_or("all".to_owned(), |number| number.to_string());
    let from = std::mem::replace(place, to);
    (from != to).then(|| said(words(from), words(to)))
}

/// Takes f32 for a type that is not offered.
pub(crate) fn offered(precision: &mut Precision, dtypes: &[Dtype]) -> Option<Change> {
    let dtype = precision.dtype();
    change_if(dtype != Dtype::F32 && !dtypes.contains(&dtype), precision, Precision::Uniform(Dtype::F32))
}

/// Takes f32 alone for f32 with f32.
pub(crate) fn unmixed(precision: &mut Precision) -> Option<Change> {
    change_if(*precision == Precision::Mixed(Dtype::F32), precision, Precision::Uniform(Dtype::F32))
}

/// One row of a table: the part that it is about, the reason that it gives, and the change that it
/// makes. Names in braces stand for values of the bounds.
pub(crate) type Rule<W> =
    (&'static str, &'static str, fn(&mut <W as Work>::Plan, &<W as Planned>::Bounds) -> Option<Change>);

/// True of a plan that makes no sense in one respect, and this respect in words.
pub(crate) type Nonsense<W> = (fn(&<W as Work>::Plan) -> bool, &'static str);

/// A change that was made to a plan, and why.
pub(crate) enum Note<'a, W: Planned> {
    /// By a rule of the table.
    Rule { rule: &'static Rule<W>, change: Change, bounds: &'a W::Bounds },
    /// A change of an option.
    Option(OptionChange),
    /// A change of all options, which stay as the work began.
    BegunOptions { asked: Options, begun: Options },
}

/// The most characters of an option's name or value in a note.
const MOST_SHOWN: usize = 64;

/// A text of a policy's, fit for a line.
fn shown(text: &str) -> String {
    text.escape_debug().take(MOST_SHOWN).collect()
}

impl<W: Planned> fmt::Display for Note<'_, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rule, change, bounds) = match self {
            Note::Rule { rule, change, bounds } => (rule, change, bounds),
            Note::BegunOptions { asked, begun } => {
                let [asked, begun] = [asked, begun].map(|options| shown(&options.in_words()));
                return write!(f, "options {asked} → {begun}: the clip is under way with these");
            }
            Note::Option(OptionChange { name, from, to, because }) => {
                let [name, from] = [name, &from.to_string()].map(|text| shown(text));
                return match to {
                    Some(to) => write!(f, "option {name} {from} → {to}: {because}"),
                    None => write!(f, "option {name}={from} left out: {because}"),
                };
            }
        };
        let (subject, because, _) = rule;
        let because = W::values(bounds)
            .into_iter()
            .fold((*because).to_owned(), |text, (name, value)| text.replace(name, &value.to_string()));
        match *subject {
            "" => f.write_str(&because),
            subject => write!(f, "{subject} {} → {}: {because}", change.from, change.to),
        }
    }
}

/// Brings a plan into the bounds and passes a note of each change to `notes`. An unchanged plan
/// costs no allocation.
///
/// # Errors
/// The part of the plan that makes no sense; the plan is then left as it was.
pub(crate) fn fit<W: Planned>(
    plan: &mut W::Plan,
    bounds: &W::Bounds,
    notes: &mut dyn FnMut(Note<'_, W>),
) -> Result<(), &'static str> {
    if let Some((_, nonsense)) = W::NONSENSE.iter().find(|(makes_none, _)| makes_none(plan)) {
        return Err(nonsense);
    }
    if W::options(plan).len() > MOST_OPTIONS {
        return Err("more than 64 options");
    }
    for rule in W::RULES {
        let (.., apply) = rule;
        if let Some(change) = apply(plan, bounds) {
            notes(Note::Rule { rule, change, bounds });
        }
    }
    match W::begun_options(bounds) {
        Some(begun) if begun != W::options(plan) => {
            let asked = std::mem::replace(W::options_mut(plan), begun.clone());
            notes(Note::BegunOptions { asked, begun: begun.clone() });
        }
        Some(_) => {}
        None => {
            let offered = W::offered_options(W::offer(bounds));
            W::options_mut(plan).fit(offered, |change| notes(Note::Option(change)));
        }
    }
    Ok(())
}

/// The rank of a precision by how much of a value it keeps: range first, since a value that
/// overflows is lost.
pub fn rank_precision(precision: Precision) -> u32 {
    match precision {
        Precision::Uniform(Dtype::F32) | Precision::Mixed(Dtype::F32) => 6,
        Precision::Uniform(Dtype::Tf32) | Precision::Mixed(Dtype::Tf32) => 5,
        Precision::Mixed(Dtype::Bf16) => 4,
        Precision::Mixed(Dtype::F16) => 3,
        Precision::Uniform(Dtype::Bf16) => 2,
        Precision::Uniform(Dtype::F16) => 1,
        Precision::Mixed(_) | Precision::Uniform(_) => 0,
    }
}
