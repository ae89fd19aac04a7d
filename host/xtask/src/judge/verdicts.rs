//! The inputs of each judge, and the conditions of its verdict.

use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use super::{Judge, Judges, client::Client, places, server_process::ServerProcess};
use crate::tools;

const MODEL: &str = "astronaut";
const VAE: &str = "examples/models/flux-tiny/ae.safetensors";
const LATENTS: &str = "examples/latents";
const LATENT: &str = "astronaut.latent";

/// The policy that the dashboard's judge swaps, for a module that is not in force.
const POLICY: &str = "small";
const MODULE: &str = "comfyui.wasm";

/// The route whose canary is promoted, and the most jobs that it may take: it is faster, so that
/// twenty of its jobs suffice, and gets half of them.
const ROUTE: &str = "tiles";
const CANARY_JOBS: &str = "330";

/// With a token, the description's part on tokens is judged, too. It guards nothing.
const TOKEN: &str = "known-to-every-judge";

/// Jobs that metrics and traces are made of.
const JOBS: usize = 4;

/// Histograms that a job's decode, a swap and their requests fill.
const HISTOGRAMS: [&str; 5] = [
    "tilewright_decision_seconds",
    "tilewright_decode_seconds",
    "tilewright_queue_wait_seconds",
    "tilewright_http_request_seconds",
    "tilewright_swap_seconds",
];

/// The spans of a job.
const SPANS: [&str; 4] = ["request", "job", "decode", "write"];

