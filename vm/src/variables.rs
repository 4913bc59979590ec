//! Variables: which addresses stand for them in the race detector.
//!
//! A variable has no memory, and the detector knows accesses by addresses. So each variable is given an address that no memory has:
//!
//! * It is given by the first instruction that uses the variable.
//! * The variable keeps it until it is released and every instruction that uses it has started: then no access is still to be told.
//! * The detector then forgets what was done there, and the address may be given to another variable.
//!
//! So what the detector remembers of variables grows with how many there are at once, not with how many there were.

use std::ops::Range;

use hashbrown::HashMap;
use streamvm_instructions::ResourceId;

/// The addresses: one for each resource that an engine may have at once.
pub(crate) const ADDRESSES: Range<usize> = usize::MAX - (1 << 30)..usize::MAX;

/// See the module's comment.
#[derive(Default)]
pub(crate) struct Variables {
    /// The place of each variable that was used and not released.
    places: HashMap<ResourceId, usize>,
    /// What stands at each place that was ever given.
    occupants: Vec<Occupant>,
    /// The places that may be given again.
    free: Vec<usize>,
}

#[derive(Default)]
struct Occupant {
    /// Uses by instructions that have not started.
    pending: u64,
    released: bool,
}

impl Variables {
    /// The address of a variable; given to it if it has none.
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

    /// An instruction was submitted that uses the variable at this address.
    pub(crate) fn use_submitted(&mut self, address: &Range<usize>) {
        self.occupants[address.start - ADDRESSES.start].pending += 1;
    }

    /// An instruction has started that uses the variable at this address, and its access was told to the detector. Returns whether the
    /// detector is to forget the address.
    #[must_use]
    pub(crate) fn use_started(&mut self, address: &Range<usize>) -> bool {
        let place = address.start - ADDRESSES.start;
        self.occupants[place].pending -= 1;
        self.free_if_over(place)
    }

    /// A resource is released. Returns the address that the detector is to forget, if it was a variable that no pending instruction uses.
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
        // The number of a released resource may be that of another variable by now.
        let third = variables.address(ResourceId(1));
        assert_ne!(third, first);
        assert!(variables.use_started(&first), "the last use, and the variable is released");
        assert_eq!(variables.address(ResourceId(3)), first);
        assert_eq!(variables.release(ResourceId(1)), Some(third), "nothing uses it");
        assert_eq!(variables.release(ResourceId(9)), None, "not a variable");
    }
}
