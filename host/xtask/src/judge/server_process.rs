//! Programs that print their address in their first line, and end on request.

use std::{
    io::{self, BufRead, BufReader, Read},
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};

use crate::tools;

/// A server gives its jobs 20 seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running program. Dropping it asks it to end, and kills it if it doesn't; Ctrl-C in a terminal
/// reaches it, too.
pub struct ServerProcess {
    what: &'static str,
    child: Child,
    /// Held open: writing to a closed pipe fails.
    said: BufReader<ChildStdout>,
    address: String,
}

impl ServerProcess {
    /// Starts a program and waits until it listens.
    pub fn start(what: &'static str, command: &mut Command) -> Result<Self> {
        let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("{what} can't be started"))?;
        let said = BufReader::new(child.stdout.take().context("its output is read")?);
        let mut listening = Self { what, child, said, address: String::new() };
        let mut line = String::new();
        listening.said.read_line(&mut line)?;
        let Some((_, address)) = line.trim().split_once("listening on http://") else {
            bail!("{what} doesn't listen; it said {:?}", line.trim());
        };
        listening.address = address.to_owned();
        Ok(listening)
    }

    /// `127.0.0.1:` and the port.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// `http://` and the address.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Asks it to end, and shows its remaining output. Fails if it had ended before, or fails
    /// itself.
    pub fn end(mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} ended by itself ({status})", self.what);
        }
        let ended = self.stop().with_context(|| format!("{} can't be ended", self.what))?;
        let mut rest = String::new();
        self.said.read_to_string(&mut rest)?;
        print!("{rest}");
        match ended {
            None => bail!("{} didn't end within {} s of being asked to", self.what, PATIENCE.as_secs()),
            Some(status) if !status.success() => bail!("{} ended badly ({status})", self.what),
            Some(_) => Ok(()),
        }
    }

    /// Asks it to end, and kills it after a timeout, which gives no status.
    fn stop(&mut self) -> io::Result<Option<ExitStatus>> {
        // Through the shell: the program `kill` is not on every machine.
        let asked = format!("kill -TERM {}", self.child.id());
        let _ = Command::new("sh").args(["-c", &asked]).stderr(Stdio::null()).status();
        tools::wait_or_kill(&mut self.child, PATIENCE)
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // A program that has ended is not signalled: its number may be another's by now.
        if let Ok(None) = self.child.try_wait() {
            let _ = self.stop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Result<ServerProcess> {
        ServerProcess::start("the shell", Command::new("sh").args(["-c", script]).stderr(Stdio::null()))
    }

    #[test]
    fn an_end_is_told_from_a_good_one() {
        let waits = "while :; do sleep 0.05; done";
        let good = shell(&format!("trap 'exit 0' TERM; echo listening on http://127.0.0.1:1; {waits}")).unwrap();
        assert_eq!(good.url(), "http://127.0.0.1:1");
        good.end().unwrap();
        let bad = shell(&format!("trap 'exit 3' TERM; echo listening on http://127.0.0.1:1; {waits}")).unwrap();
        assert!(bad.end().unwrap_err().to_string().contains("ended badly"));
        assert!(shell("echo no").err().unwrap().to_string().contains("doesn't listen; it said \"no\""));
    }
}
