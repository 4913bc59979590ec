//! rayon: a pool that closures are spawned on, from a thread outside of it. It knows no dependences.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use rayon::{ThreadPool, ThreadPoolBuilder};
use streamvm_benches::harness::case::{Sample, Sizes};
use streamvm_benches::harness::error::Error;
use streamvm_benches::workloads::graph::INDEPENDENT_VARIABLES;

/// Operations without order, spawned in one scope, which waits for all. `in_place_scope` keeps the caller outside, as a
/// program that submits is; it measures less than `spawn` with a counter of one's own.
///
/// # Errors
/// The pool did not start, or lost an operation.
pub fn independent<const THREADS: usize>(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let pool = pool::<THREADS>()?;
    let variables: Vec<_> = (0..INDEPENDENT_VARIABLES).map(|_| CachePadded::new(AtomicU64::new(0))).collect();
    super::per_op("rayon", sizes, |ops| {
        pool.in_place_scope(|scope| {
            for op in 0..ops {
                let variable = &variables[op % INDEPENDENT_VARIABLES];
                scope.spawn(move |_| {
                    variable.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        variables.iter().map(|variable| variable.swap(0, Ordering::Relaxed)).sum()
    })
}

/// One operation is sent into the pool and waited for, then the next.
///
/// # Errors
/// The pool did not start, or gave a wrong answer.
pub fn latency<const THREADS: usize>(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let pool = pool::<THREADS>()?;
    super::round_trips("rayon", sizes, |number| pool.install(|| number + 1))
}

fn pool<const THREADS: usize>() -> Result<ThreadPool, Error> {
    let failed = |error| Error::System { what: "starting rayon's threads", source: std::io::Error::other(error) };
    ThreadPoolBuilder::new().num_threads(THREADS).build().map_err(failed)
}
