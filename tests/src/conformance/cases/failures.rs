//! Failures of queued commands: reported once, with the right label, in order, and early enough.
//!
//! A device that runs a command within its call returns the same failures from the call; the cases hold for it too.

use streamvm_ep::{DType, LateCause, LateFailure, Op, Params};

use super::table;
use crate::conformance::lab::{Bench, Buffer, Fail, Lab, ensure, ensure_eq, ensure_matches};
use crate::conformance::lane::Lane;

table! { "failure":
    names_its_command [],
    is_told_once [],
    are_told_in_order [],
    is_told_before_later_places_pass [],
    does_not_stop_its_stream [],
    does_not_stop_other_streams [],
    does_not_hold_up_events [],
    of_two_streams_are_told_apart [],
    nothing_is_told_of_commands_that_are_fine [],
}

/// Operands for a division by zero.
struct Trap {
    zero: Buffer,
    output: Buffer,
}

impl Trap {
    fn new(lab: &Lab, lane: &mut Lane) -> Result<Trap, Fail> {
        let zero = lab.vector(lane, &[0i32, 0])?;
        let output = lab.tensor(DType::I32, &[2])?;
        lane.sync()?;
        Ok(Trap { zero, output })
    }

    /// Issues the division, and records an error that the call itself returns as a failure.
    fn spring(&self, lane: &mut Lane, told: &mut Vec<LateFailure>) {
        if let Err(error) = lane.op(Op::Div, &[&self.zero, &self.zero], &self.output, &Params::default()) {
            let (stream, seq) = lane.last();
            told.push(LateFailure { stream, seq, step: None, cause: LateCause::Device(error) });
        }
    }
}

fn labels(failures: &[LateFailure]) -> Vec<(u32, u64)> {
    failures.iter().map(|failure| (failure.stream, failure.seq)).collect()
}

fn names_its_command(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let trap = Trap::new(&lab, &mut lane)?;
    let fine = lab.tensor(DType::I32, &[2])?;
    let mut told = Vec::new();
    lane.fill(&fine, 1i32)?;
    trap.spring(&mut lane, &mut told);
    let expected = lane.last();
    lane.fill(&fine, 2i32)?;
    let _ = lane.sync();
    told.extend(lab.device.take_failures());
    ensure_eq!(labels(&told), [expected], "stream and number of what failed");
    ensure_matches!(told[0].cause, LateCause::Device(_), "a kernel's failure");
    Ok(())
}

fn is_told_once(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let trap = Trap::new(&lab, &mut lane)?;
    let mut told = Vec::new();
    trap.spring(&mut lane, &mut told);
    let _ = lane.sync();
    told.extend(lab.device.take_failures());
    ensure_eq!(told.len(), 1, "failures of one command");
    let _ = lane.sync();
    ensure_eq!(lab.device.take_failures(), [], "failures once they are told");
    Ok(())
}

fn are_told_in_order(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let trap = Trap::new(&lab, &mut lane)?;
    let fine = lab.tensor(DType::I32, &[2])?;
    let (mut told, mut expected) = (Vec::new(), Vec::new());
    for value in 0..10 {
        trap.spring(&mut lane, &mut told);
        expected.push(lane.last());
        lane.fill(&fine, value)?;
    }
    let _ = lane.sync();
    told.extend(lab.device.take_failures());
    ensure_eq!(labels(&told), expected, "failures of one stream");
    Ok(())
}

fn is_told_before_later_places_pass(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let [mut lane, mut other] = lab.lanes()?;
    let trap = Trap::new(&lab, &mut lane)?;
    for round in 0..10 {
        let mut told = Vec::new();
        trap.spring(&mut lane, &mut told);
        let expected = lane.last();
        let (event, across) = (lab.event(), lab.event());
        lane.record(event)?;
        other.wait(event)?;
        other.record(across)?;
        // Once a later point has passed, on the same stream or through another one, the failure must be reported.
        lab.wait(if round % 2 == 0 { event } else { across })?;
        told.extend(lab.device.take_failures());
        ensure_eq!(labels(&told), [expected], "failures once a later place has passed");
    }
    Ok(())
}

fn does_not_stop_its_stream(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let trap = Trap::new(&lab, &mut lane)?;
    let x = lab.tensor(DType::I32, &[4])?;
    let mut told = Vec::new();
    for value in 0..5 {
        trap.spring(&mut lane, &mut told);
        lane.fill(&x, value)?;
    }
    let _ = lane.sync();
    told.extend(lab.device.take_failures());
    ensure_eq!(told.len(), 5, "failures");
    lab.expect(&mut lane, &x, &[4i32; 4], "commands between failures")
}

fn does_not_stop_other_streams(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let [mut bad, mut good] = lab.lanes()?;
    let trap = Trap::new(&lab, &mut bad)?;
    let x = lab.tensor(DType::I32, &[4])?;
    trap.spring(&mut bad, &mut Vec::new());
    good.fill(&x, 3i32)?;
    lab.expect(&mut good, &x, &[3i32; 4], "another stream than the one that failed")?;
    let _ = bad.sync();
    good.fill(&x, 4i32)?;
    lab.expect(&mut good, &x, &[4i32; 4], "another stream, once the failure is known")
}

fn does_not_hold_up_events(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let [mut bad, mut good] = lab.lanes()?;
    let trap = Trap::new(&lab, &mut bad)?;
    let (x, y) = (lab.tensor(DType::I32, &[4])?, lab.tensor(DType::I32, &[4])?);
    bad.fill(&x, 3i32)?;
    trap.spring(&mut bad, &mut Vec::new());
    bad.fill(&x, 4i32)?;
    let event = lab.event();
    bad.record(event)?;
    good.wait(event)?;
    good.copy(&x, &y)?;
    lab.wait(event)?;
    lab.expect(&mut good, &y, &[4i32; 4], "what was written around a failure")
}

fn of_two_streams_are_told_apart(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lanes = lab.lanes::<2>()?;
    let traps = [Trap::new(&lab, &mut lanes[0])?, Trap::new(&lab, &mut lanes[1])?];
    let (mut told, mut expected) = (Vec::new(), Vec::new());
    for round in 0..6 {
        let at = usize::from(round % 3 == 0);
        traps[at].spring(&mut lanes[at], &mut told);
        expected.push(lanes[at].last());
    }
    for lane in &mut lanes {
        let _ = lane.sync();
    }
    told.extend(lab.device.take_failures());
    let mut found = labels(&told);
    found.sort_unstable();
    expected.sort_unstable();
    ensure_eq!(found, expected, "failures of two streams");
    Ok(())
}

fn nothing_is_told_of_commands_that_are_fine(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let [mut one, mut two] = lab.lanes()?;
    let x = lab.vector(&mut one, &[1f32, 0.0])?;
    let y = lab.tensor(DType::F32, &[2])?;
    for _ in 0..10 {
        // The results are infinite and NaN, which is no failure.
        one.op(Op::Div, &[&x, &x], &y, &Params::default())?;
        one.op(Op::Log, &[&x], &y, &Params::default())?;
        let event = lab.event();
        one.record(event)?;
        two.wait(event)?;
    }
    two.sync()?;
    one.sync()?;
    let told = lab.device.take_failures();
    ensure!(told.is_empty(), "failures of commands that are fine: {told:?}");
    Ok(())
}
