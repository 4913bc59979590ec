//! The eager calls of a tensor. Each submits one instruction, or a short list, to the engine that the tensor is bound to, on the
//! thread's current [`Lane`](crate::Lane).
//!
//! Only [`Tensor::to_vec`], [`Tensor::to_scalar`] and the `wait` calls wait for the work. Any call may block while the engine's queue is
//! full, but no longer than the thread's [`TimeLimit`](crate::TimeLimit) allows.

use std::sync::{Arc, Mutex, PoisonError};

use streamvm_ep::{Element, FnContext, FnError, Op, Params, Scalar, Site};
use streamvm_stream::{StreamKey, StreamType};

use crate::builder::instructions_builder::{InstructionsBuilder, output_of};
use crate::eager::passed::Passed;
use crate::engine::interface::{EngineRef, ResourceId};
use crate::engine::time_limit::Deadline;
use crate::error::build_error::BuildError;
use crate::error::engine_error::Error;
use crate::lane::Lane;
use crate::list::batch::Single;
use crate::place::Place;
use crate::tensor::handle::Tensor;
use crate::tensor::reach::Home;
use crate::tensor::var::Var;

impl Tensor {
    /// The engine that this tensor is bound to, and its number there.
    #[track_caller]
    pub(super) fn engine(&self) -> Result<(EngineRef, ResourceId), Error> {
        // A match, not `ok_or`: `ok_or` would build the error in any case, and drop it in the usual case.
        match self.resource().bound() {
            Some(bound) => Ok(bound),
            None => Err(Error::NotSubmitted { operand: self.described(), site: Site::caller() }),
        }
    }

    #[track_caller]
    pub(super) fn submit(&self, builder: InstructionsBuilder) -> Result<(), Error> {
        let (engine, _) = self.engine()?;
        engine.get().submit(&mut builder.finish())
    }

    /// Runs `op` with this tensor as the first input that is a tensor. Numbers among the inputs are in the parameters ([`Params::with_number`]).
    ///
    /// # Errors
    /// The inputs do not fit the op; the engine refused the instruction (out of memory, shut down).
    #[track_caller]
    pub fn op(&self, op: Op, others: &[&Tensor], params: Params) -> Result<Tensor, Error> {
        match others {
            [] => self.op_over(op, &[self], params),
            [second] => self.op_over(op, &[self, second], params),
            [second, third] => self.op_over(op, &[self, second, third], params),
            _ => {
                let inputs: Vec<&Tensor> = std::iter::once(self).chain(others.iter().copied()).collect();
                self.op_over(op, &inputs, params)
            }
        }
    }

    /// Runs `op` over these tensors, in the engine of this one.
    #[track_caller]
    pub(super) fn op_over(&self, op: Op, inputs: &[&Tensor], params: Params) -> Result<Tensor, Error> {
        let (device, output) = match output_of(op, inputs, &params, StreamType::Compute) {
            Ok(checked) => checked,
            Err(refused) => return self.op_with_transfers(op, inputs, params, refused),
        };
        let (engine, _) = self.engine()?;
        let stream = StreamKey::new(device, StreamType::Compute, Lane::current().0);
        let uses = inputs.iter().map(|input| input.read()).chain([output.write()]);
        Single::submit_op(stream, (op, &params), uses, Site::caller(), |single| engine.get().submit_one(single))?;
        Ok(output)
    }

    #[cold]
    #[track_caller]
    fn op_with_transfers(
        &self,
        op: Op,
        inputs: &[&Tensor],
        params: Params,
        refused: BuildError,
    ) -> Result<Tensor, Error> {
        let mut builder = InstructionsBuilder::for_calls_on(self);
        let output = builder.op_with_transfers(op, inputs, params, refused)?;
        self.submit(builder)?;
        Ok(output)
    }

    /// Copies the tensor to `place`, on the copy stream between its place and the new one.
    ///
    /// # Errors
    /// The engine refused the copy: no such device, out of memory, shut down.
    #[track_caller]
    pub fn to(&self, place: impl Into<Place>) -> Result<Tensor, Error> {
        let mut builder = InstructionsBuilder::for_calls_on(self);
        let copy = builder.copy(self, place)?;
        self.submit(builder)?;
        Ok(copy)
    }

