//! The allocator against a model that knows every byte.
//!
//! The model holds, for each byte of each region, whether it is in use and the set of points it was freed with. It has
//! no lists, no classes and no merging: it only judges what the allocator hands out. Random programs allocate, free,
//! undo whole submissions, let points pass, and shrink.

use std::collections::BTreeSet;

use proptest::prelude::*;
use streamvm_stream::allocator::{AccessSet, Allocated, Allocator, AllocatorConfig, Block, RegionId, Want};
use streamvm_stream::{Point, StreamId};

const ALIGNMENT: usize = 16;
const STREAMS: u32 = 4;
/// Points of this stream say nothing about each other.
const UNORDERED: StreamId = StreamId::unordered(STREAMS - 1);
const MAX_REGIONS: usize = 4;

#[derive(Clone, Debug)]
enum Step {
    Alloc {
        bytes: usize,
        want: Want,
    },
    /// Frees the block at this place of the list of blocks in use, last accessed on these streams; `touched` says that
    /// these accesses were ordered after those which came with the block.
    Free {
        at: prop::sample::Index,
        streams: Vec<u32>,
        touched: bool,
    },
    /// Makes these allocations, then undoes all of them, newest first.
    Undone(Vec<(usize, Want)>),
    Pass {
        stream: u32,
        count: u64,
    },
    AddRegion {
        bytes: usize,
    },
    Shrink,
}

fn want() -> impl Strategy<Value = Want> {
    let stream = || (0..STREAMS).prop_map(StreamId);
    prop_oneof![
        4 => stream().prop_map(|stream| Want::Any { stream }),
        2 => stream().prop_map(|stream| Want::NoWait { stream }),
        1 => Just(Want::Passed),
    ]
}

fn request() -> impl Strategy<Value = (usize, Want)> {
    (prop_oneof![4 => 1..100usize, 2 => 1..1200usize, 1 => Just(64usize)], want())
}

