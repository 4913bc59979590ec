//! The engine that tensors of a recording are bound to: it records, and can neither run nor wait.
//!
//! One address serves all recordings of the process; a recording has a number of its own there, as engines have. The recordings of a
//! thread form a stack, and what a thread submits goes to the innermost one.

use std::cell::RefCell;
use std::panic::Location;
use std::sync::Arc;

use streamvm_ep::Footprint;
use streamvm_instructions::{
    Batch, Callback, Deadline, Engine, EngineAddress, EngineRef, Error, InstructionList, ProgramError, Registration,
    ResourceId, Single,
};

use crate::ir::program::Program;
use crate::record::recording::Recording;

struct RecordingEngine;

pub(crate) static ADDRESS: EngineAddress = EngineAddress::new(&RecordingEngine);

thread_local! {
    /// The recordings of this thread, the innermost last.
    static RECORDINGS: RefCell<Vec<Recording>> = const { RefCell::new(Vec::new()) };
}

/// The innermost recording of this thread; it ends when this is dropped.
pub(crate) struct Open(EngineRef);

impl Open {
    pub(crate) fn begin(name: String) -> Open {
        let engine = EngineRef::new(&ADDRESS);
        RECORDINGS.with_borrow_mut(|recordings| recordings.push(Recording::new(engine, name)));
        Open(engine)
    }

    /// The engine that tensors of this recording are bound to.
    pub(crate) fn recording(&self) -> EngineRef {
        self.0
    }

    /// Takes the program out, which ends the recording.
    pub(crate) fn finish(self) -> Program {
        with(|recording| Ok(std::mem::replace(&mut recording.program, Program::new(""))))
            .unwrap_or_else(|_| unreachable!("a recording lasts until `Open` is dropped"))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        RECORDINGS.with_borrow_mut(|recordings| drop(recordings.pop()));
    }
}

/// Calls `f` with the innermost recording of this thread.
///
/// # Errors
/// [`ProgramError::RecordingOver`] if there is none; those of `f`.
pub(crate) fn with<R>(f: impl FnOnce(&mut Recording) -> Result<R, Error>) -> Result<R, Error> {
    with_or(None, f)
}

/// [`with`], for a call at a source line.
fn with_or<R>(
    location: Option<&'static Location<'static>>,
    f: impl FnOnce(&mut Recording) -> Result<R, Error>,
) -> Result<R, Error> {
    RECORDINGS.with_borrow_mut(|recordings| match recordings.last_mut() {
        Some(recording) => f(recording),
        None => Err(ProgramError::RecordingOver { location }.into()),
    })
}

fn add<B: Batch>(batch: &B) -> Result<(), Error> {
    let location = batch.instructions().first().map(|instruction| instruction.location);
    with_or(location, |recording| recording.add(batch))
}

impl Engine for RecordingEngine {
    fn submit(&self, list: &mut InstructionList) -> Result<(), Error> {
        add(list)
    }

    fn submit_one(&self, single: &mut Single<'_>) -> Result<(), Error> {
        add(single)
    }

    fn wait(
        &self,
        _: ResourceId,
        _: Option<&Footprint>,
        _: Option<Deadline>,
        location: &'static Location<'static>,
    ) -> Result<(), Error> {
        self.may_wait(location)
    }

    fn may_wait(&self, location: &'static Location<'static>) -> Result<(), Error> {
        Err(ProgramError::NoElements { location }.into())
    }

    fn is_released(&self, _: ResourceId) -> bool {
        false
    }

    fn is_forked(&self) -> bool {
        false
    }

    fn on_passed(
        &self,
        _: ResourceId,
        _: Option<&Footprint>,
        callback: Callback,
        location: &'static Location<'static>,
    ) {
        callback(self.may_wait(location));
    }

    fn register(
        &self,
        _: ResourceId,
        _: Option<&Footprint>,
        callback: Callback,
        location: &'static Location<'static>,
    ) -> Option<Arc<dyn Registration>> {
        callback(self.may_wait(location));
        None
    }

    /// A value of a program ends with its last use, not with its last handle.
    fn release(&'static self, _: ResourceId) {}
}
