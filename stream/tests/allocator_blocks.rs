//! Rules about sizes, records, errors and counters of the allocator.

use streamvm_stream::allocator::{
    AccessSet, Allocator, AllocatorConfig, AllocatorError, AllocatorStats, Block, CANDIDATES, CANDIDATES_PER_CLASS,
    Want,
};
use streamvm_stream::{Point, StreamId};

const ANY: Want = Want::Any { stream: StreamId(1) };

fn pending(_: Point) -> bool {
    false
}

fn own(seq: u64) -> AccessSet {
    AccessSet::from_iter([Point::new(StreamId(1), seq)])
}

fn allocator(alignment: usize, limit: Option<usize>) -> Allocator {
    Allocator::new(AllocatorConfig { alignment, region_bytes: 1 << 20, limit }).unwrap()
}

#[test]
fn sizes_and_offsets_are_multiples_of_the_alignment() {
    for alignment in [1, 64, 256, 4096] {
        let mut allocator = allocator(alignment, None);
        allocator.add_region(1 << 20).unwrap();
        for bytes in [1, 2, 63, 64, 65, 255, 257, 5000] {
            let block = allocator.alloc(bytes, ANY, &pending).unwrap().block;
            assert_eq!((block.offset % alignment, block.bytes % alignment), (0, 0));
            assert!(block.bytes >= bytes && block.bytes < bytes + alignment, "{bytes} got {}", block.bytes);
        }
        allocator.check().unwrap();
    }
}

#[test]
fn an_alignment_that_is_no_power_of_two_is_refused() {
    for alignment in [0, 3, 96, usize::MAX] {
        let config = AllocatorConfig { alignment, ..Default::default() };
        assert_eq!(Allocator::new(config).unwrap_err(), AllocatorError::BadAlignment { alignment });
    }
}

#[test]
fn sizes_without_a_rounded_form_are_refused_and_never_overflow() {
    let mut allocator = allocator(64, None);
    allocator.add_region(1 << 20).unwrap();
    for bytes in [0, isize::MAX as usize - 62, isize::MAX as usize, usize::MAX - 63, usize::MAX] {
        assert!(allocator.alloc(bytes, ANY, &pending).is_none());
        assert!(matches!(allocator.region_request(bytes), Err(AllocatorError::BadSize { .. })), "{bytes}");
        assert!(matches!(allocator.rounded(bytes), Err(AllocatorError::BadSize { .. })), "{bytes}");
    }
    let largest = isize::MAX as usize - 63;
    assert_eq!(allocator.region_request(largest), Ok(largest));
    assert!(matches!(allocator.add_region(63), Err(AllocatorError::BadSize { bytes: 63, .. })));
    assert!(
        matches!(allocator.add_region(largest), Err(AllocatorError::BadSize { .. })),
        "two such cannot be addressed"
    );
    allocator.check().unwrap();
}

#[test]
fn the_largest_region_works() {
    let mut allocator = allocator(1, None);
    allocator.add_region(isize::MAX as usize).unwrap();
    let all = allocator.alloc(isize::MAX as usize, ANY, &pending).unwrap();
    allocator.free(all.block.id, all.accesses).unwrap();
    assert_eq!(allocator.alloc(1, ANY, &pending).unwrap().block.offset, 0);
    allocator.check().unwrap();
}

#[test]
fn a_block_freed_is_the_next_one_of_its_size() {
    let mut allocator = allocator(64, None);
    allocator.add_region(1 << 20).unwrap();
    for bytes in [64, 1000, 4096, 70_000] {
        let first = allocator.alloc(bytes, ANY, &pending).unwrap().block;
        allocator.free(first.id, own(1)).unwrap();
        let splits = allocator.stats().splits;
        let again = allocator.alloc(bytes, ANY, &pending).unwrap().block;
        assert_eq!((again.offset, again.bytes), (first.offset, first.bytes));
        assert_eq!(allocator.stats().splits, splits, "it is reused as it is");
    }
}

#[test]
fn a_block_of_the_same_class_is_not_cut_into_slivers() {
    let mut allocator = allocator(64, None);
    let bytes = 64 * 1024;
    allocator.add_region(bytes).unwrap();
    let whole = allocator.alloc(bytes - bytes / 64, ANY, &pending).unwrap().block;
    assert_eq!(whole.bytes, bytes);
    allocator.free(whole.id, AccessSet::new()).unwrap();
    let cut = allocator.alloc(bytes - bytes / 16, ANY, &pending).unwrap().block;
    assert_eq!(cut.bytes, bytes - bytes / 16);
}

#[test]
fn memory_that_fits_is_found_after_any_number_of_blocks_that_do_not() {
    // 1000 and 1001 granules share a class; more too small ones than a bounded look would pass over.
    let mut allocator = allocator(64, None);
    let (small, large) = (1000 * 64, 1001 * 64);
    allocator.add_region(64 * small + large).unwrap();
    let wanted = allocator.alloc(large, ANY, &pending).unwrap().block;
    let blocks: Vec<Block> = (0..64).map(|_| allocator.alloc(small, ANY, &pending).unwrap().block).collect();
    allocator.free(wanted.id, own(1)).unwrap();
    for block in blocks.iter().skip(1).step_by(2) {
        allocator.free(block.id, own(1)).unwrap();
    }
    assert_eq!(allocator.alloc(large, ANY, &pending).unwrap().block.offset, wanted.offset);
}

