//! Submissions tell the trace which resources get memory and which give it back.
//!
//! A resource gets memory while its list is prepared, and loses it again if the list is refused. So this is noted aside, and told once the whole list is prepared.

use streamvm_ep::Site;
use streamvm_instructions::ResourceId;

use crate::submit::state::State;
use crate::sync::unpoisoned;
use crate::tasks::memory_use::Allocated;
use crate::tasks::timeline::{Name, Timeline};

impl State {
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

    /// Tells the trace what was noted. The caller has prepared the whole list.
    #[cold]
    #[inline(never)]
    pub(crate) fn tell_allocated(&mut self, timeline: &Timeline) {
        if self.scratch.allocated.is_empty() {
            return;
        }
        let mut memory = unpoisoned(timeline.memory.lock());
        let at = timeline.now();
        self.scratch.allocated.drain(..).for_each(|allocated| memory.allocated(allocated, at));
    }

    /// Tells the trace that the memory of a resource may be given to others.
    #[cold]
    #[inline(never)]
    pub(crate) fn tell_freed(&self, resource: ResourceId, timeline: &Timeline) {
        if let Some(Some(known)) = self.resources.get(resource.index())
            && known.memory.block.is_some()
        {
            let mut memory = unpoisoned(timeline.memory.lock());
            memory.freed(resource, timeline.now());
        }
    }
}
