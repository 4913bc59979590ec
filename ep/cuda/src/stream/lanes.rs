//! The lanes of a stream: commands of one instruction that the device may run side by side, on *side streams* of the instruction's stream.
//!
//! [`Graphs::begin_lanes`](streamvm_ep::Graphs::begin_lanes) forks the side streams from the stream: each waits for an event that is recorded on it.
//! [`Graphs::end_lanes`](streamvm_ep::Graphs::end_lanes) joins them: the stream waits for an event that is recorded on each. In between, lanes wait for
//! each other's marks, which are events too. While the stream captures, the fork takes the side streams into the capture, the same events become
//! the edges of the graph, and the join is what the driver asks for at the end of a capture.
//!
//! Invariants:
//! * Outside of lanes, nothing is queued on a side stream that the stream does not come after. So what shows that a command of the stream has
//!   passed shows it for all lanes before, and memory of an instruction is safe for all of its lanes.
//! * Side streams are made outside of captures, when lanes are needed for the first time, and are kept until the stream is dropped. Where
//!   the driver refuses them or a fork, the commands of all lanes are queued on the stream, in their order.
//! * An event of a mark or of the fork is recorded again only when every wait for its last record has been queued: such a wait keeps that record.

use streamvm_ep::{Error, KernelError};

use crate::driver::error_codes::ends_device;
use crate::driver::{Driver, DriverFailure, EventHandle, StreamHandle};
use crate::instance::timing::Start;
use crate::stream::CudaStream;
use crate::stream::blas::{Blas, BlasError};
use crate::stream::scratch::Scratch;

/// A stream beside a [`CudaStream`].
#[derive(Debug)]
struct SideStream {
    handle: StreamHandle,
    /// Recorded after the commands of the lane when lanes end.
    joined: EventHandle,
    /// cuBLAS, once a product has asked for it; the inner `None` if there is none.
    blas: Option<Option<Blas>>,
    /// Scratch memory, once a reduction has asked for it.
    scratch: Option<Scratch>,
}

/// The lanes of a stream.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    /// Those of lanes 1, 2 and so on.
    side: Vec<SideStream>,
    /// Recorded on the stream when lanes begin.
    fork: Option<EventHandle>,
    /// The event of each mark.
    marks: Vec<EventHandle>,
    /// How many side streams were forked and not joined yet; 0 outside of lanes.
    forked: usize,
    /// The lane of the next command.
    current: usize,
    /// The beginning of the time of all lanes, if times are requested.
    begun: Option<Start>,
}

impl Lanes {
    /// Whether the stream is between a fork and its join.
    #[inline]
    pub(super) fn are_open(&self) -> bool {
        self.forked > 0
    }

