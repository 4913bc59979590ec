//! The pass over several submissions, by its own interface: what state carries over, and what is an input.

use std::collections::HashMap;

use streamvm_ep::Access::{self, Read, ReadWrite, Write};
use streamvm_instructions::{
    Dependence, DependenceUse, NothingObserved, Observed, Order, PlannedRecord, RecordPlace, ResourceId, SoftSync,
    SoftSyncMode, Wait,
};
use streamvm_stream::allocator::AccessSet;
use streamvm_stream::{Capabilities, Point, Shows, StreamClass, StreamId, StreamKey, WaitKind};

/// A snapshot of what has passed.
#[derive(Clone, Default)]
struct Passed(HashMap<StreamId, u64>);

impl Observed for Passed {
    fn passed(&mut self, stream: StreamId) -> u64 {
        self.0.get(&stream).copied().unwrap_or(0)
    }
}

fn pass(mode: SoftSyncMode, streams: &[&str]) -> SoftSync {
    let mut sync = SoftSync::new(mode, Capabilities::standard());
    for stream in streams {
        let key: StreamKey = stream.parse().expect("a stream");
        sync.add_stream(StreamClass::of(&key));
    }
    sync.begin();
    sync
}

const CPU: [&str; 4] = ["compute@cpu:0:0", "compute@cpu:0:1", "compute@cpu:0:2", "compute@cpu:0:3"];
const CUDA: [&str; 4] = ["compute@cuda:0:0", "compute@cuda:0:1", "h2d@cuda:0:0", "compute@cpu:0:0"];

fn var(sync: &mut SoftSync) -> ResourceId {
    sync.add_dependence(Dependence::default())
}

fn point(stream: u32, seq: u64) -> Point {
    Point::new(StreamId(stream), seq)
}

fn run(sync: &mut SoftSync, stream: u32, uses: &[(ResourceId, Access)]) -> Point {
    run_observed(sync, stream, uses, &mut NothingObserved)
}

fn run_observed(
    sync: &mut SoftSync,
    stream: u32,
    uses: &[(ResourceId, Access)],
    observed: &mut impl Observed,
) -> Point {
    let uses: Vec<_> = uses.iter().map(|&(resource, access)| DependenceUse::whole(resource, access)).collect();
    let at = sync.number(StreamId(stream));
    sync.instruction(at, &uses, Order::Uses, observed);
    at
}

fn ask(sync: &mut SoftSync, stream: u32, order: Order) -> Point {
    let at = sync.number(StreamId(stream));
    sync.instruction(at, &[], order, &mut NothingObserved);
    at
}

/// The points that the last instruction waits for.
fn waits(sync: &SoftSync) -> Vec<Point> {
    full_waits(sync).into_iter().map(|wait| wait.point).collect()
}

fn full_waits(sync: &SoftSync) -> Vec<Wait> {
    let plan = sync.plan();
    plan.waits(plan.instructions().last().expect("an instruction")).to_vec()
}

/// Where the last instruction looks for poison.
fn reads(sync: &SoftSync) -> Vec<Point> {
    let plan = sync.plan();
    let mut reads = plan.reads(plan.instructions().last().expect("an instruction")).to_vec();
    reads.sort();
    reads.dedup();
    reads
}

#[test]
fn state_carries_over_from_list_to_list() {
    let mut sync = pass(SoftSyncMode::Minimal, &CPU);
    let (x, y) = (var(&mut sync), var(&mut sync));
    run(&mut sync, 0, &[(x, Write)]);
    run(&mut sync, 0, &[(y, Write)]);
    sync.begin();
    assert!(sync.plan().instructions().is_empty());
    assert_eq!(run(&mut sync, 1, &[(y, Read)]), point(1, 1));
    assert_eq!(full_waits(&sync), [Wait { point: point(0, 2), kind: WaitKind::Device, shows: Shows::Number }]);
    sync.begin();
    assert_eq!(run(&mut sync, 1, &[(x, Read)]), point(1, 2));
    assert_eq!(waits(&sync), [], "the clock remembers the wait of the list before");
    assert_eq!(sync.last_submitted(StreamId(1)), 2);
}

