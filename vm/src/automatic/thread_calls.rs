//! The calls of one thread: which are held back, and what becomes of the next one.
//!
//! Calls are held back while they are those of a sequence, from its first call on. A sequence that is complete waits for the next call, or for a
//! boundary, because only then is it known which of its results can still be used: a function that ends drops its temporaries behind its
//! last call.

use std::borrow::Borrow;
use std::sync::Arc;

use smallvec::SmallVec;
use streamvm_instructions::{Batch, Declared, Error, Instruction, Tensor, Var};

use crate::automatic::automatic_programs::Counters;
use crate::automatic::call::{self, Call, OwnOperand, Serials};
use crate::automatic::held::{Held, may_be_repeated};
use crate::automatic::history::History;
use crate::automatic::replay::replay;
use crate::automatic::sequences::Sequences;
use crate::engine::core::Engine;
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

impl Context<'_> {
    fn serials(&self) -> Serials<'_> {
        Serials { next: self.next_serial }
    }
}

/// What became of a call.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Taken {
    /// It is held back.
    All,
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

    /// Takes an eager call. The instructions of its batch are calls of a sequence one by one.
    ///
    /// # Errors
    /// Those of submitting held-back calls. The batch is not taken then, or the rest of it is not.
    pub(super) fn take<B: Batch>(&mut self, batch: &B, context: &Context<'_>) -> Result<Taken, Error> {
        self.taken += 1;
        if self.following.is_some_and(|following| following.submitted > 0) {
            self.submit_one_by_one(context)?;
        }
        for (line, instruction) in batch.instructions().iter().enumerate() {
            let uses = batch.uses(instruction);
            if self.hold(instruction, uses, context) {
                continue;
            }
            if self.holds() {
                self.submit_held(context)?;
                if self.hold(instruction, uses, context) {
                    continue;
                }
            }
            self.remember(batch, line, context);
            return Ok(Taken::UpTo(line));
        }
        Ok(Taken::All)
    }

    /// Submits the calls that are held back, because something else comes.
    ///
    /// # Errors
    /// Those of submitting the calls.
    pub(super) fn boundary(&mut self, context: &Context<'_>) -> Result<(), Error> {
        self.taken += 1;
        self.submit_held(context)?;
        self.history.push_boundary();
        self.look_for_sequences(context);
        Ok(())
    }

    /// Holds an instruction back, if it goes on with a sequence, or begins one and nothing is held back.
    fn hold<T: Borrow<Tensor>, V: Borrow<Var>>(
        &mut self,
        instruction: &Instruction,
        uses: &[Declared<T, V>],
        context: &Context<'_>,
    ) -> bool {
        let ThreadCalls { sequences, held, following, .. } = self;
        let serials = context.serials();
        let calls = following.map_or(0, |it| it.calls);
        let mut goes_on =
            |number: usize| held.extend((sequences.get(number), calls), instruction, uses, context.engine, &serials);
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
    /// Those of submitting the calls.
    fn submit_held(&mut self, context: &Context<'_>) -> Result<(), Error> {
        let Some(Following { sequence: followed, calls, submitted }) = self.following else { return Ok(()) };
        if submitted == 0
            && let Some(number) = self.sequences.of_length(followed, calls)
        {
            let sequence = self.sequences.get_mut(number);
            match replay(&self.held, sequence, context.engine) {
                Ok(true) => {
                    sequence.replays += 1;
                    context.counters.replays.fetch_add(1, Ordering::Relaxed);
                    context.counters.calls_replayed.fetch_add(calls as u64, Ordering::Relaxed);
                    self.held.clear();
                    self.following = None;
                    self.history.push_replay(number);
                    return Ok(());
                }
                Err(error) if may_be_repeated(&error) => return Err(error),
                // There is no program, or too little memory for all results at once.
                Ok(false) | Err(_) => {}
            }
        }
        self.submit_one_by_one(context)
    }

    /// Submits the calls that are held back one by one, and adds them to the history.
    ///
    /// # Errors
    /// The first of those of submitting the calls. If the call may be submitted later, it is still held back, with those behind it.
    fn submit_one_by_one(&mut self, context: &Context<'_>) -> Result<(), Error> {
        let Some(following) = &mut self.following else { return Ok(()) };
        let number = following.sequence;
        let sequence = self.sequences.get(number);
        let mut outcome = Ok(());
        while following.submitted < following.calls {
            let step = &sequence.steps[following.submitted];
            match self.held.submit(step, sequence.stream, context.engine) {
                Err(error) if may_be_repeated(&error) => return Err(error),
                submitted => outcome = outcome.and(submitted),
            }
            following.submitted += 1;
        }
        let calls = self.held.calls(sequence.stream, &sequence.steps[..following.calls]);
        self.following = None;
        self.held.refuse().for_each(|(serial, error)| (context.note_refused)(serial, error));
        self.held.clear();
        context.counters.fallbacks.fetch_add(1, Ordering::Relaxed);
        self.sequences.fell_back(number);
        calls.into_iter().for_each(|call| self.history.push(call));
        self.look_for_sequences(context);
        outcome
    }

    /// Adds the calls of a batch from line `first` on to the history. They are not submitted yet.
    fn remember<B: Batch>(&mut self, batch: &B, first: usize, context: &Context<'_>) {
        let serials = context.serials();
        let mut made: SmallVec<[u64; 4]> = SmallVec::new();
        for instruction in &batch.instructions()[first..] {
            let mut operands = SmallVec::new();
            for u in batch.uses(instruction) {
                let operand = call::operand(u, context.engine, &serials, |serial| made.contains(&serial));
                operands.extend(operand.as_ref().map(OwnOperand::new));
            }
            made.extend(operands.iter().filter_map(OwnOperand::made));
            match call::work_of(instruction) {
                Some(work) if operands.len() == batch.uses(instruction).len() => {
                    let Instruction { stream, location, .. } = *instruction;
                    self.history.push(Call { work, stream, location, operands });
                }
                _ => self.history.push_boundary(),
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
