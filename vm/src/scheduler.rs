//! The scheduler: holds instructions back until their host waits have passed, and dispatches them in stream order.
//!
//! Submitters dispatch streams on which nothing is held back themselves; a stream comes here with its first held-back
//! instruction, and everything submitted to it after that comes here too, until all of it is dispatched (see
//! `commit.rs`). So the right to dispatch a stream lies in one place at a time.
//!
//! [`Scheduler`] is the logic: [`Scheduler::step`] takes what was sent, dispatches what can go, and never waits; it
//! knows no clock and no thread. [`serve`] is the thread around it.

use std::sync::Arc;

use smallvec::SmallVec;
use streamvm_stream::mutant::Mutant;
use streamvm_stream::{Point, StreamId};

use crate::cells::cell_of;
use crate::engine_thread;
use crate::job::Job;
use crate::outbox::Outbox;
use crate::shared::Shared;
use crate::slot::{Chain, Slot};
use crate::spin::{self, Spin};
use crate::waiters::Wake;

/// The instructions held back, per stream in order.
pub(crate) struct Scheduler {
    held: Vec<(StreamId, Chain<Job>)>,
    /// How many were dispatched in the step at hand, per stream.
    dispatched: Vec<(StreamId, u64)>,
    outbox: Outbox,
}

impl Scheduler {
    pub(crate) fn new() -> Scheduler {
        Scheduler { held: Vec::new(), dispatched: Vec::new(), outbox: Outbox::new() }
    }

    /// Takes `incoming` and dispatches every instruction whose predecessors on its stream are dispatched and whose
    /// host waits have passed. Returns whether anything was dispatched, or put where it waits.
    pub(crate) fn step(&mut self, mut incoming: Chain<Job>, vm: &Shared) -> bool {
        let mut progress = false;
        while let Some(job) = incoming.pop() {
            let stream = job.point.stream;
            if stream.is_unordered() {
                hold_back(job, vm);
                progress = true;
                continue;
            }
            match self.held.iter_mut().find(|(id, _)| *id == stream) {
                Some((_, queue)) => queue.push(job),
                None => {
                    let mut queue = Chain::new();
                    queue.push(job);
                    self.held.push((stream, queue));
                }
            }
        }
        self.dispatched.clear();
        for (stream, queue) in &mut self.held {
            let mut count = 0;
            while let Some(head) = queue.front_mut() {
                if let Some(more) = head.has_more() {
                    if vm.planted.is(Mutant::HostWaitMet) {
                        more.host_waits.clear();
                    }
                    let (waits, waited) = (&mut more.host_waits, &mut more.waited);
                    // Behind one that is open nothing is looked for: all must be met, and there may be thousands.
                    while let Some(point) = waits.last().copied().filter(|point| vm.streams.has_passed(*point)) {
                        waits.pop();
                        if vm.monitor.is_some() {
                            waited.push(point);
                        }
                    }
                    if !waits.is_empty() {
                        break;
                    }
                }
                if let (Some(job), Some(entry)) = (queue.pop(), vm.streams.get(*stream)) {
                    let batch = self.outbox.batch_for(&entry.context);
                    self.outbox.add(batch, job);
                    count += 1;
                }
            }
            if count > 0 {
                self.dispatched.push((*stream, count));
            }
        }
        let somebody_sleeps = self.outbox.push();
        // Only now: whoever sees the new count may push behind what was pushed above.
        for (stream, count) in &self.dispatched {
            if let Some(entry) = vm.streams.get(*stream) {
                entry.note_dispatched(*count);
            }
        }
        if somebody_sleeps {
            self.outbox.wake();
        }
        self.held.retain(|(_, queue)| !queue.is_empty());
        progress | !self.dispatched.is_empty()
    }

    /// What the oldest held-back instruction of each ordered stream waits for.
    pub(crate) fn blocked(&self) -> impl Iterator<Item = Point> + '_ {
        self.held.iter().filter_map(|(_, queue)| queue.front()?.next_host_wait())
    }

    /// Writes down, for reports, what is held back.
    pub(crate) fn note_held(&self, vm: &Shared) {
        vm.stall.held.write(self.held.iter().filter_map(|(_, queue)| queue.front()));
    }

    fn is_ready(&self, vm: &Shared) -> bool {
        !vm.to_scheduler.is_empty() || self.blocked().any(|point| vm.streams.has_passed(point))
    }

    /// Sleeps until something was sent or a point has passed that a head waits for.
    fn sleep(&mut self, vm: &Shared) {
        self.note_held(vm);
        vm.scheduler.prepare();
        let mut asleep = vm.to_scheduler.is_surely_empty() && !vm.is_over();
        let mut registered = Vec::new();
        for point in self.blocked() {
            let Some(entry) = vm.streams.get(point.stream) else { continue };
            match entry.when_passed(point.seq, Wake::Sleeper(vm.scheduler.clone())) {
                Ok(id) => registered.push((point, id)),
                Err(_) => asleep = false,
            }
        }
        if asleep {
            vm.scheduler.sleep();
        } else {
            vm.scheduler.cancel();
        }
        for (point, id) in registered {
            if let Some(entry) = vm.streams.get(point.stream) {
                entry.forget(point.seq, id);
            }
        }
    }
}

