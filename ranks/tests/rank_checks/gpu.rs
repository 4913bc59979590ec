//! Collectives on a GPU of each rank, by NCCL.

use std::time::{Duration, Instant};

use streamvm::program::{CompileOptions, Recorder};
use streamvm::{DType, DeviceId, Vm};
use streamvm_ranks::{Group, Reduction};

use crate::values::{numbers, tensor};
use crate::{AnyError, every};

pub(crate) const GPU: DeviceId = DeviceId::cuda(0);

pub(crate) fn check(vm: &Vm, world: &Group) -> Result<(), AnyError> {
    let group = world.on_device(vm, GPU)?;
    every::check(vm, &group)?;
    in_device_order(vm, &group)?;
    several_groups(vm, world, &group)?;
    messages_both_ways(vm, &group)?;
    a_barrier_waits(vm, &group)?;
    an_early_result(vm, &group)?;
    programs(vm, &group)?;
    refusals(vm, world, &group)?;
    group.check_order(vm)?.wait()?;
    Ok(())
}

/// Each collective takes what a kernel has computed before, and a kernel its result, without a wait of the host in between.
fn in_device_order(vm: &Vm, group: &Group) -> Result<(), AnyError> {
    let size = group.size() as i64;
    let mut x = tensor(vm, DType::I64, &[group.rank() as i64; 300], &[300])?.to(GPU)?;
    let mut expected = size * (size - 1) / 2 + size;
    for _ in 0..20 {
        x = group.all_reduce(vm, &(&x + 1)?, Reduction::Sum)?;
    }
    for _ in 1..20 {
        expected = (expected + 1).wrapping_mul(size);
    }
    let found = numbers(&x)?;
    if found == [expected; 300] { Ok(()) } else { Err(format!("in order: {}, not {expected}", found[0]).into()) }
}

/// Groups whose collectives the ranks issue in different orders: each has a stream of its own.
fn several_groups(vm: &Vm, world: &Group, all: &Group) -> Result<(), AnyError> {
    let (rank, size) = (world.rank(), world.size());
    let same_parity: Vec<usize> = (0..size).filter(|other| other % 2 == rank % 2).collect();
    let half = world.subgroup(&same_parity)?.on_device(vm, GPU)?;
    let x = tensor(vm, DType::I64, &[1 << rank], &[1])?.to(GPU)?;
    for round in 0..6 {
        let sum = |group: &Group| group.all_reduce(vm, &x, Reduction::Sum);
        let (of_half, of_all) = if (rank + round) % 2 == 0 {
            let first = sum(&half)?;
            (first, sum(all)?)
        } else {
            let first = sum(all)?;
            (sum(&half)?, first)
        };
        let expected: i64 = same_parity.iter().map(|other| 1i64 << other).sum();
        if numbers(&of_half)? != [expected] || numbers(&of_all)? != [(1 << size) - 1] {
            return Err(format!("groups on rank {rank}: {:?}, {:?}", numbers(&of_half), numbers(&of_all)).into());
        }
        all.barrier(vm)?;
    }
    Ok(())
}

/// Each rank sends to all others before it receives, and the messages of each pair come in order.
fn messages_both_ways(vm: &Vm, group: &Group) -> Result<(), AnyError> {
    let (rank, size) = (group.rank(), group.size());
    let content = |from: usize, to: usize, number: usize| (from * 100 + to * 10 + number) as i64;
    for number in 0..3 {
        for to in (0..size).filter(|&to| to != rank) {
            let x = tensor(vm, DType::I64, &[content(rank, to, number); 9], &[9])?.to(GPU)?;
            group.send(vm, &x, to)?;
        }
    }
    for number in 0..3 {
        for from in (0..size).filter(|&from| from != rank) {
            let x = vm.zeros(GPU, DType::I64, &[9])?;
            group.receive(vm, &x, from)?;
            if numbers(&x)? != [content(from, rank, number); 9] {
                return Err(format!("message {number} of rank {from} is {:?}", numbers(&x)).into());
            }
        }
    }
    Ok(())
}

