//! Growth: what the engine does for `n` items takes time in about proportion to `n`.
//!
//! Each case is measured with few items and with [`FACTOR`] times as many. A case that searches its items for each of them takes up to
//! [`FACTOR`] times as long for an item then. `make bench-curves` measures more shapes, at more sizes.

use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc;
use std::task::{Context, Waker};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use streamvm_ep::{DType, DeviceId};
use streamvm_instructions::{InstructionList, InstructionsBuilder, Passed, Use};

use crate::{Critical, OnComplete, Var, Vm};

const CPU: DeviceId = DeviceId::cpu(0);

/// The smaller number of items.
const FEW: usize = 5_000;

const FACTOR: usize = 8;

/// The most that the time of an item may grow. Cases that searched their items grew by 4 to 20, and others disturb the measurement.
const MOST: f64 = 3.0;

/// How often a case that has grown more is measured again.
const TRIES: usize = 5;

/// A case by name: does something with so many items, and returns the time that it took, without the time to prepare it.
type Case = (&'static str, fn(usize) -> Duration);

const CASES: &[Case] = &[
    ("lines on workers, then in turn with lines on a stream", alternating_lines),
    ("memory that a list releases and takes again", released_memory),
    #[cfg(feature = "sim")]
    ("events and waits of a list that is recorded", recorded_events),
    ("functions of a bulk over a variable each", bulk),
    ("resources of a clean-up", clean_up),
    ("resources of two critical sections", sections),
    ("futures in the reverse order of their instructions", reversed_futures),
    ("futures of one function on workers, dropped in order", futures_of_one_function),
    ("submissions after a failure, while workers pass what was submitted before", submissions_after_a_failure),
];

#[test]
fn the_time_of_an_item_grows_little() {
    for (name, case) in CASES {
        let growth = || case(FACTOR * FEW).as_secs_f64() / case(FEW).as_secs_f64() / FACTOR as f64;
        let grown: Vec<f64> = (0..TRIES).map(|_| growth()).take_while(|growth| *growth > MOST).collect();
        assert!(grown.len() < TRIES, "{name}: an item of {FACTOR} times as many takes {grown:.1?} times as long");
    }
}

fn engine() -> Vm {
    // All items may be pending.
    Vm::builder().workers(1).max_instructions(1 << 20).build().expect("an engine")
}

fn variables(count: usize) -> Vec<Var> {
    (0..count).map(|_| Var::new()).collect()
}

/// The processor time of the calling thread, which other work on the machine changes little.
fn now() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The time to submit a list.
fn submitted(vm: &Vm, list: InstructionList) -> Duration {
    let start = now();
    vm.submit(list).expect("a list");
    now() - start
}

/// A function that writes a variable and is pending until its handle is used.
fn held(vm: &Vm) -> (OnComplete, Var) {
    let ((tell, told), variable) = (mpsc::channel(), Var::new());
    vm.push_async("held", [variable.write()], move |handle| tell.send(handle).expect("the test listens"))
        .expect("a push");
    (told.recv().expect("the function is called"), variable)
}

fn alternating_lines(lines: usize) -> Duration {
    let (vm, mut builder) = (engine(), InstructionsBuilder::new());
    for line in 0..lines {
        if line < lines / 2 || line % 2 == 0 {
            builder.on_workers().call_fn("on workers", CPU, [], |_| Ok(())).expect("a line");
        } else {
            builder.call_fn("on a stream", CPU, [], |_| Ok(())).expect("a line");
        }
    }
    submitted(&vm, builder.finish())
}

fn released_memory(tensors: usize) -> Duration {
    let (vm, mut builder) = (engine(), InstructionsBuilder::new());
    let full = |builder: &mut InstructionsBuilder| builder.full(CPU, DType::F32, &[16], 1).expect("a fill");
    let made: Vec<_> = (0..tensors).map(|_| full(&mut builder)).collect();
    made.iter().for_each(|tensor| builder.release(tensor));
    for _ in 0..tensors {
        full(&mut builder);
    }
    submitted(&vm, builder.finish())
}

#[cfg(feature = "sim")]
fn recorded_events(events: usize) -> Duration {
    use streamvm_stream::{StreamKey, StreamType};

    let vm = Vm::builder().detect_races(true).record(std::io::sink()).build().expect("an engine");
    let [source, target] = [0, 1].map(|lane| StreamKey::new(CPU, StreamType::Compute, lane));
    let mut builder = InstructionsBuilder::new();
    for _ in 0..events {
        let event = builder.record(source);
        builder.wait(target, source, &event);
    }
    submitted(&vm, builder.finish())
}

fn bulk(functions: usize) -> Duration {
    let (vm, variables) = (engine(), variables(functions));
    let mut bulk = vm.bulk(functions + 1);
    let start = now();
    for variable in &variables {
        bulk.push("one", [variable.update()], || Ok(())).expect("it is gathered");
    }
    now() - start
}

fn clean_up(resources: usize) -> Duration {
    let (vm, variables) = (engine(), variables(resources));
    let uses = variables.iter().enumerate().map(|(at, it)| if at % 2 == 0 { it.read() } else { it.write() });
    let uses: Vec<Use<'_>> = uses.collect();
    let start = now();
    vm.pusher().clean_up(true).push("clean-up", uses, || Ok(())).expect("a push");
    now() - start
}

/// One thread has a section open, and another begins one over other resources.
fn sections(resources: usize) -> Duration {
    let vm = engine();
    let criticals = || (0..resources).map(|_| vm.critical("of many")).collect::<Vec<_>>();
    let (ours, others) = (criticals(), criticals());
    fn refs(criticals: &[Critical]) -> Vec<&Critical> {
        criticals.iter().collect()
    }
    let open = vm.enter_section(&refs(&ours), &[]).expect("a section");
    let took = std::thread::scope(|scope| {
        let begins = || {
            let mut builder = InstructionsBuilder::new();
            let section = builder.begin_section(&refs(&others), &[]).expect("a section");
            builder.end_section(section, &[]);
            submitted(&vm, builder.finish())
        };
        scope.spawn(begins).join().expect("it does not panic")
    });
    open.end(&[]).expect("it ends");
    took
}

fn pending(mut future: Passed) -> Passed {
    let polled = Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
    future
}

fn reversed_futures(futures: usize) -> Duration {
    let (vm, variables) = (engine(), variables(futures));
    let (handle, first) = held(&vm);
    for variable in &variables {
        vm.call_fn("after it", CPU, [first.read(), variable.write()], |_| Ok(())).expect("a call");
    }
    let start = now();
    let kept: Vec<_> = variables.iter().rev().map(|variable| pending(variable.ready().expect("it is used"))).collect();
    let took = now() - start;
    drop(kept);
    handle.complete(Ok(()));
    took
}

fn futures_of_one_function(futures: usize) -> Duration {
    let vm = engine();
    let (handle, variable) = held(&vm);
    let start = now();
    let kept: Vec<_> = (0..futures).map(|_| pending(variable.ready().expect("it is used"))).collect();
    kept.into_iter().for_each(drop);
    let took = now() - start;
    handle.complete(Ok(()));
    took
}

/// A search for unseen failures waits until all has passed that was submitted before it. All but the last of it has passed.
fn submissions_after_a_failure(submissions: usize) -> Duration {
    let vm = engine();
    let until = |enough: &dyn Fn() -> bool| {
        while !enough() {
            std::thread::yield_now();
        }
    };
    let (first, variable) = held(&vm);
    for _ in 0..submissions {
        vm.push("before the search", [variable.read()], || Ok(())).expect("a push");
    }
    let (last, _) = held(&vm);
    let fails = vm.push("fails", [], || Err("it always fails".into())).expect("a push");
    until(&|| fails.is_passed());
    vm.push("begins the search", [], || Ok(())).expect("a push");
    first.complete(Ok(()));
    until(&|| vm.stats().in_flight == 1);
    let start = now();
    for _ in 0..submissions {
        vm.push("one more", [], || Ok(())).expect("a push");
    }
    let took = now() - start;
    last.complete(Ok(()));
    assert!(vm.wait_all().is_err(), "one function has failed");
    took
}
