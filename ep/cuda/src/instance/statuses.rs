//! Failures inside kernels: where a kernel reports them, and when they are read.
//!
//! A kernel that can fail (integer division by zero, a negative exponent, an index out of range) gets the address of a [`Status`] in page-locked memory. The
//! status is read once the launch is over, which an event recorded after it shows. A thread that sees a later place as passed, on this
//! stream or through a wait on another, finds this event passed too, because the driver's order is transitive. Kernels that cannot fail
//! have neither status nor event.
//!
//! Launches of one stream complete in order, so each stream has a queue, and only its head is queried. Those of its lanes may complete in another order: a status
//! may then be read later than it could be, and never later than the end of the lanes.
//!
//! A status is free, then in flight (only the device writes it), and free again once it has been read. A status that is in flight when
//! its device is lost stays so, because the device may still write it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;
use streamvm_ep::{Error, LateCause, LateFailure, ProgramStep};

use crate::driver::{Driver, DriverFailure, EventHandle};
use crate::plan::abi::Status;
use crate::plan::kernel_name::KernelName;

/// Bytes of page-locked memory per request: the smallest unit that the driver locks.
const PAGE: usize = 4096;

/// A status, and the event after the launch that uses it.
#[derive(Debug)]
pub(crate) struct Slot {
    status: *mut Status,
    passed: EventHandle,
}

// SAFETY: a slot is moved between owners and has one at a time. The memory that it points to is the driver's and not tied to a thread.
unsafe impl Send for Slot {}

impl Slot {
    /// The address for the kernel's arguments: page-locked memory has the same address on host and devices.
    pub(crate) fn address(&self) -> u64 {
        self.status.addr() as u64
    }

    /// The event to be recorded after the launch.
    pub(crate) fn passed(&self) -> EventHandle {
        self.passed
    }

    fn clear(&mut self) {
        // SAFETY: the status is in a page that lives as long as the statuses, and no launch uses it now.
        unsafe { self.status.write_volatile(Status::CLEAR) }
    }

    fn read(&self) -> Status {
        // SAFETY: as in `clear`; the launch that used it is over.
        unsafe { self.status.read_volatile() }
    }
}

/// A launch that may have failed.
#[derive(Debug)]
struct InFlight {
    slot: Slot,
    of: Launched,
}

/// A kernel that was launched, and the instruction that it belongs to.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Launched {
    pub(crate) kernel: KernelName,
    /// The engine's numbers of the instruction.
    pub(crate) stream: u32,
    pub(crate) seq: u64,
    /// The step of a program.
    pub(crate) step: Option<ProgramStep>,
}

/// The launches of one stream that are in flight, the oldest first. The stream appends; the thread that collects removes.
#[derive(Debug, Default)]
pub(crate) struct InFlightLaunches(Mutex<VecDeque<InFlight>>);

impl InFlightLaunches {
    fn lock(&self) -> MutexGuard<'_, VecDeque<InFlight>> {
        lock(&self.0)
    }
}

#[derive(Debug, Default)]
struct Slots {
    free: Vec<Slot>,
    pages: Vec<Page>,
}

#[derive(Copy, Clone, Debug)]
struct Page(*mut u8);

// SAFETY: this is only an address; the slots made of it follow their own rules.
unsafe impl Send for Page {}

/// The statuses of one device. The driver is never called under a lock that a launch takes.
#[derive(Debug, Default)]
pub(crate) struct Statuses {
    slots: Mutex<Slots>,
    /// One per stream; that of a dropped stream stays until all its launches are over.
    streams: Mutex<Vec<Arc<InFlightLaunches>>>,
    failures: Mutex<Vec<LateFailure>>,
    /// Held by the thread that queries the driver, so that no other thread removes the head of a queue.
    collecting: Mutex<()>,
    /// The number of launches in flight plus failures not yet returned.
    pending: AtomicUsize,
}

impl Statuses {
    /// The queue of launches of a new stream.
    pub(crate) fn add_stream(&self) -> Arc<InFlightLaunches> {
        let launches = Arc::new(InFlightLaunches::default());
        let mut streams = lock(&self.streams);
        streams.retain(|known| Arc::strong_count(known) > 1 || !known.lock().is_empty());
        streams.push(Arc::clone(&launches));
        launches
    }

