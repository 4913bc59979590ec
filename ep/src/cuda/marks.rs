//! The driver's events behind the ids of the pool.
//!
//! All CUDA devices of an engine share one [`EventPool`](crate::EventPool). The driver ties an event to its context, and records it only
//! on streams of that context. So a slot of the pool keeps one driver event per device that has recorded it, created at the first such
//! record and kept until the engine's devices end. Recording creates no events in steady state, and a thread that waits for a released id
//! waits for an event that still exists.
//!
//! A record has a generation. A thread that has waited for an event without the lock compares the generation again afterwards, because
//! the slot may have been released and reused meanwhile.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::driver::{DriverFailure, EventHandle};
use super::progress::Progress;
use crate::names::event_id::EventId;

/// The last record of an id.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Mark {
    pub(super) raw: EventHandle,
    /// The index of the device that recorded it.
    pub(super) device: usize,
    /// The number that its stream had launched at the record.
    seq: u64,
}

#[derive(Debug, Default)]
struct Slot {
    /// One entry per device; `None` where it has no event yet.
    raws: Vec<Option<EventHandle>>,
    last: Option<Last>,
}

#[derive(Debug)]
struct Last {
    generation: u32,
    mark: Mark,
    /// The progress of the stream that recorded it.
    progress: Arc<Progress>,
}

/// The slots of one pool.
#[derive(Debug, Default)]
pub(super) struct Marks {
    slots: Mutex<Vec<Slot>>,
}

impl Marks {
    /// The driver event of this slot on the device with this index; `make` creates it if there is none yet.
    pub(super) fn raw(
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
        let raws = &mut slots[index].raws;
        if raws.len() <= device {
            raws.resize(device + 1, None);
        }
        match raws[device] {
            Some(raw) => Ok(raw),
            None => Ok(*raws[device].insert(make()?)),
        }
    }

    /// Stores that the event was recorded on this device, after everything that `progress` has launched.
    pub(super) fn note(&self, event: EventId, raw: EventHandle, device: usize, progress: &Arc<Progress>) {
        let mut slots = self.lock();
        let Some(slot) = slots.get_mut(event.index as usize) else { return };
        let (generation, mark) = (event.generation, Mark { raw, device, seq: progress.launched() });
        match &mut slot.last {
            // If the same stream records it again, the reference count of `progress` is not touched.
            Some(last) if Arc::ptr_eq(&last.progress, progress) => (last.generation, last.mark) = (generation, mark),
            last => *last = Some(Last { generation, mark, progress: Arc::clone(progress) }),
        }
    }

    /// The last record of this id.
    pub(super) fn find(&self, event: EventId) -> Option<Mark> {
        let slots = self.lock();
        let last = slots.get(event.index as usize)?.last.as_ref()?;
        (last.generation == event.generation).then_some(last.mark)
    }

    /// Marks the record `seen` of this id as passed. Returns false if the id has been released meanwhile, so that another use of the slot
    /// was waited for.
    pub(super) fn pass(&self, event: EventId, seen: Mark) -> bool {
        let slots = self.lock();
        let last = slots.get(event.index as usize).and_then(|slot| slot.last.as_ref());
        let Some(last) = last.filter(|last| last.generation == event.generation) else { return false };
        // It was recorded again meanwhile. The new record is later, and has not been seen to have passed.
        if last.mark == seen {
            last.progress.pass(seen.seq);
        }
        true
    }

    /// Removes and returns all events of the device with this index.
    pub(super) fn drain(&mut self, device: usize) -> impl Iterator<Item = EventHandle> + '_ {
        let slots = self.slots.get_mut().unwrap_or_else(PoisonError::into_inner);
        slots.iter_mut().filter_map(move |slot| slot.raws.get_mut(device).and_then(Option::take))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Slot>> {
        // No code here panics while the slots are inconsistent, so a poisoned lock guards valid slots.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
