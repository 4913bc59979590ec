//! Functions of the caller that a program calls in each run.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use streamvm_ep::{DeviceId, DeviceKind, FnContext, FnError};
use streamvm_instructions::{Error, InstructionsBuilder, Role, Use};
use streamvm_stream::StreamType;

/// The code of a [`StepFunction`]. It is called each time that its step runs: once in each run, or as often as the blocks around the step say; by several
/// threads at once where runs overlap.
pub type FunctionCode = dyn for<'a, 'b> Fn(&'a mut FnContext<'b>) -> Result<(), FnError> + Send + Sync;

/// A function that a step of a program calls, over the operands of the step. `Send`, `Sync`; clones call the same code.
///
/// A function that was parsed from text has no code: a program with it is checked, compiled and printed, and an engine refuses to run it
/// until [`Program::bind_function`](crate::Program::bind_function) has given it some.
///
/// Two functions are equal if they have the same name, device, order and code: the same object, not code that does the same.
#[derive(Clone)]
pub struct StepFunction {
    name: Arc<str>,
    device: DeviceId,
    order: FunctionOrder,
    code: Option<Arc<FunctionCode>>,
    issued: Option<Arc<dyn Fn() + Send + Sync>>,
}

/// The type of stream that a function runs on, which says what orders it beyond its uses.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default)]
pub enum FunctionOrder {
    /// The compute stream of its device and lane: it comes after the functions that were recorded before it there.
    #[default]
    Compute,
    /// Workers: its uses alone order it.
    Workers,
    /// The collective stream of its device and lane: it is an instruction there, after those recorded before it, and may start an
    /// [`Operation`](streamvm_ep::Operation). It is in no block.
    Collective,
}

impl FunctionOrder {
    /// The type of stream.
    pub fn stream_type(self) -> StreamType {
        match self {
            FunctionOrder::Compute => StreamType::Compute,
            FunctionOrder::Workers => StreamType::Workers,
            FunctionOrder::Collective => StreamType::Collective,
        }
    }

    /// The order of functions on a type of stream.
    pub(crate) fn of(stream_type: StreamType) -> FunctionOrder {
        match stream_type {
            StreamType::Workers => FunctionOrder::Workers,
            StreamType::Collective => FunctionOrder::Collective,
            _ => FunctionOrder::Compute,
        }
    }
}

impl StepFunction {
    /// A function that runs on the compute stream of `device`; without code it is a placeholder.
    pub fn new(name: impl Into<Arc<str>>, device: DeviceId, code: Option<Arc<FunctionCode>>) -> StepFunction {
        StepFunction { name: name.into(), device, order: FunctionOrder::Compute, code, issued: None }
    }

    /// The same function on another type of stream.
    #[must_use]
    pub fn ordered(self, order: FunctionOrder) -> StepFunction {
        StepFunction { order, ..self }
    }

    /// The same function, which tells `f` of each run: the thread that runs the program calls `f` once the run has been submitted, or appended to a list, in the order of the
    /// program, before it returns. A function within a block is no instruction of its own, and tells nothing.
    #[must_use]
    pub fn when_issued(self, f: impl Fn() + Send + Sync + 'static) -> StepFunction {
        StepFunction { issued: Some(Arc::new(f)), ..self }
    }

    /// Tells that a run has issued its instruction.
    pub fn note_issued(&self) {
        if let Some(issued) = &self.issued {
            issued();
        }
    }

    /// The type of stream that it runs on.
    pub fn order(&self) -> FunctionOrder {
        self.order
    }

    /// Its name in errors, profiles and printed programs.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device whose stream calls it.
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// Whether it may lie in a block. Only where threads of the host run a stream does a thread run the steps of a block; that thread calls it.
    pub(crate) fn may_lie_in_block(&self) -> bool {
        self.device.kind.is_run_by_host() && self.order != FunctionOrder::Collective
    }

    /// The role of its instruction: on a collective stream of a GPU it queues commands.
    pub fn role(&self) -> Role {
        let queues = self.order == FunctionOrder::Collective && self.device.kind == DeviceKind::CUDA;
        if queues { Role::Cuda } else { Role::Function }
    }

    /// Appends its instruction to a list that says what it uses. The instruction has no code.
    ///
    /// # Errors
    /// As [`InstructionsBuilder::call_fn`] or [`InstructionsBuilder::call_raw`].
    #[track_caller]
    pub(crate) fn append_to<'u>(
        &self,
        builder: &mut InstructionsBuilder,
        uses: impl IntoIterator<Item = Use<'u>>,
    ) -> Result<(), Error> {
        let (name, mut of_type) = (self.name.to_string(), builder.on_type(self.order.stream_type()));
        match self.role() {
            Role::Cuda => of_type.call_raw(name, self.device, uses, |_| Ok(())),
            _ => of_type.call_fn(name, self.device, uses, |_| Ok(())),
        }
    }

    /// Its code; `None` if it was parsed from text and not bound since.
    pub fn code(&self) -> Option<&Arc<FunctionCode>> {
        self.code.as_ref()
    }

    pub(crate) fn bind(&mut self, code: Arc<FunctionCode>) {
        self.code = Some(code);
    }

    /// The address of its code, by which functions are compared.
    fn address(&self) -> Option<*const ()> {
        self.code.as_ref().map(|code| Arc::as_ptr(code).cast())
    }
}

impl PartialEq for StepFunction {
    fn eq(&self, other: &StepFunction) -> bool {
        let known = |it: &StepFunction| (it.device, it.order, it.address());
        self.name == other.name && known(self) == known(other)
    }
}

impl Eq for StepFunction {}

impl Hash for StepFunction {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.name, self.device, self.order, self.address()).hash(state);
    }
}

impl fmt::Debug for StepFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = if self.code.is_some() { "" } else { ", without code" };
        write!(f, "StepFunction({:?} on {}{code})", self.name, self.device)
    }
}
