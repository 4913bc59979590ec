//! Compiling: from a program to steps over buffers at fixed offsets.
//!
//! Layer: uses `ir`, `memory`, `plan` and `show`; no folder uses it.
//!
//! [`compile`] is a pure function: the same program and options give the same result on every machine. Its passes, in this order, each a
//! file with one idea:
//!
//! | pass | what it does |
//! |---|---|
//! | [`device`] | finds the device that runs the steps; refuses what cannot be compiled |
//! | [`fetched_copies`] | gives each fetch of a feed or parameter a value of its own |
//! | [`unfetched`] | removes steps whose results no fetch, no parameter and no later step needs |
//! | [`lifetimes`] | finds between which steps each value lives |
//! | [`in_place`] | lets an elementwise step write over an input that ends there |
//! | [`fuse`] | finds elementwise steps that run together, block by block, and the values that only they use |
//! | [`arena`] | gives the values of a run offsets in one arena |
//! | [`emit`] | writes down buffers, accesses and steps |
//!
//! [`compile_reporting`] also tells what each pass did ([`trace`]).

mod arena;
mod device;
mod emit;
mod fetched_copies;
mod fuse;
mod in_place;
mod lifetimes;
#[cfg(test)]
mod tests;
mod unfetched;

use streamvm_instructions::Error;

use crate::ir::program::Program;
use crate::plan::compiled::Compiled;
use crate::plan::options::CompileOptions;
use crate::show::trace::{self, PassReport, Trace};

/// Compiles a program. Needs no engine and no device. Takes time and memory in proportion to the steps and their operands, apart from
/// planning memory: first fit looks at all values that live at one time, up to 30,000 of them, and [`CompileOptions::search_steps`] bounds the
/// search.
///
/// # Errors
/// [`ProgramError::Malformed`](streamvm_instructions::ProgramError::Malformed) and
/// [`ProgramError::NotCompiled`](streamvm_instructions::ProgramError::NotCompiled), which name the step.
pub fn compile(program: &Program, options: &CompileOptions) -> Result<Compiled, Error> {
    run_passes(program, options, Trace::default())
}

/// [`compile`], which also calls `report` behind each pass with what the pass did.
///
/// # Errors
/// Those of [`compile`]; the passes before the one that fails are reported.
pub fn compile_reporting(
    program: &Program,
    options: &CompileOptions,
    report: &mut dyn FnMut(PassReport),
) -> Result<Compiled, Error> {
    run_passes(program, options, Trace::new(report))
}

fn run_passes(program: &Program, options: &CompileOptions, mut trace: Trace<'_>) -> Result<Compiled, Error> {
    program.check()?;
    trace.note(|| trace::check(program));
    let device = device::find(program)?;
    trace.note(|| trace::device(device));
    let recorded = program.steps.len();
    let mut program = program.clone();
    fetched_copies::insert(&mut program);
    trace.note(|| trace::fetched_copies(&program, recorded));
    let kept = unfetched::kept_steps(&program);
    trace.note(|| trace::unfetched(&program, &kept));
    let mut lifetimes = lifetimes::of(&program, &kept);
    trace.note(|| trace::lifetimes(&program, &lifetimes));
    let shares = if options.in_place { in_place::find(&program, &kept, &lifetimes) } else { in_place::none(&program) };
    trace.note(|| trace::in_place(&program, &shares));
    let fused = if options.fuse && !options.check_finite {
        fuse::find(&program, &kept, &mut lifetimes, &shares, options.block)
    } else {
        fuse::none(&program)
    };
    let groups = fused.groups.iter().map(|group| &kept[group.steps.clone()]);
    trace.note(|| trace::fuse(&program, groups, &fused.scratch));
    let arena = arena::plan(&program, &lifetimes, &shares, &fused, options)?;
    trace.note(|| trace::arena(&program, &arena.offsets, arena.bytes, arena.lower_bound));
    let compiled = emit::emit(program, device, &kept, fused, &arena, options);
    trace.note(|| trace::emit(compiled.buffers.len(), compiled.steps.len(), &compiled.to_string()));
    device::check_writes(&compiled)?;
    Ok(compiled)
}
