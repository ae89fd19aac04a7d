//! Connections: a bounded number of them, encrypted if that is configured, each with limits on the
//! time it takes.

mod certificates;
mod connections;
mod subject;

use std::{
    fs, io,
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
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
use tilewright_config::{Address, Server};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener, UnixSocket, UnixStream},
    time::timeout,
};
use tokio_io_timeout::TimeoutStream;
use tokio_util::either::Either;
use tower::ServiceExt;

use self::connections::{ConnectionSlot, Connections, RESERVE, RequestGuard};
pub use self::{
    certificates::{CertificateFault, Certificates, server_config},
    subject::Subject,
};
use crate::{Error, Result, descriptors, problem::Problem};

/// The longest wait for the headers of a request.
const HEADERS: Duration = Duration::from_secs(10);

/// The same on connections that are reserved for health checks.
const HEADERS_OF_HEALTH: Duration = Duration::from_secs(2);

/// The paths of health checks.
const HEALTH: [&str; 2] = ["/healthz", "/readyz"];

/// The longest TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The write timeout. A peer that never reads does not keep a connection; a player that pauses a
/// clip goes on with another request.
const WRITE: Duration = Duration::from_secs(60);

/// The most headers of a request, and their most bytes in all.
const MOST_HEADERS: usize = 64;
const HEADER_BYTES: usize = 64 << 10;

/// Time within which a second failure to accept a connection is not logged again.
const RUN: Duration = Duration::from_secs(10);

/// The time that requests under way have when the server ends.
const GRACE: Duration = Duration::from_secs(5);

/// The connections to a socket's file that wait to be accepted, at most.
const BACKLOG: u32 = 1024;

/// The address of whoever connects through the file system: someone on this machine.
const BY_FILE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A socket that accepts connections.
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

/// A socket's file, removed when this is dropped, unless another one has taken its place.
struct SocketFile {
    path: PathBuf,
    inode: [u64; 2],
}

impl SocketFile {
    fn new(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), inode: inode(path)? })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if inode(&self.path).is_ok_and(|inode| inode == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The file system and the number in it, which a later file of the same name does not have.
fn inode(path: &Path) -> io::Result<[u64; 2]> {
    fs::symlink_metadata(path).map(|facts| [facts.dev(), facts.ino()])
}

/// Makes a socket that listens at a path, where only the user can connect from the start: the file
/// gets the mode that the socket had before.
fn listen_at(path: &Path) -> io::Result<UnixListener> {
    let socket = UnixSocket::new_stream()?;
    rustix::fs::fchmod(&socket, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
    socket.bind(path)?;
    socket.listen(BACKLOG)
}

impl Socket {
    async fn bind(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => TcpListener::bind(address).await.map(Self::Tcp),
            Address::Unix(path) => {
                remove_unused(path)?;
                let socket = listen_at(path)?;
                let file = SocketFile::new(path)?;
                // Only Linux gives the file the socket's mode.
                fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
                Ok(Self::Unix(socket, file))
            }
        }
    }

    fn address(&self) -> io::Result<Address> {
        match self {
            Self::Tcp(socket) => socket.local_addr().map(Address::Tcp),
            Self::Unix(_, file) => Ok(Address::Unix(file.path.clone())),
        }
    }

    async fn accept(&self) -> io::Result<(Either<TcpStream, UnixStream>, SocketAddr)> {
        match self {
            Self::Tcp(socket) => {
                let (stream, address) = socket.accept().await?;
                let _ = stream.set_nodelay(true);
                Ok((Either::Left(stream), address))
            }
            Self::Unix(socket, _) => Ok((Either::Right(socket.accept().await?.0), BY_FILE)),
        }
    }
}

/// Removes the socket of a server that was killed: nobody listens on it.
fn remove_unused(path: &Path) -> io::Result<()> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|facts| facts.file_type().is_socket());
    let is_refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err_and(is_refused) {
        fs::remove_file(path)?;
    }
    Ok(())
}

/// The socket that accepts connections.
pub struct Listener {
    socket: Socket,
    tls: Option<Arc<Certificates>>,
    connections: Arc<Connections>,
}

