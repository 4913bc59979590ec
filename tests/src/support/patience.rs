//! Time limits for calls: a hang fails a test instead of stopping the suite.
//!
//! The limit is far longer than any call takes, so no test depends on the speed of the machine.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// A call that takes longer counts as a hang.
pub const PATIENCE: Duration = Duration::from_secs(15);

/// Runs `f` on its own thread and returns its result.
///
/// # Panics
/// If `f` panics, or does not return within [`PATIENCE`]; its thread is then left behind.
pub fn within<T: Send + 'static>(what: &str, f: impl FnOnce() -> T + Send + 'static) -> T {
    within_time(what, PATIENCE, f)
}

/// [`within`] another time limit.
///
/// # Panics
/// As [`within`].
pub fn within_time<T: Send + 'static>(what: &str, time: Duration, f: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = channel();
    let thread = thread::spawn(move || {
        let _ = sender.send(f());
    });
    match receiver.recv_timeout(time) {
        Ok(value) => value,
        Err(RecvTimeoutError::Timeout) => panic!("{what} is not over after {time:?}"),
        Err(RecvTimeoutError::Disconnected) => match thread.join() {
            Err(payload) => std::panic::resume_unwind(payload),
            Ok(()) => panic!("{what} returned nothing"),
        },
    }
}

/// Polls until `condition` holds; for conditions that offer no other way to wait (counters, lists of threads).
///
/// # Panics
/// If the condition does not hold within [`PATIENCE`].
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "{what}: not so after {PATIENCE:?}");
        thread::yield_now();
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future to completion on this thread, as a minimal executor.
///
/// # Panics
/// If the future is not ready within [`PATIENCE`].
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let start = Instant::now();
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        let left = PATIENCE.saturating_sub(start.elapsed());
        assert!(!left.is_zero(), "a future is not ready after {PATIENCE:?}");
        thread::park_timeout(left);
    }
}

/// Polls a future once, with a waker that does nothing.
pub fn poll_once<T>(future: impl Future<Output = T>) -> Poll<T> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}
