//! The pass over storages that are used in parts, against its rules unit by unit, over random programs.
//!
//! The plain form keeps one record for each unit of each storage, and the whole order that streams and waits make, in sets of points.
//! It judges every instruction:
//!
//! * **Sound**: each point that one of its units needs is ordered before it, or was seen to pass.
//! * **Exact**: each wait names a point that one of its units needs. Two exceptions: once a storage has more parts than are kept
//!   apart, and beside a stream without order, which has no clock that could tell that a write which was overwritten in part is implied. There
//!   each wait names a point that used one of its units.
//! * **Poison**: it looks at the last write of every unit that it is shown, or at a later write that looked there, but for those that
//!   have passed without a failure, and at no point that never wrote one of its units.
//!
//! Drawn are also instructions that fail, so that what reads their parts is skipped, storages that take over the memory of others, and
//! what has been seen to pass, on streams without order too.
#![allow(clippy::print_stdout, reason = "says what was drawn, with --nocapture")]

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use crate::cases::cases;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
use streamvm_ep::{Access, Footprint, Layout, Shape};
use streamvm_instructions::{
    Dependence, DependenceUse, MOST_PARTS, Observed, Order, ResourceId, SoftSync, SoftSyncMode,
};
use streamvm_stream::{Capabilities, Point, StreamClass, StreamId, StreamKey};

const STORAGES: usize = 3;

/// A part of a storage: units `offset + i * stride` for `i` below `len`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Part {
    offset: usize,
    len: usize,
    stride: usize,
}

impl Part {
    fn units(self) -> impl Iterator<Item = usize> {
        (0..self.len).map(move |index| self.offset + index * self.stride)
    }

    fn footprint(self) -> Footprint {
        let shape = Shape::new(&[self.len]).expect("a shape");
        Footprint::of(&Layout::with_strides(shape, &[self.stride], self.offset).expect("a layout"))
    }
}

#[derive(Copy, Clone, Debug)]
struct Use {
    storage: usize,
    access: Access,
    /// All of the storage if `None`.
    part: Option<Part>,
}

#[derive(Clone, Debug)]
struct Step {
    stream: usize,
    uses: Vec<Use>,
    /// A list begins with it, and of each stream so many eighths of what was submitted have been seen to pass.
    begins: Option<u64>,
    /// It fails, unless it is skipped.
    fails: bool,
    /// Before it, this storage is released, and another one takes over its memory.
    reuses: Option<usize>,
}

#[derive(Clone, Default)]
struct Unit {
    write: Option<Point>,
    reads: Vec<Point>,
    /// Accesses of the memory's former lives, until the first write of this one.
    former: Vec<Point>,
    /// Every point that ever wrote it.
    writers: BTreeSet<Point>,
    /// Every point that ever used it.
    users: BTreeSet<Point>,
}

/// Points that were seen to pass, and those that fail.
#[derive(Default)]
struct Passed {
    /// Of each stream, an unordered one too, the number up to which everything has passed.
    up_to: Vec<u64>,
    failed: BTreeSet<Point>,
}

impl Passed {
    fn up_to(up_to: impl Into<Vec<u64>>) -> Passed {
        Passed { up_to: up_to.into(), failed: BTreeSet::new() }
    }

    fn of(&self, point: Point) -> bool {
        self.up_to.get(point.stream.index()).is_some_and(|passed| *passed >= point.seq)
    }
}

impl Observed for &Passed {
    fn passed(&mut self, stream: StreamId) -> u64 {
        assert!(!stream.is_unordered(), "no number stands for others there");
        self.up_to.get(stream.index()).copied().unwrap_or(0)
    }

    fn has_passed(&mut self, point: Point) -> bool {
        self.of(point)
    }

    fn passed_without_failure(&mut self, point: Point) -> bool {
        self.of(point) && !self.failed.contains(&point)
    }
}

