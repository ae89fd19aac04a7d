//! Bodies of requests on their way in: those that trickle are cut off, and those that nobody reads to their end are drained for a while,
//! so that whoever sends them hears why they were refused.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use axum::{
    body::{Body, BodyDataStream},
    extract::Request,
    http::header,
};
use bytes::Bytes;
use futures_util::{Stream, StreamExt};

/// How long a body may be slower than the least pace, in bytes per second.
const TRICKLE: Duration = Duration::from_secs(20);
const LEAST_PACE: f64 = 8192.0;

/// What is drained of a body that was refused.
const DRAINED: usize = 16 << 20;
const DRAINING: Duration = Duration::from_secs(5);

/// Watches over a request's body.
pub async fn paced(request: Request) -> Request {
    // Whoever asks first sends nothing before it is read.
    let is_sent = !request.headers().contains_key(header::EXPECT);
    request.map(|body| {
        let paced = Paced { body: Some(body.into_data_stream()), is_sent, started: Instant::now(), bytes: 0 };
        Body::from_stream(paced)
    })
}

/// A body that is watched over.
struct Paced {
    /// None at its end.
    body: Option<BodyDataStream>,
    is_sent: bool,
    started: Instant,
    bytes: usize,
}

impl Stream for Paced {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let chunk = std::task::ready!(body.poll_next_unpin(context));
        match &chunk {
            Some(Ok(chunk)) => self.bytes += chunk.len(),
            Some(Err(_)) | None => self.body = None,
        }
        let elapsed = self.started.elapsed();
        if elapsed > TRICKLE && (self.bytes as f64) < elapsed.as_secs_f64() * LEAST_PACE {
            self.body = None;
            let late = std::io::Error::from(std::io::ErrorKind::TimedOut);
            return Poll::Ready(Some(Err(axum::Error::new(late))));
        }
        Poll::Ready(chunk)
    }
}

impl Drop for Paced {
    fn drop(&mut self) {
        let Some(mut body) = self.body.take().filter(|_| self.is_sent) else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(tokio::time::timeout(DRAINING, async move {
            let mut left = DRAINED;
            while let Some(Ok(chunk)) = body.next().await {
                let Some(rest) = left.checked_sub(chunk.len()) else { return };
                left = rest;
            }
        }));
    }
}
