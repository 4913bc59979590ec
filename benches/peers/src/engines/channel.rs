//! crossbeam-channel: what a program has that builds its own engine of a queue of boxed closures and a thread.

use std::hint::black_box;
use std::thread;

use crossbeam_channel::bounded;
use streamvm_benches::harness::case::{Sample, Sizes};
use streamvm_benches::harness::error::Error;

/// Closures that may wait in the queue: a bound, so that memory has one. It measures no more than without.
const QUEUE: usize = 1_024;

/// A closure of any kind: boxed, since it crosses the queue. It gives its number back.
type Job = Box<dyn FnOnce() -> u64 + Send>;

/// A closure that captures its number, so that its box is not empty.
fn job(number: u64) -> Job {
    Box::new(move || black_box(number))
}

/// Operations that one thread runs in the order in which they come.
///
/// # Errors
/// A closure was lost or came out of turn.
pub fn independent(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    super::per_op("crossbeam-channel", sizes, |ops| {
        let (jobs, queue) = bounded::<Job>(QUEUE);
        let worker = thread::spawn(move || queue.iter().fold(0, |ran, job| ran + u64::from(job() == ran)));
        // The queue is open as long as the worker lives; were it dead, the count would be 0.
        let sent = (0..ops as u64).try_for_each(|number| jobs.send(job(number)));
        drop(jobs);
        sent.ok().and_then(|()| worker.join().ok()).unwrap_or(0)
    })
}

/// One closure through the queue and its answer through another, then the next.
///
/// # Errors
/// An answer was lost or is wrong.
pub fn latency(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let (jobs, queue) = bounded::<Job>(QUEUE);
    let (answers, answered) = bounded(1);
    let worker = thread::spawn(move || queue.iter().try_for_each(|job| answers.send(job())));
    let measured = super::round_trips("crossbeam-channel", sizes, |number| {
        let sent = jobs.send(job(number + 1));
        sent.ok().and_then(|()| answered.recv().ok()).unwrap_or(0)
    });
    drop(jobs);
    // An answer that was lost has been noticed.
    let _ = worker.join();
    measured
}
