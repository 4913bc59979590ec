//! Memory of tensors, lent to code outside of the engine.

use std::sync::atomic::{AtomicPtr, Ordering};

use streamvm_ep::Site;
use streamvm_instructions::{Error, ResourceId, Tensor};

use crate::engine::handle::EngineGuard;
use crate::submit::state::State;
use crate::tasks::memory::{Base, Memory};
use crate::tasks::resource::Contents;
use crate::vm::Vm;

/// The memory of a tensor while code outside of the engine reads it, such as another library: see [`Vm::lend`].
///
/// It keeps the memory, also when all handles of the tensor and the engine are gone. Any thread may use and drop it. A drop blocks for a short lock; that of the last reference to an engine that
/// has ended frees the engine's memory.
pub struct Lent {
    tensor: Tensor,
    /// Never changed: this type may be shared by threads.
    first: AtomicPtr<u8>,
    /// `None` for a tensor without elements.
    id: Option<ResourceId>,
    engine: EngineGuard,
}

const _: () = {
    const fn may_be_used_on_any_thread<T: Send + Sync>() {}
    may_be_used_on_any_thread::<Lent>();
};

impl Vm {
    /// Lends the memory of `tensor` to code outside of the engine that reads it. From now on until all [`Lent`]s of its storage are dropped, no instruction can write or release anything in that
    /// storage, on whatever stream: such a submission is refused ([`Error::Lent`]). What was submitted before goes on, and so do instructions that read. Never blocks but for a short
    /// lock; [`Lent::wait`] waits until the tensor is written.
    ///
    /// The race detector knows nothing of what such code reads. Drop the `Lent` when that is over: on a GPU, once its commands have passed.
    ///
    /// ```
    /// # fn main() -> Result<(), streamvm::Error> {
    /// use streamvm::{DeviceId, Error, Vm};
    /// let vm = Vm::builder().build()?;
    /// let x = vm.from_slice_on(DeviceId::cpu(0), &[1.0f32, 2.0, 3.0], &[3])?;
    /// let lent = vm.lend(&x.slice(0, 1..3)?)?;
    /// let address = lent.wait()?.cast::<f32>();
    /// // SAFETY: the view has two elements, which nothing writes while they are lent.
    /// let elements = unsafe { std::slice::from_raw_parts(address, 2) };
    /// assert_eq!(elements, [2.0, 3.0]);
    /// assert!(matches!(x.fill(0.0), Err(Error::Lent { .. })));
    /// drop(lent);
    /// x.fill(0.0)
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::NeverWritten`], [`Error::Released`], [`Error::Foreign`]; [`Error::Forked`] in a forked child.
    #[track_caller]
    pub fn lend(&self, tensor: &Tensor) -> Result<Lent, Error> {
        let (engine, resource, site) = (&self.engine, tensor.resource(), Site::caller());
        if engine.handle.fork.is_child() {
            return Err(Error::forked().called_from(site));
        }
        let lent = |id, Base(first)| Lent {
            tensor: tensor.clone(),
            first: AtomicPtr::new(first),
            id,
            engine: EngineGuard::of(engine),
        };
        if tensor.storage_bytes() == 0 {
            return Ok(lent(None, Memory::none().base()));
        }
        let (what, operand) = ("lend".to_owned(), tensor.described());
        let mut state = engine.handle.lock();
        // Under the lock: the number of a tensor whose list is being submitted may be a draft, and go to another tensor.
        let id = match resource.id_in(engine.me) {
            Ok(id) => id,
            Err(_) => return Err(resource.foreign(0, what, operand, site)),
        };
        let Some(id) = id else { return Err(Error::NeverWritten { line: 0, what, operand, site }) };
        let Some(known) = state.known(id) else { return Err(Error::Released { line: 0, what, operand, site }) };
        match known.contents {
            Contents::Written => known.contents = Contents::Lent,
            Contents::Lent => {}
            Contents::Fresh => return Err(Error::NeverWritten { line: 0, what, operand, site }),
            Contents::Released => return Err(Error::Released { line: 0, what, operand, site }),
        }
        let Base(base) = known.memory.base();
        *state.loans.entry(id).or_default() += 1;
        resource.note_written(engine.me, false);
        Ok(lent(Some(id), Base(base.wrapping_add(tensor.layout().offset() * tensor.dtype().size()))))
    }
}

impl Lent {
    /// The tensor, or the view, that is lent.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// Waits until the tensor is written; returns the address of its first element, in the memory of the tensor's place: that of a device if the tensor is there. Elements lie at the strides of
    /// the tensor's layout. Of a tensor without elements, an address that must not be read.
    ///
    /// # Errors
    /// The failure of what should have written it; those of waits ([`Tensor::wait`]).
    #[track_caller]
    pub fn wait(&self) -> Result<*const u8, Error> {
        if self.id.is_some() {
            let site = Site::caller();
            self.tensor.wait().map_err(|error| error.called_from(site))?;
        }
        Ok(self.first.load(Ordering::Relaxed))
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let engine = &*self.engine;
        let Some(id) = self.id.filter(|_| !engine.handle.fork.is_child()) else { return };
        let mut inside = engine.handle.lock();
        let state: &mut State = &mut inside;
        match state.loans.get_mut(&id) {
            Some(loans) if *loans > 1 => *loans -= 1,
            _ => {
                state.loans.remove(&id);
                state.known(id).into_iter().for_each(|known| known.contents = Contents::Written);
                self.tensor.resource().note_written(engine.me, true);
            }
        }
    }
}
