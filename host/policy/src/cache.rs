//! Compiled code on disk, under the digest of the module, wasmtime's version and the configuration. It is run as it lies there, so it
//! is only trusted in a directory that nobody but the user can write; anywhere else there is no cache, and anything odd means
//! compiling again.

use std::{
    env, fs,
    hash::{DefaultHasher, Hash, Hasher},
    io,
    io::Write,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};
use wasmtime::{Engine, component::Component};

/// Bytes of the digest that stands before the compiled code.
const DIGEST: usize = 32;

/// Where compiled policies are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CacheDir {
    /// `$XDG_CACHE_HOME/tilewright/policies` or `~/.cache/tilewright/policies`.
    #[default]
    User,
    /// This one; it is made where it is missing.
    At(PathBuf),
    /// Nowhere: every load compiles.
    Off,
}

/// A directory that was found to be the user's own.
#[derive(Debug)]
pub(crate) struct Cache {
    dir: PathBuf,
}

impl Cache {
    /// Opens the directory, or says in the log why there is no cache.
    pub fn open(place: &CacheDir) -> Option<Self> {
        let dir = match place {
            CacheDir::Off => return None,
            CacheDir::At(dir) => dir.clone(),
            CacheDir::User => user_dir()?,
        };
        let opened = make(&dir).and_then(|()| private(&fs::symlink_metadata(&dir)?, true));
        match opened {
            Ok(()) => Some(Self { dir }),
            Err(error) => {
                tracing::warn!("compiled policies are not kept in {}: {error}", dir.display());
                None
            }
        }
    }

    /// The compiled code of the module with this digest, where it is kept and sound.
    pub fn get(&self, engine: &Engine, digest: &str) -> Option<Component> {
        let path = self.dir.join(name(engine, digest));
        match self.read(engine, &path) {
            Ok(component) => Some(component),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!("compiled policy {} is not used: {error}", path.display());
                None
            }
        }
    }

    /// Keeps compiled code for the next time, or says in the log why not.
    pub fn keep(&self, engine: &Engine, digest: &str, component: &Component) {
        let path = self.dir.join(name(engine, digest));
        let kept = component.serialize().map_err(io::Error::other).and_then(|code| self.write(&path, &code));
        if let Err(error) = kept {
            tracing::warn!("compiled policy can't be kept as {}: {error}", path.display());
        }
    }

    /// A text that was kept under this name, where it is kept and sound.
    pub fn text(&self, name: &str) -> Option<String> {
        String::from_utf8(self.sound(&self.dir.join(name)).ok()?).ok()
    }

    /// Keeps a text for the next time, or says in the log why not.
    pub fn keep_text(&self, name: &str, text: &str) {
        let path = self.dir.join(name);
        if let Err(error) = self.write(&path, text.as_bytes()) {
            tracing::warn!("{} can't be kept: {error}", path.display());
        }
    }

    fn read(&self, engine: &Engine, path: &Path) -> io::Result<Component> {
        deserialize(engine, &self.sound(path)?).map_err(io::Error::other)
    }

    /// What a file holds behind its digest, where only the user can write it and the digest matches.
    fn sound(&self, path: &Path) -> io::Result<Vec<u8>> {
        let mut file = fs::File::open(path)?;
        // Of the open file, not of the path, so that it is the same file that is read.
        private(&file.metadata()?, false)?;
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut file, &mut bytes)?;
        let (digest, code) = bytes.split_at_checked(DIGEST).ok_or(io::ErrorKind::UnexpectedEof)?;
        if Sha256::digest(code)[..] != *digest {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is damaged"));
        }
        bytes.drain(..DIGEST);
        Ok(bytes)
    }

    fn write(&self, path: &Path, code: &[u8]) -> io::Result<()> {
        // A name of its own per process and moment: two programs may compile the same policy at once.
        let nanos = std::time::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.subsec_nanos());
        let part = path.with_extension(format!("{}-{nanos}.part", std::process::id()));
        let written = fs::File::create_new(&part).and_then(|mut file| {
            only_mine(&file)?;
            file.write_all(&Sha256::digest(code))?;
            file.write_all(code)?;
            file.sync_data()
        });
        let renamed = written.and_then(|()| fs::rename(&part, path));
        if renamed.is_err() {
            // Nothing half-written stays; that it may be gone already does not matter.
            let _ = fs::remove_file(&part);
        }
        renamed
    }
}

#[allow(unsafe_code, reason = "the one place that reads compiled code back")]
fn deserialize(engine: &Engine, code: &[u8]) -> wasmtime::Result<Component> {
    // SAFETY: the bytes come from `Component::serialize` as `Cache::write` left them: the file and its directory belong to the user
    // and nobody else can write them (`private`), its digest matches, and its name carries the module's digest, wasmtime's version
    // and the configuration. Whoever can change it regardless is the user, who can run code of their own anyway.
    unsafe { Component::deserialize(engine, code) }
}

fn name(engine: &Engine, digest: &str) -> String {
    let module = digest.trim_start_matches("sha256:");
    format!("{module}-{:016x}.code", compiler(engine))
}

/// Tells wasmtime's version, its configuration and the target apart. wasmtime checks them once more when it reads the code.
pub(crate) fn compiler(engine: &Engine) -> u64 {
    let mut hasher = DefaultHasher::new();
    engine.precompile_compatibility_hash().hash(&mut hasher);
    hasher.finish()
}

fn user_dir() -> Option<PathBuf> {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
    Some(caches.join("tilewright").join("policies"))
}

#[cfg(unix)]
fn make(dir: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

#[cfg(not(unix))]
fn make(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)
}

/// Fails unless only the user can write the file or directory.
#[cfg(unix)]
fn private(metadata: &fs::Metadata, dir: bool) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let refused = |why| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    // Files of this process are the user's: the effective user needs no unsafe call to be found out.
    let me = fs::metadata("/proc/self").map(|own| own.uid());
    if metadata.is_dir() != dir || metadata.is_symlink() {
        return refused(if dir { "it is not a directory" } else { "it is not a file" });
    }
    if !me.is_ok_and(|me| me == metadata.uid()) {
        return refused("it is not known to be the user's own");
    }
    if metadata.mode() & 0o022 != 0 {
        return refused("others can write it");
    }
    Ok(())
}

#[cfg(not(unix))]
fn private(_metadata: &fs::Metadata, _dir: bool) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "who can write it can't be told on this system"))
}

#[cfg(unix)]
fn only_mine(file: &fs::File) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(fs::Permissions::from_mode(0o600))
}

#[cfg(not(unix))]
fn only_mine(_file: &fs::File) -> io::Result<()> {
    Ok(())
}