#[test]
fn what_was_seen_to_pass_needs_no_wait() {
    let mut sync = pass(SoftSyncMode::Minimal, &CPU);
    let (x, y) = (var(&mut sync), var(&mut sync));
    run(&mut sync, 0, &[(x, Write)]);
    run(&mut sync, 0, &[(y, Write)]);
    sync.begin();
    let mut passed = Passed(HashMap::from([(StreamId(0), 1)]));
    run_observed(&mut sync, 1, &[(x, Read)], &mut passed);
    assert_eq!(waits(&sync), []);
    run_observed(&mut sync, 1, &[(y, Read)], &mut passed);
    assert_eq!(waits(&sync), [point(0, 2)]);
}

/// Hole 12: what was seen is an input of the list at hand. Of it a resource keeps that its last write has passed, for reads until the
/// next write. The clock, which says what waiting for a stream comes after, knows nothing of it.
#[test]
fn what_was_seen_to_pass_never_enters_a_clock() {
    let mut sync = pass(SoftSyncMode::Minimal, &CPU);
    let (x, y, z) = (var(&mut sync), var(&mut sync), var(&mut sync));
    run(&mut sync, 0, &[(x, Write), (z, Write)]);
    sync.begin();
    run_observed(&mut sync, 1, &[(x, Read), (y, Write)], &mut Passed(HashMap::from([(StreamId(0), 1)])));
    assert_eq!(waits(&sync), []);
    sync.begin();
    run(&mut sync, 1, &[(z, Read)]);
    assert_eq!(waits(&sync), [point(0, 1)], "this list was not told");
    sync.begin();
    run(&mut sync, 2, &[(y, Read)]);
    assert_eq!(waits(&sync), [point(1, 1)]);
    run(&mut sync, 2, &[(z, Read)]);
    assert_eq!(waits(&sync), [point(0, 1)], "s1@1 did not wait for s0@1, so waiting for it says nothing");
}

#[test]
fn a_write_that_was_seen_to_pass_is_not_looked_at_again() {
    /// Nobody is asked.
    struct Unasked;
    impl Observed for Unasked {
        fn passed(&mut self, _: StreamId) -> u64 {
            panic!("nothing has to be looked at")
        }
    }
    let mut sync = pass(SoftSyncMode::Minimal, &CPU);
    let x = var(&mut sync);
    run(&mut sync, 0, &[(x, Write)]);
    sync.begin();
    run_observed(&mut sync, 1, &[(x, Read)], &mut Passed(HashMap::from([(StreamId(0), 1)])));
    for stream in [1, 2, 0, 2] {
        sync.begin();
        run_observed(&mut sync, stream, &[(x, Read)], &mut Unasked);
        assert_eq!(waits(&sync), []);
    }
    // The next write is another one, and comes after the reads.
    sync.begin();
    run(&mut sync, 0, &[(x, Write)]);
    assert_eq!(waits(&sync), [point(1, 2), point(2, 2)]);
    run(&mut sync, 1, &[(x, Read)]);
    assert_eq!(waits(&sync), [point(0, 3)]);
}

/// Who has waited for a write knows it for its own reads alone.
#[test]
fn a_wait_for_a_write_stands_for_later_reads_on_its_stream_alone() {
    let mut sync = pass(SoftSyncMode::Minimal, &CPU);
    let x = var(&mut sync);
    run(&mut sync, 0, &[(x, Write)]);
    for (stream, expected) in [(1, vec![point(0, 1)]), (1, vec![]), (1, vec![]), (2, vec![point(0, 1)]), (1, vec![])] {
        run(&mut sync, stream, &[(x, Read)]);
        assert_eq!(waits(&sync), expected, "stream {stream}");
    }
    run(&mut sync, 0, &[(x, Write)]);
    run(&mut sync, 1, &[(x, Read)]);
    assert_eq!(waits(&sync), [point(0, 2)]);
}

/// Hole 12: the waits are a function of list, state and snapshot.
#[test]
fn the_same_snapshot_gives_the_same_plan() {
    let mut sync = pass(SoftSyncMode::Minimal, &CUDA);
    let (x, y) = (var(&mut sync), var(&mut sync));
    run(&mut sync, 2, &[(x, Write)]);
    run(&mut sync, 0, &[(x, Read), (y, Write)]);
    let list = |sync: &SoftSync, mut passed: Passed| {
        let mut sync = sync.clone();
        sync.begin();
        run_observed(&mut sync, 1, &[(x, Read), (y, Read)], &mut passed);
        run_observed(&mut sync, 3, &[(x, Write)], &mut passed);
        format!("{:?}", sync.plan())
    };
    let snapshots =
        [Passed::default(), Passed(HashMap::from([(StreamId(2), 1)])), Passed(HashMap::from([(StreamId(0), 1)]))];
    for snapshot in &snapshots {
        assert_eq!(list(&sync, snapshot.clone()), list(&sync, snapshot.clone()));
    }
    assert_ne!(list(&sync, snapshots[0].clone()), list(&sync, snapshots[2].clone()));
}

