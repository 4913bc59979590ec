//! The clock of a device beside that of the host, for traces with times.
//!
//! A device tells when an instruction ran by a clock of its own. The host knows about when that was zero. An instruction begins after the host began to launch it, and ends before the host
//! sees that. So each bounds what must be added to the device's times, from below and from above; the middle is taken. Clocks drift apart, so a bound is worth less for times that are far from its own.

use crate::tasks::events::DeviceTimes;

/// So much may clocks drift apart: a nanosecond in so many, 100 ppm. That of a computer is off by 10 to 50.
const DRIFT: i128 = 10_000;

/// So much may times of streams of one device contradict each other: the driver tells times between far events as 32-bit floats.
const ROUNDED: i128 = 1_000_000;

/// See the module's documentation. All times are in nanoseconds.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceClock {
    /// The host's time less the device's is at least and at most so much.
    least: Bound,
    most: Bound,
    /// The largest error so far.
    worst: i128,
}

/// A bound, as it was found at a time of the host.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Bound {
    value: i128,
    at: i128,
}

impl Bound {
    /// By how much it may be wrong at another time.
    fn drift(self, at: i128) -> i128 {
        ((at - self.at).abs() + DRIFT - 1) / DRIFT
    }
}

impl DeviceClock {
    /// The clock of a device whose first times these are.
    pub(crate) fn of(times: DeviceTimes) -> DeviceClock {
        let [first, last] = times.zero.map(i128::from);
        DeviceClock { least: Bound { value: first, at: first }, most: Bound { value: last, at: last }, worst: 0 }
    }

    /// Narrows the bounds by those of an instruction, which the host has seen to be over.
    pub(crate) fn note(&mut self, times: DeviceTimes, seen: u64) {
        let (launched, seen) = (i128::from(times.launched), i128::from(seen));
        let least = Bound { value: launched - i128::from(times.start), at: launched };
        let most = Bound { value: seen - i128::from(times.end), at: seen };
        let tighter = |one: Bound, other: Bound, sign: i128| {
            let at = |bound: Bound| sign * bound.value - bound.drift(seen);
            if at(one) > at(other) { one } else { other }
        };
        let both = (tighter(least, self.least, 1), tighter(most, self.most, -1));
        let excluded = (both.0.value - both.0.drift(seen)) - (both.1.value + both.1.drift(seen));
        (self.least, self.most) = match excluded {
            ..=0 => both,
            // Times of a device are rounded: the truth is between the two.
            1..=ROUNDED => {
                let [low, high] = [both.1.value + both.1.drift(seen), both.0.value - both.0.drift(seen)];
                (Bound { value: low, at: seen }, Bound { value: high, at: seen })
            }
            // A clock was set. What is seen now counts.
            _ => (if least.value <= most.value { least } else { most }, most),
        };
        // All before may be wrong by so much.
        self.worst = self.worst.max(excluded);
    }

    fn least_at(&self, at: i128) -> i128 {
        self.least.value - self.least.drift(at)
    }

    fn most_at(&self, at: i128) -> i128 {
        self.most.value + self.most.drift(at)
    }

