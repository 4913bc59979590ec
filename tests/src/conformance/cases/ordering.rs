//! Order between streams by events alone: a wait must hold back later commands, through any number of streams.
//!
//! A device that queues commands may run them in the right order by chance even if it ignores a wait. So each case
//! runs a number of rounds, with delaying commands in front that make the wrong order likely where it depends on timing.

use std::time::Instant;

use streamvm_ep::{DType, EventId, MemoryKind, Op, Params};

use super::table;
use crate::conformance::lab::{Bench, Buffer, Fail, Lab, ensure_eq};
use crate::conformance::lane::Lane;
use crate::support::random::Random;

table! { "order":
    a_read_waits_for_a_write [],
    a_write_waits_for_a_read [],
    a_write_waits_for_a_write [],
    a_kernel_waits_for_a_copy [],
    a_copy_waits_for_a_kernel [],
    a_function_waits_for_a_copy [Calls],
    goes_through_a_chain_of_streams [],
    goes_through_a_stream_without_commands [],
    a_diamond_joins [],
    one_waits_for_many [],
    many_wait_for_one [],
    streams_take_turns [],
    several_waits_add_up [],
    a_wait_holds_back_only_what_comes_later [],
    a_wait_binds_to_the_record_of_its_time [],
    a_wait_for_an_own_event_is_met [],
    a_wait_for_a_passed_event_is_met [],
    waiting_on_the_host_covers_what_the_stream_waited_for [],
    synchronizing_covers_what_the_stream_waited_for [],
    a_record_covers_every_command_before_it [],
    memory_is_used_again_in_order [],
    any_program_gives_what_plain_order_gives [],
    streams_of_two_devices [SharedEvents],
    through_a_third_device [SharedEvents],
}

const ROUNDS: i32 = 8;

/// Elements of a buffer: enough that its commands take a while.
const ELEMENTS: usize = 4096;

fn buffer(lab: &Lab) -> Result<Buffer, Fail> {
    lab.tensor(DType::I32, &[ELEMENTS])
}

/// Issues commands that delay the commands after them.
fn delay(lab: &Lab, lane: &mut Lane) -> Result<(), Fail> {
    let (a, b) = (buffer(lab)?, buffer(lab)?);
    for value in 0..4 {
        lane.fill(&a, value)?;
        lane.copy(&a, &b)?;
    }
    Ok(())
}

fn record(lab: &Lab, lane: &mut Lane) -> Result<EventId, Fail> {
    let event = lab.event();
    lane.record(event)?;
    Ok(event)
}

fn expect(lab: &Lab, lane: &mut Lane, buffer: &Buffer, value: i32, what: &str) -> Result<(), Fail> {
    let found = lab.read::<i32>(lane, buffer)?;
    match found.iter().position(|&found| found != value) {
        None => Ok(()),
        Some(at) => Err(format!("{what}: element {at} is {}, not {value}", found[at]).into()),
    }
}

fn a_read_waits_for_a_write(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let [mut writer, mut reader] = lab.lanes()?;
    for round in 1..=ROUNDS {
        let (x, y) = (buffer(&lab)?, buffer(&lab)?);
        writer.fill(&x, -1i32)?;
        delay(&lab, &mut writer)?;
        writer.fill(&x, round)?;
        let written = record(&lab, &mut writer)?;
        reader.wait(written)?;
        reader.copy(&x, &y)?;
        expect(&lab, &mut reader, &y, round, "what was read behind a wait for the write")?;
    }
    Ok(())
}

fn a_write_waits_for_a_read(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let [mut reader, mut writer] = lab.lanes()?;
    for round in 1..=ROUNDS {
        let (x, y) = (buffer(&lab)?, buffer(&lab)?);
        reader.fill(&x, round)?;
        delay(&lab, &mut reader)?;
        reader.copy(&x, &y)?;
        let read = record(&lab, &mut reader)?;
        writer.wait(read)?;
        writer.fill(&x, -1i32)?;
        expect(&lab, &mut writer, &x, -1, "what was written behind a wait for the read")?;
        expect(&lab, &mut reader, &y, round, "what was read before the write")?;
    }
    Ok(())
}

