//! The walk through the folders of places: each real file is found one time, whatever number of
//! names lead to it, and no folder is entered below itself.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use serde::Serialize;
use tilewright_models::PICKLE_ENDINGS;

use super::places::{Keeping, Place, REPOSITORY};

/// The most files of a place that are looked into, and the depth of its folders.
const MOST_FILES: usize = 4096;
const DEEPEST: usize = 6;

/// The description of a pipeline in its folder.
const PIPELINE: &str = "model_index.json";

/// Ends of names of files of weights besides pickles', the longest first.
const ENDINGS: [&str; 5] = [".safetensors.index.json", ".bin.index.json", ".safetensors", ".sft", ".gguf"];

/// A file or folder itself, whatever it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Inode {
    device: u64,
    inode: u64,
}

impl Inode {
    /// That of a path, through links; none if it leads nowhere.
    pub(super) fn of(path: &Path) -> Option<Self> {
        fs::metadata(path).ok().map(|facts| Self { device: facts.dev(), inode: facts.ino() })
    }
}

/// A further name of a file, and the path that it is found by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OtherName {
    /// The name by which --model takes it.
    pub name: String,
    /// The path.
    pub path: PathBuf,
}

/// A file to look into.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    /// The number of its place, and of the folder in it.
    pub place: usize,
    pub folder: usize,
    pub name: String,
    /// The file itself.
    pub file: PathBuf,
    /// The path by which it is opened.
    pub path: PathBuf,
    pub pipeline: Option<PathBuf>,
    pub also: Vec<OtherName>,
}

/// The files of all places, in the order of places and paths.
pub(super) fn collect(places: &[Place]) -> Vec<Candidate> {
    let mut walk = Walk::default();
    for (place, of) in places.iter().enumerate() {
        walk.enter(place, of);
    }
    let mut found = unite(walk.found);
    found.sort_by(|one, other| (one.place, &one.path).cmp(&(other.place, &other.path)));
    found.iter_mut().for_each(|file| file.also.sort_by(|one, other| one.path.cmp(&other.path)));
    found
}

/// Makes one of all files that are the same: the first one, which keeps the names of the others.
/// Parts of pipelines go before files that stand alone, and stay as many as they are: two parts may
/// be links to one blob.
fn unite(found: Vec<Candidate>) -> Vec<Candidate> {
    let (parts, alone): (Vec<_>, Vec<_>) = found.into_iter().partition(|file| file.pipeline.is_some());
    let (mut united, mut known) = (Vec::<Candidate>::new(), HashMap::new());
    for (is_part, file) in parts.into_iter().map(|file| (true, file)).chain(alone.into_iter().map(|file| (false, file)))
    {
        // An index may be the same for two models: its shards are not.
        let files: Option<Vec<Inode>> =
            tilewright_models::files_of(&file.file).iter().map(|path| Inode::of(path)).collect();
        let first = files.as_ref().and_then(|files| known.get(files)).copied();
        match first {
            Some(first) if !is_part => {
                let Candidate { name, path, .. } = file;
                let of: &mut Candidate = &mut united[first];
                of.also.push(OtherName { name, path });
            }
            _ => {
                if let Some(files) = files {
                    known.entry(files).or_insert(united.len());
                }
                united.push(file);
            }
        }
    }
    united
}

/// A folder that a link leads to, which waits until the real ones are done.
struct Link {
    path: PathBuf,
    depth: usize,
}

#[derive(Default)]
struct Walk {
    entered: HashSet<Inode>,
    links: VecDeque<Link>,
    found: Vec<Candidate>,
    /// The number of files that were found before the place at work.
    before: usize,
}

/// The place at work.
#[derive(Clone, Copy)]
struct At<'a> {
    place: usize,
    folder: usize,
    /// The repository, whose name everything in it has.
    repository: Option<&'a str>,
}

impl At<'_> {
    fn name(&self, own: String) -> String {
        self.repository.map_or(own, str::to_owned)
    }
}

