//! When the last instructions of a stream were over, for what waits for them.

use std::collections::VecDeque;

/// Of how many of the last instructions of a stream the ends are known, for what waits for them.
const ENDS: usize = 1 << 16;

/// The ends of the last instructions of a stream, whose numbers follow one another.
#[derive(Default)]
pub(crate) struct Ends {
    /// The number of the first one.
    first: u64,
    /// `None` for one that is not known: instructions of workers end in any order.
    ends: VecDeque<Option<u64>>,
}

impl Ends {
    pub(crate) fn insert(&mut self, number: u64, end: u64) {
        let Some(place) = number.checked_sub(self.first) else { return };
        let mut place = place as usize;
        if place >= self.ends.len() + ENDS {
            *self = Ends { first: number, ends: VecDeque::new() };
            place = 0;
        }
        while self.ends.len() <= place {
            self.ends.push_back(None);
        }
        self.ends[place] = Some(end);
        while self.ends.len() > ENDS {
            self.ends.pop_front();
            self.first += 1;
        }
    }

    pub(crate) fn get(&self, number: u64) -> Option<u64> {
        *self.ends.get(usize::try_from(number.checked_sub(self.first)?).ok()?)?
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_the_last_instructions_are_known() {
        let mut ends = Ends::default();
        [3, 1, 2].into_iter().for_each(|number| ends.insert(number, 10 * number));
        assert_eq!([0, 1, 2, 3, 4].map(|number| ends.get(number)), [None, Some(10), Some(20), Some(30), None]);
        let most = ENDS as u64;
        (5..most + 3).for_each(|number| ends.insert(number, number));
        assert_eq!((ends.get(2), ends.get(3), ends.get(4)), (None, Some(30), None));
        // Too old, and far ahead of the others.
        ends.insert(1, 1);
        assert_eq!((ends.get(1), ends.get(5)), (None, Some(5)));
        ends.insert(u64::MAX, 7);
        assert_eq!((ends.get(5), ends.get(u64::MAX), ends.ends.len()), (None, Some(7), 1));
    }
}
