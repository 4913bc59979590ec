//! Soak: runs the mixed load for a while and checks that nothing grows. `make soak MINUTES=…` runs it.
//!
//! Every ten seconds, and at the end, it prints a line: turns per second; memory of the process; instructions in flight; events; blocks
//! and bytes of the allocators; the latency from submission to the end of waiting.
//!
//! At the end, with the engine idle, it compares these levels with those after the first fifth of the time, when caches and tables were
//! warm, and exits with 1 if a level has grown by more than its bound:
//!
//! * Memory of the process may differ by `--grow`, since the arenas of the C library vary by a few MiB.
//! * Events and regions may differ by the constants below, however long the run takes.
//! * Block records may double. Their number is the largest number of blocks that existed at once, and a longer run meets a larger one.

#![allow(clippy::print_stdout, reason = "a program prints its results")]

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Parser, value_parser};
use streamvm::Vm;
use streamvm_tests::load::{Latencies, Load, expect_panics, resident_bytes};

/// Interval between lines.
const EVERY: Duration = Duration::from_secs(10);

/// How many more events may exist at the end: an idle stream keeps the event of its last point.
const EVENTS: u64 = 16;

/// How many more bytes of regions the allocators may hold: the load is random, so its peak varies.
const REGIONS: u64 = 4 << 20;

/// Runs a mixed load for a while and watches that nothing grows.
///
/// Exit codes: 0 nothing grew, 1 something did or the load failed, 2 the arguments were rejected.
#[derive(Parser)]
#[command(name = "soak", version, max_term_width = 100)]
struct Options {
    /// How long
    #[arg(long, default_value_t = 1.0, value_parser = minutes)]
    minutes: f64,
    /// Threads that load the engine
    #[arg(long, default_value_t = 4, value_parser = value_parser!(u64).range(1..=64))]
    threads: u64,
    /// Simulated devices beside the two of the CPU
    #[arg(long, value_name = "N", default_value_t = 0)]
    sim: u32,
    /// Where the load begins
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How much more memory the process may have at the end
    #[arg(long, value_name = "KIB", default_value_t = 8192)]
    grow: u64,
}

fn minutes(text: &str) -> Result<f64, String> {
    let minutes = text.parse().ok().filter(|minutes| *minutes > 0.0 && *minutes < 1e6);
    minutes.ok_or_else(|| "expected a number of minutes above 0".to_owned())
}

/// The levels that must not grow, measured with the engine idle.
#[derive(Clone, Copy, Debug)]
struct Level {
    resident: u64,
    events: usize,
    records: usize,
    reserved: usize,
}

fn level(vm: &Vm) -> Level {
    let stats = vm.stats();
    let sum = |of: fn(&streamvm::report::PoolStats) -> usize| stats.memory.iter().map(of).sum();
    Level {
        resident: resident_bytes().unwrap_or(0),
        events: stats.live_events,
        records: sum(|pool| pool.allocator.records),
        reserved: sum(|pool| pool.allocator.reserved),
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn line(load: &Load, latencies: &Latencies, since: Instant, turns: u64, time: Duration) {
    let Level { resident, events, records, reserved } = level(load.vm());
    let stats = load.vm().stats();
    let blocks: usize = stats.memory.iter().map(|pool| pool.allocator.blocks).sum();
    let millis = |part| latencies.percentile(part).as_secs_f64() * 1e3;
    println!(
        "{:>7.0} s  {:>8.0} turns/s  rss {:>6.1} MiB  in flight {:>5}  events {:>3}  blocks {:>4} of {:>4}, {:>5.1} MiB  \
         p50 {:>7.3}  p99 {:>7.3}  p99.9 {:>7.3}  most {:>8.3} ms",
        since.elapsed().as_secs_f64(),
        turns as f64 / time.as_secs_f64(),
        mib(resident),
        stats.in_flight,
        events,
        blocks,
        records,
        mib(reserved as u64),
        millis(0.5),
        millis(0.99),
        millis(0.999),
        latencies.most().as_secs_f64() * 1e3,
    );
}

/// Ends the process when a panic drops it: the other threads would wait at a barrier for the thread that panicked.
struct EndsWithAPanic;

impl Drop for EndsWithAPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            std::process::exit(1);
        }
    }
}

/// The two phases: after the first, caches and tables are warm.
const PHASES: u64 = 2;

