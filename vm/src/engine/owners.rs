//! The owners of memory that tensors lie over ([`Vm::adopt`](crate::Vm::adopt)). Each is dropped on the callback thread, once no instruction reads its memory any more, or at the end of the engine.
//!
//! The drop of a last handle only notes that, and queues [`Engine::give_back`] with a weak reference: the thread may hold any lock of its caller, so it must drop neither an owner nor an engine. An engine that
//! ends before takes all owners, and counts the resources that were noted as released.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};

use hashbrown::HashMap;
use streamvm_ep::Site;
use streamvm_instructions::{Dependence, Error, ResourceId, Tensor};

use crate::engine::core::Engine;
use crate::engine::handle::EngineGuard;
use crate::progress::callbacks::Callbacks;
use crate::sync::fork::refuse_in_child;
use crate::sync::panics::panic_text;
use crate::sync::{Mutex, unpoisoned};
use crate::tasks::memory::Memory;
use crate::tasks::resource::{Contents, Known};

/// A value that keeps memory which the engine does not own.
pub(crate) type MemoryOwner = Box<dyn Any + Send + Sync>;

struct Kept {
    owner: MemoryOwner,
    engine: Weak<Engine>,
    callbacks: Arc<Callbacks>,
    /// The last handle of the resource is gone.
    released: bool,
}

/// The owners of an engine, by the resources over their memory.
#[derive(Default)]
pub(crate) struct Owners(Mutex<HashMap<ResourceId, Kept>>);

impl Owners {
    /// The last handle of a resource is gone. If its memory has an owner, the engine frees the resource; returns false if the caller must.
    pub(crate) fn release(&self, id: ResourceId) -> bool {
        let (engine, callbacks) = {
            let mut owners = unpoisoned(self.0.lock());
            let Some(kept) = owners.get_mut(&id) else { return false };
            kept.released = true;
            (kept.engine.clone(), kept.callbacks.clone())
        };
        callbacks.run_elsewhere(Box::new(move || {
            if let Some(engine) = engine.upgrade() {
                engine.give_back(id);
            }
        }));
        true
    }

    /// All owners, at the end of the engine, with the resources that are released and not freed.
    pub(crate) fn take(&self) -> (Left, Vec<ResourceId>) {
        let owners = std::mem::take(&mut *unpoisoned(self.0.lock()));
        let released = owners.iter().filter(|(_, kept)| kept.released).map(|(id, _)| *id).collect();
        (Left(owners.into_values().map(|kept| kept.owner).collect()), released)
    }
}

/// The owners that an engine had at its end. Their drops are callers' code, whose panics are logged.
#[derive(Default)]
pub(crate) struct Left(Vec<MemoryOwner>);

impl Drop for Left {
    fn drop(&mut self) {
        for owner in self.0.drain(..) {
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(owner))) {
                log::error!("the owner of a tensor's memory panicked: {}", panic_text(payload));
            }
        }
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
        let kept = Kept { owner, engine: Arc::downgrade(self), callbacks: self.callbacks.clone(), released: false };
        unpoisoned(self.handle.owners.0.lock()).insert(id, kept);
        // The caller has just made the tensor, so no other engine can have claimed it.
        if resource.claim(self.me).is_ok() {
            resource.keep(self.me, id, false);
        }
        Ok(())
    }

    /// Frees a resource without handles, and drops the owner of its memory once all that was submitted has read it.
    fn give_back(self: &Arc<Self>, id: ResourceId) {
        let (kept, range, accesses) = {
            let mut state = self.handle.lock();
            // Before the number goes to another resource.
            let kept = unpoisoned(self.handle.owners.0.lock()).remove(&id);
            let accesses = state.sync.dependence(id).accesses();
            let range = state.known(id).map(|known| known.memory.range());
            self.observer.iter().for_each(|observer| observer.forgets(id));
            state.loans.remove(&id);
            state.free(id);
            (kept, range, accesses)
        };
        let points: Vec<_> = accesses.iter().collect();
        let (engine, passed) = (EngineGuard::of(self), points.clone());
        self.call_back(
            points,
            Box::new(move |_| {
                if let (Some(observer), Some(range)) = (&engine.observer, range) {
                    observer.unmapped(range, passed.into_iter());
                }
                drop(kept);
            }),
        );
    }
}
