//! Compiled code and verdicts on disk, so that a policy is compiled and checked once. Cached code
//! is run as it is, so it is only trusted in a directory that nobody but the user can write, under
//! a digest that covers the module's name. In any other directory there is no cache, and anything
//! odd means compiling again.
//!
//! An entry is a file: a SHA-256, then all that it covers: the entry's own name, a line break, the
//! contents. The name of compiled code carries the module's digest, wasmtime's version and the
//! configuration, so that no entry passes for another. Together the entries stay below
//! [`MOST_BYTES`]: the least recently used go first.

use std::{
    fs,
    hash::{Hash, Hasher},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime},
};

use rustix::fs::OFlags;
use sha2::{Digest, Sha256};
use tilewright_files::{UserFolder, digest::Fnv1a};
use wasmtime::{Engine, component::Component};

use crate::{code, limits::CompileLimits};

/// Bytes of the digest at the start of an entry.
const DIGEST: usize = 32;

/// The most bytes of all entries together.
const MOST_BYTES: u64 = 1 << 30;

/// The most entries: a verdict takes only a page, but adding one looks at every entry.
const MOST_ENTRIES: usize = 4096;

/// The most bytes of a verdict.
const TEXT_BYTES: usize = 4 << 20;

/// The age from which an unfinished entry counts as left behind by its writer.
const STALE: Duration = Duration::from_secs(3600);

/// File name endings: compiled code, a verdict, and either one unfinished.
const CODE: &str = "code";
const VERDICT: &str = "verdict";
const PART: &str = "part";

/// The directory that holds compiled policies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CacheDir {
    /// `$XDG_CACHE_HOME/tilewright/policies` or `~/.cache/tilewright/policies`.
    #[default]
    User,
    /// This one; it is created if it is missing.
    At(PathBuf),
    /// No directory: every load compiles.
    Off,
}

/// A directory that was found to be the user's own.
#[derive(Debug)]
pub(crate) struct Cache {
    dir: PathBuf,
    most_bytes: u64,
}

/// An entry that was found in the directory.
struct Entry {
    path: PathBuf,
    used: SystemTime,
    bytes: u64,
}

impl Cache {
    /// Opens the directory, or says in the log why there is no cache.
    pub fn open(place: &CacheDir) -> Option<Self> {
        let dir = match place {
            CacheDir::Off => return None,
            CacheDir::At(dir) => dir.clone(),
            CacheDir::User => UserFolder::Cache.path()?.join("policies"),
        };
        let opened = create_private_dir(&dir).and_then(|()| check_private(&fs::symlink_metadata(&dir)?, true));
        match opened {
            Ok(()) => Some(Self { dir, most_bytes: MOST_BYTES }),
            Err(error) => {
                tracing::warn!("compiled policies are not kept in {}: {error}", dir.display());
                None
            }
        }
    }

