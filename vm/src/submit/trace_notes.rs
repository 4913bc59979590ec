//! What submissions note for a trace with times: what they submit, and which resources get memory and give it back.
//!
//! A resource gets memory while its list is prepared, and loses it again if the list is refused. So this is noted aside, and counts once the whole list is prepared.

use std::sync::Arc;
use std::thread::ThreadId;

use streamvm_ep::Site;
use streamvm_instructions::ResourceId;

use crate::submit::state::State;
use crate::tasks::events::{MOST, Name, Submission};
use crate::tasks::memory_use::{Allocated, MemoryUse};
use crate::tasks::timeline::Timeline;

/// The notes of submissions, of which an engine that is not traced makes none.
#[derive(Default)]
pub(crate) struct TraceNotes {
    pub(crate) memory: MemoryUse,
    /// Submissions since the last look.
    pub(crate) submissions: Vec<Submission>,
    /// The time at which the holder of the lock looked at the clock last.
    now: u64,
    /// When the current submission began to be attempted.
    began: u64,
}

impl TraceNotes {
    /// Takes the submissions since the last call, and tells whether some may have been left out.
    pub(crate) fn take(&mut self, submissions: &mut Vec<Submission>) -> bool {
        *submissions = std::mem::take(&mut self.submissions);
        submissions.len() >= MOST
    }
}

/// The calling thread, and its name.
fn this_thread() -> (ThreadId, Arc<str>) {
    thread_local! {
        static THREAD: (ThreadId, Arc<str>) = found();
    }
    fn found() -> (ThreadId, Arc<str>) {
        let thread = std::thread::current();
        (thread.id(), thread.name().unwrap_or("a thread").into())
    }
    // A thread that is ending has no such memory any more.
    THREAD.try_with(Clone::clone).unwrap_or_else(|_| found())
}

impl State {
    /// The holder of the lock attempts a submission, or frees what was dropped.
    #[cold]
    #[inline(never)]
    pub(crate) fn note_time(&mut self, timeline: &Timeline) {
        self.notes.now = timeline.now();
        self.notes.began = self.notes.now;
    }

    /// Notes that a new resource got memory, with the name and the line of who asked for it.
    #[cold]
    #[inline(never)]
    pub(crate) fn note_allocated(&mut self, resource: ResourceId, by: impl FnOnce() -> (Name, Site)) {
        let from = self.scratch.former_owner.take();
        let Some((pool, block)) = self.known(resource).and_then(|known| known.memory.block) else { return };
        let (pool, bytes) = (self.pools.get(pool), block.bytes);
        let (pool, (name, site)) = ((pool.place, pool.kind), by());
        self.scratch.allocated.push(Allocated { resource, pool, bytes, from, name, site });
    }

    /// The whole list is prepared, at this time: its memory counts.
    #[cold]
    #[inline(never)]
    pub(crate) fn note_prepared(&mut self, at: u64) {
        self.notes.now = at;
        let memory = &mut self.notes.memory;
        self.scratch.allocated.drain(..).for_each(|allocated| memory.allocated(allocated, at));
    }

    /// Notes that the memory of a resource may be given to others.
    #[cold]
    #[inline(never)]
    pub(crate) fn note_freed(&mut self, resource: ResourceId) {
        if let Some(Some(known)) = self.resources.get(resource.index())
            && known.memory.block.is_some()
        {
            self.notes.memory.freed(resource, self.notes.now);
        }
    }

    /// Notes the instructions that were just submitted: so many, the last of all so far.
    #[cold]
    #[inline(never)]
    pub(crate) fn note_submitted(&mut self, count: u64, site: Site, timeline: &Timeline) {
        if count == 0 || self.notes.submissions.len() >= MOST {
            return;
        }
        let (thread, name) = this_thread();
        let (first, began) = (self.submitted + 1 - count, self.notes.began);
        let ended = timeline.now();
        self.notes.submissions.push(Submission { thread, name, site, first, count, began, ended });
    }
}
