//! The calls over a resource that an engine holds back.
//!
//! An engine may take an eager call and submit it later, if it submits the call before anything that could notice. Only a use of the same
//! resource can observe the delay. So each resource counts the groups of calls that are held back and use it: many that read, or one
//! that also writes, as a lock would. A submission that finds a group in its way has that group submitted first.
//!
//! The words are written by the thread that holds calls back, before its call returns. Another thread whose use comes behind that call has
//! learned of the call, and so sees the word. Of two calls that are not ordered, either may come first.

use std::sync::atomic::{AtomicU32, Ordering};

use streamvm_ep::Access;

/// Which groups of held-back calls use a resource; see the module.
#[derive(Debug, Default)]
pub struct Holds(AtomicU32);

/// A group writes the resource, and no other group uses it.
const WRITTEN: u32 = 1 << 31;

/// The call that would have written the resource first was refused when it was to be submitted.
const REFUSED: u32 = 1 << 30;

impl Holds {
    pub(super) const fn none() -> Holds {
        Holds(AtomicU32::new(0))
    }

    /// Whether a group uses the resource, or its first write was refused.
    #[inline]
    pub fn any(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }

    /// Whether a use of this kind has to wait until a group of held-back calls is submitted.
    pub fn are_before(&self, access: Access) -> bool {
        match self.0.load(Ordering::Acquire) & !REFUSED {
            0 => false,
            groups => access.writes() || groups == WRITTEN,
        }
    }

    /// Adds a group that reads the resource. Returns false, and changes nothing, if a group writes it.
    #[must_use = "the calls may not be held back if it fails"]
    pub fn add_reader(&self) -> bool {
        let add = |groups| (groups & (WRITTEN | REFUSED) == 0).then_some(groups + 1);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, add).is_ok()
    }

    /// Adds a group that writes the resource, or makes a reading group, if `reads`, a writing one. Returns false, and changes nothing, if another
    /// group uses the resource.
    #[must_use = "the calls may not be held back if it fails"]
    pub fn add_writer(&self, reads: bool) -> bool {
        self.0.compare_exchange(u32::from(reads), WRITTEN, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Removes a group that reads the resource, because its calls are submitted.
    pub fn remove_reader(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// Removes the group that writes the resource, because its calls are submitted.
    pub fn remove_writer(&self) {
        self.0.fetch_and(!WRITTEN, Ordering::Release);
    }

    /// Notes that the first write of the resource was refused, so that nothing writes it.
    pub fn refuse(&self) {
        self.0.fetch_or(REFUSED, Ordering::Release);
    }

    /// Whether the first write of the resource was refused.
    pub fn is_refused(&self) -> bool {
        self.0.load(Ordering::Acquire) & REFUSED != 0
    }
}

#[cfg(test)]
mod tests {
    use Access::{Read, ReadWrite, Write};

    use super::*;

    fn before(holds: &Holds) -> [bool; 3] {
        [Read, Write, ReadWrite].map(|access| holds.are_before(access))
    }

    #[test]
    fn many_groups_read_or_one_writes() {
        let holds = Holds::none();
        assert_eq!(before(&holds), [false; 3]);
        assert!(holds.add_reader() && holds.add_reader());
        assert_eq!(before(&holds), [false, true, true]);
        assert!(!holds.add_writer(true), "another group reads");
        holds.remove_reader();
        assert!(!holds.add_writer(false), "it is the other group that reads");
        assert!(holds.add_writer(true));
        assert_eq!(before(&holds), [true; 3]);
        assert!(!holds.add_reader() && !holds.add_writer(false));
        holds.remove_writer();
        assert!(!holds.any());
    }

    #[test]
    fn a_refused_resource_is_held_by_nobody_and_can_be_held_no_more() {
        let holds = Holds::none();
        assert!(holds.add_writer(false));
        holds.refuse();
        holds.remove_writer();
        assert!(holds.any() && holds.is_refused());
        assert_eq!(before(&holds), [false; 3]);
        assert!(!holds.add_reader() && !holds.add_writer(false));
    }
}
