//! A pipeline over ranks: each rank has one layer of a network, and hands what it computes to the next rank.
//!
//! The micro-batches go through the ranks one after the other: while rank 1 computes the first, rank 0 computes the second. Each rank issues all of its work at once;
//! messages and kernels are ordered by the tensors that they use.
//!
//! Run with `mpirun -n 3 target/release/examples/rank_pipeline`, or `streamvm launch -n 3 target/release/examples/rank_pipeline`. The last rank checks the results beside
//! those of all layers on one rank.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example shows what it does")]

use std::process::ExitCode;

use streamvm::{DType, DeviceId, Error, Generator, Tensor, Vm};
use streamvm_ranks::Ranks;

const CPU: DeviceId = DeviceId::cpu(0);
const WIDTH: usize = 64;
const ROWS: usize = 16;
const MICRO_BATCHES: usize = 8;

type AnyError = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    env_logger::init();
    if let Err(error) = run() {
        eprintln!("rank_pipeline: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn layer(x: &Tensor, weight: &Tensor) -> Result<Tensor, Error> {
    x.matmul(weight)?.tanh()
}

fn run() -> Result<(), AnyError> {
    let ranks = Ranks::start()?;
    let world = ranks.world();
    let (rank, size) = (world.rank(), world.size());
    let vm = Vm::builder().build()?;
    // All ranks draw the same numbers, so the last one can check.
    let generator = Generator::new(1);
    let weights = (0..size)
        .map(|_| vm.randn(&generator, CPU, DType::F32, &[WIDTH, WIDTH])? * (1.0 / WIDTH as f64).sqrt())
        .collect::<Result<Vec<Tensor>, Error>>()?;
    let batches = (0..MICRO_BATCHES)
        .map(|_| vm.randn(&generator, CPU, DType::F32, &[ROWS, WIDTH]))
        .collect::<Result<Vec<Tensor>, Error>>()?;

    let mut results = Vec::new();
    for batch in &batches {
        let x = if rank == 0 {
            batch.clone()
        } else {
            // Each micro-batch has a tensor of its own, so messages need not wait until the last one was used.
            let x = vm.zeros(CPU, DType::F32, &[ROWS, WIDTH])?;
            world.receive(&vm, &x, rank - 1)?;
            x
        };
        let y = layer(&x, &weights[rank])?;
        if rank + 1 < size {
            world.send(&vm, &y, rank + 1)?;
        }
        results.push(y);
    }
    vm.wait_all()?;

    if rank + 1 == size {
        for (batch, result) in batches.iter().zip(&results) {
            let expected = weights.iter().try_fold(batch.clone(), |x, weight| layer(&x, weight))?;
            if expected.to_vec::<f32>()? != result.to_vec::<f32>()? {
                return Err("the pipeline computes other bits than one rank".into());
            }
        }
        println!("{MICRO_BATCHES} micro-batches through {size} ranks: the same bits as on one rank");
    }
    drop((weights, batches, results, vm));
    Ok(ranks.finish()?)
}
