//! The driver's events behind the ids of the pool.
//!
//! All CUDA devices of an engine share one [`EventPool`](crate::EventPool). The driver ties an event to the context that
//! it was made in, and records it on streams of that context alone. So a slot of the pool keeps one driver's event for
//! each device that has recorded it, made at the first such record and kept until the engine's devices end: recording
//! makes none in steady state, and whoever waits for a released id waits for an event that is still there.
//!
//! A record names its generation. Who has waited for an event outside of the lock looks at the generation again: an
//! answer about a slot's next life is not one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::driver::{DriverFailure, EventHandle};
use super::progress::Progress;
use crate::event::EventId;

/// The last record of an id.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Mark {
    pub(super) raw: EventHandle,
    /// Index of the device that recorded it.
    pub(super) device: usize,
    /// How far the stream was that recorded it.
    seq: u64,
}

#[derive(Debug, Default)]
struct Slot {
    /// One for each device, where there is one.
    raws: Vec<Option<EventHandle>>,
    last: Option<Last>,
}

#[derive(Debug)]
struct Last {
    generation: u32,
    mark: Mark,
    /// Of the stream that recorded it.
    progress: Arc<Progress>,
}

/// The slots of one pool.
#[derive(Debug, Default)]
pub(super) struct Marks {
    slots: Mutex<Vec<Slot>>,
}

impl Marks {
    /// The driver's event of this slot on the device of this index; `make` makes one if there is none yet.
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

    /// Notes that the event has been recorded on this device, behind everything that `progress` has launched.
    pub(super) fn note(&self, event: EventId, raw: EventHandle, device: usize, progress: &Arc<Progress>) {
        let mut slots = self.lock();
        let Some(slot) = slots.get_mut(event.index as usize) else { return };
        let (generation, mark) = (event.generation, Mark { raw, device, seq: progress.launched() });
        match &mut slot.last {
            // The count of a handle is not touched where it is the same stream's again.
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

    /// The record `seen` of this id has been seen over. False if it is another life of the slot that was looked at: the
    /// id has been released meanwhile.
    pub(super) fn pass(&self, event: EventId, seen: Mark) -> bool {
        let slots = self.lock();
        let last = slots.get(event.index as usize).and_then(|slot| slot.last.as_ref());
        let Some(last) = last.filter(|last| last.generation == event.generation) else { return false };
        // Recorded anew meanwhile: that is further, and has not been seen.
        if last.mark == seen {
            last.progress.pass(seen.seq);
        }
        true
    }

    /// Every event of the device of this index, taken out.
    pub(super) fn drain(&mut self, device: usize) -> impl Iterator<Item = EventHandle> + '_ {
        let slots = self.slots.get_mut().unwrap_or_else(PoisonError::into_inner);
        slots.iter_mut().filter_map(move |slot| slot.raws.get_mut(device).and_then(Option::take))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Slot>> {
        // No code here panics half way through a change, so a poisoned lock guards whole slots.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
