//! What it costs that two threads meet: a hop through a ring, round trips, and the clock that measures them.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::Instant;

use crate::case::{Sample, Sizes};
use crate::error::Error;
use crate::stats::median_and_p99;

/// Values in flight between the two threads of the ring.
const RING: usize = 1024;

/// Looks of a spinning thread before it lets another have its core. More than a partner that runs ever needs; when the
/// two share a core, or others use it, a spinner would wait for a partner that cannot run, for a time slice each.
const PATIENCE: u32 = 2_000;

/// Passes the time before the next of many looks.
fn spin_before(look: u32) {
    if look.is_multiple_of(PATIENCE) { thread::yield_now() } else { spin_loop() }
}

/// Looks until `found` gives something; `pause` is called with the number of the next look, from 1.
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

/// One value through a single-producer single-consumer ring, both sides awake.
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

/// A round trip between two threads that spin: the least on two cores.
///
/// # Errors
/// None.
pub fn spin(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    Ok(round_trips(sizes, |_| {}, spin_before))
}

/// A round trip between two threads that park: the least when nobody burns a core.
///
/// # Errors
/// None.
pub fn park(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    Ok(round_trips(sizes, Thread::unpark, |_| thread::park()))
}

/// Passes a number to and fro: odd ones are calls, even ones answers. `wake` gets the other side's attention after a
/// store, `pause` is what a side does between two looks.
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
    // There and back: two crossings.
    vec![Sample::ns("median", median), Sample::ns("p99", p99), Sample::ns("crossing", median / 2.0)]
}

/// One look at the clock.
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
