//! The calls of one thread: which are held back, and what becomes of the next one.
//!
//! Calls are held back while they are those of a sequence, from its first call on. A sequence that is complete waits for the next call, or for a
//! boundary, because only then is it known which of its results can still be used: a function that ends drops its temporaries behind its
//! last call.

use std::borrow::Borrow;
use std::sync::Arc;

use smallvec::SmallVec;
use streamvm_instructions::{Batch, Declared, Error, Instruction, Resource, Tensor, Var};

use crate::automatic::automatic_programs::Counters;
use crate::automatic::call::{self, Call, OwnOperand};
use crate::automatic::held::{Held, is_out_of_memory, may_be_repeated};
use crate::automatic::history::History;
use crate::automatic::replay::replay;
use crate::automatic::sequences::Sequences;
use crate::engine::core::Engine;
use crate::engine::submission::Full;
use crate::sync::Ordering;

/// What the calls of a thread need of their engine.
pub(super) struct Context<'a> {
    pub(super) engine: &'a Arc<Engine>,
    pub(super) counters: &'a Counters,
    /// Makes serial numbers.
    pub(super) next_serial: &'a dyn Fn() -> u64,
    /// Notes why a tensor that is still used was never written.
    pub(super) note_refused: &'a dyn Fn(u64, Error),
}

/// How held-back calls are submitted. A submission never waits: the submitter has taken the calls out of their slot.
#[derive(Copy, Clone, Debug)]
pub(super) struct Attempt {
    pub(super) full: Full,
    /// What becomes of a call that finds too little memory.
    pub(super) memory: Memory,
}

/// See [`Attempt`].
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Memory {
    /// It stays held back, unless it is the call of this number and everything that was pending has passed since it was tried.
    MayCome { drained_at: Option<usize> },
    /// It is refused.
    WillNotCome,
}

impl Attempt {
    /// Whether the call of this number, which was not submitted because of this error, stays held back.
    fn may_be_repeated(self, number: usize, error: &Error) -> bool {
        if !is_out_of_memory(error) {
            return may_be_repeated(error);
        }
        match self.memory {
            Memory::MayCome { drained_at } => drained_at != Some(number),
            Memory::WillNotCome => false,
        }
    }
}

impl Context<'_> {
    fn serial(&self, resource: &Resource) -> u64 {
        resource.serial(self.next_serial)
    }
}

/// What became of a call.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Taken {
    /// It is held back.
    All,
    /// The lines of its batch before this one are held back. The caller is to submit all that is held back, and to try this line again.
    Behind(usize),
    /// The lines of its batch before this one were held back, and are submitted; no call is held back now. The caller is to submit the others.
    UpTo(usize),
}

/// The state of one thread.
#[derive(Debug, Default)]
pub(super) struct ThreadCalls {
    history: History,
    sequences: Sequences,
    held: Held,
    /// The sequence whose first calls are held back.
    following: Option<Following>,
    /// The first error of the calls that were held back and are refused, until the last of them is submitted.
    refusal: Option<Error>,
    /// The error of a call that was refused when the thread asked for a tensor, for the wait that follows.
    pub(super) untold: Option<Error>,
    /// How many calls were taken, so that one can see whether the thread goes on.
    pub(super) taken: u64,
}

#[derive(Copy, Clone, Debug)]
struct Following {
    sequence: usize,
    /// How many calls are held back, or were.
    calls: usize,
    /// How many of them were submitted, by a submission of all that could not go on.
    submitted: usize,
}

impl ThreadCalls {
    /// Whether calls are held back.
    pub(super) fn holds(&self) -> bool {
        self.following.is_some()
    }

    /// Takes the lines of an eager call from `first` on. They are calls of a sequence one by one.
    pub(super) fn take<B: Batch>(&mut self, batch: &B, first: usize, context: &Context<'_>) -> Taken {
        self.taken += 1;
        if self.following.is_some_and(|following| following.submitted > 0) {
            return Taken::Behind(first);
        }
        for (line, instruction) in batch.instructions().iter().enumerate().skip(first) {
            if self.hold(instruction, batch.uses(instruction), context) {
                continue;
            }
            if self.holds() {
                return Taken::Behind(line);
            }
            self.remember(batch, line, context);
            return Taken::UpTo(line);
        }
        Taken::All
    }

    /// Whether a held-back call uses the resource.
    pub(super) fn uses(&mut self, resource: &Resource) -> bool {
        self.held.uses(resource)
    }

    /// How many calls are held back that are not submitted yet, and how many of the sequence were submitted.
    pub(super) fn left_and_submitted(&self) -> (usize, usize) {
        self.following.map_or((0, 0), |following| (following.calls - following.submitted, following.submitted))
    }

    /// Notes that something else came than an eager call. No call is held back.
    pub(super) fn note_boundary(&mut self, context: &Context<'_>) {
        self.taken += 1;
        if self.history.push_boundary() {
            self.look_for_sequences(context);
        }
    }

