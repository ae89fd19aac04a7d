//! The nesting of events: a tree for each thread and stream, within the stage's range.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap},
    ops::Range,
};

use crate::{Error, Event, Kind, Part, Recording, Result, Track};

/// An event with its place in the tree of its track.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    /// The index of the event in the recording.
    pub event: usize,
    /// The node that it lies within, which comes before it.
    pub parent: Option<usize>,
    /// Nanoseconds since the recording began, within the parent and the stage.
    pub start: u64,
    /// The same at its end.
    pub end: u64,
    /// The index of its name among the tree's.
    pub name: usize,
    /// The index of its track among the tree's.
    track: usize,
    /// True if it lies in no event of the same name and kind.
    pub is_outermost: bool,
}

impl Node {
    /// Nanoseconds within the stage.
    pub const fn duration(&self) -> u64 {
        self.end - self.start
    }
}

/// A time in which a node runs and none within it does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The node.
    pub node: usize,
    /// Nanoseconds since the recording began.
    pub start: u64,
    /// The same at its end.
    pub end: u64,
}

/// The events of a recording within its stage.
#[derive(Debug)]
pub struct Tree<'a> {
    recording: &'a Recording,
    /// The stage's range.
    pub stage: Range<u64>,
    /// The nodes by track, each before those that lie within it.
    pub nodes: Vec<Node>,
    /// The nodes of each track.
    pub tracks: Vec<(Track, Range<usize>)>,
    /// Every name once for each kind of event that has it.
    pub names: Vec<&'a str>,
    /// The node of the stage.
    pub root: usize,
}

impl<'a> Tree<'a> {
    /// The tree of a recording; `stage` is its name in errors.
    ///
    /// # Errors
    /// [`Error::Stages`] unless one event is the stage.
    pub fn of(recording: &'a Recording, stage: &str) -> Result<Self> {
        let is_stage = |event: &&Event| event.kind == Kind::Part(Part::Stage);
        let found: Vec<&Event> = recording.events.iter().filter(is_stage).collect();
        let [root] = found[..] else {
            return Err(Error::Stages { stage: stage.to_owned(), found: found.len() });
        };
        let range = root.start..root.end.max(root.start);
        let mut tree = Self {
            recording,
            stage: range.clone(),
            nodes: Vec::with_capacity(recording.events.len()),
            tracks: Vec::new(),
            names: Vec::new(),
            root: 0,
        };
        let tracks: BTreeSet<Track> = recording.events.iter().map(|event| event.track).collect();
        tree.tracks = tracks.into_iter().map(|track| (track, 0..0)).collect();
        let mut known = HashMap::new();
        for (event, Event { name, start, end, kind, track, .. }) in recording.events.iter().enumerate() {
            let is_root = *kind == Kind::Part(Part::Stage);
            let end = (*end).max(*start);
            if !is_root && (*start >= range.end || end < range.start || (end == range.start && *start < end)) {
                continue;
            }
            let name = *known.entry((name.as_str(), rank(*kind))).or_insert_with(|| {
                tree.names.push(name);
                tree.names.len() - 1
            });
            let track = tree.tracks.partition_point(|(known, _)| known < track);
            let [start, end] = [*start, end].map(|time| time.clamp(range.start, range.end));
            tree.nodes.push(Node { event, parent: None, start, end, name, track, is_outermost: true });
        }
        tree.nodes.sort_by(|one, other| {
            let key = |node: &Node| (node.track, node.start, Reverse(node.end));
            let tie = |node: &Node| {
                let event = &recording.events[node.event];
                (rank(event.kind), event.id, node.event)
            };
            key(one).cmp(&key(other)).then_with(|| tie(one).cmp(&tie(other)))
        });
        let mut first = 0;
        for nodes in tree.nodes.chunk_by(|one, other| one.track == other.track) {
            tree.tracks[nodes[0].track].1 = first..first + nodes.len();
            first += nodes.len();
        }
        for index in 0..tree.tracks.len() {
            tree.nest(tree.tracks[index].1.clone());
        }
        tree.root = tree.nodes.iter().position(|node| std::ptr::eq(tree.event_of(node), root)).unwrap_or_default();
        Ok(tree)
    }

    /// The event of a node.
    pub fn event(&self, node: usize) -> &'a Event {
        self.event_of(&self.nodes[node])
    }

    fn event_of(&self, node: &Node) -> &'a Event {
        &self.recording.events[node.event]
    }

    /// The nodes with what they are, in order.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Node, &'a Event)> {
        self.nodes.iter().enumerate().map(|(index, node)| (index, node, self.event_of(node)))
    }

    /// Gives each node of a track its parent, and cuts what lies beyond it.
    fn nest(&mut self, range: Range<usize>) {
        let mut open: Vec<usize> = Vec::new();
        let mut is_open = vec![false; self.names.len()];
        for index in range {
            while let Some(top) = open.last().copied() {
                let Node { start, end, .. } = self.nodes[top];
                let node = &mut self.nodes[index];
                node.start = node.start.max(start);
                node.end = node.end.max(node.start);
                if node.start < end {
                    let (within, beyond) = (end - node.start, node.end.saturating_sub(end));
                    if beyond <= within {
                        node.end = node.end.min(end);
                        node.parent = Some(top);
                        break;
                    }
                    // Clocks are not exact: most of it comes after, so it does not lie within.
                    node.start = end;
                }
                open.pop();
                if self.nodes[top].is_outermost {
                    is_open[self.nodes[top].name] = false;
                }
            }
            let name = self.nodes[index].name;
            self.nodes[index].is_outermost = !std::mem::replace(&mut is_open[name], true);
            open.push(index);
        }
    }

    /// The times of a track's nodes less those of the nodes within them, ascending, none empty.
    pub fn intervals(&self, range: Range<usize>) -> Vec<Interval> {
        let mut intervals = Vec::with_capacity(2 * range.len());
        let (mut open, mut time): (Vec<usize>, u64) = (Vec::new(), 0);
        let mut until = |node: Option<usize>, end: u64| {
            if let Some(node) = node.filter(|_| end > time) {
                intervals.push(Interval { node, start: time, end });
            }
            time = time.max(end);
        };
        for index in range {
            let node = &self.nodes[index];
            while open.last().is_some_and(|top| Some(*top) != node.parent) {
                let top = open.pop();
                until(top, top.map_or(0, |top| self.nodes[top].end));
            }
            until(open.last().copied(), node.start);
            open.push(index);
        }
        while let Some(top) = open.pop() {
            until(Some(top), self.nodes[top].end);
        }
        intervals
    }

    /// Nanoseconds of each node less those of the nodes within it.
    pub fn self_times(&self) -> Vec<u64> {
        let mut times: Vec<u64> = self.nodes.iter().map(Node::duration).collect();
        for node in &self.nodes {
            if let Some(parent) = node.parent {
                times[parent] = times[parent].saturating_sub(node.duration());
            }
        }
        times
    }
}

/// The order of events that take the same time: the outer one first.
fn rank(kind: Kind) -> u8 {
    match kind {
        Kind::Part(part) => part as u8,
        Kind::Operation(..) => 16,
        Kind::Operator => 17,
        Kind::Call => 18,
        Kind::Kernel | Kind::Transfer => 19,
    }
}
