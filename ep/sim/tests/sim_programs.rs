//! Random programs on simulated devices, with all the waits that they need or with some left out at random.
//!
//! Two things must hold for every program and every seed. The findings are there exactly if some pair of conflicting
//! commands is not ordered by the closure of streams and waits, however the commands happened to run. And where there is
//! no finding, memory holds what the same program leaves on the CPU, one command after the other.
//!
//! Broken copies of the simulated device that were tried and found: waits that do not wait, waits that are not told to
//! the detector, records that pass before the command ahead of them, outputs that are not stored, `synchronize` one
//! command short.

use std::ops::Range;
use std::sync::Arc;

use proptest::prelude::*;
use streamvm_cpu::{CpuConfig, CpuDevice};
use streamvm_ep::*;
use streamvm_sim::races::Detector;
use streamvm_sim::sim::{SimConfig, SimMachine};

const BUFFERS: usize = 3;
const ELEMENTS: usize = 8;
const STREAMS: usize = 3;

type Part = (usize, Range<usize>);

#[derive(Clone, Debug)]
enum Command {
    Fill {
        target: Part,
        value: i32,
    },
    Copy {
        source: Part,
        target: Part,
    },
    Add {
        left: Part,
        right: Part,
        target: Part,
    },
    /// A caller's code that doubles what is there.
    Double {
        target: Part,
    },
}

#[derive(Clone, Debug)]
struct Line {
    stream: usize,
    command: Command,
    /// For each earlier line, if it has to be waited for: is the wait left out?
    careless: u64,
}

impl Command {
    fn uses(&self) -> Vec<(&Part, Access)> {
        match self {
            Command::Fill { target, .. } => vec![(target, Access::Write)],
            Command::Copy { source, target } => vec![(source, Access::Read), (target, Access::Write)],
            Command::Add { left, right, target } => {
                vec![(left, Access::Read), (right, Access::Read), (target, Access::Write)]
            }
            Command::Double { target } => vec![(target, Access::ReadWrite)],
        }
    }

    fn conflicts_with(&self, other: &Command) -> bool {
        let meets = |a: &Part, b: &Part| a.0 == b.0 && a.1.start < b.1.end && b.1.start < a.1.end;
        self.uses()
            .iter()
            .any(|(a, access)| other.uses().iter().any(|(b, with)| meets(a, b) && (access.writes() || with.writes())))
    }
}

/// Buffers all written, then lines in which each command has disjoint operands of one length.
fn lines(careless: bool) -> impl Strategy<Value = Vec<Line>> {
    let line = (0..STREAMS, 0..4usize, 1..=4usize, 0..3usize, any::<[u8; 3]>(), any::<u64>(), any::<u64>());
    let line = line.prop_map(move |(stream, what, length, first, places, one, two)| {
        // Operand `k` lies in its own buffer: no two of a command meet.
        let part = |k: usize| {
            let start = usize::from(places[k]) % (ELEMENTS - length + 1);
            ((first + k) % BUFFERS, start..start + length)
        };
        let command = match what {
            0 => Command::Fill { target: part(0), value: i32::from(places[1]) },
            1 => Command::Copy { source: part(1), target: part(0) },
            2 => Command::Add { left: part(1), right: part(2), target: part(0) },
            _ => Command::Double { target: part(0) },
        };
        // One wait in four is left out.
        Line { stream, command, careless: if careless { one & two } else { 0 } }
    });
    prop::collection::vec(line, 1..24).prop_map(|rest| {
        let whole = |buffer| Command::Fill { target: (buffer, 0..ELEMENTS), value: 1 + buffer as i32 };
        let first = (0..BUFFERS).map(|buffer| Line { stream: buffer % STREAMS, command: whole(buffer), careless: 0 });
        first.chain(rest).collect()
    })
}

fn operand(regions: &[Region], (buffer, part): &Part, access: Access) -> Operand<'static> {
    let layout = Layout::contiguous(Shape::new(&[ELEMENTS]).unwrap()).slice(0, part.clone()).unwrap();
    // SAFETY: each region holds the elements and outlives the streams' commands. Commands may race in what they mean,
    // but one thread runs them all.
    unsafe { Operand::new(regions[*buffer].base(), DType::I32, layout, access) }
}

fn give(stream: &mut dyn Stream, command: &Command, regions: &[Region], kernels: &KernelRegistry, kind: DeviceKind) {
    let mut operands: Vec<Operand> =
        command.uses().into_iter().map(|(part, access)| operand(regions, part, access)).collect();
    match command {
        Command::Fill { value, .. } => stream.fill(&mut operands[0], Scalar::from(*value)).unwrap(),
        Command::Copy { .. } => {
            let (source, target) = operands.split_at_mut(1);
            stream.copy(&source[0], &mut target[0]).unwrap();
        }
        Command::Add { .. } => {
            let kernel = kernels.get(Op::Add, kind, DType::I32).unwrap();
            let params = Params::default();
            stream.launch(&mut KernelCall::new(kernel, &mut operands, 2, &params)).unwrap();
        }
        Command::Double { .. } => {
            let mut code = InlineFn::new(|context| {
                context.writes.take::<i32>(0)?.iter_mut().for_each(|element| *element = element.wrapping_mul(2));
                Ok(())
            });
            stream.call(&mut code, &mut operands).unwrap();
        }
    }
}