#[test]
fn the_last_used_rule_does_not_ask_what_has_passed() {
    let mut sync = pass(SoftSyncMode::LastUsedStream, &CPU);
    let x = var(&mut sync);
    run(&mut sync, 0, &[(x, Write)]);
    sync.begin();
    run_observed(&mut sync, 1, &[(x, Read)], &mut Passed(HashMap::from([(StreamId(0), 1)])));
    assert_eq!(waits(&sync), [point(0, 1)]);
}

/// Hole 11: stream 1 waits for stream 2 after the point that stream 0 waits for.
#[test]
fn a_wait_merges_the_clock_of_then() {
    let mut sync = pass(SoftSyncMode::Minimal, &CPU);
    let (x, y) = (var(&mut sync), var(&mut sync));
    run(&mut sync, 1, &[(x, Write)]);
    run(&mut sync, 2, &[(y, Write)]);
    sync.begin();
    run(&mut sync, 1, &[(y, Read)]);
    assert_eq!(waits(&sync), [point(2, 1)]);
    sync.begin();
    run(&mut sync, 0, &[(x, Read)]);
    assert_eq!(waits(&sync), [point(1, 1)]);
    run(&mut sync, 0, &[(y, Read)]);
    assert_eq!(waits(&sync), [point(2, 1)], "s1@1 had not waited for s2 yet");
}

/// The last eight waits of a stream are remembered. Older points are waited for as if they had waited for nothing.
#[test]
fn what_is_forgotten_costs_a_wait() {
    for (later, expected) in [(7, vec![]), (8, vec![point(2, 1)])] {
        let mut sync = pass(SoftSyncMode::Minimal, &CPU);
        let (x, y, other) = (var(&mut sync), var(&mut sync), var(&mut sync));
        run(&mut sync, 2, &[(y, Write)]);
        run(&mut sync, 1, &[(y, Read), (x, Write)]);
        for _ in 0..later {
            sync.begin();
            run(&mut sync, 3, &[(other, Write)]);
            run(&mut sync, 1, &[(other, Read)]);
        }
        run(&mut sync, 0, &[(x, Read)]);
        assert_eq!(waits(&sync), [point(1, 1)]);
        run(&mut sync, 0, &[(y, Read)]);
        assert_eq!(waits(&sync), expected, "after {later} later waits");
    }
}

#[test]
fn a_write_waits_for_each_reading_stream_once() {
    let mut sync = pass(SoftSyncMode::Minimal, &CPU);
    let x = var(&mut sync);
    run(&mut sync, 0, &[(x, Write)]);
    run(&mut sync, 1, &[(x, Read)]);
    run(&mut sync, 1, &[(x, Read)]);
    sync.begin();
    run(&mut sync, 2, &[(x, Read)]);
    run(&mut sync, 0, &[(x, Write)]);
    assert_eq!(waits(&sync), [point(1, 2), point(2, 1)]);
    run(&mut sync, 3, &[(x, Write)]);
    assert_eq!(waits(&sync), [point(0, 2)], "the reads of before the write are over");
}

#[test]
fn a_record_of_an_earlier_list_is_used_again() {
    let mut sync = pass(SoftSyncMode::Minimal, &CUDA);
    let x = var(&mut sync);
    run(&mut sync, 0, &[(x, Write)]);
    run(&mut sync, 1, &[(x, Read)]);
    assert_eq!(sync.plan().records(), [PlannedRecord { point: point(0, 1), place: RecordPlace::Behind(0) }]);
    sync.begin();
    run(&mut sync, 3, &[(x, Read)]);
    assert_eq!(full_waits(&sync), [Wait { point: point(0, 1), kind: WaitKind::Host, shows: Shows::Event }]);
    assert_eq!(sync.plan().records(), []);
}

