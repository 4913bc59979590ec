//! Runs many seeds on all cores, reports their results, and notices a hang.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A seed that runs longer counts as a hang. Far longer than any seed takes, even on a busy machine.
pub const HANG: Duration = Duration::from_secs(120);

/// Interval at which hangs are looked for.
const LOOK: Duration = Duration::from_millis(500);

/// The seed that a worker runs, and since when.
type Working = Arc<Mutex<Option<(u64, Instant)>>>;

/// Runs `check` for each seed, on as many threads as there are cores, and passes each result to `done`, in no particular order, until
/// `done` returns false.
///
/// # Errors
/// The seed that hangs. Its thread is left behind.
///
/// # Panics
/// If a check panics, with its seed.
pub fn each_seed<T: Send + 'static>(
    seeds: Range<u64>,
    check: impl Fn(u64) -> T + Send + Sync + 'static,
    mut done: impl FnMut(u64, T) -> bool,
) -> Result<(), u64> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (next, over) = (Arc::new(AtomicU64::new(seeds.start)), Arc::new(AtomicBool::new(false)));
    let (check, end) = (Arc::new(check), seeds.end);
    let (sender, results) = channel();
    let workers: Vec<_> = (0..cores)
        .map(|_| {
            let working = Working::default();
            let (mine, next, over) = (working.clone(), next.clone(), over.clone());
            let (check, sender) = (check.clone(), sender.clone());
            std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    *mine.lock().unwrap_or_else(PoisonError::into_inner) = Some((seed, Instant::now()));
                    let result = catch_unwind(AssertUnwindSafe(|| check(seed)));
                    *mine.lock().unwrap_or_else(PoisonError::into_inner) = None;
                    if sender.send((seed, result)).is_err() {
                        return;
                    }
                }
            });
            working
        })
        .collect();
    drop(sender);
    let hangs = || {
        let mut working = workers.iter().filter_map(|at| *at.lock().unwrap_or_else(PoisonError::into_inner));
        working.find(|(_, since)| since.elapsed() > HANG).map(|(seed, _)| seed)
    };
    let mut wanted = true;
    // Runs on after `done` has returned false, until each worker has dropped its sender, because a hang of the last seeds must be reported
    // too.
    loop {
        match results.recv_timeout(LOOK) {
            Ok((seed, Ok(result))) => wanted = wanted && done(seed, result),
            Ok((seed, Err(payload))) => {
                over.store(true, Ordering::Relaxed);
                let text = payload.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
                panic!("seed {seed}: a panic: {}", text.unwrap_or("of a value that is no text"));
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {
                if let Some(seed) = hangs() {
                    over.store(true, Ordering::Relaxed);
                    return Err(seed);
                }
            }
        }
        if !wanted {
            over.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_is_run_once() {
        let mut seen = Vec::new();
        let result = each_seed(
            3..1003,
            |seed| seed * 2,
            |seed, double| {
                seen.push((seed, double));
                true
            },
        );
        assert_eq!(result, Ok(()));
        seen.sort_unstable();
        assert_eq!(seen, (3..1003).map(|seed| (seed, seed * 2)).collect::<Vec<_>>());
    }

    #[test]
    fn it_ends_when_told_to() {
        let mut count = 0;
        let result = each_seed(
            0..u64::MAX,
            |_| (),
            |_, ()| {
                count += 1;
                count < 10
            },
        );
        assert_eq!((result, count), (Ok(()), 10));
    }

    #[test]
    #[should_panic(expected = "seed 7: a panic: it is odd")]
    fn a_panic_names_its_seed() {
        let check = |seed| {
            if seed == 7 {
                panic!("it is odd")
            }
        };
        let _ = each_seed(0..100_000_000, check, |_, ()| true);
    }
}
