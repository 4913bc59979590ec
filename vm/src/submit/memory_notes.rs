//! What submissions note for a trace of the memory that they give to resources and get back.
//!
//! A resource is given memory while its list is prepared, and may lose it again if the list is refused. So that is noted aside, and the trace has it once nothing can be refused.

use streamvm_ep::Site;
use streamvm_instructions::{Instruction, ResourceId};

use crate::execute::environment::Environment;
use crate::submit::state::State;
use crate::tasks::timeline::{Event, Name, Timeline, Took};

impl State {
    /// Notes that an instruction gives memory to a new resource, which was that of `from` if the list itself releases it.
    #[inline]
    pub(crate) fn note_taken_by(
        &mut self,
        resource: ResourceId,
        from: Option<ResourceId>,
        instruction: &Instruction,
        env: &Environment,
    ) {
        if env.timeline.is_some() {
            self.note_taken(resource, from, (Name::of(&instruction.kind), instruction.site));
        }
    }

    /// [`State::note_taken_by`], by the name and line of who asked for the memory.
    #[cold]
    pub(crate) fn note_taken(&mut self, resource: ResourceId, from: Option<ResourceId>, (name, site): (Name, Site)) {
        let Some((pool, block)) = self.known(resource).and_then(|known| known.memory.block) else { return };
        let pool = self.pools.get(pool);
        let (place, kind, reserved) = (pool.place, pool.kind, pool.allocator.stats().reserved);
        self.scratch.took.push(Took { resource, place, kind, bytes: block.bytes, reserved, from, name, site, at: 0 });
    }

    /// Tells the trace what was noted: nothing of the list is refused any more.
    pub(crate) fn publish_taken(&mut self, timeline: &Timeline) {
        if self.scratch.took.is_empty() {
            return;
        }
        let at = timeline.now();
        self.scratch.took.drain(..).for_each(|took| timeline.memory.add(Event::Took(Took { at, ..took })));
    }

    /// Tells the trace that the memory of a resource may be given to others.
    #[inline]
    pub(crate) fn note_freed(&self, resource: ResourceId, env: &Environment) {
        if let Some(timeline) = &env.timeline
            && let Some(Some(known)) = self.resources.get(resource.index())
            && known.memory.block.is_some()
        {
            timeline.memory.add(Event::Gave { resource, at: timeline.now() });
        }
    }
}
