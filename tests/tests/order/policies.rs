//! Policies that callers give to streams: which thread runs them, and what is done around each instruction.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use streamvm::ep::{self, CallError};
use streamvm::stream::{Passing, StreamPolicy, Threads, Work};
use streamvm::{Cause, DType, Error, FnContext, InstructionsBuilder, Mode, StreamType, Vm, VmBuilder};
use streamvm_tests::{CPU, ClosedGate};

/// Counts the instructions that it runs, and leaves out those after the first `runs`.
#[derive(Debug)]
struct Counting {
    threads: Threads,
    passing: Passing,
    runs: usize,
    ran: AtomicUsize,
}

impl Counting {
    fn on(threads: Threads) -> Arc<Counting> {
        Arc::new(Counting { threads, passing: Passing::AtOnce, runs: usize::MAX, ran: AtomicUsize::new(0) })
    }
}

impl StreamPolicy for Counting {
    fn threads(&self) -> Threads {
        self.threads
    }

    fn passing(&self) -> Passing {
        self.passing
    }

    fn run(&self, work: &mut dyn Work, stream: &mut dyn ep::Stream) -> Result<(), CallError> {
        if self.ran.fetch_add(1, Ordering::Relaxed) < self.runs { work.run(stream) } else { Ok(()) }
    }
}

fn on_pinned(policy: &Arc<Counting>) -> VmBuilder {
    Vm::builder().stream_policy(CPU, StreamType::PinnedCompute, policy.clone())
}

#[test]
fn a_policy_is_around_each_instruction_of_its_streams_in_every_mode() {
    for mode in [Mode::Threaded, Mode::Inline, Mode::Simulated { seed: 7 }] {
        let policy = Counting::on(Threads::Own);
        let vm = Vm::builder()
            .mode(mode)
            .stream_policy(CPU, StreamType::Compute, policy.clone())
            .build()
            .expect("an engine");
        let x = vm.from_slice(&[1f32, -2.0], &[2]).and_then(|x| x.to(CPU)).expect("a tensor");
        x.wait().expect("it is copied");
        let before = policy.ran.load(Ordering::Relaxed);
        let y = x.relu().and_then(|y| y.neg()).expect("they are submitted");
        y.wait().expect("they pass");
        assert_eq!(policy.ran.load(Ordering::Relaxed) - before, 2, "{mode:?}");
        assert_eq!(y.to_vec::<f32>(), Ok(vec![-1.0, 0.0]), "{mode:?}");
    }
}

/// One thread serves the streams of the device. A function that blocks on a stream with a thread of its own does not hold back the others.
#[test]
fn a_stream_with_its_own_thread_holds_back_no_other() {
    let policy = Counting::on(Threads::Own);
    let vm = on_pinned(&policy).cpu_threads(1).build().expect("an engine");
    let (gate, names) = (ClosedGate::new(), Arc::new(Mutex::new(Vec::new())));
    let mut builder = InstructionsBuilder::new();
    for lane in [0, 1] {
        let (gate, names) = (gate.clone(), names.clone());
        builder
            .on_lane(lane)
            .on_pinned()
            .call_fn("blocks", CPU, [], move |_: &mut FnContext<'_>| {
                names.lock().expect("it is not poisoned").push(thread::current().name().unwrap_or("").to_owned());
                gate.pass();
                Ok(())
            })
            .expect("a function");
    }
    let blocked = vm.submit(builder.finish()).expect("it is submitted");
    let x = vm.ones(CPU, DType::F32, &[2]).expect("a tensor");
    assert_eq!(x.neg().and_then(|y| y.to_vec::<f32>()), Ok(vec![-1.0; 2]), "it passes while the gate is closed");
    assert!(!blocked.is_passed());
    gate.open();
    blocked.wait().expect("it ends");
    assert_eq!(*names.lock().expect("it is not poisoned"), ["cpu:0.pinned"; 2], "both lanes have one thread");
}

#[test]
fn policies_that_do_not_fit_are_refused_and_one_that_runs_nothing_fails_the_instruction() {
    let later =
        Arc::new(Counting { threads: Threads::Own, passing: Passing::Later, runs: 0, ran: AtomicUsize::new(0) });
    for (policy, words) in [(later, "passes Later"), (Counting::on(Threads::Launching), "Launching threads")] {
        let vm = Vm::builder().stream_policy(CPU, StreamType::Compute, policy).build().expect("an engine");
        let refused = vm.ones(CPU, DType::F32, &[2]).and_then(|x| x.neg()).expect_err("it does not fit");
        assert!(matches!(refused, Error::NoStream { .. }) && refused.to_string().contains(words), "{refused}");
    }
    let lazy =
        Arc::new(Counting { threads: Threads::Shared, passing: Passing::AtOnce, runs: 1, ran: AtomicUsize::new(0) });
    let vm = Vm::builder().stream_policy(CPU, StreamType::Compute, lazy).build().expect("an engine");
    let x = vm.ones(CPU, DType::F32, &[2]).expect("a tensor");
    let failed = x.neg().and_then(|y| y.wait()).expect_err("its policy has not run it");
    let Error::Failed(failure) = &failed else { panic!("{failed}") };
    assert!(matches!(&failure.cause, Cause::Function(text) if text.contains("did not run it")), "{failed}");
}
