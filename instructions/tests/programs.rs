//! Random programs, planned and judged by a checker that shares nothing with the pass.
//!
//! The checker reads the planned list as a machine would: lines of one stream run in order, a wait line comes after the
//! line that it names, or after the record of its event. From these edges alone it computes which line comes after which,
//! and asks: is every pair of conflicting accesses ordered, does everything before a barrier come before everything
//! after it, and does every single wait of the minimal mode order something that nothing else orders?
//!
//! `STREAMVM_SEED=n` replays a run, `STREAMVM_CASES=n` makes it longer.

use std::collections::HashMap;

use crate::cases::cases;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use streamvm_ep::{Access, DType, DeviceId, DeviceKind, MemoryKind, Shape, Site};
use streamvm_instructions::{
    Critical, Event, HeldUse, InstructionList, Kind, Place, PlanOptions, Role, Section, SoftSyncMode, Tensor, Var,
    WaitFor, plan,
};
use streamvm_stream::{StreamKey, StreamType, WaitKind};

const TENSORS: usize = 5;
const STREAMS: usize = 6;
/// A stream remembers this many of its waits; programs with no more waits on any stream have exact clocks.
const HISTORY: usize = 8;

#[derive(Clone, Debug)]
enum Step {
    /// Accesses of (tensor, view, access) on a stream.
    Work {
        stream: usize,
        uses: Vec<(usize, usize, Access)>,
    },
    Record {
        stream: usize,
    },
    /// Waits for the event at this place among those recorded so far, or for the line at it.
    Wait {
        stream: usize,
        at: prop::sample::Index,
        line: bool,
    },
    Barrier,
    Sync,
    /// Begins a critical section over one of two resources, or over both, or ends the open one.
    Section {
        over: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let access = prop_oneof![3 => Just(Access::Read), 1 => Just(Access::Write), 1 => Just(Access::ReadWrite)];
    let uses = prop::collection::vec((0..TENSORS, 0..3usize, access), 1..4);
    prop_oneof![
        30 => (0..STREAMS, uses).prop_map(|(stream, uses)| Step::Work { stream, uses }),
        2 => (0..STREAMS).prop_map(|stream| Step::Record { stream }),
        3 => (0..STREAMS, any::<prop::sample::Index>(), any::<bool>())
            .prop_map(|(stream, at, line)| Step::Wait { stream, at, line }),
        1 => Just(Step::Barrier),
        1 => Just(Step::Sync),
        3 => (0..3usize).prop_map(|over| Step::Section { over }),
    ]
}

#[derive(Copy, Clone, Debug, PartialEq)]
enum Devices {
    Cpu,
    Cuda,
    Mixed,
}

fn streams(devices: Devices) -> [StreamKey; STREAMS] {
    use StreamType::{Compute, DeviceToHost, HostToDevice};
    let (first, second) = match devices {
        Devices::Cpu => (DeviceId::cpu(0), DeviceId::cpu(1)),
        Devices::Cuda => (DeviceId::cuda(0), DeviceId::cuda(1)),
        Devices::Mixed => (DeviceId::cpu(0), DeviceId::cuda(0)),
    };
    [
        StreamKey::new(first, Compute, 0),
        StreamKey::new(first, Compute, 1),
        StreamKey::new(second, HostToDevice, 0),
        StreamKey::new(second, Compute, 0),
        StreamKey::new(second, Compute, 1),
        StreamKey::new(second, DeviceToHost, 0),
    ]
}

const BARRIER: StreamKey = StreamKey { device: DeviceId::cpu(0), stream_type: StreamType::Barrier, lane: 0 };

const CRITICAL: StreamKey = StreamKey { device: DeviceId::cpu(0), stream_type: StreamType::Critical, lane: 0 };

fn end(list: &mut InstructionList, section: &Section) {
    list.push(CRITICAL, Kind::SectionEnd(section.clone()), section.uses(), Site::caller()).expect("well formed");
}

/// The whole, a part, or another order of a tensor's elements.
fn view(tensor: &Tensor, which: usize) -> Tensor {
    match which {
        0 => tensor.clone(),
        1 => tensor.slice(0, 1..2).expect("two rows"),
        _ => tensor.permute(&[1, 0]).expect("two axes"),
    }
}

/// Appends a record or wait that the program asks for. It uses a variable of its own, which orders nothing and tells it from one that
/// the pass added.
fn asked(list: &mut InstructionList, stream: StreamKey, kind: Kind) {
    let own = Var::new();
    list.push(stream, kind, [own.read()], Site::caller()).expect("well formed");
}

fn build(steps: &[Step], devices: Devices) -> InstructionList {
    let streams = streams(devices);
    let shape = Shape::new(&[2, 3]).expect("a shape");
    let new = || Tensor::unbound(Place::Host, MemoryKind::Device, DType::F32, shape);
    let tensors: Vec<Tensor> = (0..TENSORS).map(|_| new()).collect();
    let mut list = InstructionList::new();
    let mut events: Vec<(StreamKey, Event)> = Vec::new();
    let site = Site::caller();
    let criticals = [Critical::new("a"), Critical::new("b")];
    let mut open = None;
    for step in steps {
        let lines = list.len();
        match step {
            Step::Work { stream, uses } => {
                // A function gets no byte twice if it writes it.
                let mut own: Vec<(usize, usize, Access)> = Vec::new();
                for &(tensor, which, access) in uses {
                    let alone = own.iter().all(|&(other, _, _)| other != tensor);
                    let reads = own.iter().all(|&(other, _, a)| other != tensor || a == Access::Read);
                    if alone || (reads && access == Access::Read) {
                        own.push((tensor, which, access));
                    }
                }
                let own = own.into_iter().map(|(tensor, which, access)| (view(&tensors[tensor], which), access));
                let views = Vec::from_iter(own);
                let uses = views.iter().map(|(view, access)| match access {
                    Access::Read => view.read(),
                    Access::Write => view.write(),
                    Access::ReadWrite => view.update(),
                });
                let kind = Kind::Function { role: Role::Function, name: "work".into(), body: None };
                list.push(streams[*stream], kind, uses, site).expect("well formed");
            }
            Step::Record { stream } => {
                let event = Event::new();
                events.push((streams[*stream], event.clone()));
                asked(&mut list, streams[*stream], Kind::Record(event));
            }
            Step::Wait { stream, at, line } => {
                let (source, target) = if *line && lines > 0 {
                    let line = at.index(lines);
                    (list.instructions()[line].stream, WaitFor::Line(line))
                } else if !events.is_empty() {
                    let (source, event) = &events[at.index(events.len())];
                    (*source, WaitFor::Event(event.clone()))
                } else {
                    continue;
                };
                let kind = Kind::Wait { source, target, kind: WaitKind::Device };
                asked(&mut list, streams[*stream], kind);
            }
            Step::Barrier => {
                let kind = Kind::Barrier { name: "b".into(), body: None, calls: false };
                list.push(BARRIER, kind, [], site).expect("well formed");
            }
            Step::Sync => list.push(BARRIER, Kind::GlobalSync, [], site).expect("well formed"),
            Step::Section { over } => match open.take() {
                Some(section) => end(&mut list, &section),
                None => {
                    let resources = [&[0][..], &[1], &[1, 0]][*over].iter().map(|at| &criticals[*at]);
                    let section = Section::across_lists(&Vec::from_iter(resources));
                    list.push(CRITICAL, Kind::SectionBegin(section.clone()), section.uses(), site)
                        .expect("well formed");
                    open = Some(section);
                }
            },
        }
    }
    open.iter().for_each(|section| end(&mut list, section));
    list
}

/// Which line comes after which: one row of bits per line.
struct Order(Vec<Vec<u64>>);

impl Order {
    fn comes_after(&self, later: usize, earlier: usize) -> bool {
        self.0[later][earlier / 64] >> (earlier % 64) & 1 == 1
    }

