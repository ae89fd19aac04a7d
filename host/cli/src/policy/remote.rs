//! `tilewright policy swap` and `rollback`: requests to a server about its policies.

use std::{
    io::Write,
    net::{Ipv4Addr, Ipv6Addr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};
use tilewright_config::Address;
use tilewright_plan::{terminal::shorten, words::did_you_mean};
use tilewright_policy::{PolicyHost, shipped_names};
use ureq::{
    Agent, Body,
    http::{Method, Request, Response},
    tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem},
};

use super::admission;
use crate::{
    args::{PolicyGrants, Rollback, ServerArguments, Swap, WasiArgument},
    config,
    failure::{Failure, Outcome},
    files, printer, table,
    tell::tell,
};

/// The timeout of a request: a module may have to be compiled.
const PATIENCE: Duration = Duration::from_secs(120);

/// Bytes of an answer.
const ANSWER: u64 = 16 << 20;

/// Bytes of a file with a certificate or token.
const CREDENTIAL: usize = 1 << 20;

/// Puts another revision in force.
pub fn swap(arguments: &Swap) -> Outcome {
    let server = Server::new(&arguments.server)?;
    let mut body = Map::new();
    match arguments.module.as_deref() {
        None => {}
        Some(digest) if digest.starts_with("sha256:") => drop(body.insert("digest".into(), digest.into())),
        Some(reference) if reference.starts_with("oci://") => drop(body.insert("source".into(), reference.into())),
        Some(file) if PolicyHost::names_file(file) => {
            drop(body.insert("digest".into(), server.upload(Path::new(file), segment(&arguments.name)?)?.into()));
        }
        Some(name) if shipped_names().any(|shipped| shipped == name) => drop(body.insert("source".into(), name.into())),
        Some(name) => {
            let known = shipped_names().collect::<Vec<_>>().join(", ");
            return Err(Failure::input(format!(
                "unknown policy '{name}'{}: give a file that ends in .wasm, sha256:…, oci://…, or one of {known}",
                did_you_mean(name, shipped_names())
            )));
        }
    }
    if !arguments.set.is_empty() {
        let settings: Map<String, Value> =
            arguments.set.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
        body.insert("settings".into(), settings.into());
    }
    let path = format!("/v1/policies/{}/swap", segment(&arguments.name)?);
    let policy = server.ask(Method::POST, &path, "application/json", json!(body).to_string().as_bytes())?;
    print_policy(&policy, arguments.server.json)
}

/// Puts the previous revision in force again.
pub fn roll_back(arguments: &Rollback) -> Outcome {
    let server = Server::new(&arguments.server)?;
    let path = format!("/v1/policies/{}/rollback", segment(&arguments.name)?);
    print_policy(&server.ask(Method::POST, &path, "application/json", b"{}")?, arguments.server.json)
}

fn print_policy(policy: &Value, as_json: bool) -> Outcome {
    for line in policy["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        tell!("warning: {}", shorten(line, 2000));
    }
    if as_json {
        return printer::json(policy);
    }
    let text = |value: &Value| match value {
        Value::String(text) => shorten(text, 200),
        other => other.to_string(),
    };
    let revision = |revision: &Value| {
        let settings = revision["settings"].as_object().into_iter().flatten();
        let settings: Vec<String> =
            settings.map(|(name, value)| format!("{}={}", shorten(name, 64), text(value))).collect();
        format!(
            "{}: {} {} from {} ({})",
            text(&revision["number"]),
            text(&revision["name"]),
            text(&revision["version"]),
            text(&revision["origin"]),
            if settings.is_empty() { "no settings".into() } else { settings.join(" ") }
        )
    };
    let mut rows = vec![("policy", text(&policy["name"])), ("in force", revision(&policy["in_force"]))];
    if !policy["previous"].is_null() {
        rows.push(("previous", revision(&policy["previous"])));
    }
    if policy["paused"] == true {
        rows.push(("paused", "the native default decides".into()));
    }
    Ok(writeln!(printer::stdout(), "{}", table::facts(rows))?)
}

/// A name that stays within its part of an address.
fn segment(name: &str) -> Outcome<&str> {
    let sound = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    sound
        .then_some(name)
        .ok_or_else(|| Failure::input(format!("'{name}' is no policy's name: expected letters, digits, - and _")))
}

/// A server, and the user's credentials for it.
struct Server {
    agent: Agent,
    url: String,
    token: Option<String>,
}

