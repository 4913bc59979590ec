//! What is allocated: nothing by the hot path, nothing that stays when an engine is gone, and for a plan no more than its list is worth.
#![allow(clippy::print_stderr, reason = "says what was drawn, with --nocapture")]
//!
//! The allocator counts for the whole process, so the tests take turns.

mod lifetimes;
mod programs;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
#[cfg(target_os = "linux")]
use std::time::Duration;

use streamvm::report::SyncCounts;
use streamvm::stream::MAX_STREAMS;
use streamvm::{DType, Error, InstructionList, Mode, PlanOptions, Var, Vm, plan};
use streamvm_tests::{CPU, on_device};

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicIsize = AtomicIsize::new(0);
static MOST_BYTES: AtomicIsize = AtomicIsize::new(0);

/// The system allocator, counting allocations and bytes over all threads.
struct Counting;

// SAFETY: every call is passed on to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        let bytes = BYTES.fetch_add(layout.size() as isize, Ordering::Relaxed) + layout.size() as isize;
        MOST_BYTES.fetch_max(bytes, Ordering::Relaxed);
        // SAFETY: the caller's duties are those of the system allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller's duties are those of the system allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How often each kind of operation is done and counted, after as many to warm up.
const MANY: usize = 5_000;

/// Allocations while `step` is done so often.
fn allocations(vm: &Vm, mut step: impl FnMut()) -> usize {
    let mut run = || {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        (0..MANY).for_each(|_| step());
        vm.wait_all().expect("nothing fails");
        ALLOCATIONS.load(Ordering::Relaxed) - before
    };
    run();
    run()
}

/// An engine with a short queue: it never needs more slots than fit there, however its threads are scheduled.
fn short_queue() -> Vm {
    Vm::builder().max_instructions(64).build().expect("an engine")
}

#[test]
fn operations_allocate_nothing() {
    let _turn = turn();
    let vm = short_queue();
    // What waiting and the harness cost now and then.
    let few = MANY / 50;
    let counted = allocations(&vm, || drop(std::hint::black_box(Box::new(1))));
    assert!(counted >= MANY, "the counter counts");

    let [x, y] = [Var::new(), Var::new()];
    let functions = allocations(&vm, || {
        vm.call_fn("f", CPU, [x.read(), y.write()], |_| Ok(())).expect("it is taken");
    });
    assert!(functions <= few, "functions: {functions}");

    let ones = on_device(&vm, &[1.0; 64]);
    let mut sum = on_device(&vm, &[0.0; 64]);
    let eager = allocations(&vm, || sum = sum.add(&ones).expect("it is taken"));
    assert!(eager <= few, "eager additions: {eager}");
    assert_eq!(sum.to_vec::<f32>(), Ok(vec![2.0 * MANY as f32; 64]));

    let views = allocations(&vm, || drop(ones.slice(0, 8..16).expect("in range")));
    assert!(views <= few, "views: {views}");
}

/// Bytes that live, beside those when this was called first.
fn growth(before: isize) -> isize {
    BYTES.load(Ordering::Relaxed) - before
}

/// A handle that a tensor keeps, with what belongs to it, takes less than this.
const HANDLE: isize = 1 << 10;

#[test]
fn memory_goes_back_with_the_engine_though_tensors_remain() {
    let _turn = turn();
    let bytes = 8 << 20;
    // What the first engine of a process makes for good.
    drop(short_queue());
    for mode in [Mode::Threaded, Mode::Inline] {
        let before = growth(0);
        let vm = Vm::builder().mode(mode).build().expect("an engine");
        let x = vm.full(CPU, DType::U8, &[bytes], 1u8).expect("it is taken");
        let view = x.slice(0, 8..16).expect("in range");
        assert_eq!(x.wait(), Ok(()));
        assert!(growth(before) >= bytes as isize, "{mode:?}");
        drop(vm);
        assert!(growth(before) < 8 * HANDLE, "{mode:?}: {} bytes are left", growth(before));
        assert_eq!(view.wait(), Ok(()), "its write has passed");
        assert!(matches!(x.to(CPU).err(), Some(Error::Shutdown { .. })));
    }
}

