//! Blocks of a sequence: which part comes next where a block begins or ends, and how many rounds loops may make.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::errors::sequence_error::SequenceError;
use crate::sequence::step::{SequenceOperand, SequenceStep, SequenceWork};

/// A part of a sequence. `W` is what a sequence runs or queues as a whole.
#[derive(Debug)]
pub enum Part<W> {
    /// Steps that run.
    Work(W),
    /// A block begins.
    Test(Box<Test>),
    /// The part of this number is next.
    Jump(usize),
}

/// The beginning of a block: it is left out, or left, if its condition is false.
#[derive(Debug)]
pub struct Test {
    /// The number of the step.
    pub step: usize,
    /// A bool.
    pub condition: SequenceOperand,
    /// The part that is next if the condition is false.
    otherwise: usize,
    /// Of an `if` with an `else`, the jump after the steps that run if the condition is true.
    then_ends: Option<usize>,
    /// Of a loop, how long it may go on.
    repeats: Option<LoopLimits>,
}

#[derive(Copy, Clone, Debug)]
struct LoopLimits {
    most_rounds: u64,
    most_time: Option<Duration>,
}

/// The rounds that the loops of one run have made.
#[derive(Debug, Default)]
pub struct Rounds {
    made: u64,
    /// When the first of them began, if a loop is bounded in time.
    since: Option<Instant>,
}

/// The parts of a block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Bodies {
    /// Those that run if the condition is true.
    pub(super) first: Range<usize>,
    /// Those that run if it is false.
    pub(super) second: Option<Range<usize>>,
    /// The part after the block.
    pub(super) end: usize,
}

impl Rounds {
    /// So many rounds that were made before, since that time if it matters.
    pub fn after(made: u64, since: Option<Instant>) -> Rounds {
        Rounds { made, since }
    }

    /// When the first of them began, if a loop is bounded in time.
    pub fn since(&self) -> Option<Instant> {
        self.since
    }

    /// How many.
    pub fn made(&self) -> u64 {
        self.made
    }

    /// Takes over the count of a device that has run loops.
    pub(super) fn set_made(&mut self, made: u64) {
        self.made = made;
    }
}

impl Test {
    /// The most rounds of a loop; `None` for another block.
    pub(super) fn most_rounds(&self) -> Option<u64> {
        self.repeats.map(|limits| limits.most_rounds)
    }

    /// Whether its rounds are bounded in time.
    pub(super) fn is_timed(&self) -> bool {
        self.repeats.is_some_and(|limits| limits.most_time.is_some())
    }

    /// Whether steps run if its condition is false.
    pub(super) fn has_else(&self) -> bool {
        self.then_ends.is_some()
    }

    /// The parts of its block; it is part `here` of `parts`.
    pub(super) fn bodies<W>(&self, here: usize, parts: &[Part<W>]) -> Bodies {
        let first = here + 1;
        match self.then_ends {
            // The last part of a loop is the jump to its begin.
            None if self.repeats.is_some() => {
                Bodies { first: first..self.otherwise - 1, second: None, end: self.otherwise }
            }
            None => Bodies { first: first..self.otherwise, second: None, end: self.otherwise },
            Some(jump) => {
                let Part::Jump(end) = parts[jump] else { unreachable!("`mark` has added a jump there") };
                Bodies { first: first..jump, second: Some(self.otherwise..end), end }
            }
        }
    }

    /// The part that is next after this one, which is part `here`, now that its condition is known. Counts the round that a loop begins.
    ///
    /// # Errors
    /// The loop may not go on: [`SequenceError::Rounds`], [`SequenceError::LoopTime`], [`SequenceError::Stopped`].
    #[inline]
    pub fn next(
        &self,
        here: usize,
        is_true: bool,
        rounds: &mut Rounds,
        stops: &AtomicBool,
    ) -> Result<usize, SequenceError> {
        if !is_true {
            return Ok(self.otherwise);
        }
        if let Some(LoopLimits { most_rounds, most_time }) = self.repeats {
            let step = self.step;
            if stops.load(Ordering::Relaxed) {
                return Err(SequenceError::Stopped { step });
            }
            rounds.made += 1;
            if rounds.made > most_rounds {
                return Err(SequenceError::Rounds { step, rounds: most_rounds });
            }
            if let Some(most) = most_time
                && rounds.since.get_or_insert_with(Instant::now).elapsed() > most
            {
                return Err(SequenceError::LoopTime { step, most, rounds: rounds.made - 1 });
            }
        }
        Ok(here + 1)
    }
}

