//! The eager calls of a tensor: each submits one instruction, or a list of a few, to the engine that the tensor is bound to, on the
//! lane of the thread's [`lane`](crate::lane) guard.
//!
//! None of them waits for the work, but [`Tensor::to_vec`], [`Tensor::to_bools`] and the `wait` calls. A call may block
//! while the engine's queue is full, and no longer than the thread's [`deadline`](crate::deadline) guard allows.

use std::fmt;
use std::future::Future;
use std::ops;
use std::panic::Location;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use streamvm_ep::{Axes, DType, Element, FnContext, FnError, Op, Params, Scalar};
use streamvm_stream::{StreamKey, StreamType};

use crate::builder::output_of;
use crate::engine::{EngineRef, ResourceId};
use crate::reach::Home;
use crate::{Deadline, Error, InstructionsBuilder, Place, Single, Tensor, Var, current_lane};

impl Tensor {
    fn engine(&self) -> Result<(EngineRef, ResourceId), Error> {
        // An error that is made on the way and not given would have to be dropped.
        match self.resource().bound() {
            Some(bound) => Ok(bound),
            None => Err(Error::NotSubmitted),
        }
    }

    fn submit(&self, builder: InstructionsBuilder) -> Result<(), Error> {
        let (engine, _) = self.engine()?;
        engine.get().submit(&mut builder.finish())
    }

    /// Runs `op` with this tensor as the first input.
    ///
    /// # Errors
    /// The inputs do not fit the op; the engine refused (out of memory, shut down).
    #[track_caller]
    pub fn op(&self, op: Op, others: &[&Tensor], params: Params) -> Result<Tensor, Error> {
        match others {
            [] => self.op_over(op, &[self], &params, Location::caller()),
            [second] => self.op_over(op, &[self, second], &params, Location::caller()),
            [second, third] => self.op_over(op, &[self, second, third], &params, Location::caller()),
            _ => {
                let inputs: Vec<&Tensor> = std::iter::once(self).chain(others.iter().copied()).collect();
                self.op_over(op, &inputs, &params, Location::caller())
            }
        }
    }

    fn op_over(
        &self,
        op: Op,
        inputs: &[&Tensor],
        params: &Params,
        site: &'static Location<'static>,
    ) -> Result<Tensor, Error> {
        let (device, output) = output_of(op, inputs, params, StreamType::Compute)?;
        let (engine, _) = self.engine()?;
        let stream = StreamKey::new(device, StreamType::Compute, current_lane());
        let uses = inputs.iter().map(|input| input.read()).chain([output.write()]);
        Single::submit_op(stream, (op, params), uses, site, |single| engine.get().submit_one(single))?;
        Ok(output)
    }

    /// Copies the tensor to `place`, on the copy stream between the two.
    ///
    /// # Errors
    /// The engine refused: no such device, out of memory, shut down.
    #[track_caller]
    pub fn to(&self, place: impl Into<Place>) -> Result<Tensor, Error> {
        let mut builder = InstructionsBuilder::new();
        let copy = builder.copy(self, place)?;
        self.submit(builder)?;
        Ok(copy)
    }

    /// The same elements in another shape: a view where the strides allow it, else a copy.
    ///
    /// # Errors
    /// The number of elements differs, or the engine refused the copy.
    #[track_caller]
    pub fn reshape(&self, shape: &[usize]) -> Result<Tensor, Error> {
        if let Some(view) = self.try_reshape(shape).map_err(crate::BuildError::from)? {
            return Ok(view);
        }
        let copy = self.to(self.place())?;
        let view = copy.try_reshape(shape).map_err(crate::BuildError::from)?;
        Ok(view.unwrap_or(copy))
    }

    /// Blocks until the last submitted writes of this tensor's elements have passed; writes of other parts of its storage are not waited
    /// for. Without a deadline it may run kernels, copies and fills of CPU
    /// streams in the calling thread meanwhile; never functions.
    ///
    /// # Errors
    /// The first failure among those writes, with its root cause, each time it is asked; [`Error::WouldDeadlock`] on a thread of
    /// an engine; [`Error::Shutdown`] where the engine is gone and the write never passes.
    pub fn wait(&self) -> Result<(), Error> {
        let (engine, id) = self.engine()?;
        engine.get().wait(id, self.part_of_storage().as_ref(), Deadline::current())
    }