fn a_write_waits_for_a_write(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let [mut first, mut second] = lab.lanes()?;
    for round in 1..=ROUNDS {
        let x = buffer(&lab)?;
        delay(&lab, &mut first)?;
        first.fill(&x, -1i32)?;
        let written = record(&lab, &mut first)?;
        second.wait(written)?;
        second.fill(&x, round)?;
        second.sync()?;
        first.sync()?;
        expect(&lab, &mut first, &x, round, "the last of two writes")?;
    }
    Ok(())
}

fn a_kernel_waits_for_a_copy(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let [mut copies, mut computes] = lab.lanes()?;
    let staging = lab.tensor_in(MemoryKind::Pinned, DType::I32, &[ELEMENTS])?;
    for round in 1..=ROUNDS {
        let (x, y) = (buffer(&lab)?, buffer(&lab)?);
        copies.fill(&staging, round)?;
        delay(&lab, &mut copies)?;
        copies.copy(&staging, &x)?;
        let copied = record(&lab, &mut copies)?;
        computes.wait(copied)?;
        computes.op(Op::Add, &[&x, &x], &y, &Params::default())?;
        expect(&lab, &mut computes, &y, 2 * round, "what was computed of what was copied")?;
    }
    Ok(())
}

fn a_copy_waits_for_a_kernel(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let [mut computes, mut copies] = lab.lanes()?;
    for round in 1..=ROUNDS {
        let (x, y) = (buffer(&lab)?, buffer(&lab)?);
        let staging = lab.tensor_in(MemoryKind::Pinned, DType::I32, &[ELEMENTS])?;
        computes.fill(&x, round)?;
        delay(&lab, &mut computes)?;
        computes.op(Op::Mul, &[&x, &x], &y, &Params::default())?;
        let computed = record(&lab, &mut computes)?;
        copies.wait(computed)?;
        copies.copy(&y, &staging)?;
        let copied = record(&lab, &mut copies)?;
        lab.wait(copied)?;
        let expected = (round * round).to_ne_bytes().repeat(ELEMENTS);
        if staging.memory.host_read() != expected {
            return Err("a copy did not wait for the kernel that wrote its source".into());
        }
    }
    Ok(())
}

fn a_function_waits_for_a_copy(bench: &Bench) -> Result<(), Fail> {
    use streamvm_ep::{Access, FnContext};
    let lab = bench.lab()?;
    let [mut copies, mut calls] = lab.lanes()?;
    for round in 1..=ROUNDS {
        let (x, y) = (buffer(&lab)?, buffer(&lab)?);
        let sum = lab.tensor(DType::I64, &[1])?;
        copies.fill(&x, round)?;
        copies.fill(&y, -1i32)?;
        delay(&lab, &mut copies)?;
        copies.copy(&x, &y)?;
        let copied = record(&lab, &mut copies)?;
        calls.wait(copied)?;
        calls.call(&[(&y, Access::Read), (&sum, Access::Write)], |context: &mut FnContext<'_>| {
            let sum: i64 = context.reads.get::<i32>(0)?.iter().map(|&x| i64::from(x)).sum();
            context.writes.take::<i64>(0)?[0] = sum;
            Ok(())
        })?;
        lab.expect(&mut calls, &sum, &[i64::from(round) * ELEMENTS as i64], "what a function saw behind a wait")?;
    }
    Ok(())
}

