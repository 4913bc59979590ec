//! Pushed functions and kernels of a device that runs its commands later: which waits for which, while one is held.
//!
//! That something waits is seen by what goes by meanwhile, and that it does not wait by its end; neither goes by a clock, so a busy
//! machine changes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use streamvm::{DType, DeviceId, Error, Vm};

use crate::{ClosedGate, PATIENCE, submit};

/// What is expected of an engine.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Rule {
    /// Each waits for what it needs.
    Holds,
    /// One wait is missing: what does not wait passes while the other is held, and is waited for.
    IsBroken,
}

impl Rule {
    /// How long something is given to pass while what it needs is held.
    fn while_held(self) -> Duration {
        match self {
            Rule::Holds => Duration::ZERO,
            Rule::IsBroken => PATIENCE,
        }
    }
}

/// So much goes by of others before something that waits is looked at.
const OTHERS: usize = 8;

/// Whether a pushed function waits for the kernel that writes the tensor that it reads, and who waits for the function's
/// variable with it. `hold` holds the kernels of `device` until what it gives is dropped. The function is the third that the
/// workers get.
///
/// # Panics
/// When it does not end as it should once nothing is held.
pub fn function_waits_for_a_kernel<H>(vm: &Vm, device: DeviceId, rule: Rule, hold: impl FnOnce() -> H) -> bool {
    let (var, ran) = (vm.var(), Arc::new(AtomicBool::new(false)));
    for _ in 0..2 {
        vm.push("before", [var.write()], || Ok(())).expect("it is taken");
    }
    // Memory is there before: a driver that is held may give none.
    let x = vm.fill(device, DType::F32, &[8], 1.0).expect("a fill");
    vm.wait_all().expect("nothing is held yet");
    let held = hold();
    submit(vm, |b| b.fill_into(&x, 2.0));
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
    let times_out = matches!(vm.wait_timeout(&var, rule.while_held()), Err(Error::Timeout(_)));
    let waits = times_out && !ran.load(Ordering::Relaxed);
    drop(held);
    assert_eq!(vm.wait(&var), Ok(()));
    assert!(ran.load(Ordering::Relaxed), "it has run");
    assert_eq!(x.to_vec::<f32>(), Ok(vec![2.0; 8]));
    waits
}

/// Whether a kernel waits for a pushed function that is held and was pushed over the tensor that it reads. It is the third
/// instruction of its stream.
///
/// # Panics
/// When it does not end as it should once nothing is held.
pub fn kernel_waits_for_a_function(vm: &Vm, device: DeviceId, rule: Rule) -> bool {
    let fill = || vm.fill(device, DType::F32, &[8], 1.0).expect("a fill");
    let (x, apart) = (fill(), fill());
    vm.wait_all().expect("nothing is held yet");
    let gate = ClosedGate::new();
    let inside = gate.clone();
    let function = move || {
        inside.pass();
        Ok(())
    };
    vm.push("held", [x.update()], function).expect("it is taken");
    gate.wait_entered(1);
    let y = x.neg().expect("a kernel");
    for _ in 0..OTHERS {
        // Nothing else is held up.
        let _lane = streamvm::lane(1);
        assert_eq!(apart.neg().and_then(|z| z.to_vec::<f32>()), Ok(vec![-1.0; 8]));
    }
    let waits = matches!(y.wait_timeout(rule.while_held()), Err(Error::Timeout(_)));
    gate.open();
    assert_eq!(y.to_vec::<f32>(), Ok(vec![-1.0; 8]));
    waits
}
