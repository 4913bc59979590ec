//! Compiling: from a program to steps over buffers at fixed offsets.
//!
//! Layer: uses `ir` and `memory`; no folder uses it.
//!
//! [`compile`] is a pure function: the same program and options give the same result on every machine. Its passes, in this order, each a
//! file with one idea:
//!
//! | pass | what it does |
//! |---|---|
//! | [`device`] | finds the device that runs the steps; refuses what cannot be compiled |
//! | [`fetched_copies`] | gives each fetch of a feed or parameter a value of its own |
//! | [`unfetched`] | removes steps whose results nobody fetches |
//! | [`lifetimes`] | finds between which steps each value lives |
//! | [`in_place`] | lets an elementwise step write over an input that ends there |
//! | [`fuse`] | finds elementwise steps that run together, block by block, and the values that only they use |
//! | [`arena`] | gives the values of a run offsets in one arena |
//! | [`emit`] | writes down buffers, accesses and steps |

pub(crate) mod arena;
pub(crate) mod compiled;
pub(crate) mod device;
pub(crate) mod emit;
pub(crate) mod fetched_copies;
pub(crate) mod fuse;
pub(crate) mod in_place;
pub(crate) mod lifetimes;
pub(crate) mod options;
pub(crate) mod show;
#[cfg(test)]
mod tests;
pub(crate) mod unfetched;

use streamvm_instructions::Error;

use crate::compile::compiled::Compiled;
use crate::compile::options::CompileOptions;
use crate::ir::program::Program;

/// Compiles a program. Needs no engine and no device. Takes time and memory in proportion to the steps and their operands, apart from
/// planning memory: first fit looks at all values that live at one time, and [`CompileOptions::search_steps`] bounds the search.
///
/// # Errors
/// [`ProgramError::Malformed`](streamvm_instructions::ProgramError::Malformed) and [`ProgramError::NotCompiled`](streamvm_instructions::ProgramError::NotCompiled), which name the step.
pub fn compile(program: &Program, options: &CompileOptions) -> Result<Compiled, Error> {
    program.check()?;
    let device = device::find(program)?;
    let mut program = program.clone();
    fetched_copies::insert(&mut program);
    let kept = unfetched::kept_steps(&program);
    let mut lifetimes = lifetimes::of(&program, &kept);
    let shares = if options.in_place { in_place::find(&program, &kept, &lifetimes) } else { in_place::none(&program) };
    let fused = if options.fuse && !options.check_numbers {
        fuse::find(&program, &kept, &mut lifetimes, &shares, options.block)
    } else {
        fuse::none(&program)
    };
    let arena = arena::plan(&program, &lifetimes, &shares, &fused, options)?;
    let compiled = emit::emit(program, device, &kept, fused, &arena, options);
    device::check_writes(&compiled)?;
    Ok(compiled)
}