/// What is known of a run.
struct Model {
    units: Vec<Vec<Unit>>,
    /// What comes before each point.
    before: BTreeMap<Point, BTreeSet<Point>>,
    /// Whose failures each point would pass on.
    carried: BTreeMap<Point, BTreeSet<Point>>,
    /// What was seen to pass, and all that comes before it.
    over: BTreeSet<Point>,
    last: Vec<u64>,
    /// Uses of each storage: an upper bound of the parts that are kept.
    parts: Vec<usize>,
    /// There is a stream without order.
    unordered: bool,
    /// The pass goes by the last use alone, so it waits for more than is needed.
    last_use: bool,
    /// The instructions that fail by themselves or are skipped.
    failed: BTreeSet<Point>,
}

impl Model {
    fn judge(&mut self, at: Point, uses: &[Use], waits: &[Point], told: &BTreeSet<Point>) -> Result<(), String> {
        let (mut needed, mut shown, mut writers) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let mut users = BTreeSet::new();
        let size = self.units[0].len();
        let all = |u: &Use| u.part.unwrap_or(Part { offset: 0, len: size, stride: 1 });
        for u in uses {
            for unit in all(u).units().map(|unit| &self.units[u.storage][unit]) {
                needed.extend(unit.write);
                needed.extend(unit.former.iter().copied());
                users.extend(unit.users.iter().copied());
                if u.access.writes() {
                    needed.extend(unit.reads.iter().copied());
                }
                if u.access.reads() {
                    shown.extend(unit.write);
                    writers.extend(unit.writers.iter().copied());
                }
            }
        }
        let mut before: BTreeSet<Point> = BTreeSet::new();
        let previous = (!at.stream.is_unordered() && at.seq > 1).then(|| Point::new(at.stream, at.seq - 1));
        for point in waits.iter().copied().chain(previous) {
            before.insert(point);
            before.extend(self.before[&point].iter().copied());
        }
        if let Some(missing) = needed.iter().find(|point| !before.contains(point) && !self.over.contains(point)) {
            return Err(format!("{at} needs {missing} and is not ordered after it; waits {waits:?}"));
        }
        let full = self.parts.iter().any(|parts| *parts >= MOST_PARTS);
        let allowed = if self.unordered { &users } else { &needed };
        if let Some(excess) = waits
            .iter()
            .find(|wait| !allowed.contains(wait) && !self.over.contains(wait))
            .filter(|_| !full && !self.last_use)
        {
            return Err(format!("{at} waits for {excess}, which none of its units needs: {needed:?}"));
        }
        // A write of a part that counts as one of the whole passes the poison of the whole on.
        let mut carried = told.clone();
        told.iter().for_each(|point| carried.extend(self.carried[point].iter().copied()));
        let fine = |point: &Point| self.over.contains(point) && !self.failed.contains(point);
        if let Some(unseen) = shown.iter().find(|point| !carried.contains(point) && !fine(point)) {
            return Err(format!("{at} is shown what {unseen} wrote and does not look there"));
        }
        if let Some(stranger) = told.iter().find(|point| !writers.contains(point)).filter(|_| !full) {
            return Err(format!("{at} looks at {stranger}, which wrote nothing of what it is shown"));
        }
        self.before.insert(at, before);
        self.carried.insert(at, carried);
        for u in uses {
            for unit in all(u).units() {
                let unit = &mut self.units[u.storage][unit];
                unit.users.insert(at);
                if u.access.writes() {
                    unit.write = Some(at);
                    unit.writers.insert(at);
                    unit.reads.clear();
                    unit.former.clear();
                } else if unit.write != Some(at) {
                    unit.reads.retain(|read| at.stream.is_unordered() || read.stream != at.stream);
                    unit.reads.push(at);
                }
            }
            self.parts[u.storage] += 1;
        }
        Ok(())
    }

    /// Another storage takes over the memory of this one: it must come after all accesses, and has no value of them.
    fn reuse(&mut self, storage: usize) {
        let units = &mut self.units[storage];
        let all = units.iter().flat_map(|unit| unit.write.iter().chain(&unit.reads).chain(&unit.former));
        let former: BTreeSet<Point> = all.copied().collect();
        // Each unit comes after all of the former life, so all that used any of it may be what is waited for beside a stream without order.
        let users: BTreeSet<Point> = units.iter().flat_map(|unit| &unit.users).copied().collect();
        units.fill(Unit { former: former.into_iter().collect(), users, ..Unit::default() });
    }
}

