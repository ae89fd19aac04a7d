//! Connections: a bounded number of them, encrypted where that is configured, none that may take for ever to say what it wants.

use std::{
    collections::HashMap,
    fs, io,
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{Router, extract::ConnectInfo};
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use tilewright_config::{Server, Tls};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    sync::Semaphore,
    time::timeout,
};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use crate::{Error, Result};

/// For the first headers, and for each further request's.
const HEADERS: Duration = Duration::from_secs(10);

/// For a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// For a peer to take some of a response: who never reads does not keep a connection, and who pauses a clip goes on by another request.
const WRITE: Duration = Duration::from_secs(60);

/// Headers of a request, and bytes of them all.
const MOST_HEADERS: usize = 64;
const HEADER_BYTES: usize = 64 << 10;

/// For requests under way when the server ends.
const GRACE: Duration = Duration::from_secs(5);

/// Where connections come in.
pub struct Listener {
    socket: TcpListener,
    tls: Option<TlsAcceptor>,
    connections: Arc<Semaphore>,
    /// Of one address.
    most_of_one: usize,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl Listener {
    /// Listens.
    ///
    /// # Errors
    /// [`Error::Listen`], or [`Error::Credential`] where certificates or keys don't serve.
    pub async fn bind(server: &Server) -> Result<Self> {
        let (address, tls, connections) = (server.listen, server.tls.as_ref(), server.limits.connections as usize);
        let tls = tls.map(acceptor).transpose()?;
        let socket = TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })?;
        // Behind a proxy, and on this machine, all come from one.
        let all_come_from_one = server.behind_proxy || address.ip().is_loopback();
        let most_of_one = if all_come_from_one { connections } else { connections.div_ceil(4) };
        Ok(Self { socket, tls, connections: Arc::new(Semaphore::new(connections)), most_of_one, open: Arc::default() })
    }

    /// Where it listens.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Serves until `end`; then requests under way have some seconds.
    pub async fn serve(self, router: Router, end: impl Future<Output = ()>) {
        let graceful = GracefulShutdown::new();
        tokio::pin!(end);
        loop {
            let (stream, address) = tokio::select! {
                () = &mut end => break,
                accepted = self.socket.accept() => match accepted {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        // Out of descriptors, most likely: others have to end first.
                        tracing::warn!(%error, "a connection can't be accepted");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        continue;
                    }
                },
            };
            // One too many is closed at once: it can't keep the others waiting.
            let Ok(permit) = self.connections.clone().try_acquire_owned() else { continue };
            let Some(counted) = Counted::new(&self.open, address.ip(), self.most_of_one) else { continue };
            let _ = stream.set_nodelay(true);
            let mut stream = TimeoutStream::new(stream);
            stream.set_write_timeout(Some(WRITE));
            let stream = Box::pin(stream);
            let (router, tls, watcher) = (router.clone(), self.tls.clone(), graceful.watcher());
            tokio::spawn(async move {
                let _held = (permit, counted);
                match tls {
                    None => talk(stream, address, router, watcher).await,
                    Some(tls) => match timeout(HANDSHAKE, tls.accept(stream)).await {
                        Ok(Ok(stream)) => talk(stream, address, router, watcher).await,
                        Ok(Err(error)) => tracing::debug!(%error, %address, "a TLS handshake failed"),
                        Err(_) => tracing::debug!(%address, "a TLS handshake took too long"),
                    },
                }
            });
        }
        drop(self.socket);
        let _ = timeout(GRACE, graceful.shutdown()).await;
    }
}

/// A connection among those of its address.
struct Counted {
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
    address: IpAddr,
}

impl Counted {
    /// None where the address has as many as it may.
    fn new(open: &Arc<Mutex<HashMap<IpAddr, usize>>>, address: IpAddr, most: usize) -> Option<Self> {
        let mut counts = open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(address).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        drop(counts);
        Some(Self { open: open.clone(), address })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut counts = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

async fn talk<S>(stream: S, address: SocketAddr, router: Router, watcher: hyper_util::server::graceful::Watcher)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let service = router.map_request(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(address));
        request.map(axum::body::Body::new)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .max_headers(MOST_HEADERS)
        .max_buf_size(HEADER_BYTES)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%error, %address, "a connection broke");
    }
}

fn acceptor(tls: &Tls) -> Result<TlsAcceptor> {
    let wrong = |path: &Path, reason: String| Error::Credential { path: path.to_owned(), reason };
    let read = |path: &Path| fs::read(path).map_err(|error| wrong(path, format!("can't be read: {error}")));
    let certificates = |path: &Path| -> Result<Vec<CertificateDer<'static>>> {
        let all = CertificateDer::pem_slice_iter(&read(path)?).collect::<Result<Vec<_>, _>>();
        let all = all.map_err(|error| wrong(path, format!("expected certificates in PEM: {error}")))?;
        if all.is_empty() { Err(wrong(path, "no certificate in it: expected PEM".into())) } else { Ok(all) }
    };
    let chain = certificates(&tls.certificate)?;
    let key = PrivateKeyDer::from_pem_slice(&read(&tls.key)?);
    let key = key.map_err(|error| wrong(&tls.key, format!("expected a private key in PEM: {error}")))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(&tls.certificate, error.to_string()))?;
    let builder = match &tls.clients {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| wrong(path, format!("no authority's certificate: {error}")))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| wrong(path, error.to_string()))?)
        }
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|error| wrong(&tls.certificate, format!("does not go with {}: {error}", tls.key.display())))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
