//! Several threads on one device at once: memory, streams, events and waits.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Barrier, Mutex};
use std::thread;

use streamvm_ep::{DType, EventId, MemoryKind, Op, Params};

use super::table;
use crate::conformance::lab::{Bench, Buffer, Fail, ensure, ensure_eq};

table! { "thread":
    allocate_and_free_together [],
    never_pass_the_limit_together [Limit],
    make_streams_together [],
    have_a_stream_each [],
    acquire_and_release_events_together [],
    hand_work_on_through_events [],
    query_while_others_record [],
    wait_for_one_event_together [],
    tell_every_failure_once_together [],
}

const THREADS: usize = 4;

/// Runs `body` on several threads at once, each with its number.
fn together(body: impl Fn(usize) -> Result<(), Fail> + Sync) -> Result<(), Fail> {
    thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = (0..THREADS).map(|number| scope.spawn(move || body(number))).collect();
        let ends: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        ends.into_iter().try_for_each(|end| end.map_err(|_| Fail::from("a thread panicked"))?)
    })
}

fn allocate_and_free_together(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    together(|number| {
        let mut held = Vec::new();
        for round in 0..100 {
            held.push(lab.allocate(MemoryKind::ALL[(round + number) % 3], 1 + round * 13)?);
            if round % 3 == 2 {
                held.remove(0);
            }
        }
        Ok(())
    })?;
    for kind in MemoryKind::ALL {
        let counts = lab.device.memory(kind);
        ensure_eq!((counts.in_use, counts.regions), (0, 0), "{kind} memory once every thread is over");
    }
    let allocations: u64 = MemoryKind::ALL.map(|kind| lab.device.memory(kind).allocations).iter().sum();
    ensure_eq!(allocations, 100 * THREADS as u64, "allocations of all threads");
    Ok(())
}

fn never_pass_the_limit_together(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.limited(1000)?;
    // In each round all threads hold their allocations at the same time.
    let all = Barrier::new(THREADS);
    together(|_| {
        let mut most = 0;
        for _ in 0..100 {
            let held = lab.allocate(MemoryKind::Device, 400);
            all.wait();
            most = most.max(lab.device.memory(MemoryKind::Device).in_use);
            all.wait();
            drop(held);
        }
        ensure!(most <= 1000, "{most} bytes were in use of at most 1000");
        Ok(())
    })?;
    let counts = lab.device.memory(MemoryKind::Device);
    ensure_eq!(counts.in_use, 0, "bytes in use at the end");
    ensure!(counts.peak <= 800, "a peak of {} bytes with room for two regions of 400", counts.peak);
    Ok(())
}

fn make_streams_together(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    together(|number| {
        for round in 0..20 {
            let mut lane = lab.lane()?;
            let x = lab.tensor(DType::I32, &[2])?;
            let value = (number * 100 + round) as i32;
            lane.fill(&x, value)?;
            lab.expect(&mut lane, &x, &[value; 2], "what a thread wrote on a stream of its own")?;
        }
        Ok(())
    })
}

fn have_a_stream_each(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    together(|number| {
        let mut lane = lab.lane()?;
        let x = lab.vector(&mut lane, &[0i64])?;
        let step = lab.vector(&mut lane, &[1 + number as i64])?;
        for _ in 0..50 {
            lane.op(Op::Add, &[&x, &step], &x, &Params::default())?;
        }
        lab.expect(&mut lane, &x, &[50 * (1 + number as i64)], "what a thread computed on a stream of its own")
    })
}

fn acquire_and_release_events_together(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let before = lab.device.events().live();
    let live = Mutex::new(std::collections::HashSet::new());
    together(|_| {
        let mut lane = lab.lane()?;
        for _ in 0..100 {
            let event = lab.event();
            let new = live.lock().map_err(|_| "a thread panicked")?.insert(event);
            ensure!(new, "two threads have the event {event}");
            lane.record(event)?;
            lab.wait(event)?;
            live.lock().map_err(|_| "a thread panicked")?.remove(&event);
            lab.device.events().release(event)?;
        }
        Ok(())
    })?;
    ensure_eq!(lab.device.events().live(), before, "live events once every thread is over");
    Ok(())
}

