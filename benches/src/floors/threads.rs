//! The costs of communication between two threads: a hop through a ring, round trips, and the clock that measures them.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::Instant;

use crate::harness::case::{Sample, Sizes};
use crate::harness::error::Error;
use crate::harness::stats::median_and_p99;

/// Capacity of the ring, values.
const RING: usize = 1024;

/// Polls of a spinning thread before it yields its core: more than it needs while its partner runs. If the two share a core, or
/// others use it, a spinning thread would otherwise burn a whole time slice while its partner cannot run.
const PATIENCE: u32 = 2_000;

/// Pauses before the next poll, whose number is `look`.
fn spin_before(look: u32) {
    if look.is_multiple_of(PATIENCE) { thread::yield_now() } else { spin_loop() }
}

/// Polls until `found` returns a value; `pause` is called with the number of the next poll, from 1.
fn look_until<T>(mut found: impl FnMut() -> Option<T>, pause: fn(u32)) -> T {
    let mut look = 0u32;
    loop {
        if let Some(value) = found() {
            return value;
        }
        look = look.wrapping_add(1);
        pause(look);
    }
}

/// One hop of a value through a single-producer single-consumer ring, with both threads awake.
///
/// # Errors
/// A value was lost.
pub fn ring(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    hops(sizes.warm_up().ops)?;
    Ok(vec![Sample::ns("ns_per_op", hops(sizes.ops)?)])
}

fn hops(count: usize) -> Result<f64, Error> {
    let (mut producer, mut consumer) = rtrb::RingBuffer::<usize>::new(RING);
    let start = Instant::now();
    let sum = thread::scope(|scope| {
        let receiver =
            scope.spawn(move || (0..count).map(|_| look_until(|| consumer.pop().ok(), spin_before)).sum::<usize>());
        for value in 1..=count {
            look_until(|| producer.push(value).ok(), spin_before);
        }
        receiver.join().unwrap_or(0)
    });
    let ns = start.elapsed().as_nanos() as f64 / count as f64;
    if sum == count * (count + 1) / 2 {
        Ok(ns)
    } else {
        Err(Error::Wrong { workload: "floor/ring", found: "values were lost on the way".to_owned() })
    }
}

/// A round trip between two threads that spin: the fastest on two cores.
///
/// # Errors
/// None.
pub fn spin(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    Ok(round_trips(sizes, |_| {}, spin_before))
}

/// A round trip between two threads that park: the fastest without spinning.
///
/// # Errors
/// None.
pub fn park(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    Ok(round_trips(sizes, Thread::unpark, |_| thread::park()))
}

/// Passes a number to and fro: odd numbers are calls, even numbers are answers. `wake` wakes the other thread after a store; `pause`
/// runs between two polls.
fn round_trips(sizes: &Sizes, wake: fn(&Thread), pause: fn(u32)) -> Vec<Sample> {
    let trips = (sizes.warm_up().trips + sizes.trips) as u64;
    let turn = AtomicU64::new(0);
    let caller = thread::current();
    let wait_for = |value: u64| {
        look_until(|| (turn.load(Ordering::Acquire) == value).then_some(()), pause);
    };
    let mut durations = Vec::with_capacity(trips as usize);
    thread::scope(|scope| {
        let answerer = scope.spawn(|| {
            for trip in 0..trips {
                wait_for(2 * trip + 1);
                turn.store(2 * trip + 2, Ordering::Release);
                wake(&caller);
            }
        });
        for trip in 0..trips {
            let start = Instant::now();
            turn.store(2 * trip + 1, Ordering::Release);
            wake(answerer.thread());
            wait_for(2 * trip + 2);
            durations.push(start.elapsed().as_nanos() as u64);
        }
    });
    let (median, p99) = median_and_p99(&mut durations[sizes.warm_up().trips..]);
    // A round trip is two crossings.
    vec![Sample::ns("median", median), Sample::ns("p99", p99), Sample::ns("crossing", median / 2.0)]
}

/// One read of the clock.
///
/// # Errors
/// None.
pub fn clock(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let start = Instant::now();
    for _ in 0..sizes.ops {
        black_box(Instant::now());
    }
    Ok(vec![Sample::ns("ns_per_op", start.elapsed().as_nanos() as f64 / sizes.ops as f64)])
}
