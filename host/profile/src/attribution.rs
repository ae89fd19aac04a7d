//! The category of each event by its kind, its name and what it lies within, and the operators that
//! launched kernels.

use std::collections::HashMap;

use crate::{
    Category::{self, Attention, Convolution, Copies, Expansion, Gemm, Host, Layout, Norm},
    Kind, Track, names,
    tree::Tree,
};

/// The categories of nodes, and who launched them.
#[derive(Debug)]
pub struct Attribution {
    /// The category of each node.
    pub categories: Vec<Category>,
    /// The node of the host that launched each node of a stream, if it was recorded.
    pub launchers: Vec<Option<usize>>,
    /// True for nodes of the host that are at work for a GPU: neither parts nor waits.
    pub launches: Vec<bool>,
}

/// A category in which all belongs to the outer operation.
const fn is_closed(category: Category) -> bool {
    matches!(category, Norm | Attention | Expansion)
}

/// A category beside whose products copies and conversions are worth seeing.
const fn has_copies_beside(category: Category) -> bool {
    matches!(category, Gemm | Convolution)
}

impl Attribution {
    /// The attribution of a tree's nodes.
    pub fn of(tree: &Tree<'_>) -> Self {
        let count = tree.nodes.len();
        let of_names = Names::of(tree);
        let mut categories = vec![Host; count];
        let mut launches = vec![false; count];
        // The category of the operation or the operator that a node and those within it belong to.
        let mut owners: Vec<Option<Category>> = vec![None; count];
        let (mut busy, mut waits) = (vec![false; count], vec![false; count]);
        let mut numbered: HashMap<u64, usize> = HashMap::new();
        for (index, node, event) in tree.iter() {
            let outer = node.parent.and_then(|parent| owners[parent]);
            let (category, owner) = match event.kind {
                Kind::Part(_) => (outer.unwrap_or(Host), outer),
                Kind::Operation(own, _) => {
                    let category = outer.filter(|outer| is_closed(*outer)).unwrap_or(own);
                    (category, Some(category))
                }
                Kind::Operator => of_operator(of_names.operators[node.name], outer),
                Kind::Call => (Host, outer),
                Kind::Kernel => (of_names.kernels[node.name], None),
                Kind::Transfer => (Copies, None),
            };
            (categories[index], owners[index]) = (category, owner);
            let inherited = |of: &[bool]| node.parent.is_some_and(|parent| of[parent]);
            let is_call = matches!(event.kind, Kind::Operation(..) | Kind::Operator | Kind::Call);
            busy[index] = is_call || inherited(&busy);
            waits[index] = (is_call && of_names.waits[node.name]) || inherited(&waits);
            launches[index] = busy[index] && !waits[index];
            if is_call && event.id != 0 && matches!(event.track, Track::Thread(_)) {
                numbered.insert(event.id, index);
            }
        }
        let mut launchers = vec![None; count];
        for (index, _, event) in tree.iter() {
            if !matches!(event.kind, Kind::Kernel | Kind::Transfer) {
                continue;
            }
            launchers[index] = numbered.get(&event.launched_by).copied().filter(|_| event.launched_by != 0);
            // Calls have no category of their own, and allocation launches no kernel of its kind.
            let operator = launchers[index].and_then(|launcher| operator_of(tree, &numbered, launcher));
            if let Some(category) = operator.map(|operator| categories[operator]).filter(|category| *category != Host) {
                categories[index] = category;
            }
        }
        Self { categories, launchers, launches }
    }

    /// True for a node of the host in which nothing of a network is computed: a part by itself.
    pub fn is_idle(&self, tree: &Tree<'_>, node: usize) -> bool {
        matches!(tree.event(node).kind, Kind::Part(_)) && self.categories[node] == Host
    }
}

/// The category of an operator, and the one that those within it belong to.
fn of_operator(own: Category, outer: Option<Category>) -> (Category, Option<Category>) {
    let is_beside = matches!(own, Copies | Layout);
    match outer {
        Some(outer) if !(is_beside && has_copies_beside(outer)) => (outer, Some(outer)),
        _ => (own, Some(own).filter(|own| is_beside || is_closed(*own) || has_copies_beside(*own))),
    }
}

/// The operator or the operation of a launcher, which may be a call.
fn operator_of(tree: &Tree<'_>, numbered: &HashMap<u64, usize>, launcher: usize) -> Option<usize> {
    let of = |node: usize| matches!(tree.event(node).kind, Kind::Operator | Kind::Operation(..)).then_some(node);
    let caller = || of(*numbered.get(&tree.event(launcher).launched_by)?);
    of(launcher).or_else(caller).or_else(|| of(tree.nodes[launcher].parent?))
}

/// The meaning of each name, as an operator's and as a kernel's.
struct Names {
    operators: Vec<Category>,
    kernels: Vec<Category>,
    waits: Vec<bool>,
}

impl Names {
    fn of(tree: &Tree<'_>) -> Self {
        Self {
            operators: tree.names.iter().map(|name| names::of_operator(name)).collect(),
            kernels: tree.names.iter().map(|name| names::of_kernel(name)).collect(),
            waits: tree.names.iter().map(|name| names::is_wait(name)).collect(),
        }
    }
}
