//! Rules about accesses: what a reused block has to wait for, and who gets which block.

use streamvm_stream::allocator::{AccessSet, Allocated, Allocator, AllocatorConfig, Want};
use streamvm_stream::{Point, StreamId};

const S1: StreamId = StreamId(1);
const S2: StreamId = StreamId(2);
const U: StreamId = StreamId::unordered(2);
const S3: StreamId = StreamId(3);
const KIB: usize = 1024;

fn pending(_: Point) -> bool {
    false
}

fn passed(_: Point) -> bool {
    true
}

fn point(stream: StreamId, seq: u64) -> Point {
    Point::new(stream, seq)
}

fn set<const N: usize>(points: [Point; N]) -> AccessSet {
    AccessSet::from_iter(points)
}

fn points(set: &AccessSet) -> Vec<Point> {
    set.iter().collect()
}

/// An allocator with one region of so many bytes and no further memory.
fn with_region(bytes: usize) -> Allocator {
    let mut allocator = Allocator::new(AllocatorConfig { alignment: 64, region_bytes: 64, limit: None }).unwrap();
    allocator.add_region(bytes).unwrap();
    allocator
}

fn any(allocator: &mut Allocator, bytes: usize, stream: StreamId) -> Allocated {
    allocator.alloc(bytes, Want::Any { stream }, &pending).expect("there is memory")
}

/// Cached blocks by address, with their points.
fn cache(allocator: &Allocator) -> Vec<(usize, usize, Vec<Point>)> {
    allocator.check().unwrap();
    let mut blocks: Vec<_> = allocator.cached_blocks().map(|(_, at, bytes, set)| (at, bytes, points(set))).collect();
    blocks.sort();
    blocks
}

#[test]
fn a_set_keeps_the_highest_point_of_each_ordered_stream() {
    let mut accesses = set([point(S2, 4), point(S1, 9), point(S2, 7), point(S1, 3)]);
    assert_eq!(points(&accesses), [point(S1, 9), point(S2, 7)]);
    accesses.merge(&set([point(S3, 1), point(S1, 10)]));
    assert_eq!(points(&accesses), [point(S1, 10), point(S2, 7), point(S3, 1)]);
    assert_eq!(format!("{accesses:?}"), "{s1@10, s2@7, s3@1}");
    accesses.prune(|p| p.stream == S2);
    assert_eq!(points(&accesses), [point(S1, 10), point(S3, 1)]);
    accesses.clear();
    assert!(accesses.is_empty());
}

#[test]
fn a_set_keeps_every_point_of_an_unordered_stream() {
    let mut accesses = AccessSet::new();
    for seq in [5, 3, 5, 4] {
        accesses.add(point(U, seq));
    }
    let mut other = set([point(S1, 1), point(S3, 8)]);
    other.merge(&accesses);
    assert_eq!(points(&other), [point(S1, 1), point(S3, 8), point(U, 3), point(U, 4), point(U, 5)]);
    other.prune(|p| p.seq == 4);
    assert_eq!(other.len(), 4);
    assert!(!accesses.is_ordered_on(U), "an unordered stream orders nothing, not even for itself");
    assert!(set([point(S2, 3)]).is_ordered_on(S2));
    assert!(AccessSet::new().is_ordered_on(U), "nothing is left to order");
}

#[test]
fn freed_memory_is_handed_out_with_its_accesses_even_to_the_same_stream() {
    let mut allocator = with_region(4 * KIB);
    for stream in [S1, S2] {
        let used = any(&mut allocator, 4 * KIB, S1);
        allocator.free(used.block.id, set([point(S1, 5), point(S2, 6)])).unwrap();
        let again = any(&mut allocator, 4 * KIB, stream);
        assert_eq!(points(&again.accesses), [point(S1, 5), point(S2, 6)]);
        allocator.free(again.block.id, again.accesses).unwrap();
    }
}

