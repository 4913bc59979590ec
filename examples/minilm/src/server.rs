//! The server: connections, their limits, and how they end.
//!
//! Every connection is a task of one thread; none of them computes. A client that is slow, or gone, holds its own connection and nothing else:
//!
//! | what is slow | what bounds it |
//! |---|---|
//! | the head of a request, and the time between two requests | [`Limits::head`]: the connection is closed |
//! | the body of a request | [`Service::body_time`]: answered by 408 |
//! | reading the answer | [`Limits::unread`]: the kernel closes a connection whose client takes no more bytes |
//! | too many connections | [`Limits::connections`]: the others wait in the kernel until one ends |
//!
//! To drain is to close the listening socket, to answer the requests that have begun to arrive, and to close each connection after its answer.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use rustix::net::sockopt::set_tcp_user_timeout;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::metrics::Metrics;
use crate::requests::Service;

/// What bounds connections.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The most time from the opening of a connection, or from an answer on it, until the head of the next request is there.
    pub head: Duration,
    /// The most time in which a client takes no byte of its answer.
    pub unread: Duration,
    /// The most time that draining takes.
    pub drain: Duration,
    /// The most connections at a time.
    pub connections: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            head: Duration::from_secs(10),
            unread: Duration::from_secs(10),
            // More than a body and its answer may take.
            drain: Duration::from_secs(30),
            // Less than the 1,024 files that a process may have open by default.
            connections: 512,
        }
    }
}

/// Time after which a server whose process or machine is out of files accepts again.
const PAUSE: Duration = Duration::from_millis(50);

/// An open connection: counted, and one of those that may be open, until this is dropped.
struct Open {
    metrics: Arc<Metrics>,
    _place: OwnedSemaphorePermit,
}

impl Open {
    fn new(metrics: Arc<Metrics>, place: OwnedSemaphorePermit) -> Open {
        metrics.connected();
        Open { metrics, _place: place }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.metrics.disconnected();
    }
}

/// Answers the connections of `listener` until the first message of `stops`; then drains, until all requests are answered, [`Limits::drain`] has
/// passed, or a second message comes. Returns the number of connections that were not over. A channel without senders counts as a message.
///
/// A connection that is not over is closed with the runtime that this runs on.
pub async fn serve(
    listener: TcpListener,
    service: Arc<Service>,
    limits: Limits,
    mut stops: UnboundedReceiver<()>,
) -> usize {
    let room = Arc::new(Semaphore::new(limits.connections));
    let draining = GracefulShutdown::new();
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.head);
    loop {
        let next = async {
            let place = room.clone().acquire_owned().await.expect("the semaphore is never closed");
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            next = next => next,
            _ = stops.recv() => break,
        };
        let connected = accepted.and_then(|(stream, _)| prepare(&stream, limits).map(|()| stream));
        let stream = match connected {
            Ok(stream) => stream,
            Err(error) => {
                log::warn!("a connection was not accepted: {error}");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let answering = service.clone();
        let answer = service_fn(move |request| {
            let answering = answering.clone();
            async move { Ok::<_, Infallible>(answering.answer(request).await) }
        });
        let connection = draining.watch(http.serve_connection(TokioIo::new(stream), answer));
        let open = Open::new(service.metrics.clone(), place);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                log::debug!("a connection ended: {error}");
            }
            drop(open);
        });
    }
    drop(listener);
    tokio::select! {
        () = draining.shutdown() => {}
        () = tokio::time::sleep(limits.drain) => {}
        _ = stops.recv() => {}
    }
    limits.connections - room.available_permits()
}

fn prepare(stream: &TcpStream, limits: Limits) -> io::Result<()> {
    // An answer is written at once, so its last packet need not wait for more.
    stream.set_nodelay(true)?;
    set_tcp_user_timeout(stream, limits.unread.as_millis().try_into().unwrap_or(u32::MAX))?;
    Ok(())
}