    /// [`Tensor::wait`] for at most `timeout`.
    ///
    /// # Errors
    /// As [`Tensor::wait`]; [`Error::Timeout`] when it is not over by then.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<(), Error> {
        let (engine, id) = self.engine()?;
        engine.get().wait(id, self.part_of_storage().as_ref(), Deadline::within(timeout))
    }

    /// Calls `callback`, on a thread made for callbacks, once the last submitted writes of this tensor's elements have passed.
    ///
    /// # Errors
    /// [`Error::NotSubmitted`]; [`Error::Forked`]: the callback is dropped.
    pub fn on_passed(&self, callback: impl FnOnce(Result<(), Error>) + Send + 'static) -> Result<(), Error> {
        let (engine, id) = self.engine()?;
        if engine.get().is_forked() {
            return Err(Error::Forked);
        }
        engine.get().on_passed(id, self.part_of_storage().as_ref(), Box::new(callback));
        Ok(())
    }

    /// A future of [`Tensor::wait`], for any executor. Dropping it cancels nothing.
    ///
    /// # Errors
    /// As [`Tensor::on_passed`].
    pub fn ready(&self) -> Result<Passed, Error> {
        let (engine, _) = self.engine()?;
        let (passed, callback) = Passed::new(engine);
        self.on_passed(callback)?;
        Ok(passed)
    }

    /// Copies the elements out, in row-major order. Waits for them as [`Tensor::wait`] does.
    ///
    /// # Errors
    /// [`Error::WrongDType`]; what [`Tensor::wait`] gives. On a thread of an engine nothing is submitted.
    #[track_caller]
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, Error> {
        if self.dtype() != T::DTYPE {
            return Err(Error::WrongDType { found: self.dtype(), asked: T::DTYPE });
        }
        self.read_out(|context| Ok(context.reads.get::<T>(0)?.to_vec()))
    }

    /// [`Tensor::to_vec`] for at most `timeout`.
    ///
    /// # Errors
    /// As [`Tensor::to_vec`]; [`Error::Timeout`] when it is not over by then. A read that was queued goes on.
    #[track_caller]
    pub fn to_vec_timeout<T: Element>(&self, timeout: Duration) -> Result<Vec<T>, Error> {
        let _guard = crate::deadline(timeout);
        self.to_vec()
    }

    /// Copies the elements of a bool tensor out, in row-major order. Waits for them.
    ///
    /// # Errors
    /// [`Error::WrongDType`]; what [`Tensor::wait`] gives.
    #[track_caller]
    pub fn to_bools(&self) -> Result<Vec<bool>, Error> {
        if self.dtype() != DType::Bool {
            return Err(Error::WrongDType { found: self.dtype(), asked: DType::Bool });
        }
        self.read_out(|context| Ok(context.reads.bools(0)?.to_vec()))
    }

    /// [`Tensor::to_bools`] for at most `timeout`.
    ///
    /// # Errors
    /// As [`Tensor::to_bools`]; [`Error::Timeout`] when it is not over by then. A read that was queued goes on.
    #[track_caller]
    pub fn to_bools_timeout(&self, timeout: Duration) -> Result<Vec<bool>, Error> {
        let _guard = crate::deadline(timeout);
        self.to_bools()
    }

    /// Runs `read` over this tensor's elements on its stream, and waits for what it returns.
    #[track_caller]
    fn read_out<T: Send + 'static>(
        &self,
        read: impl FnOnce(&mut FnContext<'_>) -> Result<T, FnError> + Send + 'static,
    ) -> Result<T, Error> {
        self.engine()?.0.get().may_wait()?;
        let mut builder = InstructionsBuilder::new();
        let reachable = Home::of(self) == Home::Pageable;
        let copy = match (reachable, self.layout().is_contiguous()) {
            (true, true) => None,
            (true, false) => Some(builder.copy(self, self.place())?),
            (false, _) => Some(builder.copy(self, Place::Host)?),
        };
        let source = copy.as_ref().unwrap_or(self);
        let result = Arc::new(Mutex::new(None));
        let sent = result.clone();
        // A variable carries the outcome: waiting for it is waiting for this very read.
        let read_over = Var::new();
        let device = source.place().device().unwrap_or(streamvm_ep::DeviceId::cpu(0));
        builder.call_fn("read back", device, [source.read(), read_over.write()], move |context| {
            *sent.lock().unwrap_or_else(PoisonError::into_inner) = Some(read(context)?);
            Ok(())
        })?;
        self.submit(builder)?;
        let (engine, id) = read_over.resource().bound().ok_or(Error::NotSubmitted)?;
        engine.get().wait(id, None, Deadline::current())?;
        let value = result.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The wait returned Ok, so the closure ran to its end and left the value.
        value.ok_or(Error::Shutdown)
    }
}

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// As [`Tensor::op`].
            #[track_caller]
            pub fn $name(&self) -> Result<Tensor, Error> {
                self.op(Op::$op, &[], Params::default())
            }
        )*}
    };
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// As [`Tensor::op`].
            #[track_caller]
            pub fn $name(&self, other: &Tensor) -> Result<Tensor, Error> {
                self.op(Op::$op, &[other], Params::default())
            }
        )*}
    };
}