impl Judges<'_> {
    /// openapi-spec-validator reads the API's description.
    pub(super) fn description(&self) -> Result<()> {
        self.script(Judge::Description, "description.py", |_| {})
    }

    /// Schemathesis sends every kind of request of the API's description.
    pub(super) fn api(&self) -> Result<()> {
        self.script(Judge::Api, "fuzz_api.py", |fuzz| {
            fuzz.args(["--model", MODEL]).arg("--latent").arg(self.latent());
            fuzz.args(["--max-examples", &self.max_examples.to_string()]);
            fuzz.arg("--report").arg(self.place(Judge::Api).join("report"));
        })
    }

    /// A person's way through the dashboard, by Chromium.
    pub(super) fn dashboard(&self) -> Result<()> {
        let module = self.project.policies().join(MODULE);
        if !module.is_file() {
            bail!("{} is missing: run cargo xtask setup", module.display());
        }
        let shots = self.place(Judge::Dashboard).join("shots");
        println!("pictures of its pages: {}", shots.display());
        self.script(Judge::Dashboard, "dashboard.py", |visit| {
            visit.args(["--model", MODEL]).arg("--latent").arg(self.latent());
            visit.arg("--module").arg(module).arg("--shots").arg(shots);
            visit.args(["--policy", POLICY, "--route", ROUTE, "--canary-jobs", CANARY_JOBS]);
        })
    }

    /// Runs one of the project's scripts, which judges a server.
    fn script(&self, judge: Judge, script: &str, more: impl FnOnce(&mut Command)) -> Result<()> {
        let server = self.server(judge, None)?;
        let mut command = self.needs.python()?.command(script);
        command.arg(server.url()).arg("--token-file").arg(self.token(judge));
        more(&mut command);
        tools::run(&mut command)?;
        server.end()
    }

    /// promtool reads the metrics of a server that has done some work.
    pub(super) fn metrics(&self) -> Result<()> {
        let server = self.server(Judge::Metrics, None)?;
        let client = Client { address: server.address(), token: TOKEN };
        self.decode(&client)?;
        client.post("/v1/jobs", r#"{"model":"nobody's"}"#)?;
        client.post(&format!("/v1/policies/{POLICY}/swap"), r#"{"source":"adaptive"}"#)?.with(200)?;
        let text = client.get("/metrics")?.with(200)?.body;
        fs::write(self.place(Judge::Metrics).join("metrics.txt"), &text)?;
        for histogram in HISTOGRAMS {
            if !is_counted(&text, histogram) {
                bail!("/metrics: nothing was counted in {histogram}");
            }
        }
        check_metrics(self.needs.promtool()?, &text)?;
        server.end()
    }

    /// A strict OTLP collector receives a server's traces.
    pub(super) fn traces(&self) -> Result<()> {
        let spans = self.place(Judge::Traces).join("spans.jsonl");
        let mut collector = self.needs.python()?.command("collector.py");
        let collector = ServerProcess::start("the collector", collector.arg("--out").arg(&spans))?;
        let server = self.server(Judge::Traces, Some(&collector.url()))?;
        self.decode(&Client { address: server.address(), token: TOKEN })?;
        // The server's last spans are sent at its end.
        server.end()?;
        collector.end()?;
        let text = fs::read_to_string(&spans).with_context(|| format!("{}", spans.display()))?;
        for name in SPANS {
            let came = count_spans(&text, name);
            if came < JOBS {
                bail!("{JOBS} jobs were done, and {came} spans {name:?} came");
            }
        }
        Ok(())
    }

    /// Runs some jobs in sequence.
    fn decode(&self, client: &Client) -> Result<()> {
        (0..JOBS).try_for_each(|_| client.decode(MODEL, &self.latent()))
    }

    /// Starts a server in the judge's folder.
    fn server(&self, judge: Judge, otlp: Option<&str>) -> Result<ServerProcess> {
        let place = self.place(judge);
        let owners = File::options().write(true).create_new(true).mode(0o600).open(self.token(judge));
        owners?.write_all(TOKEN.as_bytes())?;
        fs::write(place.join("tilewright.toml"), configuration(&self.project.root, otlp))?;
        let log = File::create(place.join("server.log"))?;
        let mut command = Command::new(self.program());
        command.current_dir(&place).args(["serve", "--config", "tilewright.toml"]).stderr(log);
        // The user's own trust, configuration and measurements stay apart.
        command.env("XDG_CONFIG_HOME", place.join("config")).env("XDG_STATE_HOME", place.join("state"));
        command.env("XDG_CACHE_HOME", places(self.project).join("cache")).env_remove("TILEWRIGHT_HISTORY");
        ServerProcess::start("the server", &mut command)
    }

    fn program(&self) -> PathBuf {
        self.program.clone().unwrap_or_else(|| self.project.program("debug"))
    }

    fn token(&self, judge: Judge) -> PathBuf {
        self.place(judge).join("token")
    }

    fn latent(&self) -> PathBuf {
        self.project.root.join(LATENTS).join(LATENT)
    }
}

/// A configuration with tiles so small that the latent has some, and a canary whose tiles overlap
/// less: it is faster, takes no more memory, and its pictures differ a little. Requests are not
/// limited, since an answer 429 says nothing of the rest.
fn configuration(root: &Path, otlp: Option<&str>) -> String {
    let telemetry = otlp.map(|url| format!("[server.telemetry]\notlp = {url:?}\n")).unwrap_or_default();
    format!(
        r#"[server]
listen = "127.0.0.1:0"
data = "data"
roots = [{latents:?}]
token-file = "token"
[server.limits]
requests-per-second = 100000
{telemetry}
[models.{MODEL}]
vae = {vae:?}

[policies.{POLICY}]
source = "fixed"
set = {{ space = "blended", tile = 64, overlap = 16 }}
[policies.next]
source = "fixed"
set = {{ space = "blended", tile = 64, overlap = 8 }}

[[routes]]
name = "{ROUTE}"
policy = "{POLICY}"
shadow = "adaptive"
canary = {{ policy = "next", share = 0.5, sample = 0.1, psnr = 25.0 }}
"#,
        latents = root.join(LATENTS),
        vae = root.join(VAE),
    )
}

/// True if a histogram has a count in one of its series.
fn is_counted(text: &str, histogram: &str) -> bool {
    let counts = text.lines().filter_map(|line| line.strip_prefix(histogram)?.strip_prefix("_count"));
    counts.into_iter().any(|count| !count.ends_with(" 0"))
}

fn check_metrics(promtool: &Path, text: &str) -> Result<()> {
    let mut checking = Command::new(promtool).args(["check", "metrics"]).stdin(Stdio::piped()).spawn()?;
    if let Some(mut input) = checking.stdin.take() {
        input.write_all(text.as_bytes())?;
    }
    let status = checking.wait()?;
    if !status.success() {
        bail!("promtool check metrics failed ({status})");
    }
    Ok(())
}

/// Spans of a name, in the collector's lines.
fn count_spans(text: &str, name: &str) -> usize {
    let beginning = format!("{{\"name\": {name:?},");
    text.lines().filter(|line| line.starts_with(&beginning)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_judges_are_given_is_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let module = Path::new("policies").join(MODULE.strip_suffix(".wasm").unwrap()).join("Cargo.toml");
        for path in [VAE.into(), Path::new(LATENTS).join(LATENT), module] {
            assert!(root.join(&path).is_file(), "{}", path.display());
        }
    }

    #[test]
    fn traces_are_configured_where_they_are_judged() {
        let root = Path::new("/checkout");
        let with = configuration(root, Some("http://127.0.0.1:4318"));
        assert!(with.contains("[server.telemetry]\notlp = \"http://127.0.0.1:4318\"\n"), "{with}");
        assert!(with.contains("roots = [\"/checkout/examples/latents\"]"), "{with}");
        assert!(!configuration(root, None).contains("telemetry"));
    }

    #[test]
    fn an_empty_histogram_is_told_from_a_full_one() {
        let text = "a_seconds_count 0\na_seconds_count{x=\"1\"} 10\nb_seconds_count 0\nb_seconds_sum 2\n";
        assert!(is_counted(text, "a_seconds") && !is_counted(text, "b_seconds") && !is_counted(text, "c_seconds"));
    }

    #[test]
    fn spans_are_counted_by_their_names() {
        let text = "{\"name\": \"job\", \"trace_id\": \"1\"}\n{\"name\": \"jobs\", \"links\": [\"job\"]}\n";
        assert_eq!([count_spans(text, "job"), count_spans(text, "write")], [1, 0]);
    }
}
