use std::sync::atomic::{AtomicUsize, Ordering};

use super::tests::{Listing, add, steps, vector};
use super::*;
use crate::call::kernel::Kernel;
use crate::call::operand::Access;
use crate::errors::error::Error;
use crate::names::site::Site;
use crate::sequence::graph::{GraphStart, LoopEnd, LoopsRun};
use crate::sequence::others::{DeviceCode, HostCode, LentStream, OtherWork, StreamLender};
use crate::sequence::step::{SequenceOperand, SequenceWork};
use crate::tensor::dtype::DType;
use crate::tensor::layout::Layout;
use crate::tensor::op::Op;
use crate::tensor::params::Params;
use crate::tensor::scalar::Scalar;
use crate::tensor::shape::Shape;

#[test]
fn blocks_without_a_flag_scratch_memory_and_kernels_of_other_devices_are_refused() {
    let refused = |step: SequenceStep| {
        let label = ProgramStep { number: 0, name: "step", site: Site::caller() };
        CommandSequence::new(DeviceKind::SIM, &[12, 8], None, vec![(step, label)]).expect_err("it is refused")
    };
    let condition = SequenceOperand { dtype: DType::Bool, ..vector(0, 0, 1, Access::Read) };
    let block = refused(SequenceStep { work: SequenceWork::If, operands: vec![condition] });
    assert!(matches!(block, SequenceError::Blocks { step: 0, .. }), "{block:?}");
    let scratch = SequenceOperand { memory: SequenceMemory::Scratch(0), ..vector(0, 0, 1, Access::Write) };
    let scratch = refused(SequenceStep { work: SequenceWork::Fill(Scalar::from(0i32)), operands: vec![scratch] });
    assert!(matches!(scratch, SequenceError::Operands { step: 0, .. }), "{scratch:?}");
    let operands = vec![vector(0, 0, 2, Access::Read), vector(0, 4, 2, Access::Read), vector(1, 0, 2, Access::Write)];
    let elsewhere = refused(add(DeviceKind::CUDA, operands));
    assert!(matches!(elsewhere, SequenceError::Operands { step: 0, .. }), "{elsewhere:?}");
    let past =
        SequenceStep { work: SequenceWork::Fill(Scalar::from(0i32)), operands: vec![vector(1, 4, 2, Access::Write)] };
    assert!(matches!(refused(past), SequenceError::PastBuffer { end: 12, bytes: 8, .. }));
}

/// Steps of the host that are none, that overlap, or that do not do what is said of them, are refused.
#[test]
fn wrong_steps_of_the_host_are_refused() {
    let code = || {
        let copy = vec![vector(0, 0, 2, Access::Read), vector(1, 0, 2, Access::Write)];
        let label = ProgramStep { number: 0, name: "copy", site: Site::caller() };
        let copy = vec![(SequenceStep { work: SequenceWork::Copy, operands: copy }, label)];
        let prepared = CommandSequence::new(DeviceKind::SIM, &[12, 8], None, copy.clone()).expect("a copy");
        HostCode::new(&copy, Box::new(prepared), Arc::new(|_, _, _| Ok(())))
    };
    let made = |others: Vec<(Range<usize>, OtherWork)>| {
        // SAFETY: nothing is executed.
        let others = others.into_iter().map(|(steps, work)| unsafe { OtherSteps::new(steps, work) }).collect();
        let buffers = vec![SequenceBuffer::Bytes(12), SequenceBuffer::Bytes(8)];
        CommandSequence::with_others(DeviceKind::SIM, buffers, None, steps().into_iter().collect(), others)
    };
    let run = || OtherWork::Host(code());
    assert!(made(vec![(0..1, run()), (2..3, run())]).is_ok());
    for host in [
        vec![(1..1, run())],
        vec![(0..4, run())],
        vec![(1..2, run()), (0..1, run())],
        vec![(0..2, run()), (1..3, run())],
        vec![(1..3, OtherWork::Upload(code(), None))],
    ] {
        let refused = made(host).map(drop).expect_err("they are no steps of the host");
        assert!(matches!(refused, SequenceError::Group { .. }), "{refused}");
    }
    // The first step adds, and begins no block; a copy by way of the flag needs one.
    let refused = |host| made(vec![host]).map(drop).expect_err("it is refused");
    let condition = refused((0..1, OtherWork::Condition));
    assert!(matches!(condition, SequenceError::Blocks { step: 0, .. }), "{condition}");
    for host in [(0..1, OtherWork::Download(code(), None)), (2..3, OtherWork::Download(code(), None))] {
        let copy = refused(host);
        assert!(matches!(copy, SequenceError::Operands { .. }), "{copy}");
    }
    let group = SequenceGroup { steps: 0..2, block: 0, unstored: Vec::new() };
    let fused = made(vec![(1..2, run())]).expect("a sequence").fused(&[group], &mut |_| None);
    assert!(matches!(fused, Err(SequenceError::Group { step: 0, .. })));
}

