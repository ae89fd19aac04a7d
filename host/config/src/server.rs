//! `[server]`: the service's address, access, storage and limits.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

use crate::{Address, source, values};

/// The limit on a job's deadline, in milliseconds: 30 days.
const LONGEST_JOB: u64 = 30 * 24 * 3_600_000;
/// The limit on the time that results are kept, in milliseconds: a year.
const LONGEST_KEPT: u64 = 31_557_600_000;
/// The smallest and the largest limit on uploaded latents, in bytes.
const LEAST_UPLOAD: u64 = 1 << 10;
const MOST_UPLOAD: u64 = 64 << 30;
/// Names for callers without a token of `[[server.tokens]]` in the audit's lines, with a
/// description of those callers.
const RESERVED: [(&str, &str); 2] =
    [("token-file", "who brings the token in token-file"), ("anybody", "every caller if no token is asked for")];

/// `[server]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default, expecting = "a table")]
pub struct Server {
    /// The address that the service listens on. Beyond loopback it needs TLS and a token or client
    /// certificates, or a token and [`Server::behind_proxy`].
    pub listen: Address,
    /// The folder of jobs, results and modules, if configured; see [`Server::data_folder`].
    #[serde(deserialize_with = "values::path")]
    pub data: Option<PathBuf>,
    /// The folders that jobs may name paths in, not made canonical.
    #[serde(deserialize_with = "values::paths")]
    pub roots: Vec<PathBuf>,
    /// The file with a bearer token that allows everything.
    #[serde(deserialize_with = "values::path")]
    pub token_file: Option<PathBuf>,
    /// `[[server.tokens]]`: further bearer tokens, each with a name and a role.
    pub tokens: Vec<Token>,
    /// Registries that a request may fetch policies from, as host or host:port; those of
    /// `[policies.NAME]` are allowed, too.
    #[serde(deserialize_with = "registries")]
    pub registries: Vec<String>,
    /// Registries of one's own network, and hosts that they lead to, which may have internal
    /// addresses. No other name may lead to one.
    #[serde(deserialize_with = "registries")]
    pub internal_registries: Vec<String>,
    /// The audit file, with a line for each request that changes something. By default such lines
    /// go to the log alone.
    #[serde(deserialize_with = "values::path")]
    pub audit: Option<PathBuf>,
    /// Further host names of requests, in lower case and without a port.
    #[serde(deserialize_with = "hosts")]
    pub hosts: Vec<String>,
    /// Blended tiles and chunks are allowed where an exact plan fits, on every route.
    #[serde(rename = "allow", deserialize_with = "values::allows_blended")]
    pub allows_blended: bool,
    /// True if a proxy in front of the service ends TLS; the service may then listen beyond
    /// loopback with a token alone.
    pub behind_proxy: bool,
    /// `[server.tls]`: by default plain HTTP.
    pub tls: Option<Tls>,
    /// `[server.limits]`
    pub limits: ServerLimits,
    /// `[server.telemetry]`
    pub telemetry: Telemetry,
}

/// `[[server.tokens]]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table")]
pub struct Token {
    /// The owner, as named in the audit's lines.
    #[serde(deserialize_with = "name")]
    pub name: String,
    /// The role of its bearer.
    pub role: Role,
    /// The file that holds the token.
    #[serde(deserialize_with = "values::path")]
    pub file: PathBuf,
}

/// The role of a caller. Each role includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// See everything: jobs, results, decisions, policies, metrics.
    Read,
    /// Submit and cancel jobs.
    Submit,
    /// Swap, roll back and pause policies, end trials, upload modules.
    Operate,
}

impl Role {
    /// The name, as the configuration writes it.
    pub fn name(self) -> &'static str {
        match self {
            Role::Read => "read",
            Role::Submit => "submit",
            Role::Operate => "operate",
        }
    }
}

/// `[server.tls]`: PEM files.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a table")]
pub struct Tls {
    /// The service's certificate, with those up to the authority's.
    #[serde(deserialize_with = "values::path")]
    pub certificate: PathBuf,
    /// The certificate's secret key.
    #[serde(deserialize_with = "values::path")]
    pub key: PathBuf,
    /// The authority of client certificates; by default none are asked for.
    #[serde(default, deserialize_with = "values::path")]
    pub clients: Option<PathBuf>,
}

