//! The mixed load for sanitizers: a fixed number of turns on several threads, in every mode that has threads, with engines that are built
//! and shut down in between. `make tsan` and `make asan` run it.
//!
//! `stress [TURNS]`: turns per thread and engine, 300 by default.

#![allow(clippy::print_stdout, reason = "a program prints its results")]

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use streamvm::{Mode, Vm, VmBuilder};
use streamvm_tests::load::{Load, expect_panics};

/// Threads that load one engine.
const THREADS: u64 = 4;

fn main() {
    expect_panics();
    let turns: u64 = std::env::args().nth(1).map_or(300, |text| text.parse().expect("a number of turns"));
    // Small bounds, so that backpressure and OOM recovery are exercised too.
    let narrow = || Vm::builder().max_instructions(24).cpu_memory_limit(3 << 20).cpu_devices(2);
    let engines: [(&str, VmBuilder); 5] = [
        ("threads", Vm::builder().cpu_devices(2)),
        ("narrow", narrow()),
        ("narrow, one pool", narrow().shared_workers(true).workers(2)),
        ("simulated device", Vm::builder().sim_devices(1)),
        ("inline", Vm::builder().mode(Mode::Inline)),
    ];
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
                scope.spawn(move || load.run(seed as u64, thread, go_on, |_| {}).expect("no other failure"));
            }
        });
        load.settle().expect("everything has passed");
        assert_eq!(load.vm().races(), [], "{name}");
        let counts = load.counts.clone();
        load.end(Duration::from_secs(60)).expect("the engine ends");
        println!(
            "{name:<18}{} turns, {} failures, {} callbacks",
            counts.turns.load(Ordering::Relaxed),
            counts.failures.load(Ordering::Relaxed),
            counts.callbacks.load(Ordering::Relaxed)
        );
    }
}