    /// The driver's side streams.
    pub(super) fn handles(&self) -> impl Iterator<Item = StreamHandle> + '_ {
        self.side.iter().map(|side| side.handle)
    }

    /// The driver's stream for the next command; `stream` is that of lane 0.
    #[inline]
    pub(super) fn current_handle(&self, stream: StreamHandle) -> StreamHandle {
        self.current.checked_sub(1).map_or(stream, |side| self.side[side].handle)
    }

    /// cuBLAS for the next command, if there is one; `blas` is that of lane 0.
    pub(super) fn current_blas<'b>(&'b self, blas: Option<&'b Blas>) -> Option<&'b Blas> {
        match self.current.checked_sub(1) {
            None => blas,
            Some(side) => self.side[side].blas.as_ref().and_then(Option::as_ref),
        }
    }

    /// The lane of the next command.
    pub(super) fn current(&self) -> usize {
        self.current
    }

    /// The scratch memory of a lane, if it has some; `stream` is that of lane 0.
    #[inline]
    pub(super) fn scratch(&self, lane: usize, stream: Option<Scratch>) -> Option<Scratch> {
        lane.checked_sub(1).map_or(stream, |side| self.side[side].scratch)
    }

    /// Where the scratch memory of each side stream is kept.
    pub(super) fn scratch_of_sides(&mut self) -> impl Iterator<Item = &mut Option<Scratch>> {
        self.side.iter_mut().map(|side| &mut side.scratch)
    }

    /// Makes side streams until there are `needed`, and the event of the fork. The context is current.
    fn make(&mut self, driver: Driver, needed: usize, priority: i32) -> Result<(), DriverFailure> {
        while self.side.len() < needed {
            let handle = driver.create_stream(priority)?;
            let joined = driver.create_event(false).inspect_err(|_| {
                // SAFETY: the stream was made just now, and nothing uses it.
                let _ = unsafe { driver.destroy_stream(handle) };
            })?;
            self.side.push(SideStream { handle, joined, blas: None, scratch: None });
        }
        if self.fork.is_none() {
            self.fork = Some(driver.create_event(false)?);
        }
        Ok(())
    }

    /// Lets `side` side streams come after every command of `stream` so far. The context is current.
    fn fork(&mut self, driver: Driver, stream: StreamHandle, side: usize) -> Result<(), DriverFailure> {
        let Some(fork) = self.fork else { return Ok(()) };
        // SAFETY: the event and both streams are alive, and of the current context.
        unsafe { driver.record(fork, stream) }?;
        for SideStream { handle, .. } in &self.side[..side] {
            // SAFETY: as above.
            unsafe { driver.stream_wait(*handle, fork) }?;
        }
        (self.forked, self.current) = (side, 0);
        Ok(())
    }

    /// Destroys what the driver has made for lanes; what is queued still runs. The context is current.
    pub(super) fn destroy(&mut self, driver: Driver) {
        let Lanes { side, fork, marks, .. } = std::mem::take(self);
        let (mut events, mut streams) = (marks, Vec::new());
        events.extend(fork);
        for SideStream { handle, joined, blas, .. } in side {
            // Destroyed before its stream.
            drop(blas);
            events.push(joined);
            streams.push(handle);
        }
        for event in events {
            // SAFETY: the lanes have owned the event, which is not used after this.
            let _ = unsafe { driver.destroy_event(event) };
        }
        for stream in streams {
            // SAFETY: as above, for the stream.
            let _ = unsafe { driver.destroy_stream(stream) };
        }
    }

    /// Leaks what the driver has made for lanes, because it may be destroyed in its own context only.
    pub(super) fn forget(&mut self) {
        std::mem::forget(std::mem::take(self));
    }
}

impl CudaStream {
    /// [`Graphs::begin_lanes`](streamvm_ep::Graphs::begin_lanes). There are no lanes under `sync_each_op`, which waits for each command.
    pub(super) fn fork(&mut self, lanes: usize) -> Result<(), Error> {
        self.join()?;
        self.device().check()?;
        if lanes < 2 || self.instance.config.sync_each_op {
            return Ok(());
        }
        let needed = lanes - 1;
        if self.lanes.side.len() < needed && self.capture.is_some() {
            // A run that was not captured could not make them: the lanes are captured one after the other.
            return Ok(());
        }
        let (driver, device) = (self.instance.driver, &self.instance.devices[self.index]);
        let current = device.enter(self.instance.opened(self.index)?)?;
        let begun = self.begin_time();
        let forked = self.lanes.make(driver, needed, self.priority);
        let forked = forked.and_then(|()| self.lanes.fork(driver, self.handle, needed));
        self.lanes.begun = if forked.is_ok() { begun } else { None };
        let Err(failure) = forked else { return Ok(()) };
        self.end_time(begun, false);
        if ends_device(failure.code()) {
            return Err(device.fail(failure));
        }
        drop(current);
        log::debug!("{} runs lanes one after the other: {} gave code {}", device.id, failure.call, failure.code());
        if let Some(capture) = &mut self.capture {
            capture.failed = true;
        }
        Ok(())
    }

