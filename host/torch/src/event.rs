//! Events: points in a device's queues of work.

use std::ffi::c_void;

use crate::{Result, ffi};

/// An event of libtorch's on a GPU.
#[derive(Debug)]
pub(crate) struct Event(*mut c_void);

// SAFETY: an event is only reached through its owner; libtorch's are not tied to a thread.
unsafe impl Send for Event {}

impl Event {
    pub fn new() -> Self {
        Self(ffi::tw_event_create())
    }

    /// The event that the shim is to record.
    pub fn as_ptr(&self) -> *mut c_void {
        self.0
    }

    /// Puts it behind the work that is queued on a device.
    pub fn record(&self, index: usize) -> Result<()> {
        // SAFETY: the event lives.
        unsafe { ffi::tw_event_record(self.0, index as i32) }
    }

    /// Puts it behind the copies of a device that are queued behind events.
    pub fn record_behind_copies(&self, index: usize) -> Result<()> {
        // SAFETY: the event lives.
        unsafe { ffi::tw_event_record_behind(self.0, index as i32) }
    }

    /// Waits until the device has come to it.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: as above.
        unsafe { ffi::tw_event_wait(self.0) }
    }

    /// Lets work that is queued on a device from now on wait for it.
    pub fn block(&self, index: usize) -> Result<()> {
        // SAFETY: as above.
        unsafe { ffi::tw_event_block(self.0, index as i32) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created in `new`, and not used after this.
        unsafe { ffi::tw_event_destroy(self.0) };
    }
}