#[test]
fn points_that_have_passed_are_pruned_when_a_block_is_handed_out() {
    let mut allocator = with_region(4 * KIB);
    let used = any(&mut allocator, 4 * KIB, S1);
    allocator.free(used.block.id, set([point(S1, 5), point(S2, 6)])).unwrap();
    let again = allocator.alloc(4 * KIB, Want::Any { stream: S3 }, &|p| p == point(S1, 5)).unwrap();
    assert_eq!(points(&again.accesses), [point(S2, 6)]);
}

/// Hole 6: neighbours last accessed on two streams are merged, and one access is forgotten.
#[test]
fn merged_neighbours_wait_for_the_accesses_of_both() {
    let mut allocator = with_region(4 * KIB);
    let low = any(&mut allocator, 2 * KIB, S1);
    let high = any(&mut allocator, 2 * KIB, S2);
    allocator.free(low.block.id, set([point(S1, 5)])).unwrap();
    allocator.free(high.block.id, set([point(S2, 6)])).unwrap();
    let both = any(&mut allocator, 4 * KIB, S3);
    assert_eq!(points(&both.accesses), [point(S1, 5), point(S2, 6)]);
}

#[test]
fn neighbours_of_one_stream_merge_at_once_to_its_highest_point() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [2, 1, 0]] {
        let mut allocator = with_region(3 * KIB);
        let blocks: Vec<_> = (0..3).map(|_| any(&mut allocator, KIB, S1).block.id).collect();
        for at in order {
            allocator.free(blocks[at], set([point(S1, 10 + at as u64)])).unwrap();
        }
        assert_eq!(cache(&allocator), [(0, 3 * KIB, vec![point(S1, 12)])]);
    }
}

#[test]
fn neighbours_of_different_streams_stay_apart_until_a_request_needs_both() {
    let mut allocator = with_region(4 * KIB);
    let low = any(&mut allocator, 2 * KIB, S1);
    let high = any(&mut allocator, 2 * KIB, S2);
    allocator.free(low.block.id, set([point(S1, 5)])).unwrap();
    allocator.free(high.block.id, set([point(S2, 6)])).unwrap();
    for (stream, offset, access) in [(S2, 2 * KIB, point(S2, 6)), (S1, 0, point(S1, 5))] {
        let own = allocator.alloc(2 * KIB, Want::NoWait { stream }, &pending).expect("each stream finds its own");
        assert_eq!((own.block.offset, points(&own.accesses)), (offset, vec![access]));
        allocator.undo_alloc(own.block.id, own.accesses).unwrap();
    }
    assert!(allocator.alloc(3 * KIB, Want::NoWait { stream: S1 }, &pending).is_none());
    assert_eq!(any(&mut allocator, 3 * KIB, S1).accesses.len(), 2);
}

#[test]
fn a_run_that_needs_no_wait_is_merged_before_one_that_does() {
    let mut allocator = with_region(8 * KIB);
    let blocks: Vec<_> = (0..8).map(|_| any(&mut allocator, KIB, S1).block).collect();
    let owners = [set([point(S2, 1)]), set([point(S3, 1)]), set([point(S1, 1)]), set([])];
    for (block, owner) in blocks.iter().zip([0, 1, 0, 1, 2, 3, 2, 1]) {
        allocator.free(block.id, owners[owner].clone()).unwrap();
    }
    let run = any(&mut allocator, 3 * KIB, S1);
    assert_eq!((run.block.offset, points(&run.accesses)), (4 * KIB, vec![point(S1, 1)]));
    assert_eq!(cache(&allocator).len(), 5, "blocks outside the run stay apart");
}

#[test]
fn splitting_leaves_the_accesses_with_both_parts() {
    let mut allocator = with_region(4 * KIB);
    let used = any(&mut allocator, 4 * KIB, S1);
    allocator.free(used.block.id, set([point(S1, 5), point(S2, 6)])).unwrap();
    let front = any(&mut allocator, KIB, S3);
    let rest = any(&mut allocator, 3 * KIB, S3);
    for part in [front, rest] {
        assert_eq!(points(&part.accesses), [point(S1, 5), point(S2, 6)]);
    }
}

