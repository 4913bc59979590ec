//! The memory of a trace: counters, and marks at peaks with the lines whose memory it was.

use crate::recording::Text;

/// The most pools that are read.
const MOST_POOLS: usize = 64;

/// The most owners of a peak that are read.
const MOST_OWNERS: usize = 64;

/// The memory of all places and kinds.
#[derive(Debug, Default)]
pub(crate) struct Pools(pub(crate) Vec<Pool>);

/// The memory of one place and kind.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) name: String,
    /// Times, and the bytes in use then.
    pub(crate) values: Vec<(u64, u64)>,
    pub(crate) reserved: u64,
    pub(crate) peak: Option<Peak>,
}

/// The most that was in use.
#[derive(Debug)]
pub(crate) struct Peak {
    pub(crate) at: u64,
    pub(crate) bytes: u64,
    pub(crate) owners: Vec<Owner>,
}

/// The memory of a name and line.
#[derive(Debug, Default)]
pub(crate) struct Owner {
    pub(crate) name: Text,
    pub(crate) line: Text,
    pub(crate) bytes: u64,
    pub(crate) tensors: u64,
}

/// The meaning of a counter.
#[derive(Copy, Clone)]
pub(crate) enum Counts {
    /// The bytes in use of a pool.
    InUse(usize),
    /// The bytes that a pool has from its device.
    Reserved(usize),
    /// Nothing that a report is made of.
    Other,
}

impl Pools {
    /// The meaning of a counter of this name. That of the bytes in use is named for its pool, as `device memory on cpu:0`.
    pub(crate) fn counter(&mut self, name: &str) -> Counts {
        let (pool, is_reserved) = match name.strip_suffix(", reserved") {
            Some(pool) => (pool, true),
            None => (name, false),
        };
        if !pool.contains(" memory on ") {
            return Counts::Other;
        }
        let place = match self.0.iter().position(|known| known.name == pool) {
            Some(known) => known,
            None if self.0.len() < MOST_POOLS => {
                self.0.push(Pool { name: pool.to_owned(), values: Vec::new(), reserved: 0, peak: None });
                self.0.len() - 1
            }
            None => return Counts::Other,
        };
        if is_reserved { Counts::Reserved(place) } else { Counts::InUse(place) }
    }

    pub(crate) fn count(&mut self, counter: Counts, at: u64, value: u64) {
        match counter {
            Counts::InUse(pool) => self.0[pool].values.push((at, value)),
            Counts::Reserved(pool) => self.0[pool].reserved = value,
            Counts::Other => {}
        }
    }

    /// A mark on the track of a pool's peaks: a peak, which has no name and no line, or an owner of the last peak.
    pub(crate) fn mark(&mut self, pool: usize, at: u64, is_peak: bool, owner: Owner) {
        match &mut self.0[pool].peak {
            peak if is_peak => *peak = Some(Peak { at, bytes: owner.bytes, owners: Vec::new() }),
            Some(peak) if peak.owners.len() < MOST_OWNERS => peak.owners.push(owner),
            _ => {}
        }
    }
}
