//! How much memory was in use, and whose it was at the peak.

use serde::Serialize;

use crate::pools::Pool;
use crate::recording::Recording;
use crate::report::Place;

/// The most values of memory over time in a report, and the last one.
const MOST_VALUES: usize = 1_000;

/// The memory of one place and kind.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Memory {
    /// Which, such as `device memory on cpu:0`.
    pub pool: String,
    /// The most that was in use at once, in bytes, with the rounding of the allocator.
    pub peak_bytes: u64,
    /// When that was first, in nanoseconds since the first submission; `None` if it was before, as of the trace of a flight recorder it may have been.
    pub peak_at_ns: Option<u64>,
    /// The owners then: the lines with the most bytes, the greatest first.
    pub owners: Vec<Owner>,
    /// The bytes of further lines.
    pub others_bytes: u64,
    /// The bytes that the pool had from its device at last, in use or not.
    pub reserved_bytes: u64,
    /// Times in nanoseconds since the first submission, and the bytes in use from then on: of each 200 µs the most and the last, of a long run the most of each
    /// thousandth part.
    pub over_time: Vec<(u64, u64)>,
}

/// The memory that the instructions of a line had at the peak.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Owner {
    /// The name of the op, function or program that was given the memory, with its line and without a stream.
    pub of: Place,
    /// How many bytes.
    pub bytes: u64,
    /// Of how many tensors.
    pub tensors: u64,
}

/// The pools of a trace, the one with the highest peak first.
pub(crate) fn memory(recording: &Recording) -> Vec<Memory> {
    let mut found: Vec<Memory> = recording.pools.0.iter().filter_map(|pool| of_pool(recording, pool)).collect();
    found.sort_by(|one, other| other.peak_bytes.cmp(&one.peak_bytes).then_with(|| one.pool.cmp(&other.pool)));
    found
}

fn of_pool(recording: &Recording, pool: &Pool) -> Option<Memory> {
    let highest = pool.values.iter().max_by_key(|(at, bytes)| (*bytes, std::cmp::Reverse(*at)));
    // The trace may have been cut before the peak was written.
    let peak = pool.peak.as_ref().filter(|peak| highest.is_none_or(|(_, bytes)| *bytes <= peak.bytes));
    let (peak_at, peak_bytes) = peak.map(|peak| (peak.at, peak.bytes)).or(highest.copied())?;
    let (begin, _) = recording.span();
    let owners = peak.iter().flat_map(|peak| &peak.owners).map(|owner| Owner {
        of: Place {
            stream: None,
            name: recording.text(owner.name).to_owned(),
            line: recording.text(owner.line).to_owned(),
        },
        bytes: owner.bytes,
        tensors: owner.tensors,
    });
    let owners: Vec<Owner> = owners.collect();
    let owned = owners.iter().fold(0, |sum: u64, owner| sum.saturating_add(owner.bytes));
    Some(Memory {
        pool: pool.name.clone(),
        peak_bytes,
        peak_at_ns: peak_at.checked_sub(begin),
        others_bytes: peak_bytes.saturating_sub(owned),
        owners,
        reserved_bytes: pool.reserved,
        over_time: over_time(&pool.values).into_iter().map(|(at, bytes)| (at.saturating_sub(begin), bytes)).collect(),
    })
}

/// At most [`MOST_VALUES`] of these values, with the highest ones, in the order of their times.
fn over_time(values: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut sorted = values.to_vec();
    sorted.sort_by_key(|(at, _)| *at);
    let many = sorted.len().div_ceil(MOST_VALUES).max(1);
    let highest = |part: &[(u64, u64)]| part.iter().copied().max_by_key(|(_, bytes)| *bytes);
    let mut found: Vec<(u64, u64)> = sorted.chunks(many).filter_map(highest).collect();
    // The last one says what was left.
    found.extend(sorted.last().filter(|last| found.last() != Some(last)));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_values_become_few_with_the_highest_and_the_last() {
        let mut values: Vec<(u64, u64)> = (0..9_500).map(|at| (at, at % 7)).collect();
        values[4_321].1 = 1_000;
        values.reverse();
        let found = over_time(&values);
        assert!(found.len() <= MOST_VALUES + 1 && found.is_sorted());
        assert!(found.contains(&(4_321, 1_000)));
        assert_eq!(found.last(), Some(&(9_499, 9_499 % 7)));
        // The most right before the end.
        values[1] = (9_498, 2_000);
        assert!(over_time(&values).ends_with(&[(9_498, 2_000), (9_499, 9_499 % 7)]));
        assert_eq!(over_time(&[(3, 1), (2, 5)]), [(2, 5), (3, 1)]);
        assert_eq!(over_time(&[]), []);
    }
}
