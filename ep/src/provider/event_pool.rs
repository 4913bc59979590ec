//! Events: marks in a stream that another stream, or the host, can wait for.
//!
//! An [`EventId`] is an index and a generation. Releasing an event moves its slot to the next generation. So an id that is used after its
//! release is refused ([`Error::StaleEvent`]), and is not taken for the next user of the slot. These are the states of a slot; only this
//! file changes them:
//!
//! ```text
//! free --acquire--> acquired --record--> recorded --record--> recorded
//!   ^                  |                     |
//!   +-----release------+-------release-------+
//! ```

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::errors::error::Error;
use crate::names::event_id::EventId;

/// The events of one device. Thread-safe; each call takes a lock for a short time.
#[derive(Debug, Default)]
pub struct EventPool {
    slots: Mutex<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    all: Vec<Slot>,
    /// Indices of slots in state `Free`.
    free: Vec<u32>,
    live: usize,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Free,
    Acquired,
    Recorded,
}

impl EventPool {
    /// An empty pool.
    pub fn new() -> EventPool {
        EventPool::default()
    }

    /// A live event that has not been recorded. Reuses released slots, and grows past them.
    pub fn acquire(&self) -> EventId {
        let mut slots = self.lock();
        slots.live += 1;
        if let Some(index) = slots.free.pop() {
            let slot = &mut slots.all[index as usize];
            slot.state = State::Acquired;
            return EventId { index, generation: slot.generation };
        }
        let index = slots.all.len() as u32;
        slots.all.push(Slot { generation: 0, state: State::Acquired });
        EventId { index, generation: 0 }
    }

    /// Releases an event; its id is stale from then on.
    ///
    /// # Errors
    ///
    /// [`Error::StaleEvent`] if it has been released before.
    pub fn release(&self, id: EventId) -> Result<(), Error> {
        let mut slots = self.lock();
        let slot = slots.find(id)?;
        slot.state = State::Free;
        slot.generation = slot.generation.wrapping_add(1);
        // A slot whose generations are used up is never reused, so that no id is ever given twice.
        let reusable = slot.generation != 0;
        slots.live -= 1;
        if reusable {
            slots.free.push(id.index);
        }
        Ok(())
    }

    /// Marks the event as recorded by a stream.
    ///
    /// # Errors
    ///
    /// [`Error::StaleEvent`] if it has been released.
    pub fn record(&self, id: EventId) -> Result<(), Error> {
        self.lock().find(id)?.state = State::Recorded;
        Ok(())
    }

    /// Whether a stream has recorded the event.
    ///
    /// # Errors
    ///
    /// [`Error::StaleEvent`] if it has been released.
    pub fn is_recorded(&self, id: EventId) -> Result<bool, Error> {
        Ok(self.lock().find(id)?.state == State::Recorded)
    }

    /// The number of events that are acquired and not released.
    pub fn live(&self) -> usize {
        self.lock().live
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        // No code here panics while the slots are inconsistent, so a poisoned lock guards valid slots.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slots {
    fn find(&mut self, id: EventId) -> Result<&mut Slot, Error> {
        self.all
            .get_mut(id.index as usize)
            .filter(|slot| slot.generation == id.generation && slot.state != State::Free)
            .ok_or(Error::StaleEvent { event: id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_recorded_only_after_record() {
        let pool = EventPool::new();
        let event = pool.acquire();
        assert_eq!(pool.is_recorded(event), Ok(false));
        pool.record(event).unwrap();
        assert_eq!(pool.is_recorded(event), Ok(true));
    }

    #[test]
    fn a_reused_slot_is_not_recorded_and_refuses_its_old_id() {
        let pool = EventPool::new();
        let old = pool.acquire();
        pool.record(old).unwrap();
        pool.release(old).unwrap();
        let new = pool.acquire();
        assert_eq!(new.index, old.index);
        assert_ne!(new.generation, old.generation);
        assert_eq!(pool.is_recorded(new), Ok(false));
        let stale = Error::StaleEvent { event: old };
        assert_eq!(pool.record(old), Err(stale.clone()));
        assert_eq!(pool.is_recorded(old), Err(stale.clone()));
        assert_eq!(pool.release(old), Err(stale));
        assert_eq!(pool.live(), 1);
    }

    #[test]
    fn a_released_or_unknown_id_is_stale_before_reuse() {
        let pool = EventPool::new();
        let event = pool.acquire();
        pool.release(event).unwrap();
        let current = EventId { generation: event.generation + 1, ..event };
        for id in [event, current, EventId { index: 9, generation: 0 }] {
            assert_eq!(pool.record(id), Err(Error::StaleEvent { event: id }));
        }
    }

    #[test]
    fn a_slot_with_used_up_generations_is_retired() {
        let pool = EventPool::new();
        let event = pool.acquire();
        pool.lock().all[0].generation = u32::MAX;
        let last = EventId { generation: u32::MAX, ..event };
        pool.release(last).unwrap();
        assert_eq!(pool.acquire().index, 1);
        assert!(pool.record(event).is_err());
    }

    #[test]
    fn threads_share_a_pool() {
        let pool = EventPool::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let event = pool.acquire();
                        assert_eq!(pool.is_recorded(event), Ok(false));
                        pool.record(event).unwrap();
                        pool.release(event).unwrap();
                    }
                });
            }
        });
        assert_eq!(pool.live(), 0);
    }
}
