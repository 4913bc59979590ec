use super::block_tests::{of_words, run_blocks_with, with_blocks};
use super::*;
use crate::call::kernel::{Kernel, KernelCall};
use crate::call::operand::Access;
use crate::errors::error::Error;
use crate::names::event_id::EventId;
use crate::names::site::Site;
use crate::sequence::commands::{Commands, Graphs};
use crate::sequence::graph::{BlockStart, GraphBlocks, GraphKey, GraphStart, LoopsRun};
use crate::sequence::step::{SequenceOperand, SequenceWork};
use crate::tensor::dtype::DType;
use crate::tensor::layout::Layout;
use crate::tensor::op::Op;
use crate::tensor::params::{Axes, Params};
use crate::tensor::scalar::Scalar;
use crate::tensor::shape::Shape;

/// Writes down what is queued: the step with its buffers, then the command with the offset of each operand from `base`.
pub(super) struct Listing {
    pub(super) base: usize,
    pub(super) queued: Vec<String>,
    /// The calls about graphs.
    pub(super) graphs: Vec<String>,
    /// The command that is refused, by its number among those queued.
    pub(super) refused: Option<usize>,
    /// The answer to each announcement of commands.
    pub(super) start: GraphStart,
    /// Whether it has the kernels of fused steps.
    pub(super) fuses: bool,
    /// Whether a graph of them is launched after they were captured.
    pub(super) launches: bool,
    /// The answer to each announcement of commands with blocks.
    pub(super) block_start: GraphStart,
    /// How the loops of a graph run.
    pub(super) loops: LoopsRun,
}

impl Listing {
    fn add(&mut self, what: &str, operands: &[&Operand]) -> Result<(), Error> {
        let commands = self.queued.iter().filter(|line| line.starts_with("step ")).count() - 1;
        let places: Vec<usize> = operands.iter().map(|operand| operand.ptr().addr().wrapping_sub(self.base)).collect();
        self.queued.push(format!("{what} {places:?}"));
        if self.refused == Some(commands) { Err(Error::Injected(what.to_owned())) } else { Ok(()) }
    }
}

impl Commands for Listing {
    fn begin_step(&mut self, step: ProgramStep, buffers: &[usize]) {
        self.queued.push(format!("step {} {} {buffers:?}", step.number, step.name));
    }

    fn launch(&mut self, call: &mut KernelCall<'_, 'static>) -> Result<(), Error> {
        self.add(call.kernel.op.name(), &call.operands.iter().collect::<Vec<_>>())
    }

    fn copy(&mut self, source: &Operand<'static>, target: &mut Operand<'static>) -> Result<(), Error> {
        self.add("copy", &[source, target])
    }

    fn fill(&mut self, target: &mut Operand<'static>, value: Scalar) -> Result<(), Error> {
        self.add(&format!("fill {value:?}"), &[target])
    }

    fn synchronize(&mut self) -> Result<(), Error> {
        self.queued.push("synchronize".to_owned());
        Ok(())
    }

    fn wait(&mut self, event: EventId) -> Result<(), Error> {
        self.queued.push(format!("wait for {event}"));
        Ok(())
    }

    fn graphs(&mut self) -> Option<&mut dyn Graphs> {
        Some(self)
    }
}

impl Graphs for Listing {
    fn launch_fused(&mut self, _: &FusedKernel, views: &mut [Operand<'static>]) -> Result<bool, Error> {
        if self.fuses { self.add("fused", &views.iter().collect::<Vec<_>>()).map(|()| true) } else { Ok(false) }
    }

    fn begin_graph(&mut self, key: GraphKey<'_>, buffers: &[Operand<'static>]) -> Result<GraphStart, Error> {
        self.graphs.push(format!("from {} over {} buffers: {:?}", key.first, buffers.len(), self.start));
        Ok(self.start)
    }