impl Walk {
    fn enter(&mut self, place: usize, of: &Place) {
        self.before = self.found.len();
        for (folder, path) in of.folders().enumerate() {
            let at = At { place, folder, repository: None };
            if of.keeping != Keeping::HuggingFace {
                self.walk(at, path);
                continue;
            }
            for repository in folders(path) {
                let name = file_name(&repository);
                if let (Some(name), Some(snapshot)) = (name.strip_prefix(REPOSITORY), snapshot(&repository)) {
                    self.walk(At { repository: Some(&name.replace("--", "/")), ..at }, &snapshot);
                }
            }
        }
        if self.is_full() {
            tracing::warn!("{}: more than {MOST_FILES} files: the others are left out", of.path.display());
        }
    }

    fn is_full(&self) -> bool {
        self.found.len() - self.before >= MOST_FILES
    }

    /// Walks a folder: first what really lies in it, so that files have their own names before
    /// those of links.
    fn walk(&mut self, at: At<'_>, folder: &Path) {
        self.step(at, folder, 0);
        while let Some(Link { path, depth }) = self.links.pop_front() {
            match path.is_dir() {
                true => self.step(at, &path, depth),
                false => self.take(at, path),
            }
        }
    }

    fn step(&mut self, at: At<'_>, folder: &Path, depth: usize) {
        if self.is_full() || Inode::of(folder).is_none_or(|inode| !self.entered.insert(inode)) {
            return;
        }
        if folder.join(PIPELINE).is_file() {
            return self.take_pipeline(at, folder);
        }
        let mut paths = entries(folder);
        paths.retain(|path| !file_name(path).starts_with('.'));
        let (inner, files): (Vec<PathBuf>, Vec<PathBuf>) = paths.into_iter().partition(|path| path.is_dir());
        for path in tilewright_models::models_among(&files) {
            match path.is_symlink() {
                true => self.links.push_back(Link { path, depth }),
                false => self.take(at, path),
            }
        }
        for path in inner.into_iter().filter(|_| depth < DEEPEST) {
            let depth = depth + 1;
            match path.is_symlink() {
                // A folder above has nothing that is not beside the link already.
                true if is_above(&path) => {}
                true => self.links.push_back(Link { path, depth }),
                false => self.step(at, &path, depth),
            }
        }
    }

    fn take(&mut self, at: At<'_>, path: PathBuf) {
        if self.is_full() {
            return;
        }
        let own = file_name(&path);
        let own = ENDINGS
            .iter()
            .chain(&PICKLE_ENDINGS)
            .find_map(|ending| own.strip_suffix(ending))
            .unwrap_or(&own)
            .to_owned();
        let own = tilewright_models::whole_of(&file_name(&path)).map_or(own, str::to_owned);
        let (name, file) = (at.name(own), path.clone());
        let (pipeline, also) = (None, Vec::new());
        self.found.push(Candidate { place: at.place, folder: at.folder, name, file, path, pipeline, also });
    }

    fn take_pipeline(&mut self, at: At<'_>, folder: &Path) {
        for path in folders(folder) {
            let Ok(file) = tilewright_models::find_part(&path, &[]) else { continue };
            let (name, pipeline) = (at.name(file_name(folder)), Some(folder.to_owned()));
            let also = Vec::new();
            self.found.push(Candidate { place: at.place, folder: at.folder, name, file, path, pipeline, also });
        }
    }
}

/// True if a link leads to a folder that it lies in, at any depth.
fn is_above(link: &Path) -> bool {
    let parent = link.parent().and_then(|parent| parent.canonicalize().ok());
    link.canonicalize().is_ok_and(|target| parent.is_some_and(|parent| parent.starts_with(target)))
}

/// The snapshot of a repository that `main` names, or the newest one.
fn snapshot(repository: &Path) -> Option<PathBuf> {
    let snapshots = repository.join("snapshots");
    let main = tilewright_files::read_text(&repository.join("refs/main"), 256).ok();
    let main =
        main.map(|text| snapshots.join(text.trim())).filter(|path| path.starts_with(&snapshots) && path.is_dir());
    main.or_else(|| {
        let changed = |path: &PathBuf| fs::metadata(path).and_then(|facts| facts.modified()).ok();
        folders(&snapshots).into_iter().max_by_key(changed)
    })
}

/// The contents of a folder, in order.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    found.sort();
    found
}

/// The folders in a folder, in order.
fn folders(folder: &Path) -> Vec<PathBuf> {
    entries(folder).into_iter().filter(|path| path.is_dir()).collect()
}

pub(super) fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