fn part(size: usize) -> impl Strategy<Value = Part> {
    let longest = size.div_ceil(4).min(6);
    let dense = (0..size, 1..=longest).prop_map(|(offset, len)| (offset, len, 1));
    let strided = (0..size.div_ceil(2), 2..=longest, 2..5_usize);
    prop_oneof![3 => dense, 1 => strided].prop_map(move |(offset, len, stride)| Part {
        offset,
        len: len.min((size - 1 - offset) / stride + 1),
        stride,
    })
}

fn step(streams: usize, size: usize) -> impl Strategy<Value = Step> {
    let access = prop_oneof![3 => Just(Access::Read), 3 => Just(Access::ReadWrite), 1 => Just(Access::Write)];
    let part = prop_oneof![size as u32 => part(size).prop_map(Some), 1 => Just(None)];
    let storage = prop_oneof![3 => Just(0), 1 => 0..STORAGES];
    let one = (storage, access, part).prop_map(|(storage, access, part)| {
        // A write of a part keeps the rest, so engines declare it as an update.
        let access = if access == Access::Write && part.is_some() { Access::ReadWrite } else { access };
        Use { storage, access, part }
    });
    let begins = prop_oneof![12 => Just(None), 1 => Just(Some(0)), 1 => (1..=8_u64).prop_map(Some)];
    let (fails, reuses) = (prop::bool::weighted(0.1), prop::option::weighted(0.03, 0..STORAGES));
    (0..streams, prop::collection::vec(one, 1..3), begins, fails, reuses)
        .prop_map(|(stream, uses, begins, fails, reuses)| Step { stream, uses, begins, fails, reuses })
}

/// Counts over the drawn programs: they show that the draws have reached what the test is about.
#[derive(Copy, Clone, Debug, Default)]
struct Tally {
    steps: usize,
    /// Uses of a part.
    parts: usize,
    waits: usize,
    /// Steps that failed, or were skipped because of another one.
    failed: usize,
    /// Storages that took over the memory of another.
    reused: usize,
}

impl Tally {
    fn plus(self, other: Tally) -> Tally {
        Tally {
            steps: self.steps + other.steps,
            parts: self.parts + other.parts,
            waits: self.waits + other.waits,
            failed: self.failed + other.failed,
            reused: self.reused + other.reused,
        }
    }
}