macro_rules! reduction {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            /// No axes: over all.
            ///
            /// # Errors
            /// As [`Tensor::op`].
            #[track_caller]
            pub fn $name(&self, axes: &[usize]) -> Result<Tensor, Error> {
                let axes = Axes::new(axes).map_err(crate::BuildError::from)?;
                self.op(Op::$op, &[], Params::over(axes))
            }
        )*}
    };
}

macro_rules! operator {
    ($($trait:ident, $name:ident => $op:ident;)*) => {$(
        impl ops::$trait<&Tensor> for &Tensor {
            type Output = Result<Tensor, Error>;

            #[track_caller]
            fn $name(self, other: &Tensor) -> Result<Tensor, Error> {
                self.op(Op::$op, &[other], Params::default())
            }
        }
    )*};
}

unary! {
    /// Negates each element.
    neg => Neg;
    /// The absolute value of each element.
    abs => Abs;
    /// e to the power of each element.
    exp => Exp;
    /// The natural logarithm of each element.
    log => Log;
    /// The square root of each element.
    sqrt => Sqrt;
    /// The hyperbolic tangent of each element.
    tanh => Tanh;
    /// The larger of each element and zero.
    relu => Relu;
    /// 1 / (1 + exp(-x)) of each element.
    sigmoid => Sigmoid;
}

binary! {
    /// Adds, with broadcasting.
    add => Add;
    /// Subtracts, with broadcasting.
    sub => Sub;
    /// Multiplies, with broadcasting.
    mul => Mul;
    /// Divides, with broadcasting.
    div => Div;
    /// The smaller of two elements, with broadcasting.
    minimum => Min;
    /// The larger of two elements, with broadcasting.
    maximum => Max;
    /// Raises to a power, with broadcasting.
    pow => Pow;
    /// Whether elements are equal, as bool.
    eq => Eq;
    /// Whether elements differ, as bool.
    ne => Ne;
    /// Whether the left element is smaller, as bool.
    lt => Lt;
    /// Whether the left element is smaller or equal, as bool.
    le => Le;
    /// Whether the left element is larger, as bool.
    gt => Gt;
    /// Whether the left element is larger or equal, as bool.
    ge => Ge;
    /// The matrix product over the last two axes; earlier axes broadcast.
    matmul => MatMul;
}

reduction! {
    /// The sum over axes.
    sum => Sum;
    /// The mean over axes.
    mean => Mean;
    /// The largest element over axes.
    max => ReduceMax;
    /// The smallest element over axes.
    min => ReduceMin;
}

operator! {
    Add, add => Add;
    Sub, sub => Sub;
    Mul, mul => Mul;
    Div, div => Div;
}

impl ops::Neg for &Tensor {
    type Output = Result<Tensor, Error>;

    #[track_caller]
    fn neg(self) -> Result<Tensor, Error> {
        self.op(Op::Neg, &[], Params::default())
    }
}

impl Tensor {
    /// The index of the largest element along `axis`, as i64.
    ///
    /// # Errors
    /// As [`Tensor::op`].
    #[track_caller]
    pub fn argmax(&self, axis: usize) -> Result<Tensor, Error> {
        let axes = Axes::new(&[axis]).map_err(crate::BuildError::from)?;
        self.op(Op::ArgMax, &[], Params::over(axes))
    }

    /// exp(x) / sum(exp(x)) along `axis`.
    ///
    /// # Errors
    /// As [`Tensor::op`].
    #[track_caller]
    pub fn softmax(&self, axis: usize) -> Result<Tensor, Error> {
        let axes = Axes::new(&[axis]).map_err(crate::BuildError::from)?;
        self.op(Op::Softmax, &[], Params::over(axes))
    }

