//! A sink on a thread of its own: a GPU goes on while frames are written.

use std::{
    panic,
    sync::mpsc::{self, SyncSender},
    thread,
};

use tch::Tensor;

use super::Sink;

/// The error of a sink.
type SinkError = Box<dyn std::error::Error + Send + Sync>;

/// Frames of a sample, from one of its frames on.
type Delivery = (u32, u32, Tensor);

/// Deliveries that may wait for the sink.
const WAITING: usize = 1;

/// Hands frames to the sink's thread.
struct Relay(SyncSender<Delivery>);

impl Sink for Relay {
    fn frames(&mut self, sample: u32, first: u32, frames: &Tensor) -> Result<(), SinkError> {
        // The thread ends before the work only after an error, which comes to light at its end.
        self.0.send((sample, first, frames.shallow_clone())).map_err(|_| "the sink has ended".into())
    }
}

/// Runs work whose frames go to a sink on another thread. All of them have arrived when it returns,
/// unless the sink failed: then its error takes the place of the work's own.
pub(super) fn with_relay<T>(
    sink: &mut (dyn Sink + Send),
    work: impl FnOnce(&mut dyn Sink) -> T,
) -> (T, Result<(), SinkError>) {
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::sync_channel::<Delivery>(WAITING);
        let writer = scope.spawn(move || {
            let mut deliveries = receiver.into_iter();
            deliveries.try_for_each(|(sample, first, frames)| sink.frames(sample, first, &frames))
        });
        let outcome = work(&mut Relay(sender));
        (outcome, writer.join().unwrap_or_else(|panicked| panic::resume_unwind(panicked)))
    })
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    /// Notes what arrives, and fails at one of them.
    struct Notes {
        arrived: Vec<(u32, u32, f64)>,
        fails_at: usize,
    }

    impl Sink for Notes {
        fn frames(&mut self, sample: u32, first: u32, frames: &Tensor) -> Result<(), SinkError> {
            if self.arrived.len() == self.fails_at {
                return Err("the disk is full".into());
            }
            self.arrived.push((sample, first, frames.double_value(&[0])));
            Ok(())
        }
    }

    fn send(sink: &mut dyn Sink, count: u32) -> Result<u32, SinkError> {
        for index in 0..count {
            let frames = Tensor::full([1], i64::from(index), (Kind::Float, Device::Cpu));
            sink.frames(index / 4, index % 4, &frames)?;
        }
        Ok(count)
    }

    #[test]
    fn frames_arrive_in_order() {
        let mut notes = Notes { arrived: Vec::new(), fails_at: usize::MAX };
        let (sent, written) = with_relay(&mut notes, |sink| send(sink, 9).unwrap());
        written.unwrap();
        assert_eq!(sent, 9);
        let expected: Vec<_> = (0..9).map(|index| (index / 4, index % 4, f64::from(index))).collect();
        assert_eq!(notes.arrived, expected);
    }

    #[test]
    fn a_sink_that_fails_ends_the_work_with_its_own_error() {
        let mut notes = Notes { arrived: Vec::new(), fails_at: 2 };
        let (sent, written) = with_relay(&mut notes, |sink| send(sink, 9));
        assert_eq!(sent.unwrap_err().to_string(), "the sink has ended");
        assert_eq!(written.unwrap_err().to_string(), "the disk is full");
        assert_eq!(notes.arrived.len(), 2);
        // A sink may fail after the work has ended.
        let mut notes = Notes { arrived: Vec::new(), fails_at: 0 };
        let (sent, written) = with_relay(&mut notes, |sink| send(sink, 1));
        assert_eq!(sent.unwrap(), 1);
        assert!(written.is_err());
    }
}
