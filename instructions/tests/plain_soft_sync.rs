//! The pass against its rules in the plainest form, over random programs: the same waits, in the same order.
//!
//! The plain form keeps whole clocks of 64-bit numbers, copies one for every pair that it remembers, compares each need
//! with each other one, and merges the clocks of all needs, the implied ones too.

use std::collections::HashMap;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
use streamvm_ep::Access;
use streamvm_instructions::{Dependence, DependenceUse, Observed, Order, ResourceId, SoftSync, SoftSyncMode};
use streamvm_stream::{Capabilities, Point, StreamClass, StreamId, StreamKey};

const HISTORY: usize = 8;
const RESOURCES: usize = 40;

#[derive(Clone, Default)]
struct PlainResource {
    write: Option<Point>,
    reads: Vec<Point>,
}

/// What a stream is ordered after, by stream.
type Clock = HashMap<StreamId, u64>;

#[derive(Default)]
struct PlainStream {
    last: u64,
    now: Clock,
    /// From which number on each clock held, oldest first.
    history: Vec<(u64, Clock)>,
}

impl PlainStream {
    fn as_of(&self, seq: u64) -> Clock {
        self.history.iter().rfind(|(since, _)| *since <= seq).map(|(_, clock)| clock.clone()).unwrap_or_default()
    }
}

fn covers(clock: &Clock, point: Point) -> bool {
    clock.get(&point.stream).is_some_and(|&seq| seq >= point.seq)
}

#[derive(Default)]
struct Plain {
    streams: Vec<PlainStream>,
    resources: Vec<PlainResource>,
}

impl Plain {
    fn instruction(&mut self, stream: StreamId, step: &Step, passed: &Passed) -> Vec<Point> {
        let source = &mut self.streams[stream.index()];
        source.last += 1;
        let at = Point::new(stream, source.last);
        let mut all = Vec::new();
        if step.after_all {
            all.extend((0..).zip(&self.streams).map(|(id, other)| Point::new(StreamId(id), other.last)));
        }
        for &(resource, access) in &step.uses {
            let PlainResource { write, reads } = &self.resources[resource];
            if access == Access::Read || reads.is_empty() { all.extend(*write) } else { all.extend(reads) }
        }
        let mut needs: Vec<Point> = Vec::new();
        for point in all {
            if point.stream == stream || point.seq == 0 || covers(&self.streams[stream.index()].now, point) {
                continue;
            }
            match needs.iter_mut().find(|need| need.stream == point.stream) {
                Some(need) => need.seq = need.seq.max(point.seq),
                None => needs.push(point),
            }
        }
        needs.retain(|need| passed.of(need.stream) < need.seq);
        let clocks: Vec<Clock> = needs.iter().map(|need| self.streams[need.stream.index()].as_of(need.seq)).collect();
        let implied = |need: &&Point| !clocks.iter().any(|clock| covers(clock, **need));
        let waits = needs.iter().filter(implied).copied().collect();
        let target = &mut self.streams[stream.index()];
        for (need, clock) in needs.iter().zip(&clocks) {
            for (&stream, &seq) in clock.iter().chain([(&need.stream, &need.seq)]) {
                let known = target.now.entry(stream).or_default();
                *known = seq.max(*known);
            }
        }
        if !needs.is_empty() {
            target.history.push((at.seq, target.now.clone()));
            if target.history.len() > HISTORY {
                target.history.remove(0);
            }
        }
        for &(resource, access) in &step.uses {
            let known = &mut self.resources[resource];
            if access == Access::Read {
                match known.reads.iter_mut().find(|read| read.stream == stream) {
                    Some(read) => *read = at,
                    None => known.reads.push(at),
                }
            } else {
                *known = PlainResource { write: Some(at), reads: Vec::new() };
            }
        }
        waits
    }
}

/// A stream's passed number, as a share of what was submitted on it when the list began.
#[derive(Default)]
struct Passed(Vec<u64>);

impl Passed {
    fn of(&self, stream: StreamId) -> u64 {
        self.0.get(stream.index()).copied().unwrap_or(0)
    }
}

