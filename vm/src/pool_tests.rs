//! Parked workers are woken: a test of whole engines that reads which workers are parked.
//!
//! That no worker is missed while it prepares to park is shown elsewhere: for every interleaving by the loom models in
//! `idle_set.rs`, and for a whole engine, under random schedules, by
//! `shuttle_two_functions_that_wait_for_each_other_run_side_by_side`.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::Vm;

/// A test that waits longer than this fails.
const PATIENCE: Duration = Duration::from_secs(15);

/// A barrier with a timeout: functions wait here until `all` of them have come.
struct Meeting {
    all: u32,
    came: Mutex<u32>,
    changed: Condvar,
}

impl Meeting {
    fn of(all: u32) -> Arc<Meeting> {
        Arc::new(Meeting { all, came: Mutex::new(0), changed: Condvar::new() })
    }

    /// Counts the caller, and blocks until `all` have come. Fails after [`PATIENCE`].
    fn meet(&self) -> Result<(), String> {
        let mut came = self.came.lock().unwrap_or_else(PoisonError::into_inner);
        *came += 1;
        self.changed.notify_all();
        let waited = self.changed.wait_timeout_while(came, PATIENCE, |came| *came < self.all);
        let (came, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() { Err(format!("{} of {} came", *came, self.all)) } else { Ok(()) }
    }
}

/// Waits until at least `workers` workers are parked.
fn until_asleep(vm: &Vm, workers: usize) {
    let start = Instant::now();
    let asleep = || {
        let contexts = vm.engine.contexts.all();
        contexts.iter().filter(|context| context.parker.is_parked()).count()
    };
    while asleep() < workers {
        assert!(start.elapsed() < PATIENCE, "{} of {workers} workers are parked", asleep());
        std::thread::yield_now();
    }
}

/// A function has successors that wait for each other, so each needs a worker of its own. All other workers are parked when the
/// successors become ready.
#[test]
fn a_worker_that_readies_several_functions_wakes_others_for_them() {
    for workers in [2, 3, 4] {
        let vm = Vm::builder().workers(workers as usize).build().expect("an engine");
        for round in 0..10 {
            // The first function waits for this thread, which lets it go on once the other workers are parked.
            let (var, begins, meets) = (vm.var(), Meeting::of(2), Meeting::of(workers));
            let held = begins.clone();
            vm.push("held", [var.write()], move || Ok(held.meet()?)).expect("it is taken");
            for _ in 0..workers {
                let meets = meets.clone();
                vm.push("meets", [var.read()], move || Ok(meets.meet()?)).expect("it is taken");
            }
            until_asleep(&vm, workers as usize - 1);
            begins.meet().expect("the function has begun");
            assert_eq!(vm.wait_all(), Ok(()), "{workers} workers, round {round}");
        }
    }
}

/// A stream that is refused, because there are too many, leaves nothing behind, however often it is asked for.
#[test]
fn a_refused_stream_leaves_nothing_behind() {
    let vm = Vm::builder().cpu_threads(1).build().expect("an engine");
    let use_lane = |lane: u32| {
        let _lane = crate::Lane(lane).enter();
        vm.full(crate::DeviceId::cpu(0), crate::DType::F32, &[1], 1.0)
    };
    let mut lane = 0;
    while use_lane(lane).is_ok() {
        lane += 1;
    }
    assert!(lane >= 1_000, "{lane} lanes");
    let contexts = vm.engine.contexts.all().len();
    for other in 0..100 {
        assert!(matches!(use_lane(lane + other), Err(crate::Error::NoStream { .. })));
    }
    assert_eq!(vm.engine.contexts.all().len(), contexts);
}
