//! The plan of a compiled program, its memory and its critical sections, checked from its steps alone: the check shares no code with the passes that made the plan.

use std::collections::HashMap;
use std::ops::Range;

use streamvm::ep::Footprint;
use streamvm::program::{BufferRole, Compiled, CompiledStep, Located, Segment, Storage, ValueId, Work};
use streamvm::{Op, StreamType};

/// A value in an arena.
struct Placed {
    value: ValueId,
    /// Its arena, as an index of a buffer, and its offset there.
    place: (usize, usize),
    bytes: usize,
    /// From the first step that uses it to the last; to the end of a loop that uses it, if it was made before the loop.
    used: Range<usize>,
    /// As `used`, with all steps that run together with one of these, unless their kernel has the value in a register.
    kept: Range<usize>,
}

impl Placed {
    fn overlaps(&self, other: &Placed) -> bool {
        let (arena, offset) = self.place;
        let (other_arena, other_offset) = other.place;
        arena == other_arena && offset < other_offset + other.bytes && other_offset < offset + self.bytes
    }
}

/// Checks that values of an arena which are needed at one time have no byte in common, unless one took over the memory of the other, that no step
/// moves over the begin or the end of a critical section, and that lanes of a segment wait for each other.
///
/// # Errors
/// The first two values that do, or the step, as a text with the plan.
pub fn check(compiled: &Compiled) -> Result<(), String> {
    check_sections(compiled)?;
    check_touches(compiled)?;
    compiled.segments().iter().try_for_each(|segment| check_branches(compiled, segment))?;
    let placed = placed(compiled);
    for fused in compiled.fused() {
        let outside = |it: &&Placed| it.used.start < fused.steps.start || fused.steps.end < it.used.end;
        if let Some(it) = placed.iter().filter(|it| fused.is_unstored(it.value)).find(outside) {
            return Err(format!(
                "{:?} is not stored by {:?}, and is used in {:?} of\n{compiled}",
                it.value, fused.steps, it.used
            ));
        }
    }
    for (number, first) in placed.iter().enumerate() {
        for second in &placed[number + 1..] {
            let both_kept = first.kept.start < second.kept.end && second.kept.start < first.kept.end;
            if both_kept && first.overlaps(second) && !takes_over(compiled, first, second) {
                let named = |it: &Placed| format!("{:?} at {:?}, used in {:?}", it.value, it.place, it.used);
                return Err(format!("{} and {} share memory in\n{compiled}", named(first), named(second)));
            }
        }
    }
    Ok(())
}

/// Checks that the steps between the begin and the end of a critical section are those that were recorded there.
fn check_sections(compiled: &Compiled) -> Result<(), String> {
    let position_of = |number: usize| compiled.steps().position(|step| step.number == number);
    let mut begun = None;
    for (number, _) in compiled.program().steps.iter().enumerate().filter(|(_, step)| step.work.section().is_some()) {
        let Some(position) = position_of(number) else { continue };
        let Some((first, begin)) = begun.take() else {
            begun = Some((number, position));
            continue;
        };
        let is_misplaced = |(at, step): &(usize, CompiledStep<'_>)| {
            let (is_in, is_between) = ((first..=number).contains(&step.number), (begin..=position).contains(at));
            is_in != is_between
        };
        if let Some((at, step)) = compiled.steps().enumerate().find(is_misplaced) {
            let number = step.number;
            return Err(format!(
                "step %{at}, recorded as {number}, moved over an end of a critical section in\n{compiled}"
            ));
        }
    }
    Ok(())
}

