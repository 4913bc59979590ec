//! The thread that writes the trace of an engine ([`VmBuilder::trace`](crate::VmBuilder::trace)): takes what the other threads have noted, a hundred times a second.
//!
//! It writes nothing more after an error or a panic of the output, and goes on to take what is noted, because that would fill the memory otherwise.

use std::io::{self, BufWriter};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use smallvec::SmallVec;
use streamvm_stream::StreamId;

use crate::engine::core::Engine;
use crate::engine::flight_recorder::FlightRecorder;
use crate::engine::trace_out::{OpenTrace, TraceOut};
use crate::execute::backpressure::Pending;
use crate::execute::environment::Environment;
use crate::observe::stall_report::StalledInstruction;
use crate::observe::timeline_writer::{StreamFacts, TimelineWriter};
use crate::sync::panics::panic_text;
use crate::sync::{engine_thread, park_timeout};
use crate::tasks::events::{List, Noted, RanList};
use crate::tasks::memory_use::{PoolName, PoolNews};
use crate::tasks::timeline::{Cause, Timeline};

/// The time between two looks at what was noted.
const PAUSE: Duration = Duration::from_millis(10);

/// The body of the thread; returns when the engine is over.
pub(crate) fn serve(engine: &Engine, trace: OpenTrace) {
    let Some(timeline) = &engine.timeline else { return };
    engine_thread::enter();
    // A logger of the program may panic, too.
    let _answers = timeline.asks.until_dropped();
    match trace.last {
        None => write_all(engine, timeline, trace.out),
        Some(last) => keep_last(engine, timeline, trace.out, last),
    }
}

/// Writes everything as it comes.
fn write_all(engine: &Engine, timeline: &Timeline, out: TraceOut) {
    let (mut pending, mut spare) = (None, Vec::new());
    // After an error: what it was.
    let mut shown = caught(|| TimelineWriter::new(BufWriter::new(out))).map_err(tell);
    loop {
        // Before the events are taken: what has passed was noted before.
        let ends = engine.may_end();
        let asked = timeline.asks.take(ends);
        // What happens during a look is shown at the next one, so that who asks sees all that has happened before.
        for _ in 0..if asked.callers.is_empty() { 1 } else { 2 } {
            let now = timeline.now();
            let (mut noted, news) = look(engine, timeline, ends, &mut spare);
            if let Ok(open) = &mut shown
                && let Err(error) = caught(|| {
                    let is_news = show(open, (now, &mut noted), &news, &mut pending, engine)?;
                    // What was written is whole packets, so a process that is killed leaves a trace up to here.
                    if is_news && !ends { open.flush() } else { Ok(()) }
                })
            {
                let broken = std::mem::replace(&mut shown, Err(tell(error)));
                // Its drop calls the writer once more.
                let _ = caught(|| {
                    drop(broken);
                    Ok(())
                });
            }
            reuse(noted, &mut spare);
        }
        let outcome = || shown.as_ref().map(|_| ()).map_err(String::clone);
        // Callers may have gone.
        asked.callers.into_iter().for_each(|caller| drop(caller.send(outcome())));
        if ends {
            break;
        }
        park_timeout(PAUSE);
    }
    let now = timeline.now();
    if let Ok(Err(error)) = shown.map(|shown| caught(|| shown.finish((now, now), &[], |id| facts(id, engine)))) {
        tell(error);
    }
}

/// Logs an error of the output, and returns it.
fn tell(error: io::Error) -> String {
    log::error!("the trace of the engine is cut: writing it has failed: {error}");
    error.to_string()
}

/// Keeps what has happened lately, and writes it when something fails, or somebody asks.
fn keep_last(engine: &Engine, timeline: &Timeline, mut out: TraceOut, last: Duration) {
    let (mut kept, mut spare) = (FlightRecorder::new(last), Vec::new());
    // Why the trace that is there was written.
    let mut written = Cause::Nothing;
    loop {
        let ends = engine.may_end();
        let asked = timeline.asks.take(ends);
        let now = timeline.now();
        let (noted, news) = look(engine, timeline, ends, &mut spare);
        let fails = noted.fails();
        kept.keep(now, &noted, engine.pending());
        reuse(noted, &mut spare);
        kept.keep_memory(news);
        let cause = asked.cause.max(if fails { Cause::Failure } else { Cause::Nothing });
        // What follows from a failure does not replace what led to it; what follows from a stall may be worse than that.
        if cause > written || !asked.callers.is_empty() {
            let pending = pending(engine);
            let outcome = caught(|| {
                let mut trace = Vec::new();
                let memory: Vec<PoolNews> = engine.handle.lock().notes.memory.all().collect();
                kept.write(&mut trace, timeline.now(), (&pending, memory), |id| facts(id, engine))?;
                out.replace(&trace)
            });
            match &outcome {
                Ok(()) if asked.callers.is_empty() => {
                    written = cause;
                    log::info!("what led to {cause} is in the trace in {}", timeline.name);
                }
                // The caller has seen what was before, and the next failure is another one.
                Ok(()) => written = Cause::Nothing,
                Err(error) => log::error!("the trace of what led to {cause} cannot be written: {error}"),
            }
            let outcome = outcome.map_err(|error| error.to_string());
            // Callers may have gone.
            asked.callers.into_iter().for_each(|caller| drop(caller.send(outcome.clone())));
        }
        if ends {
            break;
        }
        park_timeout(PAUSE);
    }
    let _ = caught(|| {
        drop(out);
        Ok(())
    });
}