/// What an engine leaves behind that `run` builds and drops: whole bytes an engine, so what a process keeps once does not count.
/// An engine that is dropped goes with the last of its threads, which end by themselves: memory is looked at once they have. The test harness ends
/// the thread of the test before this one, and starts that of the next one, while this measures: it measures again where bytes came or went, since
/// an engine that leaves some behind does so each time.
fn left_behind(mut run: impl FnMut()) -> isize {
    let engines = 100;
    let mut measure = || {
        run();
        wait_for_engines_threads();
        let before = growth(0);
        (0..engines).for_each(|_| run());
        wait_for_engines_threads();
        growth(before) / engines
    };
    let first = measure();
    if first == 0 { first } else { measure() }
}

/// The threads of engines in this process, where the system lists them.
fn engines_threads() -> usize {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return 0 };
    let names = threads.flatten().filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
    names.filter(|name| name.starts_with("streamvm-") || name.starts_with("cpu:")).count()
}

/// Waits until all threads of engines have ended.
fn wait_for_engines_threads() {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while engines_threads() > 0 {
        assert!(std::time::Instant::now() < end, "{} threads of engines are left", engines_threads());
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn an_engine_leaves_nothing_behind() {
    let _turn = turn();
    let each = left_behind(|| {
        let vm = short_queue();
        let many: Vec<_> = (0..1_000).map(|_| vm.from_slice(&[1.0f32], &[1]).expect("a tensor")).collect();
        // All at once, and nothing is submitted after it.
        drop(many);
    });
    assert_eq!(each, 0, "bytes an engine");
}

/// What failed can be asked for as long as somebody can ask.
#[test]
fn an_engine_forgets_failures_with_the_tensors_that_have_them() {
    let _turn = turn();
    for kept in [false, true] {
        let each = left_behind(|| {
            let vm = short_queue();
            let tensors: Vec<_> = (0..100).map(|_| on_device(&vm, &[1.0])).collect();
            for x in &tensors {
                vm.call_fn("sour", CPU, [x.write()], |_| Err("no luck".into())).expect("it is taken");
            }
            assert!(vm.wait_all().is_err());
            let tensors = kept.then_some(tensors);
            drop(vm);
            assert!(tensors.into_iter().flatten().all(|x| x.wait().is_err()));
        });
        assert_eq!(each, 0, "bytes an engine, tensors dropped behind it: {kept}");
    }
}

/// The most bytes that there were at once while `step` was done, beyond those before.
fn most_bytes<T>(step: impl FnOnce() -> T) -> (T, isize) {
    let before = BYTES.load(Ordering::Relaxed);
    MOST_BYTES.store(before, Ordering::Relaxed);
    let made = step();
    (made, MOST_BYTES.load(Ordering::Relaxed) - before)
}

/// A text of a megabyte had a gigabyte of clocks.
#[test]
fn a_list_of_more_streams_than_an_engine_has_is_refused_in_little_memory() {
    let _turn = turn();
    let text = |lanes: usize| {
        let mut text = String::from("v = var\n");
        (0..lanes).for_each(|lane| text.push_str(&format!("%{lane} fn compute@cpu:0:{lane} \"f\" update v\n")));
        text
    };
    let list = |lanes: usize| InstructionList::parse(&text(lanes)).expect("a list");
    let (refused, bytes) = most_bytes(|| plan(list(16_000), &PlanOptions::default()).expect_err("too many streams"));
    assert!(matches!(refused, Error::TooManyStreams { line: MAX_STREAMS, most: MAX_STREAMS, .. }), "{refused}");
    assert!(bytes < 64 << 20, "{bytes} bytes for 16,000 lanes");
    let (planned, bytes) = most_bytes(|| plan(list(MAX_STREAMS), &PlanOptions::default()).expect("a plan"));
    assert_eq!(planned.counts.len(), MAX_STREAMS);
    assert!(bytes < 64 << 20, "{bytes} bytes for as many streams as an engine has");
}

/// The processor time of a call in this thread, which a busy machine does not change.
#[cfg(target_os = "linux")]
fn processor_time<T>(f: impl FnOnce() -> T) -> (T, Duration) {
    let now = || {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the pointer is to a value of this frame, which the call fills.
        let status = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        assert_eq!(status, 0, "every thread has this clock");
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let before = now();
    (f(), now() - before)
}

/// Each wait merges a clock of one number a stream, so a plan may take time in proportion to its waits times its streams, and no more.
#[cfg(target_os = "linux")]
#[test]
fn plans_over_as_many_lanes_as_an_engine_has_streams_take_bounded_time() {
    let _turn = turn();
    // In turn each lane reads what the lane before has written; all lanes read one variable, which one of them then writes.
    let chain = |line: usize| format!("read v{} update v{}", (line + 7) % 8, line % 8);
    let fan =
        |line: usize| if line.is_multiple_of(MAX_STREAMS) { "update v0".to_owned() } else { "read v0".to_owned() };
    let uses: [(&str, &dyn Fn(usize) -> String); 2] = [("chain", &chain), ("fan", &fan)];
    for (name, uses) in uses {
        let lines = 16 * MAX_STREAMS;
        let mut text: String = (0..8).map(|var| format!("v{var} = var\n")).collect();
        for line in 0..lines {
            text.push_str(&format!("%{line} fn compute@cpu:0:{} \"f\" {}\n", line % MAX_STREAMS, uses(line)));
        }
        let list = InstructionList::parse(&text).expect("a list");
        let (planned, took) = processor_time(|| plan(list, &PlanOptions::default()).expect("a plan"));
        let waits: u64 = planned.counts.iter().map(|counts| counts.device_waits + counts.host_waits).sum();
        eprintln!("{name}: {lines} lines on {MAX_STREAMS} lanes, {waits} waits: planned in {took:?} of processor time");
        assert!(waits > lines as u64 / 2, "{name}: {waits} waits");
        // A quiet machine takes a tenth of a second, in a build that is optimized; a plan that is slower by a factor of the streams would take minutes.
        assert!(took < Duration::from_secs(3), "{name}: {took:?}");
    }
}

/// Draws lists of functions, barriers and syncs on many lanes and on workers, over few variables: they are planned in memory in
/// proportion to what they come to, or refused in little.
#[test]
fn drawn_lists_are_planned_or_refused_in_bounded_memory() {
    let _turn = turn();
    let (mut most, mut made) = (0, 0);
    for seed in 1..=16_u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = move |below: usize| {
            // Xorshift (Marsaglia 2003): any sequence does.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        let (lanes, syncs, workers) = (1 << random(10), random(4) * random(6), random(4) * random(6));
        let mut text = String::from("v0 = var\nv1 = var\nv2 = var\n");
        let lines = 12_000;
        for line in 0..lines {
            let words = match random(40) {
                kind if kind < syncs => "sync barrier@cpu:0:0".to_owned(),
                kind if kind < syncs + workers => {
                    format!("fn workers@cpu:0:0 \"w\" {} v{}", ["read", "read", "read", "update"][random(4)], random(3))
                }
                39 => "barrier barrier@cpu:0:0".to_owned(),
                _ => {
                    format!("fn compute@cpu:0:{} \"f\" {} v{}", random(lanes), ["read", "update"][random(2)], random(3))
                }
            };
            text.push_str(&format!("%{line} {words}\n"));
        }
        let list = InstructionList::parse(&text).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let (planned, bytes) = most_bytes(|| plan(list, &PlanOptions::default()));
        match planned {
            Ok(planned) => {
                let of = |counts: &SyncCounts| counts.device_waits + counts.host_waits + counts.records;
                let all = (lines + planned.counts.iter().map(of).sum::<u64>() as usize) as isize;
                assert!(bytes < 1024 * all + (64 << 20), "seed {seed}: {bytes} bytes for {all} lines");
                made += 1;
            }
            Err(Error::TooManyWaits { .. }) => assert!(bytes < 256 << 20, "seed {seed}: {bytes} bytes for none"),
            Err(error) => panic!("seed {seed}: {error}"),
        }
        most = most.max(bytes);
    }
    assert!((1..16).contains(&made), "{made} of 16 were planned");
    eprintln!("16 drawn lists of 12,000 lines each, {made} planned and the others refused: at most {} MiB", most >> 20);
}