fn goes_through_a_chain_of_streams(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lanes = lab.lanes::<6>()?;
    let one = buffer(&lab)?;
    lanes[0].fill(&one, 1i32)?;
    for round in 1..=ROUNDS {
        let x = buffer(&lab)?;
        delay(&lab, &mut lanes[0])?;
        lanes[0].fill(&x, round)?;
        for next in 1..6 {
            let event = record(&lab, &mut lanes[next - 1])?;
            lanes[next].wait(event)?;
            lanes[next].op(Op::Add, &[&x, &one], &x, &Params::default())?;
        }
        expect(&lab, &mut lanes[5], &x, round + 5, "what six streams computed one after the other")?;
    }
    Ok(())
}

fn goes_through_a_stream_without_commands(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let [mut first, mut between, mut last] = lab.lanes()?;
    for round in 1..=ROUNDS {
        let (x, y) = (buffer(&lab)?, buffer(&lab)?);
        first.fill(&x, -1i32)?;
        delay(&lab, &mut first)?;
        first.fill(&x, round)?;
        let written = record(&lab, &mut first)?;
        between.wait(written)?;
        let passed_on = record(&lab, &mut between)?;
        last.wait(passed_on)?;
        last.copy(&x, &y)?;
        expect(&lab, &mut last, &y, round, "order passed on by a stream that does nothing else")?;
    }
    Ok(())
}

fn a_diamond_joins(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let [mut top, mut left, mut right] = lab.lanes()?;
    for round in 1..=ROUNDS {
        let (x, a, b, sum) = (buffer(&lab)?, buffer(&lab)?, buffer(&lab)?, buffer(&lab)?);
        delay(&lab, &mut top)?;
        top.fill(&x, round)?;
        let written = record(&lab, &mut top)?;
        left.wait(written)?;
        delay(&lab, &mut left)?;
        left.op(Op::Add, &[&x, &x], &a, &Params::default())?;
        let left_over = record(&lab, &mut left)?;
        right.wait(written)?;
        delay(&lab, &mut right)?;
        right.op(Op::Mul, &[&x, &x], &b, &Params::default())?;
        let right_over = record(&lab, &mut right)?;
        let over = if round % 2 == 0 { [left_over, right_over] } else { [right_over, left_over] };
        over.into_iter().try_for_each(|event| top.wait(event))?;
        top.op(Op::Add, &[&a, &b], &sum, &Params::default())?;
        expect(&lab, &mut top, &sum, 2 * round + round * round, "the join of two streams")?;
    }
    Ok(())
}

fn one_waits_for_many(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lanes = lab.lanes::<8>()?;
    let mut last = lab.lane()?;
    for round in 1..=ROUNDS {
        let sum = buffer(&lab)?;
        last.fill(&sum, 0i32)?;
        for (index, lane) in lanes.iter_mut().enumerate() {
            let x = buffer(&lab)?;
            lane.fill(&x, -1i32)?;
            delay(&lab, lane)?;
            lane.fill(&x, round * index as i32)?;
            let event = record(&lab, lane)?;
            last.wait(event)?;
            last.op(Op::Add, &[&sum, &x], &sum, &Params::default())?;
        }
        expect(&lab, &mut last, &sum, 28 * round, "the sum of what eight streams wrote")?;
    }
    Ok(())
}

fn many_wait_for_one(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut first = lab.lane()?;
    let mut lanes = lab.lanes::<8>()?;
    for round in 1..=ROUNDS {
        let x = buffer(&lab)?;
        first.fill(&x, -1i32)?;
        delay(&lab, &mut first)?;
        first.fill(&x, round)?;
        let written = record(&lab, &mut first)?;
        let copies = lanes.iter().map(|_| buffer(&lab)).collect::<Result<Vec<_>, _>>()?;
        for (lane, copy) in lanes.iter_mut().zip(&copies) {
            lane.wait(written)?;
            lane.copy(&x, copy)?;
        }
        for (lane, copy) in lanes.iter_mut().zip(&copies).rev() {
            expect(&lab, lane, copy, round, "one of eight readers of one write")?;
        }
    }
    Ok(())
}

