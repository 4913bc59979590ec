//! Notes of the step of a program that a stream is at, so that a report about a program that hangs can name it.
//!
//! The thread that runs the program writes; any thread reads at any time. All accesses are relaxed: a note is exact while the program stays at the
//! step, which is when somebody wants to know.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::call::label::ProgramStep;

/// The step that the stream which owns this is at.
#[derive(Debug, Default)]
pub struct StepNote {
    /// The place of the step among the labels, from 1; 0 while no steps run.
    place: AtomicUsize,
    /// The labels of the program that ran last. The weak reference keeps their address from being used again; so their memory, 32 bytes a step, stays
    /// until the stream runs another program, also if this one is dropped.
    labels: Mutex<Option<Weak<[ProgramStep]>>>,
    /// The address of these labels, so that a program that runs again takes no lock.
    address: AtomicUsize,
}

impl StepNote {
    /// Begins a run of the steps with these labels. It ends when the result is dropped.
    pub fn run(&self, labels: &Arc<[ProgramStep]>) -> NotedRun<'_> {
        let address = Arc::as_ptr(labels).cast::<ProgramStep>().addr();
        if self.address.load(Ordering::Relaxed) != address {
            *self.labels.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::downgrade(labels));
            self.address.store(address, Ordering::Relaxed);
        }
        NotedRun(self)
    }

    /// The step that the stream is at; `None` while it runs no steps, or runs them in several threads.
    pub fn step(&self) -> Option<ProgramStep> {
        let place = self.place.load(Ordering::Relaxed).checked_sub(1)?;
        let labels = self.labels.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        let label = labels.upgrade()?.get(place).copied();
        // If another step has begun, the labels may be those of another program.
        label.filter(|_| self.place.load(Ordering::Relaxed) == place + 1)
    }
}

/// A run of steps whose stream notes the step that it is at.
#[derive(Debug)]
pub struct NotedRun<'n>(&'n StepNote);

impl NotedRun<'_> {
    /// The step at this place among the labels begins.
    #[inline]
    pub fn begin(&self, place: usize) {
        self.0.place.store(place + 1, Ordering::Relaxed);
    }
}

impl Drop for NotedRun<'_> {
    fn drop(&mut self) {
        self.0.place.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::names::site::Site;

    fn labels(first: usize) -> Arc<[ProgramStep]> {
        let site = Site::caller();
        (first..first + 2).map(|step| ProgramStep { number: step, name: "add", site }).collect()
    }

    #[test]
    fn the_step_that_was_begun_last_is_told_until_the_run_ends() {
        let note = StepNote::default();
        let at = || note.step().map(|label| label.number);
        let (one, other) = (labels(10), labels(20));
        for (labels, first) in [(&one, 10), (&one, 10), (&other, 20), (&one, 10)] {
            let run = note.run(labels);
            assert_eq!(at(), None);
            for place in 0..2 {
                run.begin(place);
                assert_eq!(at(), Some(first + place));
            }
            drop(run);
            assert_eq!(at(), None);
        }
    }

    /// A panic in a step ends the run. A program that is dropped has no steps.
    #[test]
    fn a_run_that_panics_and_a_dropped_program_leave_no_step() {
        let note = StepNote::default();
        let own = labels(0);
        let panicked = std::panic::catch_unwind(|| {
            let run = note.run(&own);
            run.begin(1);
            panic!("on purpose");
        });
        assert!(panicked.is_err() && note.step().is_none());
        let run = note.run(&own);
        run.begin(1);
        drop(own);
        assert_eq!(note.step(), None);
    }
}