/// A barrier of one rank passes after that of the rank that comes last.
fn a_barrier_waits(vm: &Vm, group: &Group) -> Result<(), AnyError> {
    let (begin, late) = (Instant::now(), Duration::from_millis(200));
    group.barrier(vm)?.wait()?;
    if group.rank() == group.size() - 1 {
        std::thread::sleep(late);
    }
    group.barrier(vm)?.wait()?;
    // One rank came late to the second barrier: so long after the first, which comes after the beginning of all.
    if begin.elapsed() < late {
        return Err(format!("the barrier was over after {:?}", begin.elapsed()).into());
    }
    Ok(())
}

/// The result of a message is there before a later message of the same stream has come: its sender waits for that result.
fn an_early_result(vm: &Vm, group: &Group) -> Result<(), AnyError> {
    let x = tensor(vm, DType::I64, &[7; 5], &[5])?.to(GPU)?;
    let (y, z) = (vm.zeros(GPU, DType::I64, &[5])?, vm.zeros(GPU, DType::I64, &[5])?);
    match group.rank() {
        0 if group.size() > 1 => {
            group.receive(vm, &y, 1)?;
            group.receive(vm, &z, 1)?;
            group.send(vm, &(&y + 1)?, 1)?;
        }
        1 => {
            group.send(vm, &x, 0)?;
            group.receive(vm, &y, 0)?;
            if numbers(&y)? != [8; 5] {
                return Err(format!("an early result: {:?}", numbers(&y)).into());
            }
            group.send(vm, &y, 0)?;
        }
        _ => {}
    }
    if group.rank() == 0 && group.size() > 1 && numbers(&z)? != [8; 5] {
        return Err(format!("a later message: {:?}", numbers(&z)).into());
    }
    Ok(())
}

/// Collectives as steps of a program of the GPU, in runs that overlap.
fn programs(vm: &Vm, group: &Group) -> Result<(), AnyError> {
    let (rank, size) = (group.rank() as i64, group.size() as i64);
    let record = |r: &Recorder| {
        let x = r.feed("x", GPU, DType::I64, &[4])?;
        let y = (&x * 3)?;
        let sum = group.all_reduce(r, &y, Reduction::Sum)?;
        let beside = (&y + 1)?;
        group.all_reduce_in_place(r, &[&beside], Reduction::Max)?;
        r.fetch("y", &(&sum + &beside)?)
    };
    let program = vm.record("collective", record)?;
    let text = program.to_string();
    if !text.contains("collective@cuda:0:") || text.parse::<streamvm::program::Program>()?.to_string() != text {
        return Err(format!("the program does not come back from its text:\n{text}").into());
    }
    let executable = vm.compile(&program, &[], &CompileOptions::default())?;
    let mut runs = Vec::new();
    for run in 0..5i64 {
        let x = tensor(vm, DType::I64, &[run + rank; 4], &[4])?.to(GPU)?;
        runs.push((run, executable.run(&[("x", &x)])?));
    }
    for (run, fetched) in runs {
        let expected = 3 * (0..size).map(|rank| run + rank).sum::<i64>() + 3 * (run + size - 1) + 1;
        if numbers(&fetched["y"])? != [expected; 4] {
            return Err(format!("run {run} of rank {rank}: {:?}, not {expected}", numbers(&fetched["y"])).into());
        }
    }
    Ok(())
}

fn refusals(vm: &Vm, world: &Group, group: &Group) -> Result<(), AnyError> {
    let texts = [
        (world.on_device(vm, DeviceId::cpu(0)).map(drop), "cpu:0 is no GPU of CUDA"),
        (group.on_device(vm, GPU).map(drop), "`on_device` is for groups on the host"),
        (group.subgroup(&[group.rank()]).map(drop), "`subgroup` is for groups on the host"),
        (group.shrink().map(drop), "`shrink` is for groups on the host"),
    ];
    for (result, expected) in texts {
        match result {
            Err(error) if error.to_string().contains(expected) => {}
            other => return Err(format!("{other:?} instead of {expected:?}").into()),
        }
    }
    if !format!("{group:?}").starts_with("Group(world on cuda:0, rank ") || group.capabilities().backend != "NCCL" {
        return Err(format!("{group:?} by {:?}", group.capabilities()).into());
    }
    // Every rank passes a device that its engine does not have.
    match world.on_device(vm, DeviceId::cuda(7)) {
        Err(error) if error.to_string().contains("no group on cuda:7") => Ok(()),
        other => Err(format!("a group on cuda:7: {other:?}").into()),
    }
}