/// `[server.limits]`: limits on the service's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default, expecting = "a table")]
pub struct ServerLimits {
    /// The size limit of a latent, in bytes.
    #[serde(rename = "upload", deserialize_with = "upload")]
    pub upload_bytes: u64,
    /// Jobs that may wait, per device.
    #[serde(deserialize_with = "values::count::<_, _, 100_000>")]
    pub queue: u32,
    /// Requests per second and client address, over time; bursts may be twice as large.
    #[serde(deserialize_with = "values::count::<_, _, 1_000_000>")]
    pub requests_per_second: u32,
    /// Connections at a time.
    #[serde(deserialize_with = "values::count::<_, _, 100_000>")]
    pub connections: u32,
    /// The longest time from a job's acceptance to its end.
    #[serde(deserialize_with = "values::time::<_, _, 1000, LONGEST_JOB>")]
    pub deadline: Duration,
    /// The time that results are kept after a job's end.
    #[serde(deserialize_with = "values::time::<_, _, 1000, LONGEST_KEPT>")]
    pub keep_results: Duration,
}

/// `[server.telemetry]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default, expecting = "a table")]
pub struct Telemetry {
    /// The format of log lines.
    pub log: LogFormat,
    /// The URL that traces are sent to, as OTLP over HTTP; by default none are sent.
    #[serde(deserialize_with = "collector")]
    pub otlp: Option<String>,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7590)).into(),
            data: None,
            roots: Vec::new(),
            token_file: None,
            tokens: Vec::new(),
            registries: Vec::new(),
            internal_registries: Vec::new(),
            audit: None,
            hosts: Vec::new(),
            allows_blended: false,
            behind_proxy: false,
            tls: None,
            limits: ServerLimits::default(),
            telemetry: Telemetry::default(),
        }
    }
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            upload_bytes: 256 << 20,
            queue: 64,
            requests_per_second: 100,
            connections: 256,
            deadline: Duration::from_secs(3600),
            keep_results: Duration::from_secs(24 * 3600),
        }
    }
}

impl Server {
    /// The folder of jobs, results and modules: the configured one, or else
    /// `$XDG_STATE_HOME/tilewright/server` or `~/.local/state/tilewright/server`; none if there is
    /// no home either.
    pub fn data_folder(&self) -> Option<PathBuf> {
        self.data.clone().or_else(source::state_path)
    }

    /// True if other machines can reach the address.
    pub fn is_exposed(&self) -> bool {
        self.listen.is_exposed()
    }

    /// Every path, to be resolved.
    pub(crate) fn paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let tls = self
            .tls
            .iter_mut()
            .flat_map(|tls| [&mut tls.certificate, &mut tls.key].into_iter().chain(&mut tls.clients));
        let tokens = self.tokens.iter_mut().map(|token| &mut token.file);
        let files = self.data.iter_mut().chain(&mut self.roots).chain(&mut self.token_file).chain(&mut self.audit);
        files.chain(tokens).chain(tls).chain(self.listen.path_mut())
    }

    /// True if callers have to present a token.
    pub fn has_tokens(&self) -> bool {
        self.token_file.is_some() || !self.tokens.is_empty()
    }

    /// The protection that is missing to listen where other machines can connect.
    pub(crate) fn exposure(&self) -> Option<String> {
        let token = self.has_tokens();
        let guarded = match &self.tls {
            Some(tls) => token || tls.clients.is_some(),
            None => token && self.behind_proxy,
        };
        (self.is_exposed() && !guarded).then(|| {
            format!(
                "{} can be reached from other machines: allowed are 127.0.0.0/8 and [::1], or [server.tls] with token-file or with clients in \
                 it, or token-file with behind-proxy = true where TLS ends at a proxy in front of it ([[server.tokens]] do as well)",
                self.listen
            )
        })
    }
}

/// A host name of requests.
struct Host(String);

impl<'de> Deserialize<'de> for Host {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        values::text(deserializer, "a host's name", |text| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
            let named = (1..=253).contains(&text.len()) && text.bytes().all(plain);
            match named || text.parse::<IpAddr>().is_ok() {
                true => Ok(Self(text.to_ascii_lowercase())),
                false => Err(format!(
                    "'{}' is no host: write a name or an address without scheme, port and path, as in tiles.example",
                    text.escape_debug()
                )),
            }
        })
    }
}

