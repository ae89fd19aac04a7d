//! The trial of a GPU in a process of its own, before this one loads its libraries.

use std::time::Duration;

use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use tilewright_device_check::{Finding, Verdict};
use tilewright_engine::{Machine, Probe, Trial, Trying, try_gpus_by};
use tilewright_torch::device::Choice;

use super::check;
use crate::{
    args::{Command, DeviceCommand},
    child::{self, End},
    tell::tell,
};

/// A trial: the name by which a process of the check is asked for it, its work, and the longest
/// time of it. A first start loads gigabytes, and may compile kernels.
type Kind = (&'static str, Trying, Duration);

const KINDS: [Kind; 2] = [
    ("trial", Trying::Operations, Duration::from_secs(120)),
    ("trial-measured", Trying::Measurement, Duration::from_secs(300)),
];

/// The most characters of a process's last words.
const MOST_SAID: usize = 200;

/// Signals by which users and systems end processes that work.
const OTHERS: [i32; 4] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM];

/// Lets a command try its GPU in a process of its own. The check's parts are such processes.
pub fn begin(command: &Command) {
    let is_check =
        matches!(command, Command::Device(device) if matches!(device.command, Some(DeviceCommand::Check(_))));
    if !is_check {
        try_gpus_by(try_gpu);
    }
}

/// The finding of this process, if it is asked for a trial by this name: it ends in order, or not
/// at all. What is measured is kept.
pub fn finding(name: &str, choice: Choice) -> Option<Finding> {
    let (_, trying, _) = KINDS.iter().find(|kind| kind.0 == name)?;
    let tried = match trying {
        Trying::Operations => Machine::find(choice).map(drop),
        Trying::Measurement => Machine::open(choice, Probe::Fresh).map(drop),
    };
    Some(match tried {
        Ok(()) => Finding::pass("", Value::Null),
        Err(error) => Finding::fail(error.to_string(), Value::Null),
    })
}

fn try_gpu(choice: Choice, trying: Trying) -> Trial {
    let Some((name, _, patience)) = KINDS.iter().find(|kind| kind.1 == trying) else { return Trial::Refused };
    let run = || {
        let mut command = child::of_this_program()?;
        command.args(["device", "check", "--part", name, "--device", &choice.to_string()]);
        // Measurements are kept for a number of threads.
        command.args(["--threads", &tch::get_num_threads().to_string()]);
        if trying == Trying::Measurement {
            let most = patience.as_secs();
            tell!(
                "note: a process ended while it measured the GPU: another one measures it first, for {most} s at most"
            );
        }
        child::run(&mut command, *patience)
    };
    match run() {
        Ok(end) => judge(&end, *patience),
        Err(error) => {
            tracing::debug!(%error, "the GPU is not tried in a process of its own");
            Trial::Refused
        }
    }
}

/// The meaning of a process's end.
fn judge(end: &End, patience: Duration) -> Trial {
    match end {
        End::Exited { stdout, .. } => match check::finding(stdout) {
            Some(Finding { verdict: Verdict::Pass, .. }) => Trial::Works,
            _ => Trial::Refused,
        },
        End::Signal { signal, .. } if OTHERS.contains(signal) => Trial::Refused,
        End::Signal { signal, stderr } => Trial::Broken(format!("it {}", crash(*signal, stderr))),
        End::Hung => Trial::Broken(format!("it did not end within {} s", patience.as_secs())),
        End::Interrupted(_) => Trial::Refused,
    }
}

/// The words for a crash by a signal.
pub fn crash(signal: i32, stderr: &str) -> String {
    let said = |line: &str| format!(" ({})", line.chars().take(MOST_SAID).collect::<String>());
    format!("crashed by signal {signal}{}", child::last_words(stderr).map(said).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_is_told_from_an_error_and_from_an_interrupt() {
        let exited = |finding: &Finding| {
            let stdout = format!("{}\n", serde_json::to_string(finding).unwrap());
            End::Exited { stdout, stderr: "warning: it is warm".into() }
        };
        let judge = |end: &End| judge(end, Duration::from_secs(120));
        let signal = |signal, stderr: &str| End::Signal { signal, stderr: stderr.into() };
        assert_eq!(judge(&exited(&Finding::pass("", Value::Null))), Trial::Works);
        assert_eq!(judge(&exited(&Finding::fail("no kernel", Value::Null))), Trial::Refused);
        assert_eq!(judge(&End::Exited { stdout: String::new(), stderr: "error: wrong".into() }), Trial::Refused);
        for interrupted in [signal(2, ""), signal(15, ""), End::Interrupted(130)] {
            assert_eq!(judge(&interrupted), Trial::Refused);
        }
        assert_eq!(judge(&signal(11, "")), Trial::Broken("it crashed by signal 11".into()));
        let fault = "warning: one\nMemory access fault by GPU node-1 on address 0x7f.\nAborted\n";
        let told = "it crashed by signal 6 (Memory access fault by GPU node-1 on address 0x7f.)";
        assert_eq!(judge(&signal(6, fault)), Trial::Broken(told.into()));
        assert_eq!(judge(&End::Hung), Trial::Broken("it did not end within 120 s".into()));
    }
}