/// One thread writes and records; the other waits for the record and reads. Both return the memory that they used, so that a thread which
/// has itself waited for both frees it.
fn hand_work_on_through_events(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let (to_reader, written) = channel::<(Buffer, EventId, i32)>();
    let used = Mutex::new(Vec::new());
    let keep = |buffer: &Buffer| -> Result<(), Fail> {
        used.lock().map_err(|_| "a thread panicked")?.push(buffer.clone());
        Ok(())
    };
    let writer = |to_reader: Sender<(Buffer, EventId, i32)>| -> Result<EventId, Fail> {
        let mut lane = lab.lane()?;
        let event = lab.event();
        for value in 0..40 {
            let x = lab.tensor(DType::I32, &[1000])?;
            keep(&x)?;
            lane.fill(&x, -1i32)?;
            lane.fill(&x, value)?;
            let event = lab.event();
            lane.record(event)?;
            // The receiver is gone because the reader has failed; the reader returns the error.
            if to_reader.send((x, event, value)).is_err() {
                break;
            }
        }
        lane.record(event)?;
        Ok(event)
    };
    let reader = |written: Receiver<(Buffer, EventId, i32)>| -> Result<EventId, Fail> {
        let mut lane = lab.lane()?;
        let last = lab.event();
        for (x, event, value) in written {
            let y = lab.tensor(DType::I32, &[1000])?;
            keep(&y)?;
            lane.wait(event)?;
            lane.copy(&x, &y)?;
            lab.expect(&mut lane, &y, &[value; 1000], "what the other thread wrote")?;
        }
        lane.record(last)?;
        Ok(last)
    };
    let ends = thread::scope(|scope| {
        let writes = scope.spawn(|| writer(to_reader));
        let reads = scope.spawn(|| reader(written));
        [reads.join(), writes.join()]
    });
    for end in ends {
        lab.wait(end.map_err(|_| "a thread panicked")??)?;
    }
    Ok(())
}

fn query_while_others_record(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut setup = lab.lane()?;
    let event = lab.event();
    setup.record(event)?;
    setup.sync()?;
    together(|number| {
        let mut lane = lab.lane()?;
        let x = lab.tensor(DType::I32, &[100])?;
        for value in 0..50 {
            if number % 2 == 0 {
                lane.fill(&x, value)?;
                lane.record(event)?;
            } else {
                // The event may have any of the records, but it is recorded, so the query has an answer.
                lab.device.query(event)?;
            }
        }
        Ok(lane.sync()?)
    })?;
    lab.wait(event)
}

fn wait_for_one_event_together(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    for round in 0..10i32 {
        let mut lane = lab.lane()?;
        let x = lab.tensor_in(MemoryKind::Pinned, DType::I32, &[100])?;
        for value in 0..10 {
            lane.fill(&x, round * 10 + value)?;
        }
        let event = lab.event();
        lane.record(event)?;
        together(|_| {
            lab.wait(event)?;
            let expected = (round * 10 + 9).to_ne_bytes().repeat(100);
            ensure!(x.memory.host_read() == expected, "a thread that waited does not see what was written");
            Ok(())
        })?;
    }
    Ok(())
}

fn tell_every_failure_once_together(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut setup = lab.lane()?;
    let zero = lab.vector(&mut setup, &[0i32, 0])?;
    let ready = lab.event();
    setup.record(ready)?;
    let (told, over) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    together(|_| {
        let mut lane = lab.lane()?;
        lane.wait(ready)?;
        let output = lab.tensor(DType::I32, &[2])?;
        for _ in 0..10 {
            let failed = lane.op(Op::Div, &[&zero, &zero], &output, &Params::default());
            let event = lab.event();
            lane.record(event)?;
            lab.wait(event)?;
            let mut told = told.lock().map_err(|_| "a thread panicked")?;
            told.extend(failed.err().map(|_| lane.last()));
            told.extend(lab.device.take_failures().iter().map(|failure| (failure.stream, failure.seq)));
        }
        let last = lab.event();
        lane.record(last)?;
        over.lock().map_err(|_| "a thread panicked")?.push(last);
        Ok(())
    })?;
    // This thread frees the zeros, so it first waits until their readers have passed.
    for event in over.into_inner().map_err(|_| "a thread panicked")? {
        lab.wait(event)?;
    }
    let mut told = told.into_inner().map_err(|_| "a thread panicked")?;
    told.sort_unstable();
    let count = told.len();
    told.dedup();
    ensure_eq!((count, told.len()), (10 * THREADS, 10 * THREADS), "failures told, and different ones of them");
    Ok(())
}