    /// A cleared slot. The device's context must be current.
    pub(crate) fn acquire(&self, driver: Driver) -> Result<Slot, DriverFailure> {
        let free = lock(&self.slots).free.pop();
        let mut slot = free.map_or_else(|| self.grow(driver), Ok)?;
        slot.clear();
        Ok(slot)
    }

    /// Takes back a slot whose kernel was not launched.
    pub(crate) fn give_back(&self, slot: Slot) {
        lock(&self.slots).free.push(slot);
    }

    /// Records that a kernel was launched with the slot, and the slot's event after it, on the stream of `launches`.
    pub(crate) fn launched(&self, launches: &InFlightLaunches, slot: Slot, of: Launched) {
        self.pending.fetch_add(1, Ordering::AcqRel);
        launches.lock().push_back(InFlight { slot, of });
    }

    /// Whether there is anything to collect or return.
    pub(crate) fn has_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire) > 0
    }

    /// Reads the statuses of launches that are over: for each stream it queries the oldest, until one is not over. The device's context
    /// must be current.
    ///
    /// # Errors
    /// The driver cannot say what is over; statuses that were read before are kept.
    pub(crate) fn collect(&self, driver: Driver) -> Result<(), DriverFailure> {
        let _alone = lock(&self.collecting);
        let streams: SmallVec<[Arc<InFlightLaunches>; 8]> = lock(&self.streams).iter().cloned().collect();
        for launches in &streams {
            let oldest = || launches.lock().front().map(|launch| launch.slot.passed);
            while let Some(passed) = oldest() {
                // SAFETY: the events of slots live as long as the statuses.
                if !unsafe { driver.query_event(passed) }? {
                    break;
                }
                // This is still the front: the stream only appends, and no other thread removes.
                let Some(InFlight { slot, of }) = launches.lock().pop_front() else { break };
                self.finish(slot, of);
                self.pending.fetch_sub(1, Ordering::AcqRel);
            }
        }
        Ok(())
    }

    /// Reads and frees the slot of a launch that is over.
    pub(crate) fn finish(&self, slot: Slot, of: Launched) {
        if let Some(failure) = failure(of, &slot) {
            self.pending.fetch_add(1, Ordering::AcqRel);
            lock(&self.failures).push(failure);
        }
        self.give_back(slot);
    }

    /// Removes and returns the failures that were read.
    pub(crate) fn take(&self) -> Vec<LateFailure> {
        let failures = std::mem::take(&mut *lock(&self.failures));
        self.pending.fetch_sub(failures.len(), Ordering::AcqRel);
        failures
    }

    /// Frees everything. The device's context must be current, and nothing may be running.
    pub(crate) fn destroy(&mut self, driver: Driver) {
        let Slots { free, pages } = std::mem::take(&mut *lock(&self.slots));
        let streams = std::mem::take(&mut *lock(&self.streams));
        let in_flight = streams.iter().flat_map(|launches| std::mem::take(&mut *launches.lock()));
        for slot in free.into_iter().chain(in_flight.map(|launch| launch.slot)) {
            // SAFETY: the event belongs to this slot alone, and the slot is dropped here.
            let _ = unsafe { driver.destroy_event(slot.passed) };
        }
        for page in pages {
            // SAFETY: the page came from `allocate_host`; no slot of it is left, and nothing is running.
            let _ = unsafe { driver.free_host(page.0) };
        }
    }

    /// Adds a page of slots; returns one of them.
    fn grow(&self, driver: Driver) -> Result<Slot, DriverFailure> {
        let page = driver.allocate_host(PAGE, false)?;
        lock(&self.slots).pages.push(Page(page));
        let slot = |at: usize| -> Result<Slot, DriverFailure> {
            let status = page.wrapping_add(at * size_of::<Status>()).cast();
            Ok(Slot { status, passed: driver.create_event(false)? })
        };
        let first = slot(0)?;
        // If the driver gives no more events, the page has fewer slots.
        let others: Vec<Slot> = (1..PAGE / size_of::<Status>()).map_while(|at| slot(at).ok()).collect();
        lock(&self.slots).free.extend(others);
        Ok(first)
    }
}

/// No code here panics while the state is inconsistent, so a poisoned lock guards valid state.
fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failure(of: Launched, slot: &Slot) -> Option<LateFailure> {
    let Launched { kernel, stream, seq, step } = of;
    let error = kernel.failure(&slot.read()).err()?;
    Some(LateFailure { stream, seq, step, cause: LateCause::Device(Error::Kernel(error)) })
}