fn streams_take_turns(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lanes = lab.lanes::<2>()?;
    let (x, one) = (buffer(&lab)?, buffer(&lab)?);
    lanes[0].fill(&x, 0i32)?;
    lanes[0].fill(&one, 1i32)?;
    let mut expected = 0i32;
    for turn in 0..60 {
        let (op, by, next) =
            if turn % 2 == 0 { (Op::Add, &one, expected + 1) } else { (Op::Add, &x, expected.wrapping_mul(2)) };
        lanes[turn % 2].op(op, &[&x, by], &x, &Params::default())?;
        expected = next;
        let event = record(&lab, &mut lanes[turn % 2])?;
        lanes[(turn + 1) % 2].wait(event)?;
    }
    expect(&lab, &mut lanes[0], &x, expected, "what two streams computed in sixty turns")
}

fn several_waits_add_up(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let [mut one, mut two, mut last] = lab.lanes()?;
    for round in 1..=ROUNDS {
        let (x, y, sum) = (buffer(&lab)?, buffer(&lab)?, buffer(&lab)?);
        one.fill(&x, -1i32)?;
        two.fill(&y, -1i32)?;
        delay(&lab, &mut one)?;
        delay(&lab, &mut two)?;
        one.fill(&x, round)?;
        two.fill(&y, 10 * round)?;
        let events = [record(&lab, &mut one)?, record(&lab, &mut two)?];
        for event in events {
            last.wait(event)?;
        }
        last.op(Op::Add, &[&x, &y], &sum, &Params::default())?;
        expect(&lab, &mut last, &sum, 11 * round, "a sum behind two waits")?;
    }
    Ok(())
}

fn a_wait_holds_back_only_what_comes_later(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let [mut one, mut two] = lab.lanes()?;
    let (x, y, z) = (buffer(&lab)?, buffer(&lab)?, buffer(&lab)?);
    // Each stream waits for work that the other got before its own wait: a device that holds back too much would hang.
    for round in 1..=ROUNDS {
        one.fill(&x, round)?;
        two.fill(&y, 10 * round)?;
        let (of_one, of_two) = (record(&lab, &mut one)?, record(&lab, &mut two)?);
        one.wait(of_two)?;
        two.wait(of_one)?;
        one.op(Op::Add, &[&x, &y], &z, &Params::default())?;
        let added = record(&lab, &mut one)?;
        two.wait(added)?;
        two.op(Op::Sub, &[&z, &x], &z, &Params::default())?;
        let over = record(&lab, &mut two)?;
        one.wait(over)?;
        expect(&lab, &mut one, &z, 10 * round, "what two streams computed that wait for each other")?;
    }
    Ok(())
}

/// A device that read the event when the wait runs, rather than when it is issued, would wait for a later record. Here that record itself
/// waits, so such a device would wait for ever.
fn a_wait_binds_to_the_record_of_its_time(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let [mut one, mut two] = lab.lanes()?;
    let event = lab.event();
    for round in 1..=ROUNDS {
        let (x, y) = (buffer(&lab)?, buffer(&lab)?);
        delay(&lab, &mut one)?;
        one.fill(&x, round)?;
        one.record(event)?;
        two.wait(event)?;
        two.copy(&x, &y)?;
        two.record(event)?;
        one.wait(event)?;
        one.fill(&x, -1i32)?;
        one.record(event)?;
        expect(&lab, &mut two, &y, round, "what was read between two writes")?;
        expect(&lab, &mut one, &x, -1, "the second write")?;
    }
    Ok(())
}

fn a_wait_for_an_own_event_is_met(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let x = buffer(&lab)?;
    for value in 0..5 {
        lane.fill(&x, value)?;
        let event = record(&lab, &mut lane)?;
        lane.wait(event)?;
    }
    expect(&lab, &mut lane, &x, 4, "a stream that waits for itself")
}