/// Checks that each touch comes after the steps that were recorded before it on its stream, and before the later ones, and that its segment waits for those of other streams
/// which the compiler has chosen for such steps.
fn check_touches(compiled: &Compiled) -> Result<(), String> {
    let segment_of = |position: usize| {
        compiled.segments().iter().position(|segment| segment.steps.contains(&position)).expect("each step is in one")
    };
    // Which segments have passed when each one runs: by the order of a stream, and by waits.
    let mut passed: Vec<Vec<bool>> = Vec::new();
    for (number, segment) in compiled.segments().iter().enumerate() {
        let mut own = vec![false; compiled.segments().len()];
        let of_stream = (0..number).filter(|&other| compiled.segments()[other].stream == segment.stream);
        for other in of_stream.chain(segment.after.iter().chain(&segment.waits).copied()) {
            own[other] = true;
            own.iter_mut().zip(&passed[other]).for_each(|(own, of_other)| *own |= of_other);
        }
        passed.push(own);
    }
    let recorded = &compiled.program().steps;
    for (touch, step) in compiled.steps().enumerate() {
        let Work::Touch(device) = *step.work else { continue };
        let lane = recorded[step.number].lane;
        for (position, other) in compiled.steps().enumerate() {
            let (of_other, segment) = (&recorded[other.number], segment_of(position));
            let stream = compiled.segments()[segment].stream;
            let is_of_stream =
                (stream.device, stream.stream_type, of_other.lane) == (device, StreamType::Compute, lane);
            // The lane of a block is that of the steps in it.
            if !is_of_stream || of_other.work.is_mark() || position == touch {
                continue;
            }
            let (first, second) =
                if other.number < step.number { (segment, segment_of(touch)) } else { (segment_of(touch), segment) };
            if !passed[second][first] {
                return Err(format!(
                    "the touch %{touch} and %{position}, which are recorded on one stream, have no order in\n{compiled}"
                ));
            }
        }
    }
    Ok(())
}

/// Checks that the branches of a segment have its steps, each once and in order, and that two of them which use the same bytes, one of them writing, come one
/// after the other.
fn check_branches(compiled: &Compiled, segment: &Segment) -> Result<(), String> {
    let branches = &segment.branches;
    let parts: Vec<usize> = branches.iter().flat_map(|branch| branch.steps.clone()).collect();
    if !branches.is_empty() && parts != segment.steps.clone().collect::<Vec<_>>() {
        return Err(format!("branches have the steps {parts:?} of {:?} in\n{compiled}", segment.steps));
    }
    // For each branch those that have passed when it runs.
    let mut passed: Vec<Vec<bool>> = Vec::new();
    for (number, branch) in branches.iter().enumerate() {
        let mut own = vec![false; branches.len()];
        let before = (0..number).filter(|&other| branches[other].lane == branch.lane || branch.after.contains(&other));
        for other in before {
            own[other] = true;
            own.iter_mut().zip(&passed[other]).for_each(|(own, of_other)| *own |= of_other);
        }
        for other in (0..number).filter(|&other| !own[other]) {
            if let Some((one, two)) = conflict(compiled, &branches[other].steps, &branch.steps) {
                return Err(format!("steps %{one} and %{two} on two lanes have no order in\n{compiled}"));
            }
        }
        passed.push(own);
    }
    Ok(())
}

/// Two steps, one of each range, that use the same bytes of a buffer, one of them writing.
fn conflict(compiled: &Compiled, first: &Range<usize>, second: &Range<usize>) -> Option<(usize, usize)> {
    let bytes = |operand: &Located<'_>| match operand.storage {
        Storage::Buffer { index, offset } => {
            Some((index, Footprint::scaled(operand.layout, offset, operand.dtype.size())))
        }
        Storage::Scratch(_) => None,
    };
    let meet = |one: &Located<'_>, other: &Located<'_>| {
        let both = bytes(one).zip(bytes(other)).filter(|_| one.access.writes() || other.access.writes());
        both.is_some_and(|((buffer, bytes), (other_buffer, other_bytes))| {
            buffer == other_buffer && bytes.overlaps(&other_bytes)
        })
    };
    for one in first.clone() {
        for two in second.clone() {
            let [of_one, of_two] = [one, two].map(|position| compiled.step(position).operands);
            if of_one.iter().any(|one| of_two.iter().any(|other| meet(one, other))) {
                return Some((one, two));
            }
        }
    }
    None
}

