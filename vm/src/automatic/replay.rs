//! Replays: a sequence whose calls are all held back is submitted as one run of a program.

use std::sync::Arc;

use smallvec::SmallVec;
use streamvm_instructions::{Error, Issued, LaunchOptions, Role, Single, Tensor};
use streamvm_program::{BufferRole, CompileOptions, CompiledBuffer, Segment, compile};
use streamvm_stream::StreamKey;

use crate::automatic::held::Held;
use crate::automatic::sequence::{Sequence, Variant};
use crate::engine::core::Engine;
use crate::engine::submission::Full;
use crate::program_cache::key::Query;
use crate::program_cache::loaded::{LoadedProgram, with_access};
use crate::submit::commit::Submitted;

/// The most programs of one sequence. Which results can still be used when it is submitted rarely differs: where a loop keeps some of them, or
/// where another thread drops them.
const MOST_VARIANTS: usize = 8;

/// A program that the cache drops is compiled again this often, or more often if it runs [`RUNS`] times for each.
const MOST_COMPILED: u64 = 4;

/// How many runs make up for compiling.
const RUNS: u64 = 16;

/// Submits a run for the calls of a sequence. Returns false, with nothing submitted, if there is no program for it: then the calls are to be
/// submitted one by one.
///
/// # Errors
/// Those of submitting the run; nothing is submitted then.
pub(super) fn replay(held: &Held, sequence: &mut Sequence, full: Full, engine: &Arc<Engine>) -> Result<bool, Error> {
    // A run fails as a whole, and eager calls by what they read. So while failures are known, each call is submitted by itself.
    if engine.failures.any() {
        return Ok(false);
    }
    let Some(loaded) = program(sequence, &held.results(), engine) else { return Ok(false) };
    run(&loaded, held, sequence, full, engine)?;
    Ok(true)
}

/// The program that writes these results, or more; `None` if there is none.
fn program(sequence: &mut Sequence, results: &[bool], engine: &Arc<Engine>) -> Option<Arc<LoadedProgram>> {
    let has_more = |variant: &Variant| results.iter().zip(&variant.results).all(|(asked, has)| !asked || *has);
    let exact = sequence.variants.iter().position(|variant| variant.results == results);
    let number = match exact {
        Some(number) => number,
        None if sequence.variants.len() < MOST_VARIANTS => {
            let number = engine.programs.new_closure();
            sequence.variants.push(Variant {
                results: results.to_vec(),
                number,
                compiled: 0,
                ran: 0,
                is_useless: false,
            });
            sequence.variants.len() - 1
        }
        None => sequence.variants.iter().position(has_more)?,
    };
    if sequence.variants[number].is_useless {
        return None;
    }
    let query = Query::Closure { number: sequence.variants[number].number, feeds: &[] };
    let loaded = engine.programs.made(query).unwrap_or_else(|| {
        sequence.variants[number].compiled += 1;
        let program = sequence.program(&sequence.variants[number].results);
        let calls = sequence.steps.len();
        engine.programs.get_or_load(query, || {
            let loaded = LoadedProgram::new(engine, compile(&program, &CompileOptions::default())?)?;
            let (compiled, name) = (&loaded.compiled, &program.name);
            log::info!(
                "automatic program: {calls} {name} repeat, and are {} steps now, with {} bytes of temporaries",
                compiled.steps().len(),
                compiled.arena_bytes()
            );
            Ok(loaded)
        })
    });
    let stream = sequence.stream;
    let variant = &mut sequence.variants[number];
    variant.ran += 1;
    let is_one = |loaded: &Arc<LoadedProgram>| match loaded.compiled.segments() {
        [] => true,
        [segment] => !segment.is_transfer() && segment.stream == StreamKey { lane: 0, ..stream },
        _ => false,
    };
    let wasted = variant.compiled > MOST_COMPILED && variant.compiled * RUNS > variant.ran;
    match loaded {
        Ok(loaded) if is_one(&loaded) && !wasted => Some(loaded),
        other => {
            variant.is_useless = true;
            let why = other.map_or_else(|error| error.to_string(), |_| "it does not pay".to_owned());
            log::debug!("the calls from {} on are not replayed: {why}", sequence.location());
            None
        }
    }
}

fn run(
    loaded: &Arc<LoadedProgram>,
    held: &Held,
    sequence: &Sequence,
    full: Full,
    engine: &Arc<Engine>,
) -> Result<(), Error> {
    let program = loaded.compiled.program();
    // A program without segments has no results: nothing is submitted.
    let [Segment { uses, .. }] = loaded.compiled.segments() else { return Ok(()) };
    let is_own = |buffer: &&CompiledBuffer| {
        !matches!(buffer.role, BufferRole::Feed(_) | BufferRole::Parameter(_) | BufferRole::Fetched(_))
    };
    let own = loaded.compiled.buffers().iter().filter(is_own);
    let fresh: SmallVec<[Tensor; 2]> = own.filter_map(|buffer| loaded.fresh(buffer)).collect();
    let mut next_fresh = fresh.iter();
    let buffer = |role: BufferRole| match role {
        BufferRole::Feed(place) => held.tensor(program.feeds[place].value.0),
        BufferRole::Parameter(place) => held.tensor(program.parameters[place].value.0),
        BufferRole::Fetched(value) => held.tensor(value.0),
        BufferRole::Own(_) | BufferRole::Arena(_) | BufferRole::Flag(_) => {
            next_fresh.next().unwrap_or_else(|| unreachable!("each such buffer has a tensor of its own"))
        }
    };
    let buffers: SmallVec<[&Tensor; 16]> = loaded.compiled.buffers().iter().map(|it| it.role).map(buffer).collect();
    let uses = uses.iter().map(|it| with_access(buffers[it.buffer], it.access));
    let (stream, location) = (sequence.stream, sequence.location());
    let issued = Issued { stream, role: Role::Program, launch: LaunchOptions::default(), location };
    let code = || loaded.code(0, 0);
    Single::submit_function(issued, program.name.clone(), uses, code, |single| {
        engine.submit_one_now(single, full, &mut Submitted::default())
    })
}
