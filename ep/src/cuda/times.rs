//! When instructions ran, by the device's own clock: only where somebody wants to know.
//!
//! What a stream is given for an instruction stands between two events with timing. They are read once the second has passed,
//! by whoever asks ([`Times::take`]), and used again. A time is counted from the device's *zero*, an event recorded when its
//! first such stream was opened, so times of all streams of a device can be compared.
//!
//! The driver tells the milliseconds between two events as an `f32`, which is coarse for events that are far apart. So each
//! stream has an event of its own, recorded when it was opened, and then counts from event to event: the pause since the last
//! instruction's end, and the instruction. Therefore times of one stream never overlap.
//!
//! Nothing here fails an instruction: what cannot be marked or read has no time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use super::driver::{Driver, DriverFailure, EventHandle, StreamHandle};
use crate::device::Ran;

/// Nanoseconds in what the driver counts in.
const MILLISECOND: f64 = 1e6;

/// An instruction between its two events.
#[derive(Copy, Clone, Debug)]
struct Marked {
    start: EventHandle,
    end: EventHandle,
    /// The engine's numbers of the instruction.
    stream: u32,
    seq: u64,
}

#[derive(Debug)]
struct Line {
    /// The oldest first. The stream adds, whoever collects takes.
    marked: VecDeque<Marked>,
    /// What the stream counts from: the event of its opening, or the end of what was read last.
    last: EventHandle,
    /// Nanoseconds from the device's zero to `last`, once that is known.
    at: Option<f64>,
}

/// The instructions of one stream that have no time yet.
#[derive(Debug)]
pub(super) struct Timed(Mutex<Line>);

/// The times of one device. No driver is called under a lock that a launch takes.
#[derive(Debug, Default)]
pub(super) struct Times {
    zero: Mutex<Option<EventHandle>>,
    free: Mutex<Vec<EventHandle>>,
    /// Every event, in use or not.
    all: Mutex<Vec<EventHandle>>,
    /// One for each stream; one whose stream is gone stays until all of it was read.
    streams: Mutex<Vec<Arc<Timed>>>,
    told: Mutex<Vec<Ran>>,
    /// Held by whoever reads.
    collecting: Mutex<()>,
}

impl Times {
    /// What a new stream keeps its instructions in; `idle` is a stream with nothing on it. Waits for that one. The device's
    /// context is current, and the streams are alive.
    pub(super) fn open(
        &self,
        driver: Driver,
        stream: StreamHandle,
        idle: StreamHandle,
    ) -> Result<Arc<Timed>, DriverFailure> {
        let mut zero = whole(&self.zero);
        if zero.is_none() {
            *zero = Some(self.mark(driver, idle)?);
            // SAFETY: the caller says that it is alive.
            unsafe { driver.synchronize_stream(idle) }?;
        }
        drop(zero);
        let last = self.mark(driver, stream)?;
        let timed = Arc::new(Timed(Mutex::new(Line { marked: VecDeque::new(), last, at: None })));
        let mut streams = whole(&self.streams);
        let mut free = whole(&self.free);
        streams.retain(|known| {
            let line = whole(&known.0);
            let stays = Arc::strong_count(known) > 1 || !line.marked.is_empty();
            free.extend((!stays).then_some(line.last));
            stays
        });
        streams.push(Arc::clone(&timed));
        Ok(timed)
    }

    /// Marks this place of a stream, which is alive, of the current context.
    pub(super) fn mark(&self, driver: Driver, stream: StreamHandle) -> Result<EventHandle, DriverFailure> {
        let free = whole(&self.free).pop();
        let event = match free {
            Some(event) => event,
            None => {
                let new = driver.create_event(true)?;
                whole(&self.all).push(new);
                new
            }
        };
        // SAFETY: the event is one of this context, and alive as long as this is; the stream as the caller says.
        let recorded = unsafe { driver.record(event, stream) };
        recorded.map(|()| event).inspect_err(|_| self.give_back(event))
    }

    /// Takes back an event that nobody will read.
    pub(super) fn give_back(&self, event: EventHandle) {
        whole(&self.free).push(event);
    }

    /// What was given to the stream between the two events was this instruction.
    pub(super) fn marked(&self, timed: &Timed, (start, end): (EventHandle, EventHandle), stream: u32, seq: u64) {
        whole(&timed.0).marked.push_back(Marked { start, end, stream, seq });
    }

    /// The times that are known since the last call, of each stream in its order. The device's context is current.
    pub(super) fn take(&self, driver: Driver) -> Vec<Ran> {
        let _alone = whole(&self.collecting);
        let zero = *whole(&self.zero);
        let Some(zero) = zero else { return Vec::new() };
        let streams: SmallVec<[Arc<Timed>; 8]> = whole(&self.streams).iter().cloned().collect();
        streams.iter().for_each(|timed| self.collect(driver, timed, zero));
        std::mem::take(&mut *whole(&self.told))
    }

    /// Reads what has passed of one stream.
    fn collect(&self, driver: Driver, timed: &Timed, zero: EventHandle) {
        let next = || {
            let line = whole(&timed.0);
            line.marked.front().map(|marked| (*marked, line.last, line.at))
        };
        while let Some((Marked { start, end, stream, seq }, last, at)) = next() {
            // SAFETY: events live as long as this.
            match unsafe { driver.query_event(end) } {
                Ok(true) => {}
                Ok(false) => return,
                // It may have ended the device, where this is asked again and again: nothing of it is told any more.
                Err(_) => return,
            }
            // SAFETY: as above.
            let between =
                |first, second| unsafe { driver.elapsed(first, second) }.map(|time| f64::from(time) * MILLISECOND);
            let read = || {
                let begun = match at {
                    Some(at) => at,
                    None => between(zero, last)?,
                };
                Ok::<_, DriverFailure>((begun + between(last, start)?.max(0.0), between(start, end)?.max(0.0)))
            };
            let read = read();
            // The same: the stream adds behind it, and nobody else takes.
            let mut line = whole(&timed.0);
            line.marked.pop_front();
            let spare = match read {
                Ok((from, length)) => {
                    (line.last, line.at) = (end, Some(from + length));
                    // A device's zero comes before all that its streams run.
                    let time = |at: f64| at.max(0.0) as u64;
                    whole(&self.told).push(Ran { stream, seq, start: time(from), end: time(from + length) });
                    last
                }
                Err(failure) => {
                    log::debug!("{stream}:{seq} has no time: {} gave code {}", failure.call, failure.code());
                    end
                }
            };
            drop(line);
            whole(&self.free).extend([start, spare]);
        }
    }

    /// Gives every event back to the driver. Its context is current, nothing is running.
    pub(super) fn end(&mut self, driver: Driver) {
        for event in std::mem::take(&mut *whole(&self.all)) {
            // SAFETY: it was made for this device, in its context, and streams with times are gone.
            let _ = unsafe { driver.destroy_event(event) };
        }
    }
}

/// No code here panics half way through a change, so a poisoned lock guards whole state.
fn whole<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
