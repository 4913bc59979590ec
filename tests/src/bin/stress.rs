//! The mixed load for sanitizers: a fixed number of turns on several threads, in every mode that has threads, with engines that are built
//! and shut down in between. `make tsan` and `make asan` run it.
//!
//! It fails if, over all engines, no stream changed threads, no waiting caller helped or no kernel was divided: the load would not show
//! what the sanitizers are to see.
//!
//! `stress [TURNS]`: turns per thread and engine, 300 by default.

#![allow(clippy::print_stdout, reason = "a program prints its results")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use streamvm::{Mode, TimeLimit, Vm, VmBuilder};
use streamvm_tests::PATIENCE;
use streamvm_tests::load::{Load, expect_panics, helping_threads};

/// Threads that load one engine.
const THREADS: u64 = 4;

fn main() {
    expect_panics();
    let turns: u64 = std::env::args().nth(1).map_or(300, |text| text.parse().expect("a number of turns"));
    // As many threads on every machine: more than the cores of most that run this.
    let several = || Vm::builder().cpu_devices(2).cpu_threads(3).kernel_threads(3);
    // Small bounds, so that backpressure and OOM recovery are exercised too.
    let narrow = || several().max_instructions(24).cpu_memory_limit(4 << 20);
    let engines: [(&str, VmBuilder); 5] = [
        ("threads", several()),
        ("narrow", narrow()),
        ("narrow, one pool", narrow().cpu_threads(1).shared_workers(true).workers(2)),
        ("simulated device", several().cpu_devices(1).sim_devices(1)),
        ("inline", Vm::builder().mode(Mode::Inline).kernel_threads(3)),
    ];
    let mut all = [("streams that changed threads", 0), ("instructions that callers ran", 0), ("divided kernels", 0)];
    for (seed, (name, engine)) in engines.into_iter().enumerate() {
        let load = Load::new(engine.build().expect("an engine")).expect("memory for a tensor");
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let load = &load;
                let mut left = turns;
                let go_on = move || {
                    left = left.saturating_sub(1);
                    left > 0
                };
                scope.spawn(move || {
                    // A handle is used by another thread, for which inline mode waits only within a limit of the thread that runs the function.
                    let _limit = (name == "inline").then(|| TimeLimit(PATIENCE).enter());
                    load.run(seed as u64, thread, go_on, |_| {}).expect("no other failure");
                });
            }
        });
        load.settle().expect("everything has passed");
        assert_eq!(load.vm().races(), [], "{name}");
        let (counts, helped) = (load.counts.clone(), load.vm().stats().helped);
        load.end(Duration::from_secs(60)).expect("the engine ends");
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        // In inline mode submitting threads run everything, so the first two say nothing there.
        let moves = if name == "inline" { 0 } else { count(&counts.moves) };
        println!(
            "{name:<18}{} turns, {} failures, {} callbacks; {moves} changes of thread, {helped} instructions run by callers, {} divided \
             kernels",
            count(&counts.turns),
            count(&counts.failures),
            count(&counts.callbacks),
            count(&counts.divided),
        );
        let seen = [moves, helped, count(&counts.divided)];
        all.iter_mut().zip(seen).for_each(|((_, sum), seen)| *sum += seen);
    }
    for (what, sum) in all {
        assert!(sum > 0, "no {what}");
    }
    let helpers = helping_threads();
    assert!(helpers.is_none_or(|helpers| helpers == 2), "{helpers:?} threads help with kernels of 3 threads");
}
