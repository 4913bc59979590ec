//! tokio: a runtime of worker threads that tasks are spawned on, from a thread outside of it. Tasks have an order where
//! one awaits another.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use streamvm_benches::harness::case::{Sample, Sizes};
use streamvm_benches::harness::error::Error;
use tokio::runtime::{Builder, Runtime};

/// Tasks that each await the one before and add one to its answer; the last one is awaited.
///
/// # Errors
/// The runtime did not start, or lost a task.
pub fn chain<const THREADS: usize>(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let runtime = runtime::<THREADS>()?;
    super::per_op("tokio", sizes, |ops| {
        runtime.block_on(async {
            let mut last = tokio::spawn(async { 1 });
            for _ in 1..ops {
                let before = last;
                // A task that failed breaks the count, which is checked.
                last = tokio::spawn(async { before.await.map_or(0, |count: u64| count + 1) });
            }
            last.await.unwrap_or(0)
        })
    })
}

/// Tasks without order. The last one to end wakes the caller: less than awaiting a handle a task.
///
/// # Errors
/// The runtime did not start, or lost a task.
pub fn independent<const THREADS: usize>(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let (runtime, caller) = (runtime::<THREADS>()?, thread::current());
    // For the rest of the process: tasks borrow them, where sharing them would count references.
    let (ended, caller): (&AtomicUsize, &_) = (Box::leak(Box::default()), Box::leak(Box::new(caller)));
    super::per_op("tokio", sizes, |ops| {
        ended.store(0, Ordering::Relaxed);
        for _ in 0..ops {
            runtime.spawn(async move {
                if ended.fetch_add(1, Ordering::Release) + 1 == ops {
                    caller.unpark();
                }
            });
        }
        while ended.load(Ordering::Acquire) < ops {
            thread::park();
        }
        ended.load(Ordering::Relaxed) as u64
    })
}

/// One task is spawned and awaited, then the next.
///
/// # Errors
/// The runtime did not start, or gave a wrong answer.
pub fn latency<const THREADS: usize>(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let runtime = runtime::<THREADS>()?;
    super::round_trips("tokio", sizes, |number| {
        let task = runtime.spawn(async move { number + 1 });
        runtime.block_on(task).unwrap_or(0)
    })
}

fn runtime<const THREADS: usize>() -> Result<Runtime, Error> {
    let failed = |source| Error::System { what: "starting tokio's threads", source };
    Builder::new_multi_thread().worker_threads(THREADS).build().map_err(failed)
}