    /// Overwrites the elements of this tensor, which may be a view, with those of `source`, which has the same shape and dtype and may live
    /// elsewhere. Calls issued later on this tensor see the new elements.
    ///
    /// # Errors
    /// As [`InstructionsBuilder::copy_into`]; [`Error::NotSubmitted`] if nothing has written this tensor so far; the engine refused the copy:
    /// shut down.
    #[track_caller]
    pub fn copy_from(&self, source: &Tensor) -> Result<(), Error> {
        let mut builder = InstructionsBuilder::for_calls_on(self);
        builder.copy_into(source, self)?;
        self.submit(builder)
    }

    /// Sets every element of this tensor, which may be a view, to `value`. Calls issued later on this tensor see the new elements.
    ///
    /// # Errors
    /// As [`InstructionsBuilder::fill`]; [`Error::NotSubmitted`] if nothing has written this tensor so far; the engine refused the fill: shut
    /// down.
    #[track_caller]
    pub fn fill(&self, value: impl Into<Scalar>) -> Result<(), Error> {
        let mut builder = InstructionsBuilder::for_calls_on(self);
        builder.fill(self, value)?;
        self.submit(builder)
    }

    /// Overwrites the elements of this tensor, which may be a view, with `elements` in row-major order. They are copied before this call returns. Calls issued
    /// later on this tensor see the new elements.
    ///
    /// # Errors
    /// [`BuildError::Length`] of another number of elements, [`Error::WrongDType`] of elements of another dtype; as [`Tensor::copy_from`].
    #[track_caller]
    pub fn overwrite_from_slice<T: Element>(&self, elements: &[T]) -> Result<(), Error> {
        self.check_elements_are::<T>()?;
        if self.numel() != elements.len() {
            let (dtype, elements, shape) = (self.dtype(), elements.len(), Box::new(self.shape()));
            let error = BuildError::Length { dtype, elements, shape };
            return Err(Error::Build { error, call: Some("overwrite_from_slice"), site: Site::caller() });
        }
        let elements = elements.to_vec();
        let mut builder = InstructionsBuilder::for_calls_on(self);
        let write = move |context: &mut FnContext<'_>| -> Result<(), FnError> {
            context.writes.take::<T>(0)?.copy_from_slice(&elements);
            Ok(())
        };
        if Home::of(self) == Home::Pageable && self.layout().is_contiguous() {
            let device = self.device().unwrap_or(streamvm_ep::DeviceId::cpu(0));
            builder.call_fn("overwrite", device, [self.write()], write)?;
        } else {
            let staged = builder.allocate(Place::Host, self.dtype(), self.dims())?;
            builder.call_fn("overwrite", streamvm_ep::DeviceId::cpu(0), [staged.write()], write)?;
            builder.copy_into(&staged, self)?;
        }
        self.submit(builder)
    }

    /// A new tensor of this dtype and shape at this place, with every element 0, or `false`.
    ///
    /// # Errors
    /// The engine refused the fill: out of memory, shut down.
    #[track_caller]
    pub fn zeros_like(&self) -> Result<Tensor, Error> {
        self.filled_like(Scalar::zero(self.dtype()))
    }

    /// A new tensor of this dtype and shape at this place, with every element 1, or `true`.
    ///
    /// # Errors
    /// As [`Tensor::zeros_like`].
    #[track_caller]
    pub fn ones_like(&self) -> Result<Tensor, Error> {
        self.filled_like(Scalar::one(self.dtype()))
    }

    #[track_caller]
    fn filled_like(&self, value: Scalar) -> Result<Tensor, Error> {
        let mut builder = InstructionsBuilder::for_calls_on(self);
        let filled = builder.full(self.place(), self.dtype(), self.dims(), value)?;
        self.submit(builder)?;
        Ok(filled)
    }

    /// This tensor, if its elements lie in row-major order without gaps; else a copy for which that holds.
    ///
    /// # Errors
    /// The engine refused the copy.
    #[track_caller]
    pub fn contiguous(&self) -> Result<Tensor, Error> {
        if self.layout().is_contiguous() { Ok(self.clone()) } else { self.to(self.place()) }
    }

    /// The same elements in another shape: a view where the strides allow it, else a copy.
    ///
    /// # Errors
    /// The number of elements differs, or the engine refused the copy.
    #[track_caller]
    pub fn reshape(&self, shape: &[usize]) -> Result<Tensor, Error> {
        if let Some(view) = self.try_reshape(shape)? {
            return Ok(view);
        }
        let copy = self.to(self.place())?;
        let view = copy.try_reshape(shape)?;
        Ok(view.unwrap_or(copy))
    }

    /// Copies tensors one after the other along `axis` into a new tensor, at the place of the first: see
    /// [`InstructionsBuilder::cat`].
    ///
    /// # Errors
    /// The tensors do not fit, or the engine of the first refused the copies.
    #[track_caller]
    pub fn cat(tensors: &[&Tensor], axis: usize) -> Result<Tensor, Error> {
        let mut builder =
            tensors.first().map_or_else(InstructionsBuilder::new, |first| InstructionsBuilder::for_calls_on(first));
        let joined = builder.cat(tensors, axis)?;
        tensors[0].submit(builder)?;
        Ok(joined)
    }

    /// Copies tensors of one shape into a new tensor that has one more axis before `axis`: see [`InstructionsBuilder::stack`].
    ///
    /// # Errors
    /// As [`Tensor::cat`].
    #[track_caller]
    pub fn stack(tensors: &[&Tensor], axis: usize) -> Result<Tensor, Error> {
        let mut builder =
            tensors.first().map_or_else(InstructionsBuilder::new, |first| InstructionsBuilder::for_calls_on(first));
        let joined = builder.stack(tensors, axis)?;
        tensors[0].submit(builder)?;
        Ok(joined)
    }

    /// Blocks until the last submitted writes of this tensor's elements have passed; it does not wait for writes of other parts of
    /// the storage. Without a [`TimeLimit`](crate::TimeLimit), the calling thread may run kernels, copies, fills
    /// and programs of CPU streams meanwhile, but never functions.
    ///
    /// # Errors
    /// The first failure among those writes, with its root cause, on every call; [`Error::WouldDeadlock`] on a thread of an engine;
    /// [`Error::Shutdown`] where the engine is gone and a write never passes.
    #[track_caller]
    pub fn wait(&self) -> Result<(), Error> {
        let (engine, id) = self.engine()?;
        engine.get().wait(id, self.part_of_storage().as_ref(), Deadline::current(), Site::caller())
    }

    /// Whether the last submitted writes of this tensor's elements have passed, failed or not; [`wait`](Tensor::wait) tells the outcome. `false` for a tensor that no
    /// submission has used, or of a recording. Never blocks; may be called on any thread. In `Mode::Simulated` nothing runs meanwhile: only waits step the engine.
    pub fn is_ready(&self) -> bool {
        let part = self.part_of_storage();
        self.resource().bound().is_some_and(|(engine, id)| engine.get().has_passed(id, part.as_ref()))
    }

    /// Calls `callback` once the last submitted writes of this tensor's elements have passed, on a thread made for callbacks.
    ///
    /// # Errors
    /// [`Error::NotSubmitted`]; [`Error::Forked`]. In both cases the callback is dropped without being called.
    #[track_caller]
    pub fn on_passed(&self, callback: impl FnOnce(Result<(), Error>) + Send + 'static) -> Result<(), Error> {
        let (engine, id) = self.engine()?;
        if engine.get().is_forked() {
            return Err(Error::forked());
        }
        engine.get().on_passed(id, self.part_of_storage().as_ref(), Box::new(callback), Site::caller());
        Ok(())
    }

    /// Returns a future of [`Tensor::wait`], for any executor. Dropping the future cancels no work.
    ///
    /// # Errors
    /// As [`Tensor::on_passed`].
    #[track_caller]
    pub fn ready(&self) -> Result<Passed, Error> {
        let (engine, id) = self.engine()?;
        if engine.get().is_forked() {
            return Err(Error::forked());
        }
        let (part, site) = (self.part_of_storage(), Site::caller());
        Ok(Passed::new(engine, |callback| engine.get().register(id, part.as_ref(), callback, site)))
    }

    /// Copies the elements out, in row-major order. Blocks until they are written, as [`Tensor::wait`] does.
    ///
    /// # Errors
    /// [`Error::WrongDType`]; the errors of [`Tensor::wait`]. On a thread of an engine nothing is submitted.
    #[track_caller]
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, Error> {
        self.check_elements_are::<T>()?;
        self.read_out(|context| Ok(context.reads.get::<T>(0)?.to_vec()))
    }

    /// The only element. Blocks until it is written, as [`Tensor::wait`] does.
    ///
    /// # Errors
    /// [`BuildError::NotScalar`] if the tensor has another number of elements; those of [`Tensor::to_vec`]. Waits for nothing then.
    #[track_caller]
    pub fn to_scalar<T: Element>(&self) -> Result<T, Error> {
        self.check_elements_are::<T>()?;
        if self.numel() != 1 {
            return Err(BuildError::NotScalar { shape: Box::new(self.shape()) }.into());
        }
        let elements = self.to_vec::<T>()?;
        Ok(elements[0])
    }

    #[track_caller]
    fn check_elements_are<T: Element>(&self) -> Result<(), Error> {
        if self.dtype() == T::DTYPE {
            return Ok(());
        }
        let shape = Box::new(self.shape());
        Err(Error::WrongDType { found: self.dtype(), shape, asked: T::DTYPE, site: Site::caller() })
    }

    /// Submits a copy of the elements out, in row-major order, and returns at once; [`Reading::into_elements`] waits for them. So several tensors are read beside each
    /// other, and a wait with a [`TimeLimit`](crate::TimeLimit) can be tried again.
    ///
    /// # Errors
    /// As [`Tensor::to_vec`], but for those of the wait.
    #[track_caller]
    pub fn start_read<T: Element>(&self) -> Result<Reading<Vec<T>>, Error> {
        self.check_elements_are::<T>()?;
        self.start(|context| Ok(context.reads.get::<T>(0)?.to_vec()))
    }

    /// Runs `read` over this tensor's elements on its stream, blocks until it has run, and returns its result.
    #[track_caller]
    pub(super) fn read_out<T: Send + 'static>(
        &self,
        read: impl FnOnce(&mut FnContext<'_>) -> Result<T, FnError> + Send + 'static,
    ) -> Result<T, Error> {
        self.start(read)?.into_elements()
    }

    #[track_caller]
    fn start<T: Send + 'static>(
        &self,
        read: impl FnOnce(&mut FnContext<'_>) -> Result<T, FnError> + Send + 'static,
    ) -> Result<Reading<T>, Error> {
        let site = Site::caller();
        self.engine()?.0.get().may_wait(site)?;
        let mut builder = InstructionsBuilder::for_calls_on(self);
        let reachable = Home::of(self) == Home::Pageable;
        let copy = match (reachable, self.layout().is_contiguous()) {
            (true, true) => None,
            (true, false) => Some(builder.copy(self, self.place())?),
            (false, _) => Some(builder.copy(self, Place::Host)?),
        };
        let source = copy.as_ref().unwrap_or(self);
        let result = Arc::new(Mutex::new(None));
        let sent = result.clone();
        // The function writes a fresh variable, so waiting for the variable waits for exactly this read, and returns its failure.
        let read_over = Var::new();
        let device = source.place().device().unwrap_or(streamvm_ep::DeviceId::cpu(0));
        builder.call_fn("read back", device, [source.read(), read_over.write()], move |context| {
            *sent.lock().unwrap_or_else(PoisonError::into_inner) = Some(read(context)?);
            Ok(())
        })?;
        self.engine()?.0.get().submit_read(&mut builder.finish())?;
        Ok(Reading { over: read_over, result })
    }
}

/// A copy of elements that is under way; made by [`Tensor::start_read`].
#[derive(Debug)]
pub struct Reading<T> {
    over: Var,
    result: Arc<Mutex<Option<T>>>,
}

impl<T> Reading<T> {
    /// Blocks until the elements are there, as [`Tensor::wait`] does. It may be called again.
    ///
    /// # Errors
    /// As [`Tensor::wait`].
    #[track_caller]
    pub fn wait(&self) -> Result<(), Error> {
        let site = Site::caller();
        // The list of the read has bound it.
        let (engine, id) = self.over.resource().bound().ok_or(Error::Shutdown { site })?;
        engine.get().wait(id, None, Deadline::current(), site)
    }

    /// The elements. Blocks until they are there.
    ///
    /// # Errors
    /// As [`Reading::wait`].
    #[track_caller]
    pub fn into_elements(self) -> Result<T, Error> {
        self.wait()?;
        let value = self.result.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The wait returned Ok, so the closure ran to its end and stored the value.
        value.ok_or(Error::Shutdown { site: Site::caller() })
    }
}