/// An instruction of an unordered stream holds nothing up: it waits in its cell, until what it waits for has said so.
fn hold_back(mut job: Slot<Job>, vm: &Shared) {
    let (id, entry) = (cell_of(job.point.seq), vm.streams.get(job.point.stream));
    let Some((entry, unordered)) = entry.and_then(|entry| Some((entry, entry.unordered()?))) else { return };
    let waits: SmallVec<[Point; 2]> = job.has_more().map(|more| more.host_waits.clone()).unwrap_or_default();
    unordered.cells.put(id, job);
    for point in waits {
        let Some(source) = vm.streams.get(point.stream) else { continue };
        unordered.cells.need(id);
        if source.when_passed(point.seq, Wake::Met(entry.clone(), id)).is_err() {
            unordered.meet(id);
        }
    }
    unordered.meet(id);
}

/// The body of the scheduler's thread.
pub(crate) fn serve(vm: Arc<Shared>) {
    engine_thread::enter();
    vm.scheduler.belongs_here();
    let mut scheduler = Scheduler::new();
    loop {
        let incoming = vm.to_scheduler.take();
        if scheduler.step(incoming, &vm) {
            continue;
        }
        if vm.is_over() {
            vm.wake_all();
            return;
        }
        let mut spin = Spin::new(spin::SCHEDULER);
        while !scheduler.is_ready(&vm) && spin.turn(|| false) {}
        if !scheduler.is_ready(&vm) {
            scheduler.sleep(&vm);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use streamvm_stream::{Point, StreamKey};

    use super::*;
    use crate::config::{Mode, VmBuilder};
    use crate::entry::StreamEntry;

    const STREAMS: [&str; 3] = ["compute@cpu:0:0", "compute@cpu:0:1", "d2h@cpu:0:0"];

    /// An engine without threads, so that a test steps the scheduler and passes points itself.
    fn engine() -> Arc<Shared> {
        let vm = VmBuilder::new().mode(Mode::Inline).build_shared().expect("an engine");
        for stream in STREAMS {
            let key: StreamKey = stream.parse().expect("a stream");
            vm.open_stream(key).expect("it opens");
        }
        vm
    }

    fn entry(vm: &Shared, stream: u32) -> &Arc<StreamEntry> {
        vm.streams.get(StreamId(stream)).expect("a stream of the table")
    }

    fn chain(jobs: impl IntoIterator<Item = ((u32, u64), Option<(u32, u64)>)>) -> Chain<Job> {
        let mut chain = Chain::new();
        for ((stream, seq), wait) in jobs {
            let mut job = Slot::new(Job::empty());
            job.point = Point::new(StreamId(stream), seq);
            if let Some((source, seq)) = wait {
                job.more().host_waits.push(Point::new(StreamId(source), seq));
            }
            chain.push(job);
        }
        chain
    }

    /// What reached the thread context since the last look, in order.
    fn dispatched(vm: &Shared) -> Vec<(u32, u64)> {
        let mut chain = entry(vm, 0).context.inbox.take();
        std::iter::from_fn(|| chain.pop()).map(|job| (job.point.stream.0, job.point.seq)).collect()
    }

    #[test]
    fn a_successor_is_dispatched_once_its_predecessor_is_dispatched_not_passed() {
        let (vm, mut scheduler) = (engine(), Scheduler::new());
        assert!(scheduler.step(chain([((0, 1), None), ((0, 2), None), ((0, 3), None)]), &vm));
        assert_eq!(dispatched(&vm), [(0, 1), (0, 2), (0, 3)]);
        assert_eq!(entry(&vm, 0).passed(), 0);
        assert_eq!(entry(&vm, 0).dispatched(), 3);
    }

    #[test]
    fn what_has_an_open_host_wait_is_held_back_and_all_behind_it_on_its_stream() {
        let (vm, mut scheduler) = (engine(), Scheduler::new());
        let jobs = [((0, 1), Some((1, 5))), ((0, 2), None), ((2, 1), None)];
        assert!(scheduler.step(chain(jobs), &vm));
        assert_eq!(dispatched(&vm), [(2, 1)], "another stream goes on");
        assert_eq!(scheduler.blocked().collect::<Vec<_>>(), [Point::new(StreamId(1), 5)]);
        entry(&vm, 1).pass(4);
        assert!(!scheduler.step(Chain::new(), &vm));
        entry(&vm, 1).pass(5);
        assert!(scheduler.step(Chain::new(), &vm));
        assert_eq!(dispatched(&vm), [(0, 1), (0, 2)]);
        assert_eq!(scheduler.blocked().count(), 0);
    }

    #[test]
    fn the_right_to_dispatch_comes_back_only_when_all_that_was_sent_is_dispatched() {
        let (vm, mut scheduler) = (engine(), Scheduler::new());
        scheduler.step(chain([((0, 1), None), ((0, 2), Some((1, 1)))]), &vm);
        assert_eq!(entry(&vm, 0).dispatched(), 1, "2 were sent");
        entry(&vm, 1).pass(1);
        scheduler.step(Chain::new(), &vm);
        assert_eq!(entry(&vm, 0).dispatched(), 2);
    }
}