impl Server {
    fn new(arguments: &ServerArguments) -> Outcome<Self> {
        let configured = config::load()?.server;
        let mut address = configured.listen;
        if let Address::Tcp(address) = &mut address
            && address.ip().is_unspecified()
        {
            // An address of all interfaces includes this one.
            address.set_ip(if address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
        }
        let url = arguments.server.clone().unwrap_or_else(|| address.url(configured.tls.is_some()));
        let is_local = arguments.server.is_none();
        let url = url.trim_end_matches('/').to_owned();
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err(Failure::input(match is_local {
                true => {
                    format!("the configured server {url}: expected http://… or https://…: name a server by --server")
                }
                false => format!("--server {url}: expected http://… or https://…"),
            }));
        }
        // The configuration's token is for the configuration's server.
        let file = arguments.token_file.clone().or(configured.token_file.filter(|_| is_local));
        let token = file.map(|file| {
            Ok::<_, Failure>(String::from_utf8_lossy(&super::read_bounded(&file, CREDENTIAL)?).trim().to_owned())
        });
        let config = Agent::config_builder()
            .tls_config(tls(arguments)?)
            .timeout_global(Some(PATIENCE))
            .http_status_as_error(false)
            .max_redirects(0)
            .build();
        Ok(Self { agent: config.new_agent(), url, token: token.transpose()? })
    }

    /// Uploads a module and its signature; returns its digest.
    fn upload(&self, file: &Path, policy: &str) -> Outcome<String> {
        // The server decides on the policy's grants.
        let grants = PolicyGrants { wasi: Some(WasiArgument::Inert), ..PolicyGrants::default() };
        let bytes = super::host(grants)?.read_file(file)?;
        let signature = admission::signature(file)?;
        // Sent together: a server that requires signatures examines no module without one.
        let signature = signature.map(|signature| ("module-signature", STANDARD.encode(signature)));
        let path = format!("/v1/modules?policy={policy}");
        let stored = self.ask_with(Method::POST, &path, "application/wasm", signature, &bytes)?;
        Ok(stored["digest"].as_str().unwrap_or_default().to_owned())
    }

    fn ask(&self, method: Method, path: &str, media: &str, body: &[u8]) -> Outcome<Value> {
        self.ask_with(method, path, media, None, body)
    }

    fn ask_with(
        &self,
        method: Method,
        path: &str,
        media: &str,
        further: Option<(&str, String)>,
        body: &[u8],
    ) -> Outcome<Value> {
        let mut request =
            Request::builder().method(method).uri(format!("{}{path}", self.url)).header("content-type", media);
        if let Some((name, value)) = further {
            request = request.header(name, value);
        }
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(body.to_vec()).map_err(|error| Failure::input(format!("{}: {error}", self.url)))?;
        let unreachable =
            |error: ureq::Error| Failure::work(format!("{}: {error}: is 'tilewright serve' running there?", self.url));
        let mut response = self.agent.run(request).map_err(unreachable)?;
        let text = response.body_mut().with_config().limit(ANSWER).read_to_string().map_err(unreachable)?;
        self.read_answer(&response, &text)
    }

    fn read_answer(&self, response: &Response<Body>, text: &str) -> Outcome<Value> {
        let status = response.status();
        let value: Value = serde_json::from_str(text).unwrap_or(Value::Null);
        if status.is_success() {
            return Ok(value);
        }
        let detail =
            value["detail"].as_str().map_or_else(|| format!("it answered {status}"), |detail| shorten(detail, 2000));
        let line = format!("{}: {detail}", self.url);
        Err(if status.is_client_error() { Failure::input(line) } else { Failure::work(line) })
    }
}

/// The size limit of a file of certificates or keys, in bytes.
const MOST_PEM: u64 = 1 << 20;

/// TLS with ring, the system's trusted certificates and the user's.
fn tls(arguments: &ServerArguments) -> Outcome<TlsConfig> {
    let read = |path: &Path| tilewright_files::read(path, MOST_PEM).map_err(files::unreadable(path));
    let wrong = |path: &Path, what: &str| Failure::input(format!("{}: expected {what} in PEM", path.display()));
    let system = rustls_native_certs::load_native_certs().certs;
    let mut roots: Vec<Certificate<'static>> =
        system.iter().map(|certificate| Certificate::from_der(certificate).to_owned()).collect();
    if let Some(path) = &arguments.ca {
        let trusted = Certificate::from_pem(&read(path)?).map_err(|_| wrong(path, "a certificate"))?;
        roots.push(trusted.to_owned());
    }
    let mut config = TlsConfig::builder()
        .root_certs(RootCerts::from(roots))
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()));
    if let Some(path) = &arguments.certificate {
        let (mut chain, mut key): (Vec<Certificate<'static>>, Option<PrivateKey<'static>>) = (Vec::new(), None);
        for item in parse_pem(&read(path)?).flatten() {
            match item {
                PemItem::Certificate(certificate) => chain.push(certificate),
                PemItem::PrivateKey(private) => key = Some(private),
                _ => {}
            }
        }
        let key = key.filter(|_| !chain.is_empty()).ok_or_else(|| wrong(path, "a certificate and its key"))?;
        config = config.client_cert(Some(ClientCert::new_with_certs(&chain, key)));
    }
    Ok(config.build())
}
