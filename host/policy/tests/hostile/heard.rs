//! Captured log messages: failures in `learn` have no decision to appear in.

use std::{
    fmt::Debug,
    sync::{Arc, Mutex},
};

use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
    subscriber::with_default,
};

#[derive(Clone, Default)]
struct Ear(Arc<Mutex<Vec<String>>>);

/// Runs it and returns the messages that it logged.
pub fn heard(run: impl FnOnce()) -> Vec<String> {
    let ear = Ear::default();
    with_default(ear.clone(), run);
    let lines = ear.0.lock().unwrap();
    lines.clone()
}

impl Subscriber for Ear {
    fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

impl Visit for Ear {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0.lock().unwrap().push(format!("{value:?}"));
        }
    }
}
