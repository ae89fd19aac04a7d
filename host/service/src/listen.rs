//! Connections: a bounded number of them, encrypted where that is configured, none that may take for ever to say what it wants.

mod certificates;
mod connections;
mod subject;

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::{Body, HttpBody},
    extract::ConnectInfo,
    http::{HeaderValue, header},
    response::IntoResponse,
};
use hyper::{
    body::{Frame, Incoming, SizeHint},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::{GracefulShutdown, Watcher},
};
use tilewright_config::Server;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    time::timeout,
};
use tokio_io_timeout::TimeoutStream;
use tower::ServiceExt;

use self::connections::{Answering, Connections, Place, RESERVE};
pub use self::{certificates::Certificates, subject::Subject};
use crate::{Error, Result, descriptors, problem::Problem};

/// For the first headers, and for each further request's.
const HEADERS: Duration = Duration::from_secs(10);

/// The same on connections that are kept for health checks.
const HEADERS_OF_HEALTH: Duration = Duration::from_secs(2);

/// The paths of health checks.
const HEALTH: [&str; 2] = ["/healthz", "/readyz"];

/// For a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// For a peer to take some of a response: who never reads does not keep a connection, and who pauses a clip goes on by another request.
const WRITE: Duration = Duration::from_secs(60);

/// Headers of a request, and bytes of them all.
const MOST_HEADERS: usize = 64;
const HEADER_BYTES: usize = 64 << 10;

/// A connection that can't be accepted has a line in the log, unless another could not be so short a time before.
const RUN: Duration = Duration::from_secs(10);

/// For requests under way when the server ends.
const GRACE: Duration = Duration::from_secs(5);

/// Where connections come in.
pub struct Listener {
    socket: TcpListener,
    tls: Option<Arc<Certificates>>,
    connections: Arc<Connections>,
}

impl Listener {
    /// Listens.
    ///
    /// # Errors
    /// [`Error::Listen`], or [`Error::Credential`] where certificates or keys don't serve.
    pub async fn bind(server: &Server) -> Result<Self> {
        let address = server.listen;
        let connections = descriptors::fitting(server.limits.connections as usize, RESERVE);
        let tls = server.tls.as_ref().map(Certificates::open).transpose()?.map(Arc::new);
        let socket = TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })?;
        // Behind a proxy, and on this machine, all come from one.
        let all_come_from_one = server.behind_proxy || address.ip().is_loopback();
        let most_of_one = if all_come_from_one { connections } else { connections.div_ceil(4) };
        Ok(Self { socket, tls, connections: Connections::new(connections, most_of_one) })
    }

    /// The certificates, if connections are encrypted.
    pub fn certificates(&self) -> Option<Arc<Certificates>> {
        self.tls.clone()
    }

    /// Where it listens.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Serves until `end`; then requests under way have some seconds.
    pub async fn serve(self, router: Router, end: impl Future<Output = ()>) {
        let graceful = GracefulShutdown::new();
        tokio::pin!(end);
        let mut failed: Option<Instant> = None;
        loop {
            let (stream, address) = tokio::select! {
                () = &mut end => break,
                accepted = self.socket.accept() => match accepted {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        // Out of descriptors, most likely: others have to end first.
                        if failed.is_none_or(|last| last.elapsed() >= RUN) {
                            tracing::warn!(%error, "a connection can't be accepted");
                        }
                        failed = Some(Instant::now());
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        continue;
                    }
                },
            };
            // One too many is closed at once: it can't keep the others waiting.
            let Some(place) = self.connections.take(address.ip(), Instant::now()) else { continue };
            let _ = stream.set_nodelay(true);
            let mut stream = TimeoutStream::new(stream);
            stream.set_write_timeout(Some(WRITE));
            let stream = Box::pin(stream);
            let peer = Peer { address, subject: None };
            let (router, tls, watcher) = (router.clone(), self.tls.clone(), graceful.watcher());
            tokio::spawn(async move {
                let place = Arc::new(place);
                let talking = async {
                    match tls {
                        None => talk(stream, peer, router, watcher, place.clone()).await,
                        Some(tls) => encrypted(&tls, stream, peer, router, watcher, place.clone()).await,
                    }
                };
                tokio::select! {
                    () = talking => {}
                    () = place.given_way() => tracing::debug!(%address, "a connection that asked nothing gave way"),
                }
            });
        }
        drop(self.socket);
        let _ = timeout(GRACE, graceful.shutdown()).await;
    }
}

/// The other end of a connection.
#[derive(Clone)]
struct Peer {
    address: SocketAddr,
    /// The subject of its certificate, if it showed one.
    subject: Option<Subject>,
}

async fn encrypted<S>(
    tls: &Certificates,
    stream: S,
    mut peer: Peer,
    router: Router,
    watcher: Watcher,
    place: Arc<Place>,
) where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let address = peer.address;
    match timeout(HANDSHAKE, tls.acceptor().accept(stream)).await {
        Ok(Ok(stream)) => {
            let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
            peer.subject = shown.map(|certificate| Subject::of(certificate));
            talk(stream, peer, router, watcher, place).await;
        }
        Ok(Err(error)) => tracing::debug!(%error, %address, "a TLS handshake failed"),
        Err(_) => tracing::debug!(%address, "a TLS handshake took too long"),
    }
}

async fn talk<S>(stream: S, peer: Peer, router: Router, watcher: Watcher, place: Arc<Place>)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (address, headers) = (peer.address, if place.for_health { HEADERS_OF_HEALTH } else { HEADERS });
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let (router, peer, place) = (router.clone(), peer.clone(), place.clone());
        async move {
            let answering = place.answering();
            let mut response = match place.for_health && !HEALTH.contains(&request.uri().path()) {
                true => crowded(),
                false => answered(router, peer, request).await?,
            };
            if place.for_health {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, std::convert::Infallible>(response.map(|body| Held { body, _answering: answering }))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(headers)
        .max_headers(MOST_HEADERS)
        .max_header_size(HEADER_BYTES)
        .max_buf_size(HEADER_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%error, %address, "a connection broke");
    }
}

async fn answered(
    router: Router,
    peer: Peer,
    request: hyper::Request<Incoming>,
) -> std::result::Result<axum::response::Response, std::convert::Infallible> {
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(ConnectInfo(peer.address));
    if let Some(subject) = peer.subject {
        request.extensions_mut().insert(subject);
    }
    router.oneshot(request).await
}

/// The answer to other requests on a connection that is kept for health checks: every other place is taken.
fn crowded() -> axum::response::Response {
    let line = "too many connections: come again after Retry-After";
    let mut problem = Problem::new(axum::http::StatusCode::SERVICE_UNAVAILABLE, line);
    problem.retry_after = Some(1);
    problem.into_response()
}

/// An answer's body; its connection does not give way while it is sent.
struct Held {
    body: Body,
    _answering: Answering,
}

impl HttpBody for Held {
    type Data = bytes::Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
