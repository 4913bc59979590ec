//! The driver's events behind the ids of the pool.
//!
//! All CUDA devices of an engine share one [`EventPool`](streamvm_ep::EventPool). The driver ties an event to its context, and records it only
//! on streams of that context. So a slot of the pool keeps one driver event per device that has recorded it, created at the first such
//! record and kept until the engine's devices end. Recording creates no events in steady state, and a thread that waits for a released id
//! waits for an event that still exists.
//!
//! A record has a generation. A thread that has waited for an event without the lock compares the generation again afterwards, because
//! the slot may have been released and reused meanwhile.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use streamvm_ep::EventId;

use crate::driver::{DriverFailure, EventHandle};
use crate::instance::progress::Progress;

/// The last record of an id.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct EventRecord {
    pub(crate) handle: EventHandle,
    /// The index of the device that recorded it.
    pub(crate) device: usize,
    /// The number that its stream had launched at the record.
    seq: u64,
}

/// The driver events of one slot of the pool.
#[derive(Debug, Default)]
struct Slot {
    /// One entry per device; `None` where it has no event yet.
    handles: Vec<Option<EventHandle>>,
    last: Option<LastRecord>,
}

/// The last record of a slot, of any id that the slot had.
#[derive(Debug)]
struct LastRecord {
    generation: u32,
    record: EventRecord,
    /// The progress of the stream that recorded it.
    progress: Arc<Progress>,
}

/// The driver events of all slots of one pool.
#[derive(Debug, Default)]
pub(crate) struct DriverEvents {
    slots: Mutex<Vec<Slot>>,
}

impl DriverEvents {
    /// The driver event of this slot on the device with this index; `make` creates it if there is none yet.
    pub(crate) fn handle_on(
        &self,
        event: EventId,
        device: usize,
        make: impl FnOnce() -> Result<EventHandle, DriverFailure>,
    ) -> Result<EventHandle, DriverFailure> {
        let mut slots = self.lock();
        let index = event.index as usize;
        if slots.len() <= index {
            slots.resize_with(index + 1, Slot::default);
        }
        let handles = &mut slots[index].handles;
        if handles.len() <= device {
            handles.resize(device + 1, None);
        }
        match handles[device] {
            Some(handle) => Ok(handle),
            None => Ok(*handles[device].insert(make()?)),
        }
    }

    /// Stores that the event was recorded on this device, after everything that `progress` has launched.
    pub(crate) fn set_recorded(&self, event: EventId, handle: EventHandle, device: usize, progress: &Arc<Progress>) {
        let mut slots = self.lock();
        let Some(slot) = slots.get_mut(event.index as usize) else { return };
        let (generation, record) = (event.generation, EventRecord { handle, device, seq: progress.launched() });
        match &mut slot.last {
            // If the same stream records it again, the reference count of `progress` is not touched.
            Some(last) if Arc::ptr_eq(&last.progress, progress) => {
                (last.generation, last.record) = (generation, record)
            }
            last => *last = Some(LastRecord { generation, record, progress: Arc::clone(progress) }),
        }
    }

    /// The last record of this id.
    pub(crate) fn last_record(&self, event: EventId) -> Option<EventRecord> {
        let slots = self.lock();
        let last = slots.get(event.index as usize)?.last.as_ref()?;
        (last.generation == event.generation).then_some(last.record)
    }

    /// Marks the record `seen` of this id as passed. Returns false if the id has been released meanwhile, so that another use of the slot
    /// was waited for.
    pub(crate) fn set_passed(&self, event: EventId, seen: EventRecord) -> bool {
        let slots = self.lock();
        let last = slots.get(event.index as usize).and_then(|slot| slot.last.as_ref());
        let Some(last) = last.filter(|last| last.generation == event.generation) else { return false };
        // If it was recorded again meanwhile, the new record is later, and has not been seen to have passed.
        if last.record == seen {
            last.progress.pass(seen.seq);
        }
        true
    }

    /// Removes and returns all events of the device with this index.
    pub(crate) fn drain(&mut self, device: usize) -> impl Iterator<Item = EventHandle> + '_ {
        let slots = self.slots.get_mut().unwrap_or_else(PoisonError::into_inner);
        slots.iter_mut().filter_map(move |slot| slot.handles.get_mut(device).and_then(Option::take))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Slot>> {
        // No code here panics while the slots are inconsistent, so a poisoned lock guards valid slots.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
