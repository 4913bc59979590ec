//! The random numbers of the delays: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), as in the simulated device.

/// A stream of random numbers from a seed.
#[derive(Debug, Clone)]
pub(crate) struct Random {
    state: u64,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// The delay of a command before it runs, in microseconds: half of the commands have none, the others up to `most`, one in eight of
    /// these up to eight times as long.
    pub(crate) fn delay(&mut self, most: u64) -> u64 {
        let drawn = self.next();
        if most == 0 || drawn & 1 == 0 {
            return 0;
        }
        let factor = if drawn >> 1 & 7 == 0 { 8 } else { 1 };
        factor * ((drawn >> 8) % (most + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_follow_from_the_seed_and_stay_below_eight_times_the_most() {
        let delays = |seed, most| {
            let mut random = Random::new(seed);
            (0..1000).map(|_| random.delay(most)).collect::<Vec<_>>()
        };
        assert_eq!(delays(3, 50), delays(3, 50));
        assert_ne!(delays(3, 50), delays(4, 50));
        assert!(delays(3, 50).iter().all(|&delay| delay <= 400) && delays(3, 50).iter().any(|&delay| delay > 50));
        assert!(delays(3, 0).iter().all(|&delay| delay == 0));
    }
}