/// Hole 7: the caller's own thread fills a block while a copy from its last life is pending.
#[test]
fn memory_for_the_callers_thread_has_no_pending_access() {
    let mut allocator = with_region(4 * KIB);
    let low = any(&mut allocator, 2 * KIB, S1);
    let high = any(&mut allocator, 2 * KIB, S1);
    allocator.free(low.block.id, set([point(S1, 5)])).unwrap();
    allocator.free(high.block.id, set([point(S1, 6)])).unwrap();
    assert!(allocator.alloc(KIB, Want::Passed, &pending).is_none());
    assert!(allocator.alloc(4 * KIB, Want::Passed, &|p| p.seq <= 5).is_none());
    let fresh = allocator.alloc(4 * KIB, Want::Passed, &passed).unwrap();
    assert!(fresh.accesses.is_empty());
}

#[test]
fn memory_for_the_callers_thread_is_found_after_any_number_of_pending_blocks() {
    let mut allocator = with_region(200 * KIB);
    let blocks: Vec<_> = (0..200).map(|_| any(&mut allocator, KIB, S1).block).collect();
    for (at, block) in blocks.iter().enumerate().step_by(2) {
        allocator.free(block.id, set([point(S1, 1 + at as u64)])).unwrap();
    }
    let found = allocator.alloc(KIB, Want::Passed, &|p| p.seq == 1).expect("the block that was freed first");
    assert_eq!(found.block.offset, 0);
}

#[test]
fn memory_for_the_callers_thread_is_merged_from_passed_neighbours() {
    let mut allocator = with_region(3 * KIB);
    let blocks: Vec<_> = (0..3).map(|_| any(&mut allocator, KIB, S1).block).collect();
    for (block, stream) in blocks.iter().zip([S1, S2, S3]) {
        allocator.free(block.id, set([point(stream, 1)])).unwrap();
    }
    assert!(allocator.alloc(2 * KIB, Want::Passed, &|p| p.stream == S2).is_none());
    let found = allocator.alloc(2 * KIB, Want::Passed, &|p| p.stream != S1).unwrap();
    assert_eq!((found.block.offset, found.accesses.len()), (KIB, 0));
}

#[test]
fn a_block_without_a_wait_is_preferred_to_the_one_freed_last() {
    let mut allocator = with_region(6 * KIB);
    let blocks: Vec<_> = (0..6).map(|_| any(&mut allocator, KIB, S1).block).collect();
    for (at, stream) in [(0, S1), (2, S2), (4, S3)] {
        allocator.free(blocks[at].id, set([point(stream, 1)])).unwrap();
    }
    for (stream, at) in [(S2, 2), (S1, 0), (S3, 4)] {
        assert_eq!(any(&mut allocator, KIB, stream).block.offset, at * KIB);
    }
}

#[test]
fn a_larger_block_without_a_wait_is_preferred_to_a_waiting_one_that_fits() {
    let mut allocator = with_region(64 * KIB);
    let used = any(&mut allocator, KIB, S1);
    let _wall = any(&mut allocator, KIB, S1);
    allocator.free(used.block.id, set([point(S1, 1)])).unwrap();
    let found = any(&mut allocator, KIB, S2);
    assert_eq!((found.block.offset, found.accesses.len()), (2 * KIB, 0));
    assert_eq!(any(&mut allocator, KIB, S1).block.offset, 0);
}

#[test]
fn nothing_without_a_wait_is_none_on_the_first_rung_and_the_oldest_seen_on_the_second() {
    let mut allocator = with_region(5 * KIB);
    let blocks: Vec<_> = (0..5).map(|_| any(&mut allocator, KIB, S1).block).collect();
    for (at, seq) in [(2, 1), (0, 2), (4, 3)] {
        allocator.free(blocks[at].id, set([point(S1, seq)])).unwrap();
    }
    assert!(allocator.alloc(KIB, Want::NoWait { stream: S2 }, &pending).is_none());
    assert_eq!(points(&any(&mut allocator, KIB, S2).accesses), [point(S1, 1)]);
}

