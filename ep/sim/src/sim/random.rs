//! The random numbers of a simulated run: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
//!
//! Implemented here because the numbers are part of the contract: the same seed gives the same run, with any version of a library.

/// A sequence of random numbers from a seed.
#[derive(Debug, Clone)]
pub(super) struct Random {
    state: u64,
}

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `count`, which must not be 0.
    pub(super) fn below(&mut self, count: usize) -> usize {
        (self.next() % count as u64) as usize
    }

    /// True once in `count` calls, on average.
    pub(super) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_paper() {
        let mut random = Random::new(1234567);
        let expected = [6457827717110365317, 3203168211198807973, 9817491932198370423];
        assert_eq!([random.next(), random.next(), random.next()], expected);
    }
}
