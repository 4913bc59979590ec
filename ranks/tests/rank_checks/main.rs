//! One rank of a job that checks the collectives. Start all ranks with the same arguments: `rank_checks SCENARIO [ARGUMENT …]`. The last line of a rank that is
//! content is `rank R of N: fine`; a rank that finds something wrong says what, and exits with 1.

#![allow(clippy::print_stdout, clippy::print_stderr, clippy::exit, reason = "its output is what the tests read")]

mod every;
mod faults;
mod gpu;
mod programs;
mod random;
mod values;

use streamvm::Vm;
use streamvm_ranks::Ranks;

pub(crate) type AnyError = Box<dyn std::error::Error>;

fn main() {
    env_logger::init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Err(error) = run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()) {
        eprintln!("rank_checks: {error}");
        std::process::exit(1);
    }
}

fn run(arguments: &[&str]) -> Result<(), AnyError> {
    let ranks = Ranks::start()?;
    let world = ranks.world().clone();
    let vm = Vm::builder().build()?;
    match arguments {
        ["every"] => every::check(&vm, &world)?,
        ["gpu"] => gpu::check(&vm, &world)?,
        ["programs"] => programs::check(&vm, &world)?,
        ["random", seed, programs] => random::check(&vm, &world, seed.parse()?, programs.parse()?)?,
        ["fault", name, arguments @ ..] => return faults::run(ranks, &vm, name, arguments),
        other => return Err(format!("there is no scenario {other:?}").into()),
    }
    vm.wait_all()?;
    let (rank, size) = (world.rank(), world.size());
    drop((vm, world));
    ranks.finish()?;
    println!("rank {rank} of {size}: fine");
    Ok(())
}
