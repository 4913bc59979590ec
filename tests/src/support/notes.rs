//! An engine that only records its instructions.

use std::sync::{Arc, Mutex, OnceLock};

use streamvm::ep::Footprint;
use streamvm::instructions::{
    Batch, Callback, Deadline, Engine, EngineAddress, EngineRef, Registration, ResourceId, Single,
};
use streamvm::{Error, InstructionList, Site};

/// An engine that records the location at which each of its instructions was issued, and runs none.
#[derive(Default)]
pub struct Notes {
    notes: Mutex<Vec<(String, Site)>>,
    address: OnceLock<EngineAddress>,
    me: OnceLock<EngineRef>,
}

impl Notes {
    /// The reference by which tensors refer to this engine.
    pub fn me(&'static self) -> EngineRef {
        *self.me.get_or_init(|| EngineRef::new(self.address.get_or_init(|| EngineAddress::new(self))))
    }

    /// The instructions submitted since the last call: the name and the location of each.
    pub fn taken(&self) -> Vec<(String, Site)> {
        std::mem::take(&mut self.notes.lock().expect("not poisoned"))
    }

    fn note(&self, batch: &impl Batch) {
        let me = *self.me.get().expect("a submitter has called `me` before");
        let mut notes = self.notes.lock().expect("not poisoned");
        for instruction in batch.instructions() {
            notes.push((instruction.kind.name().to_owned(), instruction.site));
            for u in batch.uses(instruction) {
                assert!(u.resource().claim(me).is_ok());
                u.resource().keep(me, ResourceId(0), true);
            }
        }
    }
}

impl Engine for Notes {
    fn submit(&self, list: &mut InstructionList) -> Result<(), Error> {
        self.note(list);
        Ok(())
    }

    fn submit_one(&self, single: &mut Single<'_>) -> Result<(), Error> {
        self.note(single);
        Ok(())
    }

    fn wait(&self, _: ResourceId, _: Option<&Footprint>, _: Option<Deadline>, _: Site) -> Result<(), Error> {
        Ok(())
    }

    fn has_passed(&self, _: ResourceId, _: Option<&Footprint>) -> bool {
        true
    }

    fn may_wait(&self, _: Site) -> Result<(), Error> {
        Ok(())
    }

    fn is_released(&self, _: ResourceId) -> bool {
        false
    }

    fn is_forked(&self) -> bool {
        false
    }

    fn on_passed(&self, _: ResourceId, _: Option<&Footprint>, _: Callback, _: Site) {}

    fn register(&self, _: ResourceId, _: Option<&Footprint>, _: Callback, _: Site) -> Option<Arc<dyn Registration>> {
        None
    }

    fn release(&'static self, _: ResourceId) {}
}