fn check(
    mode: SoftSyncMode,
    (streams, unordered): (usize, bool),
    size: usize,
    steps: &[Step],
) -> Result<Tally, TestCaseError> {
    let mut tally = Tally { steps: steps.len(), ..Tally::default() };
    let mut sync = SoftSync::new(mode, Capabilities::standard());
    let ids: Vec<StreamId> = (0..streams)
        .map(|index| {
            let key = if unordered && index + 1 == streams { "workers@cpu:0:0" } else { "compute@cpu:0:0" };
            sync.add_stream(StreamClass::of(&key.parse::<StreamKey>().expect("a stream")))
        })
        .collect();
    let resources: Vec<ResourceId> = (0..STORAGES).map(|_| sync.add_dependence(Dependence::default())).collect();
    let mut model = Model {
        units: vec![vec![Unit::default(); size]; STORAGES],
        before: BTreeMap::new(),
        carried: BTreeMap::new(),
        over: BTreeSet::new(),
        last: vec![0; streams],
        parts: vec![0; STORAGES],
        unordered,
        last_use: mode == SoftSyncMode::LastUsedStream,
        failed: BTreeSet::new(),
    };
    let mut passed = Passed::up_to(vec![0; streams]);
    // Engines refuse to read what was never written, so the first use of a storage in reused memory is a write.
    let mut unwritten = [false; STORAGES];
    sync.begin();
    for step in steps {
        if let Some(eighths) = step.begins {
            sync.end();
            sync.begin();
            sync.forget_parts();
            for (passed, last) in passed.up_to.iter_mut().zip(&model.last) {
                *passed = (*passed).max(last * eighths / 8);
            }
            let passed = model.before.iter().filter(|(point, _)| passed.of(**point));
            model.over = passed.flat_map(|(point, before)| before.iter().chain([point])).copied().collect();
        }
        if let Some(storage) = step.reuses {
            if sync.renew_dependence(resources[storage]).is_none() {
                let accesses = sync.dependence(resources[storage]).accesses();
                sync.replace_dependence(resources[storage], Dependence::after(&accesses));
            }
            model.reuse(storage);
            unwritten[storage] = true;
            tally.reused += 1;
        }
        let mut step = step.clone();
        for u in &mut step.uses {
            if unwritten[u.storage] && u.access == Access::Read {
                u.access = Access::ReadWrite;
            }
        }
        step.uses.iter().for_each(|u| unwritten[u.storage] &= !u.access.writes());
        let uses: Vec<DependenceUse> = step
            .uses
            .iter()
            .map(|u| DependenceUse {
                resource: resources[u.storage],
                access: u.access,
                part: u.part.and_then(|part| sync.add_part(part.footprint())),
            })
            .collect();
        let at = sync.number(ids[step.stream]);
        model.last[step.stream] = at.seq;
        let mut told = BTreeSet::new();
        let waits = sync.order(at, &uses, Order::Uses, &mut &passed, |point| {
            told.insert(point);
        });
        let waits: Vec<Point> = sync.plan().waits_in(&waits).iter().map(|wait| wait.point).collect();
        model.judge(at, &step.uses, &waits, &told).map_err(TestCaseError::fail)?;
        tally.parts += step.uses.iter().filter(|u| u.part.is_some()).count();
        tally.waits += waits.len();
        if step.fails || model.carried[&at].iter().any(|point| model.failed.contains(point)) {
            model.failed.insert(at);
            passed.failed.insert(at);
            tally.failed += 1;
        }
    }
    Ok(tally)
}

fn explore(mode: SoftSyncMode, unordered: bool, size: usize, length: std::ops::Range<usize>, few: u64) {
    const STREAMS: usize = 4;
    let seed = std::env::var("STREAMVM_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| {
        use std::hash::{BuildHasher, RandomState};
        RandomState::new().hash_one(size)
    });
    let cases = cases(few) as u32;
    let config = Config { cases, rng_seed: RngSeed::Fixed(seed), failure_persistence: None, ..Config::default() };
    let drawn = Cell::new(Tally::default());
    TestRunner::new(config)
        .run(&prop::collection::vec(step(STREAMS, size), length), |steps| {
            drawn.set(drawn.get().plus(check(mode, (STREAMS, unordered), size, &steps)?));
            Ok(())
        })
        .unwrap_or_else(|error| panic!("STREAMVM_SEED={seed}: {error}"));
    let Tally { steps, parts, waits, failed, reused } = drawn.get();
    println!("{cases} programs over {size} units, {mode:?}, unordered {unordered}: {:?}", drawn.get());
    assert!(parts > steps / 2 && waits > steps / 20 && failed > 0 && reused > 0, "too little was drawn");
}

#[test]
fn parts_on_ordered_streams_are_exact() {
    explore(SoftSyncMode::Minimal, false, 12, 20..50, 200);
}

#[test]
fn parts_beside_a_stream_without_order_are_exact() {
    explore(SoftSyncMode::Minimal, true, 12, 20..50, 200);
}

#[test]
fn many_parts_are_never_too_lax() {
    explore(SoftSyncMode::Minimal, true, 400, 300..500, 4);
}

#[test]
fn parts_by_the_last_use_alone_are_never_too_lax() {
    explore(SoftSyncMode::LastUsedStream, false, 12, 20..50, 100);
    explore(SoftSyncMode::LastUsedStream, true, 12, 20..50, 100);
}