    /// x - log(sum(exp(x))) along `axis`.
    ///
    /// # Errors
    /// As [`Tensor::op`].
    #[track_caller]
    pub fn log_softmax(&self, axis: usize) -> Result<Tensor, Error> {
        let axes = Axes::new(&[axis]).map_err(crate::BuildError::from)?;
        self.op(Op::LogSoftmax, &[], Params::over(axes))
    }

    /// The gradient of a softmax's input: this is what [`softmax`](Tensor::softmax) gave along `axis`, `dy` the gradient of
    /// it, of the same shape.
    ///
    /// # Errors
    /// As [`Tensor::op`].
    #[track_caller]
    pub fn softmax_backward(&self, dy: &Tensor, axis: usize) -> Result<Tensor, Error> {
        let axes = Axes::new(&[axis]).map_err(crate::BuildError::from)?;
        self.op(Op::SoftmaxBackward, &[dy], Params::over(axes))
    }

    /// The gradient of a log-softmax's input: this is what [`log_softmax`](Tensor::log_softmax) gave along `axis`, `dy` the
    /// gradient of it, of the same shape.
    ///
    /// # Errors
    /// As [`Tensor::op`].
    #[track_caller]
    pub fn log_softmax_backward(&self, dy: &Tensor, axis: usize) -> Result<Tensor, Error> {
        let axes = Axes::new(&[axis]).map_err(crate::BuildError::from)?;
        self.op(Op::LogSoftmaxBackward, &[dy], Params::over(axes))
    }

    /// The tensor with `before` and `after` elements of `value` around it on each of `axes` (none: all). Axes with margins
    /// of other sizes take a call of their own.
    ///
    /// # Errors
    /// As [`Tensor::op`].
    #[track_caller]
    pub fn pad(&self, axes: &[usize], before: u32, after: u32, value: impl Into<Scalar>) -> Result<Tensor, Error> {
        let axes = Axes::new(axes).map_err(crate::BuildError::from)?;
        self.op(Op::Pad, &[], Params::pad(axes, before, after, value))
    }

    /// For each of these indices (i32, i64 or u8) a row of `classes` elements of `dtype`, on a new last axis: 1 at the
    /// index, else 0. An index that is negative or not below `classes` gives zeros alone.
    ///
    /// # Errors
    /// As [`Tensor::op`].
    #[track_caller]
    pub fn one_hot(&self, classes: usize, dtype: DType) -> Result<Tensor, Error> {
        self.op(Op::OneHot, &[], Params::one_hot(classes, dtype))
    }

    /// The elements in another dtype.
    ///
    /// # Errors
    /// As [`Tensor::op`].
    #[track_caller]
    pub fn cast(&self, dtype: DType) -> Result<Tensor, Error> {
        self.op(Op::Cast, &[], Params::to(dtype))
    }

    /// Elements of `yes` where this bool tensor is true, of `no` elsewhere.
    ///
    /// # Errors
    /// As [`Tensor::op`].
    #[track_caller]
    pub fn where_(&self, yes: &Tensor, no: &Tensor) -> Result<Tensor, Error> {
        self.op(Op::Where, &[yes, no], Params::default())
    }
}

/// A future that is ready once a point has passed. Dropping it cancels nothing. In a child of the engine's process it is
/// ready with [`Error::Forked`].
pub struct Passed {
    state: Arc<Mutex<PassedState>>,
    engine: EngineRef,
}

impl fmt::Debug for Passed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Passed").finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct PassedState {
    result: Option<Result<(), Error>>,
    waker: Option<Waker>,
}

impl Passed {
    /// A future for something that `engine` does, and the callback that makes it ready.
    pub fn new(engine: EngineRef) -> (Passed, impl FnOnce(Result<(), Error>) + Send + 'static) {
        let state = Arc::new(Mutex::new(PassedState::default()));
        let shared = state.clone();
        let callback = move |result| {
            let mut state = shared.lock().unwrap_or_else(PoisonError::into_inner);
            state.result = Some(result);
            let waker = state.waker.take();
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        };
        (Passed { state, engine }, callback)
    }
}

impl Future for Passed {
    type Output = Result<(), Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // Before the lock: the thread that has it may not be in this process.
        if self.engine.get().is_forked() {
            return Poll::Ready(Err(Error::Forked));
        }
        // Wakers are user code: made before the lock is taken, dropped after it is left.
        let waker = context.waker().clone();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(result) = &state.result {
            return Poll::Ready(result.clone());
        }
        let before = state.waker.replace(waker);
        drop(state);
        drop(before);
        Poll::Pending
    }
}
