//! Events.

use std::ffi::c_uint;
use std::sync::{Arc, OnceLock};

use crate::driver::Driver;
use crate::objects::command::{Command, Work};
use crate::objects::event::{Event, Mark};
use crate::values::code::{Code, Outcome};
use crate::values::findings::Kind;
use crate::values::out::Out;

/// The flag of an event without a timestamp.
const DISABLE_TIMING: c_uint = 2;

/// The name under which the creation of events with timestamps is counted.
const TIMED: &str = "cuEventCreate, timed";

/// All flags of events; those other than [`DISABLE_TIMING`] select how the host waits, and whether other processes share the event.
const FLAGS: c_uint = 7;

driver_calls! {
    /// Creates an event of the current context.
    fn cuEventCreate(driver, event: Out<usize>, flags: c_uint) {
        let context = driver.current("cuEventCreate")?;
        event.check()?;
        if flags & !FLAGS != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let timed = flags & DISABLE_TIMING == 0;
        if timed {
            // This only counts: no fault can have this name, which is not that of a function.
            let _ = driver.faults.call(TIMED);
        }
        let new = Event::new(context, timed);
        event.put(driver.tables().events.add(Arc::new(new)))
    }

    /// Destroys an event. Waits that were queued keep the record that they wait for.
    fn cuEventDestroy_v2(driver, handle: usize) {
        driver.event("cuEventDestroy_v2", handle)?;
        let removed = driver.tables().events.remove(handle);
        removed.map_err(|why| driver.bad_handle("cuEventDestroy_v2", "event", handle, why, Code::INVALID_HANDLE))?;
        Ok(())
    }

    /// Records the event after all commands of the stream so far.
    fn cuEventRecord(driver, event: usize, stream: usize) {
        const CALL: &str = "cuEventRecord";
        let stream = driver.stream_here(CALL, stream)?;
        let event = driver.event(CALL, event)?;
        if event.context.handle != stream.context.handle {
            let text = format!("{CALL} of an event of cuda:{} on {}", event.context.device, stream.name);
            return Err(driver.refuse(Kind::WrongContext, text, Code::INVALID_HANDLE));
        }
        if driver.captures.record(&stream, &event)? {
            return Ok(());
        }
        stream.give(|number| {
            driver.order.given_by_host(stream.actor);
            let moment = driver.order.mark(stream.actor);
            let mark = Mark { stream: Arc::clone(&stream), number, moment, passed_at: OnceLock::new() };
            let mark = Arc::new(mark);
            event.record(Arc::clone(&mark));
            Command::new(CALL, Work::Record(mark))
        });
        Ok(())
    }

    /// Has the last record of the event passed? An event without a record counts as passed.
    fn cuEventQuery(driver, event: usize) {
        let event = uncaptured(driver, "cuEventQuery", event)?;
        let Some(mark) = event.mark() else { return Ok(()) };
        if !mark.has_passed() {
            return Err(Code::NOT_READY);
        }
        driver.order.seen_by_host(&mark.moment);
        event.context.check()
    }

    /// Blocks until the record that is the event's last one now has passed.
    fn cuEventSynchronize(driver, event: usize) {
        driver.current("cuEventSynchronize")?;
        let event = uncaptured(driver, "cuEventSynchronize", event)?;
        let Some(mark) = event.mark() else { return Ok(()) };
        mark.stream.wait(mark.number);
        driver.order.seen_by_host(&mark.moment);
        event.context.check()
    }

    /// Milliseconds between two records.
    fn cuEventElapsedTime(driver, milliseconds: Out<f32>, start: usize, end: usize) {
        elapsed(driver, "cuEventElapsedTime", &milliseconds, start, end)
    }

    /// Milliseconds between two records.
    fn cuEventElapsedTime_v2(driver, milliseconds: Out<f32>, start: usize, end: usize) {
        elapsed(driver, "cuEventElapsedTime_v2", &milliseconds, start, end)
    }
}

/// The event of `handle`, which the host asks about: a record in a capture never passes.
fn uncaptured(driver: &Driver, call: &str, handle: usize) -> Outcome<Arc<Event>> {
    let event = driver.event(call, handle)?;
    if event.captured().is_some() {
        let text = format!("{call} of an event that was recorded in a capture");
        return Err(driver.refuse(Kind::Capture, text, Code::CAPTURED_EVENT));
    }
    Ok(event)
}

fn elapsed(driver: &Driver, call: &str, milliseconds: &Out<f32>, start: usize, end: usize) -> Outcome {
    let (start, end) = (driver.event(call, start)?, driver.event(call, end)?);
    let (true, true, Some(first), Some(last)) = (start.timed, end.timed, start.mark(), end.mark()) else {
        return Err(Code::INVALID_HANDLE);
    };
    let (Some(first), Some(last)) = (first.passed_at.get(), last.passed_at.get()) else {
        return Err(Code::NOT_READY);
    };
    let time = match last.checked_duration_since(*first) {
        Some(time) => time.as_secs_f32(),
        None => -first.duration_since(*last).as_secs_f32(),
    };
    milliseconds.put(time * 1e3)
}
