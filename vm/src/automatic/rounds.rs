//! Rounds: a sequence that follows itself again and again is joined to a longer one, so that one run stands for several rounds.
//!
//! A run costs about as much as a few calls, whatever it runs, and the shortest repetition is found first. So a loop of short rounds would pay
//! for a run every few calls. Where the loop ends within a joined sequence, or goes on differently, the rounds that are complete are
//! submitted as runs of the sequence of one round: joining loses nothing.

use crate::automatic::call::Call;
use crate::automatic::sequence::Sequence;

/// A sequence is joined once it was replayed this often in a row, with nothing between: a loop of a hundred rounds is over before that pays.
const PATIENCE: u64 = 128;

/// The most calls of a joined sequence. Of more results that are held back, a thread would not keep the allocations for the next ones.
const LONGEST: usize = 16;

/// How often one sequence is joined: again, where the loop goes on from another call than the one with which the rounds began that were joined.
const MOST_JOINED: u64 = 4;

/// A joined sequence is given up if it was not whole this much more often than it was.
pub(super) const MOST_BROKEN: u64 = 16;

/// The replays of one sequence that followed each other directly.
#[derive(Debug, Default)]
pub(super) struct Row {
    /// The number of the sequence.
    sequence: usize,
    replays: u64,
    /// The number of the entry of the history that comes next, if nothing comes between.
    next: u64,
    /// The calls of the last replays, which are to be joined.
    calls: Vec<Call>,
}

impl Row {
    /// Adds a replay of the sequence of this number, whose entry in the history is `entry`. Returns the sequence of several rounds that it completes.
    /// `calls` gives its calls.
    pub(super) fn add(
        &mut self,
        (number, sequence): (usize, &mut Sequence),
        entry: u64,
        calls: impl FnOnce(&Sequence) -> Vec<Call>,
    ) -> Option<Sequence> {
        if (self.sequence, self.next) != (number, entry) {
            *self = Row { sequence: number, ..Row::default() };
        }
        self.replays += 1;
        self.next = entry + 1;
        let rounds = LONGEST / sequence.steps.len();
        if sequence.joined == MOST_JOINED || rounds < 2 {
            return None;
        }
        // The next time, it begins with another round.
        let patience = PATIENCE + sequence.joined * (rounds as u64 - 1);
        if self.replays <= patience {
            return None;
        }
        self.calls.extend(calls(sequence));
        if self.calls.len() < rounds * sequence.steps.len() {
            return None;
        }
        sequence.joined += 1;
        self.replays = 0;
        join((number, sequence), &std::mem::take(&mut self.calls))
    }
}

/// The rounds of a joined sequence.
#[derive(Debug)]
pub(super) struct Rounds {
    /// The number of the sequence of one round.
    pub(super) of: usize,
    /// For each round, by the objects of a sequence of one, the objects of this one.
    objects: Vec<Vec<usize>>,
}

impl Rounds {
    /// The objects of a round, by those of a sequence of one.
    pub(super) fn round(&self, number: usize) -> &[usize] {
        &self.objects[number]
    }
}

/// The sequence of the calls of several rounds. `None` if its objects are not those of the rounds, such as where one round uses a part of a storage
/// that another one writes.
fn join((number, of): (usize, &Sequence), calls: &[Call]) -> Option<Sequence> {
    let mut joined = Sequence::new(calls)?;
    let mut objects = Vec::new();
    for steps in joined.steps.chunks(of.steps.len()) {
        let mut round = vec![None; of.kinds.len()];
        let operands = of.steps.iter().flat_map(|step| &step.operands);
        for (operand, own) in operands.zip(steps.iter().flat_map(|step| &step.operands)) {
            let object = *round[operand.value.0].get_or_insert(own.value.0);
            if object != own.value.0 || operand.layout != own.layout {
                return None;
            }
        }
        let round: Vec<usize> = round.into_iter().collect::<Option<_>>()?;
        if !round.iter().zip(&of.kinds).all(|(object, kind)| joined.kinds[*object].is_alike(kind)) {
            return None;
        }
        objects.push(round);
    }
    joined.rounds = Some(Rounds { of: number, objects });
    Some(joined)
}

#[cfg(test)]
mod tests {
    use std::panic::Location;

    use streamvm_ep::{Access, DType, DeviceId, Layout, MemoryKind, Op, Params, Shape};
    use streamvm_instructions::Place;
    use streamvm_program::Work;
    use streamvm_stream::{StreamKey, StreamType};

    use super::*;
    use crate::automatic::call::OwnOperand;
    use crate::automatic::objects::Operand;

    const STORAGE: [usize; 2] = [4, 2];

    /// A call that reads these rows of a storage of four, and writes all of another, which it makes if that is new.
    fn call(source: u64, rows: std::ops::Range<usize>, (target, is_new): (u64, bool)) -> Call {
        let storage = Shape::new(&STORAGE).expect("a shape");
        let whole = Layout::contiguous(storage);
        let part = whole.slice(0, rows).expect("in range");
        let operand = |resource, is_new, access, layout| {
            let (dtype, place, memory) = (DType::F32, Place::Host, MemoryKind::Device);
            OwnOperand::new(&Operand { resource, is_new, access, layout, dtype, place, memory, storage: &storage })
        };
        let operands = [operand(source, false, Access::Read, &part), operand(target, is_new, Access::Write, &whole)];
        let operands = operands.into_iter().collect();
        let stream = StreamKey::new(DeviceId::cpu(0), StreamType::Compute, 0);
        Call { work: Work::Call(Op::Neg, Params::default()), stream, location: Location::caller(), operands }
    }

    fn joined(one: [Call; 2], rounds: &[Call]) -> Option<Sequence> {
        join((7, &Sequence::new(&one).expect("a sequence")), rounds)
    }

    #[test]
    fn a_round_has_the_objects_of_its_calls() {
        let round = |begin: u64| [call(begin, 0..4, (begin + 1, true)), call(begin + 1, 0..4, (begin + 2, true))];
        let rounds = [round(10), round(12), round(14)].concat();
        let joined = joined(round(1), &rounds).expect("it is joined");
        let of = joined.rounds.expect("its rounds");
        assert_eq!((joined.steps.len(), of.of), (6, 7));
        assert_eq!([of.round(0), of.round(1), of.round(2)], [[0, 1, 2], [2, 3, 4], [4, 5, 6]]);
    }

    #[test]
    fn rounds_that_use_a_storage_in_other_ways_are_not_joined() {
        // Each round reads a part, and writes another storage.
        let round = |source, target| [call(source, 1..2, (target, false)), call(source, 2..3, (target, false))];
        assert!(joined(round(1, 2), &[round(1, 2), round(1, 2)].concat()).is_some());
        assert!(joined(round(1, 2), &[round(1, 2), round(3, 4)].concat()).is_some());
        // The second reads parts of what the first wrote: there these are views of a whole storage.
        assert!(joined(round(1, 2), &[round(1, 2), round(2, 3)].concat()).is_none());
        // The second writes a storage of which the first read parts.
        assert!(joined(round(1, 2), &[round(1, 2), round(3, 1)].concat()).is_none());
    }
}