/// The values in arenas, in the order of their first uses.
fn placed(compiled: &Compiled) -> Vec<Placed> {
    let is_arena = |index: usize| matches!(compiled.buffers()[index].role, BufferRole::Arena(_));
    let mut placed: Vec<Placed> = Vec::new();
    let mut known: HashMap<ValueId, usize> = HashMap::new();
    for (position, step) in compiled.steps().enumerate() {
        for operand in &step.operands {
            let place = match operand.storage {
                Storage::Buffer { index, offset } if is_arena(index) => (index, offset),
                _ => continue,
            };
            let (value, bytes) = (operand.value, compiled.program().value(operand.value).bytes());
            let used = position..position + 1;
            let number = *known.entry(value).or_insert_with(|| {
                placed.push(Placed { value, place, bytes, kept: used.clone(), used });
                placed.len() - 1
            });
            placed[number].used.end = position + 1;
        }
    }
    for range in loops(&compiled.steps().collect::<Vec<_>>()) {
        for operand in compiled.steps_of(range.clone()).flat_map(|step| step.operands) {
            if let Some(placed) = known.get(&operand.value).map(|&number| &mut placed[number])
                && placed.used.start < range.start
            {
                placed.used.end = placed.used.end.max(range.end);
            }
        }
    }
    for it in &mut placed {
        it.kept = it.used.clone();
        // What a kernel has in registers is in memory only while its own steps run one by one.
        for together in compiled.fused().iter().filter(|fused| !fused.is_unstored(it.value)).map(|fused| &fused.steps) {
            if it.used.start < together.end && together.start < it.used.end {
                it.kept = it.kept.start.min(together.start)..it.kept.end.max(together.end);
            }
        }
    }
    placed
}

/// The steps of each loop with the marks at both ends, inner loops first.
fn loops(steps: &[CompiledStep<'_>]) -> Vec<Range<usize>> {
    let (mut open, mut found) = (Vec::new(), Vec::new());
    for (position, step) in steps.iter().enumerate() {
        match step.work {
            Work::If | Work::While => open.push(position),
            Work::End => {
                let begin: Option<usize> = open.pop();
                found.extend(begin.filter(|&begin| *steps[begin].work == Work::While).map(|begin| begin..position + 1));
            }
            _ => {}
        }
    }
    found
}

/// Whether `second`, which is used later, may have the memory of `first` although both are kept at one time: the last step that uses `first` is
/// the first that uses `second` or runs before it, and the steps that run together with that one go through the elements of both alike. Then each
/// element of `first` has been read when the element of `second` in its place is written. A registered op in place changes its first input, which `first` then is alone.
fn takes_over(compiled: &Compiled, first: &Placed, second: &Placed) -> bool {
    let meeting = second.used.start;
    if first.place != second.place || first.used.end > meeting + 1 {
        return false;
    }
    let together = compiled.fused().iter().map(|fused| fused.steps.clone()).find(|steps| steps.contains(&meeting));
    let steps: Vec<CompiledStep<'_>> = compiled.steps_of(together.unwrap_or(meeting..meeting + 1)).collect();
    let is_elementwise = |step: &CompiledStep<'_>| match step.work {
        Work::Call(op @ Op::Registered(_), _) if !op.is_elementwise() => {
            let uses = step.operands.iter().enumerate().filter(|(_, operand)| operand.value == first.value);
            op.may_write(0) && uses.map(|(place, _)| place).eq([0])
        }
        Work::Call(op, _) => op.is_elementwise(),
        work => matches!(work, Work::Copy | Work::Fill(_)),
    };
    let view = |operand: Located<'_>| (*operand.layout, operand.dtype.size());
    let operands = steps.iter().flat_map(|step| step.operands.clone());
    let mut views = operands.filter(|operand| [first.value, second.value].contains(&operand.value)).map(view);
    let one = views.next();
    steps.iter().all(is_elementwise) && views.all(|view| Some(view) == one)
}
