//! Failures inside kernels: where a kernel tells of them, and when they are read.
//!
//! A kernel that can fail (integer division by zero, a negative exponent) is given the address of a [`Status`] in
//! page-locked memory. It is read once the launch is over, which an event of its own behind it shows: whoever sees a later
//! place passed, on this stream or through a wait on another, finds this event passed too, as the driver's order is one
//! order. Kernels that cannot fail have neither.
//!
//! A status is, in turn, free, under way (written by the device alone) and free again once it has been read. What is under
//! way when its device is lost stays so: the device may still write it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::abi::Status;
use super::driver::{Driver, DriverFailure, EventHandle, HostMemory};
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

#[derive(Debug, Default)]
struct State {
    free: Vec<Slot>,
    /// In the order of the launches.
    under_way: VecDeque<UnderWay>,
    told: Vec<LateFailure>,
    pages: Vec<Page>,
}

#[derive(Copy, Clone, Debug)]
struct Page(*mut u8);

// SAFETY: an address, which the slots made of it use as they may.
unsafe impl Send for Page {}

/// The statuses of one device.
#[derive(Debug, Default)]
pub(super) struct Statuses {
    state: Mutex<State>,
    /// Launches under way and failures not told: what there is to look at.
    open: AtomicUsize,
}

impl Statuses {
    /// A cleared slot. The device's context is current.
    pub(super) fn acquire(&self, driver: Driver) -> Result<Slot, DriverFailure> {
        let mut state = self.lock();
        if state.free.is_empty() {
            grow(&mut state, driver)?;
        }
        // `grow` leaves at least one.
        let mut slot = state.free.pop().unwrap_or_else(|| unreachable!("a page holds a status"));
        slot.clear();
        Ok(slot)
    }

    /// Takes back a slot whose kernel was not launched.
    pub(super) fn give_back(&self, slot: Slot) {
        self.lock().free.push(slot);
    }

    /// A kernel has been launched with the slot, and its event recorded behind it.
    pub(super) fn launched(&self, slot: Slot, function: FunctionName, stream: u32, seq: u64) {
        let mut state = self.lock();
        state.under_way.push_back(UnderWay { slot, function, stream, seq });
        self.count(&state);
    }

    /// Is there something to look at?
    pub(super) fn are_open(&self) -> bool {
        self.open.load(Ordering::Acquire) > 0
    }

    /// Reads what has passed. The device's context is current.
    ///
    /// # Errors
    /// The driver cannot tell what has passed; what was read is kept.
    pub(super) fn collect(&self, driver: Driver) -> Result<(), DriverFailure> {
        let mut state = self.lock();
        let State { free, under_way, told, .. } = &mut *state;
        let mut result = Ok(());
        // Each launch is looked at once and kept in its place if it is still under way.
        for _ in 0..under_way.len() {
            let Some(launch) = under_way.pop_front() else { break };
            // SAFETY: events of slots live as long as the statuses.
            let passed = result.is_ok()
                && unsafe { driver.query_event(launch.slot.passed) }.unwrap_or_else(|failure| {
                    result = Err(failure);
                    false
                });
            if !passed {
                under_way.push_back(launch);
                continue;
            }
            let UnderWay { slot, function, stream, seq } = launch;
            told.extend(failure(function, &slot, stream, seq));
            free.push(slot);
        }
        self.count(&state);
        result
    }

    /// Reads the slot of a launch that is known to be over.
    pub(super) fn over(&self, slot: Slot, function: FunctionName, stream: u32, seq: u64) {
        let mut state = self.lock();
        state.told.extend(failure(function, &slot, stream, seq));
        state.free.push(slot);
        self.count(&state);
    }

    /// What was read and not told yet.
    pub(super) fn take(&self) -> Vec<LateFailure> {
        let mut state = self.lock();
        let told = std::mem::take(&mut state.told);
        self.count(&state);
        told
    }

    /// Gives everything back to the driver. Its context is current, nothing is running.
    pub(super) fn end(&mut self, driver: Driver) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let under_way = state.under_way.drain(..).map(|launch| launch.slot);
        for slot in state.free.drain(..).chain(under_way) {
            // SAFETY: the event is the slot's own, and the slot is gone with this.
            let _ = unsafe { driver.destroy_event(slot.passed) };
        }
        for page in state.pages.drain(..) {
            // SAFETY: the page came from `allocate_host`; no slot of it is left, and nothing is running.
            let _ = unsafe { driver.free_host(page.0) };
        }
    }

    fn count(&self, state: &State) {
        self.open.store(state.under_way.len() + state.told.len(), Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code here panics half way through a change, so a poisoned lock guards whole state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn failure(function: FunctionName, slot: &Slot, stream: u32, seq: u64) -> Option<LateFailure> {
    let error = function.failure(&slot.read()).err()?;
    Some(LateFailure { stream, seq, cause: LateCause::Device(Error::Kernel(error)) })
}

/// A page more of free slots.
fn grow(state: &mut State, driver: Driver) -> Result<(), DriverFailure> {
    let page = driver.allocate_host(PAGE, HostMemory::Plain)?;
    state.pages.push(Page(page));
    for at in 0..PAGE / size_of::<Status>() {
        let passed = match driver.create_event() {
            Ok(passed) => passed,
            // What there is will do.
            Err(_) if at > 0 => break,
            Err(failure) => return Err(failure),
        };
        let status = page.wrapping_add(at * size_of::<Status>()).cast();
        state.free.push(Slot { status, passed });
    }
    Ok(())
}