#[test]
fn the_first_rung_looks_at_a_bounded_number_of_candidates() {
    let mut allocator = allocator(64, None);
    let count = 100;
    allocator.add_region(count * 64 * 2).unwrap();
    let blocks: Vec<Block> = (0..count * 2).map(|_| allocator.alloc(64, ANY, &pending).unwrap().block).collect();
    for block in blocks.iter().step_by(2) {
        allocator.free(block.id, own(1)).unwrap();
    }
    let asked = std::cell::Cell::new(0);
    let count_questions = |_: Point| {
        asked.set(asked.get() + 1);
        false
    };
    assert!(allocator.alloc(64, Want::NoWait { stream: StreamId(2) }, &count_questions).is_none());
    assert_eq!(asked.get(), CANDIDATES_PER_CLASS);
    const { assert!(CANDIDATES_PER_CLASS <= CANDIDATES) };
}

#[test]
fn a_region_is_asked_for_in_multiples_and_within_the_limit() {
    let mib = 1 << 20;
    assert_eq!(allocator(64, None).region_request(1), Ok(mib));
    assert_eq!(allocator(64, None).region_request(mib + 1), Ok(2 * mib));

    let mut limited = allocator(64, Some(3 * mib + 100));
    limited.add_region(2 * mib).unwrap();
    assert_eq!(limited.region_request(mib), Ok(mib));
    assert_eq!(limited.region_request(mib + 1), Ok(mib + 64), "less than a multiple, where the limit leaves less");
    assert_eq!(
        limited.region_request(2 * mib),
        Err(AllocatorError::LimitReached { requested: 2 * mib, reserved: 2 * mib, in_use: 0, limit: 3 * mib + 100 })
    );
    limited.shrink(&pending);
    assert_eq!(limited.region_request(2 * mib), Ok(2 * mib));
}

#[test]
fn a_second_free_is_refused_and_changes_nothing() {
    let mut allocator = allocator(64, None);
    allocator.add_region(1 << 20).unwrap();
    let first = allocator.alloc(64, ANY, &pending).unwrap().block.id;
    allocator.free(first, own(1)).unwrap();
    let stats = allocator.stats();
    assert_eq!(allocator.free(first, own(2)), Err(AllocatorError::NotInUse { id: first }));
    assert_eq!(allocator.undo_alloc(first, own(2)), Err(AllocatorError::NotInUse { id: first }));
    assert_eq!(allocator.stats(), stats);

    // The memory has a new owner: the old id must not free it.
    let second = allocator.alloc(64, ANY, &pending).unwrap().block.id;
    assert_eq!(allocator.free(first, own(2)), Err(AllocatorError::NotInUse { id: first }));
    allocator.free(second, own(2)).unwrap();
    allocator.check().unwrap();
}

#[test]
fn an_id_of_another_allocator_is_refused_where_it_is_unknown() {
    let (mut one, mut other) = (allocator(64, None), allocator(64, None));
    one.add_region(1 << 20).unwrap();
    let id = one.alloc(64, ANY, &pending).unwrap().block.id;
    assert_eq!(other.free(id, AccessSet::new()), Err(AllocatorError::UnknownBlock { id, known: 0 }));
}

#[test]
fn counters_tell_what_happened() {
    let mut allocator = allocator(64, None);
    assert!(allocator.alloc(64, ANY, &pending).is_none());
    allocator.add_region(4096).unwrap();
    let first = allocator.alloc(1000, ANY, &pending).unwrap().block;
    let second = allocator.alloc(3072, ANY, &pending).unwrap().block;
    allocator.free(first.id, own(1)).unwrap();
    let stats = AllocatorStats {
        reserved: 4096,
        in_use: 3072,
        cached: 1024,
        peak_in_use: 4096,
        blocks: 1,
        free_blocks: 1,
        regions: 1,
        records: 2,
        hits: 2,
        misses: 1,
        splits: 1,
        coalesced: 0,
    };
    assert_eq!(allocator.stats(), stats);
    allocator.free(second.id, own(1)).unwrap();
    let stats = AllocatorStats { in_use: 0, cached: 4096, blocks: 0, coalesced: 1, ..stats };
    assert_eq!(allocator.stats(), stats);
}

#[test]
fn a_steady_state_makes_no_new_block_records() {
    let mut allocator = allocator(64, None);
    allocator.add_region(1 << 22).unwrap();
    let mut records = vec![];
    for round in 0..50u64 {
        let sizes = (0..100usize).map(|k| 64 + (k * 7919) % 20_000);
        let blocks: Vec<Block> = sizes.map(|bytes| allocator.alloc(bytes, ANY, &pending).unwrap().block).collect();
        for block in blocks {
            allocator.free(block.id, own(round + 1)).unwrap();
        }
        records.push(allocator.stats().records);
    }
    assert_eq!(records[1], records[49], "{records:?}");
}

/// What its owner has set aside counts as cached, and its next life as served.
#[test]
fn a_block_that_was_set_aside_counts_as_cached() {
    let mut allocator = allocator(64, None);
    allocator.add_region(1 << 20).unwrap();
    let block = allocator.alloc(1_000, ANY, &pending).unwrap().block;
    let used = allocator.stats();
    allocator.set_aside(block.bytes);
    let aside = allocator.stats();
    allocator.check().unwrap();
    assert_eq!((aside.in_use, aside.blocks, aside.cached), (0, 0, 1 << 20));
    assert_eq!((aside.free_blocks, aside.hits), (used.free_blocks, 1), "nobody else gets it");
    allocator.take_up(block.bytes);
    assert_eq!(allocator.stats(), AllocatorStats { hits: 2, ..used });
    allocator.set_aside(block.bytes);
    allocator.bring_back(block.bytes);
    allocator.free(block.id, own(3)).unwrap();
    assert_eq!((allocator.stats().in_use, allocator.stats().blocks, allocator.stats().hits), (0, 0, 2));
    allocator.check().unwrap();
}
