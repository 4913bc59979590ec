//! Pass: offsets in the arenas for the values that live within a run only.

use std::ops::Range;

use hashbrown::HashMap;
use streamvm_ep::Shape;
use streamvm_instructions::{Error, ProgramError};

use crate::compile::fuse::Fused;
use crate::compile::homes::{ArenaOf, Home};
use crate::compile::in_place::Shares;
use crate::ir::program::{Program, ValueId};
use crate::memory::{self, Budget, Buffer};
use crate::plan::mutant::Mutant;
use crate::plan::options::CompileOptions;

/// How many values the search of one arena looks at: 1,000 steps over 30,000 values take some tens of milliseconds.
const MOST_VISITS: u64 = 30_000_000;

/// The alignment of values in the arena, in bytes: a cache line, and the widest vector of CPUs.
const ALIGNMENT: usize = 64;

/// The offsets of an arena.
#[derive(Debug)]
pub(super) struct Arena {
    /// Each value of the arena, with its offset in bytes.
    pub(super) offsets: Vec<(ValueId, usize)>,
    /// The size of the arena.
    pub(super) bytes: usize,
    /// The largest sum of sizes that live at one time.
    pub(super) lower_bound: usize,
    /// Whether the planner has proven that no plan is smaller.
    pub(super) is_optimal: bool,
}

/// The values of one arena, and the buffers that they share.
#[derive(Clone, Default)]
struct Filling {
    values: Vec<(ValueId, usize)>,
    buffers: Vec<Buffer>,
}

/// Plans the values of `arenas` arenas, apart from those in scratch memory. Values that share memory are one buffer, which lives as
/// long as all of them.
///
/// # Errors
/// [`ProgramError::NotCompiled`] if the values that live at one time are larger than a tensor can be.
pub(super) fn plan(
    program: &Program,
    (homes, arenas): (&[Home], usize),
    lifetimes: &[Range<usize>],
    shares: &Shares,
    fused: &Fused,
    options: &CompileOptions,
) -> Result<Vec<Arena>, Error> {
    let mut fillings = vec![Filling::default(); arenas];
    let mut buffer_of = vec![usize::MAX; program.values.len()];
    for (index, value) in program.values.iter().enumerate() {
        let life = &lifetimes[index];
        let Home::Arena(arena) = homes[index] else { continue };
        if fused.scratch[index].is_some() || life.is_empty() {
            continue;
        }
        let Filling { values, buffers } = &mut fillings[arena];
        let (start, end) = (life.start as u64, life.end as u64);
        // Values that share memory have one size. The first of them has none here if it is in scratch memory.
        let shared = &mut buffer_of[shares[index].0];
        if *shared == usize::MAX {
            *shared = buffers.len();
            let (size, alignment) = if options.has(Mutant::OneByteShort) {
                (value.bytes().saturating_sub(1).max(1), value.dtype.size())
            } else {
                (value.bytes().next_multiple_of(ALIGNMENT), ALIGNMENT)
            };
            buffers.push(Buffer { alignment: alignment as u64, ..Buffer::new(start, end, size as u64) });
        }
        let buffer = &mut buffers[*shared];
        (buffer.lower, buffer.upper) = (buffer.lower.min(start), buffer.upper.max(end));
        values.push((ValueId(index), *shared));
    }
    fillings.into_iter().map(|filling| filling.plan(program, options)).collect()
}

/// Puts arenas that one segment alone uses into one, side by side: those of its lanes, and that of what lanes give to each other. So a run of the segment has one
/// tensor for all of them. `users` has for each arena the segment with branches that alone uses it.
pub(super) fn join(arenas: Vec<Arena>, arenas_of: Vec<ArenaOf>, users: &[Option<usize>]) -> (Vec<Arena>, Vec<ArenaOf>) {
    let (mut joined, mut joined_of): (Vec<Arena>, Vec<ArenaOf>) = (Vec::new(), Vec::new());
    let mut place_of: HashMap<usize, usize> = HashMap::new();
    for ((arena, of), user) in arenas.into_iter().zip(arenas_of).zip(users) {
        if let Some(user) = user {
            if let Some(&place) = place_of.get(user) {
                let known = &mut joined[place];
                let begin = known.bytes.next_multiple_of(ALIGNMENT);
                if Shape::new(&[begin.saturating_add(arena.bytes)]).is_ok() {
                    known.offsets.extend(arena.offsets.iter().map(|(value, offset)| (*value, begin + offset)));
                    known.bytes = begin + arena.bytes;
                    known.lower_bound += arena.lower_bound;
                    known.is_optimal &= arena.is_optimal;
                    continue;
                }
            } else {
                place_of.insert(*user, joined.len());
            }
        }
        joined.push(arena);
        joined_of.push(of);
    }
    (joined, joined_of)
}

impl Filling {
    fn plan(self, program: &Program, options: &CompileOptions) -> Result<Arena, Error> {
        // A step looks at all buffers. So programs of many values take fewer steps, and compiling them takes about as long as before the search.
        let most = MOST_VISITS / self.buffers.len().max(1) as u64;
        let budget = Budget::steps(options.search_steps.min(most));
        let plan = memory::plan(&self.buffers, None, &budget).map_err(|error| {
            let (program, what) = (program.name.clone(), format!("its memory cannot be planned: {error}"));
            ProgramError::NotCompiled { program, step: None, what }
        })?;
        // A run makes a tensor of bytes for the arena, so its size must be that of a shape.
        // Only the values lie too near to each other: the arena ends after the last one.
        let peak = plan.peak as usize + usize::from(options.has(Mutant::OneByteShort));
        Shape::new(&[peak]).map_err(|error| {
            let (program, what) = (program.name.clone(), format!("its values need {peak} bytes at one time: {error}"));
            ProgramError::NotCompiled { program, step: None, what }
        })?;
        let offsets = self.values.into_iter().map(|(value, buffer)| (value, plan.offsets[buffer] as usize)).collect();
        let is_optimal = plan.is_optimal();
        Ok(Arena { offsets, bytes: peak, lower_bound: plan.lower_bound as usize, is_optimal })
    }
}
