//! Handles: numbers of streams, events, modules and functions.
//!
//! A number is never used twice, so a destroyed handle is recognised. The numbers are not valid addresses of a process, so dereferencing
//! one faults.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The handles of one kind.
#[derive(Debug)]
pub(crate) struct Handles<T> {
    base: usize,
    given: usize,
    live: BTreeMap<usize, Arc<T>>,
}

/// Why a handle has no object.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoHandle {
    /// It is 0.
    Null,
    /// Its object was destroyed.
    Destroyed,
    /// It was never a handle of this kind.
    Unknown,
}

impl<T> Handles<T> {
    /// An empty table; the number of the kind and the number of the driver make handles unique.
    pub(crate) fn new(kind: u8, turn: u64) -> Handles<T> {
        let base = (0x5A00 | kind as usize) << 48 | (turn as usize & 0xFFFF) << 32;
        Handles { base, given: 0, live: BTreeMap::new() }
    }

    /// The handle that [`add`](Handles::add) will give next.
    pub(crate) fn next(&self) -> usize {
        self.base + (self.given + 1) * 16
    }

    /// A new handle for `thing`.
    pub(crate) fn add(&mut self, thing: Arc<T>) -> usize {
        let handle = self.next();
        self.given += 1;
        self.live.insert(handle, thing);
        handle
    }

    /// The object of `handle`.
    pub(crate) fn get(&self, handle: usize) -> Result<&Arc<T>, NoHandle> {
        self.live.get(&handle).ok_or_else(|| self.missing(handle))
    }

    /// Removes a handle and returns its object.
    pub(crate) fn remove(&mut self, handle: usize) -> Result<Arc<T>, NoHandle> {
        self.live.remove(&handle).ok_or_else(|| self.missing(handle))
    }

    /// Removes all handles for whose objects `keep` returns false.
    pub(crate) fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        self.live.retain(|_, thing| keep(thing));
    }

    /// The live handles and their objects, in the order of creation.
    pub(crate) fn live(&self) -> impl Iterator<Item = (usize, &Arc<T>)> {
        self.live.iter().map(|(&handle, thing)| (handle, thing))
    }

    fn missing(&self, handle: usize) -> NoHandle {
        match handle {
            0 => NoHandle::Null,
            _ if handle > self.base && handle < self.next() && handle.is_multiple_of(16) => NoHandle::Destroyed,
            _ => NoHandle::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_not_used_again_and_kinds_do_not_mix() {
        let (mut some, mut others) = (Handles::new(1, 0), Handles::new(2, 0));
        let (one, other) = (some.add(Arc::new(1)), others.add(Arc::new(2)));
        assert_eq!((some.get(one).map(|thing| **thing), some.get(other).err()), (Ok(1), Some(NoHandle::Unknown)));
        assert_eq!(some.remove(one).map(|thing| *thing), Ok(1));
        assert_eq!((some.get(one).err(), some.get(0).err()), (Some(NoHandle::Destroyed), Some(NoHandle::Null)));
        assert_ne!(some.add(Arc::new(3)), one);
        assert_eq!(some.get(some.next()).err(), Some(NoHandle::Unknown));
        assert_eq!(Handles::<i32>::new(1, 1).get(one).err(), Some(NoHandle::Unknown));
    }
}