fn allocate(device: &dyn Device) -> Vec<Region> {
    (0..BUFFERS).map(|_| device.allocate(MemoryKind::Device, ELEMENTS * 4).unwrap()).collect()
}

fn contents(regions: &[Region]) -> Vec<i32> {
    let whole = |buffer| operand(regions, &(buffer, 0..ELEMENTS), Access::Read).slice::<i32>().unwrap().to_vec();
    (0..BUFFERS).flat_map(whole).collect()
}

fn free(device: &dyn Device, regions: Vec<Region>) {
    for region in regions {
        // SAFETY: the region came from the device, and everything has been synchronized with.
        unsafe { device.free(region) };
    }
}

/// What the program leaves when each line runs after the one before.
fn in_order(lines: &[Line]) -> Vec<i32> {
    let device = CpuDevice::new(0, CpuConfig::default());
    let (regions, kernels) = (allocate(&device), streamvm_kernels::builtin());
    let mut stream = device.create_stream().unwrap();
    lines.iter().for_each(|line| give(&mut *stream, &line.command, &regions, &kernels, DeviceKind::CPU));
    let left = contents(&regions);
    free(&device, regions);
    left
}

/// Is there a conflicting pair that neither streams nor waits order?
fn races(lines: &[Line], waits: &[(usize, usize)]) -> bool {
    let mut before = vec![vec![false; lines.len()]; lines.len()];
    for (late, line) in lines.iter().enumerate() {
        for early in 0..late {
            if lines[early].stream == line.stream || waits.contains(&(early, late)) {
                before[late][early] = true;
                let known = before[early].clone();
                before[late].iter_mut().zip(known).for_each(|(all, known)| *all |= known);
            }
        }
    }
    let pair = |(late, early): (usize, usize)| {
        lines[late].command.conflicts_with(&lines[early].command) && !before[late][early]
    };
    (0..lines.len()).any(|late| (0..late).any(|early| pair((late, early))))
}

/// Runs the program on simulated devices: the findings as texts, what is left, and whether some pair races.
fn simulate(lines: &[Line], seed: u64) -> (Vec<String>, Vec<i32>, bool) {
    let detector = Arc::new(Detector::new());
    let machine = SimMachine::new(SimConfig { devices: 2, seed, ..SimConfig::default() }, Arc::clone(&detector));
    let (devices, kernels) = (machine.devices(), streamvm_kernels::builtin());
    let regions = allocate(&*devices[0]);
    let mut streams: Vec<_> = (0..STREAMS).map(|index| devices[index % 2].create_stream().unwrap()).collect();
    let (mut events, mut waits) = (Vec::new(), Vec::new());
    for (late, line) in lines.iter().enumerate() {
        let stream = &mut *streams[line.stream];
        for (early, other) in lines[..late].iter().enumerate() {
            let needed = other.stream != line.stream && line.command.conflicts_with(&other.command);
            if needed && line.careless & (1 << (early % 64)) == 0 {
                stream.wait(events[early]).unwrap();
                waits.push((early, late));
            }
        }
        stream.begin(&Label::new(line.stream as u32, late as u64, "line"));
        give(stream, &line.command, &regions, &kernels, DeviceKind::SIM);
        let event = devices[0].events().acquire();
        stream.record(event).unwrap();
        events.push(event);
        // Now and then something runs before the program is whole.
        if seed.is_multiple_of(3) {
            machine.step();
        }
    }
    streams.iter_mut().rev().for_each(|stream| stream.synchronize().unwrap());
    assert_eq!(machine.pending(), 0);
    let left = contents(&regions);
    free(&*devices[0], regions);
    assert!(devices.iter().all(|device| device.take_failures().is_empty()));
    let findings = detector.findings().iter().map(|finding| finding.to_string()).collect();
    (findings, left, races(lines, &waits))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_program_with_its_waits_gives_what_the_cpu_gives(lines in lines(false), seed in any::<u64>()) {
        let (findings, left, races) = simulate(&lines, seed);
        prop_assert!(!races);
        prop_assert_eq!(findings, Vec::<String>::new());
        prop_assert_eq!(left, in_order(&lines));
    }

    #[test]
    fn missing_waits_are_found_whatever_the_seed_and_silence_is_order(lines in lines(true), seed in any::<u64>()) {
        let (findings, left, races) = simulate(&lines, seed);
        prop_assert_eq!(!findings.is_empty(), races, "{:?}", findings);
        if !races {
            prop_assert_eq!(left, in_order(&lines));
        }
    }
}

#[test]
fn races_reach_the_data_under_some_seed() {
    let part = |buffer: usize| (buffer, 0..ELEMENTS);
    let line = |stream, command| Line { stream, command, careless: u64::MAX };
    let lines = [
        line(0, Command::Fill { target: part(0), value: 1 }),
        line(0, Command::Copy { source: part(0), target: part(1) }),
        line(1, Command::Double { target: part(1) }),
    ];
    let expected = in_order(&lines)[ELEMENTS..2 * ELEMENTS].to_vec();
    let wrong = |seed: &u64| simulate(&lines, *seed).1[ELEMENTS..2 * ELEMENTS] != expected;
    let seeds = (0..40).filter(wrong).count();
    assert!(seeds > 10, "{seeds} of 40 seeds");
}