impl Observed for &Passed {
    fn passed(&mut self, stream: StreamId) -> u64 {
        self.of(stream)
    }
}

#[derive(Clone, Debug)]
struct Step {
    stream: (prop::sample::Index, prop::sample::Index),
    uses: Vec<(usize, Access)>,
    after_all: bool,
    /// A stream is opened before it.
    opens: bool,
    /// A list begins with it, and of each stream so much has been seen to pass, in eighths.
    begins: Option<u64>,
}

fn step() -> impl Strategy<Value = Step> {
    let access = prop_oneof![2 => Just(Access::Read), 2 => Just(Access::Write), 1 => Just(Access::ReadWrite)];
    // One use of a resource each: several at once have rules of their own, and tests elsewhere.
    let uses = prop::collection::btree_map(0..RESOURCES, access, 1..4);
    let rarely = |weight| prop_oneof![30 => Just(false), weight => Just(true)];
    let begins = prop_oneof![20 => Just(None), 2 => Just(Some(0)), 1 => (1..=8_u64).prop_map(Some)];
    (any::<(prop::sample::Index, prop::sample::Index)>(), uses, rarely(1), rarely(2), begins).prop_map(
        |(stream, uses, after_all, opens, begins)| {
            let uses = uses.into_iter().filter(|_| !after_all).collect();
            Step { stream, uses, after_all, opens, begins }
        },
    )
}

fn open(sync: &mut SoftSync, plain: &mut Plain) {
    let key: StreamKey = "compute@cpu:0:0".parse().expect("a stream");
    sync.add_stream(StreamClass::of(&key));
    plain.streams.push(PlainStream::default());
}

fn check(streams: usize, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut sync = SoftSync::new(SoftSyncMode::Minimal, Capabilities::standard());
    let mut plain = Plain { resources: vec![PlainResource::default(); RESOURCES], ..Plain::default() };
    let resources: Vec<ResourceId> = (0..RESOURCES).map(|_| sync.add_dependence(Dependence::default())).collect();
    let mut passed = Passed::default();
    (0..streams).for_each(|_| open(&mut sync, &mut plain));
    sync.begin();
    for (line, step) in steps.iter().enumerate() {
        if step.opens {
            open(&mut sync, &mut plain);
        }
        if let Some(eighths) = step.begins {
            sync.begin();
            passed = Passed(plain.streams.iter().map(|stream| stream.last * eighths / 8).collect());
        }
        // Low numbers more often: busy streams wait more than is remembered between two waits of others for them.
        let below = step.stream.0.index(plain.streams.len());
        let stream = StreamId(step.stream.1.index(below + 1) as u32);
        let resource = |&(resource, access): &(usize, Access)| DependenceUse { resource: resources[resource], access };
        let uses: Vec<DependenceUse> = step.uses.iter().map(resource).collect();
        let order = if step.after_all { Order::AfterAll } else { Order::Uses };
        let (point, waits) = sync.number(stream, &uses, order, &mut &passed, |_| ());
        let waits: Vec<Point> = sync.plan().waits_in(&waits).iter().map(|wait| wait.point).collect();
        let expected = plain.instruction(stream, step, &passed);
        prop_assert_eq!(waits, expected, "line {}, {}: {:?}", line, point, step);
    }
    Ok(())
}

fn explore(streams: usize, length: std::ops::Range<usize>, cases: u32) {
    let seed = std::env::var("STREAMVM_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| {
        use std::hash::{BuildHasher, RandomState};
        RandomState::new().hash_one(streams)
    });
    let config = Config { cases, rng_seed: RngSeed::Fixed(seed), failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&prop::collection::vec(step(), length), |steps| check(streams, &steps))
        .unwrap_or_else(|error| panic!("STREAMVM_SEED={seed}: {error}"));
}

#[test]
fn few_streams_wait_as_the_rules_say() {
    explore(4, 100..300, 200);
}

#[test]
fn many_streams_wait_as_the_rules_say() {
    explore(12, 200..500, 100);
}
