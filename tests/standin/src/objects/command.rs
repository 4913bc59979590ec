//! Commands: the work that was queued on a stream.
//!
//! A command takes these steps: a driver call (`api/`) checks its handles and memory (`commands/`), tells the race detector (`memory/order.rs`),
//! and queues it ([`Stream::give`](crate::objects::stream::Stream::give)). The stream's thread waits for a delay drawn from the seed and runs it (`driver/run.rs`).
//!
//! All commands move bytes under one lock. So commands that race, which is a finding, mix their data but do no other harm to this process.

use std::ffi::c_void;
use std::sync::Arc;

use streamvm_ep::DType;

use crate::kernels::{ConditionValue, Decoding, PtxLaunch, Region};
use crate::memory::Span;
use crate::objects::collective::{Collective, Part};
use crate::objects::event::Mark;
use crate::values::code::Code;
use crate::values::faults::KernelFate;

/// A command that was queued on a stream.
pub(crate) struct Command {
    /// The driver call that queued it.
    pub(crate) call: &'static str,
    pub(crate) work: Work,
}

/// The work of a command.
pub(crate) enum Work {
    /// Copies bytes. `before` is the fingerprint of the source at the call, if no queued command was to write the source.
    Copy { target: Span, source: Span, before: Option<u64> },
    /// Writes `pattern` repeatedly.
    Fill { target: Span, pattern: Pattern },
    /// Runs a kernel.
    Kernel { job: Job, fate: KernelFate },
    /// Calls a host function.
    Host { function: HostFunction, data: *mut c_void },
    /// Records an event.
    Record(Arc<Mark>),
    /// Waits for the record of an event.
    Wait(Arc<Mark>),
    /// Runs collectives of NCCL.
    Collective(Collective),
    /// Runs its body once if the condition is not 0, or repeats it as long as it is not.
    Conditional { condition: Arc<ConditionValue>, repeats: bool, body: Vec<Command> },
}

// SAFETY: only the data pointer of a host function is not `Send` by itself. The caller that passed it promises the driver that a thread of
// the driver may use it.
unsafe impl Send for Work {}

/// A host function that a stream calls.
pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);

/// The bytes of one element of a fill.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Pattern {
    pub(crate) bits: u32,
    pub(crate) bytes: usize,
}

/// A kernel with the memory that it accesses.
pub(crate) enum Job {
    /// A kernel without work.
    Empty,
    /// A kernel, whose PTX runs.
    Ptx(Box<PtxLaunch>),
    /// A product of cuBLAS, with its operands and the memory of each; an operand without elements has none.
    Product { dtype: DType, operands: Vec<Decoding>, regions: Vec<Option<Region>> },
    /// A kernel that accesses memory which it may not access, or has invalid arguments: it ends the context with this code.
    Broken(Code),
}

impl Work {
    /// The bytes that the command will write.
    fn written(&self) -> impl Iterator<Item = &Span> {
        let (one, launched, multiplied): (Option<&Span>, &[Region], &[Option<Region>]) = match self {
            Work::Copy { target, .. } | Work::Fill { target, .. } => (Some(target), &[], &[]),
            Work::Kernel { job: Job::Ptx(launch), .. } => (None, &launch.regions, &[]),
            Work::Kernel { job: Job::Product { regions, .. }, .. } => (None, &[], regions),
            _ => (None, &[], &[]),
        };
        let regions = launched.iter().chain(multiplied.iter().flatten());
        let collected: &[Part] = if let Work::Collective(Collective { parts, .. }) = self { parts } else { &[] };
        let collected = collected.iter().filter_map(|part| part.output.as_ref());
        one.into_iter()
            .chain(collected)
            .chain(regions.filter(|region| region.touch.access().writes()).map(|region| &region.span))
    }
}

impl Command {
    pub(crate) fn new(call: &'static str, work: Work) -> Command {
        work.written().for_each(Span::writer_comes);
        Command { call, work }
    }
}

impl Drop for Command {
    fn drop(&mut self) {
        self.work.written().for_each(Span::writer_goes);
    }
}