impl Listener {
    /// Listens on the configured address.
    ///
    /// # Errors
    /// [`Error::Listen`], or [`Error::Credential`] if certificates or keys don't serve.
    pub async fn bind(server: &Server) -> Result<Self> {
        let connections = descriptors::fit_connections(server.limits.connections as usize, RESERVE);
        let tls = server.tls.as_ref().map(Certificates::open).transpose()?.map(Arc::new);
        let address = &server.listen;
        let socket = Socket::bind(address).await;
        let socket = socket.map_err(|source| Error::Listen { address: address.clone(), source })?;
        // Behind a proxy, and on this machine, all requests come from one address.
        let all_come_from_one = server.behind_proxy || !address.is_exposed();
        let most_of_one = if all_come_from_one { connections } else { connections.div_ceil(4) };
        Ok(Self { socket, tls, connections: Connections::new(connections, most_of_one) })
    }

    /// The certificates, if connections are encrypted.
    pub fn certificates(&self) -> Option<Arc<Certificates>> {
        self.tls.clone()
    }

    /// The address that it listens on.
    pub fn address(&self) -> io::Result<Address> {
        self.socket.address()
    }

    /// Serves until `end`. Requests under way have some seconds after that.
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
                        // Most likely the descriptors are used up: other connections have to end
                        // first.
                        if failed.is_none_or(|last| last.elapsed() >= RUN) {
                            tracing::warn!(%error, "a connection can't be accepted");
                        }
                        failed = Some(Instant::now());
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        continue;
                    }
                },
            };
            // One connection too many is closed at once, so that it does not keep the others
            // waiting.
            let Some(slot) = self.connections.acquire(address.ip(), Instant::now()) else { continue };
            let mut stream = TimeoutStream::new(stream);
            stream.set_write_timeout(Some(WRITE));
            let stream = Box::pin(stream);
            let peer = Peer { address, subject: None };
            let (router, tls, watcher) = (router.clone(), self.tls.clone(), graceful.watcher());
            tokio::spawn(async move {
                let slot = Arc::new(slot);
                let serving = async {
                    match tls {
                        None => serve_http(stream, peer, router, watcher, slot.clone()).await,
                        Some(tls) => serve_tls(&tls, stream, peer, router, watcher, slot.clone()).await,
                    }
                };
                tokio::select! {
                    () = serving => {}
                    () = slot.wait_for_eviction() => tracing::debug!(%address, "a connection that asked nothing gave way"),
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

async fn serve_tls<S>(
    tls: &Certificates,
    stream: S,
    mut peer: Peer,
    router: Router,
    watcher: Watcher,
    slot: Arc<ConnectionSlot>,
) where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let address = peer.address;
    match timeout(HANDSHAKE, tls.acceptor().accept(stream)).await {
        Ok(Ok(stream)) => {
            let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
            peer.subject = shown.map(|certificate| Subject::of(certificate));
            serve_http(stream, peer, router, watcher, slot).await;
        }
        Ok(Err(error)) => tracing::debug!(%error, %address, "a TLS handshake failed"),
        Err(_) => tracing::debug!(%address, "a TLS handshake took too long"),
    }
}

async fn serve_http<S>(stream: S, peer: Peer, router: Router, watcher: Watcher, slot: Arc<ConnectionSlot>)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (address, headers) = (peer.address, if slot.for_health { HEADERS_OF_HEALTH } else { HEADERS });
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let (router, peer, slot) = (router.clone(), peer.clone(), slot.clone());
        async move {
            let request_guard = slot.begin_request();
            let mut response = match slot.for_health && !HEALTH.contains(&request.uri().path()) {
                true => overload_response(),
                false => respond(router, peer, request).await?,
            };
            if slot.for_health {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, std::convert::Infallible>(response.map(|body| TrackedBody { body, _guard: request_guard }))
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

async fn respond(
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

/// The answer to other requests on a connection that is reserved for health checks: every other
/// slot is taken.
fn overload_response() -> axum::response::Response {
    let line = "too many connections: come again after Retry-After";
    let mut problem = Problem::new(axum::http::StatusCode::SERVICE_UNAVAILABLE, line);
    problem.retry_after = Some(1);
    problem.into_response()
}

/// The body of an answer. Its connection does not give way while it is sent.
struct TrackedBody {
    body: Body,
    _guard: RequestGuard,
}

impl HttpBody for TrackedBody {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_is_the_users_alone_and_removes_no_other_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let bind = async || Socket::bind(&Address::Unix(path.clone())).await.unwrap();
        let one = bind().await;
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::rename(&path, folder.path().join("aside")).unwrap();
        let other = bind().await;
        drop(one);
        assert!(path.exists());
        drop(other);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn the_mode_of_a_socket_is_there_from_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let _socket = listen_at(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
