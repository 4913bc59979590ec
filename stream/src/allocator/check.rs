//! A check of all invariants, for tests and for runs under the simulator.

use super::records::{NONE, State};
use super::{Allocator, classes::Class};

impl Allocator {
    /// Checks the whole state, and returns the first broken invariant. Linear in the number of blocks; changes nothing.
    ///
    /// # Errors
    ///
    /// The broken invariant, in words. An error is always a defect of the allocator, not of its caller.
    pub fn check(&self) -> Result<(), String> {
        let (mut reserved, mut in_use, mut used, mut free, mut pairs) = (0, 0, 0, 0, 0);
        for (region, granules, first) in self.regions.iter() {
            let (mut index, mut below, mut offset) = (first, NONE, 0);
            while index != NONE {
                let record = &self.records[index];
                let here = format!("record {index} at granule {} of region {}", record.offset, region.index());
                ensure(record.region == region, || format!("{here} says region {}", record.region.index()))?;
                ensure(record.previous == below, || format!("{here}: link down is {}", record.previous))?;
                ensure(record.offset == offset, || format!("{here} should start at {offset}"))?;
                ensure(record.granules > 0, || format!("{here} is empty"))?;
                match record.state {
                    State::Vacant => return Err(format!("{here} is vacant")),
                    State::Used => {
                        used += 1;
                        in_use += record.granules;
                        ensure(record.accesses.is_empty(), || format!("{here} is used and has accesses"))?;
                    }
                    State::Free => {
                        free += 1;
                        pairs += usize::from(self.records.is_free(below));
                        ensure(self.is_listed(index), || format!("{here} is free and not in its list"))?;
                    }
                }
                offset += record.granules;
                (below, index) = (index, record.next);
            }
            ensure(offset == granules, || {
                format!("region {} has {granules} granules, {offset} found", region.index())
            })?;
            reserved += granules;
        }
        let stats = self.stats();
        let found = (reserved << self.shift, in_use << self.shift, used, free);
        let (in_use, blocks) = (stats.in_use + self.aside_bytes, stats.blocks + self.aside_blocks);
        let counted = (stats.reserved, in_use, blocks, stats.free_blocks);
        ensure(found == counted, || format!("(reserved, in use, blocks, free blocks): {counted:?}, found {found:?}"))?;
        ensure(self.unmerged || pairs == 0, || format!("{pairs} free neighbours that no search would find"))?;
        let vacant = self.records.indices().filter(|&index| self.records[index].state == State::Vacant).count();
        ensure(vacant + used + free == self.records.len(), || "a block record is in no region".to_owned())
    }

    /// Whether this free record is in the list of its size, with consistent links, and the list's bit is set.
    fn is_listed(&self, index: u32) -> bool {
        let record = &self.records[index];
        let class = Class::of(record.granules);
        let linked = match record.previous_free {
            NONE => self.lists.head(class) == index,
            previous => self.records.is_free(previous) && self.records[previous].next_free == index,
        };
        linked && self.lists.next_after(class.before()) == Some(class)
    }
}

fn ensure(holds: bool, broken: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(broken()) }
}
