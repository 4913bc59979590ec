//! Collectives as steps of programs.

use streamvm::program::{CompileOptions, Dim, Program, Recorder};
use streamvm::{DType, DeviceId, Lane, Vm};
use streamvm_ranks::{Group, Reduction};

use crate::AnyError;
use crate::values::{numbers, tensor};

const CPU: DeviceId = DeviceId::cpu(0);

pub(crate) fn check(vm: &Vm, world: &Group) -> Result<(), AnyError> {
    let (rank, size) = (world.rank() as i64, world.size() as i64);
    let scale = tensor(vm, DType::I64, &[2], &[])?;
    let record = |r: &Recorder| {
        let x = r.feed("x", CPU, DType::I64, &[3, 2])?;
        let scale = r.parameter("scale", &scale)?;
        let y = (&x * &scale)?;
        // Of a view with gaps, of its own memory, in place; two reductions that do not need each other, with compute beside them.
        let sum = world.all_reduce(r, &y.t()?, Reduction::Sum)?;
        let beside = (&y + 1)?;
        let most = world.all_reduce(r, &y, Reduction::Max)?;
        world.all_reduce_in_place(r, &[&beside], Reduction::Sum)?;
        let all = world.all_gather(r, &(&sum + &most.t()?)?)?;
        r.fetch("all", &all)?;
        r.fetch("beside", &beside)
    };
    let program = vm.record("collective", record)?;
    // It prints, and is read again, as any program.
    let text = program.to_string();
    if !text.contains("collective@cpu:0:") || text.parse::<Program>()?.to_string() != text {
        return Err(format!("the program does not come back from its text:\n{text}").into());
    }
    for options in [CompileOptions::default(), CompileOptions { lanes: 2, ..CompileOptions::default() }] {
        let executable = vm.compile(&program, &[("scale", &scale)], &options)?;
        let mut runs = Vec::new();
        for run in 0..6i64 {
            let _lane = Lane((run % 3) as u32).enter();
            let x = tensor(vm, DType::I64, &[run, 1, 2, rank, 4, 5], &[3, 2])?;
            runs.push((run, executable.run(&[("x", &x)])?));
        }
        for (run, fetched) in runs {
            let of = |rank: i64| [2 * run, 2, 4, 2 * rank, 8, 10];
            let total = |at: usize| (0..size).map(|rank| of(rank)[at]).sum::<i64>();
            let most = |at: usize| (0..size).map(|rank| of(rank)[at]).max().unwrap_or_default();
            // Transposed: the elements of [3, 2] as [2, 3].
            let one: Vec<i64> = [0, 2, 4, 1, 3, 5].into_iter().map(|at| total(at) + most(at)).collect();
            let expected = one.repeat(world.size());
            let beside: Vec<i64> = (0..6).map(|at| total(at) + size).collect();
            let found = (numbers(&fetched["all"])?, numbers(&fetched["beside"])?);
            if found != (expected.clone(), beside.clone()) {
                return Err(format!("run {run} of rank {rank}: {found:?}, not {expected:?} and {beside:?}").into());
            }
        }
    }
    of_bounded_sizes(vm, world)?;
    in_a_block(vm, world)
}

/// A program that is compiled once and run with several sizes.
fn of_bounded_sizes(vm: &Vm, world: &Group) -> Result<(), AnyError> {
    let (rank, size) = (world.rank() as i64, world.size());
    let record = |r: &Recorder| {
        let x = r.bounded_feed("x", CPU, DType::I64, &[Dim::up_to("n", 8), 2.into()])?;
        let y = (&x + 1)?;
        world.all_reduce_in_place(r, &[&y, &x.neg()?], Reduction::Sum)?;
        // The copies of a view with gaps are of the size of the run, too.
        r.fetch("all", &world.all_gather(r, &y.slice(1, 0..1)?)?)?;
        r.fetch("y", &y)
    };
    let program = vm.record_bounded("bounded", record)?;
    let executable = vm.compile(&program, &[], &CompileOptions::default())?;
    for rows in [8, 1, 5, 5, 3] {
        let elements: Vec<i64> = (0..2 * rows as i64).map(|at| at * (rank + 1)).collect();
        let run = executable.run(&[("x", &tensor(vm, DType::I64, &elements, &[rows, 2])?)])?;
        let total = (1..=size as i64).sum::<i64>();
        let expected: Vec<i64> = (0..2 * rows as i64).map(|at| at * total + size as i64).collect();
        let all = expected.iter().copied().step_by(2).collect::<Vec<_>>().repeat(size);
        let found = (numbers(&run["y"])?, numbers(&run["all"])?);
        if found != (expected.clone(), all.clone()) {
            return Err(format!("{rows} rows on rank {rank}: {found:?}, not {expected:?} and {all:?}").into());
        }
    }
    Ok(())
}

fn in_a_block(vm: &Vm, world: &Group) -> Result<(), AnyError> {
    let record = |r: &Recorder| {
        let x = r.feed("x", CPU, DType::Bool, &[])?;
        r.while_true(&x, || world.all_reduce_in_place(r, &[&x], Reduction::Min))?;
        r.fetch("x", &x)
    };
    match vm.record("loop", record) {
        Ok(_) => Err("a collective in a loop was recorded".into()),
        Err(error) if error.to_string().contains("in a block there are no collectives") => Ok(()),
        Err(error) => Err(error.into()),
    }
}
