//! The thread that writes the trace of an engine ([`VmBuilder::trace`](crate::VmBuilder::trace)): takes what the other threads have noted, a hundred times a second.
//!
//! It writes nothing more after an error or a panic of the output, and goes on to take what is noted, which would fill the memory.

use std::io::{self, BufWriter, Write};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use streamvm_stream::StreamId;

use crate::execute::environment::Environment;
use crate::observe::shown::{Shown, StreamFacts};
use crate::sync::panics::panic_text;
use crate::sync::{engine_thread, park_timeout};
use crate::tasks::timeline::{Event, Timeline};

/// The time between two looks at what was noted.
const PAUSE: Duration = Duration::from_millis(10);

/// The output of a trace.
pub(crate) type Out = Box<dyn Write + Send>;

/// The body of the thread; returns when the engine is over.
pub(crate) fn serve(env: &Environment, out: Out) {
    let Some(timeline) = &env.timeline else { return };
    engine_thread::enter();
    let mut shown = caught(|| Shown::new(BufWriter::new(out))).map_err(tell).ok();
    loop {
        // Before the events are taken: what has passed was noted before.
        let ends = env.may_end();
        let events = noted(env, timeline);
        if let Some(open) = &mut shown
            && let Err(error) = caught(|| show(open, events, env, timeline))
        {
            tell(error);
            shown = None;
        }
        if ends {
            break;
        }
        park_timeout(PAUSE);
    }
    if let Some(Err(error)) = shown.map(|shown| caught(|| shown.finish(|id| facts(id, env)))) {
        tell(error);
    }
}

/// A panic of the caller's writer is an error.
fn caught<T>(write: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    catch_unwind(AssertUnwindSafe(write)).unwrap_or_else(|payload| Err(io::Error::other(panic_text(payload))))
}

fn show(
    shown: &mut Shown<BufWriter<Out>>,
    events: Vec<(String, Event)>,
    env: &Environment,
    timeline: &Timeline,
) -> io::Result<()> {
    let is_quiet = events.is_empty();
    shown.show(events, |id| facts(id, env))?;
    if !is_quiet || env.may_end() {
        let pending = env.pending();
        shown.count(timeline.now(), pending.instructions, pending.bytes)?;
        // What was written is whole packets, so a process that is killed leaves a trace up to here.
        shown.flush()?;
    }
    Ok(())
}

/// What all threads have noted since the last call, each event with the name of its thread.
fn noted(env: &Environment, timeline: &Timeline) -> Vec<(String, Event)> {
    let (mut all, mut of_one) = (Vec::new(), Vec::new());
    for context in env.contexts.all() {
        context.events.take(&mut of_one);
        all.extend(mem::take(&mut of_one).into_iter().map(|event| (context.name.clone(), event)));
    }
    timeline.completion.take(&mut of_one);
    all.extend(of_one.into_iter().map(|event| (String::new(), event)));
    all
}

fn facts(id: StreamId, env: &Environment) -> Option<StreamFacts> {
    let stream = env.streams.get(id)?;
    Some(StreamFacts { key: stream.key, launches: stream.in_flight.is_some() })
}

fn tell(error: io::Error) {
    log::error!("the trace of the engine is cut: writing it has failed: {error}");
}