/// A token's name, which has to be distinct from every other caller's in the audit's lines.
fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    values::text(deserializer, "a name", |text| {
        let values::Name(name) = values::Name::read(text)?;
        match RESERVED.iter().find(|(reserved, _)| *reserved == name) {
            Some((_, who)) => Err(format!("'{name}' is what the audit calls {who}: choose another name")),
            None => Ok(name),
        }
    })
}

/// A limit on the size of latents; one outside 1 KiB to 64 GiB is taken for a mistake.
fn upload<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let bytes: u64 = values::size(deserializer)?;
    match (LEAST_UPLOAD..=MOST_UPLOAD).contains(&bytes) {
        true => Ok(bytes),
        false => Err(D::Error::custom("allowed is 1KiB to 64GiB")),
    }
}

/// A registry, as a reference begins: `registry.example`, `localhost:5000`.
struct Registry(String);

impl<'de> Deserialize<'de> for Registry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        values::text(deserializer, "a registry such as \"registry.example\"", |text| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b':');
            match (1..=253).contains(&text.len()) && text.bytes().all(plain) {
                true => Ok(Self(text.to_ascii_lowercase())),
                false => Err(format!(
                    "'{}' is no registry: write a host without scheme and path, as in registry.example or localhost:5000",
                    text.escape_debug()
                )),
            }
        })
    }
}

fn registries<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(Vec::<Registry>::deserialize(deserializer)?.into_iter().map(|Registry(name)| name).collect())
}

fn hosts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(Vec::<Host>::deserialize(deserializer)?.into_iter().map(|Host(name)| name).collect())
}

fn collector<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    values::text(deserializer, "a URL such as \"http://127.0.0.1:4318\"", |text| {
        let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
        let plain = |rest: &str| {
            !rest.is_empty()
                && !rest.starts_with('/')
                && rest.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'@')
        };
        match rest.is_some_and(plain) {
            true => Ok(Some(text.into())),
            false => Err(format!(
                "'{}' is no URL of a collector: write http:// or https:// and a host, without a user, as in http://127.0.0.1:4318",
                text.escape_debug()
            )),
        }
    })
}

#[cfg(test)]
mod tests {
    use crate::tests::{expect_error, parsed};