/// A pass with two lanes, and rows of one storage.
fn rows() -> (SoftSync, [StreamId; 2], ResourceId) {
    let mut sync = SoftSync::new(SoftSyncMode::Minimal, Capabilities::standard());
    let lanes = [0, 1].map(|lane| {
        sync.add_stream(StreamClass::of(&format!("compute@cpu:0:{lane}").parse::<StreamKey>().expect("a stream")))
    });
    let storage = sync.add_dependence(Dependence::default());
    sync.begin();
    (sync, lanes, storage)
}

/// Uses a row, or everything; returns what it waits for.
fn use_row(
    sync: &mut SoftSync,
    lane: StreamId,
    (storage, row): (ResourceId, Option<usize>),
    access: Access,
    passed: &Passed,
) -> Vec<Point> {
    let part = row.and_then(|row| sync.add_part(Part { offset: row * 10, len: 10, stride: 1 }.footprint()));
    let at = sync.number(lane);
    let uses = [DependenceUse { resource: storage, access, part }];
    let waits = sync.order(at, &uses, Order::Uses, &mut &*passed, |_| ());
    sync.plan().waits_in(&waits).iter().map(|wait| wait.point).collect()
}

#[test]
fn more_parts_than_are_kept_apart_count_as_the_whole_and_the_record_stays_bounded() {
    let (mut sync, lanes, storage) = rows();
    let nothing = Passed::default();
    let mut waited = Vec::new();
    for row in 0..4 * MOST_PARTS {
        let waits = use_row(&mut sync, lanes[row % 2], (storage, Some(row)), Access::ReadWrite, &nothing);
        waited.extend((!waits.is_empty()).then_some(row));
        assert!(sync.dependence(storage).last_writes(None).len() <= MOST_PARTS, "row {row}");
    }
    // The one that found no room waits for the other lane, and the other lane's next write waits for it.
    assert_eq!(waited[..2], [MOST_PARTS, MOST_PARTS + 1]);
    assert!(waited.len() < 12, "{waited:?}");
    // Reads that find no room count as reads of the whole: a write of any row waits for the last of them.
    let (mut sync, lanes, storage) = rows();
    for row in 0..MOST_PARTS + 1 {
        use_row(&mut sync, lanes[0], (storage, Some(row)), Access::Read, &nothing);
    }
    let last = Point::new(lanes[0], MOST_PARTS as u64 + 1);
    let waits = use_row(&mut sync, lanes[1], (storage, Some(1000)), Access::ReadWrite, &nothing);
    assert_eq!(waits, [last]);
}

#[test]
fn parts_that_are_over_make_room_for_more() {
    let (mut sync, lanes, storage) = rows();
    let mut passed = Passed::up_to([0, 0]);
    for row in 0..4 * MOST_PARTS {
        // All but the newest few have passed.
        passed.up_to = lanes.map(|lane| sync.last_submitted(lane).saturating_sub(3)).to_vec();
        let waits = use_row(&mut sync, lanes[row % 2], (storage, Some(row)), Access::ReadWrite, &passed);
        assert_eq!(waits, [], "row {row}");
    }
}

/// What is written in parts once and read as a whole for ever after is looked at in parts only until the writes are over.
#[test]
fn a_read_of_the_whole_joins_the_record_once_all_writes_are_over() {
    let (mut sync, lanes, storage) = rows();
    for row in 0..3 {
        use_row(&mut sync, lanes[0], (storage, Some(row)), Access::ReadWrite, &Passed::default());
    }
    let before = use_row(&mut sync, lanes[1], (storage, None), Access::Read, &Passed::up_to([2, 0]));
    assert_eq!(before, [Point::new(lanes[0], 3)]);
    assert_eq!(sync.dependence(storage).last_writes(None).as_slice(), [Point::new(lanes[0], 3)], "two are over");
    let after = use_row(&mut sync, lanes[1], (storage, None), Access::Read, &Passed::up_to([3, 0]));
    assert_eq!((after, sync.dependence(storage).last_writes(None).len()), (vec![], 0));
    // The reads are still known.
    let write = use_row(&mut sync, lanes[0], (storage, None), Access::Write, &Passed::up_to([3, 0]));
    assert_eq!(write, [Point::new(lanes[1], 2)]);
}