/// After the stream's last instruction of before, so that the wait does not include what this list adds.
#[test]
fn an_old_point_without_a_record_gets_one_at_the_start() {
    let mut sync = pass(SoftSyncMode::Minimal, &CUDA);
    let (x, y, z) = (var(&mut sync), var(&mut sync), var(&mut sync));
    run(&mut sync, 0, &[(x, Write)]);
    run(&mut sync, 0, &[(y, Write)]);
    sync.begin();
    run(&mut sync, 0, &[(z, Write)]);
    run(&mut sync, 1, &[(x, Read)]);
    assert_eq!(waits(&sync), [point(0, 2)]);
    assert_eq!(sync.plan().records(), [PlannedRecord { point: point(0, 2), place: RecordPlace::Start }]);
    run(&mut sync, 1, &[(y, Read)]);
    assert_eq!(waits(&sync), [], "the record that was waited for is behind y too");
}

#[test]
fn a_copy_stream_records_after_each_copy() {
    let mut sync = pass(SoftSyncMode::Minimal, &CUDA);
    let (x, y) = (var(&mut sync), var(&mut sync));
    run(&mut sync, 2, &[(x, Write)]);
    run(&mut sync, 2, &[(y, Write)]);
    let behind = |seq, line| PlannedRecord { point: point(2, seq), place: RecordPlace::Behind(line) };
    assert_eq!(sync.plan().records(), [behind(1, 0), behind(2, 1)]);
    sync.begin();
    run(&mut sync, 0, &[(x, Read)]);
    assert_eq!(waits(&sync), [point(2, 1)], "not for the prefetch");
}

#[test]
fn a_stream_held_back_at_the_start_of_a_list_records_what_was_before() {
    let mut sync = pass(SoftSyncMode::Minimal, &CUDA);
    let (x, y) = (var(&mut sync), var(&mut sync));
    run(&mut sync, 0, &[(x, Write)]);
    run(&mut sync, 3, &[(y, Write)]);
    sync.begin();
    run(&mut sync, 0, &[(y, Read)]);
    assert_eq!(sync.plan().records(), [PlannedRecord { point: point(0, 1), place: RecordPlace::Start }]);
    run(&mut sync, 1, &[(x, Read)]);
    assert_eq!(waits(&sync), [point(0, 1)], "not for what holds the stream back");
}

#[test]
fn a_stream_held_back_at_its_first_instruction_has_nothing_to_record() {
    let mut sync = pass(SoftSyncMode::Minimal, &CUDA);
    let y = var(&mut sync);
    run(&mut sync, 3, &[(y, Write)]);
    run(&mut sync, 0, &[(y, Read)]);
    assert_eq!(sync.plan().records(), []);
}

/// The last 32 records are remembered. A need that is older is met by the oldest of them: later, never earlier.
#[test]
fn a_forgotten_record_is_replaced_by_a_later_one() {
    let mut sync = pass(SoftSyncMode::Minimal, &CUDA);
    let x = var(&mut sync);
    run(&mut sync, 2, &[(x, Write)]);
    for _ in 0..32 {
        sync.begin();
        let other = var(&mut sync);
        run(&mut sync, 2, &[(other, Write)]);
    }
    run(&mut sync, 0, &[(x, Read)]);
    assert_eq!(waits(&sync), [point(2, 2)]);
}

/// Hole 6, from the dependence's side: whatever the first access is, it is a write as far as the memory goes.
#[test]
fn the_first_access_of_reused_memory_waits_for_every_former_access() {
    for mode in [SoftSyncMode::Minimal, SoftSyncMode::LastUsedStream] {
        for access in [Read, Write, ReadWrite] {
            let mut sync = pass(mode, &CPU);
            let old = var(&mut sync);
            run(&mut sync, 0, &[(old, Write)]);
            run(&mut sync, 1, &[(old, Read)]);
            run(&mut sync, 2, &[(old, Read)]);
            sync.begin();
            let accesses = sync.remove_dependence(old);
            let expected: AccessSet = [point(0, 1), point(1, 1), point(2, 1)].into_iter().collect();
            assert_eq!(accesses, expected);
            // Two neighbours merged: the first was last touched by stream 0 alone.
            let mut merged: AccessSet = [point(0, 1)].into_iter().collect();
            merged.merge(&[point(1, 1), point(2, 1)].into_iter().collect());
            let new = sync.add_dependence(Dependence::after(&merged));
            run(&mut sync, 3, &[(new, access)]);
            let mut found = waits(&sync);
            found.sort();
            // In the minimal mode s0@1 is implied: both readers had waited for it.
            let first = if mode == SoftSyncMode::Minimal { 1 } else { 0 };
            let all = [point(0, 1), point(1, 1), point(2, 1)];
            assert_eq!(found, all[first..], "{mode:?} {access:?}");
            assert_eq!(reads(&sync), [], "former lives leave no poison");
        }
    }
}