/// The oldest instruction of each stream that has not passed.
fn pending(env: &Environment) -> Vec<(StreamId, StalledInstruction)> {
    let streams = || env.streams.iter();
    let id = |stalled: &StalledInstruction| streams().find(|stream| stream.key == stalled.stream).map(|it| it.id);
    env.stall_report().streams.into_iter().filter_map(|stalled| Some((id(&stalled)?, stalled))).collect()
}

/// A panic of the caller's writer is an error.
fn caught<T>(write: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    catch_unwind(AssertUnwindSafe(write)).unwrap_or_else(|payload| Err(io::Error::other(panic_text(payload))))
}

/// Shows what was noted, which was taken from `now` on, and how much is pending if that is not what was shown last. Returns whether something was shown.
fn show(
    shown: &mut TimelineWriter<BufWriter<TraceOut>>,
    (now, noted): (u64, &mut Noted),
    memory: &[PoolNews],
    pending: &mut Option<(u64, u64)>,
    env: &Environment,
) -> io::Result<bool> {
    let mut is_news = shown.show(now, noted, |id| facts(id, env))?;
    memory.iter().try_for_each(|news| shown.memory(news, 0))?;
    is_news |= !memory.is_empty();
    let Pending { instructions, bytes } = env.pending();
    if pending.replace((instructions, bytes)) != Some((instructions, bytes)) {
        shown.count(now, instructions, bytes)?;
        is_news = true;
    }
    Ok(is_news)
}

/// What all threads have noted since the last call, and what is new of the memory. When the engine `ends`, the memory of the tensors that were dropped last is freed before.
fn look(engine: &Engine, timeline: &Timeline, ends: bool, spare: &mut Vec<RanList>) -> (Noted, Vec<PoolNews>) {
    let (mut noted, mut is_cut) = (Noted::default(), false);
    for context in engine.contexts.all() {
        let mut list = spare.pop().unwrap_or_default();
        is_cut |= context.events.swap(&mut list);
        match list.len() {
            0 => spare.push(list),
            _ => noted.ran.push((context.name.clone(), list)),
        }
    }
    let (passed, completion_is_cut) = timeline.completion.take();
    let (blocked, callers_are_cut) = timeline.callers.take();
    (noted.passed, noted.blocked) = (passed, blocked);
    if ends {
        engine.free_dropped();
    }
    let mut guard = engine.handle.lock();
    let state = &mut *guard;
    let reserved = state.pools.iter().map(|pool| ((pool.place, pool.kind), pool.allocator.stats().reserved));
    let reserved: SmallVec<[(PoolName, usize); 4]> = reserved.collect();
    let news = state.notes.memory.news(timeline.now(), reserved.into_iter());
    let submissions_are_cut = state.notes.take(&mut noted.submissions);
    drop(guard);
    if is_cut || completion_is_cut || callers_are_cut || submissions_are_cut {
        log::warn!(
            "the trace of the engine leaves out instructions, submissions or waits: it is written slower than they come"
        );
    }
    (noted, news)
}

/// Keeps the memory of lists for later ones, but for that of long lists.
fn reuse(noted: Noted, spare: &mut Vec<RanList>) {
    for (_, mut list) in noted.ran {
        list.clear();
        spare.extend(list.is_handy().then_some(list));
    }
}

fn facts(id: StreamId, env: &Environment) -> Option<StreamFacts> {
    let stream = env.streams.get(id)?;
    Some(StreamFacts { key: stream.key, launches: stream.in_flight.is_some() })
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::io::Write;
    use std::time::Instant;

    use streamvm_ep::{DType, DeviceId};

    use super::*;
    use crate::{TraceConfig, Vm};

    /// A writer of a caller that fails, or panics, after so many calls.
    struct Broken {
        left: usize,
        panics: bool,
    }

    impl Write for Broken {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            match (self.left.checked_sub(1), self.panics) {
                (Some(left), _) => self.left = left,
                (None, true) => panic!("the writer of a trace"),
                (None, false) => return Err(io::Error::other("the disk is full")),
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Drop for Broken {
        fn drop(&mut self) {
            assert!(!self.panics || std::thread::panicking(), "the drop of the writer of a trace");
        }
    }

    /// The thread goes on to take what is noted when the writer has failed.
    #[test]
    fn a_broken_writer_does_not_let_events_pile_up() {
        for (panics, left) in [(false, 0), (false, 2), (true, 0), (true, 2)] {
            let vm = Vm::builder().trace(TraceConfig::to_writer(Broken { left, panics })).build().expect("an engine");
            let add = || {
                let x = vm.full(DeviceId::cpu(0), DType::F32, &[4], 1.0).expect("a tensor");
                assert_eq!((&x + &x).and_then(|sum| sum.to_vec::<f32>()), Ok(vec![2.0; 4]));
            };
            // By the second time the writer has failed.
            for _ in 0..2 {
                (0..50).for_each(|_| add());
                std::thread::sleep(5 * PAUSE);
            }
            let begun = Instant::now();
            loop {
                // Those of the stream are in the list of the thread that served it.
                add();
                std::thread::sleep(5 * PAUSE);
                let left: usize = vm.engine.contexts.all().iter().map(|context| context.events.take().0.len()).sum();
                if left == 0 {
                    break;
                }
                assert!(begun.elapsed() < Duration::from_secs(10), "{panics}, {left}: nobody takes {left} events");
            }
        }
    }
}