    fn of(lines: &[Line], without: Option<usize>) -> Order {
        let words = lines.len().div_ceil(64);
        let mut rows: Vec<Vec<u64>> = Vec::new();
        let mut ends: HashMap<StreamKey, usize> = HashMap::new();
        for (at, line) in lines.iter().enumerate() {
            let mut row = vec![0; words];
            let waited = line.waits_for.filter(|_| without != Some(at));
            for before in ends.insert(line.stream, at).into_iter().chain(waited) {
                row[before / 64] |= 1 << (before % 64);
                for (mine, theirs) in row.iter_mut().zip(&rows[before]) {
                    *mine |= theirs;
                }
            }
            rows.push(row);
        }
        Order(rows)
    }
}

/// What the checker knows of a line.
struct Line {
    stream: StreamKey,
    waits_for: Option<usize>,
    /// (resource, writes).
    uses: Vec<(usize, bool)>,
    barrier: bool,
    sync: bool,
    /// A line of the program: what must be ordered, in contrast to what the pass added.
    asked: bool,
}

/// Reads the planned list. Asserts that each wait names an earlier line of the stream it says, in the way that the
/// pair of streams allows.
fn lines(list: &InstructionList) -> Result<Vec<Line>, TestCaseError> {
    let mut records: Vec<(Event, usize)> = Vec::new();
    let mut lines: Vec<Line> = Vec::new();
    // The resource of the open section: its members come after its begin and before its end, as readers of it would.
    let mut section = None;
    for (at, instruction) in list.instructions().iter().enumerate() {
        let mut waits_for = None;
        match &instruction.kind {
            Kind::Record(event) => {
                prop_assert!(!records.iter().any(|(known, _)| known.is(event)), "line {at} records again");
                records.push((event.clone(), at));
            }
            Kind::Wait { source, target, kind } => {
                let found = match target {
                    WaitFor::Event(event) => records.iter().find(|(known, _)| known.is(event)).map(|(_, line)| *line),
                    WaitFor::Line(line) => Some(*line),
                    WaitFor::Number(_) => None,
                };
                let Some(found) = found.filter(|line| *line < at) else {
                    return Err(TestCaseError::fail(format!("line {at} names no earlier line")));
                };
                prop_assert_eq!(lines[found].stream, *source, "line {}", at);
                let barrier = [*source, instruction.stream].iter().any(|s| s.stream_type == StreamType::Barrier);
                let own = *source == instruction.stream;
                let device = source.device.kind == instruction.stream.device.kind && !barrier;
                // A wait that was asked for and is met already may say anything.
                if !own && *kind == WaitKind::Host {
                    prop_assert!(!device, "line {at} is held back, and its device could wait");
                }
                if matches!(target, WaitFor::Line(_)) && source.device.kind == DeviceKind::CUDA && !own {
                    let met = Order::of(&lines, None);
                    let before = lines.iter().rposition(|line| line.stream == instruction.stream);
                    let met = before.is_some_and(|before| before == found || met.comes_after(before, found));
                    prop_assert!(met, "line {at} waits for a CUDA stream without an event");
                }
                waits_for = Some(found);
            }
            _ => {}
        }
        let resource = |u: &HeldUse| std::ptr::from_ref(u.resource()) as usize;
        let asked =
            !matches!(instruction.kind, Kind::Record(_) | Kind::Wait { .. }) || !list.uses(instruction).is_empty();
        let mut uses: Vec<(usize, bool)> =
            list.uses(instruction).iter().map(|u| (resource(u), u.access() != Access::Read)).collect();
        match instruction.kind {
            Kind::SectionBegin(_) => section = uses.first().map(|(first, _)| *first),
            Kind::SectionEnd(_) => section = None,
            _ if asked => uses.extend(section.map(|first| (first, false))),
            _ => {}
        }
        lines.push(Line {
            stream: instruction.stream,
            waits_for,
            uses,
            barrier: matches!(instruction.kind, Kind::Barrier { .. }),
            sync: matches!(instruction.kind, Kind::GlobalSync),
            asked,
        });
    }
    Ok(lines)
}

/// The pairs (earlier, later) of lines that the program orders.
fn required(lines: &[Line]) -> Vec<(usize, usize)> {
    let mut pairs = Vec::new();
    for (later, b) in lines.iter().enumerate() {
        for (earlier, a) in lines[..later].iter().enumerate() {
            let conflict = b.uses.iter().any(|(resource, writes)| {
                a.uses.iter().any(|(other, other_writes)| resource == other && (*writes || *other_writes))
            });
            let barrier = (a.barrier && b.asked) || ((b.barrier || b.sync) && a.asked);
            if conflict || barrier {
                pairs.push((earlier, later));
            }
        }
    }
    pairs
}

fn check(steps: &[Step], devices: Devices) -> Result<(), TestCaseError> {
    let mut orders = Vec::new();
    for mode in [SoftSyncMode::Minimal, SoftSyncMode::LastUsedStream] {
        let list = build(steps, devices);
        let length = list.len();
        let text = list.to_string();
        let again: InstructionList = text.parse().map_err(|error| TestCaseError::fail(format!("{error}")))?;
        prop_assert_eq!(again.to_string(), text);
        let options = PlanOptions { mode, ..PlanOptions::default() };
        let planned = plan(list, &options).map_err(|error| TestCaseError::fail(error.to_string()))?.list;
        let from_text = plan(again, &options).map_err(|error| TestCaseError::fail(error.to_string()))?.list;
        prop_assert_eq!(from_text.to_string(), planned.to_string());
        let lines = lines(&planned)?;
        prop_assert_eq!(lines.iter().filter(|line| line.asked).count(), length, "nothing is lost");
        let pairs = required(&lines);
        let order = Order::of(&lines, None);
        for &(earlier, later) in &pairs {
            prop_assert!(
                order.comes_after(later, earlier),
                "{mode:?}: %{later} does not come after %{earlier}\n{planned}"
            );
        }
        if mode == SoftSyncMode::Minimal {
            check_minimal(&lines, &pairs, &planned)?;
        }
        orders.push((lines, order));
    }
    if devices == Devices::Cpu {
        check_coarser(&orders)?;
    }
    Ok(())
}

/// Each wait that the pass added orders something that nothing else orders.
fn check_minimal(lines: &[Line], pairs: &[(usize, usize)], planned: &InstructionList) -> Result<(), TestCaseError> {
    let mut per_stream: HashMap<StreamKey, usize> = HashMap::new();
    for line in lines.iter().filter(|line| line.waits_for.is_some()) {
        *per_stream.entry(line.stream).or_default() += 1;
    }
    if per_stream.values().any(|waits| *waits > HISTORY) {
        return Ok(());
    }
    for (at, _) in lines.iter().enumerate().filter(|(_, line)| !line.asked && line.waits_for.is_some()) {
        let order = Order::of(lines, Some(at));
        let breaks = pairs.iter().any(|&(earlier, later)| !order.comes_after(later, earlier));
        prop_assert!(breaks, "%{at} waits for what is ordered already\n{planned}");
    }
    Ok(())
}

/// On exact streams, whatever the minimal mode orders, the coarser rule orders too.
fn check_coarser(orders: &[(Vec<Line>, Order)]) -> Result<(), TestCaseError> {
    let work = |lines: &[Line]| (0..lines.len()).filter(|at| lines[*at].asked).collect::<Vec<_>>();
    let [(minimal, minimal_order), (coarse, coarse_order)] = orders else { unreachable!("two modes") };
    let (minimal, coarse) = (work(minimal), work(coarse));
    prop_assert_eq!(minimal.len(), coarse.len());
    for later in 0..minimal.len() {
        for earlier in 0..later {
            if minimal_order.comes_after(minimal[later], minimal[earlier]) {
                prop_assert!(coarse_order.comes_after(coarse[later], coarse[earlier]));
            }
        }
    }
    Ok(())
}

fn explore(devices: Devices, length: std::ops::Range<usize>) {
    let seed = std::env::var("STREAMVM_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| {
        use std::hash::{BuildHasher, RandomState};
        RandomState::new().hash_one(length.end)
    });
    let config = Config {
        cases: cases(64) as u32,
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        ..Config::default()
    };
    TestRunner::new(config)
        .run(&prop::collection::vec(step(), length), |steps| check(&steps, devices))
        .unwrap_or_else(|error| panic!("STREAMVM_SEED={seed}: {error}"));
}

