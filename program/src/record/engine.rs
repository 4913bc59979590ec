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
    Batch, Callback, Deadline, Engine, EngineAddress, EngineRef, Error, InstructionList, Lane, LaneGuard, ProgramError,
    Registration, ResourceId, Single,
};

use crate::ir::dims::Sizes;
use crate::ir::program::Program;
use crate::record::recording::Recording;

struct RecordingEngine;

pub(crate) static ADDRESS: EngineAddress = EngineAddress::new(&RecordingEngine);

thread_local! {
    /// The recordings of this thread, the innermost last.
    static RECORDINGS: RefCell<Vec<Recording>> = const { RefCell::new(Vec::new()) };
}

/// The innermost recording of this thread; it ends when this is dropped.
pub(crate) struct Open {
    engine: EngineRef,
    /// The lanes of a program count from 0, whatever the lane of the thread: a closure is recorded where it is first called.
    _lane: LaneGuard,
}

impl Open {
    /// `sizes` are those of bounded feeds: an empty list stands for the bounds, and `None` refuses such feeds.
    pub(crate) fn begin(name: String, sizes: Option<Sizes>) -> Open {
        let engine = EngineRef::new(&ADDRESS);
        RECORDINGS.with_borrow_mut(|recordings| recordings.push(Recording::new(engine, name, sizes)));
        Open { engine, _lane: Lane(0).enter() }
    }

