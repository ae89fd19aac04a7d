//! Free space of a file system, of which a reserve stays free.

use std::path::Path;

use crate::{Error, Result};

/// The least and the most that stays free, in bytes; between them, a hundredth of the file system.
const RESERVE: (u64, u64) = (64 << 20, 1 << 30);

/// Bytes of a file system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Space {
    /// Bytes that are free for this user.
    pub free: u64,
    /// All bytes.
    pub total: u64,
}

/// The space of the file system that a path is on; none if the system does not say. Tests have
/// their own.
pub(crate) type Measure = Box<dyn Fn(&Path) -> Option<Space> + Send>;

/// The space of the file system that a path is on; none if the system does not say.
pub(crate) fn measure(path: &Path) -> Option<Space> {
    let found = rustix::fs::statvfs(path).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    let without_names = found.f_files > 0 && found.f_favail == 0;
    Some(Space { free: if without_names { 0 } else { bytes(found.f_bavail) }, total: bytes(found.f_blocks) })
}

/// Checks that a number of further bytes leaves the reserve.
///
/// # Errors
/// [`Error::NoRoom`].
pub(crate) fn check(space: Option<Space>, folder: &Path, needed: u64) -> Result<()> {
    let Some(Space { free, total }) = space else { return Ok(()) };
    let reserve = (total / 100).clamp(RESERVE.0, RESERVE.1);
    if free < needed.saturating_add(reserve) {
        return Err(Error::NoRoom { folder: folder.to_owned(), needed, free, reserve });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_stays_free() {
        let check = |free, total, needed| check(Some(Space { free, total }), Path::new("f"), needed).is_ok();
        assert!(check(65 << 20, 1 << 30, 1 << 20));
        assert!(!check(65 << 20, 1 << 30, (1 << 20) + 1));
        assert!(!check(1 << 30, 1 << 50, 1), "a gigabyte of a large disk");
        assert!(!check(1 << 40, 1 << 50, u64::MAX));
        assert!(measure(Path::new("/")).is_some_and(|space| space.total >= space.free));
    }
}