    /// Holds an instruction back, if it goes on with a sequence, or begins one and nothing is held back.
    fn hold<T: Borrow<Tensor>, V: Borrow<Var>>(
        &mut self,
        instruction: &Instruction,
        uses: &[Declared<T, V>],
        context: &Context<'_>,
    ) -> bool {
        let ThreadCalls { sequences, held, following, .. } = self;
        let calls = following.map_or(0, |it| it.calls);
        let mut goes_on =
            |number: usize| held.extend((sequences.get(number), calls), instruction, uses, context.engine);
        let number = match following.map(|it| it.sequence) {
            Some(followed) if goes_on(followed) => Some(followed),
            Some(followed) => {
                let followed_one = sequences.get(followed);
                let begins_as =
                    |number: &usize| *number != followed && sequences.get(*number).begins_as(followed_one, calls);
                let mut others = sequences.at(followed_one.location()).filter(begins_as);
                others.find(|number| goes_on(*number))
            }
            None => sequences.at(instruction.location).find(|number| goes_on(*number)),
        };
        let Some(number) = number else { return false };
        if calls == 0 {
            sequences.touch(number);
        }
        *following = Some(Following { sequence: number, calls: calls + 1, submitted: 0 });
        true
    }

    /// Submits the calls that are held back: as a run, if they are a whole sequence, or else one by one.
    ///
    /// # Errors
    /// Of an error after which calls are still held back, the caller may remove the reason and submit again. Otherwise it is the first for which
    /// a call was refused.
    pub(super) fn submit_held(&mut self, attempt: Attempt, context: &Context<'_>) -> Result<(), Error> {
        let Some(Following { sequence: followed, calls, submitted }) = self.following else { return Ok(()) };
        if submitted == 0
            && let Some(number) = self.sequences.of_length(followed, calls)
        {
            let sequence = self.sequences.get_mut(number);
            match replay(&self.held, sequence, attempt.full, context.engine) {
                Ok(true) => {
                    sequence.replays += 1;
                    context.counters.replays.fetch_add(1, Ordering::Relaxed);
                    context.counters.calls_replayed.fetch_add(calls as u64, Ordering::Relaxed);
                    self.held.clear();
                    self.following = None;
                    self.history.push_replay(number);
                    return Ok(());
                }
                Err(error) if attempt.may_be_repeated(0, &error) => return Err(error),
                // There is no program, or too little memory for all results at once.
                Ok(false) | Err(_) => {}
            }
        }
        self.submit_one_by_one(attempt, context)
    }

    /// Submits the calls that are held back one by one, and adds them to the history.
    ///
    /// # Errors
    /// As [`submit_held`](ThreadCalls::submit_held).
    fn submit_one_by_one(&mut self, attempt: Attempt, context: &Context<'_>) -> Result<(), Error> {
        let Some(following) = &mut self.following else { return Ok(()) };
        let number = following.sequence;
        let sequence = self.sequences.get(number);
        while following.submitted < following.calls {
            let step = &sequence.steps[following.submitted];
            let at = following.submitted;
            let repeats = |error: &Error| attempt.may_be_repeated(at, error);
            match self.held.submit(step, sequence.stream, (attempt.full, &repeats), context.engine) {
                Err(error) if repeats(&error) => return Err(error),
                Err(error) => self.refusal = self.refusal.take().or(Some(error)),
                Ok(()) => {}
            }
            following.submitted += 1;
        }
        let serial = |resource: &Resource| context.serial(resource);
        let calls = self.held.calls(sequence.stream, &sequence.steps[..following.calls], serial);
        self.following = None;
        self.held.refuse().for_each(|(resource, error)| (context.note_refused)(serial(resource), error));
        self.held.clear();
        context.counters.fallbacks.fetch_add(1, Ordering::Relaxed);
        self.sequences.fell_back(number);
        calls.into_iter().for_each(|call| self.history.push(call));
        self.look_for_sequences(context);
        self.refusal.take().map_or(Ok(()), Err)
    }

    /// Adds the calls of a batch from line `first` on to the history. They are not submitted yet.
    fn remember<B: Batch>(&mut self, batch: &B, first: usize, context: &Context<'_>) {
        let serial = |resource: &Resource| context.serial(resource);
        let mut made: SmallVec<[u64; 4]> = SmallVec::new();
        for instruction in &batch.instructions()[first..] {
            let mut operands = SmallVec::new();
            for u in batch.uses(instruction) {
                let operand = call::operand(u, context.engine, serial, |serial| made.contains(&serial));
                operands.extend(operand.as_ref().map(OwnOperand::new));
            }
            made.extend(operands.iter().filter_map(OwnOperand::made));
            match call::work_of(instruction) {
                Some(work) if operands.len() == batch.uses(instruction).len() => {
                    let Instruction { stream, location, .. } = *instruction;
                    self.history.push(Call { work, stream, location, operands });
                }
                _ => _ = self.history.push_boundary(),
            }
        }
        self.look_for_sequences(context);
    }

    /// Adds the sequences that have come twice.
    fn look_for_sequences(&mut self, context: &Context<'_>) {
        for sequence in self.history.repeated() {
            if self.sequences.add(sequence) {
                context.counters.sequences.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}
