//! Events: recording, querying, waiting, releasing, and ids that are used too early or too late.

use std::collections::HashSet;
use std::thread;
use std::time::Instant;

use streamvm_ep::{DType, Error, MemoryKind, Op, Params};

use super::table;
use crate::conformance::lab::{Bench, Fail, Lab, ensure, ensure_eq, ensure_matches};

table! { "event":
    is_unrecorded_at_first [],
    an_unrecorded_one_cannot_be_waited_for [],
    a_recorded_one_passes [],
    a_record_without_commands_passes [],
    stays_passed [],
    earlier_ones_pass_first [],
    is_recorded_anew [],
    a_new_record_is_another_place [],
    the_host_sees_what_was_written_before [],
    the_host_sees_what_was_copied_before [],
    a_released_one_is_stale_everywhere [],
    a_reused_slot_is_a_new_event [],
    ids_never_come_back [],
    many_live_at_once [],
    live_ones_are_counted [],
    is_released_while_it_is_waited_for [],
    a_wait_with_time_left_is_met [],
    a_passed_one_is_seen_at_any_deadline [],
    has_not_passed_before_its_command [Calls Queued],
    works_on_the_thread_that_did_not_record [],
    one_marks_places_of_two_streams_in_turn [],
    synchronizing_passes_it [],
}

fn is_unrecorded_at_first(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let event = lab.event();
    ensure_eq!(lab.device.events().is_recorded(event), Ok(false), "is a new event recorded");
    let expected = Error::EventNotRecorded { event, device: lab.device.id() };
    ensure_eq!(lab.device.query(event), Err(expected), "a query of a new event");
    Ok(())
}

fn an_unrecorded_one_cannot_be_waited_for(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let event = lab.event();
    let expected = Error::EventNotRecorded { event, device: lab.device.id() };
    ensure_eq!(lane.wait(event), Err(expected.clone()), "a stream's wait for a new event");
    let deadline = Some(Instant::now());
    ensure_eq!(lab.device.wait(event, deadline), Err(expected.clone()), "the host's wait for a new event");
    ensure_eq!(lab.device.wait(event, None), Err(expected), "the host's wait for a new event, without a deadline");
    let x = lab.tensor(DType::I32, &[2])?;
    lane.fill(&x, 1i32)?;
    lab.expect(&mut lane, &x, &[1i32; 2], "a stream that refused to wait")
}

fn a_recorded_one_passes(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let event = lab.event();
    lane.fill(&lab.tensor(DType::I32, &[2])?, 1i32)?;
    lane.record(event)?;
    ensure_eq!(lab.device.events().is_recorded(event), Ok(true), "is a recorded event recorded");
    lab.wait(event)?;
    ensure_eq!(lab.device.query(event), Ok(true), "has an event passed that was waited for");
    Ok(())
}

fn a_record_without_commands_passes(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let event = lab.event();
    lane.record(event)?;
    lab.wait(event)
}

fn stays_passed(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let (event, x) = (lab.event(), lab.tensor(DType::I32, &[2])?);
    lane.record(event)?;
    lab.wait(event)?;
    for value in 0..20i32 {
        lane.fill(&x, value)?;
        ensure_eq!(lab.device.query(event), Ok(true), "has an event passed that had");
        lab.wait(event)?;
    }
    Ok(lane.sync()?)
}

fn earlier_ones_pass_first(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let x = lab.vector(&mut lane, &[0i32; 1000])?;
    let mut events = Vec::new();
    for value in 0..30 {
        lane.fill(&x, value)?;
        let event = lab.event();
        lane.record(event)?;
        events.push(event);
    }
    let passed = |lab: &Lab| -> Result<usize, Fail> {
        let mut seen = Vec::new();
        // From last to first: an event that was seen as passed stays passed while the earlier ones are queried.
        for &event in events.iter().rev() {
            seen.push(lab.device.query(event)?);
        }
        let first = seen.iter().position(|&passed| passed).unwrap_or(seen.len());
        ensure!(seen[first..].iter().all(|&passed| passed), "an event passed before an earlier one of its stream");
        Ok(events.len() - first)
    };
    let mut before = passed(&lab)?;
    for (index, &event) in events.iter().enumerate() {
        lab.wait(event)?;
        let now = passed(&lab)?;
        ensure!(now > index, "{now} events have passed, and number {index} was waited for");
        ensure!(now >= before, "{now} events have passed, and it had been {before}");
        before = now;
    }
    Ok(())
}

