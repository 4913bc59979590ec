//! Memory of tensors, lent to code outside of the engine.

use streamvm_ep::Site;
use streamvm_instructions::{Error, ResourceId, Tensor};

use crate::engine::handle::EngineGuard;
use crate::tasks::memory::{Base, Memory};
use crate::tasks::resource::Contents;
use crate::vm::Vm;

/// The memory of a tensor while code outside of the engine reads it, such as another library: see [`Vm::lend`].
///
/// It keeps the memory, also when all handles of the tensor and the engine are gone. Any thread may hold and drop it; a drop blocks for a short lock only.
pub struct Lent {
    tensor: Tensor,
    first: Base,
    /// `None` for a tensor without elements.
    id: Option<ResourceId>,
    engine: EngineGuard,
}

const _: () = {
    const fn may_be_dropped_on_any_thread<T: Send>() {}
    may_be_dropped_on_any_thread::<Lent>();
};

impl Vm {
    /// Waits until `tensor` is written, and lends its memory to code outside of the engine that reads it. Until all [`Lent`]s of its storage are dropped, no instruction can write or
    /// release that storage, on whatever stream: such a submission is refused ([`Error::Lent`]). Instructions that read it go on.
    ///
    /// The race detector knows nothing of what such code reads.
    ///
    /// ```
    /// # fn main() -> Result<(), streamvm::Error> {
    /// use streamvm::{DeviceId, Error, Vm};
    /// let vm = Vm::builder().build()?;
    /// let x = vm.from_slice_on(DeviceId::cpu(0), &[1.0f32, 2.0, 3.0], &[3])?;
    /// let lent = vm.lend(&x.slice(0, 1..3)?)?;
    /// // SAFETY: the view has two elements, which nothing writes while they are lent.
    /// let elements = unsafe { std::slice::from_raw_parts(lent.as_ptr().cast::<f32>(), 2) };
    /// assert_eq!(elements, [2.0, 3.0]);
    /// assert!(matches!(x.fill(0.0), Err(Error::Lent { .. })));
    /// drop(lent);
    /// x.fill(0.0)
    /// # }
    /// ```
    ///
    /// # Errors
    /// The failure of what should have written it; [`Error::NeverWritten`], [`Error::Released`], [`Error::Foreign`]; those of waits ([`Tensor::wait`]).
    #[track_caller]
    pub fn lend(&self, tensor: &Tensor) -> Result<Lent, Error> {
        let site = Site::caller();
        let engine = &self.engine;
        engine.may_wait()?;
        let lent = |id, first| Lent { tensor: tensor.clone(), first, id, engine: EngineGuard::of(engine) };
        let (what, operand) = (|| "lend".to_owned(), || tensor.described());
        let foreign = |_| tensor.resource().foreign(0, what(), operand(), site);
        let never_written = || Error::NeverWritten { line: 0, what: what(), operand: operand(), site };
        let Some(id) = tensor.resource().id_in(engine.me).map_err(foreign)? else {
            let is_empty = tensor.storage_bytes() == 0;
            return if is_empty { Ok(lent(None, Memory::none().base())) } else { Err(never_written()) };
        };
        let first = {
            let mut state = engine.handle.lock();
            let known = state.known(id);
            let released = || Error::Released { line: 0, what: what(), operand: operand(), site };
            let known = known.ok_or_else(released)?;
            known.contents = match known.contents {
                Contents::Written => Contents::Lent(1),
                Contents::Lent(times) => Contents::Lent(times + 1),
                Contents::Fresh => return Err(never_written()),
                Contents::Released => return Err(released()),
            };
            tensor.resource().note_written(engine.me, false);
            let Base(base) = known.memory.base();
            Base(base.wrapping_add(tensor.layout().offset() * tensor.dtype().size()))
        };
        let lent = lent(Some(id), first);
        // After it is lent: no write comes after those that are waited for.
        tensor.wait().map_err(|error| error.called_from(site))?;
        Ok(lent)
    }
}

impl Lent {
    /// The tensor, or the view, that is lent.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// The address of the first element, in the memory of the tensor's place: that of a device if the tensor is there. Elements lie at the strides of the tensor's layout. Of a tensor without
    /// elements, an address that must not be read.
    pub fn as_ptr(&self) -> *const u8 {
        self.first.0
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let engine = &*self.engine;
        let Some(id) = self.id.filter(|_| !engine.handle.fork.is_child()) else { return };
        let mut state = engine.handle.lock();
        if let Some(known) = state.known(id)
            && let Contents::Lent(times) = known.contents
        {
            let is_last = times == 1;
            known.contents = if is_last { Contents::Written } else { Contents::Lent(times - 1) };
            if is_last {
                self.tensor.resource().note_written(engine.me, true);
            }
        }
    }
}
