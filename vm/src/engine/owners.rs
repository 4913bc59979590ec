//! The owners of memory that tensors lie over ([`Vm::adopt`](crate::Vm::adopt)). Each is dropped on the callback thread, once no instruction reads its memory any more.

use std::any::Any;
use std::sync::{Arc, Weak};

use hashbrown::HashMap;
use streamvm_ep::Site;
use streamvm_instructions::{Dependence, Error, ResourceId, Tensor};

use crate::engine::core::Engine;
use crate::engine::handle::EngineGuard;
use crate::sync::fork::refuse_in_child;
use crate::sync::{Mutex, unpoisoned};
use crate::tasks::memory::Memory;
use crate::tasks::resource::{Contents, Known};

/// What keeps memory alive that the engine does not own.
pub(crate) type MemoryOwner = Box<dyn Any + Send>;

/// The owners of an engine, by the resources over their memory.
#[derive(Default)]
pub(crate) struct Owners(Mutex<HashMap<ResourceId, (MemoryOwner, Weak<Engine>)>>);

impl Owners {
    fn keep(&self, id: ResourceId, owner: MemoryOwner, engine: &Arc<Engine>) {
        unpoisoned(self.0.lock()).insert(id, (owner, Arc::downgrade(engine)));
    }

    /// The last handle of a resource is gone. If its memory has an owner, the engine frees the resource; returns false if the caller must.
    pub(crate) fn release(&self, id: ResourceId) -> bool {
        let taken = unpoisoned(self.0.lock()).remove(&id);
        let Some((owner, engine)) = taken else { return false };
        // Without the engine, nothing reads the memory, and the owner is dropped here.
        let Some(engine) = engine.upgrade() else { return false };
        let (callbacks, engine) = (engine.callbacks.clone(), EngineGuard::of(&engine));
        // The thread that drops a handle may hold any lock of its caller.
        callbacks.run(Box::new(move || engine.give_back(id, owner)));
        true
    }

    /// All owners, at the end of the engine.
    pub(crate) fn take(&self) -> HashMap<ResourceId, (MemoryOwner, Weak<Engine>)> {
        std::mem::take(&mut *unpoisoned(self.0.lock()))
    }
}

impl Engine {
    /// Binds a new `tensor` to the bytes from `first` on, which `owner` keeps and which nothing writes while it lives.
    ///
    /// # Errors
    /// The engine takes no submissions; the place does not exist.
    pub(crate) fn adopt(
        self: &Arc<Self>,
        tensor: &Tensor,
        first: *const u8,
        owner: MemoryOwner,
        site: Site,
    ) -> Result<(), Error> {
        refuse_in_child(self.handle.fork)?;
        let (resource, place) = (tensor.resource(), tensor.place());
        place.device().map_or(Ok(()), |device| self.devices.get(device).map(drop))?;
        let memory = Memory::at(first.cast_mut(), tensor.storage_bytes());
        let range = memory.range();
        let id = {
            let mut state = self.handle.lock();
            self.check_open()?;
            let id = state.sync.add_dependence(Dependence::default());
            state.add_resource(id, Known { memory, contents: Contents::Lent });
            // It is lent by its owner, for good.
            state.loans.insert(id, 1);

            id
        };
        if let Some(observer) = &self.observer {
            observer.mapped(range.clone(), place, tensor.memory());
            observer.fills(id, resource, range, site);
        }
        self.handle.owners.keep(id, owner, self);
        // The caller has just made the tensor, so no other engine can have claimed it.
        if resource.claim(self.me).is_ok() {
            resource.keep(self.me, id, false);
        }
        Ok(())
    }

    /// Frees a resource without handles, and drops the owner of its memory once all that was submitted has read it.
    fn give_back(self: &Arc<Self>, id: ResourceId, owner: MemoryOwner) {
        let (range, accesses) = {
            let mut state = self.handle.lock();
            let accesses = state.sync.dependence(id).accesses();
            let range = state.known(id).map(|known| known.memory.range());
            self.observer.iter().for_each(|observer| observer.forgets(id));
            state.loans.remove(&id);
            state.free(id);
            (range, accesses)
        };
        let points: Vec<_> = accesses.iter().collect();
        let (engine, passed) = (EngineGuard::of(self), points.clone());
        self.call_back(
            points,
            Box::new(move |_| {
                if let (Some(observer), Some(range)) = (&engine.observer, range) {
                    observer.unmapped(range, passed.into_iter());
                }
                drop(owner);
            }),
        );
    }
}