fn a_wait_for_a_passed_event_is_met(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let [mut one, mut two] = lab.lanes()?;
    let (x, y) = (buffer(&lab)?, buffer(&lab)?);
    one.fill(&x, 5i32)?;
    let event = record(&lab, &mut one)?;
    lab.wait(event)?;
    two.wait(event)?;
    two.wait(event)?;
    two.copy(&x, &y)?;
    expect(&lab, &mut two, &y, 5, "what was read behind waits for what had passed")
}

fn waiting_on_the_host_covers_what_the_stream_waited_for(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let [mut one, mut two] = lab.lanes()?;
    for round in 1..=ROUNDS {
        let x = lab.tensor_in(MemoryKind::Pinned, DType::I32, &[ELEMENTS])?;
        delay(&lab, &mut one)?;
        one.fill(&x, round)?;
        let written = record(&lab, &mut one)?;
        two.wait(written)?;
        let behind = record(&lab, &mut two)?;
        let deadline = Instant::now() + crate::support::patience::PATIENCE;
        ensure_eq!(lab.device.wait(behind, Some(deadline)), Ok(true), "a wait with time left");
        ensure_eq!(lab.device.query(written), Ok(true), "has passed what a passed event waited for");
        if x.memory.host_read() != round.to_ne_bytes().repeat(ELEMENTS) {
            return Err("the host waited for a stream that had waited, and the write is not there".into());
        }
    }
    Ok(())
}

fn synchronizing_covers_what_the_stream_waited_for(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let [mut one, mut two] = lab.lanes()?;
    for round in 1..=ROUNDS {
        let x = lab.tensor_in(MemoryKind::Pinned, DType::I32, &[ELEMENTS])?;
        delay(&lab, &mut one)?;
        one.fill(&x, round)?;
        let written = record(&lab, &mut one)?;
        two.wait(written)?;
        two.sync()?;
        ensure_eq!(lab.device.query(written), Ok(true), "has passed what a synchronized stream waited for");
        if x.memory.host_read() != round.to_ne_bytes().repeat(ELEMENTS) {
            return Err("a stream that had waited was synchronized, and the write is not there".into());
        }
    }
    Ok(())
}

fn a_record_covers_every_command_before_it(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let [mut one, mut two] = lab.lanes()?;
    let buffers = (0..10).map(|_| buffer(&lab)).collect::<Result<Vec<_>, _>>()?;
    let sum = buffer(&lab)?;
    for round in 1..=ROUNDS {
        for (index, buffer) in buffers.iter().enumerate() {
            one.fill(buffer, round * index as i32)?;
        }
        let all = record(&lab, &mut one)?;
        two.wait(all)?;
        two.fill(&sum, 0i32)?;
        for buffer in buffers.iter().rev() {
            two.op(Op::Add, &[&sum, buffer], &sum, &Params::default())?;
        }
        let added = record(&lab, &mut two)?;
        one.wait(added)?;
        expect(&lab, &mut two, &sum, 45 * round, "the sum of ten writes before one record")?;
    }
    Ok(())
}

/// Memory is freed as soon as no command uses it, and is allocated again for another stream.
fn memory_is_used_again_in_order(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let [mut one, mut two] = lab.lanes()?;
    for round in 1..=3 * ROUNDS {
        let out = buffer(&lab)?;
        {
            let x = buffer(&lab)?;
            one.fill(&x, round)?;
            one.copy(&x, &out)?;
            one.sync()?;
        }
        let y = buffer(&lab)?;
        two.fill(&y, -round)?;
        expect(&lab, &mut one, &out, round, "what was copied from memory that is freed")?;
        expect(&lab, &mut two, &y, -round, "memory that had another use")?;
        two.sync()?;
    }
    Ok(())
}

