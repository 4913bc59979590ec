//! Addresses that stand for variables in the race detector.
//!
//! The detector identifies accesses by address, and a variable has no memory. So each variable gets an address that no memory has:
//!
//! * The first instruction that uses the variable gives it an address.
//! * The variable keeps the address until it is released and every instruction that uses it has started. After that no access to it is left
//!   to report.
//! * The detector then forgets the accesses at this address, and another variable may get it.
//!
//! So the detector's memory grows with the number of variables that exist at one time, not with the number ever made. Only the
//! [`Observer`](crate::observe::observer::Observer) touches this state, under its lock.

use std::ops::Range;

use hashbrown::HashMap;
use streamvm_instructions::ResourceId;

/// The address range: one address for each resource that an engine may have at one time.
pub(crate) const ADDRESSES: Range<usize> = usize::MAX - (1 << 30)..usize::MAX;

/// The address of each variable. See the module's documentation. A *place* is an index into the address range.
#[derive(Default)]
pub(crate) struct Variables {
    /// The place of each variable that was used and is not released.
    places: HashMap<ResourceId, usize>,
    /// The state of each place that was ever given.
    occupants: Vec<Occupant>,
    /// Places that may be given again.
    free: Vec<usize>,
}

#[derive(Default)]
struct Occupant {
    /// Uses by instructions that were submitted and have not started.
    pending: u64,
    released: bool,
}

impl Variables {
    /// The address of a variable. A variable without an address gets one.
    pub(crate) fn address(&mut self, variable: ResourceId) -> Range<usize> {
        let place = *self.places.entry(variable).or_insert_with(|| {
            let place = self.free.pop().unwrap_or(self.occupants.len());
            if place == self.occupants.len() {
                self.occupants.push(Occupant::default());
            }
            self.occupants[place] = Occupant::default();
            place
        });
        let address = ADDRESSES.start + place;
        address..address + 1
    }

    /// Notes that an instruction that uses the variable at this address was submitted.
    pub(crate) fn use_submitted(&mut self, address: &Range<usize>) {
        self.occupants[address.start - ADDRESSES.start].pending += 1;
    }

    /// Notes that an instruction that uses the variable at this address has started, after its access was reported to the detector. Returns
    /// whether the detector must forget the address.
    #[must_use]
    pub(crate) fn use_started(&mut self, address: &Range<usize>) -> bool {
        let place = address.start - ADDRESSES.start;
        self.occupants[place].pending -= 1;
        self.free_if_over(place)
    }

    /// Notes that a resource was released. Returns the address that the detector must forget, if the resource is a variable that no pending
    /// instruction uses.
    #[must_use]
    pub(crate) fn release(&mut self, resource: ResourceId) -> Option<Range<usize>> {
        let place = self.places.remove(&resource)?;
        self.occupants[place].released = true;
        let address = ADDRESSES.start + place;
        self.free_if_over(place).then_some(address..address + 1)
    }

    fn free_if_over(&mut self, place: usize) -> bool {
        let over = self.occupants[place].released && self.occupants[place].pending == 0;
        if over {
            self.free.push(place);
        }
        over
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_given_again_once_its_variable_is_released_and_every_use_has_started() {
        let mut variables = Variables::default();
        let first = variables.address(ResourceId(1));
        assert_eq!(variables.address(ResourceId(1)), first);
        assert_ne!(variables.address(ResourceId(2)), first);
        variables.use_submitted(&first);
        variables.use_submitted(&first);
        assert!(!variables.use_started(&first));
        assert_eq!(variables.release(ResourceId(1)), None, "a use is pending");
        // Another variable may have the number of a released resource by now.
        let third = variables.address(ResourceId(1));
        assert_ne!(third, first);
        assert!(variables.use_started(&first), "that was the last use, and the variable is released");
        assert_eq!(variables.address(ResourceId(3)), first);
        assert_eq!(variables.release(ResourceId(1)), Some(third), "no pending instruction uses it");
        assert_eq!(variables.release(ResourceId(9)), None, "not a variable");
    }
}