fn is_recorded_anew(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let (event, x) = (lab.event(), lab.tensor_in(MemoryKind::Pinned, DType::I32, &[2])?);
    for value in 0..20i32 {
        lane.fill(&x, value)?;
        lane.record(event)?;
        lab.wait(event)?;
        let bytes = x.memory.host_read();
        ensure_eq!(bytes, value.to_ne_bytes().repeat(2), "memory behind record number {value} of one event");
    }
    Ok(())
}

fn a_new_record_is_another_place(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let [mut first, mut second] = lab.lanes()?;
    let event = lab.event();
    let x = lab.tensor_in(MemoryKind::Pinned, DType::I32, &[1000])?;
    first.record(event)?;
    lab.wait(event)?;
    for value in 0..50 {
        second.fill(&x, value)?;
    }
    second.record(event)?;
    lab.wait(event)?;
    let expected = 49i32.to_ne_bytes().repeat(1000);
    ensure!(x.memory.host_read() == expected, "the host waited for the first record, not for the last");
    Ok(())
}

fn the_host_sees_what_was_written_before(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    for kind in [MemoryKind::Pinned, MemoryKind::Pageable] {
        let mut lane = lab.lane()?;
        let (x, y) = (lab.tensor_in(kind, DType::I32, &[100])?, lab.tensor_in(kind, DType::I32, &[100])?);
        lane.fill(&x, 3i32)?;
        lane.op(Op::Mul, &[&x, &x], &y, &Params::default())?;
        let event = lab.event();
        lane.record(event)?;
        lab.wait(event)?;
        ensure_eq!(y.memory.host_read(), 9i32.to_ne_bytes().repeat(100), "{kind} memory after waiting for an event");
    }
    Ok(())
}

fn the_host_sees_what_was_copied_before(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let device = lab.tensor(DType::I32, &[100])?;
    for value in 0..10i32 {
        let host = lab.tensor_in(MemoryKind::Pinned, DType::I32, &[100])?;
        lane.fill(&device, value)?;
        lane.copy(&device, &host)?;
        let event = lab.event();
        lane.record(event)?;
        lane.fill(&device, -1i32)?;
        lab.wait(event)?;
        ensure_eq!(host.memory.host_read(), value.to_ne_bytes().repeat(100), "what was copied to the host");
    }
    Ok(())
}

fn a_released_one_is_stale_everywhere(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let event = lab.event();
    lane.record(event)?;
    lab.wait(event)?;
    lab.device.events().release(event)?;
    let stale = Error::StaleEvent { event };
    ensure_eq!(lane.record(event), Err(stale.clone()), "a record of a released event");
    ensure_eq!(lane.wait(event), Err(stale.clone()), "a stream's wait for a released event");
    ensure_eq!(lab.device.query(event), Err(stale.clone()), "a query of a released event");
    ensure_eq!(lab.device.wait(event, None), Err(stale.clone()), "the host's wait for a released event");
    ensure_eq!(lab.device.events().release(event), Err(stale), "a second release");
    Ok(lane.sync()?)
}

fn a_reused_slot_is_a_new_event(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let old = lab.event();
    lane.record(old)?;
    lab.wait(old)?;
    lab.device.events().release(old)?;
    let new = (0..100).map(|_| lab.event()).find(|new| new.index == old.index);
    let Some(new) = new else {
        return Err("a released slot is not used again".into());
    };
    ensure!(new.generation != old.generation, "the new event {new} has the id of the old one");
    ensure_matches!(lab.device.query(new), Err(Error::EventNotRecorded { .. }), "a query of the slot's next event");
    ensure_matches!(lane.wait(new), Err(Error::EventNotRecorded { .. }), "a wait for the slot's next event");
    lane.record(new)?;
    lab.wait(new)?;
    ensure_matches!(lab.device.query(old), Err(Error::StaleEvent { .. }), "a query of the old id");
    Ok(())
}

fn ids_never_come_back(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut seen = HashSet::new();
    for round in 0..500 {
        let event = lab.event();
        ensure!(seen.insert(event), "the id {event} came back in round {round}");
        lab.device.events().release(event)?;
    }
    Ok(())
}

fn many_live_at_once(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lanes = lab.lanes::<4>()?;
    let mut events = Vec::new();
    for index in 0..2000 {
        let event = lab.event();
        lanes[index % 4].record(event)?;
        events.push(event);
    }
    ensure_eq!(events.iter().collect::<HashSet<_>>().len(), 2000, "ids of live events");
    for &event in events.iter().rev() {
        lab.wait(event)?;
    }
    for event in events {
        lab.device.events().release(event)?;
    }
    Ok(())
}

