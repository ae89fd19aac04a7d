//! The pace of a GPU: work is queued much faster than it is done.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use tch::Device;

use crate::{Result, event::Event};

/// The pieces of work that may be in the queue behind the one that a device is at, so that it never
/// waits for the next.
const AHEAD: usize = 2;

/// If the device takes longer for a piece of work, nothing is queued behind it: a cancellation
/// would have to wait for that, and the gap between two such pieces costs nothing.
const SLOW: Duration = Duration::from_millis(30);

/// Keeps the program beside its device: progress that it reports is the device's, and a
/// cancellation leaves little in the queue. Does nothing on a CPU.
#[derive(Debug)]
pub struct Pace {
    device: Device,
    queued: VecDeque<Event>,
    ahead: usize,
}

impl Pace {
    /// A pace on a device.
    pub fn new(device: Device) -> Self {
        Self { device, queued: VecDeque::new(), ahead: AHEAD }
    }

    /// A piece of work is queued: waits until the device has come near it.
    ///
    /// # Errors
    /// A fault of earlier work on the device.
    pub fn keep(&mut self) -> Result<()> {
        let Device::Cuda(index) = self.device else { return Ok(()) };
        let event = Event::new();
        event.record(index)?;
        self.queued.push_back(event);
        while self.queued.len() > self.ahead {
            let Some(event) = self.queued.pop_front() else { break };
            let start = Instant::now();
            event.wait()?;
            self.ahead = if start.elapsed() > SLOW { 0 } else { AHEAD };
        }
        Ok(())
    }
}
