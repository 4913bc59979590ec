//! Ranks that die, stop, leave or call something else, and what the others see.

use std::time::{Duration, Instant};

use streamvm::program::{CompileOptions, Recorder};
use streamvm::{DType, DeviceId, Vm};
use streamvm_ranks::{Group, Ranks, Reduction};

use crate::AnyError;
use crate::gpu::GPU;
use crate::values::{numbers, tensor};

/// Runs a scenario in which rank 1 misbehaves. Each other rank prints what its collective said, with the milliseconds that it took to say it.
pub(crate) fn run(ranks: Ranks, vm: &Vm, name: &str, arguments: &[&str]) -> Result<(), AnyError> {
    let world = ranks.world().clone();
    let on_gpu = std::env::var_os("RANK_CHECKS_GPU").is_some();
    let there = |group: &Group| if on_gpu { group.on_device(vm, GPU) } else { Ok(group.clone()) };
    let (all, world) = (world.clone(), there(&world)?);
    // All ranks are there.
    ok(vm, &world)?;
    let guilty = world.rank() == 1;
    let length = arguments.first().map_or(Ok(1000), |length| length.parse::<usize>())?;
    let x = tensor(vm, DType::F32, &vec![1; length], &[length])?;
    if name == "step" {
        return step(ranks, vm, &world);
    }
    if name == "messages" {
        return messages(ranks, vm, &world);
    }
    if name == "slow" {
        // Each rank waits for rank 1 for most of the limit, three times.
        for _ in 0..3 {
            if guilty {
                std::thread::sleep(Duration::from_millis(1200));
            }
            ok(vm, &world)?;
        }
        println!("rank {} of {}: fine", world.rank(), world.size());
        return Ok(ranks.finish()?);
    }
    if name == "late" {
        let sum = world.all_reduce(vm, &x, Reduction::Sum)?;
        std::thread::sleep(Duration::from_millis(2500));
        numbers(&sum)?;
        ok(vm, &world)?;
        println!("rank {} of {}: fine", world.rank(), world.size());
        return Ok(ranks.finish()?);
    }
    if name == "length" {
        return length_of_message(ranks, vm, &world);
    }
    let begin = Instant::now();
    let sum = match name {
        "kill" if guilty => {
            std::thread::sleep(Duration::from_millis(100));
            kill(rustix::process::Signal::KILL)?;
            return Ok(());
        }
        "kill-during" => {
            // Many collectives are under way when the rank dies.
            let mut sum = world.all_reduce(vm, &x, Reduction::Max)?;
            let rounds = if on_gpu { 100 } else { 2000 };
            for round in 0..rounds {
                if guilty && round == rounds / 2 {
                    kill(rustix::process::Signal::KILL)?;
                }
                sum = world.all_reduce(vm, &sum, Reduction::Max)?;
            }
            sum
        }
        "stop-reduce" if guilty => {
            kill(rustix::process::Signal::STOP)?;
            return Ok(());
        }
        "stop-reduce" => {
            let sum = world.reduce(vm, &x, Reduction::Sum, 0)?;
            sum.unwrap_or_else(|| {
                // The part of this rank is over at once.
                std::thread::sleep(Duration::from_secs(60));
                x.clone()
            })
        }
        "stop" if guilty => {
            kill(rustix::process::Signal::STOP)?;
            return Ok(());
        }
        "leave" if guilty => return Ok(()),
        "panic" if guilty => panic!("this rank has a bug"),
        "skip" if guilty => {
            // The input has failed here alone, so this rank takes no part.
            vm.call_fn("fails", DeviceId::cpu(0), [x.update()], |_| Err("a bug of this rank".into()))?;
            world.all_reduce(vm, &x, Reduction::Sum)?
        }
        "roots" => {
            let y = tensor(vm, DType::F32, &vec![1; length], &[length])?;
            world.broadcast(vm, &y, usize::from(!guilty))?;
            y
        }
        "order" if guilty => world.all_gather(vm, &x)?,
        "shape" if guilty => world.all_reduce(vm, &x.slice(0, 1..length)?, Reduction::Sum)?,
        "kill" | "stop" | "leave" | "panic" | "skip" | "order" | "shape" => world.all_reduce(vm, &x, Reduction::Sum)?,
        other => return Err(format!("there is no fault {other}").into()),
    };
    // What does not need the other ranks goes on.
    if !(guilty && name == "skip") {
        let own = numbers(&(&x + &x)?)?;
        assert_eq!(own, vec![2; length]);
    }
    let error = match sum.to_vec::<f32>() {
        Ok(sum) => return Err(format!("a collective went on without rank 1: {:?}", sum.first()).into()),
        Err(error) => error.to_string(),
    };
    println!("rank {} after {} ms: {error}", world.rank(), begin.elapsed().as_millis());
    // Nor can the group be used from now on.
    let y = tensor(vm, DType::F32, &vec![1; length], &[length])?;
    let again = world.all_reduce(vm, &y, Reduction::Sum)?.to_vec::<f32>();
    let again = again.expect_err("the group is broken").to_string();
    if !again.contains("cannot be used any longer") {
        return Err(format!("the group went on: {again}").into());
    }
    // A group without the rank that is gone can be used.
    if matches!(name, "kill" | "kill-during" | "leave" | "panic") {
        let rest = there(&all.shrink()?)?;
        if rest.size() != world.size() - 1 {
            return Err(format!("{rest:?} is left of {world:?}").into());
        }
        ok(vm, &rest)?;
        rest.check_order(vm)?.wait()?;
        if !on_gpu {
            let both: Vec<usize> = (0..rest.size()).collect();
            ok(vm, &rest.subgroup(&both)?)?;
        }
    }
    if name == "stop" {
        // A rank that is stopped is still there.
        let shrunk = all.shrink().map(drop).expect_err("rank 1 is there").to_string();
        if !shrunk.contains("rank 1 did not join") {
            return Err(shrunk.into());
        }
        let others: Vec<usize> = (0..world.size()).filter(|&rank| rank != 1).collect();
        ok(vm, &there(&all.subgroup(&others)?)?)?;
    }
    println!("rank {} of {}: fine", world.rank(), world.size());
    if name == "skip" && guilty && !world.capabilities().survives_loss {
        // The end of this process ends the job: the others shall say what they see.
        std::thread::sleep(Duration::from_secs(60));
    }
    // Nothing is under way where the ranks have checked before that they call the same.
    if world.capabilities().survives_loss || matches!(name, "order" | "shape") {
        ranks.finish()?;
    }
    Ok(())
}

