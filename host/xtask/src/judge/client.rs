//! A minimal HTTP client that gives a server of this project's some work.

use std::{
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    time::Duration,
};

use anyhow::{Context, Result, bail};

/// The timeout of every wait, for a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A server's address and a token.
pub struct Client<'a> {
    pub address: &'a str,
    pub token: &'a str,
}

/// An answer.
pub struct Answer {
    status: u16,
    head: String,
    pub body: String,
}

impl Client<'_> {
    /// Has the server decode a latent of its machine, and waits for the end.
    pub fn decode(&self, model: &str, latent: &Path) -> Result<()> {
        let job = format!("{{\"model\":{model:?},\"latent_path\":{:?}}}", latent.to_string_lossy());
        let accepted = self.post("/v1/jobs", &job)?.with(202)?;
        let address = accepted.header("location").context("POST /v1/jobs: no Location came with 202")?;
        let events = format!("{address}/events");
        // The events end with the job.
        let followed = self.get(&events)?.with(200)?;
        if !followed.body.contains("\"state\":\"done\"") {
            bail!("GET {events}: the job is not done: {}", followed.body.trim_end().lines().last().unwrap_or_default());
        }
        Ok(())
    }

    pub fn get(&self, path: &str) -> Result<Answer> {
        self.ask("GET", path, "")
    }

    pub fn post(&self, path: &str, body: &str) -> Result<Answer> {
        self.ask("POST", path, body)
    }

    /// By HTTP/1.0: the answer comes in one piece and ends with the connection.
    fn ask(&self, method: &str, path: &str, body: &str) -> Result<Answer> {
        let Self { address, token } = self;
        let exchange = || -> Result<Answer> {
            let mut connection = TcpStream::connect(address)?;
            connection.set_read_timeout(Some(PATIENCE))?;
            let length = body.len();
            write!(
                connection,
                "{method} {path} HTTP/1.0\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\
                 Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
            )?;
            let mut text = String::new();
            connection.read_to_string(&mut text)?;
            Answer::read(&text).context("no answer by HTTP")
        };
        exchange().with_context(|| format!("{method} {path}"))
    }
}

impl Answer {
    fn read(text: &str) -> Option<Self> {
        let (head, body) = text.split_once("\r\n\r\n")?;
        let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
        Some(Self { status, head: head.to_owned(), body: body.to_owned() })
    }

    /// Checks that the answer has this status.
    pub fn with(self, status: u16) -> Result<Self> {
        if self.status != status {
            bail!("answered with {} instead of {status}: {}", self.status, self.body.trim());
        }
        Ok(self)
    }

    fn header(&self, name: &str) -> Option<&str> {
        let headers = self.head.lines().filter_map(|line| line.split_once(':'));
        headers.into_iter().find_map(|(own, value)| own.eq_ignore_ascii_case(name).then(|| value.trim()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        let answer = Answer::read("HTTP/1.0 202 Accepted\r\nLocation: /v1/jobs/1\r\n\r\n{}\r\n\r\n").unwrap();
        assert_eq!(answer.header("location"), Some("/v1/jobs/1"));
        let answer = answer.with(202).unwrap();
        assert_eq!(answer.body, "{}\r\n\r\n");
        assert!(answer.with(200).err().unwrap().to_string().starts_with("answered with 202 instead of 200"));
        assert!(Answer::read("SSH-2.0").is_none());
    }
}