    /// The engine that tensors of this recording are bound to.
    pub(crate) fn recording(&self) -> EngineRef {
        self.engine
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
    use streamvm_ep::{Access, DType, DeviceId};
    use streamvm_instructions::{InstructionList, InstructionsBuilder, Kind, Lane, Tensor};
    use streamvm_stream::{StreamKey, StreamType};

    use super::*;
    use crate::ir::program::Work;
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
    fn a_touch_is_a_step_of_its_device_and_lane() {
        let touched = record("touch", |r| {
            let x = feed(r)?;
            let mut builder = InstructionsBuilder::new();
            builder.touch(CPU, &[&x]);
            builder.on_lane(2).touch(CPU, &[]);
            r.submit(builder.finish())?;
            r.fetch("y", &x.neg()?)
        });
        let program = touched.expect("it can be recorded");
        let works = program.steps[..2].iter().map(|step| (step.work.clone(), step.lane, step.operands.len()));
        assert_eq!(works.collect::<Vec<_>>(), [(Work::Touch(CPU), 0, 1), (Work::Touch(CPU), 2, 0)]);
        assert_eq!(program.steps[0].operands[0].access, Access::Read);
    }

    #[test]
    fn touches_that_order_nothing_in_a_program_are_refused_at_their_line() {
        let in_block = record("in a block", |r| {
            let yes = r.full(CPU, DType::Bool, &[], true)?;
            r.if_true(&yes, || {
                let mut builder = InstructionsBuilder::new();
                builder.touch(CPU, &[&yes]);
                r.submit(builder.finish())
            })
        });
        let line = line!() - 4;
        let on_copies = record("of copies", |r| {
            let mut list = InstructionList::new();
            let stream = StreamKey::new(CPU, StreamType::HostToDevice, 0);
            list.push(stream, Kind::Touch, [feed(r)?.read()], Site::caller())?;
            r.submit(list)
        });
        for (refused, line) in [(in_block, line), (on_copies, line + 8)] {
            let Err(Error::Program { error, .. }) = refused else { panic!("{refused:?}") };
            let ProgramError::NotRecordable { what, site, .. } = &*error else { panic!("{error}") };
            assert_eq!((what.as_str(), site.file(), site.line()), ("touch", file!(), line));
        }
    }

    /// Steps keep the lane that they were recorded on; that of the thread that records counts for nothing, because a closure is recorded where it is first called.
    #[test]
    fn steps_keep_their_lanes() {
        let inner = record("inner", |r| {
            let x = feed(r)?;
            r.fetch("y", &(&x.neg()? + &Lane(2).run(|| x.exp())?)?)
        });
        let inner = inner.expect("it can be recorded");
        for lane in [0, 2] {
            let lanes = Lane(lane).run(|| {
                let program = record("lanes", |r| {
                    let x = feed(r)?;
                    let yes = r.full(CPU, DType::Bool, &[], true)?;
                    let y = x.neg()?;
                    let mut builder = InstructionsBuilder::new();
                    builder.on_lane(7).copy_into(&x.exp()?, &y)?;
                    r.submit(builder.finish())?;
                    let _lane = Lane(3).enter();
                    r.if_true(&yes, || y.copy_from(&y.abs()?))?;
                    r.host_fn("note", CPU, || Ok(()))?;
                    r.call(&inner, &[("x", &y)], &[]).map(drop)
                });
                program.map(|program| program.steps.iter().map(|step| step.lane).collect::<Vec<u32>>())
            });
            // A fill, `neg`, `exp`; the copy of the builder; the block, whose ends have none; the function; the steps of the call, from its lane on.
            assert_eq!(
                lanes.expect("it can be recorded"),
                [0, 0, 0, 7, 0, 3, 3, 0, 3, 3, 5, 3],
                "recorded on lane {lane}"
            );
        }
    }

    /// All steps of a block are on one lane, those of its `else`, of blocks in it and of calls among them.
    #[test]
    fn a_step_beside_the_lane_of_its_block_is_refused() {
        let inner = record("inner", |r| {
            let x = feed(r)?;
            r.fetch("y", &Lane(1).run(|| x.exp())?)
        });
        let inner = inner.expect("it can be recorded");
        type Call<'c> = &'c dyn Fn(&Recorder, &Tensor, &Tensor) -> Result<(), Error>;
        let own = record("own", |r| r.fetch("x", &feed(r)?)).expect("it can be recorded");
        let calls: [(Call<'_>, bool); 8] = [
            (&|_, x, y| y.copy_from(&Lane(1).run(|| x.neg())?), true),
            (&|r, x, y| r.call(&inner, &[("x", x)], &[]).and_then(|results| y.copy_from(&results["y"])), true),
            (&|r, x, y| r.if_true(&r.full(CPU, DType::Bool, &[], true)?, || Lane(1).run(|| y.copy_from(x))), true),
            // A copy of a feed with gaps is on the lane of the call, and the step of the program on the next one.
            (
                &|r, x, _| {
                    r.call(&inner, &[("x", &x.unsqueeze(0)?.broadcast_to(&[2, 2])?.slice(1, 0..1)?.squeeze(1)?)], &[])
                        .map(drop)
                },
                true,
            ),
            (&|r, x, y| Lane(1).run(|| y.copy_from(x)).and_then(|()| r.call(&own, &[("x", x)], &[]).map(drop)), true),
            (
                &|r, x, y| {
                    let yes = r.full(CPU, DType::Bool, &[], true)?;
                    r.if_else(&yes, || y.copy_from(x), || Lane(1).run(|| y.copy_from(x)))
                },
                true,
            ),
            (&|_, x, y| Lane(1).run(|| y.copy_from(&x.neg()?)), false),
            (&|r, x, _| r.call(&inner, &[("x", x)], &[]).map(drop), false),
        ];
        for (number, (call, is_refused)) in calls.into_iter().enumerate() {
            let recorded = record("block", |r| {
                let (x, yes) = (feed(r)?, r.full(CPU, DType::Bool, &[], true)?);
                let y = x.abs()?;
                r.if_true(&yes, || call(r, &x, &y))?;
                r.fetch("y", &y)
            });
            match recorded {
                Ok(program) => {
                    assert!(!is_refused, "{number}");
                    crate::compile(program, &crate::CompileOptions::default()).expect("it compiles");
                }
                Err(Error::Program { error, .. }) => {
                    let text = error.to_string();
                    assert!(
                        is_refused && text.contains("on another lane than the steps before it"),
                        "{number}: {text}"
                    );
                }
                Err(error) => panic!("{number}: {error}"),
            }
        }
    }

    #[test]
    fn both_branches_of_an_if_are_on_one_lane() {
        for (other, is_refused) in [(1, false), (2, true)] {
            let recorded = record("branches", |r| {
                let (x, yes) = (feed(r)?, r.full(CPU, DType::Bool, &[], true)?);
                let y = x.abs()?;
                let copy = |lane| Lane(lane).run(|| y.copy_from(&x));
                r.if_else(&yes, || copy(1), || copy(other))?;
                // The lane of a block holds for that block alone.
                r.if_true(&yes, || copy(3))?;
                r.fetch("y", &y)
            });
            assert_eq!(recorded.is_err(), is_refused, "{recorded:?}");
        }
    }
}