    /// The compiled code of the module with this digest, if there is a sound entry for it.
    pub fn get(&self, engine: &Engine, digest: &str, limits: &CompileLimits) -> Option<Component> {
        let name = code_name(engine, digest);
        match self.read(&name, limits.image_bytes).and_then(|code| code::read(engine, &code).map_err(io::Error::other))
        {
            Ok(component) => Some(component),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!("compiled policy {} is not used: {error}", self.dir.join(name).display());
                None
            }
        }
    }

    /// Writes compiled code for the next time, or says in the log why not.
    pub fn keep(&self, engine: &Engine, digest: &str, code: &[u8]) {
        self.write_or_warn(&code_name(engine, digest), code);
    }

    /// The text that was written under this name, if its entry is sound.
    pub fn text(&self, name: &str) -> Option<String> {
        String::from_utf8(self.read(&verdict_name(name), TEXT_BYTES).ok()?).ok()
    }

    /// Writes a text for the next time, or logs why not. The name begins with the module's digest
    /// in hexadecimal.
    pub fn keep_text(&self, name: &str, text: &str) {
        self.write_or_warn(&verdict_name(name), text.as_bytes());
    }

    /// Removes all entries of the module with this digest.
    pub fn forget(&self, digest: &str) {
        let module = hexadecimal(digest);
        let of_module =
            |entry: &Entry| entry.path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(module));
        for entry in self.entries().iter().filter(|entry| !module.is_empty() && of_module(entry)) {
            // An entry that is already gone needs no removal.
            let _ = fs::remove_file(&entry.path);
        }
    }

    /// The contents of an entry, if only the user can write it and its digest is right.
    fn read(&self, name: &str, most: usize) -> io::Result<Vec<u8>> {
        let mut options = fs::OpenOptions::new();
        // A FIFO in place of an entry would block; the target of a link need not be private.
        options.read(true).custom_flags((OFlags::NONBLOCK | OFlags::NOFOLLOW).bits() as i32);
        let file = options.open(self.dir.join(name))?;
        // The metadata of the open file, not of the path, so that it is the same file that is read.
        let metadata = file.metadata()?;
        check_private(&metadata, false)?;
        let sealed = (DIGEST + name.len() + 1) as u64;
        if metadata.len() > most as u64 + sealed {
            return Err(invalid("it is larger than any entry"));
        }
        let mut bytes = Vec::new();
        (&file).take(metadata.len()).read_to_end(&mut bytes)?;
        let (digest, rest) = bytes.split_at_checked(DIGEST).ok_or(io::ErrorKind::UnexpectedEof)?;
        if Sha256::digest(rest)[..] != *digest {
            return Err(invalid("it is damaged"));
        }
        if !rest.starts_with(name.as_bytes()) || rest.get(name.len()) != Some(&b'\n') {
            return Err(invalid("it is another entry's"));
        }
        // The modification time is the time of the last use. If it can't be set, the entry goes
        // sooner.
        let _ = file.set_modified(SystemTime::now());
        bytes.drain(..DIGEST + name.len() + 1);
        Ok(bytes)
    }

    fn write_or_warn(&self, name: &str, contents: &[u8]) {
        if let Err(error) = self.write(name, contents) {
            tracing::warn!("{} can't be written: {error}", self.dir.join(name).display());
        }
        self.shrink();
    }

    fn write(&self, name: &str, contents: &[u8]) -> io::Result<()> {
        // The name is unique per process and entry: two programs may compile the same policy at
        // once.
        static WRITTEN: AtomicU64 = AtomicU64::new(0);
        let (process, count) = (std::process::id(), WRITTEN.fetch_add(1, Ordering::Relaxed));
        let nanos = std::time::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.subsec_nanos());
        let part = self.dir.join(format!("{name}.{process}-{count}-{nanos}.{PART}"));
        let mut hasher = Sha256::new();
        hasher.update(name);
        hasher.update("\n");
        hasher.update(contents);
        let written =
            fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part).and_then(|mut file| {
                file.write_all(&hasher.finalize())?;
                file.write_all(name.as_bytes())?;
                file.write_all(b"\n")?;
                file.write_all(contents)?;
                file.sync_data()
            });
        let renamed = written.and_then(|()| fs::rename(&part, self.dir.join(name)));
        if renamed.is_err() {
            // Nothing half-written stays; that it may be gone already does not matter.
            let _ = fs::remove_file(&part);
        }
        renamed
    }

    /// Removes unfinished entries that were left behind, then the least recently used entries until
    /// the rest fits.
    fn shrink(&self) {
        let now = SystemTime::now();
        let (parts, mut entries): (Vec<Entry>, Vec<Entry>) =
            self.entries().into_iter().partition(|entry| is(&entry.path, PART));
        let is_stale = |entry: &&Entry| now.duration_since(entry.used).is_ok_and(|age| age > STALE);
        for part in parts.iter().filter(is_stale) {
            let _ = fs::remove_file(&part.path);
        }
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.used));
        let mut bytes = 0_u64;
        for (index, entry) in entries.iter().enumerate() {
            bytes = bytes.saturating_add(entry.bytes);
            if bytes > self.most_bytes || index >= MOST_ENTRIES {
                // Another process may have removed it first.
                let _ = fs::remove_file(&entry.path);
            }
        }
    }

    /// The entries that this cache, or another program's, has written. Other files are neither
    /// counted nor removed.
    fn entries(&self) -> Vec<Entry> {
        let Ok(found) = fs::read_dir(&self.dir) else { return Vec::new() };
        let entry = |path: PathBuf| {
            let metadata = fs::symlink_metadata(&path).ok()?;
            let is_own = metadata.is_file() && [CODE, VERDICT, PART].iter().any(|ending| is(&path, ending));
            is_own.then(|| Entry {
                used: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
                bytes: metadata.len(),
                path,
            })
        };
        found.flatten().filter_map(|found| entry(found.path())).collect()
    }
}

fn is(path: &Path, ending: &str) -> bool {
    path.extension().is_some_and(|found| found == ending)
}