/// Rank 1 leaves, and the others go on to exchange messages.
fn messages(ranks: Ranks, vm: &Vm, world: &Group) -> Result<(), AnyError> {
    let x = tensor(vm, DType::I64, &[1], &[1])?;
    if world.rank() != 1 {
        std::thread::sleep(Duration::from_millis(100));
        for _ in 0..3 {
            world.send(vm, &x, 2 - world.rank())?;
            world.receive(vm, &x, 2 - world.rank())?;
            x.wait()?;
            // Longer than what a rank that has ended is allowed.
            std::thread::sleep(Duration::from_millis(200));
        }
    }
    println!("rank {} of {}: fine", world.rank(), world.size());
    Ok(ranks.finish()?)
}

/// Rank 1 sends fewer elements than rank 0 expects.
fn length_of_message(ranks: Ranks, vm: &Vm, world: &Group) -> Result<(), AnyError> {
    let x = tensor(vm, DType::F32, &[1; 8], &[8])?;
    match world.rank() {
        1 => world.send(vm, &x.slice(0, 0..4)?, 0)?.wait()?,
        0 => {
            let error = world.receive(vm, &x, 1)?.wait().expect_err("the lengths differ").to_string();
            if !error.contains("expects 32 bytes, and 16") {
                return Err(error.into());
            }
        }
        _ => {}
    }
    println!("rank {} of {}: fine", world.rank(), world.size());
    Ok(ranks.finish()?)
}

/// A check at the end of a step of training: rank 1 has called other collectives, at first the same number of them, then fewer.
fn step(ranks: Ranks, vm: &Vm, world: &Group) -> Result<(), AnyError> {
    let x = tensor(vm, DType::F32, &[1; 8], &[8])?;
    for _ in 0..100 {
        world.all_reduce(vm, &x, Reduction::Sum)?;
    }
    if world.rank() == 1 {
        // A collective that an engine refuses is not issued.
        let ended = Vm::builder().build()?;
        let x = tensor(&ended, DType::F32, &[1; 8], &[8])?;
        ended.clone().shutdown(Duration::MAX)?;
        world.broadcast(&ended, &x, 0).map(drop).expect_err("the engine has ended");
    }
    world.check_order(vm)?.wait()?;
    world.all_reduce(vm, &x, Reduction::Sum)?;
    if world.rank() == 1 {
        world.broadcast(vm, &x, 0)?;
    } else {
        // A collective of a program counts as well.
        let record = |r: &Recorder| {
            let x = r.feed("x", DeviceId::cpu(0), DType::F32, &[8])?;
            r.fetch("y", &world.all_reduce(r, &x, Reduction::Max)?)
        };
        let executable = vm.compile(&vm.record("max", record)?, &[], &CompileOptions::default())?;
        executable.run(&[("x", &tensor(vm, DType::F32, &[1; 8], &[8])?)])?;
    }
    let begin = Instant::now();
    let error = world.check_order(vm)?.wait().expect_err("the ranks differ").to_string();
    println!("rank {} after {} ms: {error}", world.rank(), begin.elapsed().as_millis());
    let theirs = if world.rank() == 1 { "all_reduce max f32[8]" } else { "broadcast from 0 f32[8]" };
    if !error.contains(theirs) || error.matches("faults.rs:").count() < 2 {
        return Err(format!("expected {theirs:?} and two lines in: {error}").into());
    }
    println!("rank {} of {}: fine", world.rank(), world.size());
    if world.capabilities().survives_loss {
        ranks.finish()?;
    } else {
        // The end of this process ends the job: the others shall say what they see.
        std::thread::sleep(Duration::from_secs(1));
    }
    Ok(())
}

fn kill(signal: rustix::process::Signal) -> Result<(), AnyError> {
    Ok(rustix::process::kill_process(rustix::process::getpid(), signal)?)
}

fn ok(vm: &Vm, group: &Group) -> Result<(), AnyError> {
    let x = tensor(vm, DType::I64, &[1], &[1])?;
    let sum = numbers(&group.all_reduce(vm, &x, Reduction::Sum)?)?;
    if sum == [group.size() as i64] {
        Ok(())
    } else {
        Err(format!("the sum of {} ranks is {sum:?}", group.size()).into())
    }
}
