//! Branches: steps of a sequence that lanes of a stream run side by side.
//!
//! The steps of a branch run one after the other on one lane. A branch comes after the earlier branches of its lane, and after those of other lanes
//! that it names. A stream without lanes queues all steps in the order of the sequence, in which each branch comes after those that it waits for.

use std::ops::Range;

use smallvec::SmallVec;

use crate::errors::sequence_error::SequenceError;

/// Neighbouring steps that one lane runs in their order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SequenceBranch {
    /// The steps, as a range of those of the sequence.
    pub steps: Range<usize>,
    /// The lane; 0 is the stream itself.
    pub lane: usize,
    /// The branches of other lanes that it waits for, which come earlier.
    pub after: Vec<usize>,
}

/// A branch, with the number of the mark after its last step, if others wait for it.
#[derive(Clone, Debug)]
struct Branch {
    of: SequenceBranch,
    mark: Option<usize>,
}

/// The branches of a sequence in the order of their steps; none if all steps run on one lane.
#[derive(Clone, Debug, Default)]
pub(super) struct Branches(Vec<Branch>);

/// A branch, or a part of it, as one call queues it.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) steps: Range<usize>,
    pub(super) lane: usize,
    /// The marks that it waits for.
    pub(super) behind: SmallVec<[usize; 8]>,
    /// The mark to set after its steps.
    pub(super) mark: Option<usize>,
}

impl Branches {
    /// Branches that [`check`] accepts.
    ///
    /// # Errors
    /// [`SequenceError::Branches`]
    pub(super) fn new(branches: Vec<SequenceBranch>, steps: usize) -> Result<Branches, SequenceError> {
        check(&branches, steps)?;
        Ok(Branches(with_marks(branches)))
    }

    /// Whether all steps run on one lane.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether one branch has all of these steps.
    pub(super) fn holds_together(&self, steps: &Range<usize>) -> bool {
        self.within(steps).count() <= 1
    }

    /// How many lanes these steps need: one if they are all on one lane, whichever it is.
    pub(super) fn lanes(&self, steps: &Range<usize>) -> usize {
        let mut lanes = self.within(steps).map(|branch| branch.of.lane);
        let first = lanes.next().unwrap_or(0);
        let (mut most, mut is_one) = (first, true);
        for lane in lanes {
            (most, is_one) = (most.max(lane), is_one && lane == first);
        }
        if is_one { 1 } else { most + 1 }
    }

    /// The branches as far as they have these steps. Everything before the steps is over for all lanes, so nothing waits for it.
    pub(super) fn turns<'b>(&'b self, steps: &Range<usize>) -> impl Iterator<Item = Turn> + use<'b> {
        let Range { start, end } = *steps;
        self.within(steps).map(move |Branch { of, mark }| Turn {
            steps: of.steps.start.max(start)..of.steps.end.min(end),
            lane: of.lane,
            behind: {
                let here = of.after.iter().map(|&other| &self.0[other]).filter(|other| other.of.steps.end > start);
                here.filter_map(|other| other.mark).collect()
            },
            mark: mark.filter(|_| of.steps.end <= end),
        })
    }

    /// The calls of a driver that the lanes of these steps need where no graph has them: records of events, and waits. One fork, a join of each lane, and a mark
    /// and a wait for each edge between lanes.
    pub(super) fn calls(&self, steps: &Range<usize>) -> usize {
        let lanes = self.lanes(steps);
        if lanes < 2 {
            return 0;
        }
        let edges = self.turns(steps).map(|turn| turn.behind.len() + usize::from(turn.mark.is_some()));
        1 + 3 * (lanes - 1) + edges.sum::<usize>()
    }

    /// The bytes that they take on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        let after: usize = self.0.iter().map(|branch| size_of_val(branch.of.after.as_slice())).sum();
        size_of_val(self.0.as_slice()) + after
    }

    /// The branches that have some of these steps.
    fn within<'b>(&'b self, steps: &Range<usize>) -> impl Iterator<Item = &'b Branch> + use<'b> {
        let first = self.0.partition_point(|branch| branch.of.steps.end <= steps.start);
        let end = steps.end;
        self.0[first..].iter().take_while(move |branch| branch.of.steps.start < end)
    }
}

/// Checks that branches have all `steps` steps, each once and in order, and that each comes after earlier ones.
///
/// # Errors
/// [`SequenceError::Branches`]
pub fn check(branches: &[SequenceBranch], steps: usize) -> Result<(), SequenceError> {
    let mut next = 0;
    let count = branches.len();
    for (number, SequenceBranch { steps, lane, after }) in branches.iter().enumerate() {
        let refused = |what: String| Err(SequenceError::Branches { step: next, what });
        if steps.start != next || steps.is_empty() {
            return refused(format!("branch {number} has the steps {steps:?}, and the next step is {next}"));
        }
        if *lane >= count {
            return refused(format!(
                "branch {number} is on lane {lane}: lanes count from 0, and there are at most as many as branches, which are {count}"
            ));
        }
        if let Some(late) = after.iter().find(|&&other| other >= number) {
            return refused(format!("branch {number} waits for branch {late}, which does not come earlier"));
        }
        next = steps.end;
    }
    if next != steps {
        let what = format!("the branches end with step {next} of {steps}");
        return Err(SequenceError::Branches { step: next, what });
    }
    Ok(())
}