fn invalid(detail: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, detail)
}

fn hexadecimal(digest: &str) -> &str {
    digest.trim_start_matches("sha256:")
}

fn code_name(engine: &Engine, digest: &str) -> String {
    format!("{}-{:016x}.{CODE}", hexadecimal(digest), compiler(engine))
}

fn verdict_name(name: &str) -> String {
    format!("{name}.{VERDICT}")
}

/// A number that differs between versions and configurations of wasmtime and between targets.
/// wasmtime checks them once more when it reads the code.
pub(crate) fn compiler(engine: &Engine) -> u64 {
    let mut hasher = Fnv1a::default();
    engine.precompile_compatibility_hash().hash(&mut hasher);
    hasher.finish()
}

fn create_private_dir(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// Fails unless only the user can write the file or directory.
fn check_private(metadata: &fs::Metadata, dir: bool) -> io::Result<()> {
    let refused = |why| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    if metadata.is_symlink() || (if dir { !metadata.is_dir() } else { !metadata.is_file() }) {
        return refused(if dir { "it is not a directory" } else { "it is not a file" });
    }
    if rustix::process::geteuid().as_raw() != metadata.uid() {
        return refused("it is not the user's own");
    }
    if metadata.mode() & 0o022 != 0 {
        return refused("others can write it");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(most_bytes: u64) -> (tempfile::TempDir, Cache) {
        let place = tempfile::tempdir().unwrap();
        let cache = Cache::open(&CacheDir::At(place.path().join("cache"))).unwrap();
        (place, Cache { most_bytes, ..cache })
    }

    fn used(cache: &Cache, name: &str, seconds_ago: u64) {
        let file = fs::File::options().write(true).open(cache.dir.join(name)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(seconds_ago)).unwrap();
    }

    #[test]
    fn an_entry_is_only_read_under_its_own_name() {
        let (_place, cache) = cache(MOST_BYTES);
        cache.keep_text("one", "words");
        assert_eq!(cache.text("one").as_deref(), Some("words"));
        fs::copy(cache.dir.join("one.verdict"), cache.dir.join("two.verdict")).unwrap();
        assert_eq!(cache.text("two"), None);
    }

    #[test]
    fn the_entry_that_was_not_used_for_longest_goes_first() {
        let (_place, cache) = cache(1000);
        for (name, age) in [("a", 30), ("b", 20), ("c", 10)] {
            cache.keep_text(name, &"x".repeat(250));
            used(&cache, &verdict_name(name), age);
        }
        // A read makes an entry the most recently used.
        assert!(cache.text("a").is_some());
        cache.keep_text("d", &"x".repeat(250));
        assert!(cache.text("b").is_none());
        assert!(["a", "c", "d"].iter().all(|name| cache.text(name).is_some()));
    }

    #[test]
    fn what_is_no_entry_is_neither_waited_for_nor_read_nor_removed() {
        let (_place, cache) = cache(100);
        let fifo = cache.dir.join("fifo.verdict");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        assert_eq!(cache.text("fifo"), None);
        std::os::unix::fs::symlink("/etc/passwd", cache.dir.join("link.verdict")).unwrap();
        assert_eq!(cache.text("link"), None);
        let giant = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(cache.dir.join("giant.verdict"));
        giant.unwrap().set_len(1 << 40).unwrap();
        assert_eq!(cache.text("giant"), None);
        fs::write(cache.dir.join("README"), "x".repeat(1000)).unwrap();
        cache.keep_text("one", "words");
        assert!(cache.dir.join("README").exists() && fifo.exists());
        assert!(!cache.dir.join("giant.verdict").exists());
    }

    #[test]
    fn unfinished_entries_are_removed_when_they_are_old() {
        let (_place, cache) = cache(MOST_BYTES);
        for name in ["old.part", "new.part"] {
            fs::write(cache.dir.join(name), "half").unwrap();
        }
        used(&cache, "old.part", 2 * STALE.as_secs());
        cache.keep_text("one", "words");
        assert!(!cache.dir.join("old.part").exists() && cache.dir.join("new.part").exists());
    }

    #[test]
    fn a_module_is_forgotten_with_all_that_there_is_of_it() {
        let (_place, cache) = cache(MOST_BYTES);
        cache.keep_text("aa-1", "words");
        cache.keep_text("bb-1", "words");
        cache.forget("sha256:aa");
        assert!(cache.text("aa-1").is_none() && cache.text("bb-1").is_some());
    }
}
