//! Failures inside kernels: where a kernel tells of them, and when they are read.
//!
//! A kernel that can fail (integer division by zero, a negative exponent) is given the address of a [`Status`] in
//! page-locked memory. It is read once the launch is over, which an event of its own behind it shows: whoever sees a later
//! place passed, on this stream or through a wait on another, finds this event passed too, as the driver's order is one
//! order. Kernels that cannot fail have neither.
//!
//! Launches of one stream are over in their order, so each stream has a queue of its own, and only its head is asked for.
//!
//! A status is, in turn, free, under way (written by the device alone) and free again once it has been read. What is under
//! way when its device is lost stays so: the device may still write it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use super::abi::Status;
use super::driver::{Driver, DriverFailure, EventHandle};
use super::function::FunctionName;
use crate::device::{LateCause, LateFailure};
use crate::error::Error;

/// Bytes of page-locked memory asked for at a time: what the driver locks at least.
const PAGE: usize = 4096;

/// One status and the event behind the launch that has it.
#[derive(Debug)]
pub(super) struct Slot {
    status: *mut Status,
    passed: EventHandle,
}

// SAFETY: a slot is one owner's at a time, as it moves; the memory behind it is the driver's and of no thread.
unsafe impl Send for Slot {}

impl Slot {
    /// For the kernel's arguments: page-locked memory has one address for host and devices.
    pub(super) fn address(&self) -> u64 {
        self.status.addr() as u64
    }

    /// To be recorded behind the launch.
    pub(super) fn passed(&self) -> EventHandle {
        self.passed
    }

    fn clear(&mut self) {
        // SAFETY: the status lies in a page that lives as long as the statuses, and no launch has it now.
        unsafe { self.status.write_volatile(Status::CLEAR) }
    }

    fn read(&self) -> Status {
        // SAFETY: as in `clear`; the launch that had it is over.
        unsafe { self.status.read_volatile() }
    }
}

/// A launch that may have failed.
#[derive(Debug)]
struct UnderWay {
    slot: Slot,
    function: FunctionName,
    /// The engine's numbers of the instruction.
    stream: u32,
    seq: u64,
}

/// The launches of one stream that are under way, the oldest first. Its stream adds, whoever collects takes.
#[derive(Debug, Default)]
pub(super) struct Watched(Mutex<VecDeque<UnderWay>>);

impl Watched {
    fn lock(&self) -> MutexGuard<'_, VecDeque<UnderWay>> {
        whole(&self.0)
    }
}

#[derive(Debug, Default)]
struct Slots {
    free: Vec<Slot>,
    pages: Vec<Page>,
}

#[derive(Copy, Clone, Debug)]
struct Page(*mut u8);

// SAFETY: an address, which the slots made of it use as they may.
unsafe impl Send for Page {}

/// The statuses of one device. No driver is called under a lock that a launch takes.
#[derive(Debug, Default)]
pub(super) struct Statuses {
    slots: Mutex<Slots>,
    /// One for each stream; one whose stream is gone stays until all in it is over.
    streams: Mutex<Vec<Arc<Watched>>>,
    told: Mutex<Vec<LateFailure>>,
    /// Held by whoever asks the driver: the head of a stream is then taken by nobody else.
    collecting: Mutex<()>,
    /// Launches under way and failures not told: what there is to look at.
    open: AtomicUsize,
}

impl Statuses {
    /// What a new stream keeps its launches in.
    pub(super) fn watch(&self) -> Arc<Watched> {
        let watched = Arc::new(Watched::default());
        let mut streams = whole(&self.streams);
        streams.retain(|known| Arc::strong_count(known) > 1 || !known.lock().is_empty());
        streams.push(Arc::clone(&watched));
        watched
    }

    /// A cleared slot. The device's context is current.
    pub(super) fn acquire(&self, driver: Driver) -> Result<Slot, DriverFailure> {
        let free = whole(&self.slots).free.pop();
        let mut slot = free.map_or_else(|| self.grow(driver), Ok)?;
        slot.clear();
        Ok(slot)
    }

