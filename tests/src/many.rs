//! Runs many seeds on all cores, tells how it goes, and notices a hang.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A seed that takes longer hangs. Far beyond what any takes, also on a machine that does much else.
const HANG: Duration = Duration::from_secs(120);

/// How often hangs are looked for.
const LOOK: Duration = Duration::from_millis(500);

/// What a worker is at.
type Working = Arc<Mutex<Option<(u64, Instant)>>>;

/// Runs `check` for each seed, on as many threads as there are cores, and hands each result to `done`, in no particular
/// order, until that says false.
///
/// # Errors
/// The seed that hangs. Its thread is left behind.
///
/// # Panics
/// When a check panics.
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
            let thread = std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    *mine.lock().unwrap_or_else(PoisonError::into_inner) = Some((seed, Instant::now()));
                    let result = check(seed);
                    *mine.lock().unwrap_or_else(PoisonError::into_inner) = None;
                    if sender.send((seed, result)).is_err() {
                        return;
                    }
                }
            });
            (thread, working)
        })
        .collect();
    drop(sender);
    loop {
        match results.recv_timeout(LOOK) {
            Ok((seed, result)) => {
                if !done(seed, result) {
                    over.store(true, Ordering::Relaxed);
                    break;
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                let hangs = workers.iter().find_map(|(_, working)| {
                    let working = *working.lock().unwrap_or_else(PoisonError::into_inner);
                    working.filter(|(_, since)| since.elapsed() > HANG)
                });
                if let Some((seed, _)) = hangs {
                    over.store(true, Ordering::Relaxed);
                    return Err(seed);
                }
            }
        }
    }
    for (thread, _) in workers {
        if let Err(payload) = thread.join() {
            std::panic::resume_unwind(payload);
        }
    }
    Ok(())
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
}
