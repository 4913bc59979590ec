//! Regions: the memory that the driver has given, and that can be returned to it.

use super::records::{NONE, State};
use super::{AccessSet, Allocator, AllocatorError, RegionId};
use crate::Point;

/// One region; vacant while `granules` is 0.
#[derive(Debug)]
struct RegionRecord {
    granules: usize,
    /// The record of the lowest block. It never changes while the region exists, as merging keeps the lower record.
    first: u32,
}

/// All regions, numbered densely; numbers are reused.
#[derive(Debug)]
pub(super) struct Regions {
    records: Vec<RegionRecord>,
}

impl Regions {
    pub(super) fn new() -> Regions {
        Regions { records: Vec::new() }
    }

    /// The regions that exist, as (id, granules, record of the lowest block).
    pub(super) fn iter(&self) -> impl Iterator<Item = (RegionId, usize, u32)> + '_ {
        let all = self.records.iter().enumerate();
        all.filter(|(_, region)| region.granules != 0)
            .map(|(index, region)| (RegionId(index as u32), region.granules, region.first))
    }

    /// The smallest free number. Linear in the number of regions; it is called once per driver call.
    fn vacant(&self) -> usize {
        self.records.iter().position(|region| region.granules == 0).unwrap_or(self.records.len())
    }
}

impl Allocator {
    /// The number of bytes to ask the driver for, so that a request of `bytes` fits: a multiple of
    /// [`region_bytes`](super::AllocatorConfig::region_bytes), or less where the limit allows less. A driver that refuses this size
    /// may still grant [`rounded`](Self::rounded) bytes.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::BadSize`] for zero or more than can be addressed; [`AllocatorError::LimitReached`].
    pub fn region_request(&self, bytes: usize) -> Result<usize, AllocatorError> {
        let least = self.rounded(bytes)?;
        let usual = least.checked_next_multiple_of(self.config.region_bytes.max(self.config.alignment));
        let usual = usual.and_then(|usual| self.rounded(usual).ok()).unwrap_or(least);
        let Some(limit) = self.config.limit else { return Ok(usual) };
        let room = limit.saturating_sub(self.counters.reserved) & !(self.config.alignment - 1);
        if least > room {
            return Err(AllocatorError::LimitReached {
                requested: least,
                reserved: self.counters.reserved,
                in_use: self.in_use(),
                limit,
            });
        }
        Ok(usual.min(room))
    }

    /// The size of the smallest block for `bytes`: the next multiple of the alignment.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::BadSize`] for zero or more than can be addressed.
    pub fn rounded(&self, bytes: usize) -> Result<usize, AllocatorError> {
        Ok(self.granules(bytes)? << self.shift)
    }

    /// Registers memory from the driver as one free block without accesses. Bytes past the last multiple of the alignment are never
    /// used.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::BadSize`] for a region that is smaller than the alignment, or past what can be addressed (all regions
    /// together); [`AllocatorError::TooManyBlocks`]. Then the caller keeps the memory and must return it to the driver.
    pub fn add_region(&mut self, bytes: usize) -> Result<RegionId, AllocatorError> {
        let largest = isize::MAX as usize - self.counters.reserved;
        let granules = bytes >> self.shift;
        if granules == 0 || bytes > largest {
            return Err(AllocatorError::BadSize { bytes, largest });
        }
        let first = self.records.take()?;
        let slot = self.regions.vacant();
        // There is a block record for each region, and an index can name each record.
        let id = RegionId(slot as u32);
        let region = RegionRecord { granules, first };
        match self.regions.records.get_mut(slot) {
            Some(vacant) => *vacant = region,
            None => self.regions.records.push(region),
        }
        let record = &mut self.records[first];
        record.state = State::Free;
        record.region = id;
        (record.previous, record.next) = (NONE, NONE);
        (record.offset, record.granules) = (0, granules);
        record.accesses = AccessSet::new();
        self.lists.push(&mut self.records, first);
        self.counters.reserved += granules << self.shift;
        self.counters.regions += 1;
        Ok(id)
    }

    /// Removes the regions that are wholly free and whose points have all passed, and returns their ids. The caller returns their
    /// memory to the driver, or never uses it again. Regions with a point that has not passed stay.
    ///
    /// The next [`add_region`](Self::add_region) may reuse the numbers of these regions.
    pub fn shrink(&mut self, passed: &dyn Fn(Point) -> bool) -> Vec<RegionId> {
        let idle = self.regions.iter().filter(|&(_, _, first)| self.is_idle(first, passed));
        let idle: Vec<(RegionId, usize, u32)> = idle.collect();
        for &(id, granules, first) in &idle {
            let mut index = first;
            while index != NONE {
                let next = self.records[index].next;
                self.lists.remove(&mut self.records, index);
                self.records.vacate(index);
                index = next;
            }
            self.regions.records[id.index()] = RegionRecord { granules: 0, first: NONE };
            self.counters.reserved -= granules << self.shift;
            self.counters.regions -= 1;
        }
        idle.into_iter().map(|(id, _, _)| id).collect()
    }

    /// Whether this block and all blocks above it are free, and all their points have passed.
    fn is_idle(&self, first: u32, passed: &dyn Fn(Point) -> bool) -> bool {
        let mut index = first;
        while index != NONE {
            let record = &self.records[index];
            if record.state != State::Free || !record.accesses.iter().all(passed) {
                return false;
            }
            index = record.next;
        }
        true
    }
}