/// `while go { out = a + a[1..]; if small { out = 7 } else { a[0] = out[1] } }; a[0] = out[1]`, over buffers for numbers, bools and the flag.
pub(super) fn with_blocks(most_rounds: u64) -> Result<CommandSequence, SequenceError> {
    of_words("while add if fill else copy end end copy", most_rounds)
}

/// These steps, over the buffers of [`with_blocks`]: `out = a + a[1..]` or a division that may fail, `out = 7`, `a[0] = out[1]`, and blocks. The condition of
/// a loop is the first bool, and that of an `if` the second.
pub(super) fn of_words(words: &'static str, most_rounds: u64) -> Result<CommandSequence, SequenceError> {
    of_words_with(words, most_rounds, Vec::new())
}

/// The same with steps of others.
fn of_words_with(
    words: &'static str,
    most_rounds: u64,
    others: Vec<OtherSteps>,
) -> Result<CommandSequence, SequenceError> {
    let bool_at = |offset| SequenceOperand { dtype: DType::Bool, ..vector(2, offset, 1, Access::Read) };
    let step = |(number, what): (usize, &'static str)| {
        let [add, fill, copy] = <[_; 3]>::try_from(steps()).expect("three steps");
        let mark = |work, condition: Option<usize>| {
            let label = ProgramStep { number, name: what, site: Site::caller() };
            (SequenceStep { work, operands: condition.map(bool_at).into_iter().collect() }, label)
        };
        match what {
            "add" => add,
            "fill" => fill,
            "copy" => copy,
            "div" => {
                let kernel = Kernel::without_code(Op::Div, DeviceKind::SIM, DType::I32);
                let (SequenceStep { operands, .. }, label) = add;
                (SequenceStep { work: SequenceWork::Kernel(kernel, Params::default()), operands }, label)
            }
            "while" => mark(SequenceWork::While { most_rounds, most_time: None }, Some(0)),
            "if" => mark(SequenceWork::If, Some(1)),
            "else" => mark(SequenceWork::Else, None),
            "end" => mark(SequenceWork::End, None),
            other => panic!("{other} is no step"),
        }
    };
    let words: Vec<&'static str> = words.split(' ').collect();
    let steps = words.into_iter().enumerate().map(step).collect();
    let buffers = [12, 8, 2, 1].map(SequenceBuffer::Bytes).to_vec();
    CommandSequence::with_others(DeviceKind::SIM, buffers, Some(SequenceFlag(3)), steps, others)
}

/// Lends a stream that pauses so often, and counts how often it is finished.
struct Lends {
    pauses: usize,
    finished: Arc<AtomicUsize>,
}

impl StreamLender for Lends {
    fn lend(&self) -> Result<Box<dyn LentStream>, Error> {
        Ok(Box::new(Lends { pauses: self.pauses, finished: self.finished.clone() }))
    }
}