#[test]
fn reused_memory_is_ordered_for_a_second_reader_and_for_a_writer_after_readers() {
    let mut sync = pass(SoftSyncMode::Minimal, &CPU);
    let accesses: AccessSet = [point(0, 1)].into_iter().collect();
    let x = var(&mut sync);
    run(&mut sync, 0, &[(x, Write)]);
    let new = sync.add_dependence(Dependence::after(&accesses));
    run(&mut sync, 1, &[(new, Read)]);
    assert_eq!(waits(&sync), [point(0, 1)]);
    sync.begin();
    run(&mut sync, 2, &[(new, Read)]);
    let second = waits(&sync);
    assert!(second == [point(0, 1)] || second == [point(1, 1)], "either is after the former life: {second:?}");
    run(&mut sync, 3, &[(new, Write)]);
    assert!(waits(&sync).contains(&point(2, 1)));
    run(&mut sync, 0, &[(new, Read)]);
    assert_eq!(waits(&sync), [point(3, 1)], "a write ends the former life");
}

#[test]
fn a_resource_with_other_memory_starts_anew() {
    let mut sync = pass(SoftSyncMode::Minimal, &CPU);
    let x = var(&mut sync);
    run(&mut sync, 0, &[(x, Write)]);
    let accesses: AccessSet = [point(1, 4)].into_iter().collect();
    sync.replace_dependence(x, Dependence::after(&accesses));
    assert_eq!(sync.dependence(x).last_writes(None).as_slice(), []);
    run(&mut sync, 2, &[(x, Write)]);
    assert_eq!(waits(&sync), [point(1, 4)]);
}

/// Hole 4: a later write cannot hide an error from an earlier reader, because the reader keeps the point it reads.
#[test]
fn a_reader_looks_for_poison_at_the_write_it_was_submitted_after() {
    let mut sync = pass(SoftSyncMode::Minimal, &CPU);
    let (x, y) = (var(&mut sync), var(&mut sync));
    run(&mut sync, 0, &[(x, Write)]);
    assert_eq!(reads(&sync), [], "a write that covers everything reads nothing");
    run(&mut sync, 1, &[(x, Read), (y, Write)]);
    assert_eq!(reads(&sync), [point(0, 1)]);
    run(&mut sync, 2, &[(x, Write)]);
    let plan = sync.plan();
    assert_eq!(plan.reads(&plan.instructions()[1]), [point(0, 1)], "still the first write");
    run(&mut sync, 1, &[(x, Read), (y, Read)]);
    assert_eq!(reads(&sync), [point(1, 1), point(2, 1)], "its own stream's writes too");
    sync.begin();
    run(&mut sync, 3, &[(y, ReadWrite)]);
    assert_eq!(reads(&sync), [point(1, 1)], "an update reads, in a later list as well");
}

/// Hole 4: no use finds the mark of another use by the same instruction.
#[test]
fn an_instruction_never_looks_for_poison_at_itself() {
    let orders: [&[Access]; 8] = [
        &[Read, Write],
        &[Write, Read],
        &[Write, ReadWrite],
        &[ReadWrite, Write],
        &[ReadWrite, ReadWrite],
        &[ReadWrite, Read],
        &[Read, Read],
        &[Write, Write, Read],
    ];
    for mode in [SoftSyncMode::Minimal, SoftSyncMode::LastUsedStream] {
        for accesses in orders {
            for stream in [0, 1] {
                let mut sync = pass(mode, &CPU);
                let x = var(&mut sync);
                run(&mut sync, 0, &[(x, Write)]);
                let uses: Vec<_> = accesses.iter().map(|&access| (x, access)).collect();
                let at = run(&mut sync, stream, &uses);
                assert_eq!(reads(&sync), [point(0, 1)], "{mode:?} {accesses:?}");
                assert_eq!(waits(&sync), if stream == 0 { vec![] } else { vec![point(0, 1)] }, "{mode:?} {accesses:?}");
                let writes = accesses.iter().any(|access| *access != Read);
                assert_eq!(sync.dependence(x).last_writes(None).as_slice(), [if writes { at } else { point(0, 1) }]);
                run(&mut sync, 2, &[(x, Write)]);
                assert_eq!(waits(&sync), [at], "{mode:?} {accesses:?}: the next write comes after it");
            }
        }
    }
}

