//! Latencies in a histogram of fixed size, so that measuring for hours takes no more memory.

use std::time::Duration;

/// Buckets per power of two: a percentile is exact to 1 part in 32.
const STEPS: usize = 32;

/// Number of latencies per bucket. Buckets grow with the latency, as in HdrHistogram (Tene 2012).
#[derive(Clone, Debug)]
pub struct Latencies {
    buckets: Vec<u64>,
    count: u64,
    most: Duration,
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies { buckets: vec![0; STEPS * 64], count: 0, most: Duration::ZERO }
    }
}

/// The bucket of a number of nanoseconds: exact below 32; above, the five bits after the highest one select it.
fn bucket(nanos: u64) -> usize {
    let bits = 63 - (nanos | 1).leading_zeros() as usize;
    match bits.checked_sub(5) {
        None => nanos as usize,
        Some(shift) => (shift + 1) * STEPS + (nanos >> shift) as usize - STEPS,
    }
}

/// The largest number of nanoseconds in a bucket.
fn upper(bucket: usize) -> u64 {
    match (bucket / STEPS).checked_sub(1) {
        None => bucket as u64,
        Some(shift) => (((bucket % STEPS + STEPS) as u64 + 1) << shift) - 1,
    }
}

impl Latencies {
    /// Counts one latency.
    pub fn add(&mut self, latency: Duration) {
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX >> 1).min(u64::MAX >> 1);
        self.buckets[bucket(nanos)] += 1;
        self.count += 1;
        self.most = self.most.max(latency);
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &Latencies) {
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(mine, theirs)| *mine += theirs);
        self.count += other.count;
        self.most = self.most.max(other.most);
    }

    /// Number of counted latencies.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The longest latency.
    pub fn most(&self) -> Duration {
        self.most
    }

    /// The latency that the share `part` of all (0 to 1) does not exceed, rounded up to its bucket.
    pub fn percentile(&self, part: f64) -> Duration {
        let rank = ((self.count as f64 * part).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank && *count > 0 {
                return Duration::from_nanos(upper(index)).min(self.most);
            }
        }
        Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_its_number_and_grows_with_it() {
        let mut last = 0;
        for nanos in (0..4096).chain((12..62).flat_map(|bits| [(1 << bits) - 1, 1 << bits, (1 << bits) + 1])) {
            let found = bucket(nanos);
            assert!(found >= last && upper(found) >= nanos, "{nanos} in {found}");
            assert!(upper(found) - nanos <= nanos / 16, "{nanos} in a bucket up to {}", upper(found));
            last = found;
        }
        assert!(bucket(u64::MAX >> 1) < STEPS * 64);
    }

    #[test]
    fn percentiles_are_right_to_their_bucket() {
        let mut latencies = Latencies::default();
        (1..=1000).for_each(|micros| latencies.add(Duration::from_micros(micros)));
        let near = |part, micros: u64| {
            let found = latencies.percentile(part).as_nanos() as u64;
            assert!(found >= micros * 1000 && found <= micros * 1000 * 33 / 32, "{part}: {found}");
        };
        near(0.5, 500);
        near(0.99, 990);
        near(0.999, 999);
        assert_eq!(latencies.percentile(1.0), Duration::from_millis(1));
        let mut both = Latencies::default();
        both.merge(&latencies);
        both.add(Duration::from_secs(1));
        assert_eq!((both.count(), both.most()), (1001, Duration::from_secs(1)));
        assert_eq!(Latencies::default().percentile(0.5), Duration::ZERO);
    }
}
