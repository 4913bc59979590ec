//! Runs one command, without holding a lock except the one that serialises copies of bytes.
//!
//! The caller's code can panic, block or take locks: kernels, functions, the texts and drops of their errors, and the drops of captures
//! and panic payloads. All of it runs in [`catch_panic`].

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use streamvm_ep::{Error, FnContext, InlineFn, Kernel, KernelCall, LateCause, OpStates, Operand, Params};

use crate::races::{Detector, Finding, FindingKind};
use crate::sim::memory::{Heap, POISON};
use crate::sim::queue::{Command, Work};
use crate::sim::scratch::{Scratch, Violation};

/// The poison of the second run of a kernel. It differs from the first in every bit.
const OTHER_POISON: u8 = !POISON;

/// The state of a simulated machine that is needed to run commands.
#[derive(Debug, Default)]
pub(super) struct Runner {
    /// Held while bytes are copied between memories, or between memory and scratch. So streams that race (a finding) can corrupt each
    /// other's data but cause no undefined behaviour. Never held while the caller's code runs.
    copying: Mutex<()>,
}

impl Runner {
    /// Runs a command; returns the cause of its failure, if it failed.
    pub(super) fn run(
        &self,
        command: Command,
        detector: &Detector,
        heap: &Heap,
        states: &OpStates,
    ) -> Option<LateCause> {
        let Command { label, by, work, blocks, runs, already_freed } = command;
        let report = |kind, address: Option<usize>, detail: &str| {
            let finding = Finding::new(kind, &label, format!("run on {by}"), detail);
            match address {
                Some(address) => detector.report_at(finding, address..address + 1),
                None => detector.report(finding),
            }
        };
        if already_freed || !detector.is_present(&runs) {
            // If it was already freed when the command was submitted, that has been reported then.
            if !already_freed {
                report(
                    FindingKind::AfterFree,
                    runs.first().map(|run| run.start),
                    "its memory was given back before it ran",
                );
            }
            let _ = catch_panic(|| drop(work));
            return None;
        }
        let violation = |violation: Violation, detail: &str| report(violation.kind, Some(violation.address), detail);
        let failed = match work {
            Work::Record | Work::Wait(_) => None,
            Work::Copy { source, mut target } => {
                let _one_at_a_time = self.copying();
                streamvm_kernels::copy(&source, &mut target).err().map(LateCause::Device)
            }
            Work::Fill { mut target, value } => {
                let _one_at_a_time = self.copying();
                streamvm_kernels::fill(&mut target, value).err().map(LateCause::Device)
            }
            Work::Launch { kernel, operands, inputs, params } => {
                self.launch((kernel, inputs, &params), &operands, states, violation)
            }
            Work::Call { function, operands } => self.call(function, &operands, violation),
        };
        for block in &blocks {
            if let Some(offset) = heap.overrun(block) {
                let detail = format!("it wrote beside the region, at byte {offset} counted from its start");
                report(FindingKind::OutOfBounds, Some(block.range().start), &detail);
            }
        }
        failed
    }

    fn launch(
        &self,
        call: (Kernel, usize, &Params),
        operands: &[Operand],
        states: &OpStates,
        violation: impl Fn(Violation, &str),
    ) -> Option<LateCause> {
        let mut first = self.load(operands);
        let failed = launch_once(call, &mut first, states);
        for found in first.violations() {
            violation(found, "found over a scratch copy, and not carried over");
        }
        if failed.is_some() {
            return failed;
        }
        let mut second = first.again(OTHER_POISON);
        let failed_then = launch_once(call, &mut second, states).is_some();
        for found in second.violations() {
            violation(found, "found over a scratch copy, and not carried over");
        }
        if let Some(found) = first.difference(&second) {
            violation(found, "a second run with other bytes where it declares to read none gave another result");
        } else if failed_then && let Some(operand) = operands.first() {
            let found = Violation { kind: FindingKind::UndeclaredRead, address: operand.ptr().addr() };
            violation(found, "a second run with other bytes where it declares to read none failed");
        }
        self.store(&mut first);
        None
    }

    fn call(&self, function: InlineFn, operands: &[Operand], violation: impl Fn(Violation, &str)) -> Option<LateCause> {
        let mut scratch = self.load(operands);
        let mut copies = scratch.operands();
        let outcome = catch_panic(|| {
            // The captures are dropped here, whatever the outcome.
            let mut function = function;
            let mut context = FnContext::new(&mut copies).map_err(LateCause::Device)?;
            // The error is dropped here, because its drop is the caller's code too.
            function.call(&mut context).map_err(|error| LateCause::Function(error.to_string()))
        });
        drop(copies);
        for found in scratch.violations() {
            violation(found, "found over a scratch copy, and not carried over");
        }
        self.store(&mut scratch);
        flatten(outcome)
    }

    fn load<'a>(&self, operands: &'a [Operand]) -> Scratch<'a> {
        let _one_at_a_time = self.copying();
        // SAFETY: the maker of the operands guarantees that they stay usable until this command has run, and the memory has not been
        // freed. Other copies of bytes wait for the lock.
        unsafe { Scratch::load(operands, POISON) }
    }

    fn store(&self, scratch: &mut Scratch<'_>) {
        let _one_at_a_time = self.copying();
        // SAFETY: as in `load`.
        unsafe { scratch.store() }
    }

    fn copying(&self) -> MutexGuard<'_, ()> {
        // The lock guards no value, so poisoning does not matter.
        self.copying.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn launch_once(
    (kernel, inputs, params): (Kernel, usize, &Params),
    scratch: &mut Scratch<'_>,
    states: &OpStates,
) -> Option<LateCause> {
    let mut copies = scratch.operands();
    let outcome = catch_panic(|| {
        let mut call = KernelCall::new(kernel, &mut copies, inputs, params);
        call.mark_overlapping_shared().and_then(|()| call.run(Some(states)))
    });
    flatten(outcome.map(|result| result.map_err(|error| LateCause::Device(Error::Kernel(error)))))
}

fn flatten(outcome: Result<Result<(), LateCause>, String>) -> Option<LateCause> {
    match outcome {
        Ok(result) => result.err(),
        Err(message) => Some(LateCause::Panic(message)),
    }
}

/// Runs the caller's code; returns the message if it panics.
pub(super) fn catch_panic<R>(code: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(code)).map_err(|payload| {
        let message = message(payload.as_ref());
        // The payload is the caller's code too. If its drop panics with another payload, that payload is leaked.
        if let Err(next) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            mem::forget(next);
        }
        message
    })
}

fn message(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        return (*text).to_owned();
    }
    payload.downcast_ref::<String>().cloned().unwrap_or_else(|| String::from("a panic whose payload is no text"))
}
