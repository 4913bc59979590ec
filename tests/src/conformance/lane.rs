//! A stream for the cases: it labels every command, and keeps the memory that the command uses.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use streamvm_ep::{
    Access, CallError, Device, Error, EventId, FnContext, FnError, InlineFn, Kernel, KernelCall, KernelRegistry, Label,
    LateCause, Op, Params, Scalar, Stream,
};

use super::lab::{Buffer, Fail, Memory, unexpected};

/// Numbers lanes, so that reports can distinguish them; the number has no other meaning.
static LANES: AtomicU32 = AtomicU32::new(1);

/// A stream and the memory that its commands use.
pub(super) struct Lane {
    device: Arc<dyn Device>,
    kernels: Arc<KernelRegistry>,
    stream: Box<dyn Stream>,
    /// Memory of commands that may not have passed.
    uses: Vec<Arc<Memory>>,
    number: u32,
    seq: u64,
}

impl Lane {
    pub(super) fn new(device: &Arc<dyn Device>, kernels: &Arc<KernelRegistry>) -> Result<Lane, Fail> {
        let stream = device.create_stream()?;
        let number = LANES.fetch_add(1, Ordering::Relaxed);
        let (device, kernels) = (Arc::clone(device), Arc::clone(kernels));
        Ok(Lane { device, kernels, stream, uses: Vec::new(), number, seq: 0 })
    }

    /// Number of the stream and of the command, from the label of the last command.
    pub(super) fn last(&self) -> (u32, u64) {
        (self.number, self.seq)
    }

    #[track_caller]
    fn begin(&mut self, what: &str, uses: &[&Buffer]) {
        self.seq += 1;
        self.stream.begin(&Label::new(self.number, self.seq, what));
        self.uses.extend(uses.iter().map(|buffer| Arc::clone(&buffer.memory)));
    }

    #[track_caller]
    pub(super) fn fill(&mut self, target: &Buffer, value: impl Into<Scalar>) -> Result<(), Error> {
        self.fill_as(target, Access::Write, value)
    }

    #[track_caller]
    pub(super) fn fill_as(&mut self, target: &Buffer, access: Access, value: impl Into<Scalar>) -> Result<(), Error> {
        self.begin("fill", &[target]);
        self.stream.fill(&mut target.operand(access), value.into())
    }

    #[track_caller]
    pub(super) fn copy(&mut self, source: &Buffer, target: &Buffer) -> Result<(), Error> {
        self.copy_as(source, target, Access::Write)
    }

    #[track_caller]
    pub(super) fn copy_as(&mut self, source: &Buffer, target: &Buffer, access: Access) -> Result<(), Error> {
        self.begin("copy", &[source, target]);
        self.stream.copy(&source.operand(Access::Read), &mut target.operand(access))
    }

    /// Launches a built-in op with the device's kernel for it.
    #[track_caller]
    pub(super) fn op(&mut self, op: Op, inputs: &[&Buffer], output: &Buffer, params: &Params) -> Result<(), Error> {
        let kind = self.device.id().kind;
        let mut all: Vec<(&Buffer, Access)> = inputs.iter().map(|&input| (input, Access::Read)).collect();
        all.push((output, Access::Write));
        let kernel = self.kernels.get(op, kind, all[op.key_input()].0.dtype)?;
        self.launch(kernel, &all, inputs.len(), params)
    }

    #[track_caller]
    pub(super) fn launch(
        &mut self,
        kernel: Kernel,
        operands: &[(&Buffer, Access)],
        inputs: usize,
        params: &Params,
    ) -> Result<(), Error> {
        let buffers: Vec<&Buffer> = operands.iter().map(|(buffer, _)| *buffer).collect();
        self.begin(kernel.op.name(), &buffers);
        let mut operands: Vec<_> = operands.iter().map(|(buffer, access)| buffer.operand(*access)).collect();
        self.stream.launch(&mut KernelCall::new(kernel, &mut operands, inputs, params))
    }

    #[track_caller]
    pub(super) fn call<F>(&mut self, operands: &[(&Buffer, Access)], function: F) -> Result<(), CallError>
    where
        F: for<'a, 'b> FnOnce(&'a mut FnContext<'b>) -> Result<(), FnError> + Send + 'static,
    {
        self.call_function(operands, &mut InlineFn::new(function))
    }

    #[track_caller]
    pub(super) fn call_function(
        &mut self,
        operands: &[(&Buffer, Access)],
        function: &mut InlineFn,
    ) -> Result<(), CallError> {
        let buffers: Vec<&Buffer> = operands.iter().map(|(buffer, _)| *buffer).collect();
        self.begin("call", &buffers);
        let mut operands: Vec<_> = operands.iter().map(|(buffer, access)| buffer.operand(*access)).collect();
        self.stream.call(function, &mut operands)
    }

    #[track_caller]
    pub(super) fn record(&mut self, event: EventId) -> Result<(), Error> {
        self.begin("record", &[]);
        self.stream.record(event)
    }

    #[track_caller]
    pub(super) fn wait(&mut self, event: EventId) -> Result<(), Error> {
        self.begin("wait", &[]);
        self.stream.wait(event)
    }

    pub(super) fn sync(&mut self) -> Result<(), Error> {
        self.stream.synchronize()?;
        self.uses.clear();
        Ok(())
    }

    /// The failure of one command: the error or panic of its call, or the failure that the device reports once the command has passed.
    pub(super) fn failure<E: Into<CallError>>(
        &mut self,
        command: impl FnOnce(&mut Lane) -> Result<(), E>,
    ) -> Result<LateCause, Fail> {
        match catch_unwind(AssertUnwindSafe(|| command(self))) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                return Ok(match error.into() {
                    CallError::Device(error) => LateCause::Device(error),
                    CallError::Function(error) => LateCause::Function(error.to_string()),
                });
            }
            Err(payload) => {
                let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
                let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
                return Ok(LateCause::Panic(text.unwrap_or_default()));
            }
        }
        let (number, seq) = self.last();
        // `synchronize` may also return the failure of the command, which is not required.
        let _ = self.stream.synchronize();
        let mut failures = self.device.take_failures();
        match (failures.pop(), failures.is_empty()) {
            (Some(failure), true) if (failure.stream, failure.seq) == (number, seq) => Ok(failure.cause),
            (last, _) => {
                failures.extend(last);
                Err(unexpected(failures, &format!("one failure, of command {number}:{seq}")))
            }
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let over = catch_unwind(AssertUnwindSafe(|| self.stream.synchronize()));
        if !matches!(over, Ok(Ok(()))) {
            // Commands may still be in flight, so their memory is leaked and not freed.
            self.uses.drain(..).for_each(std::mem::forget);
        }
    }
}
