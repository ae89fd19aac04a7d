//! Starts a server in a folder of its own, speaks to it, and ends it.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use ureq::{Agent, http::Request};

use crate::program::{Place, Run};

/// Ends a test that hangs, and nothing else: the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(900);

/// The tag of jobs that are at work until they are cancelled, the server ends, or their deadline
/// passes.
pub const HELD: &str = "held";

/// The environment of a server that holds them up.
pub const HOLDING: (&str, &str) = ("TILEWRIGHT_HOLD_AT", HELD);

/// The environment of a server that holds jobs tagged `within-STAGE` up in the middle of an
/// operation of that stage, until they are cancelled or their deadline passes.
pub const HOLDING_WITHIN: (&str, &str) = ("TILEWRIGHT_HOLD_WITHIN", "20");

/// A server at work; killed when it is dropped.
pub struct Server {
    child: Child,
    address: SocketAddr,
    token: Option<String>,
    agent: Agent,
}

/// The answer of a server.
pub struct Answer {
    pub status: u16,
    pub headers: ureq::http::HeaderMap,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }

    /// The body, which has to have come with this status.
    #[track_caller]
    pub fn with(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        if self.body.is_empty() { Value::Null } else { self.json() }
    }

    /// The problem's line, which has to have come with this status.
    #[track_caller]
    pub fn problem(&self, status: u16) -> String {
        let problem = self.with(status);
        assert_eq!(self.headers["content-type"], "application/problem+json");
        assert_eq!(problem["status"], status);
        problem["detail"].as_str().unwrap().to_owned()
    }
}

impl Server {
    /// Starts with this configuration, which has to listen on a port of the system's choice, and
    /// waits until it listens.
    pub fn start(place: &Place, config: &str) -> Self {
        Self::started(place, config, &[])
    }

    /// Jobs tagged [`HELD`] are held up at work.
    pub fn holding(place: &Place, config: &str) -> Self {
        Self::started(place, config, &[HOLDING])
    }

    /// With further environment.
    pub fn started(place: &Place, config: &str, environment: &[(&str, &str)]) -> Self {
        let said = || fs::read_to_string(place.path("server.log")).unwrap_or_default();
        Self::try_started(place, config, environment).unwrap_or_else(|| panic!("it does not start: {}", said()))
    }

    /// Within a limit of the shell's `ulimit`, such as `-n 96`.
    pub fn limited(place: &Place, config: &str, limit: &str) -> Self {
        let program = Self::command(place);
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(format!("ulimit {limit} && exec \"$0\" \"$@\""));
        command.arg(program.get_program()).args(program.get_args());
        command.env_clear().envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.current_dir(place.path(""));
        let said = || fs::read_to_string(place.path("server.log")).unwrap_or_default();
        Self::begun(place, config, command).unwrap_or_else(|| panic!("it does not start: {}", said()))
    }

    /// None if the server does not start; its log says why.
    pub fn try_started(place: &Place, config: &str, environment: &[(&str, &str)]) -> Option<Self> {
        let mut command = Self::command(place);
        command.envs(environment.iter().copied());
        Self::begun(place, config, command)
    }

    fn begun(place: &Place, config: &str, mut command: Command) -> Option<Self> {
        place.write("tilewright.toml", config);
        let log = File::options().create(true).append(true).open(place.path("server.log")).unwrap();
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let Some((_, address)) = line.trim().rsplit_once("://") else {
            let _ = child.wait();
            return None;
        };
        let address = address.parse().unwrap();
        let token =
            config.contains("token-file").then(|| fs::read_to_string(place.path("token")).unwrap().trim().to_owned());
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_global(Some(PATIENCE))
            .build()
            .new_agent();
        Some(Self { child, address, token, agent })
    }

    /// The program about to serve.
    pub fn command(place: &Place) -> Command {
        place.command(&["serve", "--config", "tilewright.toml"])
    }

    /// Runs a server that can't start.
    pub fn refused(place: &Place, config: &str) -> Run {
        place.write("tilewright.toml", config);
        Run(Self::command(place).output().unwrap())
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn process(&self) -> u32 {
        self.child.id()
    }

    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sends a request, with the token if there is one.
    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        self.try_ask(method, path, headers, body).unwrap()
    }

