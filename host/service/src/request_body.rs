//! Bodies of requests on their way in. A body that trickles is cut off. A body that is not read to
//! its end is drained for a while, so that the client receives the answer that says why.

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

/// The time that a body may be slower than the least pace, which is in bytes per second.
const TRICKLE: Duration = Duration::from_secs(20);
const LEAST_PACE: f64 = 8192.0;

/// The most bytes and the longest time for which a refused body is drained.
const DRAINED: usize = 16 << 20;
const DRAINING: Duration = Duration::from_secs(5);

/// Limits the pace of a request's body.
pub async fn limit_pace(request: Request) -> Request {
    // A client that sends `Expect` sends nothing before the body is read.
    let is_sent = !request.headers().contains_key(header::EXPECT);
    request.map(|body| {
        let paced = PacedBody { body: Some(body.into_data_stream()), is_sent, started: Instant::now(), bytes: 0 };
        Body::from_stream(paced)
    })
}

/// A body with a limit on its pace.
struct PacedBody {
    /// None at the body's end.
    body: Option<BodyDataStream>,
    is_sent: bool,
    started: Instant,
    bytes: usize,
}

impl Stream for PacedBody {
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

impl Drop for PacedBody {
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
