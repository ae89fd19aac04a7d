//! Checks a plan against the engine's capabilities, by a table of rules that are applied in order.
//! A rule leaves the plan alone, or brings one part of it into range with a note. A plan that no
//! range could mend is nonsense.
//!
//! If frames of a clip are delivered already, the causal cache of their plan goes on under the next
//! one: in one piece or in bands as before, in the same tiles, and in no narrower type.

mod bounds;
mod denoise;
mod rules;
mod text;

use std::fmt::{self, Display};

use tilewright_plan::{
    Attempt, Capabilities, Dtype, Layout, MOST_OPTIONS, OptionChange, Options, Plan, Precision, Question, Space, Tile,
    Time, Vae, Work,
};

use self::rules::{NONSENSE, RULES};
pub(crate) use self::{bounds::Bounds, denoise::DenoiseBounds};

/// The detail of a fallback for an answer that has failed before.
pub const REPEATED: &str = "a plan that has failed before";

/// A part of a plan as a note shows it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part {
    Number(u32),
    Flag(bool),
    Space(Space),
    Precision(Precision),
    Layout(Layout),
    Time(Time),
    Words(String),
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Number(number) => number.fmt(f),
            Part::Flag(flag) => flag.fmt(f),
            Part::Space(space) => space.fmt(f),
            Part::Precision(precision) => precision.fmt(f),
            Part::Layout(layout) => layout.fmt(f),
            Part::Time(time) => time.fmt(f),
            Part::Words(words) => words.fmt(f),
        }
    }
}

/// A change that a rule made.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Change {
    from: Part,
    to: Part,
}

/// A change in the words that people read.
fn said(from: impl Display, to: impl Display) -> Change {
    Change { from: Part::Words(from.to_string()), to: Part::Words(to.to_string()) }
}

/// Changes a part that has a name in records; none if it is that already.
fn change<T: Copy + PartialEq + Display>(place: &mut T, to: T) -> Option<Change> {
    let from = std::mem::replace(place, to);
    (from != to).then(|| said(from, to))
}

/// One row of a table: the part that it is about, the reason that it gives, and the change that it
/// makes. Names in braces stand for values of the bounds.
pub(crate) struct Rule<W: Bounded> {
    subject: &'static str,
    because: &'static str,
    fit: fn(&mut W::Plan, &W::Bounds) -> Option<Change>,
}

/// True if a plan makes no sense in one respect.
pub(crate) type Predicate<P> = fn(&P) -> bool;

/// Work whose plans have bounds.
pub(crate) trait Bounded: Work {
    /// The ranges that a plan has to lie in.
    type Bounds: Clone + Send + Sync + 'static;

    /// The bounds of a question's plans.
    fn bounds(question: &Question<'_, Self>) -> Self::Bounds;

    /// The plans that can be carried out, as the bounds have them.
    fn capabilities(bounds: &Self::Bounds) -> &Self::Capabilities;

    /// The options of work under way that has to keep them.
    fn begun_options(_bounds: &Self::Bounds) -> Option<&Options> {
        None
    }

    /// Answers without a meaning: no range says what was meant.
    fn nonsense() -> &'static [(Predicate<Self::Plan>, &'static str)];

    /// Every range, in the order of application: a later one may rely on the earlier ones.
    fn rules() -> &'static [Rule<Self>];

    /// The values that names in reasons stand for.
    fn values(bounds: &Self::Bounds) -> Vec<(&'static str, u32)>;

    /// True if a plan repeats a failed one: it differs in nothing that makes the failure less
    /// likely.
    fn repeats(plan: &Self::Plan, attempt: &Attempt<Self>) -> bool;
}

/// A change that was made to a plan, and why.
pub(crate) enum Note<'a, W: Bounded> {
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

impl<W: Bounded> fmt::Display for Note<'_, W> {
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
        let because = W::values(bounds)
            .into_iter()
            .fold(rule.because.to_owned(), |text, (name, value)| text.replace(name, &value.to_string()));
        match rule.subject {
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
pub(crate) fn fit<W: Bounded>(
    plan: &mut W::Plan,
    bounds: &W::Bounds,
    notes: &mut dyn FnMut(Note<'_, W>),
) -> Result<(), &'static str> {
    if let Some((_, nonsense)) = W::nonsense().iter().find(|(makes_none, _)| makes_none(plan)) {
        return Err(nonsense);
    }
    if W::options(plan).len() > MOST_OPTIONS {
        return Err("more than 64 options");
    }
    for rule in W::rules() {
        if let Some(change) = (rule.fit)(plan, bounds) {
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
            let offered = W::offered_options(W::capabilities(bounds));
            W::options_mut(plan).fit(offered, |change| notes(Note::Option(change)));
        }
    }
    Ok(())
}

impl Bounded for Vae {
    type Bounds = Bounds;

    fn bounds(question: &Question<'_>) -> Bounds {
        Bounds::new(question.request, question.capabilities, question.under_way)
    }

    fn capabilities(bounds: &Bounds) -> &Capabilities {
        &bounds.capabilities
    }

    fn begun_options(bounds: &Bounds) -> Option<&Options> {
        bounds.running.as_ref().map(|running| &running.options)
    }

    fn nonsense() -> &'static [(Predicate<Plan>, &'static str)] {
        NONSENSE
    }

    fn rules() -> &'static [Rule<Vae>] {
        RULES
    }

    fn values(bounds: &Bounds) -> Vec<(&'static str, u32)> {
        vec![
            ("{unit}", bounds.unit()),
            ("{least}", bounds.capabilities.tile_least),
            ("{batch}", bounds.capabilities.batch_most),
            ("{prefetch}", bounds.capabilities.prefetch_most),
            ("{scale}", bounds.scale),
        ]
    }

    fn repeats(plan: &Plan, attempt: &Attempt) -> bool {
        repeats(plan, attempt)
    }
}

/// True if a plan repeats a failed one: it differs in nothing that makes the failure less likely.
///
/// Memory use and overflow come from the work that runs at once: parts of the same size, as many
/// together, in the same type and with as much kept in host memory. Plans that differ only in the
/// release of memory, memory order, overlap of parts or prefetch are the same plan here.
pub(crate) fn repeats(plan: &Plan, attempt: &Attempt) -> bool {
    let tried = &attempt.plan;
    let bare = |space: Space| match space {
        Space::Whole => Space::Whole,
        Space::Blended(tile) => Space::Blended(Tile { overlap: 0, ..tile }),
        Space::Exact(tile) => Space::Exact(Tile { overlap: 0, ..tile }),
    };
    plan.precision == tried.precision
        && bare(plan.space) == bare(tried.space)
        && plan.time == tried.time
        && plan.batch == tried.batch
        && plan.offload == tried.offload
        && plan.options == tried.options
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

#[cfg(test)]
mod tests;
