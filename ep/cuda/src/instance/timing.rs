//! The times at which instructions ran, by the device's clock, if requested.
//!
//! The commands of an instruction are between two events with timing. The thread that calls [`Timing::take`] reads them once the second
//! has passed; then they are reused. A time counts from the device's *origin*, an event recorded when its first such stream was opened,
//! so times of all streams of a device can be compared.
//!
//! The driver returns the milliseconds between two events as an `f32`, which is coarse for events that are far apart. So each stream has
//! an event of its own, recorded when it was opened, and adds up from event to event: the pause since the end of the last instruction,
//! then the instruction. Therefore times of one stream never overlap.
//!
//! Errors here never fail an instruction: an instruction that cannot be timed or read has no time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use smallvec::SmallVec;
use streamvm_ep::InstructionTime;

use crate::driver::{Driver, DriverFailure, EventHandle, StreamHandle};

/// Nanoseconds per millisecond, the unit of the driver.
const MILLISECOND: f64 = 1e6;

/// The event before the commands of an instruction.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Start {
    event: EventHandle,
    /// When the host recorded it.
    launched: Instant,
}

/// An instruction between its two events.
#[derive(Copy, Clone, Debug)]
struct TimedInstruction {
    start: Start,
    end: EventHandle,
    /// The engine's numbers of the instruction.
    stream: u32,
    seq: u64,
}

/// The state of [`StreamTiming`].
#[derive(Debug)]
struct StreamTimes {
    /// The oldest first. The stream appends; the thread that collects removes.
    instructions: VecDeque<TimedInstruction>,
    /// The event from which the next pause is counted: that of the opening, or the end of the last instruction that was read.
    last: EventHandle,
    /// Nanoseconds from the device's origin to `last`, once known.
    last_at: Option<f64>,
}

/// The instructions of one stream whose times have not been read yet.
#[derive(Debug)]
pub(crate) struct StreamTiming(Mutex<StreamTimes>);

/// The event from which a device's times count, and when it was by the clock of the host: between these two times.
#[derive(Copy, Clone, Debug)]
struct Origin {
    event: EventHandle,
    zero: [Instant; 2],
}

/// The times of one device. The driver is never called under a lock that a launch takes.
#[derive(Debug, Default)]
pub(crate) struct Timing {
    origin: Mutex<Option<Origin>>,
    free: Mutex<Vec<EventHandle>>,
    /// Every event, in use or not.
    all: Mutex<Vec<EventHandle>>,
    /// One per stream; that of a dropped stream stays until all of it has been read.
    streams: Mutex<Vec<Arc<StreamTiming>>>,
    /// Times that have been read and not taken yet.
    measured: Mutex<Vec<InstructionTime>>,
    /// Held by the thread that reads.
    collecting: Mutex<()>,
}

impl Timing {
    /// The times of a new stream. `idle` is a stream without commands, for which the first call waits. The device's context must be
    /// current, and the streams alive.
    pub(crate) fn open(
        &self,
        driver: Driver,
        stream: StreamHandle,
        idle: StreamHandle,
    ) -> Result<Arc<StreamTiming>, DriverFailure> {
        let mut origin = lock(&self.origin);
        if origin.is_none() {
            let record = || {
                let before = Instant::now();
                let event = self.record(driver, idle)?;
                // SAFETY: the caller guarantees that the stream is alive.
                unsafe { driver.synchronize_stream(idle) }?;
                Ok::<_, DriverFailure>(Origin { event, zero: [before, Instant::now()] })
            };
            // The first call of a driver may take long.
            self.give_back(record()?.event);
            *origin = Some(record()?);
        }
        drop(origin);
        let last = self.record(driver, stream)?;
        let timing =
            Arc::new(StreamTiming(Mutex::new(StreamTimes { instructions: VecDeque::new(), last, last_at: None })));
        let mut streams = lock(&self.streams);
        let mut free = lock(&self.free);
        streams.retain(|known| {
            let times = lock(&known.0);
            let stays = Arc::strong_count(known) > 1 || !times.instructions.is_empty();
            free.extend((!stays).then_some(times.last));
            stays
        });
        streams.push(Arc::clone(&timing));
        Ok(timing)
    }

    /// Records an event on a stream, which must be alive and of the current context.
    pub(crate) fn record(&self, driver: Driver, stream: StreamHandle) -> Result<EventHandle, DriverFailure> {
        let free = lock(&self.free).pop();
        let event = match free {
            Some(event) => event,
            None => {
                let new = driver.create_event(true)?;
                lock(&self.all).push(new);
                new
            }
        };
        // SAFETY: the event is of the current context and lives as long as `self`; the caller guarantees the stream.
        let recorded = unsafe { driver.record(event, stream) };
        recorded.map(|()| event).inspect_err(|_| self.give_back(event))
    }

