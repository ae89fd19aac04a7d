//! Traces in Chrome's trace event format, which Perfetto and `chrome://tracing` open.

use std::{
    collections::BTreeMap,
    io::{self, BufWriter, Write},
    path::Path,
};

use serde::Serialize;
use tilewright_outputs::{place, temporary};

use crate::{Kind, Profile, Recording, Result, Track, attribution::Attribution, error::write_error, tree::Tree};

/// The number of the host's process; a GPU's is above it by its own number and one.
const HOST: u64 = 1;

/// An entry of a trace. Times are in microseconds.
#[derive(Default, Serialize)]
struct Entry<'a> {
    name: &'a str,
    ph: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    cat: &'a str,
    pid: u64,
    tid: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    /// The end of an arrow belongs to the slice around it.
    #[serde(skip_serializing_if = "Option::is_none")]
    bp: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Arguments<'a>>,
}

/// The figures beside an entry.
#[derive(Default, Serialize)]
struct Arguments<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stage: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    category: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    part: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    operations: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<f64>,
}

/// A trace while it is written.
struct Trace<W> {
    to: W,
    is_first: bool,
    /// The number of each track's line, in the order of appearance.
    lines: BTreeMap<Track, u64>,
    arrows: u64,
}

/// Writes the stages one after the other into one trace. An older file is replaced once all is
/// written.
///
/// # Errors
/// [`Error::Stages`](crate::Error::Stages) if a recording is not of one stage,
/// [`Error::Write`](crate::Error::Write) if the file can't be written.
pub fn write_trace(path: &Path, stages: &[(Profile, Recording)]) -> Result<()> {
    let trees: Vec<(&str, Tree<'_>)> = stages
        .iter()
        .map(|(profile, recording)| {
            let stage = profile.facts.stage.as_str();
            Ok((stage, Tree::of(recording, stage)?))
        })
        .collect::<Result<_>>()?;
    let written = || -> io::Result<()> {
        let file = temporary(path, ".tmp")?;
        let mut to = BufWriter::new(file.as_file());
        write(&mut to, &trees)?;
        to.flush()?;
        drop(to);
        place(file, path)
    };
    written().map_err(write_error(path))
}

fn write(to: impl Write, stages: &[(&str, Tree<'_>)]) -> io::Result<()> {
    let mut trace = Trace { to, is_first: true, lines: BTreeMap::new(), arrows: 0 };
    trace.to.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n")?;
    for (_, tree) in stages {
        for (track, _) in &tree.tracks {
            let next = trace.lines.len() as u64 + 1;
            trace.lines.entry(*track).or_insert(next);
        }
    }
    trace.names()?;
    let mut offset = 0;
    for (stage, tree) in stages {
        trace.stage(stage, tree, offset)?;
        offset += tree.stage.end - tree.stage.start;
    }
    trace.to.write_all(b"\n]}\n")
}

impl<W: Write> Trace<W> {
    fn entry(&mut self, entry: &Entry<'_>) -> io::Result<()> {
        if !std::mem::take(&mut self.is_first) {
            self.to.write_all(b",\n")?;
        }
        serde_json::to_writer(&mut self.to, entry).map_err(io::Error::from)
    }

    /// The numbers of a track's process and line.
    fn place(&self, track: Track) -> (u64, u64) {
        let process = match track {
            Track::Thread(_) => HOST,
            Track::Stream { device, .. } => HOST + 1 + u64::from(device),
        };
        (process, self.lines.get(&track).copied().unwrap_or_default())
    }

    /// The names of processes and lines.
    fn names(&mut self) -> io::Result<()> {
        let mut processes = BTreeMap::new();
        let tracks: Vec<Track> = self.lines.keys().copied().collect();
        for track in tracks {
            let (pid, tid) = self.place(track);
            let (process, line) = match track {
                Track::Thread(thread) => ("host".to_owned(), format!("thread {thread}")),
                Track::Stream { device, stream } => (format!("GPU {device}"), format!("GPU {device} stream {stream}")),
            };
            let named = |name| Some(Arguments { name: Some(name), ..Arguments::default() });
            if processes.insert(pid, ()).is_none() {
                self.entry(&Entry { name: "process_name", ph: "M", pid, args: named(process), ..Entry::default() })?;
            }
            self.entry(&Entry { name: "thread_name", ph: "M", pid, tid, args: named(line), ..Entry::default() })?;
        }
        Ok(())
    }

    /// The events of a stage, `offset` nanoseconds after the trace's start.
    fn stage(&mut self, stage: &str, tree: &Tree<'_>, offset: u64) -> io::Result<()> {
        let attribution = Attribution::of(tree);
        let microseconds = |time: u64| (time - tree.stage.start + offset) as f64 / 1e3;
        for (index, node, event) in tree.iter() {
            let (pid, tid) = self.place(event.track);
            let category = attribution.categories[index].name();
            let mut args = Arguments { stage: Some(stage), category: Some(category), ..Arguments::default() };
            match event.kind {
                Kind::Part(part) => (args.part, args.category) = (Some(part.name()), None),
                Kind::Operation(_, amount) => {
                    (args.operations, args.bytes) = (Some(amount.operations), Some(amount.bytes));
                }
                _ => {}
            }
            let cat = if args.part.is_some() { "part" } else { category };
            let ts = Some(microseconds(node.start));
            let dur = Some(node.duration() as f64 / 1e3);
            self.entry(&Entry {
                name: &event.name,
                ph: "X",
                cat,
                pid,
                tid,
                ts,
                dur,
                args: Some(args),
                ..Entry::default()
            })?;
            let launcher = attribution.launchers[index].filter(|launcher| tree.nodes[*launcher].start <= node.start);
            if let Some(launcher) = launcher {
                let from = self.place(tree.event(launcher).track);
                self.arrow([from, (pid, tid)], [tree.nodes[launcher].start, node.start].map(microseconds))?;
            }
        }
        Ok(())
    }

    /// An arrow from an operator to a kernel that it launched.
    fn arrow(&mut self, places: [(u64, u64); 2], times: [f64; 2]) -> io::Result<()> {
        self.arrows += 1;
        for (index, ph) in ["s", "f"].into_iter().enumerate() {
            let (pid, tid) = places[index];
            let bp = (ph == "f").then_some("e");
            let (ts, id) = (Some(times[index]), Some(self.arrows));
            self.entry(&Entry { name: "launch", ph, cat: "launch", pid, tid, ts, id, bp, ..Entry::default() })?;
        }
        Ok(())
    }
}
