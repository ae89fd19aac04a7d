//! Logs, as text or JSON lines, and traces over OTLP.

use std::{
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use opentelemetry::trace::TracerProvider;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
use tilewright_config::{LogFormat, Telemetry};
use tracing_subscriber::{EnvFilter, Layer, layer::SubscriberExt, util::SubscriberInitExt};
use ureq::{
    Agent,
    tls::{Certificate, RootCerts, TlsConfig},
};

use crate::{Error, Result, error::one_line};

/// Log levels of other crates, whose details are for their authors.
const QUIET: &str = "cranelift=warn,wasmtime=warn,regalloc2=warn,hyper=warn,opentelemetry=warn,ureq=warn,rustls=warn";

/// The timeout for sending spans.
const PATIENCE: Duration = Duration::from_secs(5);

/// The exporter of traces. Dropping it sends the last ones.
pub struct TelemetryGuard(Option<SdkTracerProvider>);

impl Drop for TelemetryGuard {
    fn drop(&mut self) {
        if let Some(provider) = self.0.take()
            && let Err(error) = provider.shutdown()
        {
            tracing::debug!(%error, "the last traces can't be sent");
        }
    }
}

/// Begins to log and to trace. `level` is that of our own crates: warn, info, debug or trace.
///
/// # Errors
/// Traces can't be sent as configured.
pub fn begin(telemetry: &Telemetry, level: &str) -> Result<TelemetryGuard> {
    let filter = || {
        let environment = EnvFilter::try_from_env("TILEWRIGHT_LOG").ok();
        environment.unwrap_or_else(|| EnvFilter::new(format!("{level},{QUIET}")))
    };
    let log = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let log = match telemetry.log {
        LogFormat::Text => log.with_ansi(io::IsTerminal::is_terminal(&io::stderr())).log_internal_errors(false).boxed(),
        LogFormat::Json => log
            .json()
            .flatten_event(true)
            .with_current_span(true)
            .with_span_list(true)
            .log_internal_errors(false)
            .boxed(),
    };
    let provider = telemetry.otlp.as_deref().map(build_provider).transpose()?;
    let traces = provider.as_ref().map(|provider| {
        let tracer = provider.tracer("tilewright");
        let filter = EnvFilter::new(format!("info,{QUIET}"));
        tracing_opentelemetry::layer().with_tracer(tracer).with_location(false).with_threads(false).with_filter(filter)
    });
    // A program that has a subscriber already, as a test does, keeps it.
    let _ = tracing_subscriber::registry().with(log.with_filter(filter())).with(traces).try_init();
    Ok(TelemetryGuard(provider))
}

fn build_provider(endpoint: &str) -> Result<SdkTracerProvider> {
    let url = format!("{}/v1/traces", endpoint.trim_end_matches('/'));
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(SpanSender::new(endpoint))
        .with_endpoint(url)
        .with_timeout(PATIENCE)
        .build();
    let exporter = exporter.map_err(|error| Error::Traces { endpoint: endpoint.into(), reason: error.to_string() })?;
    let resource = Resource::builder()
        .with_service_name("tilewright")
        .with_attribute(opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build();
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())
}

/// The sender of spans. It runs on the exporter's own thread, which may block.
struct SpanSender {
    agent: Agent,
    endpoint: String,
    /// True if traces are lost. Only a change is logged, since traces are sent every few seconds.
    is_lost: AtomicBool,
}

impl SpanSender {
    fn new(endpoint: &str) -> Self {
        // The certificates that the system trusts.
        let system = rustls_native_certs::load_native_certs().certs;
        let roots = system.iter().map(|certificate| Certificate::from_der(certificate).to_owned());
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::from(roots.collect::<Vec<_>>()))
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .build();
        let config = Agent::config_builder()
            .tls_config(tls)
            .timeout_global(Some(PATIENCE))
            .http_status_as_error(false)
            .max_redirects(0);
        Self { agent: config.build().new_agent(), endpoint: endpoint.to_owned(), is_lost: AtomicBool::new(false) }
    }

    fn report_state(&self, why: Option<String>) {
        if self.is_lost.swap(why.is_some(), Ordering::AcqRel) == why.is_some() {
            return;
        }
        let endpoint = &self.endpoint;
        match why {
            Some(why) => tracing::warn!(endpoint, why, "traces can't be sent: they are lost until they can"),
            None => tracing::info!(endpoint, "traces are sent again"),
        }
    }
}

impl fmt::Debug for SpanSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SpanSender")
    }
}

#[async_trait::async_trait]
impl HttpClient for SpanSender {
    async fn send_bytes(
        &self,
        request: opentelemetry_http::Request<Bytes>,
    ) -> std::result::Result<opentelemetry_http::Response<Bytes>, HttpError> {
        let (parts, body) = request.into_parts();
        let request = opentelemetry_http::Request::from_parts(parts, body.to_vec());
        let response = self.agent.run(request);
        self.report_state(match &response {
            Ok(response) if response.status().is_success() => None,
            Ok(response) => Some(format!("it answered {}", response.status())),
            Err(error) => Some(one_line(error)),
        });
        let mut response = response?;
        let body = response.body_mut().with_config().limit(1 << 20).read_to_vec()?;
        let (parts, _) = response.into_parts();
        Ok(opentelemetry_http::Response::from_parts(parts, body.into()))
    }
}