/// Reads that have passed go before a read counts as one of the whole, also after a look that left many.
#[test]
fn reads_of_parts_that_have_passed_make_room_for_more() {
    let (mut sync, lanes, storage) = rows();
    // The look at the limit finds that few have passed: the next regular one would come above the limit.
    let passed_at = |row: usize| {
        let seq = if row < MOST_PARTS { 0 } else { [20, MOST_PARTS][usize::from(row > MOST_PARTS)] };
        Passed::up_to([seq as u64, 0])
    };
    for row in 0..2 * MOST_PARTS - 10 {
        use_row(&mut sync, lanes[0], (storage, Some(row)), Access::Read, &passed_at(row));
    }
    let passed = passed_at(2 * MOST_PARTS);
    let waits = use_row(&mut sync, lanes[1], (storage, Some(1000)), Access::ReadWrite, &passed);
    assert_eq!(waits, [], "nobody read that row");
}

/// Reads on a stream without order are kept one by one; a write of a part that finds very many counts as one of the whole, once.
#[test]
fn very_many_reads_without_order_are_waited_for_once() {
    let (mut sync, lanes, storage) = rows();
    let workers = sync.add_stream(StreamClass::of(&"workers@cpu:0:0".parse::<StreamKey>().expect("a stream")));
    let (nothing, many) = (Passed::default(), 3 * MOST_PARTS);
    for row in 0..many {
        use_row(&mut sync, workers, (storage, Some(row)), Access::Read, &nothing);
    }
    let first = use_row(&mut sync, lanes[0], (storage, Some(1000)), Access::ReadWrite, &nothing);
    assert_eq!(first.len(), many, "it counts as a write of the whole");
    let second = use_row(&mut sync, lanes[0], (storage, Some(5)), Access::ReadWrite, &nothing);
    assert_eq!(second, [], "its own stream comes after all of them");
}

/// Memory is reused: each part waits for the former life by itself.
#[test]
fn each_part_of_reused_memory_waits_for_its_former_life() {
    let (mut sync, lanes, storage) = rows();
    let former = Point::new(lanes[0], 7);
    for _ in 0..7 {
        sync.number(lanes[0]);
    }
    sync.replace_dependence(storage, Dependence::after(&[former].into_iter().collect()));
    let nothing = Passed::default();
    assert_eq!(use_row(&mut sync, lanes[1], (storage, Some(0)), Access::ReadWrite, &nothing), [former]);
    let third = sync.add_stream(StreamClass::of(&"compute@cpu:0:2".parse::<StreamKey>().expect("a stream")));
    assert_eq!(use_row(&mut sync, third, (storage, Some(1)), Access::ReadWrite, &nothing), [former]);
    assert_eq!(use_row(&mut sync, lanes[0], (storage, Some(2)), Access::ReadWrite, &nothing), []);
    let accesses = sync.dependence(storage).accesses();
    assert_eq!(accesses.len(), 3, "what comes after it waits for all three lanes: {accesses:?}");
}

#[test]
fn a_storage_that_one_lane_used_in_parts_starts_anew_after_the_last_of_them() {
    let (mut sync, lanes, storage) = rows();
    let nothing = Passed::default();
    use_row(&mut sync, lanes[0], (storage, Some(0)), Access::ReadWrite, &nothing);
    use_row(&mut sync, lanes[0], (storage, Some(1)), Access::Read, &nothing);
    assert_eq!(sync.renew_dependence(storage), Some(lanes[0]));
    assert_eq!(
        use_row(&mut sync, lanes[1], (storage, Some(5)), Access::ReadWrite, &nothing),
        [Point::new(lanes[0], 2)]
    );
    assert_eq!(sync.renew_dependence(storage), None, "two lanes have used it");
}
