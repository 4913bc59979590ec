//! Completion: turns what devices have finished into passed numbers, outcomes and free slots.
//!
//! For streams whose device runs commands later. Whoever completes holds the one turn, asks every device how far its
//! streams have come, and takes what is over in program order. So by the time an instruction's outcome is decided, all
//! that it depends on has an outcome: devices are asked until none has come further, and an instruction is never over
//! before what it waited for.
//!
//! The thread ([`serve`]) blocks on an event that somebody waits for, and sleeps while nobody waits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use streamvm_ep::{self as ep, LateCause};
use streamvm_instructions::{Cause, Failure};
use streamvm_stream::Point;

use crate::engine_thread;
use crate::entry::StreamEntry;
use crate::flight::Flight;
use crate::job::Job;
use crate::room::Looks;
use crate::run;
use crate::shared::Shared;
use crate::sleep::Sleeper;
use crate::slot::{Chain, Slot};
use crate::sync::{AtomicU64, Mutex, Ordering, unpoisoned};
use crate::waiters::Wake;

/// How long the thread blocks on one event before it looks at the other streams that somebody waits for.
const SLICE: Duration = Duration::from_micros(200);

/// The completion of one engine.
pub(crate) struct Completion {
    turn: Mutex<Turn>,
    /// Where the thread sleeps.
    pub(crate) sleeper: Arc<Sleeper>,
    /// Bytes that passed instructions no longer keep. Written by whoever has the turn.
    pub(crate) retired_bytes: AtomicU64,
}

/// What whoever completes keeps between turns.
#[derive(Default)]
struct Turn {
    /// Failures of commands that are not over yet.
    late: HashMap<(u32, u64), LateCause>,
    /// The root cause of each lost device.
    lost: HashMap<ep::DeviceId, Arc<Failure>>,
    over: Vec<(Slot<Job>, Arc<StreamEntry>)>,
    looks: Looks,
}

impl Completion {
    pub(crate) fn new() -> Completion {
        Completion { turn: Mutex::default(), sleeper: Arc::new(Sleeper::new()), retired_bytes: AtomicU64::new(0) }
    }

    /// Publishes what devices have finished. Returns whether there was anything.
    pub(crate) fn poll(&self, vm: &Shared) -> bool {
        let mut turn = unpoisoned(self.turn.lock());
        // Until nobody has come further: what an instruction waited for is then seen to be over with it.
        while in_flight(vm).fold(false, |further, (_, flight)| flight.query() | further) {}
        for (entry, flight) in in_flight(vm) {
            if flight.is_in_doubt() {
                entry.context.sleeper.wake();
            }
            if let Some(error) = flight.lost() {
                let device = entry.key.device;
                in_flight(vm)
                    .filter(|(other, _)| other.key.device == device)
                    .for_each(|(_, other)| other.lose(error.clone()));
            }
        }
        // By then its outcome is decided as well. What is lost passes in its turn too: after all that it waited for.
        let ready = |job: &Job| open(job, vm).is_none();
        let mut any = false;
        loop {
            for (entry, flight) in in_flight(vm) {
                while let Some(job) = flight.take(ready) {
                    turn.over.push((job, entry.clone()));
                }
            }
            if turn.over.is_empty() {
                return any;
            }
            any = true;
            // Behind the taking: a failure is told before its place is known to be over.
            for device in vm.devices.iter() {
                turn.late.extend(device.take_failures().into_iter().map(|late| ((late.stream, late.seq), late.cause)));
                if let Some(monitor) = vm.monitor.as_ref().filter(|monitor| monitor.traces()) {
                    monitor.ran(device.take_times());
                }
            }
            self.finish(&mut turn, vm);
        }
    }

    /// Decides the outcome of what is over, in program order, and publishes it.
    fn finish(&self, turn: &mut Turn, vm: &Shared) {
        let mut over = std::mem::take(&mut turn.over);
        over.sort_by_key(|(job, _)| job.order);
        let mut returned = Chain::new();
        for (mut job, entry) in over.drain(..) {
            turn.decide(&job, &entry, vm);
            let (seq, bytes) = (job.point.seq, job.bytes);
            run::clear(&mut job);
            self.retired_bytes.fetch_add(bytes, Ordering::Release);
            returned.push(job);
            entry.pass(seq);
            if let Some(flight) = &entry.flight {
                flight.release_events(seq);
            }
            vm.room.announce(vm, &mut turn.looks);
        }
        vm.returned.push(&mut returned);
        turn.over = over;
    }
}

