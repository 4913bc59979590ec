//! Streams, waits for their commands, and waits of streams for events.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use crate::commands::graph::start_stream;
use crate::driver::Driver;
use crate::objects::capture::{NoWait, WaitKind};
use crate::objects::command::{Command, Work};
use crate::objects::stream::Stream;
use crate::values::code::{Code, Outcome};
use crate::values::findings::Kind;
use crate::values::out::Out;

/// The greatest priority of a stream; the least is 0.
pub(super) const GREATEST_PRIORITY: c_int = -5;

/// The name under which the creation of streams of the greatest priority is counted.
const FIRST: &str = "cuStreamCreateWithPriority, greatest";

/// The flag of a stream that does not wait for the null stream.
const NON_BLOCKING: c_uint = 1;

driver_calls! {
    /// Creates a stream of the current context.
    fn cuStreamCreate(driver, stream: Out<usize>, flags: c_uint) {
        create(driver, "cuStreamCreate", &stream, flags)
    }

    /// Creates a stream of the current context. The priority has no effect on order, since a device may run streams in any order. Streams
    /// of the greatest priority are counted.
    fn cuStreamCreateWithPriority(driver, stream: Out<usize>, flags: c_uint, priority: c_int) {
        create(driver, "cuStreamCreateWithPriority", &stream, flags)?;
        if priority == GREATEST_PRIORITY {
            // This only counts: no fault can have this name, which is not that of a function.
            let _ = driver.faults.call(FIRST);
        }
        Ok(())
    }

    /// Destroys a stream without waiting; its queued commands still run.
    fn cuStreamDestroy_v2(driver, handle: usize) {
        let stream = driver.stream("cuStreamDestroy_v2", handle)?;
        // If another thread has destroyed the stream meanwhile, the handle is gone, which is a finding too.
        if driver.captures.drop_stream(&stream) {
            driver.findings.add(Kind::Capture, format!("cuStreamDestroy_v2 of {}, which captures", stream.name));
        }
        let removed = driver.tables().streams.remove(handle);
        removed.map_err(|why| driver.bad_handle("cuStreamDestroy_v2", "stream", handle, why, Code::INVALID_HANDLE))?;
        stream.close();
        Ok(())
    }

    /// Have all commands of the stream passed?
    fn cuStreamQuery(driver, handle: usize) {
        let stream = uncaptured(driver, "cuStreamQuery", handle)?;
        let (given, moment) = stream.end(|| driver.order.mark(stream.actor));
        if !stream.has_passed(given) {
            return Err(Code::NOT_READY);
        }
        driver.order.seen_by_host(&moment);
        stream.context.check()
    }

    /// Blocks until all commands of the stream have passed.
    fn cuStreamSynchronize(driver, handle: usize) {
        driver.current("cuStreamSynchronize")?;
        let stream = uncaptured(driver, "cuStreamSynchronize", handle)?;
        let (given, moment) = stream.end(|| driver.order.mark(stream.actor));
        stream.wait(given);
        driver.order.seen_by_host(&moment);
        stream.context.check()
    }

    /// Holds later commands of the stream back until the record that is the event's last one now has passed.
    fn cuStreamWaitEvent(driver, stream: usize, event: usize, flags: c_uint) {
        const CALL: &str = "cuStreamWaitEvent";
        let stream = driver.stream_here(CALL, stream)?;
        let event = driver.event(CALL, event)?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        match driver.captures.wait(&stream, &event) {
            Ok(WaitKind::Plain) => {}
            Ok(WaitKind::Captured) => return Ok(()),
            Err(why) => return Err(refuse_wait(driver, &stream, why)),
        }
        let Some(mark) = event.mark() else {
            // The CUDA driver treats the event as passed, so such a wait orders nothing.
            driver.findings.add(Kind::NeverRecorded, format!("{CALL} on {}; record the event first", stream.name));
            return Ok(());
        };
        stream.give(|_| {
            driver.order.given_by_host(stream.actor);
            driver.order.after(stream.actor, &mark.moment);
            Command::new(CALL, Work::Wait(mark))
        });
        Ok(())
    }
}

/// The stream of `handle`, which the host asks about: while it captures, nothing of it runs.
fn uncaptured(driver: &Driver, call: &str, handle: usize) -> Outcome<Arc<Stream>> {
    let stream = driver.stream(call, handle)?;
    if let Some(name) = driver.captures.invalidate_stream(&stream) {
        let text = format!("{call} of {name}, which captures");
        return Err(driver.refuse(Kind::Capture, text, Code::STREAM_CAPTURE_UNSUPPORTED));
    }
    Ok(stream)
}

/// Reports a wait that a capture forbids.
fn refuse_wait(driver: &Driver, stream: &Stream, why: NoWait) -> Code {
    const CALL: &str = "cuStreamWaitEvent";
    let (what, code) = match why {
        NoWait::Isolation => {
            ("which captures, for an event that was not recorded in the capture", Code::STREAM_CAPTURE_ISOLATION)
        }
        NoWait::Merge => ("which captures, for an event of another capture", Code::STREAM_CAPTURE_MERGE),
        NoWait::Ended => ("for an event that was recorded in a capture which has ended", Code::CAPTURED_EVENT),
        NoWait::Invalidated => return Code::STREAM_CAPTURE_INVALIDATED,
        NoWait::OtherContext => return Code::NOT_SUPPORTED,
    };
    driver.refuse(Kind::Capture, format!("{CALL} of {}, {what}", stream.name), code)
}

fn create(driver: &Arc<Driver>, call: &str, place: &Out<usize>, flags: c_uint) -> Outcome {
    let context = driver.current(call)?;
    place.check()?;
    if flags & NON_BLOCKING == 0 {
        let text = format!("{call} of a stream that waits for the null stream; make it non-blocking");
        return Err(driver.refuse(Kind::NullStream, text, Code::NOT_SUPPORTED));
    }
    let stream = start_stream(driver, &context)?;
    place.put(driver.tables().streams.add(stream))
}
