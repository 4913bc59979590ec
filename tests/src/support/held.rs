//! Pushed functions and kernels of a device that runs commands later: checks which of them waits for the other while one is held.
//!
//! To show that an instruction waits, the checks let other instructions pass meanwhile; that it does not wait shows when it passes. Neither
//! depends on a clock, so a busy machine does not change the result.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use streamvm::{DType, DeviceId, Error, InstructionsBuilder, TimeLimit, Vm};

use crate::support::gate::ClosedGate;
use crate::support::patience::PATIENCE;
use crate::support::setup::{CPU, submit};

/// The expected behaviour of the engine.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Rule {
    /// Each instruction waits for its dependences.
    Holds,
    /// One wait is missing: the check waits until the instruction passes although its dependence is held.
    IsBroken,
}

impl Rule {
    /// How long an instruction gets to pass while its dependence is held.
    fn while_held(self) -> Duration {
        match self {
            Rule::Holds => Duration::ZERO,
            Rule::IsBroken => PATIENCE,
        }
    }
}

/// Number of other instructions that pass before a check looks at the one that waits.
const OTHERS: usize = 8;

/// Does a pushed function wait for the kernel that writes the tensor that it reads, and does a wait for the function's variable wait too?
/// `hold` holds the kernels of `device` until its result is dropped. The function is the third one that the workers get.
///
/// # Panics
/// If the function does not pass as it should once nothing is held.
pub fn function_waits_for_a_kernel<H>(vm: &Vm, device: DeviceId, rule: Rule, hold: impl FnOnce() -> H) -> bool {
    let (var, ran) = (vm.var(), Arc::new(AtomicBool::new(false)));
    for _ in 0..2 {
        vm.push("before", [var.write()], || Ok(())).expect("it is taken");
    }
    // Allocated before, since a held driver may not allocate.
    let x = vm.full(device, DType::F32, &[8], 1.0).expect("a fill");
    vm.wait_all().expect("nothing is held yet");
    let held = hold();
    submit(vm, |b| b.fill(&x, 2.0));
    let runs = ran.clone();
    let function = move || {
        runs.store(true, Ordering::Relaxed);
        Ok(())
    };
    vm.push("behind the kernel", [x.read(), var.update()], function).expect("it is taken");
    for _ in 0..OTHERS {
        let other = vm.push("apart", [], || Ok(())).expect("it is taken");
        assert_eq!(other.wait(), Ok(()));
    }
    let times_out = matches!(TimeLimit(rule.while_held()).run(|| var.wait()), Err(Error::Timeout { .. }));
    let waits = times_out && !ran.load(Ordering::Relaxed);
    drop(held);
    assert_eq!(var.wait(), Ok(()));
    assert!(ran.load(Ordering::Relaxed), "it has run");
    assert_eq!(x.to_vec::<f32>(), Ok(vec![2.0; 8]));
    waits
}

/// Does a kernel wait for a function on a worker that is held before it writes what the kernel reads? The kernel is the third instruction of
/// its stream. It does not if it passes while the function is held, and neither if it has read what was there before the function's write.
///
/// The function writes page-locked memory, which both the worker and the device can use. So a race detector sees the bytes of both, and
/// reports a missing wait whether or not the kernel runs in time to read old values.
///
/// # Panics
/// If the kernel does not pass once nothing is held.
pub fn kernel_waits_for_a_function(vm: &Vm, device: DeviceId, rule: Rule) -> bool {
    let fill = |value| vm.full(device, DType::F32, &[8], value).expect("a fill");
    let (negative, apart) = (fill(-1.0), fill(1.0));
    let mut builder = InstructionsBuilder::new();
    let x = builder.on_pinned().neg(&negative).expect("a kernel");
    vm.submit(builder.finish()).expect("it is taken");
    vm.wait_all().expect("nothing is held yet");
    let gate = ClosedGate::new();
    let inside = gate.clone();
    submit(vm, |b| {
        b.on_workers().call_fn("held", CPU, [x.write()], move |context| {
            inside.pass();
            context.writes.take::<f32>(0)?.fill(2.0);
            Ok(())
        })
    });
    gate.wait_entered(1);
    let y = x.neg().expect("a kernel");
    for _ in 0..OTHERS {
        // Other instructions are not held up.
        let _lane = streamvm::Lane(1).enter();
        assert_eq!(apart.neg().and_then(|z| z.to_vec::<f32>()), Ok(vec![-1.0; 8]));
    }
    let waits = matches!(TimeLimit(rule.while_held()).run(|| y.wait()), Err(Error::Timeout { .. }));
    gate.open();
    let read = y.to_vec::<f32>().expect("nothing fails");
    waits && read == [-2.0; 8]
}
