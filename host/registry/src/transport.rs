//! HTTP for registries: one request, one answer, no redirect followed, and nothing read without a
//! limit.

use std::{
    io::Read,
    sync::Arc,
    time::{Duration, Instant},
};
use tilewright_wording::Setting;

use ureq::{
    Agent, AsSendBody, Body, Timeout,
    http::{HeaderValue, Method, Request, Response, Uri},
    tls::{Certificate, RootCerts, TlsConfig},
    unversioned::transport::DefaultConnector,
};

use crate::{
    Error, Result,
    reach::{CheckedResolver, InternalAddress, RegistryReach},
};

/// Limits on a registry's answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a manifest; the specification asks registries to take 4 MiB.
    pub manifest_bytes: u64,
    /// Bytes of a policy.
    pub policy_bytes: u64,
    /// The connect timeout.
    pub connect: Duration,
    /// The read timeout: until an answer begins, and between two pieces of it.
    pub pause: Duration,
    /// The timeout of all requests of a client together, with their answers.
    pub whole: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            manifest_bytes: 4 << 20,
            policy_bytes: 32 << 20,
            connect: Duration::from_secs(15),
            pause: Duration::from_secs(30),
            whole: Duration::from_secs(600),
        }
    }
}

/// A request's parts beside its method and address.
#[derive(Default)]
pub(crate) struct Parts<'a> {
    pub headers: Vec<(&'static str, HeaderValue)>,
    pub body: Option<&'a [u8]>,
}

/// Sends requests to one registry, and to addresses that it names.
pub(crate) struct Transport {
    agent: Agent,
    registry: String,
    limits: Limits,
    /// The end of the time for all requests.
    until: Instant,
}

impl Transport {
    /// `is_loopback`: the registry is on this machine, where no proxy leads.
    pub fn new(registry: &str, is_loopback: bool, reach: RegistryReach, limits: Limits) -> Self {
        let mut config = Agent::config_builder()
            .user_agent(concat!("tilewright/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .tls_config(tls())
            .timeout_connect(Some(limits.connect))
            .timeout_recv_response(Some(limits.pause))
            .timeout_per_read(Some(limits.pause))
            .timeout_per_write(Some(limits.pause));
        if is_loopback {
            config = config.proxy(None);
        }
        let agent = Agent::with_parts(config.build(), DefaultConnector::default(), CheckedResolver::new(reach));
        Self { agent, registry: registry.into(), limits, until: Instant::now() + limits.whole }
    }

    /// Sends one request; `what` names it in errors.
    pub fn send(&self, what: &str, method: &Method, url: &Uri, parts: &Parts<'_>) -> Result<Response<Body>> {
        let mut request = Request::builder().method(method).uri(url);
        for (name, value) in &parts.headers {
            request = request.header(*name, value);
        }
        tracing::debug!("{method} {url}");
        let sent = match parts.body {
            Some(body) => request.body(body).map_err(ureq::Error::from).and_then(|request| self.run(request)),
            None => request.body(()).map_err(ureq::Error::from).and_then(|request| self.run(request)),
        };
        sent.map_err(|error| self.transport_error(what, &error))
    }

    /// Sends a request within the time that is left.
    fn run(&self, request: Request<impl AsSendBody>) -> Result<Response<Body>, ureq::Error> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ureq::Error::Timeout(Timeout::Global));
        }
        self.agent.run(self.agent.configure_request(request).timeout_global(Some(left)).build())
    }

    /// Reads an answer's body; none if it is longer than allowed.
    pub fn body(&self, what: &str, response: &mut Response<Body>, most: u64) -> Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        let read = response.body_mut().as_reader().take(most + 1).read_to_end(&mut bytes);
        read.map_err(|error| self.transport_error(what, &ureq::Error::from(error)))?;
        Ok((bytes.len() as u64 <= most).then_some(bytes))
    }

    fn transport_error(&self, what: &str, error: &ureq::Error) -> Error {
        let registry = self.registry.clone();
        if let ureq::Error::Other(cause) = error
            && let Some(InternalAddress { host, address }) = cause.downcast_ref()
        {
            return Error::Internal { registry, what: what.into(), host: host.clone(), address: *address };
        }
        let within = match error {
            ureq::Error::Timeout(Timeout::Connect | Timeout::Resolve) => self.limits.connect,
            ureq::Error::Timeout(Timeout::RecvResponse | Timeout::PerRead | Timeout::PerWrite) => self.limits.pause,
            ureq::Error::Timeout(_) => self.limits.whole,
            other => {
                let text = other.to_string();
                let hint = match &text {
                    text if text.contains("InvalidContentType") => {
                        format!(": it doesn't speak TLS: give {} to use it without", Setting::PlainHttp)
                    }
                    text if text.contains("UnknownIssuer") || text.contains("BadSignature") => {
                        ": its certificate is not signed by a signer that this system trusts: add the signer to the system's, or set SSL_CERT_FILE".into()
                    }
                    _ => String::new(),
                };
                return Error::Transport { registry, detail: format!("{what}: {text}{hint}") };
            }
        };
        Error::Late { registry, what: what.into(), within }
    }
}

/// TLS with ring and the system's trusted certificates.
fn tls() -> TlsConfig {
    let system = rustls_native_certs::load_native_certs();
    for error in system.errors {
        tracing::debug!("certificates of the system: {error}");
    }
    let roots: Vec<Certificate<'static>> =
        system.certs.iter().map(|certificate| Certificate::from_der(certificate).to_owned()).collect();
    TlsConfig::builder()
        .root_certs(RootCerts::from(roots))
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build()
}
