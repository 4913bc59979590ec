//! Early records: a stream whose events came too late for a wait places one after each list for a while.

use streamvm_ep::Access::{self, Read, Write};
use streamvm_instructions::{
    Dependence, DependenceUse, NothingObserved, Order, PlannedRecord, RecordPlace, ResourceId, SoftSync, SoftSyncMode,
};
use streamvm_stream::{Capabilities, Point, StreamClass, StreamId, StreamKey};

const COMPUTE: u32 = 0;
const H2D: u32 = 1;

fn pass() -> SoftSync {
    let mut sync = SoftSync::new(SoftSyncMode::Minimal, Capabilities::standard());
    for stream in ["compute@cuda:0:0", "h2d@cuda:0:0"] {
        let key: StreamKey = stream.parse().expect("a stream");
        sync.add_stream(StreamClass::of(&key));
    }
    sync
}

fn run(sync: &mut SoftSync, stream: u32, uses: &[(ResourceId, Access)]) -> Vec<Point> {
    let uses: Vec<_> = uses.iter().map(|&(resource, access)| DependenceUse::whole(resource, access)).collect();
    let at = sync.number(StreamId(stream));
    sync.instruction(at, &uses, Order::Uses, &mut NothingObserved);
    let plan = sync.plan();
    plan.waits(plan.instructions().last().expect("an instruction")).iter().map(|wait| wait.point).collect()
}

/// A list of one kernel. Returns the records of the compute stream.
fn kernel(sync: &mut SoftSync, uses: &[(ResourceId, Access)]) -> Vec<PlannedRecord> {
    sync.begin();
    run(sync, COMPUTE, uses);
    sync.end();
    sync.plan().records().iter().copied().filter(|record| record.point.stream == StreamId(COMPUTE)).collect()
}

/// Layers whose weights take turns in `buffers` buffers: a copy into a buffer, a kernel that reads it in the same list, and `more` kernels, each in a list of its
/// own, of which the last reads the buffer too. Returns for each layer by how many kernels the copy waits too long: 0 is what the data needs.
fn layers(sync: &mut SoftSync, buffers: usize, more: u64, count: u64) -> Vec<Option<u64>> {
    let buffers: Vec<ResourceId> = (0..buffers).map(|_| sync.add_dependence(Dependence::default())).collect();
    let layer = |layer: u64| {
        let buffer = buffers[layer as usize % buffers.len()];
        sync.begin();
        let waits = run(sync, H2D, &[(buffer, Write)]);
        run(sync, COMPUTE, &[(buffer, Read)]);
        sync.end();
        for kernel_of_layer in 1..=more {
            let reads = [(buffer, Read)];
            kernel(sync, if kernel_of_layer == more { &reads } else { &[] });
        }
        // Kernels are numbered from 1.
        let of_layer = more + 1;
        waits.first().map(|point| point.seq - (layer - buffers.len() as u64 + 1) * of_layer)
    };
    (0..count).map(layer).collect()
}

#[test]
fn a_copy_waits_for_the_kernel_that_used_its_buffer_and_no_later_one() {
    for (buffers, more) in [(3, 0), (3, 2), (8, 0), (2, 9), (7, 3)] {
        let waited = layers(&mut pass(), buffers, more, 60);
        // The first wait is for the last kernel before it, whose record comes too late, and covers the copies into the other buffers.
        let too_long = (buffers as u64 - 1) * (more + 1);
        let (before, from_then_on) = waited.split_at(2 * buffers);
        let expected: Vec<_> = (0..2 * buffers).map(|layer| (layer == buffers).then_some(too_long)).collect();
        assert_eq!(before, expected, "{buffers} buffers, {more} more kernels");
        assert!(
            from_then_on.iter().all(|layer| *layer == Some(0)),
            "{buffers} buffers, {more} more kernels: {waited:?}"
        );
    }
}

#[test]
fn early_records_that_nobody_needs_end_soon() {
    let mut sync = pass();
    // The fourth copy waits too long. So three kernels have early records that nobody has needed yet.
    layers(&mut sync, 3, 0, 6);
    let x = sync.add_dependence(Dependence::default());
    let mut placed = 3;
    for _ in 0..7 {
        placed += (0..7).map(|_| kernel(&mut sync, &[(x, Write)]).len()).sum::<usize>();
        // Whoever needs the last kernel needs no early record, so these end.
        sync.begin();
        run(&mut sync, H2D, &[(x, Read)]);
        sync.end();
    }
    assert_eq!(placed, 32);
}

#[test]
fn a_stream_whose_events_never_came_too_late_places_none() {
    let mut sync = pass();
    let (x, y) = (sync.add_dependence(Dependence::default()), sync.add_dependence(Dependence::default()));
    for _ in 0..4 {
        assert_eq!(kernel(&mut sync, &[(x, Write)]), []);
        // The last kernel is needed, and nothing was submitted after it.
        sync.begin();
        assert_eq!(run(&mut sync, H2D, &[(x, Read), (y, Write)]).len(), 1);
        sync.end();
    }
}

#[test]
fn an_early_record_is_after_the_last_instruction_of_its_list() {
    let mut sync = pass();
    layers(&mut sync, 3, 0, 4);
    let x = sync.add_dependence(Dependence::default());
    sync.begin();
    run(&mut sync, COMPUTE, &[(x, Write)]);
    run(&mut sync, COMPUTE, &[(x, Write)]);
    sync.end();
    let expected = PlannedRecord { point: Point::new(StreamId(COMPUTE), 6), place: RecordPlace::Behind(1) };
    assert_eq!(sync.plan().records(), [expected]);
}