    /// Takes back a slot whose kernel was not launched.
    pub(super) fn give_back(&self, slot: Slot) {
        whole(&self.slots).free.push(slot);
    }

    /// A kernel has been launched with the slot, and its event recorded behind it, on the stream of `watched`.
    pub(super) fn launched(&self, watched: &Watched, slot: Slot, function: FunctionName, stream: u32, seq: u64) {
        self.open.fetch_add(1, Ordering::AcqRel);
        watched.lock().push_back(UnderWay { slot, function, stream, seq });
    }

    /// Is there something to look at?
    pub(super) fn are_open(&self) -> bool {
        self.open.load(Ordering::Acquire) > 0
    }

    /// Reads what has passed: asks of each stream for the oldest, until one has not passed. The device's context is current.
    ///
    /// # Errors
    /// The driver cannot tell what has passed; what was read is kept.
    pub(super) fn collect(&self, driver: Driver) -> Result<(), DriverFailure> {
        let _alone = whole(&self.collecting);
        let streams: SmallVec<[Arc<Watched>; 8]> = whole(&self.streams).iter().cloned().collect();
        for watched in &streams {
            let oldest = || watched.lock().front().map(|launch| launch.slot.passed);
            while let Some(passed) = oldest() {
                // SAFETY: events of slots live as long as the statuses.
                if !unsafe { driver.query_event(passed) }? {
                    break;
                }
                // The same: streams add behind it, and nobody else takes.
                let Some(UnderWay { slot, function, stream, seq }) = watched.lock().pop_front() else { break };
                self.over(slot, function, stream, seq);
                self.open.fetch_sub(1, Ordering::AcqRel);
            }
        }
        Ok(())
    }

    /// Reads the slot of a launch that is known to be over.
    pub(super) fn over(&self, slot: Slot, function: FunctionName, stream: u32, seq: u64) {
        if let Some(failure) = failure(function, &slot, stream, seq) {
            self.open.fetch_add(1, Ordering::AcqRel);
            whole(&self.told).push(failure);
        }
        self.give_back(slot);
    }

    /// What was read and not told yet.
    pub(super) fn take(&self) -> Vec<LateFailure> {
        let told = std::mem::take(&mut *whole(&self.told));
        self.open.fetch_sub(told.len(), Ordering::AcqRel);
        told
    }

    /// Gives everything back to the driver. Its context is current, nothing is running.
    pub(super) fn end(&mut self, driver: Driver) {
        let Slots { free, pages } = std::mem::take(&mut *whole(&self.slots));
        let streams = std::mem::take(&mut *whole(&self.streams));
        let under_way = streams.iter().flat_map(|watched| std::mem::take(&mut *watched.lock()));
        for slot in free.into_iter().chain(under_way.map(|launch| launch.slot)) {
            // SAFETY: the event is the slot's own, and the slot is gone with this.
            let _ = unsafe { driver.destroy_event(slot.passed) };
        }
        for page in pages {
            // SAFETY: the page came from `allocate_host`; no slot of it is left, and nothing is running.
            let _ = unsafe { driver.free_host(page.0) };
        }
    }

    /// A page more of slots; one of them.
    fn grow(&self, driver: Driver) -> Result<Slot, DriverFailure> {
        let page = driver.allocate_host(PAGE, false)?;
        whole(&self.slots).pages.push(Page(page));
        let slot = |at: usize| -> Result<Slot, DriverFailure> {
            let status = page.wrapping_add(at * size_of::<Status>()).cast();
            Ok(Slot { status, passed: driver.create_event(false)? })
        };
        let first = slot(0)?;
        // If the driver has no more events, what there is will do.
        let others: Vec<Slot> = (1..PAGE / size_of::<Status>()).map_while(|at| slot(at).ok()).collect();
        whole(&self.slots).free.extend(others);
        Ok(first)
    }
}

/// No code here panics half way through a change, so a poisoned lock guards whole state.
fn whole<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failure(function: FunctionName, slot: &Slot, stream: u32, seq: u64) -> Option<LateFailure> {
    let error = function.failure(&slot.read()).err()?;
    Some(LateFailure { stream, seq, cause: LateCause::Device(Error::Kernel(error)) })
}