    /// The time of the host at a time of the device.
    pub(crate) fn host(&mut self, time: u64) -> u64 {
        let near = i128::from(time) + (self.least.value + self.most.value) / 2;
        let (least, most) = (self.least_at(near), self.most_at(near));
        self.worst = self.worst.max((most - least + 1) / 2);
        let at = i128::from(time) + (least + most) / 2;
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

    /// A device whose clock has another zero, and is fast by 50 ppm.
    fn device(host: u64) -> u64 {
        host + host / 20_000 - 3_000_000
    }

    const ZERO: [i64; 2] = [3_000_000 - 200_000, 3_000_000 + 10_000];

    /// Instructions that are launched too early and seen too late, by so much.
    #[test]
    fn times_are_within_the_error_however_long_it_goes_on() {
        let mut clock: Option<DeviceClock> = None;
        let (mut now, mut widest) = (5_000_000u64, 0);
        for round in 0..100_000u64 {
            // A pseudorandom pace: every now and then a launch or a look is quick.
            let random = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            let (late, length, seen) = (4_000 + random % 30_000, 1_000 + random % 7_000, 6_000 + random / 7 % 50_000);
            let (start, end) = (now + late, now + late + length);
            let times = DeviceTimes { start: device(start), end: device(end), launched: now, zero: ZERO };
            let clock = clock.get_or_insert(DeviceClock::of(times));
            clock.note(times, end + seen);
            clock.worst = 0;
            for time in [start, end] {
                let off = clock.host(device(time)).abs_diff(time);
                let error = clock.error();
                assert!(off <= error + 10, "{round}: off by {off}, {clock:?}");
                widest = if round > 1_000 { error.max(widest) } else { widest };
            }
            now = end + seen + 100_000;
        }
        assert!(widest < 10_000, "{widest}: the quick ones are 10,000 apart");
    }

    /// The host looks at kernels of ten seconds once, at the end; all were launched at the begin.
    #[test]
    fn times_long_before_the_look_are_within_the_error() {
        let (launched, seen) = (5_000_000, 10_010_000_000);
        let kernels: Vec<[u64; 2]> =
            (0..1_000).map(|at| [launched + 6_000 + at * 10_000_000, launched + at * 10_000_000 + 9_000_000]).collect();
        let times =
            |[start, end]: [u64; 2]| DeviceTimes { start: device(start), end: device(end), launched, zero: ZERO };
        let mut clock = DeviceClock::of(times(kernels[0]));
        kernels.iter().for_each(|kernel| clock.note(times(*kernel), seen));
        for time in kernels.into_iter().flatten() {
            let off = clock.host(device(time)).abs_diff(time);
            assert!(off <= clock.error() + 10, "off by {off}, {clock:?}");
        }
        assert!(clock.error() < 1_500_000, "the drift of ten seconds, and 1 ms of the last look: {clock:?}");
    }

    /// Two streams whose times are wrong by 4 µs, one early and one late, as far events are rounded, and launches and looks that are tighter than that now and then.
    #[test]
    fn streams_whose_rounding_contradicts_each_other_cost_no_more_than_that() {
        let mut clock: Option<DeviceClock> = None;
        for round in 0..1_000u64 {
            let begin = 10_000_000 + round * 1_000_000;
            let off = if round % 2 == 0 { 4_000i64 } else { -4_000 };
            let device = |host: u64| device(host).saturating_add_signed(off);
            let (launched, seen) =
                if round < 4 { (begin - 1_000, begin + 502_000) } else { (begin - 300_000, begin + 900_000) };
            let times = DeviceTimes { start: device(begin), end: device(begin + 500_000), launched, zero: ZERO };
            let clock = clock.get_or_insert(DeviceClock::of(times));
            clock.note(times, seen);
            let wrong = clock.host(times.start).abs_diff(begin);
            assert!(wrong <= clock.error() + 4_000, "{round}: {wrong}, {clock:?}");
        }
        // 1,000 rounds last a second, in which clocks may drift apart by 100 µs.
        let clock = clock.expect("there were rounds");
        assert!(clock.error() < 115_000, "{clock:?}");
    }

    #[test]
    fn a_clock_that_was_set_counts_anew() {
        let times = |start, end, launched| DeviceTimes { start, end, launched, zero: [990, 1_080] };
        let mut clock = DeviceClock::of(times(0, 0, 0));
        assert_eq!((clock.host(150), clock.error()), (1_185, 46));
        let mut clock = DeviceClock::of(times(0, 0, 0));
        clock.note(times(100, 200, 1_100), 1_300);
        assert_eq!((clock.host(150), clock.error()), (1_190, 41));
        clock.note(times(10, 20, 900_000_000), 900_000_100);
        // The bounds excluded each other by so much.
        assert_eq!((clock.host(10), clock.error()), (900_000_045, 899_908_909));
        // A device that claims to have taken longer than the host has seen.
        clock.note(times(0, 1_000, 500), 600);
        assert_eq!(clock.host(1_000), 600);
        assert!(clock.error() >= 899_908_909, "{clock:?}");
        // Times before zero are none.
        assert_eq!(clock.host(0), 0);
        clock.note(times(u64::MAX, u64::MAX, 0), 0);
        assert_eq!(clock.host(u64::MAX), 0);
    }

    /// Its zero was before that of the engine.
    #[test]
    fn a_device_may_be_older_than_the_engine() {
        let times = DeviceTimes { start: 9_000_100, end: 9_000_200, launched: 50, zero: [-9_000_020, -9_000_000] };
        let mut clock = DeviceClock::of(times);
        clock.note(times, 1_000_000);
        assert_eq!((clock.host(9_000_100), clock.error()), (525, 476), "{clock:?}");
    }
}
