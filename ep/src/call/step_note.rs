//! Notes of the step of a program that a stream is at, so that a report about a program that hangs can name it, and of when steps began, for traces.
//!
//! The thread that runs the program writes; any thread reads at any time. All accesses are relaxed: a note is exact while the program stays at the
//! step, which is when somebody wants to know. Times are read by the thread that has run the program.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

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
    /// Whether it keeps when steps began.
    is_timed: AtomicBool,
    /// Whether there are times: most instructions are no programs.
    has_times: AtomicBool,
    times: Mutex<StepTimes>,
}

/// When steps began, in this order, and when the last one was over.
#[derive(Debug, Default)]
struct StepTimes {
    began: Vec<(ProgramStep, Instant)>,
    ended: Option<Instant>,
}

/// Of how many steps the times are kept until they are taken: a loop may have any number.
const MOST: usize = 1 << 16;

impl StepNote {
    /// Begins a run of the steps with these labels. It ends when the result is dropped.
    pub fn run<'n>(&'n self, labels: &'n Arc<[ProgramStep]>) -> NotedRun<'n> {
        let address = Arc::as_ptr(labels).cast::<ProgramStep>().addr();
        if self.address.load(Ordering::Relaxed) != address {
            *self.labels.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::downgrade(labels));
            self.address.store(address, Ordering::Relaxed);
        }
        NotedRun { note: self, labels, is_timed: self.is_timed.load(Ordering::Relaxed) }
    }

    /// From now on keeps when the steps of each run begin, until [`take_times`](StepNote::take_times).
    pub fn time_steps(&self) {
        self.is_timed.store(true, Ordering::Relaxed);
    }

    /// Calls `each` with each step that has run since the last call, when it began, and when the next one began or the run ended; of 65,536 at most. By the thread that has run them.
    pub fn take_times(&self, mut each: impl FnMut(ProgramStep, Instant, Instant)) {
        if !self.has_times.load(Ordering::Relaxed) {
            return;
        }
        self.has_times.store(false, Ordering::Relaxed);
        let lock = || self.times.lock().unwrap_or_else(PoisonError::into_inner);
        let StepTimes { mut began, ended } = std::mem::take(&mut *lock());
        let ends = began.iter().skip(1).map(|(_, next)| *next).chain(ended);
        began.iter().zip(ends).for_each(|((step, begin), end)| each(*step, *begin, end));
        began.clear();
        // It keeps its memory.
        lock().began = began;
    }

    #[cold]
    #[inline(never)]
    fn time(&self, step: ProgramStep) {
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        self.has_times.store(true, Ordering::Relaxed);
        let now = Instant::now();
        match times.began.len() < MOST {
            true => times.began.push((step, now)),
            // The last one that is kept ends here.
            false => _ = times.ended.get_or_insert(now),
        }
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
pub struct NotedRun<'n> {
    note: &'n StepNote,
    labels: &'n [ProgramStep],
    is_timed: bool,
}

impl NotedRun<'_> {
    /// The step at this place among the labels begins.
    #[inline]
    pub fn begin(&self, place: usize) {
        self.note.place.store(place + 1, Ordering::Relaxed);
        if self.is_timed
            && let Some(step) = self.labels.get(place)
        {
            self.note.time(*step);
        }
    }
}

impl Drop for NotedRun<'_> {
    fn drop(&mut self) {
        self.note.place.store(0, Ordering::Relaxed);
        if self.is_timed {
            let mut times = self.note.times.lock().unwrap_or_else(PoisonError::into_inner);
            if !times.began.is_empty() {
                times.ended.get_or_insert_with(Instant::now);
            }
        }
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

    #[test]
    fn steps_have_times_that_follow_one_another() {
        let note = StepNote::default();
        let own = labels(5);
        let taken = |note: &StepNote| {
            let mut all = Vec::new();
            note.take_times(|step, begin, end| all.push((step.number, begin, end)));
            all
        };
        let run = |steps: usize| {
            let run = note.run(&own);
            (0..steps).for_each(|step| run.begin(step % 2));
        };
        run(3);
        assert!(taken(&note).is_empty(), "nobody has asked for them");
        note.time_steps();
        for _ in 0..2 {
            let before = Instant::now();
            run(3);
            let all = taken(&note);
            assert_eq!(all.iter().map(|(step, ..)| *step).collect::<Vec<_>>(), [5, 6, 5]);
            assert!(before <= all[0].1 && all[2].2 <= Instant::now());
            assert!(all.windows(2).all(|pair| pair[0].2 == pair[1].1) && all[2].1 <= all[2].2, "{all:?}");
        }
        // A run without steps, and a loop without an end.
        run(0);
        assert!(taken(&note).is_empty());
        run(MOST + 10);
        let all = taken(&note);
        assert!(all.len() == MOST && all[MOST - 1].1 <= all[MOST - 1].2);
        run(1);
        assert_eq!(taken(&note).len(), 1);
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
        std::mem::forget(run);
        drop(own);
        assert_eq!(note.step(), None);
    }
}