fn alloc_or_free() -> impl Strategy<Value = Step> {
    let streams = prop::collection::vec(0..STREAMS, 0..4);
    prop_oneof![
        request().prop_map(|(bytes, want)| Step::Alloc { bytes, want }),
        (any::<prop::sample::Index>(), streams, any::<bool>()).prop_map(|(at, streams, touched)| Step::Free {
            at,
            streams,
            touched
        }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        16 => alloc_or_free(),
        2 => prop::collection::vec(request(), 1..8).prop_map(Step::Undone),
        2 => (0..STREAMS, 1..8u64).prop_map(|(stream, count)| Step::Pass { stream, count }),
        1 => (ALIGNMENT..1500).prop_map(|bytes| Step::AddRegion { bytes }),
        1 => Just(Step::Shrink),
    ]
}

#[derive(Copy, Clone, PartialEq, Debug)]
struct Byte {
    used: bool,
    /// Index of the set it was last freed with.
    freed_with: usize,
}

#[derive(Clone, Debug)]
struct Live {
    block: Block,
    accesses: AccessSet,
}

/// An allocation, and the bytes as they were before it.
struct Undo {
    live: Live,
    bytes: Vec<Byte>,
}

struct World {
    allocator: Allocator,
    regions: Vec<Option<Vec<Byte>>>,
    /// The points that blocks were freed with, as they were.
    sets: Vec<BTreeSet<(StreamId, u64)>>,
    live: Vec<Live>,
    launched: [u64; STREAMS as usize],
    passed: [u64; STREAMS as usize],
}

impl World {
    fn new() -> World {
        let config = AllocatorConfig { alignment: ALIGNMENT, region_bytes: 512, limit: None };
        World {
            allocator: Allocator::new(config).unwrap(),
            regions: vec![],
            sets: vec![BTreeSet::new()],
            live: vec![],
            launched: [0; STREAMS as usize],
            passed: [0; STREAMS as usize],
        }
    }

    fn has_passed(&self) -> impl Fn(Point) -> bool + use<> {
        let passed = self.passed;
        // An unordered stream passes its odd points one by one, the even ones only together with all.
        move |point: Point| match point.stream {
            UNORDERED if point.seq % 2 == 1 => point.seq <= passed[UNORDERED.index()] + 3,
            stream => point.seq <= passed[stream.index()],
        }
    }

    fn region(&mut self, id: RegionId) -> &mut Vec<Byte> {
        self.regions[id.index()].as_mut().expect("a block lies in a region that exists")
    }

    fn bytes_of(&mut self, block: Block) -> &mut [Byte] {
        &mut self.region(block.region)[block.offset..block.offset + block.bytes]
    }

    /// Does `set` cover every point which this byte still waits for?
    fn covers(&self, set: &AccessSet, byte: Byte) -> bool {
        let passed = self.has_passed();
        self.sets[byte.freed_with].iter().all(|&(stream, seq)| {
            let covered = |point: Point| match stream {
                UNORDERED => point == Point { stream, seq },
                _ => point.stream == stream && point.seq >= seq,
            };
            passed(Point { stream, seq }) || set.iter().any(covered)
        })
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Alloc { bytes, want } => drop(self.alloc(*bytes, *want)),
            Step::Free { at, streams, touched } => self.free(at, streams, *touched),
            Step::Undone(requests) => {
                let log: Vec<Undo> = requests.iter().filter_map(|&(bytes, want)| self.alloc(bytes, want)).collect();
                log.into_iter().rev().for_each(|undo| self.undo(undo));
            }
            Step::Pass { stream, count } => {
                let stream = *stream as usize;
                self.passed[stream] = self.launched[stream].min(self.passed[stream] + count);
            }
            Step::AddRegion { bytes } => {
                if self.regions.iter().flatten().count() < MAX_REGIONS {
                    let id = self.allocator.add_region(*bytes).unwrap();
                    let fresh = vec![Byte { used: false, freed_with: 0 }; bytes / ALIGNMENT * ALIGNMENT];
                    self.regions.resize_with(self.regions.len().max(id.index() + 1), || None);
                    assert!(
                        self.regions[id.index()].replace(fresh).is_none(),
                        "a region number in use was given again"
                    );
                }
            }
            Step::Shrink => self.shrink(),
        }
    }

    fn alloc(&mut self, bytes: usize, want: Want) -> Option<Undo> {
        let passed = self.has_passed();
        let Some(Allocated { block, accesses }) = self.allocator.alloc(bytes, want, &passed) else {
            let rounded = bytes.next_multiple_of(ALIGNMENT);
            match want {
                Want::Any { .. } => assert!(self.longest_run(|_| true) < rounded, "{bytes} bytes were there"),
                Want::Passed => {
                    let run = self.longest_run(|set| set.iter().all(&passed));
                    assert!(run < rounded, "{bytes} bytes without a pending access were there");
                }
                Want::NoWait { .. } => {}
            }
            return None;
        };
        assert_eq!((block.offset % ALIGNMENT, block.bytes % ALIGNMENT), (0, 0));
        let rounded = bytes.next_multiple_of(ALIGNMENT);
        assert!(block.bytes >= rounded && block.bytes <= rounded + rounded / 32, "{bytes} got {}", block.bytes);
        // Nobody asks about what the wanting stream's own order covers.
        let own = |point: Point| matches!(want, Want::Any { stream } | Want::NoWait { stream } if stream == point.stream && stream != UNORDERED);
        assert!(
            accesses.iter().all(own) || !accesses.iter().any(&passed),
            "a point that has passed was handed out among {accesses:?}"
        );
        match want {
            Want::Any { .. } => {}
            Want::NoWait { stream: UNORDERED } | Want::Passed => assert!(accesses.is_empty()),
            Want::NoWait { stream } => assert!(accesses.iter().all(|point| point.stream == stream)),
        }
        let before = self.bytes_of(block).to_vec();
        for byte in &before {
            assert!(!byte.used, "{block:?} overlaps a block in use");
            assert!(self.covers(&accesses, *byte), "{accesses:?} misses points of {:?}", self.sets[byte.freed_with]);
        }
        self.bytes_of(block).iter_mut().for_each(|byte| byte.used = true);
        let live = Live { block, accesses };
        self.live.push(live.clone());
        Some(Undo { live, bytes: before })
    }

    /// The longest run of free bytes, over blocks of the allocator that `counts` accepts.
    fn longest_run(&self, counts: impl Fn(&AccessSet) -> bool) -> usize {
        let mut free: Vec<_> = self.allocator.cached_blocks().filter(|(_, _, _, set)| counts(set)).collect();
        free.sort_by_key(|&(region, offset, _, _)| (region, offset));
        let (mut longest, mut run, mut end) = (0, 0, None);
        for (region, offset, bytes, _) in free {
            run = if end == Some((region, offset)) { run + bytes } else { bytes };
            end = Some((region, offset + bytes));
            longest = longest.max(run);
        }
        longest
    }

    fn free(&mut self, at: &prop::sample::Index, streams: &[u32], touched: bool) {
        if self.live.is_empty() {
            return;
        }
        let at = at.index(self.live.len());
        let live = self.live.remove(at);
        let mut accesses = if touched && !streams.is_empty() { AccessSet::new() } else { live.accesses.clone() };
        for &stream in streams {
            self.launched[stream as usize] += 1;
            let stream_id = if stream == STREAMS - 1 { UNORDERED } else { StreamId(stream) };
            let point = Point::new(stream_id, self.launched[stream as usize]);
            accesses.add(point)
        }
        self.sets.push(accesses.iter().map(|point| (point.stream, point.seq)).collect());
        self.allocator.free(live.block.id, accesses).unwrap();
        assert!(self.allocator.free(live.block.id, AccessSet::new()).is_err(), "a second free was accepted");
        let freed_with = self.sets.len() - 1;
        self.bytes_of(live.block).fill(Byte { used: false, freed_with });
    }

    fn undo(&mut self, Undo { live, bytes }: Undo) {
        let last = self.live.pop().expect("the undone block is in use");
        assert_eq!(last.block, live.block);
        self.allocator.undo_alloc(live.block.id, live.accesses).unwrap();
        self.bytes_of(live.block).copy_from_slice(&bytes);
    }

    fn shrink(&mut self) {
        let passed = self.has_passed();
        let gone = self.allocator.shrink(&passed);
        for region in gone {
            let bytes = self.regions[region.index()].take().expect("a region is given back once");
            for byte in bytes {
                assert!(!byte.used, "a region in use was given back");
                assert!(self.covers(&AccessSet::new(), byte), "a region was given back before its points had passed");
            }
        }
    }

    /// Every byte is either in use or in exactly one cached block, which waits for all that the byte waits for.
    fn check(&self) {
        self.allocator.check().unwrap();
        let mut cached: Vec<Vec<bool>> =
            self.regions.iter().map(|region| vec![false; region.as_ref().map_or(0, Vec::len)]).collect();
        for (region, offset, bytes, accesses) in self.allocator.cached_blocks() {
            let known = self.regions[region.index()].as_ref().expect("a cached block lies in a region that exists");
            for at in offset..offset + bytes {
                assert!(!known[at].used, "byte {at} of {region:?} is cached and in use");
                assert!(!std::mem::replace(&mut cached[region.index()][at], true), "byte {at} is cached twice");
                assert!(at > offset && known[at] == known[at - 1] || self.covers(accesses, known[at]));
            }
        }
        let mut in_use = 0;
        for (region, cached) in self.regions.iter().zip(&cached) {
            for (byte, cached) in region.iter().flatten().zip(cached) {
                assert!(byte.used || *cached, "a byte was lost");
                in_use += usize::from(byte.used);
            }
        }
        let stats = self.allocator.stats();
        let reserved: usize = self.regions.iter().flatten().map(Vec::len).sum();
        assert_eq!((stats.in_use, stats.reserved, stats.cached), (in_use, reserved, reserved - in_use));
        assert_eq!(stats.blocks, self.live.len());
    }

    /// With nothing in use, each region can be had in one piece, and all goes back once everything has passed.
    fn wind_down(&mut self) {
        while let Some(live) = self.live.pop() {
            self.bytes_of(live.block).iter_mut().for_each(|byte| byte.used = false);
            self.allocator.free(live.block.id, live.accesses).unwrap();
        }
        let mut sizes: Vec<usize> = self.regions.iter().flatten().map(Vec::len).collect();
        sizes.sort_by_key(|&bytes| std::cmp::Reverse(bytes));
        let whole: Vec<Allocated> = sizes
            .iter()
            .map(|&bytes| {
                self.allocator.alloc(bytes, Want::Any { stream: StreamId(0) }, &|_| false).expect("one piece")
            })
            .collect();
        assert_eq!(self.allocator.stats().cached, 0);
        for piece in whole {
            self.allocator.free(piece.block.id, piece.accesses).unwrap();
        }
        assert_eq!(self.allocator.shrink(&|_| true).len(), sizes.len());
        let stats = self.allocator.stats();
        assert_eq!((stats.reserved, stats.free_blocks, stats.regions), (0, 0, 0));
        self.allocator.check().unwrap();
    }
}

proptest! {
    #[test]
    fn random_programs_agree_with_the_model(
        first in ALIGNMENT..1500usize,
        steps in prop::collection::vec(step(), 1..150),
    ) {
        let mut world = World::new();
        world.step(&Step::AddRegion { bytes: first });
        for step in &steps {
            world.step(step);
            world.check();
        }
        world.wind_down();
    }
}