#[test]
fn short_programs_over_cpu_are_ordered_by_as_few_waits_as_can_be() {
    explore(Devices::Cpu, 1..16);
}

#[test]
fn short_programs_over_cuda_are_ordered_by_as_few_waits_as_can_be() {
    explore(Devices::Cuda, 1..16);
}

#[test]
fn short_programs_over_both_are_ordered_by_as_few_waits_as_can_be() {
    explore(Devices::Mixed, 1..16);
}

#[test]
fn long_programs_are_ordered() {
    explore(Devices::Cpu, 60..120);
    explore(Devices::Mixed, 60..120);
}

/// The checker can say no: the plan of a small program without one of its waits.
#[test]
fn the_checker_sees_a_missing_wait() {
    let uses = |access| vec![(0, 0, access)];
    let steps = [
        Step::Work { stream: 0, uses: uses(Access::Write) },
        Step::Work { stream: 3, uses: uses(Access::Read) },
        Step::Work { stream: 4, uses: uses(Access::Write) },
    ];
    for devices in [Devices::Cpu, Devices::Cuda, Devices::Mixed] {
        let planned = plan(build(&steps, devices), &PlanOptions::default()).expect("a valid list").list;
        let lines = lines(&planned).expect("a valid plan");
        let waits: Vec<usize> = (0..lines.len()).filter(|at| lines[*at].waits_for.is_some()).collect();
        assert_eq!(waits.len(), 2);
        for wait in waits {
            let order = Order::of(&lines, Some(wait));
            assert!(required(&lines).iter().any(|&(earlier, later)| !order.comes_after(later, earlier)));
        }
    }
}