impl Turn {
    fn decide(&mut self, job: &Job, entry: &StreamEntry, vm: &Shared) {
        let late = self.late.remove(&(job.point.stream.0, job.point.seq));
        // All that it reads has an outcome by now, and more may have failed than was known when it was launched, skipped
        // or refused: what counts is the first in the order of its uses, as if nothing ran later.
        if let Some(root) = vm.failures.poison(job.reads()) {
            return vm.failures.pass_on(job.point, job.order, root);
        }
        if vm.failures.is_known(job.point) {
            return;
        }
        let cause = match late {
            Some(LateCause::Device(error)) => Cause::Device(error),
            Some(LateCause::Function(text)) => Cause::Function(text),
            Some(LateCause::Panic(text)) => Cause::Panic(text),
            None => {
                let Some(error) = entry.flight.as_ref().and_then(|flight| flight.lost_before(job.point.seq)) else {
                    return;
                };
                if let Some(root) = self.lost.get(&entry.key.device) {
                    return vm.failures.pass_on(job.point, job.order, root.clone());
                }
                Cause::Device(error)
            }
        };
        let failure = Arc::new(run::failure(job, entry, cause));
        if let Cause::Device(ep::Error::DeviceLost { device, .. }) = failure.cause {
            self.lost.insert(device, failure.clone());
        }
        vm.failures.fail(job.order, failure);
    }
}

/// The first point that `job` waited for and that has not passed.
fn open(job: &Job, vm: &Shared) -> Option<Point> {
    job.waited().iter().copied().find(|point| !vm.streams.has_passed(*point))
}

fn in_flight(vm: &Shared) -> impl Iterator<Item = (&Arc<StreamEntry>, &Flight)> {
    vm.streams.iter().filter_map(|entry| entry.flight.as_ref().map(|flight| (entry, flight)))
}

/// The body of the completion's thread.
pub(crate) fn serve(vm: Arc<Shared>) {
    engine_thread::enter();
    let completion = &vm.completion;
    completion.sleeper.belongs_here();
    let mut turns = 0usize;
    loop {
        if completion.poll(&vm) {
            continue;
        }
        if vm.is_over() {
            vm.wake_all();
            return;
        }
        let awaited: Vec<_> =
            in_flight(&vm).filter_map(|(entry, flight)| Some((flight, flight.awaited(entry.passed())?))).collect();
        if !awaited.is_empty() {
            // In turn, so that a stream that takes long keeps nobody from hearing of another.
            turns = turns.wrapping_add(1);
            let (flight, event) = awaited[turns % awaited.len()];
            if let Err(error) = flight.device.wait(event, Instant::now().checked_add(SLICE))
                && !matches!(error, ep::Error::StaleEvent { .. })
            {
                flight.fail_query(error);
            }
            continue;
        }
        sleep(&vm);
    }
}

/// Sleeps until something is wanted and can be waited for, or what is over can go on.
fn sleep(vm: &Shared) {
    let completion = &vm.completion;
    completion.sleeper.prepare();
    let mut asleep = !vm.is_over();
    let mut registered = Vec::new();
    for (entry, flight) in in_flight(vm) {
        asleep &= flight.awaited(entry.passed()).is_none();
        // What is over goes on once all has passed that it waited for.
        let Some(open) = flight.over(|job| open(job, vm)) else { continue };
        let Some((point, entry)) = open.and_then(|point| Some((point, vm.streams.get(point.stream)?))) else {
            asleep = false;
            continue;
        };
        match entry.when_passed(point.seq, Wake::Sleeper(completion.sleeper.clone())) {
            Ok(id) => registered.push((entry, point.seq, id)),
            Err(_) => asleep = false,
        }
    }
    if asleep {
        completion.sleeper.sleep()
    } else {
        completion.sleeper.cancel()
    }
    for (entry, seq, id) in registered {
        entry.forget(seq, id);
    }
}