    #[test]
    fn a_server_that_is_wrong() {
        for (text, words) in [
            ("port = 1", "unknown field `port`, expected one of `listen`, `data`, `roots`, `token-file`, `tokens`"),
            ("listen = 7590", "expected an address such as \"127.0.0.1:7590\""),
            ("listen = \"localhost\"", "'localhost' is no address to listen on: write IP:PORT"),
            ("data = \"\"", "an empty path"),
            ("roots = \"/srv\"", "invalid type: string \"/srv\", expected a list"),
            ("tokens = { name = \"ci\" }", "invalid type: table, expected a list"),
            ("roots = [\"\"]", "an empty path"),
            ("token-file = \"\"", "an empty path"),
            ("hosts = [\"https://tiles.example\"]", "without scheme, port and path"),
            ("hosts = [\"tiles.example:443\"]", "without scheme, port and path"),
            ("behind-proxy = 1", "expected a boolean"),
            ("tls = { certificate = \"a\" }", "missing field `key`"),
            (
                "tls = { certificate = \"a\", key = \"b\", ca = \"c\" }",
                "expected one of `certificate`, `key`, `clients`",
            ),
            ("limits = { upload = 5 }", "expected a size such as \"8GiB\""),
            ("limits = { upload = \"5 apples\" }", "'5 apples' is not a size"),
            ("limits = { upload = \"1B\" }", "allowed is 1KiB to 64GiB"),
            ("limits = { upload = \"1TiB\" }", "allowed is 1KiB to 64GiB"),
            ("registries = [\"oci://registry.example\"]", "is no registry: write a host without scheme and path"),
            ("registries = [\"registry.example/team\"]", "is no registry: write a host without scheme and path"),
            ("internal-registries = [\"http://10.0.0.7\"]", "is no registry: write a host without scheme and path"),
            ("audit = \"\"", "an empty path"),
            (
                "tokens = [{ name = \"ci\", role = \"root\", file = \"t\" }]",
                "expected one of `read`, `submit`, `operate`",
            ),
            ("tokens = [{ name = \"CI\", role = \"read\", file = \"t\" }]", "'CI' is no name"),
            (
                "tokens = [{ name = \"ci\", role = \"read\", file = \"t\" }, { name = \"ci\", role = \"submit\", file = \"u\" }]",
                "'ci' is the name of another token, too",
            ),
            (
                "tokens = [{ name = \"token-file\", role = \"read\", file = \"t\" }]",
                "'token-file' is what the audit calls who brings the token in token-file",
            ),
            (
                "tokens = [{ name = \"anybody\", role = \"read\", file = \"t\" }]",
                "'anybody' is what the audit calls every caller if no token is asked for: choose another name",
            ),
            ("limits = { queue = 0 }", "integer `0`, expected a whole number from 1 to 100000"),
            ("limits = { queue = 100001 }", "expected a whole number from 1 to 100000"),
            ("limits = { queue = \"64\" }", "expected a whole number from 1 to 100000"),
            ("limits = { requests-per-second = -1 }", "expected a whole number from 1 to 1000000"),
            ("limits = { connections = 1.5 }", "expected a whole number from 1 to 100000"),
            ("limits = { connections = 99999999999999999999 }", "expected a whole number from 1 to 100000"),
            ("limits = { deadline = \"1 fortnight\" }", "'1 fortnight' is no span of time: write a number with a unit"),
            ("limits = { deadline = \"0s\" }", "allowed is 1s to 30days"),
            ("limits = { deadline = \"31days\" }", "allowed is 1s to 30days"),
            ("limits = { deadline = 60 }", "expected a span of time such as \"250ms\""),
            ("limits = { keep-results = \"99999years\" }", "allowed is 1s to 1year"),
            ("limits = { keep = \"1h\" }", "`keep-results`"),
            ("telemetry = { log = \"xml\" }", "unknown variant `xml`, expected `text` or `json`"),
            ("telemetry = { otlp = \"127.0.0.1:4318\" }", "write http:// or https:// and a host"),
            ("telemetry = { otlp = \"http:///v1\" }", "write http:// or https:// and a host"),
        ] {
            let message = expect_error(&format!("[server]\n{text}"), 2);
            assert!(message.contains(words), "{message}");
        }
    }

    #[test]
    fn beyond_this_machine_it_takes_protection() {
        const TOKEN: &str = "token-file = \"token\"\n";
        const TOKENS: &str = "tokens = [{ name = \"ci\", role = \"submit\", file = \"token\" }]\n";
        const PROXY: &str = "behind-proxy = true\n";
        const TLS: &str = "tls = { certificate = \"c\", key = \"k\" }\n";
        const CLIENTS: &str = "tls = { certificate = \"c\", key = \"k\", clients = \"a\" }\n";
        for (address, keys, allowed) in [
            ("127.0.0.1:0", vec![], true),
            ("127.7.7.7:80", vec![], true),
            ("[::1]:80", vec![], true),
            ("0.0.0.0:80", vec![], false),
            ("[::]:80", vec![], false),
            ("[::ffff:127.0.0.1]:80", vec![], false),
            ("192.168.0.1:80", vec![TOKEN], false),
            ("192.168.0.1:80", vec![TLS], false),
            ("192.168.0.1:80", vec![PROXY], false),
            ("192.168.0.1:80", vec![TLS, PROXY], false),
            ("192.168.0.1:80", vec![TLS, TOKEN], true),
            ("192.168.0.1:80", vec![CLIENTS], true),
            ("192.168.0.1:80", vec![CLIENTS, TOKEN], true),
            ("192.168.0.1:80", vec![TOKEN, PROXY], true),
            ("192.168.0.1:80", vec![TOKENS, PROXY], true),
            ("192.168.0.1:80", vec![TOKENS], false),
        ] {
            let text = format!("[server]\n{}listen = \"{address}\"\n", keys.concat());
            match allowed {
                true => drop(parsed(&text).unwrap()),
                false => {
                    let message = expect_error(&text, keys.len() + 2);
                    assert!(message.contains(&format!("{address} can be reached from other machines")), "{message}");
                }
            }
        }
    }
}