fn live_ones_are_counted(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let before = lab.device.events().live();
    let events: Vec<_> = (0..5).map(|_| lab.event()).collect();
    for &event in &events {
        lane.record(event)?;
    }
    ensure_eq!(lab.device.events().live(), before + 5, "live events with five more");
    lane.sync()?;
    for event in events {
        lab.device.events().release(event)?;
    }
    ensure_eq!(lab.device.events().live(), before, "live events once they are released");
    Ok(())
}

/// A wait keeps its point when the event's id is released and its slot is used for another point.
fn is_released_while_it_is_waited_for(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    for _ in 0..10 {
        let [mut writer, mut reader, mut other] = lab.lanes()?;
        let (x, y) = (lab.tensor(DType::I32, &[64])?, lab.tensor(DType::I32, &[64])?);
        writer.fill(&x, 1i32)?;
        writer.fill(&x, 2i32)?;
        let event = lab.event();
        writer.record(event)?;
        reader.wait(event)?;
        lab.device.events().release(event)?;
        let next = lab.event();
        other.record(next)?;
        reader.copy(&x, &y)?;
        lab.expect(&mut reader, &y, &[2i32; 64], "what was written before an event that is released")?;
        lab.wait(next)?;
    }
    Ok(())
}

fn a_wait_with_time_left_is_met(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let x = lab.tensor_in(MemoryKind::Pinned, DType::I32, &[2])?;
    lane.fill(&x, 6i32)?;
    let event = lab.event();
    lane.record(event)?;
    let deadline = Instant::now() + crate::support::patience::PATIENCE;
    ensure_eq!(lab.device.wait(event, Some(deadline)), Ok(true), "a wait with time left");
    ensure_eq!(x.memory.host_read(), 6i32.to_ne_bytes().repeat(2), "memory behind it");
    Ok(())
}

fn a_passed_one_is_seen_at_any_deadline(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let event = lab.event();
    lane.record(event)?;
    lab.wait(event)?;
    let passed = Some(Instant::now());
    ensure_eq!(lab.device.wait(event, passed), Ok(true), "a wait past its deadline for what has passed");
    Ok(())
}

fn has_not_passed_before_its_command(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let [mut lane, mut other] = lab.lanes()?;
    let gate = crate::support::gate::ClosedGate::new();
    let [behind, across] = [lab.event(), lab.event()];
    lane.call(&[], gate.function())?;
    lane.record(behind)?;
    other.wait(behind)?;
    other.record(across)?;
    for event in [behind, across] {
        ensure_eq!(lab.device.query(event), Ok(false), "has passed what is behind a closed gate");
    }
    gate.open();
    lab.wait(across)?;
    ensure_eq!(lab.device.query(behind), Ok(true), "has passed what a passed event waited for");
    ensure_eq!(gate.entered(), 1, "functions that came to the gate");
    Ok(())
}

fn works_on_the_thread_that_did_not_record(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let x = lab.tensor_in(MemoryKind::Pinned, DType::I32, &[10])?;
    lane.fill(&x, 8i32)?;
    let event = lab.event();
    lane.record(event)?;
    thread::scope(|scope| {
        let waits = || -> Result<Vec<u8>, Fail> {
            lab.wait(event)?;
            Ok(x.memory.host_read())
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(waits)).collect();
        threads.into_iter().try_for_each(|thread| {
            let bytes = thread.join().map_err(|_| Fail::from("a thread panicked"))??;
            ensure_eq!(bytes, 8i32.to_ne_bytes().repeat(10), "memory seen by another thread");
            Ok(())
        })
    })
}

fn one_marks_places_of_two_streams_in_turn(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let [mut one, mut two] = lab.lanes()?;
    let event = lab.event();
    let x = lab.vector(&mut one, &[0i64])?;
    let step = lab.vector(&mut one, &[1i64])?;
    one.sync()?;
    for _ in 0..20 {
        one.op(Op::Add, &[&x, &step], &x, &Params::default())?;
        one.record(event)?;
        two.wait(event)?;
        two.op(Op::Add, &[&x, &x], &x, &Params::default())?;
        two.record(event)?;
        one.wait(event)?;
    }
    let expected = (0..20).fold(0i64, |x, _| (x + 1) * 2);
    lab.expect(&mut one, &x, &[expected], "what two streams computed in turn with one event")
}

fn synchronizing_passes_it(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let events: Vec<_> = (0..5).map(|_| lab.event()).collect();
    for &event in &events {
        lane.fill(&lab.tensor(DType::I32, &[2])?, 1i32)?;
        lane.record(event)?;
    }
    lane.sync()?;
    for event in events {
        ensure_eq!(lab.device.query(event), Ok(true), "has an event of a synchronized stream passed");
    }
    Ok(())
}
