//! Streams: a queue of commands, and a thread that runs them in order.
//!
//! A command gets its number when it is queued, from 1; `passed` is the number of the last command that has run. The thread takes a
//! command, waits for the delay drawn from the seed, runs the command, and only then counts it as passed. The thread ends when the stream
//! is closed and its queue is empty, so commands that were queued before a stream was destroyed still run, as in a driver.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use streamvm_sim::races::{ActorId, Moment};

use crate::objects::command::Command;
use crate::objects::context::Context;

/// A stream and its queue; one thread runs its commands.
pub(crate) struct Stream {
    pub(crate) context: Arc<Context>,
    /// Its number among all streams, from 1.
    pub(crate) number: u32,
    /// For reports.
    pub(crate) name: String,
    pub(crate) actor: ActorId,
    queue: Mutex<Queue>,
    changed: Condvar,
    /// How many launches of it have run as PTX.
    ptx_launches: AtomicU64,
}

struct Queue {
    commands: VecDeque<Command>,
    given: u64,
    passed: u64,
    closed: bool,
}

impl Stream {
    pub(crate) fn new(context: Arc<Context>, number: u32, name: String, actor: ActorId) -> Stream {
        let queue = Queue { commands: VecDeque::new(), given: 0, passed: 0, closed: false };
        Stream {
            context,
            number,
            name,
            actor,
            queue: Mutex::new(queue),
            changed: Condvar::new(),
            ptx_launches: AtomicU64::new(0),
        }
    }

    /// Queues a command and returns its number. `make` gets the number and reports the command to the race detector. It is called under the
    /// lock of the queue, so that the order of these calls is the order of the commands.
    pub(crate) fn give(&self, make: impl FnOnce(u64) -> Command) -> u64 {
        let mut queue = self.lock();
        queue.given += 1;
        let number = queue.given;
        let command = make(number);
        queue.commands.push_back(command);
        drop(queue);
        self.changed.notify_all();
        number
    }

    /// The number of commands so far, with the clock that `moment` returns for them.
    pub(crate) fn end(&self, moment: impl FnOnce() -> Moment) -> (u64, Moment) {
        let queue = self.lock();
        (queue.given, moment())
    }

    /// Have the first `number` commands passed?
    pub(crate) fn has_passed(&self, number: u64) -> bool {
        self.lock().passed >= number
    }

    /// The number of the command that runs, if one does.
    pub(crate) fn running(&self) -> u64 {
        self.lock().passed + 1
    }

    /// A seed for the next launch that runs as PTX. Each launch gets another one, also each round of the body of a loop.
    pub(crate) fn next_seed(&self, seed: u64) -> u64 {
        seed ^ u64::from(self.number) << 32 ^ self.ptx_launches.fetch_add(1, Ordering::Relaxed)
    }

    /// Blocks until the first `number` commands have passed.
    pub(crate) fn wait(&self, number: u64) {
        let mut queue = self.lock();
        while queue.passed < number {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Blocks until all commands so far have passed.
    pub(crate) fn drain(&self) {
        let given = self.lock().given;
        self.wait(given);
    }

    /// Closes the queue: its thread ends once all commands have run.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Notes that the command which its thread has taken has passed.
    pub(crate) fn pass(&self) {
        self.lock().passed += 1;
        self.changed.notify_all();
    }

    /// Waits for the next command; `None` once the queue is closed and empty.
    pub(crate) fn next(&self) -> Option<Command> {
        let mut queue = self.lock();
        loop {
            if let Some(command) = queue.commands.pop_front() {
                return Some(command);
            }
            if queue.closed {
                return None;
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // If `make` panicked in a check, its number would be skipped and a wait for it would never end. This cannot happen, because a panic
        // in a driver call ends the process.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// A gate that all streams pass before each command: while it is shut, commands that a test wants to be pending stay pending.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    shut: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    pub(crate) fn set(&self, shut: bool) {
        *self.shut.lock().unwrap_or_else(PoisonError::into_inner) = shut;
        self.opened.notify_all();
    }

    pub(crate) fn wait(&self) {
        let mut shut = self.shut.lock().unwrap_or_else(PoisonError::into_inner);
        while *shut {
            shut = self.opened.wait(shut).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use streamvm_sim::races::Detector;

    use super::*;

    /// Also launches of one command, which the body of a loop repeats.
    #[test]
    fn launches_of_ptx_have_different_seeds() {
        let detector = Detector::new();
        let stream = |number: u32| {
            let context = Arc::new(Context::new(1, 0));
            Stream::new(context, number, format!("stream {number}"), detector.actor("a stream"))
        };
        let seeds: BTreeSet<u64> =
            [1, 2].map(stream).iter().flat_map(|stream| [0; 100].map(|_| stream.next_seed(7))).collect();
        assert_eq!(seeds.len(), 200);
    }
}