    fn begin_block_graph(
        &mut self,
        key: GraphKey<'_>,
        buffers: &[Operand<'static>],
        blocks: GraphBlocks,
    ) -> Result<GraphStart, Error> {
        let start = self.block_start;
        self.graphs.push(format!("from {} over {} buffers, {blocks:?}: {start:?}", key.first, buffers.len()));
        Ok(start)
    }

    fn begin_block(&mut self, start: BlockStart, condition: &Operand<'static>) -> Result<(), Error> {
        self.add(&format!("{start:?}").replace(' ', ""), &[condition])
    }

    fn begin_else(&mut self) -> Result<(), Error> {
        self.queued.push("else".to_owned());
        Ok(())
    }

    fn end_block(&mut self) -> Result<(), Error> {
        self.queued.push("end".to_owned());
        Ok(())
    }

    fn loops_run(&mut self) -> LoopsRun {
        self.loops
    }

    fn end_graph(&mut self, whole: bool) -> Result<bool, Error> {
        self.graphs.push(format!("whole: {whole}"));
        Ok(whole && self.launches)
    }

    fn begin_lanes(&mut self, lanes: usize) -> Result<(), Error> {
        self.queued.push(format!("{lanes} lanes"));
        Ok(())
    }

    fn enter_lane(&mut self, lane: usize, behind: &[usize]) -> Result<(), Error> {
        self.queued.push(format!("lane {lane} behind {behind:?}"));
        Ok(())
    }

    fn mark_lane(&mut self, mark: usize) -> Result<(), Error> {
        self.queued.push(format!("mark {mark}"));
        Ok(())
    }

    fn end_lanes(&mut self) -> Result<(), Error> {
        self.queued.push("lanes end".to_owned());
        Ok(())
    }
}

pub(super) fn vector(index: usize, offset: usize, elements: usize, access: Access) -> SequenceOperand {
    let layout = Layout::contiguous(Shape::new(&[elements]).expect("a shape"));
    SequenceOperand { memory: SequenceMemory::Buffer { index, offset }, dtype: DType::I32, layout, access }
}

pub(super) fn add(device: DeviceKind, operands: Vec<SequenceOperand>) -> SequenceStep {
    let kernel = Kernel::without_code(Op::Add, device, DType::I32);
    SequenceStep { work: SequenceWork::Kernel(kernel, Params::default()), operands }
}

/// `out = a + a[1..]`, then `out = 7`, then `a[0] = out[1]`, over two buffers.
pub(super) fn steps() -> Vec<(SequenceStep, ProgramStep)> {
    use Access::{Read, Write};
    let label = |step, what| ProgramStep { number: step, name: what, site: Site::caller() };
    let copy = vec![vector(1, 4, 1, Read), vector(0, 0, 1, Write)];
    vec![
        (
            add(DeviceKind::SIM, vec![vector(0, 0, 2, Read), vector(0, 4, 2, Read), vector(1, 0, 2, Write)]),
            label(3, "add"),
        ),
        (
            SequenceStep { work: SequenceWork::Fill(Scalar::from(7i32)), operands: vec![vector(1, 0, 2, Write)] },
            label(5, "fill"),
        ),
        (SequenceStep { work: SequenceWork::Copy, operands: copy }, label(6, "copy")),
    ]
}

/// Runs the steps over one vector of five elements: `a` has the first three, `out` the last two.
pub(super) fn run(access: Access, refused: Option<usize>) -> (Result<(), SequenceError>, Vec<String>) {
    let sequence = CommandSequence::new(DeviceKind::SIM, &[12, 8], None, steps()).expect("steps within their buffers");
    let (result, listing) = run_with(&sequence, access, refused, GraphStart::Queue, false);
    (result, listing.queued)
}

/// The same for a stream that keeps graphs.
pub(super) fn run_with(
    sequence: &CommandSequence,
    access: Access,
    refused: Option<usize>,
    start: GraphStart,
    launches: bool,
) -> (Result<(), SequenceError>, Listing) {
    let mut memory = [0i32; 5];
    let base = memory.as_mut_ptr();
    let operand = |first: usize, elements: usize, access| {
        let layout = Layout::contiguous(Shape::new(&[elements]).expect("a shape"));
        // SAFETY: the elements are in `memory`, which outlives the operands; nothing else uses it meanwhile.
        unsafe { Operand::new(base.wrapping_add(first).cast(), DType::I32, layout, access) }
    };
    let mut operands = [operand(0, 3, access), operand(3, 2, Access::Write)];
    let (queued, graphs) = (Vec::new(), Vec::new());
    let mut listing = Listing {
        base: base.addr(),
        queued,
        graphs,
        refused,
        start,
        fuses: true,
        launches,
        block_start: GraphStart::Queue,
        loops: LoopsRun::default(),
    };
    let result = sequence.execute(&mut listing, &mut operands, &mut SegmentRun::new(0));
    (result.map(|block| assert_eq!(block, None, "there are no blocks")), listing)
}

#[test]
fn steps_that_are_the_same_in_each_run_are_announced_together() {
    use GraphStart::{Capturing, Launched, Queue};
    // Around a division, which is queued by itself: two steps on either side, and one alone.
    let mut around = steps();
    let mut divide = add(
        DeviceKind::SIM,
        vec![vector(0, 0, 2, Access::Read), vector(0, 4, 2, Access::Read), vector(1, 0, 2, Access::Write)],
    );
    let kernel = Kernel::without_code(Op::Div, DeviceKind::SIM, DType::I32);
    divide.work = SequenceWork::Kernel(kernel, Params::default());
    around.insert(2, (divide, ProgramStep { number: 9, name: "div", site: Site::caller() }));
    let sequence = CommandSequence::new(DeviceKind::SIM, &[12, 8], None, around).expect("steps within their buffers");
    let run = |start, launches, refused| {
        let (result, listing) = run_with(&sequence, Access::ReadWrite, refused, start, launches);
        let whats = listing.queued.iter().filter(|line| !line.starts_with("step"));
        let whats: Vec<String> = whats.map(|line| line.split(' ').next().unwrap_or_default().to_owned()).collect();
        (result, listing.graphs, whats.join(" "))
    };
    let announced = |start: GraphStart| format!("from 0 over 2 buffers: {start:?}");
    assert_eq!(run(Queue, false, None), (Ok(()), vec![announced(Queue)], "add fill div copy".into()));
    assert_eq!(run(Launched, false, None), (Ok(()), vec![announced(Launched)], "div copy".into()));
    let whole = vec![announced(Capturing), "whole: true".to_owned()];
    assert_eq!(run(Capturing, true, None), (Ok(()), whole.clone(), "add fill div copy".into()));
    // Nothing ran, so the commands are queued after all.
    assert_eq!(run(Capturing, false, None), (Ok(()), whole, "add fill add fill div copy".into()));
    // A step that is refused while commands are captured may work without.
    let part = vec![announced(Capturing), "whole: false".to_owned()];
    assert_eq!(run(Capturing, true, Some(1)), (Ok(()), part, "add fill add fill div copy".into()));
    let one_by_one = CommandSequence::new(DeviceKind::SIM, &[12, 8], None, steps()).expect("steps").one_by_one();
    let (result, listing) = run_with(&one_by_one, Access::ReadWrite, None, Launched, true);
    assert_eq!((result, listing.graphs.len(), listing.queued.len()), (Ok(()), 0, 6));
}

/// Two fills on two lanes, and a copy after both; a step that is refused does not keep lanes open.
#[test]
fn branches_are_queued_on_their_lanes() -> Result<(), SequenceError> {
    use GraphStart::{Capturing, Queue};
    let fill = |index: usize| SequenceStep {
        work: SequenceWork::Fill(Scalar::from(7i32)),
        operands: vec![vector(index, 0, 1, Access::Write)],
    };
    let mut steps = steps();
    (steps[0].0, steps[1].0) = (fill(0), fill(1));
    let branch = |steps, lane, after: &[usize]| SequenceBranch { steps, lane, after: after.to_vec() };
    let sequence = || CommandSequence::new(DeviceKind::SIM, &[12, 8], None, steps.clone());
    let branches = vec![branch(0..1, 0, &[]), branch(1..2, 1, &[]), branch(2..3, 0, &[1])];
    let on_lanes = sequence()?.on_lanes(branches.clone())?;
    let all = [
        "2 lanes",
        "lane 0 behind []",
        "step 3 add [0]",
        "fill I64(7) [0]",
        "lane 1 behind []",
        "step 5 fill [1]",
        "fill I64(7) [12]",
        "mark 0",
        "lane 0 behind [0]",
        "step 6 copy [1, 0]",
        "copy [16, 0]",
        "lanes end",
    ];
    let (result, listing) = run_with(&on_lanes, Access::ReadWrite, None, Queue, false);
    assert_eq!((result, &listing.queued[..]), (Ok(()), &all.map(str::to_owned)[..]));
    // All of them are announced, and captured on their lanes.
    let (result, listing) = run_with(&on_lanes, Access::ReadWrite, None, Capturing, true);
    assert_eq!((result, &listing.queued[..]), (Ok(()), &all.map(str::to_owned)[..]));
    let announced = ["from 0 over 2 buffers: Capturing", "whole: true"];
    assert_eq!(listing.graphs, announced);
    let (result, listing) = run_with(&on_lanes, Access::ReadWrite, Some(1), Queue, false);
    assert!(matches!(result, Err(SequenceError::Step { step: 1, .. })), "{result:?}");
    assert_eq!(listing.queued[7..], ["lanes end"]);
    // Steps that are all on one lane, whichever it is, are queued on the stream.
    let on_one = vec![branch(0..1, 1, &[]), branch(1..3, 1, &[])];
    let (result, listing) = run_with(&sequence()?.on_lanes(on_one)?, Access::ReadWrite, None, Queue, false);
    assert_eq!((result, listing.queued.len()), (Ok(()), 6), "{:?}", listing.queued);
    let refused = sequence()?.on_lanes(vec![branch(0..1, 0, &[])]).map(drop);
    assert!(matches!(refused, Err(SequenceError::Branches { step: 1, .. })), "{refused:?}");
    let refused = sequence()?.on_lanes(vec![branch(0..3, 1, &[])]).map(drop);
    assert!(matches!(refused, Err(SequenceError::Branches { step: 0, .. })), "{refused:?}");
    let refused = with_blocks(1)?.on_lanes(vec![branch(0..9, 0, &[])]).map(drop);
    assert!(matches!(refused, Err(SequenceError::Branches { .. })), "{refused:?}");
    Ok(())
}

#[test]
fn each_step_is_queued_with_its_label_over_views_of_the_buffers() {
    let (result, queued) = run(Access::ReadWrite, None);
    assert_eq!(result, Ok(()));
    let expected = [
        "step 3 add [0, 0, 1]",
        "add [0, 4, 12]",
        "step 5 fill [1]",
        "fill I64(7) [12]",
        "step 6 copy [1, 0]",
        "copy [16, 0]",
    ];
    assert_eq!(queued, expected);
}

#[test]
fn a_refused_step_ends_the_queueing_and_is_named() {
    let (result, queued) = run(Access::ReadWrite, Some(1));
    assert!(matches!(result, Err(SequenceError::Step { step: 1, .. })), "{result:?}");
    assert_eq!(queued.len(), 4, "{queued:?}");
}

#[test]
fn a_call_with_other_operands_queues_nothing() {
    let (result, queued) = run(Access::Read, None);
    assert!(matches!(&result, Err(SequenceError::Buffers(why)) if why.contains("operand 0")), "{result:?}");
    assert!(queued.is_empty());
}

/// `out = a + a` over two floats, and a fill of integers, which is not looked at; the flag has place for the floats.
fn of_floats() -> CommandSequence {
    use Access::{Read, Write};
    let floats = |buffer, access| SequenceOperand { dtype: DType::F32, ..vector(buffer, 0, 2, access) };
    let kernel = Kernel::without_code(Op::Add, DeviceKind::SIM, DType::F32);
    let work = SequenceWork::Kernel(kernel, Params::default());
    let label = |step, what| ProgramStep { number: step, name: what, site: Site::caller() };
    let steps = vec![
        (SequenceStep { work, operands: vec![floats(0, Read), floats(0, Read), floats(1, Write)] }, label(3, "add")),
        (
            SequenceStep { work: SequenceWork::Fill(Scalar::from(7i32)), operands: vec![vector(2, 0, 2, Write)] },
            label(4, "fill"),
        ),
    ];
    CommandSequence::new(DeviceKind::SIM, &[8, 8, 8, 8], Some(SequenceFlag(3)), steps)
        .expect("steps within their buffers")
}

/// Runs it over one vector, with the flag at its end, in which the host finds the next of `seen` each time it is asked to call again, and at last the last one.
/// Returns the outcome, what was queued, and for which steps the caller was asked to call again.
fn run_of_floats(
    sequence: &CommandSequence,
    seen: &[[f32; 2]],
) -> (Result<(), SequenceError>, Vec<String>, Vec<usize>) {
    let mut memory = [0f32; 8];
    let base = memory.as_mut_ptr();
    let operand = |place: usize, access| {
        let layout = Layout::contiguous(Shape::new(&[2]).expect("a shape"));
        // SAFETY: the elements are in `memory`, which outlives the operands; nothing else uses it meanwhile.
        unsafe { Operand::new(base.wrapping_add(2 * place).cast(), DType::F32, layout, access) }
    };
    let (queued, graphs, refused, start) = (Vec::new(), Vec::new(), None, GraphStart::Queue);
    let mut listing = Listing {
        base: base.addr(),
        queued,
        graphs,
        refused,
        start,
        fuses: true,
        launches: false,
        block_start: GraphStart::Queue,
        loops: LoopsRun::default(),
    };
    let (mut run, mut paused) = (SegmentRun::new(0), Vec::new());
    loop {
        let mut operands = [(0, Access::Read), (1, Access::Write), (2, Access::Write), (3, Access::Write)]
            .map(|(place, access)| operand(place, access));
        match sequence.execute(&mut listing, &mut operands, &mut run) {
            Ok(Some(label)) => paused.push(label.number),
            Ok(None) => return (Ok(()), listing.queued, paused),
            Err(error) => return (Err(error), listing.queued, paused),
        }
        let seen = seen[(paused.len() - 1).min(seen.len() - 1)];
        // SAFETY: the last two elements of `memory`; the operands are not used any more.
        unsafe { base.wrapping_add(6).cast::<[f32; 2]>().write(seen) };
    }
}

#[test]
fn a_sequence_that_is_looked_into_returns_after_each_command() {
    let checked = of_floats().checking_finite().expect("the flag is large enough");
    let commands = ["step 3 add [0, 0, 1]", "add [0, 0, 8]", "step 3 add [1, 3]", "copy [8, 24]"];
    let fill = ["step 4 fill [2]", "fill I64(7) [16]"];
    let (result, queued, paused) = run_of_floats(&checked, &[[1.0, 2.0]]);
    assert_eq!(
        (result, queued, paused),
        (Ok(()), [&commands[..], &fill].concat().into_iter().map(str::to_owned).collect(), vec![3, 4])
    );
    // The output has an infinity, so the input, which is one view, is looked at, too.
    let infinite = [1.0, f32::NEG_INFINITY];
    let input = ["step 3 add [0, 3]", "copy [0, 24]"];
    let (result, queued, paused) = run_of_floats(&checked, &[infinite, [1.0, 2.0]]);
    let found = SequenceError::NotFinite { step: 0, index: vec![1], value: f64::NEG_INFINITY };
    let expected = [&commands[..], &input].concat();
    assert_eq!((result, queued, paused), (Err(found), expected.iter().map(ToString::to_string).collect(), vec![3, 3]));
    let (result, queued, paused) = run_of_floats(&checked, &[infinite, [f32::NAN, 2.0]]);
    let expected = [&commands[..], &input, &fill].concat();
    assert_eq!((result, queued, paused), (Ok(()), expected.iter().map(ToString::to_string).collect(), vec![3, 3, 4]));
    assert!(checked.times().is_empty() && checked.pauses());

    let timed = of_floats().timing();
    let (result, queued, paused) = run_of_floats(&timed, &[[f32::NAN; 2]]);
    assert_eq!((result, queued.len(), paused), (Ok(()), 4, vec![3, 4]));
    let times: Vec<_> = timed.times().into_iter().map(|it| (it.steps, it.runs)).collect();
    assert_eq!(times, [(0..1, 1), (1..2, 1)]);

    let plain = of_floats();
    assert!(!plain.pauses());
    assert_eq!(run_of_floats(&plain, &[[f32::NAN; 2]]).2, Vec::<usize>::new());
}

/// What a step overwrites cannot be looked at afterwards.
#[test]
fn an_input_that_a_step_overwrites_is_looked_at_before() {
    use Access::{Read, Write};
    let floats = |buffer, access| SequenceOperand { dtype: DType::F32, ..vector(buffer, 0, 2, access) };
    let kernel = Kernel::without_code(Op::Add, DeviceKind::SIM, DType::F32);
    let label = ProgramStep { number: 3, name: "add", site: Site::caller() };
    let work = SequenceWork::Kernel(kernel, Params::default());
    let step = SequenceStep { work, operands: vec![floats(1, Read), floats(0, Read), floats(1, Write)] };
    let sequence = CommandSequence::new(DeviceKind::SIM, &[8, 8, 8, 8], Some(SequenceFlag(3)), vec![(step, label)]);
    let checked = sequence.expect("a step within its buffers").checking_finite().expect("the flag is large enough");
    let (fine, infinite) = ([1.0, 2.0], [f32::INFINITY, 2.0]);
    let before = ["step 3 add [1, 3]", "copy [8, 24]"];
    let command = ["step 3 add [1, 0, 1]", "add [8, 0, 8]"];
    let (output, other) = (["step 3 add [1, 3]", "copy [8, 24]"], ["step 3 add [0, 3]", "copy [0, 24]"]);
    let found = || Err(SequenceError::NotFinite { step: 0, index: vec![0], value: f64::INFINITY });
    for (seen, result, expected) in [
        (vec![fine, fine], Ok(()), [&before[..], &command, &output].concat()),
        // The command is excused, so nothing more is looked at.
        (vec![infinite, fine], Ok(()), [before, command].concat()),
        (vec![fine, infinite, fine], found(), [before, command, output, other].concat()),
        (vec![fine, infinite, infinite], Ok(()), [before, command, output, other].concat()),
    ] {
        let (ended, queued, _) = run_of_floats(&checked, &seen);
        assert_eq!((ended, queued), (result, expected.iter().map(ToString::to_string).collect()), "{seen:?}");
    }
}

#[test]
fn infinities_that_the_caller_gives_are_not_looked_at() {
    let floats = SequenceOperand { dtype: DType::F32, ..vector(1, 0, 2, Access::Write) };
    let looked_at = |work: SequenceWork, inputs: Vec<SequenceOperand>| {
        let label = ProgramStep { number: 0, name: "step", site: Site::caller() };
        let operands = [inputs, vec![floats.clone()]].concat();
        let steps = vec![(SequenceStep { work, operands }, label)];
        let sequence = CommandSequence::new(DeviceKind::SIM, &[8, 8, 8, 8], Some(SequenceFlag(3)), steps);
        let checked =
            sequence.expect("steps within their buffers").checking_finite().expect("the flag is large enough");
        run_of_floats(&checked, &[[f32::INFINITY; 2], [1.0; 2]]).0.is_err()
    };
    let pad = |value: f32| {
        let kernel = Kernel::without_code(Op::Pad, DeviceKind::SIM, DType::F32);
        SequenceWork::Kernel(kernel, Params::pad(Axes::default(), 1, 0, value))
    };
    let input = || vec![SequenceOperand { dtype: DType::F32, ..vector(0, 0, 1, Access::Read) }];
    assert!(!looked_at(SequenceWork::Fill(Scalar::from(f32::NEG_INFINITY)), vec![]));
    assert!(!looked_at(pad(f32::INFINITY), input()));
    // A number that was finite, and is infinite in the dtype of the output.
    assert!(looked_at(SequenceWork::Fill(Scalar::from(1e300)), vec![]));
    assert!(looked_at(pad(1.0), input()));
}

#[test]
fn outputs_need_a_flag_that_they_fit_into() {
    let floats = SequenceOperand { dtype: DType::F32, ..vector(0, 0, 2, Access::Write) };
    let of = |flag| {
        let label = ProgramStep { number: 0, name: "fill", site: Site::caller() };
        let fill = SequenceStep { work: SequenceWork::Fill(Scalar::from(1f32)), operands: vec![floats.clone()] };
        let sequence = CommandSequence::new(DeviceKind::SIM, &[8, 4], flag, vec![(fill, label)]);
        sequence.expect("steps within their buffers").checking_finite().expect_err("it is refused")
    };
    assert!(matches!(of(None), SequenceError::Operands { step: 0, .. }));
    assert!(matches!(
        of(Some(SequenceFlag(1))),
        SequenceError::PastBuffer { step: 0, buffer: 1, end: 8, bytes: 4, .. }
    ));
}

/// Steps that one kernel computes are one command, and have one time.
#[test]
fn fused_steps_have_one_time() {
    let fusions = [SequenceGroup { steps: 0..2, block: 0, unstored: vec![] }];
    let sequence = CommandSequence::new(DeviceKind::SIM, &[12, 8], None, steps()).expect("steps within their buffers");
    let fused =
        sequence.fused(&fusions, &mut |_| Some(FusedKernel::default())).expect("they can run together").timing();
    let times: Vec<_> = fused.times().into_iter().map(|it| it.steps).collect();
    assert_eq!(times, [0..2, 2..3]);
}

#[test]
fn a_flag_is_a_buffer_of_its_own() {
    let label = ProgramStep { number: 0, name: "step", site: Site::caller() };
    let fill =
        SequenceStep { work: SequenceWork::Fill(Scalar::from(7i32)), operands: vec![vector(1, 0, 1, Access::Write)] };
    let refused = CommandSequence::new(DeviceKind::SIM, &[4, 4], Some(SequenceFlag(1)), vec![(fill, label)])
        .expect_err("a step writes the flag");
    assert!(matches!(refused, SequenceError::Operands { step: 0, .. }), "{refused}");
    let bools = SequenceOperand { dtype: DType::Bool, ..vector(0, 0, 1, Access::Read) };
    let steps = [(SequenceWork::If, vec![bools]), (SequenceWork::End, vec![])];
    let steps: Vec<_> = steps.into_iter().map(|(work, operands)| (SequenceStep { work, operands }, label)).collect();
    let refused =
        CommandSequence::new(DeviceKind::SIM, &[4, 0], Some(SequenceFlag(1)), steps).expect_err("the flag has no byte");
    assert!(matches!(refused, SequenceError::PastBuffer { buffer: 1, .. }), "{refused}");
    let ends = CommandSequence::new(
        DeviceKind::SIM,
        &[4],
        None,
        vec![(SequenceStep { work: SequenceWork::End, operands: vec![] }, label)],
    );
    assert!(matches!(ends, Err(SequenceError::Blocks { step: 0, .. })), "{ends:?}");
}

/// Three commands, or two with a fused kernel; blocks are announced however few steps they have.
#[test]
fn steps_are_announced_together_where_they_are_enough_calls() -> Result<(), SequenceError> {
    let three = || CommandSequence::new(DeviceKind::SIM, &[12, 8], None, steps());
    let announced = |sequence: CommandSequence| {
        let (result, listing) = run_with(&sequence, Access::ReadWrite, None, GraphStart::Queue, false);
        assert_eq!(result, Ok(()));
        listing.graphs.len()
    };
    let of_three = [1, 3, 4].map(|least| three().map(|sequence| announced(sequence.announcing_from(least))));
    assert_eq!(of_three, [Ok(1), Ok(1), Ok(0)]);
    let fusions = [SequenceGroup { steps: 0..2, block: 0, unstored: vec![] }];
    let two = || three()?.fused(&fusions, &mut |_| Some(FusedKernel::default()));
    assert_eq!([2, 3].map(|least| two().map(|it| announced(it.announcing_from(least)))), [Ok(1), Ok(0)]);
    // A fork, a join and an edge between lanes are two calls each.
    let branch = |steps: Range<usize>, lane, after: &[usize]| SequenceBranch { steps, lane, after: after.to_vec() };
    let lanes = || three()?.on_lanes(vec![branch(0..1, 0, &[]), branch(1..2, 1, &[]), branch(2..3, 0, &[1])]);
    assert_eq!([9, 10].map(|least| lanes().map(|it| announced(it.announcing_from(least)))), [Ok(1), Ok(0)]);
    for words in ["if fill end", "while fill end"] {
        let sequence = of_words(words, 9)?.announcing_from(100);
        let (result, listing) = run_blocks_with(&sequence, &[true, false], GraphStart::Launched, LoopsRun::default());
        assert_eq!((result, listing.graphs.len()), (Ok(()), 1), "{words}");
    }
    Ok(())
}

/// A kernel takes the place of its steps; the command for the others stays. One command alone is not announced as a graph.
#[test]
fn fused_steps_are_one_command() {
    let fusions = [SequenceGroup { steps: 0..2, block: 0, unstored: vec![] }];
    let sequence =
        || CommandSequence::new(DeviceKind::SIM, &[12, 8], None, steps()).expect("steps within their buffers");
    let fused = |sequence: CommandSequence, makes: bool| {
        let kernel = |_: &FusedGroup| makes.then(FusedKernel::default);
        sequence.fused(&fusions, &mut { kernel }).expect("they can run together")
    };
    let run = |sequence: &CommandSequence| run_with(sequence, Access::ReadWrite, None, GraphStart::Queue, false).1;
    let found = run(&fused(sequence(), true));
    // Both inputs, and the output.
    assert_eq!(found.queued, ["step 3 add [0, 0, 1]", "fused [0, 4, 12]", "step 6 copy [1, 0]", "copy [16, 0]"]);
    assert_eq!(found.graphs, ["from 0 over 2 buffers: Queue"]);
    let unfused = run(&sequence()).queued;
    assert_eq!(run(&fused(sequence(), false)).queued, unfused, "without a kernel");
    let mut alone = steps();
    alone.pop();
    let alone = CommandSequence::new(DeviceKind::SIM, &[12, 8], None, alone).expect("steps within their buffers");
    assert_eq!(run(&fused(alone, true)).graphs, Vec::<String>::new());
}

#[test]
fn fusions_that_do_not_come_in_order_are_refused() {
    for fusions in [&[(0, 0)][..], &[(0, 4)], &[(0, 2), (1, 2)]] {
        let sequence =
            CommandSequence::new(DeviceKind::SIM, &[12, 8], None, steps()).expect("steps within their buffers");
        let fusion = |&(first, end): &(usize, usize)| SequenceGroup { steps: first..end, block: 0, unstored: vec![] };
        let fusions: Vec<SequenceGroup> = fusions.iter().map(fusion).collect();
        let refused = sequence.fused(&fusions, &mut |_| None).map(drop);
        assert!(matches!(refused, Err(SequenceError::Group { .. })), "{fusions:?}: {refused:?}");
    }
}