/// State that the load threads share. The same threads run both phases: the C library gives each new thread an arena, which would count
/// as growth.
struct LoadThreads {
    /// Barriers at which all threads begin and end a phase.
    begins: Barrier,
    ends: Barrier,
    over: AtomicBool,
    collected: Mutex<Latencies>,
}

impl LoadThreads {
    fn take_latencies(&self) -> Latencies {
        std::mem::take(&mut *self.collected.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs the load of one thread, phase after phase.
    fn run_phases(&self, load: &Load, seed: u64, thread: u64) {
        let _guard = EndsWithAPanic;
        for phase in 0..PHASES {
            self.begins.wait();
            let mut mine = Latencies::default();
            let mut handed = Instant::now();
            let seen = |latency| {
                mine.add(latency);
                if handed.elapsed() > Duration::from_millis(100) {
                    self.collected.lock().unwrap_or_else(PoisonError::into_inner).merge(&mine);
                    mine = Latencies::default();
                    handed = Instant::now();
                }
            };
            load.run(seed.wrapping_add(phase), thread, || !self.over.load(Ordering::Relaxed), seen)
                .expect("no other failure");
            self.ends.wait();
        }
    }

    /// Lets the threads run for `time`, prints a line every ten seconds, and returns once the engine is idle.
    fn phase(&self, load: &Load, time: Duration, start: Instant) -> Latencies {
        let _guard = EndsWithAPanic;
        self.over.store(false, Ordering::Relaxed);
        self.begins.wait();
        let mut all = Latencies::default();
        let until = Instant::now() + time;
        let turns = || load.counts.turns.load(Ordering::Relaxed);
        let (mut before, mut since) = (turns(), Instant::now());
        while let left = until.saturating_duration_since(Instant::now())
            && !left.is_zero()
        {
            thread::sleep(left.min(EVERY));
            let latencies = self.take_latencies();
            line(load, &latencies, start, turns() - before, since.elapsed());
            since = Instant::now();
            before = turns();
            all.merge(&latencies);
        }
        self.over.store(true, Ordering::Relaxed);
        self.ends.wait();
        all.merge(&self.take_latencies());
        load.settle().expect("everything has passed");
        all
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    expect_panics();
    // The threads of a device, and those of a large kernel: as many on every machine.
    let vm = Vm::builder().cpu_devices(2).cpu_threads(3).kernel_threads(3).sim_devices(options.sim);
    let vm = vm.build().expect("an engine");
    let load = Load::new(vm).expect("memory for a tensor");
    let total = Duration::from_secs_f64(options.minutes * 60.0);
    let start = Instant::now();
    let barrier = || Barrier::new(options.threads as usize + 1);
    let (over, collected) = (AtomicBool::new(false), Mutex::default());
    let threads = LoadThreads { begins: barrier(), ends: barrier(), over, collected };
    let (warm, all, end) = thread::scope(|scope| {
        for thread in 0..options.threads {
            let (load, threads) = (&load, &threads);
            scope.spawn(move || threads.run_phases(load, options.seed, thread));
        }
        threads.phase(&load, total / 5, start);
        let warm = level(load.vm());
        println!("warm: {warm:?}");
        let all = threads.phase(&load, total - total / 5, start);
        (warm, all, level(load.vm()))
    });
    println!("end:  {end:?}");
    let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
    println!(
        "{} turns, {} failures caused and seen, {} callbacks, {} streams changed threads, {} instructions run by waiting callers, {} \
         divided kernels; latency over {} waits:",
        count(&load.counts.turns),
        count(&load.counts.failures),
        count(&load.counts.callbacks),
        count(&load.counts.moves),
        load.vm().stats().helped,
        count(&load.counts.divided),
        all.count()
    );
    line(&load, &all, start, load.counts.turns.load(Ordering::Relaxed), start.elapsed());
    let grown = [
        ("memory of the process", end.resident, warm.resident + options.grow * 1024),
        ("events", end.events as u64, warm.events as u64 + EVENTS),
        ("block records", end.records as u64, 2 * warm.records as u64),
        ("bytes of regions", end.reserved as u64, warm.reserved as u64 + REGIONS),
    ];
    if warm.resident == 0 {
        println!("memory of the process: not measured, this system does not tell it");
    }
    load.end(Duration::from_secs(60)).expect("the engine ends");
    let mut fine = true;
    for (what, found, most) in grown {
        if found > most {
            println!("GREW: {what}: {found}, at most {most} was expected");
            fine = false;
        }
    }
    if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
