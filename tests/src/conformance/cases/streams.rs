//! Streams: the commands of a stream run in order, from any thread and after failures.

use std::thread;

use streamvm_ep::{DType, Op, Params};

use super::table;
use crate::conformance::lab::{Bench, Buffer, Fail, ensure, ensure_eq};
use crate::support::random::Random;

table! { "stream":
    without_commands_synchronizes [],
    many_live_side_by_side [],
    runs_commands_in_order [],
    runs_a_long_chain_in_order [],
    orders_reads_before_later_writes [],
    synchronizes_again_and_again [],
    goes_on_after_synchronizing [],
    synchronizing_waits_for_every_command [],
    moves_between_threads [],
    several_threads_use_one_in_turn [],
    independent_ones_do_not_wait [],
    dropped_ones_leave_others_alone [],
    runs_any_sequence_of_commands [],
}

fn without_commands_synchronizes(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    Ok(lab.lane()?.sync()?)
}

fn many_live_side_by_side(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lanes = (0..32).map(|_| lab.lane()).collect::<Result<Vec<_>, _>>()?;
    let buffers = (0..32).map(|_| lab.tensor(DType::I32, &[3])).collect::<Result<Vec<_>, _>>()?;
    for (value, (lane, buffer)) in lanes.iter_mut().zip(&buffers).enumerate() {
        lane.fill(buffer, value as i32)?;
    }
    for (value, (lane, buffer)) in lanes.iter_mut().zip(&buffers).enumerate().rev() {
        lab.expect(lane, buffer, &[value as i32; 3], "what one of 32 streams wrote")?;
    }
    Ok(())
}

fn runs_commands_in_order(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let (a, b, c) = (lab.tensor(DType::I32, &[4])?, lab.tensor(DType::I32, &[4])?, lab.tensor(DType::I32, &[4])?);
    lane.fill(&a, 1i32)?;
    lane.copy(&a, &b)?;
    lane.fill(&a, 2i32)?;
    lane.op(Op::Add, &[&a, &b], &c, &Params::default())?;
    lane.copy(&c, &a)?;
    lane.fill(&c, 9i32)?;
    lab.expect(&mut lane, &a, &[3i32; 4], "a")?;
    lab.expect(&mut lane, &b, &[1i32; 4], "b")?;
    lab.expect(&mut lane, &c, &[9i32; 4], "c")
}

fn runs_a_long_chain_in_order(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let x = lab.vector(&mut lane, &[1i64, 2])?;
    let two = lab.vector(&mut lane, &[2i64, 2])?;
    let one = lab.vector(&mut lane, &[1i64, 1])?;
    let mut expected = [1i64, 2];
    for step in 0..300 {
        // The two ops do not commute, so a wrong order gives another result.
        let (op, by) = if step % 3 == 0 { (Op::Mul, &two) } else { (Op::Add, &one) };
        lane.op(op, &[&x, by], &x, &Params::default())?;
        expected = expected.map(|x| if step % 3 == 0 { x.wrapping_mul(2) } else { x.wrapping_add(1) });
    }
    lab.expect(&mut lane, &x, &expected, "after three hundred steps")
}

fn orders_reads_before_later_writes(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let x = lab.tensor(DType::I32, &[8])?;
    let copies = (0..20).map(|_| lab.tensor(DType::I32, &[8])).collect::<Result<Vec<_>, _>>()?;
    for (value, copy) in copies.iter().enumerate() {
        lane.fill(&x, value as i32)?;
        lane.copy(&x, copy)?;
    }
    for (value, copy) in copies.iter().enumerate() {
        lab.expect(&mut lane, copy, &[value as i32; 8], "what was there when it was copied")?;
    }
    Ok(())
}

fn synchronizes_again_and_again(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    lane.fill(&lab.tensor(DType::U8, &[4])?, 1u8)?;
    for _ in 0..10 {
        lane.sync()?;
    }
    Ok(())
}

fn goes_on_after_synchronizing(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let x = lab.vector(&mut lane, &[0i32])?;
    let one = lab.vector(&mut lane, &[1i32])?;
    for round in 1..=20 {
        lane.op(Op::Add, &[&x, &one], &x, &Params::default())?;
        lab.expect(&mut lane, &x, &[round], "after one round more")?;
    }
    Ok(())
}