    /// Records the event before the commands of an instruction, as [`record`](Timing::record).
    pub(crate) fn begin(&self, driver: Driver, stream: StreamHandle) -> Result<Start, DriverFailure> {
        let launched = Instant::now();
        Ok(Start { event: self.record(driver, stream)?, launched })
    }

    /// Takes back an event that will not be read.
    fn give_back(&self, event: EventHandle) {
        lock(&self.free).push(event);
    }

    /// Takes back the event before commands that were not submitted.
    pub(crate) fn cancel(&self, start: Start) {
        self.give_back(start.event);
    }

    /// Assigns the commands between the two events to an instruction.
    pub(crate) fn add(&self, timing: &StreamTiming, (start, end): (Start, EventHandle), stream: u32, seq: u64) {
        lock(&timing.0).instructions.push_back(TimedInstruction { start, end, stream, seq });
    }

    /// The times that became known since the last call, in order for each stream. The device's context must be current.
    pub(crate) fn take(&self, driver: Driver) -> Vec<InstructionTime> {
        let alone = lock(&self.collecting);
        let origin = *lock(&self.origin);
        let Some(origin) = origin else { return Vec::new() };
        let mut unread = Vec::new();
        let streams: SmallVec<[Arc<StreamTiming>; 8]> = lock(&self.streams).iter().cloned().collect();
        streams.iter().for_each(|timing| self.collect(driver, timing, origin, &mut unread));
        let measured = std::mem::take(&mut *lock(&self.measured));
        drop(alone);
        // Without a lock, because loggers are user code.
        for (stream, seq, failure) in unread {
            log::debug!("{stream}:{seq} has no time: {} gave code {}", failure.call, failure.code());
        }
        measured
    }

    /// Reads the instructions of one stream that have passed. Adds the stream and number of those whose time the driver refuses to `unread`.
    fn collect(
        &self,
        driver: Driver,
        timing: &StreamTiming,
        origin: Origin,
        unread: &mut Vec<(u32, u64, DriverFailure)>,
    ) {
        let next = || {
            let times = lock(&timing.0);
            times.instructions.front().map(|instruction| (*instruction, times.last, times.last_at))
        };
        while let Some((TimedInstruction { start, end, stream, seq }, last, last_at)) = next() {
            // SAFETY: the events live as long as `self`.
            match unsafe { driver.query_event(end) } {
                Ok(true) => {}
                Ok(false) => return,
                // The device may be lost; other calls detect that. No further times of this stream are read now.
                Err(_) => return,
            }
            // SAFETY: as above.
            let between =
                |first, second| unsafe { driver.elapsed(first, second) }.map(|time| f64::from(time) * MILLISECOND);
            let read = || {
                let begun = match last_at {
                    Some(at) => at,
                    None => between(origin.event, last)?,
                };
                Ok::<_, DriverFailure>((
                    begun + between(last, start.event)?.max(0.0),
                    between(start.event, end)?.max(0.0),
                ))
            };
            let read = read();
            // This is still the front: the stream only appends, and no other thread removes.
            let mut times = lock(&timing.0);
            times.instructions.pop_front();
            let spare = match read {
                Ok((from, length)) => {
                    (times.last, times.last_at) = (end, Some(from + length));
                    // The device's origin is before all commands of its timed streams, so a negative value is a rounding error.
                    let time = |at: f64| at.max(0.0) as u64;
                    lock(&self.measured).push(InstructionTime {
                        stream,
                        seq,
                        start: time(from),
                        end: time(from + length),
                        launched: start.launched,
                        zero: origin.zero,
                    });
                    last
                }
                Err(failure) => {
                    unread.push((stream, seq, failure));
                    end
                }
            };
            drop(times);
            lock(&self.free).extend([start.event, spare]);
        }
    }

    /// Destroys every event. The device's context must be current, and nothing may be running.
    pub(crate) fn destroy(&mut self, driver: Driver) {
        for event in std::mem::take(&mut *lock(&self.all)) {
            // SAFETY: the event was made in this context, and all streams with times have been dropped.
            let _ = unsafe { driver.destroy_event(event) };
        }
    }
}

/// No code here panics while the state is inconsistent, so a poisoned lock guards valid state.
fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
