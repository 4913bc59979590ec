//! The engine that tensors of a recording are bound to: it records, and can neither run nor wait.
//!
//! One address serves all recordings of the process; a recording has a number of its own there, as engines have. The recordings of a
//! thread form a stack, and what a thread submits goes to the innermost one.
//!
//! The stack is borrowed while a recording is read or changed. No code of the caller runs then: what it has given is converted before, and dropped after.

use std::cell::RefCell;
use std::sync::Arc;

use streamvm_ep::{Footprint, Site};
use streamvm_instructions::{
    Batch, Callback, Deadline, Engine, EngineAddress, EngineRef, Error, InstructionList, Lane, ProgramError,
    Registration, ResourceId, Single,
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
        RECORDINGS.with_borrow_mut(|recordings| recordings.push(Recording::new(engine, name, Some(Lane::current()))));
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
        // The functions of a program that is not finished are dropped with it, and may use this engine.
        let recording = RECORDINGS.with_borrow_mut(Vec::pop);
        drop(recording);
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
fn with_or<R>(site: Option<Site>, f: impl FnOnce(&mut Recording) -> Result<R, Error>) -> Result<R, Error> {
    RECORDINGS.with_borrow_mut(|recordings| match recordings.last_mut() {
        Some(recording) => f(recording),
        None => Err(ProgramError::RecordingOver { site }.into()),
    })
}

fn add<B: Batch>(batch: &B) -> Result<(), Error> {
    let site = batch.instructions().first().map(|instruction| instruction.site);
    with_or(site, |recording| recording.add(batch)).map_err(|error| match site {
        Some(site) => error.called_from(site),
        None => error,
    })
}

impl Engine for RecordingEngine {
    fn submit(&self, list: &mut InstructionList) -> Result<(), Error> {
        add(list)
    }

    fn submit_one(&self, single: &mut Single<'_>) -> Result<(), Error> {
        add(single)
    }

    fn is_recording(&self) -> bool {
        true
    }

    fn inserts_transfers(&self) -> bool {
        RECORDINGS.with_borrow(|recordings| recordings.last().is_some_and(|recording| recording.inserts_transfers))
    }

    fn wait(&self, _: ResourceId, _: Option<&Footprint>, _: Option<Deadline>, site: Site) -> Result<(), Error> {
        self.may_wait(site)
    }

    fn may_wait(&self, site: Site) -> Result<(), Error> {
        Err(Error::from(ProgramError::NoElements { site }).called_from(site))
    }

    fn has_passed(&self, _: ResourceId, _: Option<&Footprint>) -> bool {
        false
    }

    fn is_released(&self, _: ResourceId) -> bool {
        false
    }

    fn is_forked(&self) -> bool {
        false
    }

    fn on_passed(&self, _: ResourceId, _: Option<&Footprint>, callback: Callback, site: Site) {
        callback(self.may_wait(site));
    }

    fn register(
        &self,
        _: ResourceId,
        _: Option<&Footprint>,
        callback: Callback,
        site: Site,
    ) -> Option<Arc<dyn Registration>> {
        callback(self.may_wait(site));
        None
    }

    /// A value of a program ends with its last use, not with its last handle.
    fn release(&'static self, _: ResourceId) {}
}

#[cfg(test)]
mod tests {
    use streamvm_ep::{DType, DeviceId};
    use streamvm_instructions::{InstructionsBuilder, Lane, Tensor};

    use super::*;
    use crate::record::recorder::{Recorder, record};

    const CPU: DeviceId = DeviceId::cpu(0);

    fn feed(r: &Recorder) -> Result<Tensor, Error> {
        r.feed("x", CPU, DType::F32, &[2])
    }

    /// Makes an eager call on a tensor of the recording when it is dropped, or turned into a name.
    struct Calls(Tensor);

    impl Drop for Calls {
        fn drop(&mut self) {
            drop(self.0.neg());
        }
    }

    impl From<Calls> for String {
        fn from(calls: Calls) -> String {
            drop(calls.0.neg());
            "name".to_owned()
        }
    }

    #[test]
    fn captures_and_names_of_the_caller_may_use_the_recording() {
        let failed = record("fails", |r| {
            let calls = Calls(feed(r)?);
            r.host_fn("notes", CPU, move || calls.0.neg().map(drop).map_err(|error| error.to_string().into()))?;
            r.fetch("no name", &feed(r)?)
        });
        assert!(failed.is_err());
        let program = record("names", |r| {
            let x = feed(r)?;
            r.fetch(Calls(x.clone()), &x.abs()?)
        });
        assert_eq!(program.map(|program| program.fetches[0].name.clone()).ok(), Some("name".to_owned()));
    }

    #[test]
    fn lanes_and_touches_are_refused_at_their_line() {
        type Call = fn(&Recorder, &Tensor) -> (Result<(), Error>, u32);
        let calls: [Call; 3] = [
            |_, x| {
                let _lane = Lane(Lane::current().0 + 1).enter();
                (x.neg().map(drop), line!())
            },
            |r, x| {
                let mut builder = InstructionsBuilder::new();
                let line = line!() + 1;
                builder.on_lane(7).neg(x).expect("a call");
                (r.submit(builder.finish()), line)
            },
            |r, x| {
                let mut builder = InstructionsBuilder::new();
                let line = line!() + 1;
                builder.touch(CPU, &[x]);
                (r.submit(builder.finish()), line)
            },
        ];
        // The lane of the thread that records is not part of the program: a closure is recorded where it is first called.
        for lane in [0, 2] {
            let _lane = Lane(lane).enter();
            let program = record("lanes", |r| {
                let x = feed(r)?;
                for call in calls {
                    let (result, line) = call(r, &x);
                    let Err(Error::Program { error, .. }) = result else { panic!("line {line}: {result:?}") };
                    let ProgramError::NotRecordable { site, .. } = *error else { panic!("line {line}: {error}") };
                    assert_eq!((site.file(), site.line()), (file!(), line));
                }
                r.fetch("y", &x.neg()?)
            });
            assert_eq!(program.map(|program| program.steps.len()).ok(), Some(1));
        }
    }
}
