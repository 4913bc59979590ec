//! Deadlines for what should end: a hang fails a test instead of stopping the suite.
//!
//! The deadline is far beyond what anything takes, so no test depends on how fast a machine is.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// After this a hang is called a hang.
pub const PATIENCE: Duration = Duration::from_secs(15);

/// Runs `f` on a thread of its own and returns what it returns.
///
/// # Panics
/// When `f` panics, or is not over within [`PATIENCE`]; its thread is left behind then.
pub fn within<T: Send + 'static>(what: &str, f: impl FnOnce() -> T + Send + 'static) -> T {
    within_time(what, PATIENCE, f)
}

/// [`within`] another time.
///
/// # Panics
/// As it does.
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

/// Waits until `condition` holds, for what has no other way to be waited for (counters, thread lists).
///
/// # Panics
/// When it does not hold within [`PATIENCE`].
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

/// Runs a future to its end on this thread: the smallest executor there is.
///
/// # Panics
/// When it is not ready within [`PATIENCE`].
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
