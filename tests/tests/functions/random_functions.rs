//! 10,000 functions over 100 doubles, each of which overwrites one by what it reads of others, on every engine: equal to the
//! last bit to what a loop gives. MXNet checks its engines so.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use streamvm::stream::mutant::Mutant;
use streamvm::{DeviceId, Mode, Pool, Use, Var, Vm, VmBuilder};
use streamvm_tests::Random;

const VARS: usize = 100;
const FUNCTIONS: usize = 10_000;
const REPEATS: u64 = 5;
const POOLS: [Pool; 5] = [Pool::Normal, Pool::Urgent, Pool::CopyIn, Pool::CopyOut, Pool::Inline];

/// One function: what it reads, with duplicates, the one that it writes, and where the write stands among its uses.
struct Function {
    reads: Arc<[usize]>,
    write: usize,
    at: usize,
    work: Duration,
    device: DeviceId,
    pool: Pool,
}

fn functions(repeat: u64) -> Vec<Function> {
    let mut random = Random::new(11, repeat);
    let draw = |_| {
        let reads: Arc<[usize]> = (0..2 + random.below(18)).map(|_| random.below(VARS)).collect();
        let (write, at) = (random.below(VARS), random.below(reads.len() + 1));
        let work = Duration::from_micros(1 + random.below(9) as u64);
        let device = DeviceId::cpu(random.below(2) as u32);
        // Mostly what programs mostly use.
        let pool = POOLS[random.below(2 * POOLS.len()).saturating_sub(POOLS.len())];
        Function { reads, write, at, work, device, pool }
    };
    (0..FUNCTIONS).map(draw).collect()
}

/// The mean of what is read and of nothing, in the order of the reads.
fn mean(reads: &[usize], value: impl Fn(usize) -> f64) -> f64 {
    reads.iter().map(|read| value(*read)).sum::<f64>() / (reads.len() + 1) as f64
}

fn first(var: usize) -> f64 {
    1.0 + var as f64
}

/// What a loop gives, in bits.
fn serial(functions: &[Function]) -> Vec<u64> {
    let mut values: Vec<f64> = (0..VARS).map(first).collect();
    for function in functions {
        values[function.write] = mean(&function.reads, |read| values[read]);
    }
    values.into_iter().map(f64::to_bits).collect()
}

/// What an engine gives, in bits.
fn pushed(vm: &Vm, functions: &[Function]) -> Vec<u64> {
    let vars: Vec<Var> = (0..VARS).map(|_| vm.var()).collect();
    let values: Arc<[AtomicU64]> = (0..VARS).map(|var| AtomicU64::new(first(var).to_bits())).collect();
    for Function { reads, write, at, work, device, pool } in functions {
        let mut uses: Vec<Use> = reads.iter().map(|read| vars[*read].read()).collect();
        uses.insert(*at, vars[*write].write());
        let (values, reads, write, work) = (values.clone(), reads.clone(), *write, *work);
        let function = move || {
            let start = Instant::now();
            // The order of the engine makes one see what the other has stored.
            let mean = mean(&reads, |read| f64::from_bits(values[read].load(Ordering::Relaxed)));
            while start.elapsed() < work {
                spin_loop();
            }
            values[write].store(mean.to_bits(), Ordering::Relaxed);
            Ok(())
        };
        vm.pusher().device(*device).pool(*pool).push("mean", uses, function).expect("it is taken");
    }
    vm.wait_all().expect("all passed");
    values.iter().map(|value| value.load(Ordering::Relaxed)).collect()
}

/// The program runs five times on one engine, and each time as the loop does.
fn is_equal_to_a_loop(name: &str, builder: VmBuilder) {
    let vm = builder.cpu_devices(2).build().expect("an engine");
    for repeat in 0..REPEATS {
        let functions = functions(repeat);
        let (expected, found) = (serial(&functions), pushed(&vm, &functions));
        let wrong: Vec<usize> = (0..VARS).filter(|var| found[*var] != expected[*var]).collect();
        assert!(wrong.is_empty(), "{name}, repeat {repeat}: variables {wrong:?}");
        assert_eq!(vm.stats().in_flight, 0, "{name}, repeat {repeat}");
    }
}

#[test]
fn inline() {
    is_equal_to_a_loop("inline", Vm::builder().mode(Mode::Inline));
}

#[test]
fn on_one_pool() {
    is_equal_to_a_loop("one pool", Vm::builder().shared_workers(true).workers(4));
}

#[test]
fn on_a_pool_for_each_device() {
    is_equal_to_a_loop("a pool for each device", Vm::builder().shared_workers(false).workers(2));
}

#[test]
fn behind_a_short_queue() {
    let short = Vm::builder().shared_workers(true).workers(2).max_instructions(32);
    is_equal_to_a_loop("a short queue", short);
}

#[test]
fn stepped_in_a_drawn_order() {
    for (seed, shared) in [(1, true), (2, false)] {
        let builder = Vm::builder().mode(Mode::Simulated { seed }).shared_workers(shared).workers(3);
        is_equal_to_a_loop(&format!("seed {seed}, shared workers {shared}"), builder);
    }
}

/// One that leaves out every third wait gives something else, so the equality above says something.
#[test]
fn an_engine_that_leaves_waits_out_is_found() {
    let functions = functions(0);
    for shared in [true, false] {
        let broken = Vm::builder().mode(Mode::Simulated { seed: 1 }).shared_workers(shared).mutant(Mutant::WaitDropped);
        let vm = broken.workers(3).cpu_devices(2).build().expect("an engine");
        assert_ne!(pushed(&vm, &functions), serial(&functions), "shared workers {shared}");
    }
}