/// Gives each branch that others wait for a mark, whose number is free again after the last of these.
fn with_marks(branches: Vec<SequenceBranch>) -> Vec<Branch> {
    let mut last_wait = vec![None; branches.len()];
    for (number, branch) in branches.iter().enumerate() {
        branch.after.iter().for_each(|&other| last_wait[other] = Some(number));
    }
    let (mut marked, mut free, mut marks): (Vec<Branch>, Vec<usize>, usize) = (Vec::new(), Vec::new(), 0);
    for (number, of) in branches.into_iter().enumerate() {
        let over = of.after.iter().filter(|&&other| last_wait[other] == Some(number));
        free.extend(over.filter_map(|&other| marked[other].mark));
        free.sort_unstable_by(|one, other| other.cmp(one));
        free.dedup();
        let mark = last_wait[number].map(|_| {
            free.pop().unwrap_or_else(|| {
                marks += 1;
                marks - 1
            })
        });
        marked.push(Branch { of, mark });
    }
    marked
}

#[cfg(test)]
mod tests {
    use super::*;

    fn branch(steps: Range<usize>, lane: usize, after: &[usize]) -> SequenceBranch {
        SequenceBranch { steps, lane, after: after.to_vec() }
    }

    /// Steps, lane, the marks that it waits for, and its own.
    type Row = (Range<usize>, usize, Vec<usize>, Option<usize>);

    fn turns(branches: &Branches, steps: Range<usize>) -> Vec<Row> {
        let turn = |it: Turn| (it.steps, it.lane, it.behind.to_vec(), it.mark);
        branches.turns(&steps).map(turn).collect()
    }

    #[test]
    fn each_branch_waits_for_the_marks_of_others_and_marks_are_used_again() -> Result<(), SequenceError> {
        let branches = Branches::new(
            vec![
                branch(0..2, 0, &[]),
                branch(2..3, 1, &[]),
                branch(3..5, 0, &[1]),
                branch(5..6, 1, &[0, 2]),
                branch(6..7, 0, &[3]),
            ],
            7,
        )?;
        let expected = [
            (0..2, 0, vec![], Some(0)),
            (2..3, 1, vec![], Some(1)),
            (3..5, 0, vec![1], Some(1)),
            (5..6, 1, vec![0, 1], Some(0)),
            (6..7, 0, vec![0], None),
        ];
        assert_eq!(turns(&branches, 0..7), expected);
        // A part begins where everything before it is over, and sets no mark within a branch.
        assert_eq!(turns(&branches, 4..6), [(4..5, 0, vec![], Some(1)), (5..6, 1, vec![1], Some(0))]);
        assert_eq!(turns(&branches, 0..1), [(0..1, 0, vec![], None)]);
        assert_eq!([0..7, 4..6, 2..3, 0..2].map(|steps| branches.lanes(&steps)), [2, 2, 1, 1]);
        // A fork and a join are a record and a wait each; then there are the marks, and the waits for them.
        assert_eq!([0..7, 4..6, 2..3].map(|steps| branches.calls(&steps)), [4 + 4 + 4, 4 + 2 + 1, 0]);
        assert_eq!([3..5, 0..1, 1..3].map(|steps| branches.holds_together(&steps)), [true, true, false]);
        Ok(())
    }

    #[test]
    fn branches_have_each_step_once_and_wait_for_earlier_ones() {
        for (branches, step, words) in [
            (vec![branch(0..2, 0, &[]), branch(1..3, 1, &[])], 2, "branch 1 has the steps 1..3"),
            (vec![branch(0..1, 0, &[]), branch(1..1, 1, &[])], 1, "branch 1 has the steps 1..1"),
            (vec![branch(0..2, 0, &[])], 2, "end with step 2 of 3"),
            (vec![branch(0..2, 0, &[]), branch(2..3, 2, &[])], 2, "branch 1 is on lane 2"),
            (vec![branch(0..2, 0, &[1]), branch(2..3, 1, &[])], 0, "waits for branch 1"),
        ] {
            let error = Branches::new(branches, 3).expect_err("they are refused");
            let SequenceError::Branches { step: found, what } = &error else { panic!("{error}") };
            assert!(*found == step && what.contains(words), "{error}");
        }
    }
}