    /// The same, of a server that may be gone.
    pub fn try_ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Answer, ureq::Error> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.url()));
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut response = self.agent.run(request.body(body.to_vec()).unwrap())?;
        let body = response.body_mut().with_config().limit(1 << 30).read_to_vec()?;
        Ok(Answer { status: response.status().as_u16(), headers: response.headers().clone(), body })
    }

    /// Asks as the caller that the headers name.
    pub fn ask_as(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.url()));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut response = self.agent.run(request.body(body.to_vec()).unwrap()).unwrap();
        let body = response.body_mut().with_config().limit(1 << 30).read_to_vec().unwrap();
        Answer { status: response.status().as_u16(), headers: response.headers().clone(), body }
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], b"")
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path, &[("content-type", "application/json")], body.to_string().as_bytes())
    }

    /// Submits a latent; the answer.
    pub fn submit(&self, request: &Value, latent: &[u8], headers: &[(&str, &str)]) -> Answer {
        let (media, body) = form(request, latent);
        let headers: Vec<_> = headers.iter().copied().chain([("content-type", media)]).collect();
        self.ask("POST", "/v1/jobs", &headers, &body)
    }

    /// Submits files by the names of their parts; the answer.
    pub fn submit_files(&self, request: &Value, files: &[(&str, &[u8])]) -> Answer {
        let (media, body) = form_of(request, files);
        self.ask("POST", "/v1/jobs", &[("content-type", media)], &body)
    }

    /// Submits a latent that is to be accepted; the job's id.
    #[track_caller]
    pub fn accepted(&self, request: &Value, latent: &[u8]) -> String {
        self.submit(request, latent, &[]).with(202)["id"].as_str().unwrap().to_owned()
    }

    pub fn job(&self, id: &str) -> Value {
        self.get(&format!("/v1/jobs/{id}")).with(200)
    }

    /// Waits for a job's end.
    #[track_caller]
    pub fn ended(&self, id: &str) -> Value {
        let job = self.until(|| {
            Some(self.job(id)).filter(|job| !["queued", "running"].contains(&job["state"].as_str().unwrap()))
        });
        assert!(!job["finished"].is_null(), "{job}");
        job
    }

    /// Waits until something is found.
    #[track_caller]
    pub fn until<T>(&self, find: impl Fn() -> Option<T>) -> T {
        let started = Instant::now();
        loop {
            if let Some(found) = find() {
                return found;
            }
            assert!(started.elapsed() < PATIENCE, "waited too long");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The revision of a policy that is in force.
    pub fn in_force(&self, policy: &str) -> u64 {
        self.get(&format!("/v1/policies/{policy}")).with(200)["in_force"]["number"].as_u64().unwrap()
    }

    /// Ends it as a power failure would.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Kills it while others speak to it.
    pub fn kill_now(&self) {
        let killed = Command::new("kill").args(["-KILL", &self.child.id().to_string()]).status();
        assert!(killed.unwrap().success());
    }

    /// Asks it by a signal to read its configuration again.
    pub fn hang_up(&self) {
        let sent = Command::new("kill").args(["-HUP", &self.child.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    /// A job; none if the server is gone.
    pub fn try_job(&self, id: &str) -> Option<Value> {
        self.try_ask("GET", &format!("/v1/jobs/{id}"), &[], b"").ok().map(|answer| answer.with(200))
    }

    /// Asks it to end; its exit status.
    pub fn end(mut self) -> i32 {
        assert!(Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap().success());
        self.child.wait().unwrap().code().unwrap_or(-1)
    }

    /// The status that it ends with by itself.
    #[track_caller]
    pub fn wait_for_end(mut self) -> i32 {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code().unwrap_or(-1);
            }
            assert!(started.elapsed() < PATIENCE, "waited too long");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Bytes of memory that it has in use.
    pub fn resident_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }

    /// Follows a job until its end: names and data of its events.
    pub fn followed(&self, id: &str) -> Vec<(String, Value)> {
        let mut request = Request::builder().uri(format!("{}/v1/jobs/{id}/events", self.url()));
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let mut response = self.agent.run(request.body(()).unwrap()).unwrap();
        assert_eq!(response.status(), 200);
        let mut text = String::new();
        response.body_mut().as_reader().read_to_string(&mut text).unwrap();
        let field = |event: &str, name: &str| {
            event.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim().to_owned()
        };
        let events = text.split("\n\n").filter(|event| event.contains("data:"));
        events.map(|event| (field(event, "event:"), serde_json::from_str(&field(event, "data:")).unwrap())).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A form as browsers send it: its media type and its bytes.
pub fn form(request: &Value, latent: &[u8]) -> (&'static str, Vec<u8>) {
    form_of(request, &[("latent", latent)])
}

/// The same with files by the names of their parts.
pub fn form_of(request: &Value, files: &[(&str, &[u8])]) -> (&'static str, Vec<u8>) {
    let mut body = format!(
        "--limit\r\nContent-Disposition: form-data; name=\"request\"\r\nContent-Type: application/json\r\n\r\n{request}"
    )
    .into_bytes();
    for (name, bytes) in files {
        let head = format!(
            "\r\n--limit\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"a.{name}\"\r\nContent-Type: application/octet-stream\r\n\r\n"
        );
        body.extend([head.as_bytes(), bytes].concat());
    }
    ("multipart/form-data; boundary=limit", [&body, &b"\r\n--limit--\r\n"[..]].concat())
}