#[test]
fn a_stream_that_is_new_after_a_barrier_waits_for_it_once() {
    let mut sync = pass(SoftSyncMode::Minimal, &["compute@cpu:0:0", "barrier@cpu:0:0"]);
    let (x, y) = (var(&mut sync), var(&mut sync));
    run(&mut sync, 0, &[(x, Write)]);
    assert_eq!(ask(&mut sync, 1, Order::Barrier), point(1, 1));
    assert_eq!(waits(&sync), [point(0, 1)]);
    sync.begin();
    let new = sync.add_stream(StreamClass::of(&"compute@cuda:0:0".parse().expect("a stream")));
    assert_eq!(sync.streams(), 3);
    run(&mut sync, new.0, &[(y, Write)]);
    assert_eq!(full_waits(&sync), [Wait { point: point(1, 1), kind: WaitKind::Host, shows: Shows::Number }]);
    run(&mut sync, new.0, &[(x, Write)]);
    assert_eq!(waits(&sync), [], "the barrier was behind x");
    run(&mut sync, 0, &[]);
    assert_eq!(waits(&sync), [point(1, 1)], "every stream, with uses or without");
}

#[test]
fn nothing_comes_after_a_global_sync() {
    let mut sync = pass(SoftSyncMode::Minimal, &["compute@cpu:0:0", "barrier@cpu:0:0"]);
    let x = var(&mut sync);
    run(&mut sync, 0, &[(x, Write)]);
    ask(&mut sync, 1, Order::AfterAll);
    assert_eq!(waits(&sync), [point(0, 1)]);
    run(&mut sync, 0, &[(x, Write)]);
    assert_eq!(waits(&sync), []);
}

#[test]
fn an_asked_wait_orders_its_stream_after_an_old_point() {
    let mut sync = pass(SoftSyncMode::Minimal, &CUDA);
    let x = var(&mut sync);
    run(&mut sync, 0, &[(x, Write)]);
    let recorded = ask(&mut sync, 0, Order::Record);
    assert_eq!(sync.plan().records(), [PlannedRecord { point: recorded, place: RecordPlace::Behind(1) }]);
    run(&mut sync, 0, &[(x, Write)]);
    sync.begin();
    ask(&mut sync, 1, Order::After(recorded));
    assert_eq!(waits(&sync), [recorded]);
    ask(&mut sync, 1, Order::After(point(0, 1)));
    assert_eq!(waits(&sync), []);
    assert_eq!(sync.plan().records(), []);
}

#[test]
fn a_stricter_table_makes_every_wait_a_host_wait() {
    let mut sync = SoftSync::new(SoftSyncMode::Minimal, Capabilities::standard().host_waits_only());
    for stream in CPU {
        sync.add_stream(StreamClass::of(&stream.parse().expect("a stream")));
    }
    sync.begin();
    let x = var(&mut sync);
    run(&mut sync, 0, &[(x, Write)]);
    run(&mut sync, 1, &[(x, Read)]);
    assert_eq!(full_waits(&sync), [Wait { point: point(0, 1), kind: WaitKind::Host, shows: Shows::Number }]);
}

fn reused(sync: &mut SoftSync, accesses: &[Point]) -> ResourceId {
    let mut set = AccessSet::new();
    accesses.iter().for_each(|point| set.add(*point));
    sync.add_dependence(Dependence::after(&set))
}