    /// [`Graphs::enter_lane`](streamvm_ep::Graphs::enter_lane).
    pub(super) fn enter(&mut self, lane: usize, behind: &[usize]) -> Result<(), Error> {
        if !self.lanes.are_open() {
            return Ok(());
        }
        self.lanes.current = lane.min(self.lanes.forked);
        for mark in behind {
            let Some(&event) = self.lanes.marks.get(*mark) else {
                return Err(
                    KernelError::Other(format!("lane {lane} waits for mark {mark}, which no lane has set")).into()
                );
            };
            // SAFETY: event and stream live until `self` is dropped.
            self.submit("wait of a lane", |driver, _, stream| unsafe { driver.stream_wait(stream, event) })?;
        }
        Ok(())
    }

    /// [`Graphs::mark_lane`](streamvm_ep::Graphs::mark_lane).
    pub(super) fn mark(&mut self, mark: usize) -> Result<(), Error> {
        if !self.lanes.are_open() {
            return Ok(());
        }
        let (driver, device) = (self.instance.driver, &self.instance.devices[self.index]);
        if self.lanes.marks.len() <= mark {
            let _current = device.enter(self.instance.opened(self.index)?)?;
            while self.lanes.marks.len() <= mark {
                self.lanes.marks.push(driver.create_event(false).map_err(|failure| device.fail(failure))?);
            }
        }
        let event = self.lanes.marks[mark];
        // SAFETY: event and stream live until `self` is dropped, and are of the current context.
        self.submit("mark of a lane", |driver, _, stream| unsafe { driver.record(event, stream) })
    }

    /// [`Graphs::end_lanes`](streamvm_ep::Graphs::end_lanes).
    ///
    /// # Errors
    /// The device is lost: it cannot be told when the commands of a lane are over.
    pub(super) fn join(&mut self) -> Result<(), Error> {
        if !self.lanes.are_open() {
            return Ok(());
        }
        let forked = std::mem::take(&mut self.lanes.forked);
        let begun = self.lanes.begun.take();
        self.lanes.current = 0;
        let (driver, device) = (self.instance.driver, &self.instance.devices[self.index]);
        let entered = self.instance.opened(self.index).and_then(|opened| device.enter(opened));
        let _current = entered.map_err(|error| device.mark_lost(format!("its lanes cannot be joined: {error}")))?;
        for SideStream { handle, joined, .. } in &self.lanes.side[..forked] {
            // SAFETY: the event and both streams are alive, and of the current context.
            let recorded = unsafe { driver.record(*joined, *handle) };
            // SAFETY: as above.
            let queued = recorded.and_then(|()| unsafe { driver.stream_wait(self.handle, *joined) });
            let Err(failure) = queued else { continue };
            if ends_device(failure.code()) {
                return Err(device.fail(failure));
            }
            if let Some(capture) = &mut self.capture {
                // The driver ends the capture without a graph, for all of its streams.
                capture.failed = true;
                continue;
            }
            // Nothing shows when the lane is over, so it is waited for.
            // SAFETY: the stream is alive.
            if let Err(failure) = unsafe { driver.synchronize_stream(*handle) } {
                let text = format!("{} gave code {} behind commands of a lane", failure.call, failure.code());
                return Err(device.mark_lost(text));
            }
        }
        self.end_time(begun, true);
        Ok(())
    }

    /// Makes cuBLAS for the lane of the next command, if that has none yet: at the first product of a side stream outside of captures. It takes memory
    /// of the device, which most side streams do not need, and may wait for the device, once.
    pub(super) fn make_side_blas(&mut self) {
        let Some(side) = self.lanes.current.checked_sub(1) else { return };
        if self.lanes.side[side].blas.is_some() || self.blas.is_none() || self.capture.is_some() {
            return;
        }
        let handle = self.lanes.side[side].handle;
        let device = &self.instance.devices[self.index];
        let current = self.instance.opened(self.index).and_then(|opened| device.enter(opened));
        let made = current.ok().and_then(|_current| {
            // SAFETY: `destroy` destroys the stream after its cuBLAS; its context is current.
            let made = unsafe { Blas::new(self.instance.driver, handle, device.capability) };
            made.inspect_err(BlasError::log).ok()
        });
        self.lanes.side[side].blas = Some(made);
    }
}
