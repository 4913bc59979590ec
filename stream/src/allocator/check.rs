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

#[cfg(test)]
mod tests {
    use super::super::{AccessSet, AllocatorConfig, RegionId, Want};
    use super::*;
    use crate::{Point, StreamId};

    const STREAM: StreamId = StreamId(0);

    /// A region of 16 granules: records 0 (in use), 1 (free), 2 (in use) and 3 (free), of 4 granules each.
    fn allocator() -> Allocator {
        let config = AllocatorConfig { alignment: 64, region_bytes: 1024, limit: None };
        let mut allocator = Allocator::new(config).unwrap();
        allocator.add_region(1024).unwrap();
        let [_, second, third] =
            [(); 3].map(|()| allocator.alloc(256, Want::Any { stream: STREAM }, &|_| false).unwrap().block);
        allocator.free(second.id, AccessSet::from_iter([Point::new(STREAM, 1)])).unwrap();
        allocator.set_aside(third.bytes);
        assert_eq!(allocator.check(), Ok(()));
        allocator
    }

    #[test]
    fn each_broken_invariant_is_named() {
        type Break = fn(&mut Allocator);
        let cases: [(&str, Break); 17] = [
            ("record 1 at granule 4 of region 0 says region 7", |all| all.records[1].region = RegionId(7)),
            ("record 2 at granule 8 of region 0: link down is 0", |all| all.records[2].previous = 0),
            ("record 2 at granule 9 of region 0 should start at 8", |all| all.records[2].offset = 9),
            ("record 1 at granule 4 of region 0 is empty", |all| all.records[1].granules = 0),
            ("record 1 at granule 4 of region 0 is vacant", |all| all.records[1].state = State::Vacant),
            ("record 0 at granule 0 of region 0 is used and has accesses", |all| {
                all.records[0].accesses.add(Point::new(STREAM, 1));
            }),
            ("record 1 at granule 4 of region 0 is free and not in its list", |all| {
                all.lists.remove(&mut all.records, 1);
            }),
            ("record 1 at granule 4 of region 0 is free and not in its list", |all| all.records[1].previous_free = 3),
            ("record 3 at granule 12 of region 0 is free and not in its list", |all| all.records[1].next_free = NONE),
            ("region 0 has 16 granules, 12 found", |all| all.records[2].next = NONE),
            ("(1088, 512, 2, 2), found (1024, 512, 2, 2)", |all| all.counters.reserved += 64),
            ("(1024, 576, 2, 2), found (1024, 512, 2, 2)", |all| all.counters.in_use += 64),
            ("(1024, 512, 3, 2), found (1024, 512, 2, 2)", |all| all.counters.blocks += 1),
            ("1 free neighbours that no search would find", |all| {
                // The neighbour below waits for another stream, so the two stay apart.
                let block = super::super::BlockId { index: 0, generation: all.records[0].generation };
                all.free(block, AccessSet::from_iter([Point::new(StreamId(1), 1)])).unwrap();
                assert_eq!(all.check(), Ok(()));
                all.unmerged = false;
            }),
            ("a block record is in no region", |all| {
                let record = all.records.take().unwrap();
                assert_eq!(all.check(), Ok(()), "a vacant record is in no region");
                all.records[record].state = State::Used;
            }),
            ("a block record is in no region", |all| {
                let record = all.records.take().unwrap();
                all.records[record].state = State::Free;
            }),
            ("(1024, 512, 2, 3), found (1024, 512, 2, 2)", |all| {
                let record = all.records.take().unwrap();
                all.records[record].granules = 1;
                all.lists.push(&mut all.records, record);
            }),
        ];
        for (expected, break_it) in cases {
            let mut allocator = allocator();
            break_it(&mut allocator);
            let found = allocator.check().unwrap_err();
            assert!(found.contains(expected), "{found}, expected: {expected}");
        }
    }
}