/// What only one stream has used needs nothing there; once another has, each waits for the other.
#[test]
fn what_one_stream_alone_uses_is_waited_for_by_others() {
    for mode in [SoftSyncMode::Minimal, SoftSyncMode::LastUsedStream] {
        for first in [Read, Write, ReadWrite] {
            let mut sync = pass(mode, &CPU);
            let x = reused(&mut sync, &[point(0, 1)]);
            run(&mut sync, 0, &[]);
            run(&mut sync, 0, &[(x, first)]);
            assert_eq!(waits(&sync), [], "{mode:?}, {first:?}: the memory was this stream's");
            run(&mut sync, 0, &[(x, Write)]);
            run(&mut sync, 0, &[(x, Read)]);
            assert_eq!(waits(&sync), []);
            run(&mut sync, 1, &[(x, Read)]);
            assert_ne!(waits(&sync), []);
            run(&mut sync, 0, &[(x, Write)]);
            assert_ne!(waits(&sync), [], "{mode:?}, {first:?}: another stream reads it");
            run(&mut sync, 1, &[(x, Write)]);
            assert_ne!(waits(&sync), []);
        }
    }
}

/// A read of what was never written makes it its stream's own, unless its memory was another's.
#[test]
fn what_is_only_read_is_waited_for_by_a_write_elsewhere() {
    let mut sync = pass(SoftSyncMode::Minimal, &CPU);
    let (fresh, one, two) = (var(&mut sync), reused(&mut sync, &[point(1, 1)]), reused(&mut sync, &[point(0, 1)]));
    run(&mut sync, 0, &[]);
    run(&mut sync, 1, &[]);
    for x in [fresh, two] {
        run(&mut sync, 0, &[(x, Read)]);
        run(&mut sync, 0, &[(x, Read)]);
        assert_eq!(waits(&sync), []);
    }
    run(&mut sync, 0, &[(one, Read)]);
    assert_eq!(waits(&sync), [point(1, 1)]);
    run(&mut sync, 2, &[(fresh, Write)]);
    assert_eq!(waits(&sync), [point(0, 3)]);
    run(&mut sync, 2, &[(two, Write)]);
    assert_eq!(waits(&sync), [point(0, 5)]);
    run(&mut sync, 2, &[(one, Write)]);
    assert_eq!(waits(&sync), [point(0, 6)], "the read came after what the memory was used for before");
}

/// Nothing on an unordered stream stands for anything else there, so no such stream has anything for itself.
#[test]
fn an_unordered_stream_waits_for_its_own() {
    let mut sync = pass(SoftSyncMode::Minimal, &CPU);
    let key: StreamKey = "workers@cpu:0:0".parse().expect("a stream");
    let workers = sync.add_stream(StreamClass::of(&key));
    let [former, first, second] = [1, 2, 3].map(|seq| Point::new(workers, seq));
    let x = reused(&mut sync, &[former]);
    for (at, needs) in [(first, former), (second, first)] {
        let uses = [DependenceUse::whole(x, Write)];
        sync.instruction(at, &uses, Order::Uses, &mut NothingObserved);
        assert_eq!(waits(&sync), [needs]);
    }
}

/// A life that starts anew is what taking its dependence apart and making another one would come to: the same waits, and the same
/// looks for poison, from then on.
#[test]
fn a_life_that_starts_anew_is_as_one_that_was_made_of_what_it_left() {
    let (mut drawn, mut renewed, mut others) = (1_u64, 0, 0);
    let mut below = |n: u64| {
        drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (drawn >> 33) % n
    };
    for program in 0..600 {
        let mode = [SoftSyncMode::Minimal, SoftSyncMode::LastUsedStream][program % 2];
        let (mut anew, mut made) = (pass(mode, &CPU), pass(mode, &CPU));
        let (kept, mut id) = (var(&mut anew), var(&mut made));
        // Mostly on one stream, so that there are lives to keep.
        for _ in 0..40 {
            if below(5) == 0 {
                match anew.renew_dependence(kept) {
                    Some(stream) => {
                        let accesses = made.remove_dependence(id);
                        assert!(!accesses.is_empty() && accesses.is_ordered_on(stream), "{accesses:?}");
                        id = made.add_dependence(Dependence::after(&accesses));
                        renewed += 1;
                    }
                    None => others += 1,
                }
            }
            let (stream, access) = (below(9).saturating_sub(6) as u32, [Read, Write, ReadWrite][below(3) as usize]);
            run(&mut anew, stream, &[(kept, access)]);
            run(&mut made, stream, &[(id, access)]);
            assert_eq!((waits(&anew), reads(&anew)), (waits(&made), reads(&made)), "program {program}, {mode:?}");
        }
    }
    assert!(renewed > 1_000 && others > 500, "{renewed} were renewed, {others} were not");
}