#[test]
fn an_unordered_stream_waits_for_its_own_points() {
    let mut allocator = with_region(KIB);
    let used = any(&mut allocator, KIB, S1);
    let mut accesses = AccessSet::new();
    accesses.add(point(U, 3));
    accesses.add(point(U, 4));
    allocator.free(used.block.id, accesses).unwrap();
    assert!(allocator.alloc(KIB, Want::NoWait { stream: U }, &pending).is_none());
    assert_eq!(points(&any(&mut allocator, KIB, U).accesses), [point(U, 3), point(U, 4)]);
}

/// Hole 14: an allocation late in a submission fails; what was done before it leaves no trace.
#[test]
fn undo_restores_the_cache_exactly() {
    let mut allocator = with_region(16 * KIB);
    let blocks: Vec<_> = (0..4).map(|_| any(&mut allocator, 4 * KIB, S1).block).collect();
    allocator.free(blocks[0].id, set([point(S1, 5)])).unwrap();
    allocator.free(blocks[1].id, set([point(S2, 6)])).unwrap();
    allocator.free(blocks[3].id, set([point(S1, 7), point(S3, 8)])).unwrap();
    let before = cache(&allocator);
    let stats = allocator.stats();

    let mut log = vec![];
    for bytes in [KIB, 2 * KIB, 4 * KIB, 3 * KIB, KIB] {
        log.push(any(&mut allocator, bytes, S2));
    }
    assert!(allocator.alloc(8 * KIB, Want::Any { stream: S2 }, &pending).is_none());
    while let Some(step) = log.pop() {
        allocator.undo_alloc(step.block.id, step.accesses).unwrap();
    }
    assert_eq!(cache(&allocator), before);
    assert_eq!((allocator.stats().in_use, allocator.stats().blocks), (stats.in_use, stats.blocks));
}

#[test]
fn undo_of_a_merged_block_keeps_the_accesses_of_every_part() {
    let mut allocator = with_region(4 * KIB);
    let low = any(&mut allocator, 2 * KIB, S1);
    let high = any(&mut allocator, 2 * KIB, S2);
    allocator.free(low.block.id, set([point(S1, 5)])).unwrap();
    allocator.free(high.block.id, set([point(S2, 6)])).unwrap();
    let both = any(&mut allocator, 4 * KIB, S3);
    allocator.undo_alloc(both.block.id, both.accesses).unwrap();
    assert_eq!(cache(&allocator), [(0, 4 * KIB, vec![point(S1, 5), point(S2, 6)])]);
}

#[test]
fn points_pending_are_those_of_free_blocks_alone() {
    let mut allocator = with_region(4 * KIB);
    let blocks: Vec<_> = (0..4).map(|_| any(&mut allocator, KIB, S1).block).collect();
    allocator.free(blocks[0].id, set([point(S1, 5), point(S2, 1)])).unwrap();
    allocator.free(blocks[2].id, set([point(S1, 7), point(S3, 2)])).unwrap();
    let waited_for = allocator.points_pending(&|p| p.stream == S3);
    assert_eq!(points(&waited_for), [point(S1, 7), point(S2, 1)]);
}

#[test]
fn shrink_gives_back_only_regions_that_nothing_waits_for() {
    let mut allocator = with_region(2 * KIB);
    let second = allocator.add_region(2 * KIB).unwrap();
    let blocks: Vec<_> = (0..4).map(|_| any(&mut allocator, KIB, S1).block).collect();
    assert!(allocator.shrink(&passed).is_empty());
    for block in &blocks {
        allocator.free(block.id, set([point(S1, 1 + block.region.index() as u64)])).unwrap();
    }
    assert!(allocator.shrink(&pending).is_empty());
    assert_eq!(allocator.shrink(&|p| p.seq == 2), [second]);
    assert_eq!(allocator.stats().reserved, 2 * KIB);
    assert_eq!(allocator.shrink(&passed).len(), 1);
    assert_eq!((allocator.stats().reserved, allocator.stats().regions), (0, 0));
    assert!(allocator.alloc(64, Want::Any { stream: S1 }, &passed).is_none());
    assert_eq!(allocator.add_region(KIB).unwrap().index(), 0, "region numbers stay dense");
}