/// A block that has begun and not ended.
#[derive(Debug)]
struct OpenBlock {
    /// The part that begins it: a test, or the jump of an `Else`.
    begin: usize,
    kind: BlockKind,
}

#[derive(PartialEq, Debug)]
enum BlockKind {
    If,
    Else,
    While,
}

/// Parts, while they are made from steps.
#[derive(Debug)]
pub struct Parts<W> {
    all: Vec<Part<W>>,
    open: Vec<OpenBlock>,
}

impl<W> Parts<W> {
    /// No parts.
    #[expect(clippy::new_without_default, reason = "`Default` would ask it of `W`")]
    pub fn new() -> Parts<W> {
        Parts { all: Vec::new(), open: Vec::new() }
    }

    /// Adds work after what is there.
    pub fn work(&mut self, work: W) {
        self.all.push(Part::Work(work));
    }

    /// Adds the beginning or the end of a block: a [mark](SequenceWork::is_mark) that [`SequenceStep::check_form`] has accepted.
    ///
    /// # Errors
    /// [`SequenceError::Blocks`] if no block is there to end.
    pub fn mark(&mut self, number: usize, step: &SequenceStep) -> Result<(), SequenceError> {
        let here = self.all.len();
        let wrong = |what| Err(SequenceError::Blocks { step: number, what });
        // Where a block is left to is known once it ends.
        let unknown = usize::MAX;
        let test = |repeats| {
            let condition = step.operands[0].clone();
            Part::Test(Box::new(Test { step: number, condition, otherwise: unknown, then_ends: None, repeats }))
        };
        match step.work {
            SequenceWork::If => {
                self.open.push(OpenBlock { begin: here, kind: BlockKind::If });
                self.all.push(test(None));
            }
            SequenceWork::While { most_rounds, most_time } => {
                self.open.push(OpenBlock { begin: here, kind: BlockKind::While });
                self.all.push(test(Some(LoopLimits { most_rounds, most_time })));
            }
            SequenceWork::Else => match self.open.pop() {
                Some(OpenBlock { begin, kind: BlockKind::If }) => {
                    self.open.push(OpenBlock { begin: here, kind: BlockKind::Else });
                    self.all.push(Part::Jump(unknown));
                    self.leave_to(begin, here + 1);
                    if let Part::Test(test) = &mut self.all[begin] {
                        test.then_ends = Some(here);
                    }
                }
                _ => return wrong("an else belongs to an if, and ends its block"),
            },
            SequenceWork::End => match self.open.pop() {
                Some(OpenBlock { begin, kind }) => {
                    if kind == BlockKind::While {
                        self.all.push(Part::Jump(begin));
                    }
                    self.leave_to(begin, self.all.len());
                }
                None => return wrong("no block is left to end"),
            },
            _ => unreachable!("the caller adds other steps as work"),
        }
        Ok(())
    }

    /// All parts. `steps` is the number of steps.
    ///
    /// # Errors
    /// [`SequenceError::Blocks`] if a block has not ended.
    pub fn finish(self, steps: usize) -> Result<Vec<Part<W>>, SequenceError> {
        if self.open.is_empty() {
            return Ok(self.all);
        }
        Err(SequenceError::Blocks { step: steps, what: "the steps end within a block" })
    }

    /// Sets the part that follows when the block that begins at `begin` is left.
    fn leave_to(&mut self, begin: usize, part: usize) {
        match &mut self.all[begin] {
            Part::Test(test) => test.otherwise = part,
            Part::Jump(to) => *to = part,
            Part::Work(_) => unreachable!("blocks begin with tests and jumps"),
        }
    }
}
