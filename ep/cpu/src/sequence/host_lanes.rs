//! Lanes of a sequence on a CPU: threads that run its branches side by side.
//!
//! The calling thread, and helpers of the process's pool, *take* a lane each, which no other thread has then, and run its branches in order. A branch that
//! waits for another lane waits until a thread has run enough branches of that lane. If no thread has taken the lane, the waiting thread takes it and runs
//! these branches itself. So a run needs no helper, and with one thread it runs the branches one after the other.
//!
//! Invariants:
//! * A thread changes `done` of a lane only while it has taken that lane.
//! * Each branch waits for branches with smaller numbers only ([`check_branches`](streamvm_ep::backend::sequence::check_branches) checks that). So of all branches that have not run, the
//!   first one waits for nothing: its lane is taken by a thread that goes on, or by none.
//! * When [`HostLanes::run`] returns, every branch has run, or one has failed.

use std::cell::Cell;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crossbeam_utils::CachePadded;
use smallvec::SmallVec;
use streamvm_ep::SequenceBranch;
use streamvm_kernels::{Patience, split};

use crate::sequence::sync::{AtomicBool, AtomicUsize, Ordering};

/// The branches of a sequence, by lane.
#[derive(Debug)]
pub(super) struct HostLanes(Vec<Vec<HostBranch>>);

/// Parts that one thread runs in their order.
#[derive(Debug)]
struct HostBranch {
    parts: Range<usize>,
    /// Other lanes, each with the number of its branches that must have run before.
    after: SmallVec<[(usize, usize); 2]>,
}

/// A lane in a run.
#[derive(Debug)]
struct Lane {
    /// Whether a thread runs its branches.
    taken: AtomicBool,
    /// How many of its branches have run.
    done: AtomicUsize,
}

/// A run, as its threads share it.
struct Run<'r, E> {
    lanes: &'r HostLanes,
    states: SmallVec<[CachePadded<Lane>; 4]>,
    /// Set when a branch has failed: no further branch begins.
    stopped: AtomicBool,
    /// The failure of the branch whose parts come first, with the number of its first part.
    failed: Mutex<Option<(usize, E)>>,
}

/// A lane that a thread has taken. Dropping it lets others take it.
struct Taken<'r, E> {
    run: &'r Run<'r, E>,
    lane: usize,
    /// Whether a branch of it runs; still true when it is dropped if the branch has panicked.
    runs: Cell<bool>,
}

impl HostLanes {
    /// The branches, whose steps are these parts of the sequence.
    pub(super) fn new(branches: &[SequenceBranch], parts: &[Range<usize>]) -> HostLanes {
        let lanes = branches.iter().map(|branch| branch.lane + 1).max().unwrap_or(0);
        let mut of_lanes: Vec<Vec<HostBranch>> = (0..lanes).map(|_| Vec::new()).collect();
        // For each branch how many of its lane have run when it has.
        let mut ends = Vec::with_capacity(branches.len());
        for (SequenceBranch { lane, after, .. }, parts) in branches.iter().zip(parts) {
            let after = after.iter().map(|&other| (branches[other].lane, ends[other])).collect();
            of_lanes[*lane].push(HostBranch { parts: parts.clone(), after });
            ends.push(of_lanes[*lane].len());
        }
        HostLanes(of_lanes)
    }

    /// The bytes that they take on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        let of_branch = |branch: &HostBranch| if branch.after.spilled() { size_of_val(&*branch.after) } else { 0 };
        let of_lane = |lane: &Vec<HostBranch>| size_of_val(lane.as_slice()) + lane.iter().map(of_branch).sum::<usize>();
        size_of_val(self.0.as_slice()) + self.0.iter().map(of_lane).sum::<usize>()
    }

    /// Calls `body` with the parts of each branch, after the branches that it waits for, in as many threads as a kernel of the calling thread may use. `own` makes
    /// what a thread keeps from branch to branch, once for each lane that it begins with. Blocks until all have run. After a failure no further branch begins.
    ///
    /// # Errors
    /// That of the first branch, by its parts, of those that have failed.
    pub(super) fn run<O, E: Send>(
        &self,
        own: impl Fn() -> O + Sync,
        body: impl Fn(&mut O, Range<usize>) -> Result<(), E> + Sync,
    ) -> Result<(), E> {
        let state =
            |_: &Vec<HostBranch>| CachePadded::new(Lane { taken: AtomicBool::new(false), done: AtomicUsize::new(0) });
        let run = Run {
            lanes: self,
            states: self.0.iter().map(state).collect(),
            stopped: AtomicBool::new(false),
            failed: Mutex::new(None),
        };
        split(self.0.len(), &|lane| run.finish(lane, &mut own(), &body));
        match run.failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }
}

impl<E> Run<'_, E> {
    /// Runs all branches of a lane that have not run. Another thread may have taken it, up to a branch that it waits for.
    fn finish<O>(&self, lane: usize, own: &mut O, body: &impl Fn(&mut O, Range<usize>) -> Result<(), E>) {
        self.wait_for(lane, self.lanes.0[lane].len(), own, body);
    }

    /// Returns when so many branches of a lane have run, or a branch has failed. Runs them if no other thread does.
    fn wait_for<O>(
        &self,
        lane: usize,
        count: usize,
        own: &mut O,
        body: &impl Fn(&mut O, Range<usize>) -> Result<(), E>,
    ) {
        let mut patience = Patience::default();
        // Acquire: what the branches have written is seen after this.
        while self.states[lane].done.load(Ordering::Acquire) < count && !self.stopped.load(Ordering::Relaxed) {
            match self.take(lane) {
                Some(taken) => taken.advance(count, own, body),
                None => patience.wait(),
            }
        }
    }

    fn take(&self, lane: usize) -> Option<Taken<'_, E>> {
        let taken = &self.states[lane].taken;
        // Acquire: the thread that had it before has written `done`, and what its branches have written.
        let is_free = taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
        // Not `then_some`: dropping a lane that was not taken would give away that of another thread.
        if is_free { Some(Taken { run: self, lane, runs: Cell::new(false) }) } else { None }
    }

    #[cold]
    fn fail(&self, first_part: usize, error: E) {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if failed.as_ref().is_none_or(|(other, _)| first_part < *other) {
            *failed = Some((first_part, error));
        }
        drop(failed);
        self.stopped.store(true, Ordering::Relaxed);
    }
}

impl<E> Taken<'_, E> {
    /// Runs branches until so many of the lane have run.
    fn advance<O>(&self, count: usize, own: &mut O, body: &impl Fn(&mut O, Range<usize>) -> Result<(), E>) {
        let (run, done) = (self.run, &self.run.states[self.lane].done);
        let first = done.load(Ordering::Relaxed);
        for (number, branch) in self.run.lanes.0[self.lane].iter().enumerate().take(count).skip(first) {
            branch.after.iter().for_each(|&(other, count)| run.wait_for(other, count, own, body));
            if run.stopped.load(Ordering::Relaxed) {
                return;
            }
            self.runs.set(true);
            let ran = body(own, branch.parts.clone());
            self.runs.set(false);
            if let Err(error) = ran {
                return run.fail(branch.parts.start, error);
            }
            // Release: a thread that sees the number sees what the branch has written.
            done.store(number + 1, Ordering::Release);
        }
    }
}

impl<E> Drop for Taken<'_, E> {
    fn drop(&mut self) {
        if self.runs.get() {
            // The branch has panicked. Other threads must not wait for branches that this thread will not run.
            self.run.stopped.store(true, Ordering::Relaxed);
        }
        self.run.states[self.lane].taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
#[path = "host_lanes_tests.rs"]
mod tests;