/// Random programs on four streams, where each command waits for all its dependences, compared with the same program on the host.
fn any_program_gives_what_plain_order_gives(bench: &Bench) -> Result<(), Fail> {
    for seed in 0..6 {
        let lab = bench.lab()?;
        let mut rng = Random::new(seed, 0);
        let mut lanes = lab.lanes::<4>()?;
        let mut values = [0i32; 5];
        let buffers = (0..5).map(|_| buffer(&lab)).collect::<Result<Vec<_>, _>>()?;
        // For each buffer, the event of its last write and the events of the reads since.
        let mut wrote: Vec<Option<EventId>> = vec![None; 5];
        let mut read: Vec<Vec<EventId>> = vec![Vec::new(); 5];
        for (index, buffer) in buffers.iter().enumerate() {
            lanes[0].fill(buffer, 0i32)?;
            wrote[index] = Some(record(&lab, &mut lanes[0])?);
        }
        for _ in 0..60 {
            let (a, b, c) = (rng.below(5), rng.below(5), rng.below(5));
            let lane = &mut lanes[rng.below(4)];
            let kind = rng.below(3);
            let reads = match kind {
                0 => vec![],
                1 => vec![a],
                _ => vec![a, b],
            };
            let needs = reads.iter().filter_map(|&input| wrote[input]).chain(wrote[c]).chain(read[c].iter().copied());
            for event in needs.collect::<Vec<_>>() {
                lane.wait(event)?;
            }
            match kind {
                0 => {
                    values[c] = rng.below(1000) as i32;
                    lane.fill(&buffers[c], values[c])?;
                }
                1 => {
                    values[c] = values[a];
                    lane.copy(&buffers[a], &buffers[c])?;
                }
                _ => {
                    values[c] = values[a].wrapping_sub(values[b]);
                    lane.op(Op::Sub, &[&buffers[a], &buffers[b]], &buffers[c], &Params::default())?;
                }
            }
            let event = record(&lab, lane)?;
            for input in reads.into_iter().filter(|&input| input != c) {
                read[input].push(event);
            }
            wrote[c] = Some(event);
            read[c].clear();
        }
        for lane in &mut lanes {
            lane.sync()?;
        }
        for (buffer, value) in buffers.iter().zip(values) {
            expect(&lab, &mut lanes[0], buffer, value, &format!("a program on four streams, seed {seed}"))?;
        }
    }
    Ok(())
}

fn streams_of_two_devices(bench: &Bench) -> Result<(), Fail> {
    let labs = bench.labs(2, None)?;
    let (mut here, mut there) = (labs[0].lane()?, labs[1].lane()?);
    for round in 1..=ROUNDS {
        let (x, y) = (buffer(&labs[0])?, buffer(&labs[1])?);
        here.fill(&x, -1i32)?;
        delay(&labs[0], &mut here)?;
        here.fill(&x, round)?;
        let written = record(&labs[0], &mut here)?;
        there.wait(written)?;
        there.copy(&x, &y)?;
        let copied = record(&labs[1], &mut there)?;
        here.wait(copied)?;
        here.fill(&x, -2i32)?;
        expect(&labs[1], &mut there, &y, round, "what the other device copied")?;
        expect(&labs[0], &mut here, &x, -2, "what was written once it had")?;
    }
    Ok(())
}

fn through_a_third_device(bench: &Bench) -> Result<(), Fail> {
    let labs = bench.labs(3, None)?;
    let mut lanes = labs.iter().map(Lab::lane).collect::<Result<Vec<_>, _>>()?;
    for round in 1..=ROUNDS {
        let x = labs[0].tensor_in(MemoryKind::Pinned, DType::I32, &[ELEMENTS])?;
        delay(&labs[0], &mut lanes[0])?;
        lanes[0].fill(&x, round)?;
        let mut event = record(&labs[0], &mut lanes[0])?;
        for next in 1..3 {
            lanes[next].wait(event)?;
            event = record(&labs[next], &mut lanes[next])?;
        }
        labs[2].wait(event)?;
        if x.memory.host_read() != round.to_ne_bytes().repeat(ELEMENTS) {
            return Err("order was lost on its way through three devices".into());
        }
    }
    Ok(())
}
