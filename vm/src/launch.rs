//! Launching: giving work to a stream whose device runs it later, with the waits and records around it.
//!
//! A device wait names a record of another stream. Where that record is made by another thread context, it must be
//! *launched* first: a driver takes a wait for an event that was not recorded yet as met. A wait or a record that fails
//! becomes a wait for the source's timeline: the instruction is held until the source is proven to have passed.

use std::panic::{AssertUnwindSafe, catch_unwind};

use streamvm_ep as ep;
use streamvm_stream::Point;

use crate::entry::StreamEntry;
use crate::flight::{Flight, Shown};
use crate::job::{Job, More, Task};
use crate::run;
use crate::runner::Runner;
use crate::shared::Shared;
use crate::slot::Slot;

/// Gives the work of `job` to the device, or skips it. A mark has none.
pub(crate) fn carry_out(job: &mut Job, entry: &StreamEntry, flight: &Flight, runner: &mut Runner, vm: &Shared) {
    if job.task == Task::Mark {
        return;
    }
    match flight.lost() {
        Some(error) => run::refuse(job, entry, error, &vm.failures),
        None => {
            let later = run::carry_out(job, entry, runner, vm);
            debug_assert!(later.is_none(), "functions that are over later run on workers");
        }
    }
}

/// Puts `job`, which was carried out, in flight, with the record behind it. A mark, which is no instruction of its own,
/// comes back.
pub(crate) fn hand_over(
    mut job: Slot<Job>,
    entry: &StreamEntry,
    flight: &Flight,
    stream: &mut dyn ep::Stream,
    vm: &Shared,
) -> Option<Slot<Job>> {
    let seq = job.point.seq;
    if job.task == Task::Mark {
        record(flight, seq, stream);
        job.clear();
        return Some(job);
    }
    let records = job.records();
    // Before anybody can see it pass.
    if let Some(monitor) = &vm.monitor {
        monitor.passes(entry.id, seq);
    }
    flight.add(job);
    if records {
        record(flight, seq, stream);
    }
    None
}

/// Meets what can be met of the waits of a head: a point that has passed, or a record that its device can wait for.
#[inline(never)]
pub(crate) fn settle_waits(more: &mut More, entry: &StreamEntry, stream: &mut dyn ep::Stream, vm: &Shared) {
    let More { device_waits, waited, by_event, by_number, .. } = more;
    if entry.flight.is_none() {
        // Behind one that is open there is nothing to look for: all must be met, and each is on a line of another core.
        let met = device_waits.iter().take_while(|point| vm.streams.has_passed(**point)).count();
        let met = device_waits.drain(..met);
        if vm.monitor.is_some() {
            waited.extend(met);
        }
        return;
    }
    device_waits.retain(|point| {
        let open = !vm.streams.has_passed(*point);
        if open && !*by_number && wait_by_event(*point, entry, stream, vm, by_number) {
            waited.insert(*by_event, *point);
            *by_event += 1;
            return false;
        }
        let met = vm.streams.has_passed(*point);
        if met {
            waited.push(*point);
        }
        !met
    });
}

/// Whether the wait was handed to the device. A failure leaves the wait to the timeline.
fn wait_by_event(
    point: Point,
    entry: &StreamEntry,
    stream: &mut dyn ep::Stream,
    vm: &Shared,
    by_number: &mut bool,
) -> bool {
    let source = vm.streams.get(point.stream).and_then(|source| device_source(entry, source));
    let Some(Shown::By(event)) = source.map(|source| source.shown(point.seq)) else {
        return false;
    };
    match guarded(|| stream.wait(event)) {
        Ok(()) => true,
        // Given back between the look and the wait, so its number is published.
        Err(_) if vm.streams.has_passed(point) => false,
        Err(error) => {
            log::warn!("{}: waiting for {event} failed ({error}); held until its source has passed", entry.key);
            *by_number = true;
            false
        }
    }
}

/// Whether `point`, an open wait of `head`, could be met now.
pub(crate) fn is_met(head: &Job, entry: &StreamEntry, point: Point, vm: &Shared) -> bool {
    let source = vm.streams.get(point.stream);
    vm.streams.has_passed(point)
        || source
            .and_then(|source| by_event(head, entry, source))
            .is_some_and(|source| matches!(source.shown(point.seq), Shown::By(_)))
}

/// The source as `head`'s device can wait for it, if it can.
pub(crate) fn by_event<'a>(head: &Job, entry: &StreamEntry, source: &'a StreamEntry) -> Option<&'a Flight> {
    if head.waits_by_number() { None } else { device_source(entry, source) }
}

/// Two streams of one kind of device, both of which run their commands later, wait by event.
fn device_source<'a>(entry: &StreamEntry, source: &'a StreamEntry) -> Option<&'a Flight> {
    let like = entry.flight.is_some() && entry.key.device.kind == source.key.device.kind;
    source.flight.as_ref().filter(|_| like)
}

/// Records behind everything launched, because somebody wants to know. If it cannot be recorded, the stream is waited
/// for; if that fails too, nothing can be proven any more and the device is lost.
#[inline(never)]
pub(crate) fn record_tail(flight: &Flight, stream: &mut dyn ep::Stream) {
    let seq = flight.launched();
    if flight.is_in_doubt() || !record(flight, seq, stream) {
        prove(flight, seq, stream);
    }
}

/// Blocks until everything up to `seq` is over, or the device is lost.
pub(crate) fn prove(flight: &Flight, seq: u64, stream: &mut dyn ep::Stream) {
    match guarded(|| stream.synchronize()) {
        Ok(()) => flight.prove(seq),
        Err(error) => flight.lose(error),
    }
}

/// Records an event behind `seq`, the last number launched. False if that failed.
fn record(flight: &Flight, seq: u64, stream: &mut dyn ep::Stream) -> bool {
    let event = flight.device.events().acquire();
    match guarded(|| stream.record(event)) {
        Ok(()) => {
            flight.note_record(seq, Ok(event));
            true
        }
        Err(error) => {
            log::warn!("recording an event on {} failed: {error}", flight.device.id());
            if let Err(error) = flight.device.events().release(event) {
                log::error!("an event was lost: {error}");
            }
            flight.note_record(seq, Err(()));
            if matches!(error, ep::Error::DeviceLost { .. }) {
                flight.lose(error);
            }
            false
        }
    }
}

/// A driver's call; a panic in it is an error.
fn guarded(call: impl FnOnce() -> Result<(), ep::Error>) -> Result<(), ep::Error> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|payload| {
        let text = run::panic_text(payload);
        Err(ep::Error::Kernel(ep::KernelError::Other(format!("the backend panicked: {text}"))))
    })
}
