//! The analysis of a recording: from events to rows.

mod categories;
mod operators;
mod parts;

use crate::{
    Category, Facts, Kind, Profile, Recording, Result, Track, advice,
    attribution::Attribution,
    tree::{Node, Tree},
};

/// The unit of [`Facts::compared`] that is all of the stage.
const WHOLE: &str = "the stage";

/// Nanoseconds by category.
type Times = [f64; Category::ALL.len()];

/// A recording that is being analysed.
struct Analysis<'a> {
    tree: Tree<'a>,
    attribution: Attribution,
    facts: &'a Facts,
    /// True if times are those of kernels.
    by_kernels: bool,
}

impl Profile {
    /// The profile of a recording.
    ///
    /// # Errors
    /// [`Error::Stages`](crate::Error::Stages) unless one event is the stage.
    pub fn of(recording: &Recording, facts: Facts) -> Result<Self> {
        let tree = Tree::of(recording, &facts.stage)?;
        let attribution = Attribution::of(&tree);
        let has_kernels = tree.iter().any(|(_, _, event)| is_kernel(event.kind) && is_stream(event.track));
        let analysis = Analysis { by_kernels: facts.on_gpu && has_kernels, tree, attribution, facts: &facts };
        let stage_ms = milliseconds((analysis.tree.stage.end - analysis.tree.stage.start) as f64);
        let [unprofiled, profiled] = facts.compared_ms;
        let overhead = Some(profiled / unprofiled - 1.0).filter(|over| over.is_finite() && *over > -1.0);
        let overhead = overhead.unwrap_or_default();
        let is_whole = facts.compared == WHOLE && unprofiled > 0.0 && unprofiled.is_finite();
        let mut notes = Vec::new();
        if facts.on_gpu && !has_kernels {
            notes.push("no kernel of the GPU was recorded: times are the host's".to_owned());
        }
        if unprofiled <= 0.0 {
            let rest = "the work went on after an attempt that failed, and could not be rehearsed";
            notes.push(format!("the profiler's overhead was not measured: {rest}"));
        }
        if facts.peaks_are_rough {
            let measure = "'tilewright device' measures it again";
            notes.push(format!(
                "the device was busy when its peaks were measured, so that roofs are too low: {measure}"
            ));
        }
        let (layers, parts) = analysis.parts();
        let mut profile = Self {
            stage_ms,
            overhead,
            unprofiled_ms: if is_whole { unprofiled } else { stage_ms / (1.0 + overhead) },
            notes,
            categories: analysis.categories(),
            operators: analysis.operators(),
            kernels: analysis.kernels(),
            layers,
            parts,
            advice: Vec::new(),
            // They stand beside what was measured now.
            facts: Facts { estimated_parts: Vec::new(), ..facts.clone() },
        };
        profile.advice = advice::of(&profile);
        Ok(profile)
    }
}

const fn is_kernel(kind: Kind) -> bool {
    matches!(kind, Kind::Kernel | Kind::Transfer)
}

const fn is_stream(track: Track) -> bool {
    matches!(track, Track::Stream { .. })
}

fn milliseconds(nanoseconds: f64) -> f64 {
    nanoseconds / 1e6
}

/// The category of most of the time; the first of equal ones.
fn most(times: &Times) -> Category {
    let longer = |best: Category, category: Category| {
        if times[category as usize] > times[best as usize] { category } else { best }
    };
    let [first, rest @ ..] = Category::ALL;
    rest.into_iter().fold(first, longer)
}

impl Analysis<'_> {
    /// Nanoseconds of kernels that each node launched itself.
    fn launched_times(&self) -> Vec<f64> {
        let mut times = vec![0.0; self.tree.nodes.len()];
        for (node, launcher) in self.tree.nodes.iter().zip(&self.attribution.launchers) {
            if let Some(launcher) = launcher {
                times[*launcher] += node.duration() as f64;
            }
        }
        times
    }

    /// The nodes of the host in order.
    fn host_nodes(&self) -> impl Iterator<Item = (usize, &Node)> {
        let threads = self.tree.tracks.iter().filter(|(track, _)| !is_stream(*track));
        threads.flat_map(|(_, range)| range.clone().map(|index| (index, &self.tree.nodes[index])))
    }
}
