//! Workers that sleep are woken: whole engines, of which the test looks at the beds.
//!
//! That no worker is missed while it lies down is shown by the models in `beds.rs`, for every interleaving, and for the code of a whole
//! engine by `shuttle_two_functions_that_wait_for_each_other_run_side_by_side`, under drawn schedules.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::Vm;

/// After this a hang is called a hang.
const PATIENCE: Duration = Duration::from_secs(15);

/// Where functions wait until so many have come.
struct Meeting {
    all: u32,
    came: Mutex<u32>,
    changed: Condvar,
}

impl Meeting {
    fn of(all: u32) -> Arc<Meeting> {
        Arc::new(Meeting { all, came: Mutex::new(0), changed: Condvar::new() })
    }

    /// Comes, and waits for the others.
    fn meet(&self) -> Result<(), String> {
        let mut came = self.came.lock().unwrap_or_else(PoisonError::into_inner);
        *came += 1;
        self.changed.notify_all();
        let waited = self.changed.wait_timeout_while(came, PATIENCE, |came| *came < self.all);
        let (came, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() { Err(format!("{} of {} came", *came, self.all)) } else { Ok(()) }
    }
}

/// Waits until so many workers sleep.
fn until_asleep(vm: &Vm, workers: usize) {
    let start = Instant::now();
    let asleep = || {
        let contexts = vm.shared.threads.contexts();
        contexts.iter().filter(|context| context.sleeper.is_sleeping()).count()
    };
    while asleep() < workers {
        assert!(start.elapsed() < PATIENCE, "{} of {workers} workers sleep", asleep());
        std::thread::yield_now();
    }
}

/// A function has successors, which meet: each needs a worker of its own, and all other workers sleep when they become ready.
#[test]
fn a_worker_that_readies_several_functions_wakes_others_for_them() {
    for workers in [2, 3, 4] {
        let vm = Vm::builder().workers(workers as usize).build().expect("an engine");
        for round in 0..10 {
            // The test comes to the first meeting once the others sleep.
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
