//! The log on standard error, of every command but `serve`: what crates below warn of looks like
//! the program's own warnings.

use std::fmt;

use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    EnvFilter,
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::{Format, Full, Writer},
    },
    registry::LookupSpan,
};

use crate::printer;

/// The target of what policies log.
const POLICY: &str = "tilewright::policy";

/// Begins the log at the level that --verbose or `TILEWRIGHT_LOG` says.
pub fn begin(verbose: u8) {
    let level = ["warn", "info", "debug", "trace"][usize::from(verbose.min(3))];
    let from_environment = EnvFilter::try_from_env("TILEWRIGHT_LOG").ok().filter(|_| verbose == 0);
    // The sandbox's compiler logs every function that it compiles.
    let filter = from_environment
        .unwrap_or_else(|| EnvFilter::new(format!("{level},cranelift=warn,wasmtime=warn,regalloc2=warn")));
    // Colours would be escaped like every other control sequence.
    let details = Format::default().without_time().with_ansi(false);
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(printer::Log::default).with_ansi(false);
    // Otherwise it would be reported on standard error, too.
    log.event_format(Lines { details }).log_internal_errors(false).init();
}

/// The form of an event: a sentence for warnings and errors, all details for the rest.
struct Lines {
    details: Format<Full, ()>,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut to: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let metadata = event.metadata();
        let kind = match *metadata.level() {
            Level::ERROR => "error",
            Level::WARN => "warning",
            _ => return self.details.format_event(context, to, event),
        };
        let mut sentence = Sentence::default();
        event.record(&mut sentence);
        let whose = if metadata.target() == POLICY { "the policy says: " } else { "" };
        writeln!(to, "{kind}: {whose}{sentence}")
    }
}

/// An event as a sentence: its message, the error, and other fields in brackets.
#[derive(Default)]
struct Sentence {
    message: String,
    error: String,
    others: Vec<String>,
}

impl Visit for Sentence {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            "error" => self.error = format!(": {value:?}"),
            name => self.others.push(format!("{name} {value:?}")),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

impl fmt::Display for Sentence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.message, self.error)?;
        if self.others.is_empty() { Ok(()) } else { write!(f, " ({})", self.others.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{self, Write},
        sync::{Arc, Mutex},
    };

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn warnings_of_crates_look_like_the_programs_own() {
        let kept = Kept::default();
        let place = kept.clone();
        let details = Format::default().without_time().with_ansi(false);
        let log = tracing_subscriber::fmt().with_writer(move || place.clone()).event_format(Lines { details }).finish();
        tracing::subscriber::with_default(log, || {
            let error = io::Error::other("no room");
            tracing::warn!(%error, path = "a.json", steps = 3, "the plan can't be kept");
            tracing::warn!("{}: cut short", "a.safetensors");
            tracing::warn!(target: "tilewright::policy", "it is hot");
            tracing::info!(steps = 3, "begun");
        });
        let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[..3],
            [
                "warning: the plan can't be kept: no room (path a.json, steps 3)",
                "warning: a.safetensors: cut short",
                "warning: the policy says: it is hot",
            ]
        );
        assert!(lines[3].contains("INFO") && lines[3].ends_with("begun steps=3"), "{}", lines[3]);
    }
}