fn synchronizing_waits_for_every_command(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let elements = 1 << 16;
    let buffers = (0..10).map(|_| lab.tensor(DType::I32, &[elements])).collect::<Result<Vec<_>, _>>()?;
    lane.fill(&buffers[0], 4i32)?;
    for pair in buffers.windows(2) {
        lane.copy(&pair[0], &pair[1])?;
    }
    let event = lab.event();
    lane.record(event)?;
    lane.sync()?;
    ensure_eq!(lab.device.query(event)?, true, "has passed what was recorded before synchronizing");
    let found = lab.read::<i32>(&mut lane, &buffers[9])?;
    ensure!(found.iter().all(|&value| value == 4), "the last of ten copies is not over");
    Ok(())
}

fn moves_between_threads(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let x = lab.vector(&mut lane, &[0i32])?;
    let one = lab.vector(&mut lane, &[1i32])?;
    for _ in 0..10 {
        let (x, one) = (x.clone(), one.clone());
        let moved = thread::spawn(move || {
            let added = lane.op(Op::Add, &[&x, &one], &x, &Params::default());
            (lane, added)
        });
        let (back, added) = moved.join().map_err(|_| "the thread panicked")?;
        added?;
        lane = back;
    }
    lab.expect(&mut lane, &x, &[10i32], "what ten threads added to, one after the other")
}

fn several_threads_use_one_in_turn(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let mut lane = lab.lane()?;
    let x = lab.vector(&mut lane, &[0i64])?;
    let one = lab.vector(&mut lane, &[1i64])?;
    let shared = std::sync::Mutex::new(&mut lane);
    thread::scope(|scope| {
        let add = || -> Result<(), Fail> {
            for _ in 0..25 {
                let mut lane = shared.lock().map_err(|_| "another thread panicked")?;
                lane.op(Op::Add, &[&x, &one], &x, &Params::default())?;
            }
            Ok(())
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(add)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| Fail::from("a thread panicked"))?)
    })?;
    lab.expect(&mut lane, &x, &[100i64], "what four threads added to, in turn")
}

fn independent_ones_do_not_wait(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let [mut busy, mut free] = lab.lanes()?;
    let (x, y) = (lab.tensor(DType::I32, &[2])?, lab.tensor(DType::I32, &[2])?);
    for value in 0..50 {
        busy.fill(&x, value)?;
    }
    free.fill(&y, 5i32)?;
    // The other stream has passed, independent of the progress of the busy one.
    lab.expect(&mut free, &y, &[5i32; 2], "the other stream")?;
    lab.expect(&mut busy, &x, &[49i32; 2], "the busy stream")
}

fn dropped_ones_leave_others_alone(bench: &Bench) -> Result<(), Fail> {
    let lab = bench.lab()?;
    let x = lab.tensor(DType::I32, &[2])?;
    let mut kept = lab.lane()?;
    for value in 0..10 {
        let mut lane = lab.lane()?;
        lane.fill(&x, value)?;
        lane.sync()?;
    }
    lab.expect(&mut kept, &x, &[9i32; 2], "what streams wrote that are gone")
}

/// Fills, copies and kernels drawn from a seed, compared with the same sequence on the host.
fn runs_any_sequence_of_commands(bench: &Bench) -> Result<(), Fail> {
    for seed in 0..5 {
        let lab = bench.lab()?;
        let mut lane = lab.lane()?;
        let mut rng = Random::new(seed, 0);
        let mut values = [0i64; 6];
        let buffers: Vec<Buffer> =
            values.iter().map(|&value| lab.vector(&mut lane, &[value; 3])).collect::<Result<_, _>>()?;
        for _ in 0..120 {
            let (a, b, c) = (rng.below(6), rng.below(6), rng.below(6));
            match rng.below(3) {
                0 => {
                    values[c] = rng.below(100) as i64;
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
        }
        for (buffer, value) in buffers.iter().zip(values) {
            lab.expect(&mut lane, buffer, &[value; 3], &format!("after 120 commands, seed {seed}"))?;
        }
    }
    Ok(())
}
