//! Shorthands that most tests need.

use std::sync::Arc;

use streamvm::program::CompileOptions;
use streamvm::{DeviceId, Error, Failure, InstructionList, InstructionsBuilder, MemoryKind, Place, Tensor, Ticket, Vm};

/// The device of most tests.
pub const CPU: DeviceId = DeviceId::cpu(0);

/// The default options of programs, but for CUDA graphs: neighbouring steps are a graph even where they are two launches, as in small programs of tests.
pub fn small_graphs() -> CompileOptions {
    CompileOptions { smallest_graph: 1, ..CompileOptions::default() }
}

/// As [`small_graphs`], with a kernel for each step: for suites that count kernels.
pub fn single_steps() -> CompileOptions {
    CompileOptions { fuse: false, ..small_graphs() }
}

/// A list of the instructions that `build` emits.
///
/// # Panics
/// If the builder refuses an instruction.
#[track_caller]
pub fn list(build: impl FnOnce(&mut InstructionsBuilder) -> Result<(), Error>) -> InstructionList {
    let mut builder = InstructionsBuilder::new();
    build(&mut builder).expect("the instructions are well formed");
    builder.finish()
}

/// Submits the instructions that `build` emits.
///
/// # Panics
/// If the builder or the engine refuses them.
#[track_caller]
pub fn submit(vm: &Vm, build: impl FnOnce(&mut InstructionsBuilder) -> Result<(), Error>) -> Ticket<'_> {
    vm.submit(list(build)).expect("the engine takes the list")
}

/// A vector on `cpu:0`, after its copy has passed.
///
/// # Panics
/// If the engine refuses the copy.
#[track_caller]
pub fn on_device(vm: &Vm, elements: &[f32]) -> Tensor {
    let host = vm.from_slice(elements, &[elements.len()]).expect("a host tensor");
    let tensor = host.to(CPU).expect("a copy to the device");
    tensor.wait().expect("the copy is over");
    tensor
}

/// The root cause of an error.
///
/// # Panics
/// If the result is not a failure of an instruction.
#[track_caller]
pub fn failure_of<T: std::fmt::Debug>(result: Result<T, Error>) -> Arc<Failure> {
    match result {
        Err(Error::Failed(failure)) => failure,
        other => panic!("a failed instruction was expected, and this is {other:?}"),
    }
}

/// Checks that the race detector has found nothing.
///
/// # Panics
/// If the detector has findings, with their text.
#[track_caller]
pub fn no_races(vm: &Vm) {
    let races = vm.races();
    assert!(races.is_empty(), "{}", races.iter().map(|race| race.to_string()).collect::<Vec<_>>().join("\n"));
}

/// Bytes of blocks in use in one pool of an engine.
pub fn used_bytes(vm: &Vm, place: impl Into<Place>, kind: MemoryKind) -> usize {
    let place = place.into();
    let stats = vm.stats();
    let pool = stats.memory.iter().find(|pool| pool.place == place && pool.kind == kind);
    pool.map_or(0, |pool| pool.allocator.in_use)
}
