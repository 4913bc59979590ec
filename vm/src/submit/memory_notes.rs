//! Submissions tell the trace which resources get memory and which give it back.
//!
//! A resource gets memory while its list is prepared, and loses it again if the list is refused. So this is noted aside, and told once the whole list is prepared.

use streamvm_ep::Site;
use streamvm_instructions::{Instruction, ResourceId};

use crate::execute::environment::Environment;
use crate::submit::state::State;
use crate::sync::unpoisoned;
use crate::tasks::memory_use::Allocated;
use crate::tasks::timeline::{Name, Timeline};

impl State {
    /// Notes that a new resource of an instruction gets memory. Until then it was the memory of `from`, if the list itself releases that.
    #[inline]
    pub(crate) fn note_allocated_by(
        &mut self,
        resource: ResourceId,
        from: Option<ResourceId>,
        instruction: &Instruction,
        env: &Environment,
    ) {
        if env.timeline.is_some() {
            self.note_allocated(resource, from, (Name::of(&instruction.kind), instruction.site));
        }
    }

    /// [`State::note_allocated_by`], by the name and line of who asked for the memory.
    #[cold]
    pub(crate) fn note_allocated(
        &mut self,
        resource: ResourceId,
        from: Option<ResourceId>,
        (name, site): (Name, Site),
    ) {
        let Some((pool, block)) = self.known(resource).and_then(|known| known.memory.block) else { return };
        let (pool, bytes) = (self.pools.get(pool), block.bytes);
        let pool = (pool.place, pool.kind);
        self.scratch.allocated.push(Allocated { resource, pool, bytes, from, name, site });
    }

    /// Tells the trace what was noted. The caller has prepared the whole list.
    pub(crate) fn tell_allocated(&mut self, timeline: &Timeline) {
        if self.scratch.allocated.is_empty() {
            return;
        }
        let (at, mut memory) = (timeline.now(), unpoisoned(timeline.memory.lock()));
        self.scratch.allocated.drain(..).for_each(|allocated| memory.allocated(allocated, at));
    }

    /// Tells the trace that the memory of a resource may be given to others.
    #[inline]
    pub(crate) fn tell_freed(&self, resource: ResourceId, env: &Environment) {
        if let Some(timeline) = &env.timeline
            && let Some(Some(known)) = self.resources.get(resource.index())
            && known.memory.block.is_some()
        {
            unpoisoned(timeline.memory.lock()).freed(resource, timeline.now());
        }
    }
}
