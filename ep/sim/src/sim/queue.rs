//! The queues of a simulated machine, and the choice of the next command: plain data, without locks; nothing runs here.
//!
//! The commands of a stream are numbered from 1 in the order of submission. A command is first queued, then taken by the thread that runs
//! it, then passed. Only the front of a queue can be taken, and not while the command before it is running. A wait can be taken once the
//! place that it names has passed.
//!
//! The machine cannot deadlock by itself: the place of a wait was a record when the wait was submitted, so it comes before the wait in the
//! order of all commands, and the oldest queued command can always be taken.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;
use streamvm_ep::{InlineFn, Kernel, Label, Operand, Params, Scalar};

use crate::sim::memory::Block;
use crate::sim::random::Random;

/// The commands of `stream` up to number `number`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct QueuePosition {
    pub(super) stream: u64,
    pub(super) number: u64,
}

/// The work of a command. It owns its operands: their makers guarantee the memory until the command has run, which drops them.
#[derive(Debug)]
pub(super) enum Work {
    Launch { kernel: Kernel, operands: Vec<Operand<'static>>, inputs: usize, params: Params },
    Copy { source: Operand<'static>, target: Operand<'static> },
    Fill { target: Operand<'static>, value: Scalar },
    Call { function: InlineFn, operands: Vec<Operand<'static>> },
    Record,
    Wait(QueuePosition),
}

impl Work {
    /// Whether it is a copy, which runs as late as the order allows.
    fn is_copy(&self) -> bool {
        matches!(self, Work::Copy { .. })
    }

    /// Whether it is the caller's code, which may run for any time.
    fn is_call(&self) -> bool {
        matches!(self, Work::Call { .. })
    }
}

/// A queued command.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) label: Label,
    /// The stream's name, for reports.
    pub(super) by: Arc<str>,
    pub(super) work: Work,
    /// The blocks that it touches, which it keeps alive.
    pub(super) blocks: SmallVec<[Arc<Block>; 4]>,
    /// The bytes that it touches, by address.
    pub(super) runs: Vec<Range<usize>>,
    /// Whether some of its memory had already been freed when it was submitted. Then it must not run.
    pub(super) already_freed: bool,
}

#[derive(Debug)]
struct Queue {
    device: usize,
    waiting: VecDeque<Command>,
    passed: u64,
    /// Whether the command after `passed` has been taken.
    running: bool,
    /// Whether its handle has been dropped. The queue is removed once it is empty.
    closed: bool,
}

impl Queue {
    /// The number of the command at the front.
    fn front_number(&self) -> u64 {
        self.passed + 1 + u64::from(self.running)
    }
}

/// A command taken from its queue to be run.
#[derive(Debug)]
pub(super) struct TakenCommand {
    pub(super) stream: u64,
    /// The index of its device.
    pub(super) device: usize,
    pub(super) command: Command,
}

/// The number up to which commands are needed, for each stream; see [`Queues::needed`].
pub(super) type Needed = BTreeMap<u64, u64>;

/// All queues of a simulated machine.
#[derive(Debug)]
pub(super) struct Queues {
    /// Ordered, so that a choice depends only on the seed.
    all: BTreeMap<u64, Queue>,
    streams_ever: u64,
    random: Random,
}

/// One choice in this many runs a copy although another command could run.
const COPY_FIRST: usize = 8;
/// One choice in this many runs a command that is not needed before one that is.
const UNNEEDED_FIRST: usize = 4;

impl Queues {
    pub(super) fn new(seed: u64) -> Queues {
        Queues { all: BTreeMap::new(), streams_ever: 0, random: Random::new(seed) }
    }

    /// A new stream; numbers are never reused.
    pub(super) fn open(&mut self, device: usize) -> u64 {
        self.streams_ever += 1;
        let queue = Queue { device, waiting: VecDeque::new(), passed: 0, running: false, closed: false };
        self.all.insert(self.streams_ever, queue);
        self.streams_ever
    }

    /// Marks that the stream gets no more commands; those that it has still run.
    pub(super) fn close(&mut self, stream: u64) {
        if let Some(queue) = self.all.get_mut(&stream) {
            queue.closed = true;
        }
        self.remove_if_finished(stream);
    }

    /// Queues a command on an open stream.
    pub(super) fn push(&mut self, stream: u64, command: Command) {
        if let Some(queue) = self.all.get_mut(&stream) {
            queue.waiting.push_back(command);
        }
    }

    /// The place after all commands of the stream so far.
    pub(super) fn end(&self, stream: u64) -> QueuePosition {
        let number = self.all.get(&stream).map_or(0, |queue| queue.front_number() - 1 + queue.waiting.len() as u64);
        QueuePosition { stream, number }
    }

    /// Whether all commands up to the place have run.
    pub(super) fn has_passed(&self, place: QueuePosition) -> bool {
        self.all.get(&place.stream).is_none_or(|queue| queue.passed >= place.number)
    }

    /// The number of commands that have not passed.
    pub(super) fn pending(&self) -> usize {
        self.all.values().map(|queue| queue.waiting.len() + usize::from(queue.running)).sum()
    }

    /// The commands that must pass before `place` can: those of its stream up to there, those that their waits name, and so on.
    pub(super) fn needed(&self, place: QueuePosition) -> Needed {
        let mut needed = Needed::new();
        let mut open = vec![place];
        while let Some(place) = open.pop() {
            let Some(queue) = self.all.get(&place.stream) else { continue };
            let before = needed.get(&place.stream).copied().unwrap_or(queue.passed);
            if before >= place.number {
                continue;
            }
            needed.insert(place.stream, place.number);
            let first = queue.front_number();
            let skip = (before + 1).saturating_sub(first);
            let count = (place.number + 1).saturating_sub(first.max(before + 1));
            for command in queue.waiting.iter().skip(skip as usize).take(count as usize) {
                if let Work::Wait(place) = command.work {
                    open.push(place);
                }
            }
        }
        needed
    }

    /// Takes the next command to run, chosen by the seed from those that can run, copies last. With `needed`, it takes a needed command,
    /// and now and then another one first. Returns `None` if all needed commands are running on other threads.
    pub(super) fn take(&mut self, needed: Option<&Needed>) -> Option<TakenCommand> {
        let mut wanted = Candidates::default();
        let mut others = Candidates::default();
        for (&stream, queue) in &self.all {
            let Some(front) = queue.waiting.front() else { continue };
            if queue.running || matches!(front.work, Work::Wait(place) if !self.has_passed(place)) {
                continue;
            }
            match needed {
                Some(needed) if needed.get(&stream).is_none_or(|&last| last < queue.front_number()) => {
                    // A waiting thread must not depend on a caller's code that it does not wait for.
                    if !front.work.is_call() {
                        others.add(stream, &front.work);
                    }
                }
                _ => wanted.add(stream, &front.work),
            }
        }
        if wanted.is_empty() {
            return None;
        }
        let early = !others.is_empty() && self.random.one_in(UNNEEDED_FIRST);
        let stream = if early { others } else { wanted }.choose(&mut self.random)?;
        let queue = self.all.get_mut(&stream)?;
        let command = queue.waiting.pop_front()?;
        queue.running = true;
        Some(TakenCommand { stream, device: queue.device, command })
    }

    /// Marks the command that was taken from `stream` as passed. Returns the device of the stream.
    pub(super) fn pass(&mut self, stream: u64) -> Option<usize> {
        let queue = self.all.get_mut(&stream)?;
        queue.running = false;
        queue.passed += 1;
        let device = queue.device;
        self.remove_if_finished(stream);
        Some(device)
    }

    /// Removes all commands that have not been taken.
    pub(super) fn drain(&mut self) -> Vec<Command> {
        self.all.values_mut().flat_map(|queue| queue.waiting.drain(..)).collect()
    }

    fn remove_if_finished(&mut self, stream: u64) {
        if self.all.get(&stream).is_some_and(|queue| queue.closed && !queue.running && queue.waiting.is_empty()) {
            self.all.remove(&stream);
        }
    }
}

/// The streams whose front command can run.
#[derive(Debug, Default)]
struct Candidates {
    copies: SmallVec<[u64; 8]>,
    rest: SmallVec<[u64; 8]>,
}

impl Candidates {
    fn add(&mut self, stream: u64, front: &Work) {
        let list = if front.is_copy() { &mut self.copies } else { &mut self.rest };
        list.push(stream);
    }

    fn is_empty(&self) -> bool {
        self.copies.is_empty() && self.rest.is_empty()
    }

    fn choose(&self, random: &mut Random) -> Option<u64> {
        let copy = self.rest.is_empty() || (!self.copies.is_empty() && random.one_in(COPY_FIRST));
        let list = if copy { &self.copies } else { &self.rest };
        (!list.is_empty()).then(|| list[random.below(list.len())])
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
