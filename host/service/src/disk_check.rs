//! The check of the disk's room, and the writes that are made up for when there is room again.

use std::path::Path;

use crate::{error::one_line, state::ServerState};

/// Seconds after which a caller may try again who was refused for lack of room.
pub const RETRY_S: u64 = 5;

/// The bytes that have to be free: many times what storing one job and its end takes.
pub const LEAST_FREE: u64 = 1 << 20;

impl ServerState {
    /// Bytes that are free where results are; none if the system does not say.
    pub fn free_bytes(&self) -> Option<u64> {
        free_bytes(self.jobs.files.data())
    }

    /// Checks that there is room and, after a failed write, that the disk takes writes again. State
    /// that came into force without being written is written then.
    pub fn check_disk(&self) {
        if let Some(free) = self.free_bytes()
            && free < LEAST_FREE
        {
            let data = self.jobs.files.data().display();
            self.disk.note(true, format!("{data}: {free} bytes are free of {LEAST_FREE} at least"));
            self.jobs.live.notify_change();
            return;
        }
        let settled = self.rollout.settle();
        if self.disk.trouble().is_none() {
            return;
        }
        let probed = settled
            .map_err(|error| one_line(&error))
            .and_then(|()| self.jobs.store.probe().map_err(|error| one_line(&error)))
            .and_then(|()| self.disk.probe(&self.jobs.files.incoming()).map_err(|error| one_line(&error)));
        if probed.is_ok() {
            self.disk.clear_trouble();
            // Changes of files could not take effect in the meantime.
            self.rollout.refresh_all();
        }
        self.jobs.live.notify_change();
    }
}

/// Bytes that are free for this user on a folder's file system; none if the system does not say.
fn free_bytes(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(folder).ok()?;
    let without_names = found.f_files > 0 && found.f_favail == 0;
    Some(if without_names { 0 } else { found.f_bavail.saturating_mul(found.f_frsize) })
}
