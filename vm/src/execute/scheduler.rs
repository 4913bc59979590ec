//! The scheduler: holds instructions back until their host waits have passed, and dispatches them in stream order.
//!
//! Submitters themselves dispatch streams on which nothing is held back. The first instruction of a stream with a host wait goes to the
//! scheduler, and so does everything submitted to the stream after it, until the scheduler has dispatched all of it (see
//! `submit/commit.rs`). So at any time one side has the right to dispatch a stream.
//!
//! [`Scheduler`] is the logic: [`Scheduler::step`] takes new tasks, dispatches those that may go, and never blocks; it uses no clock and no
//! thread. Its thread is in `engine/scheduler_thread.rs`.

use smallvec::SmallVec;
use streamvm_stream::mutant::Mutant;
use streamvm_stream::{Point, StreamId};

use crate::dispatch::batch::DispatchBatches;
use crate::dispatch::dependence_node::node_of;
use crate::execute::environment::Environment;
use crate::progress::waiters::Wake;
use crate::queue::node::{NodeBox, NodeList};
use crate::tasks::task::Task;

/// The instructions held back: per stream, in order.
pub(crate) struct Scheduler {
    held: Vec<(StreamId, NodeList<Task>)>,
    /// Number of instructions dispatched in the current step, per stream.
    dispatched: Vec<(StreamId, u64)>,
    batches: DispatchBatches,
}

impl Scheduler {
    pub(crate) fn new() -> Scheduler {
        Scheduler { held: Vec::new(), dispatched: Vec::new(), batches: DispatchBatches::new() }
    }

    /// Takes `incoming` and dispatches every instruction whose predecessors on its stream are dispatched and whose host waits have passed.
    /// Returns whether it dispatched a task, or put one into its dependence node.
    pub(crate) fn step(&mut self, mut incoming: NodeList<Task>, env: &Environment) -> bool {
        let mut progress = false;
        while let Some(task) = incoming.pop() {
            let stream = task.point.stream;
            if stream.is_unordered() {
                hold_back(task, env);
                progress = true;
                continue;
            }
            match self.held.iter_mut().find(|(id, _)| *id == stream) {
                Some((_, queue)) => queue.push(task),
                None => {
                    let mut queue = NodeList::new();
                    queue.push(task);
                    self.held.push((stream, queue));
                }
            }
        }
        self.dispatched.clear();
        for (stream, queue) in &mut self.held {
            let mut count = 0;
            while let Some(head) = queue.front_mut() {
                if let Some(cold) = head.cold() {
                    if env.planted.is(Mutant::HostWaitMet) {
                        cold.host_waits.clear();
                    }
                    let (waits, waited) = (&mut cold.host_waits, &mut cold.waited);
                    // Stops at the first open wait: the task needs all of them to pass, and may have thousands.
                    while let Some(point) = waits.last().copied().filter(|point| env.streams.has_passed(*point)) {
                        waits.pop();
                        if env.keeps_waited {
                            waited.push(point);
                        }
                    }
                    if !waits.is_empty() {
                        break;
                    }
                }
                if let (Some(task), Some(stream_state)) = (queue.pop(), env.streams.get(*stream)) {
                    let batch = self.batches.batch_for(&stream_state.context);
                    self.batches.add(batch, task);
                    count += 1;
                }
            }
            if count > 0 {
                self.dispatched.push((*stream, count));
            }
        }
        let any_parked = self.batches.push();
        // Counted only after the push: a submitter that sees the new count may push tasks that must come after these.
        for (stream, count) in &self.dispatched {
            if let Some(stream_state) = env.streams.get(*stream) {
                stream_state.note_dispatched(*count);
            }
        }
        if any_parked {
            self.batches.wake();
        }
        self.held.retain(|(_, queue)| !queue.is_empty());
        progress | !self.dispatched.is_empty()
    }

    /// The host wait that blocks the oldest held-back instruction of each ordered stream.
    pub(crate) fn blocked(&self) -> impl Iterator<Item = Point> + '_ {
        self.held.iter().filter_map(|(_, queue)| queue.front()?.next_host_wait())
    }

    /// Notes the held-back instructions for stall reports.
    pub(crate) fn note_held(&self, env: &Environment) {
        env.stall.held.write(self.held.iter().filter_map(|(_, queue)| queue.front()));
    }

    /// Whether a step could do anything now.
    pub(crate) fn is_ready(&self, env: &Environment) -> bool {
        !env.to_scheduler.is_empty() || self.blocked().any(|point| env.streams.has_passed(point))
    }
}

/// Puts an instruction of an unordered stream into its dependence node. Each host wait becomes a dependence that the source satisfies when
/// it passes. It holds back no other instruction.
fn hold_back(mut task: NodeBox<Task>, env: &Environment) {
    let (id, stream_state) = (node_of(task.point.seq), env.streams.get(task.point.stream));
    let Some((stream_state, unordered)) =
        stream_state.and_then(|stream_state| Some((stream_state, stream_state.unordered()?)))
    else {
        return;
    };
    let waits: SmallVec<[Point; 2]> = task.cold().map(|cold| cold.host_waits.clone()).unwrap_or_default();
    unordered.nodes.put(id, task);
    for point in waits {
        let Some(source) = env.streams.get(point.stream) else { continue };
        unordered.nodes.add_dependence(id);
        if source.when_passed(point.seq, Wake::Met(stream_state.clone(), id)).is_err() {
            unordered.satisfy(id);
        }
    }
    unordered.satisfy(id);
}

#[cfg(all(test, not(loom)))]
#[path = "scheduler_tests.rs"]
mod tests;
