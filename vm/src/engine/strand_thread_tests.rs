//! Which strand a thread takes, tested by holding the run lock of a strand, as a caller that helps does.

use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use streamvm_ep::{DType, DeviceId, Priority};
use streamvm_instructions::{InstructionsBuilder, Lane, Tensor, TimeLimit};
use streamvm_stream::{StreamId, StreamKey, StreamType};

use crate::Vm;
use crate::execute::locked_context::LockedContext;
use crate::sync::unpoisoned;

type Outcome = Result<(), Box<dyn Error>>;

/// A test that waits longer than this fails. A caller with a time limit does not help.
const PATIENCE: TimeLimit = TimeLimit(Duration::from_secs(15));

const CPU: DeviceId = DeviceId::cpu(0);

/// A tensor that the stream of this lane fills.
fn filled(vm: &Vm, lane: u32, value: f64) -> Result<Tensor, crate::Error> {
    let _lane = Lane(lane).enter();
    vm.full(CPU, DType::F32, &[4], value)
}

/// An engine whose device has one thread, after lanes 0 to 2 were used, in this order. Lane 0 has this priority.
fn engine(first: Priority) -> Result<Vm, Box<dyn Error>> {
    let vm = Vm::builder().cpu_threads(1).lane_priority(Lane(0), first).build()?;
    let _limit = PATIENCE.enter();
    for lane in 0..3 {
        filled(&vm, lane, 0.0)?.wait()?;
    }
    Ok(vm)
}

/// Keeps the only thread busy on lane 2 until the returned barrier is passed.
fn hold_thread(vm: &Vm) -> Result<Arc<Barrier>, Box<dyn Error>> {
    let (begun, gate) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let (begins, goes_on) = (begun.clone(), gate.clone());
    let mut builder = InstructionsBuilder::new();
    builder.on_lane(2).host_fn("held", CPU, move || {
        begins.wait();
        goes_on.wait();
        Ok(())
    });
    vm.submit(builder.finish())?;
    begun.wait();
    Ok(gate)
}

/// The run lock of the strand of a lane.
fn strand_of(vm: &Vm, lane: u32) -> Arc<LockedContext> {
    let name = StreamKey::new(CPU, StreamType::Compute, lane).to_string();
    let streams = (0..16).map(StreamId);
    let mut runners = streams.filter_map(|stream| vm.engine.threads.runner_of(stream));
    runners.find(|runner| runner.handle.name == name).expect("the lane was used").clone()
}

#[test]
fn a_thread_serves_another_strand_while_a_caller_holds_the_run_lock_of_the_first() -> Outcome {
    serves_another_strand(Priority::Normal)
}

/// Otherwise the thread would take the strand of high priority again and again, or sleep until the caller leaves it.
#[test]
fn a_thread_serves_a_strand_of_lower_priority_while_a_caller_holds_the_run_lock_of_the_first() -> Outcome {
    serves_another_strand(Priority::High)
}

fn serves_another_strand(first: Priority) -> Outcome {
    let vm = engine(first)?;
    let gate = hold_thread(&vm)?;
    let lent = strand_of(&vm, 0);
    let caller = unpoisoned(lent.run_lock.lock());
    // Lane 0 is first in the ready queue.
    let (first, second) = (filled(&vm, 0, 1.0)?, filled(&vm, 1, 2.0)?);
    gate.wait();
    let _limit = PATIENCE.enter();
    second.wait()?;
    drop(caller);
    assert_eq!(first.to_vec::<f32>()?, [1.0; 4]);
    assert_eq!(second.to_vec::<f32>()?, [2.0; 4]);
    Ok(())
}

/// Callers hold the run locks of all strands that are ready: the thread waits for one of them, and runs both once they are free.
#[test]
fn a_thread_waits_for_a_run_lock_when_callers_hold_all() -> Outcome {
    let vm = engine(Priority::High)?;
    let gate = hold_thread(&vm)?;
    let lent = [strand_of(&vm, 0), strand_of(&vm, 1)];
    let callers = lent.each_ref().map(|strand| unpoisoned(strand.run_lock.lock()));
    let filled = [filled(&vm, 0, 1.0)?, filled(&vm, 1, 2.0)?];
    gate.wait();
    // The flag tells callers that a thread waits for the lock.
    let waits = || lent.iter().any(|strand| strand.handle.wants_run_lock.load(Ordering::Relaxed));
    let start = Instant::now();
    while !waits() {
        assert!(start.elapsed() < PATIENCE.0, "no thread waits for a run lock");
        thread::yield_now();
    }
    // It is the lock of the strand of the highest priority.
    let [first, second] = callers;
    drop(first);
    let _limit = PATIENCE.enter();
    filled[0].wait()?;
    drop(second);
    assert_eq!(filled[0].to_vec::<f32>()?, [1.0; 4]);
    assert_eq!(filled[1].to_vec::<f32>()?, [2.0; 4]);
    Ok(())
}

/// A caller has left the strand of high priority again when the thread has had its turn of the other one.
#[test]
fn a_strand_that_was_passed_by_keeps_its_priority() -> Outcome {
    const CALLS: usize = 1_000;
    let vm = engine(Priority::High)?;
    let gate = hold_thread(&vm)?;
    let lent = strand_of(&vm, 0);
    let caller = unpoisoned(lent.run_lock.lock());
    let ((begins, begun), (goes_on, waits)) = (mpsc::channel(), mpsc::channel::<()>());
    let (called, before) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(CALLS)));
    let call = |lane: u32, function: Box<dyn FnOnce() + Send>| {
        let mut builder = InstructionsBuilder::new();
        builder.on_lane(lane).host_fn("function", CPU, || {
            function();
            Ok(())
        });
        vm.submit(builder.finish()).map(drop)
    };
    let (seen, noted) = (called.clone(), before.clone());
    call(0, Box::new(move || noted.store(seen.load(Ordering::Relaxed), Ordering::Relaxed)))?;
    let first = move || {
        // If the test fails, it drops the other ends, and this goes on.
        let _ = begins.send(());
        let _ = waits.recv();
    };
    call(1, Box::new(first))?;
    for _ in 0..CALLS {
        let called = called.clone();
        call(1, Box::new(move || _ = called.fetch_add(1, Ordering::Relaxed)))?;
    }
    gate.wait();
    // The thread has passed by lane 0, and is in a function of lane 1.
    begun.recv_timeout(PATIENCE.0)?;
    drop(caller);
    goes_on.send(())?;
    let _limit = PATIENCE.enter();
    vm.wait_all()?;
    let before = before.load(Ordering::Relaxed);
    assert!(before <= 2 * 64, "{before} calls of a lower priority came first, and a turn has 64");
    Ok(())
}