impl LentStream for Lends {
    fn execute(
        &mut self,
        stream: &mut dyn Commands,
        _: &dyn Prepared,
        _: &mut [Operand<'static>],
        run: &mut SegmentRun,
    ) -> Result<Option<ProgramStep>, SequenceError> {
        stream.synchronize().expect("it only lists");
        run.rounds += 1;
        let inner = ProgramStep { number: 9, name: "inner", site: Site::caller() };
        let paused = self.pauses.checked_sub(1).map(|left| self.pauses = left);
        Ok(paused.map(|()| inner))
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.finished.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// A run returns before steps of another device unless nothing is queued, after each piece of them, and at their inner steps; a condition of another device is read from the
/// flag.
#[test]
fn steps_of_another_device_are_between_two_pauses() {
    let finished = Arc::new(AtomicUsize::new(0));
    let code = |pauses: usize| {
        let label = ProgramStep { number: 0, name: "other", site: Site::caller() };
        let fill = SequenceStep {
            work: SequenceWork::Fill(Scalar::from(7i32)),
            operands: vec![vector(1, 0, 2, Access::Write)],
        };
        let steps = vec![(fill, label)];
        let prepared = CommandSequence::new(DeviceKind::SIM, &[12, 8], None, steps.clone()).expect("a fill");
        DeviceCode::new(&steps, Box::new(prepared), Arc::new(Lends { pauses, finished: finished.clone() }))
    };
    let run = |others: Vec<(Range<usize>, OtherWork)>, flags: &[bool]| {
        // SAFETY: nothing is executed.
        let others = others.into_iter().map(|(steps, work)| unsafe { OtherSteps::new(steps, work) }).collect();
        let sequence = of_words_with("while fill fill copy end", 9, others).expect("a sequence");
        let (result, queued) = run_blocks(&sequence, flags);
        (result.map_err(|error| error.to_string()), words(&queued), finished.swap(0, Ordering::Relaxed))
    };
    let whole = run(vec![(2..3, OtherWork::Device(code(0)))], &[true, true, true, false]);
    let expected = "copy while:true fill fill:true synchronize fill:true copy copy while:false";
    assert_eq!(whole, (Ok(()), expected.to_owned(), 1));
    let pausing = run(vec![(1..2, OtherWork::Device(code(2)))], &[true, true, true, true, false]);
    let expected = "copy while:true synchronize inner:true synchronize inner:true synchronize fill:true fill copy copy while:false";
    assert_eq!(pausing, (Ok(()), expected.to_owned(), 3), "nothing is queued before it");
    let condition = run(vec![(0..1, OtherWork::CopiedCondition(code(0)))], &[true, true, true, false, false]);
    let expected = "while:true synchronize while:true fill fill copy while:true synchronize while:false";
    assert_eq!((condition.1.as_str(), condition.2), (expected, 2), "{:?}", condition.0);
}

/// Runs the steps of [`with_blocks`]; what the host finds in the flag at each call is given.
fn run_blocks(sequence: &CommandSequence, flags: &[bool]) -> (Result<(), SequenceError>, Vec<String>) {
    let (result, listing) = run_blocks_with(sequence, flags, GraphStart::Queue, LoopsRun::default());
    (result, listing.queued)
}

/// The same for a stream that keeps graphs with blocks, whose loops run so.
pub(super) fn run_blocks_with(
    sequence: &CommandSequence,
    flags: &[bool],
    block_start: GraphStart,
    loops: LoopsRun,
) -> (Result<(), SequenceError>, Listing) {
    let (mut numbers, mut bools) = ([0i32; 5], [0u8; 3]);
    let base = numbers.as_mut_ptr();
    let view = |base: *mut u8, dtype, elements: usize, access| {
        let layout = Layout::contiguous(Shape::new(&[elements]).expect("a shape"));
        // SAFETY: the elements are in the arrays above, which outlive the operands; nobody else uses them meanwhile.
        unsafe { Operand::new(base, dtype, layout, access) }
    };
    let bools = bools.as_mut_ptr();
    let mut listing = Listing {
        fuses: false,
        base: base.addr(),
        queued: vec![],
        graphs: vec![],
        refused: None,
        start: GraphStart::Queue,
        launches: block_start == GraphStart::Capturing,
        block_start,
        loops,
    };
    let (mut run, mut flags) = (SegmentRun::new(0), flags.iter());
    loop {
        let mut operands = [
            view(base.cast(), DType::I32, 3, Access::ReadWrite),
            view(base.wrapping_add(3).cast(), DType::I32, 2, Access::Write),
            view(bools, DType::Bool, 2, Access::Read),
            view(bools.wrapping_add(2), DType::Bool, 1, Access::Write),
        ];
        let condition = match sequence.execute(&mut listing, &mut operands, &mut run) {
            Ok(Some(label)) => label.name,
            Ok(None) => return (Ok(()), listing),
            Err(error) => return (Err(error), listing),
        };
        let flag = flags.next().expect("no more conditions are asked for");
        listing.queued.push(format!("{condition}: {flag}"));
        // SAFETY: the third of the bools; the operands are not used any more.
        unsafe { bools.wrapping_add(2).write(u8::from(*flag)) };
    }
}

/// The words of the commands and answers, without labels and places.
fn words(queued: &[String]) -> String {
    let lines = queued.iter().filter(|line| !line.starts_with("step ")).map(|line| match line.split_once(' ') {
        Some((word, rest)) if word.ends_with(':') => format!("{word}{rest}"),
        Some((word, _)) => word.to_owned(),
        None => line.clone(),
    });
    lines.collect::<Vec<_>>().join(" ")
}

#[test]
fn blocks_are_queued_up_to_each_condition() {
    let sequence = with_blocks(9).expect("blocks that end");
    let (result, queued) = run_blocks(&sequence, &[false]);
    assert_eq!((result, &*words(&queued)), (Ok(()), "copy while:false copy"));
    // The condition, which is at byte 0 of buffer 2, is copied to buffer 3 under the label of the step that begins the block.
    assert_eq!(queued[0], "step 0 while [2, 3]");
    let (result, queued) = run_blocks(&sequence, &[true, true, true, false, false]);
    let expected = "copy while:true add copy if:true fill copy while:true add copy if:false copy copy while:false copy";
    assert_eq!((result, &*words(&queued)), (Ok(()), expected));
}

#[test]
fn a_loop_is_launched_as_a_whole_once_its_condition_is_known() {
    use GraphStart::{Capturing, Launched};
    let sequence = with_blocks(9).expect("blocks that end");
    let run = |flags: &[bool], start, loops| run_blocks_with(&sequence, flags, start, loops);
    let (made, end) = (3, None);
    // The host waits for the loop before it queues what follows.
    let (result, listing) = run(&[true, false], Launched, LoopsRun { rounds: made, end });
    assert_eq!((result, &*words(&listing.queued)), (Ok(()), "copy while:true while:false copy"));
    assert_eq!(listing.graphs, ["from 0 over 4 buffers, GraphBlocks { depth: 2, rounds: Some(0) }: Launched"]);
    let (result, listing) = run(&[true, false], Capturing, LoopsRun { rounds: made, end });
    let captured = "While{most_rounds:9,step:0} add If{has_else:true} fill else copy end end";
    assert_eq!((result, &*words(&listing.queued)), (Ok(()), &*format!("copy while:true {captured} while:false copy")));
    // Both conditions are in buffer 2.
    let marks = ["step 0 while [2, 3]", "step 2 if [2, 3]"];
    assert!(marks.iter().all(|mark| listing.queued.iter().filter(|line| line == mark).count() >= 1));
    // Nothing of a loop without rounds is launched.
    let (result, listing) = run(&[false], Launched, LoopsRun::default());
    assert_eq!((result, &*words(&listing.queued), listing.graphs.len()), (Ok(()), "copy while:false copy", 0));
}

#[test]
fn a_loop_that_the_device_has_ended_early_fails_the_run() {
    let sequence = with_blocks(9).expect("blocks that end");
    for (end, expected) in [
        (LoopEnd::MostRounds { step: 0 }, SequenceError::Rounds { step: 0, rounds: 9 }),
        (LoopEnd::Stopped { step: 0 }, SequenceError::Stopped { step: 0 }),
    ] {
        let loops = LoopsRun { rounds: 10, end: Some(end) };
        let (result, listing) = run_blocks_with(&sequence, &[true, false], GraphStart::Launched, loops);
        assert_eq!((result, &*words(&listing.queued)), (Err(expected), "copy while:true while:false"));
    }
}

#[test]
fn loops_that_a_device_cannot_run_alone_are_not_announced() {
    let announced = |sequence: CommandSequence| {
        // One that is timed returns after each command, too.
        let flags = [[true].as_slice(), &[false; 9]].concat();
        let run = run_blocks_with(&sequence, &flags, GraphStart::Launched, LoopsRun::default());
        !run.1.graphs.is_empty()
    };
    let sequence = || with_blocks(9).expect("blocks that end");
    assert!(announced(sequence()) && !announced(sequence().one_by_one()) && !announced(sequence().timing()));
    // A division may fail, and a loop may be bounded in time.
    let steps = |work: SequenceWork, op: Op| {
        let [mut step, ..] = <[_; 3]>::try_from(steps()).expect("three steps");
        let kernel = Kernel::without_code(op, DeviceKind::SIM, DType::I32);
        step.0.work = SequenceWork::Kernel(kernel, Params::default());
        let label = step.1;
        let condition = SequenceOperand { dtype: DType::Bool, ..vector(2, 0, 1, Access::Read) };
        let begin = SequenceStep { work, operands: vec![condition] };
        let end = SequenceStep { work: SequenceWork::End, operands: vec![] };
        let steps = vec![(begin, label), step, (end, label)];
        CommandSequence::new(DeviceKind::SIM, &[12, 8, 2, 1], Some(SequenceFlag(3)), steps).expect("blocks that end")
    };
    let repeats = |most_time| SequenceWork::While { most_rounds: 9, most_time };
    assert!(announced(steps(repeats(None), Op::Add)) && !announced(steps(repeats(None), Op::Div)));
    assert!(!announced(steps(repeats(Some(std::time::Duration::MAX)), Op::Add)));
    assert!(announced(steps(SequenceWork::If, Op::Add)) && !announced(steps(SequenceWork::If, Op::Div)));
}

/// The announcements of blocks in a run, without the number of buffers and the answer, and the words of what is queued.
fn announced(words_of: &'static str, flags: &[bool], start: GraphStart) -> (Vec<String>, String) {
    let sequence = of_words(words_of, 9).expect("blocks that end");
    let (result, listing) = run_blocks_with(&sequence, flags, start, LoopsRun { rounds: 3, end: None });
    assert_eq!(result, Ok(()), "{words_of}");
    let of_blocks = listing.graphs.iter().filter(|line| line.contains("GraphBlocks"));
    let short = |line: &String| line.replace("over 4 buffers, GraphBlocks", "").replace(&format!(": {start:?}"), "");
    (of_blocks.map(short).collect(), words(&listing.queued))
}

#[test]
fn branches_are_launched_with_the_steps_around_them_and_no_condition_is_read() {
    use GraphStart::{Capturing, Launched, Queue};
    let text = "fill if copy else add end copy";
    let first = vec!["from 1  { depth: 1, rounds: None }".to_owned()];
    assert_eq!(announced(text, &[], Launched), (first.clone(), String::new()));
    let captured = "fill If{has_else:true} copy else add end copy".to_owned();
    assert_eq!(announced(text, &[], Capturing), (first.clone(), captured));
    // The host reads the condition if the stream leaves the branch to it, and does not ask again.
    assert_eq!(announced(text, &[true], Queue), (first.clone(), "fill copy if:true copy copy".to_owned()));
    assert_eq!(announced(text, &[false], Queue), (first, "fill copy if:false add copy".to_owned()));
    // Several branches, nested ones among them.
    let (blocks, queued) = announced("if if fill end end copy if copy end", &[], Capturing);
    assert_eq!(blocks, ["from 0  { depth: 2, rounds: None }"]);
    assert_eq!(queued, "If{has_else:false} If{has_else:false} fill end end copy If{has_else:false} copy end");
    // A step that a graph cannot have is queued between two graphs, and one in a branch leaves the branch to the host.
    let (blocks, queued) = announced("if fill end div if fill end", &[], Launched);
    assert_eq!((blocks.len(), &*queued), (2, "div"), "{blocks:?}");
    let (blocks, queued) = announced("if div end copy if fill end", &[true], Launched);
    assert_eq!((blocks, &*queued), (vec!["from 4  { depth: 1, rounds: None }".to_owned()], "copy if:true div"));
    // So does a body without steps.
    assert_eq!(announced("if else fill end", &[true], Launched), (vec![], "copy if:true".to_owned()));
}

#[test]
fn a_branch_with_a_loop_is_launched_once_its_condition_is_known() {
    use GraphStart::{Launched, Queue};
    let text = "fill if while add end else fill end copy";
    let (outer, inner) = ("from 1  { depth: 2, rounds: Some(0) }", "from 2  { depth: 1, rounds: Some(0) }");
    // The host waits after it, for the end of the loop.
    for taken in [true, false] {
        let (blocks, queued) = announced(text, &[taken, true], Launched);
        assert_eq!((blocks, queued), (vec![outer.to_owned()], format!("fill copy if:{taken} if:true copy")));
    }
    let (blocks, queued) = announced("if while add end end copy", &[false], Launched);
    assert_eq!((blocks, &*queued), (vec![], "copy if:false copy"));
    // Left to the host, the loop in it is announced by itself.
    let (blocks, queued) = announced(text, &[true, true, false], Queue);
    assert_eq!(
        (blocks, &*queued),
        (vec![outer.to_owned(), inner.to_owned()], "fill copy if:true copy while:true add copy while:false copy")
    );
    // Branches of a loop that the host runs are launched in each round.
    let (blocks, queued) = announced("while if fill end div end", &[true, true, false], Launched);
    assert_eq!(blocks, ["from 1  { depth: 1, rounds: None }"; 2]);
    assert_eq!(queued, "copy while:true div copy while:true div copy while:false");
    // Those of a loop that a stream captures are not.
    assert_eq!(
        announced("while if fill end end", &[true, false, false], Queue).0,
        ["from 0  { depth: 2, rounds: Some(0) }"]
    );
}

#[test]
fn loops_of_commands_are_bounded_and_can_be_stopped() {
    let sequence = with_blocks(1).expect("blocks that end");
    let (result, _) = run_blocks(&sequence, &[true, false, true]);
    assert_eq!(result, Err(SequenceError::Rounds { step: 0, rounds: 1 }));
    let stops = Arc::new(AtomicBool::new(true));
    let stopped = with_blocks(9).expect("blocks that end").stopped_by(stops.clone());
    assert_eq!(run_blocks(&stopped, &[true]).0, Err(SequenceError::Stopped { step: 0 }));
    // A loop that has ended by itself was not stopped, and neither is a branch.
    assert_eq!(run_blocks(&stopped, &[false]).0, Ok(()));
    stops.store(false, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(run_blocks(&stopped, &[true, true, false]).0, Ok(()));
}
