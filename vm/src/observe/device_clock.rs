//! The clock of a device beside that of the host, for traces with times.
//!
//! A device tells when an instruction ran by a clock of its own. The host knows about when that was zero. An instruction begins after the host began to launch it, and ends before the host
//! sees that. So each bounds what must be added to the device's times, from below and from above; the middle is taken. Clocks drift apart, so a bound is worth less the older it is.

use crate::tasks::events::DeviceTimes;

/// So much may clocks drift apart: a nanosecond in so many, 100 ppm. That of a computer is off by 10 to 50.
const DRIFT: i128 = 10_000;

/// See the module's documentation. All times are in nanoseconds.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceClock {
    /// Bounds of the time of the host less that of the device.
    least: i128,
    most: i128,
    /// The time of the host to which they belong.
    at: u64,
    /// The largest error so far.
    worst: i128,
}

impl DeviceClock {
    /// The bounds of a device whose first times these are.
    pub(crate) fn of(times: DeviceTimes) -> DeviceClock {
        let [least, most] = times.zero.map(i128::from);
        DeviceClock { least, most, at: times.zero[1], worst: 0 }
    }

    /// Narrows the bounds by those of an instruction: the host began to launch it, and has seen that it was over.
    pub(crate) fn note(&mut self, times: DeviceTimes, launched: u64, seen: u64) {
        let (least, most) = (i128::from(launched) - i128::from(times.start), i128::from(seen) - i128::from(times.end));
        let drift = i128::from(seen.saturating_sub(self.at)) / DRIFT;
        let both = (least.max(self.least - drift), most.min(self.most + drift));
        // Bounds that exclude each other: the clock was set. What is seen now counts.
        let (least, most) = if both.0 <= both.1 { both } else { (least.min(most), most) };
        let worst = self.worst.max((most - least + 1) / 2).max(both.0 - both.1);
        *self = DeviceClock { least, most, at: seen, worst };
    }

    /// The time of the host at a time of the device.
    pub(crate) fn host(&self, time: u64) -> u64 {
        let at = i128::from(time) + (self.least + self.most) / 2;
        u64::try_from(at.max(0)).unwrap_or(u64::MAX)
    }

    /// By how much such a time may be wrong, or any before.
    pub(crate) fn error(&self) -> u64 {
        u64::try_from(self.worst).unwrap_or(u64::MAX)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// A device whose clock has another zero, and is fast by 50 ppm: instructions that are launched and seen so much too early and late.
    #[test]
    fn times_are_within_the_error_however_long_it_goes_on() {
        let device = |host: u64| host + host / 20_000 - 3_000_000;
        let mut clock: Option<DeviceClock> = None;
        let (mut now, mut widest) = (5_000_000u64, 0);
        for round in 0..100_000u64 {
            // A pseudorandom pace: every now and then a launch or a look is quick.
            let random = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            let (late, length, seen) = (4_000 + random % 30_000, 1_000 + random % 7_000, 6_000 + random / 7 % 50_000);
            let (start, end) = (now + late, now + late + length);
            let zero = [3_000_000 - 200_000, 3_000_000 + 10_000];
            let times = DeviceTimes { start: device(start), end: device(end), zero };
            let clock = clock.get_or_insert(DeviceClock::of(times));
            clock.note(times, now, end + seen);
            for time in [start, end] {
                let off = clock.host(device(time)).abs_diff(time);
                let error = (clock.most - clock.least + 1) / 2;
                assert!(i128::from(off) <= error + 10, "{round}: off by {off}, {clock:?}");
                assert!(i128::from(clock.error()) >= error, "{round}: {clock:?}");
                widest = if round > 1_000 { error.max(widest) } else { widest };
            }
            now = end + seen + 100_000;
        }
        assert!(widest < 10_000, "{widest}: the quick ones are 10,000 apart");
    }

    #[test]
    fn a_clock_that_was_set_counts_anew() {
        let times = |start, end| DeviceTimes { start, end, zero: [990, 1_080] };
        let mut clock = DeviceClock::of(times(0, 0));
        assert_eq!(clock.host(150), 1_185);
        clock.note(times(100, 200), 1_100, 1_300);
        assert_eq!((clock.host(150), clock.error()), (1_190, 40));
        clock.note(times(10, 20), 900_000, 900_100);
        // The bounds excluded each other by so much.
        assert_eq!((clock.host(10), clock.error()), (900_045, 898_821));
        // A device that claims to have taken longer than the host has seen.
        clock.note(times(0, 1_000), 500, 600);
        assert_eq!(clock.host(1_000), 600);
        assert!(clock.error() >= 898_821, "{clock:?}");
        // Times before zero are none.
        assert_eq!(clock.host(0), 0);
        clock.note(times(u64::MAX, u64::MAX), 0, 0);
        assert_eq!(clock.host(u64::MAX), 0);
    }
}
