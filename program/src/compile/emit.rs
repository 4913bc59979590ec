//! Pass: buffers, steps over them, and the segments that run the steps.

use std::ops::Range;
use std::sync::Arc;

use hashbrown::HashMap;
use streamvm_ep::{Access, Footprint, MAX_WRITES};
use streamvm_instructions::{Error, ProgramError};
use streamvm_stream::{StreamKey, StreamType};

use crate::compile::arena::Arena;
use crate::compile::extents;
use crate::compile::fuse::Fused;
use crate::compile::homes::{ArenaOf, Home};
use crate::compile::lists::Lists;
use crate::compile::segments::{Draft, Order};
use crate::compile::value_uses::{self, ValueUse, written};
use crate::ir::program::{Program, ValueId, ValueRole, Work};
use crate::ir::random::Drawn;
use crate::plan::compiled::{ArenaPlan, BufferRole, Compiled, CompiledBuffer, OtherPart, Segment, SegmentUse, Storage};
use crate::plan::options::CompileOptions;

/// What the passes have found.
pub(super) struct Found<'f> {
    /// The numbers of the steps, in the order in which they run.
    pub(super) order: &'f [usize],
    /// The values that each step of the program uses.
    pub(super) uses: &'f Lists<ValueUse>,
    pub(super) segments: &'f [Draft],
    /// The steps of each segment, and of its branches, as positions in the order.
    pub(super) in_order: &'f Order,
    /// For each segment the steps in which others have a part.
    pub(super) others: &'f [Vec<OtherPart>],
    pub(super) homes: &'f [Home],
    pub(super) arenas_of: &'f [ArenaOf],
    pub(super) arenas: &'f [Arena],
    /// Functions are steps of segments; otherwise each that lies in no block is a segment by itself.
    pub(super) functions_join: bool,
}

/// Writes down the compiled program.
///
/// # Errors
/// [`ProgramError::NotCompiled`] if a block writes more buffers than an instruction may, or if the buffers of a run have more than `isize::MAX` bytes.
pub(super) fn emit(
    program: Arc<Program>,
    found: &Found<'_>,
    fused: Fused,
    options: &CompileOptions,
) -> Result<Compiled, Error> {
    let (mut buffers, storages) = buffers(&program, found, &fused);
    check_bytes(&program, &buffers)?;
    note_first_writes(&mut buffers, found, &storages);
    let in_block = in_block(&program, found.order);
    let drawn = drawn_blocks(&program);
    let mut compiled = Compiled {
        program,
        segments: Vec::with_capacity(found.segments.len()),
        arenas: Vec::new(),
        buffers,
        order: found.order.to_vec(),
        storages,
        drawn,
        fused: fused.groups,
        options: options.clone(),
        functions_join: found.functions_join,
    };
    compiled.arenas = found
        .arenas_of
        .iter()
        .zip(found.arenas)
        .map(|(of, arena)| ArenaPlan {
            device: of.device,
            bytes: arena.bytes,
            lower_bound: arena.lower_bound,
            is_optimal: arena.is_optimal,
        })
        .collect();
    let flags = add_flags(&mut compiled, found);
    let mut touched = vec![false; compiled.buffers.len()];
    let mut place_of = vec![None; compiled.buffers.len()];
    let Order { ranges, branches, .. } = found.in_order;
    for (((draft, range), branches), others) in found.segments.iter().zip(ranges).zip(branches).zip(found.others) {
        let only = found.segments.len() == 1;
        let mut uses = uses(&compiled, range.clone(), &in_block, only, (&mut touched, &mut place_of));
        if let Some(&buffer) =
            flags.get(&draft.stream).filter(|_| flag_bytes(&compiled, draft.stream, range, others) > 0)
        {
            // After the other buffers.
            let bytes = 0..compiled.buffers[buffer].bytes;
            uses.push(SegmentUse { buffer, bytes, view: None, access: Access::Write });
        }
        // The end of a section is an instruction for each result.
        if draft.stream.stream_type != StreamType::Critical {
            check_writes(&compiled, range.start, &uses)?;
        }
        compiled.segments.push(Segment {
            stream: draft.stream,
            steps: range.clone(),
            uses,
            after: draft.after.clone(),
            waits: draft.waits.clone(),
            branches: branches.clone(),
            others: others.clone(),
        });
    }
    note_accesses(&mut compiled);
    Ok(compiled)
}

/// The buffers, and the storage of each value that a step uses. Feeds and parameters that no step uses need no buffer, so a run does not wait
/// for them. The accesses are found later, from the segments.
fn buffers(program: &Program, found: &Found<'_>, fused: &Fused) -> (Vec<CompiledBuffer>, Vec<Option<Storage>>) {
    let mut buffers = Vec::new();
    let mut storages: Vec<Option<Storage>> = fused.scratch.iter().map(|piece| piece.map(Storage::Scratch)).collect();
    let mut used = vec![false; program.values.len()];
    found.order.iter().flat_map(|&number| &found.uses[number]).for_each(|it| used[it.value.0] = true);
    for (index, value) in program.values.iter().enumerate().filter(|(index, _)| used[*index]) {
        let role = match (value.role, found.homes[index]) {
            (ValueRole::Feed(place), _) => BufferRole::Feed(place),
            (ValueRole::Parameter(place), _) => BufferRole::Parameter(place),
            (ValueRole::Computed, Home::Outside) => BufferRole::Fetched(ValueId(index)),
            (ValueRole::Computed, Home::Own) => BufferRole::Own(ValueId(index)),
            (ValueRole::Computed, Home::Arena(_)) => continue,
        };
        storages[index] = Some(Storage::Buffer { index: buffers.len(), offset: 0 });
        buffers.push(CompiledBuffer { role, bytes: value.bytes(), access: Access::Read, first_write: 0 });
    }
    for (number, arena) in found.arenas.iter().enumerate().filter(|(_, arena)| !arena.offsets.is_empty()) {
        for &(value, offset) in &arena.offsets {
            storages[value.0] = Some(Storage::Buffer { index: buffers.len(), offset });
        }
        buffers.push(CompiledBuffer {
            role: BufferRole::Arena(number),
            bytes: arena.bytes,
            access: Access::Write,
            first_write: 0,
        });
    }
    (buffers, storages)
}

/// Checks that what a run has memory for can be counted: later sums over buffers do not overflow.
fn check_bytes(program: &Program, buffers: &[CompiledBuffer]) -> Result<(), Error> {
    let is_made = |buffer: &&CompiledBuffer| !matches!(buffer.role, BufferRole::Feed(_) | BufferRole::Parameter(_));
    let bytes: u128 = buffers.iter().filter(is_made).map(|buffer| buffer.bytes as u128).sum();
    if bytes <= isize::MAX as u128 {
        return Ok(());
    }
    let what =
        format!("a run needs {bytes} bytes for its values, and can have {}; compute in smaller parts", isize::MAX);
    Err(ProgramError::NotCompiled { program: program.name.clone(), step: None, what }.into())
}

/// How many bytes a segment needs for what the host reads while the segment runs on a device that runs commands later: a byte for conditions of blocks, and
/// the largest operand that is looked at, or that is copied between memory of a device and of the host.
fn flag_bytes(compiled: &Compiled, stream: StreamKey, steps: &Range<usize>, others: &[OtherPart]) -> usize {
    if stream.device.kind.is_run_by_host() || stream.stream_type != StreamType::Compute {
        return 0;
    }
    let of_step = |position| match compiled.work(position) {
        Work::If | Work::Else | Work::While | Work::End => 1,
        Work::Call(..) | Work::Copy | Work::Fill(_) if compiled.options.check_finite => {
            // An input is looked at only with an output.
            let operands = compiled.operands(position);
            let is_looked_at = operands.clone().next_back().is_some_and(|output| output.dtype.is_float());
            let floats = operands.filter(|operand| is_looked_at && operand.dtype.is_float());
            floats.map(|operand| operand.layout.elements() * operand.dtype.size()).max().unwrap_or(0)
        }
        // A function that is looked at looks at what it writes by itself.
        _ => 0,
    };
    let of_copy = |part: &OtherPart| {
        let operands = compiled.operands(part.steps.start);
        operands.map(|operand| operand.layout.elements() * operand.dtype.size()).max().unwrap_or(0).max(1)
    };
    let copied = others.iter().filter(|part| part.role.uses_flag()).map(of_copy).max().unwrap_or(0);
    steps.clone().map(of_step).max().unwrap_or(0).max(copied)
}

/// Adds a flag for each stream whose segments need one. A stream runs its segments in order, so they share it.
fn add_flags(compiled: &mut Compiled, found: &Found<'_>) -> HashMap<StreamKey, usize> {
    let mut flags = HashMap::new();
    for ((Draft { stream, .. }, range), others) in found.segments.iter().zip(&found.in_order.ranges).zip(found.others) {
        let bytes = flag_bytes(compiled, *stream, range, others);
        if bytes == 0 {
            continue;
        }
        let buffer = *flags.entry(*stream).or_insert(compiled.buffers.len());
        if let Some(flag) = compiled.buffers.get_mut(buffer) {
            flag.bytes = flag.bytes.max(bytes);
        } else {
            let role = BufferRole::Flag(stream.device);
            compiled.buffers.push(CompiledBuffer { role, bytes, access: Access::Write, first_write: 0 });
        }
    }
    flags
}

/// For each position whether its step lies in a block: then it might be skipped.
fn in_block(program: &Program, order: &[usize]) -> Vec<bool> {
    let mut depth: usize = 0;
    let inside = |&number: &usize| {
        match program.steps[number].work {
            Work::If | Work::While => depth += 1,
            Work::End => depth -= 1,
            _ => {}
        }
        depth > 0
    };
    order.iter().map(inside).collect()
}

/// For each seed the number of counter blocks that all steps with it draw in one run, steps that were removed among them: a run goes on where the
/// run before it ended, as the same calls do when they are made again.
fn drawn_blocks(program: &Program) -> HashMap<u64, u64> {
    let mut drawn = HashMap::new();
    for step in &program.steps {
        if let Some(Drawn { seed, blocks, .. }) = step.draws(|id| program.value(id)) {
            let all = drawn.entry(seed).or_insert(0u64);
            *all = all.wrapping_add(blocks);
        }
    }
    drawn
}

/// The buffers that a segment uses, with their bytes. `touched` tells of each buffer whether an earlier segment uses it, and `place_of` is room for the index of each
/// buffer in the result: all its entries are `None` when the function is called and when it returns. The only segment of a program uses its buffers whole, so that a run makes no views.
fn uses(
    compiled: &Compiled,
    steps: Range<usize>,
    in_block: &[bool],
    only: bool,
    (touched, place_of): (&mut [bool], &mut [Option<usize>]),
) -> Vec<SegmentUse> {
    let mut uses: Vec<SegmentUse> = Vec::new();
    // Which bytes of each buffer the steps use, and those that the first step which uses it fills, if it does nothing else to them.
    let mut extents: Vec<Footprint> = Vec::new();
    let mut overwrites: Vec<Option<Footprint>> = Vec::new();
    for position in steps {
        let program = &compiled.program;
        for operand in &program.steps[compiled.order[position]].operands {
            let Some(Storage::Buffer { index, .. }) = compiled.storages[operand.value.0] else { continue };
            let CompiledBuffer { role, bytes, .. } = compiled.buffers[index];
            let (used, access) = (|| extents::of(program, operand), value_uses::access(program, operand));
            let place = *place_of[index].get_or_insert_with(|| {
                uses.push(SegmentUse { buffer: index, bytes: 0..0, view: None, access });
                extents.push(extents::dense(0..0));
                let fills = access == Access::Write && !in_block[position];
                overwrites.push(fills.then(used));
                uses.len() - 1
            });
            let known = &mut uses[place];
            if access.writes() && known.access == Access::Read {
                known.access = Access::ReadWrite;
            }
            let as_whole = only || matches!(role, BufferRole::Arena(_));
            if as_whole && known.bytes == (0..bytes) {
                continue;
            }
            let extent = if as_whole { extents::dense(0..bytes) } else { used() };
            let extent = extents::joined(&extents[place], &extent);
            if extent != extents[place] {
                known.bytes = extent.span();
                known.view = (!extents::is_dense(&extent)).then(|| extents::without_repeats(&operand.layout));
                extents[place] = extent;
            }
        }
    }
    for ((segment_use, extent), overwritten) in uses.iter_mut().zip(extents).zip(overwrites) {
        place_of[segment_use.buffer] = None;
        let first = !std::mem::replace(&mut touched[segment_use.buffer], true);
        if !segment_use.access.writes() {
            continue;
        }
        let whole = overwritten.is_some_and(|bytes| bytes == extent);
        let overwrites = match compiled.buffers[segment_use.buffer].role {
            BufferRole::Feed(_) | BufferRole::Parameter(_) => whole,
            // New memory is written by its first segment whatever the steps do: nothing of it is kept.
            BufferRole::Fetched(_) | BufferRole::Own(_) => whole || first,
            BufferRole::Arena(_) | BufferRole::Flag(_) => first,
        };
        segment_use.access = if overwrites { Access::Write } else { Access::ReadWrite };
    }
    uses.sort_by_key(|segment_use| segment_use.buffer);
    uses
}

/// Notes what a run does to each buffer. `Write`: the run overwrites all of it before it reads any, or it is new memory. `ReadWrite`: the run
/// changes it in any other way. `Read`: the run does not change it.
fn note_accesses(compiled: &mut Compiled) {
    let Compiled { segments, buffers, .. } = compiled;
    let mut touched = vec![false; buffers.len()];
    for segment_use in segments.iter().flat_map(|segment| &segment.uses) {
        let buffer = &mut buffers[segment_use.buffer];
        if !matches!(buffer.role, BufferRole::Feed(_) | BufferRole::Parameter(_)) {
            buffer.access = Access::Write;
            continue;
        }
        let first = !std::mem::replace(&mut touched[segment_use.buffer], true);
        let whole = segment_use.bytes == (0..buffer.bytes) && segment_use.view.is_none();
        if first && segment_use.access == Access::Write && whole {
            buffer.access = Access::Write;
        } else if segment_use.access.writes() && buffer.access == Access::Read {
            buffer.access = Access::ReadWrite;
        }
    }
}

/// Notes the position of the first step that writes each buffer.
fn note_first_writes(buffers: &mut [CompiledBuffer], found: &Found<'_>, storages: &[Option<Storage>]) {
    // Backwards, so that the first one stays.
    for (position, &number) in found.order.iter().enumerate().rev() {
        for value in written(&found.uses[number]) {
            if let Some(Storage::Buffer { index, .. }) = storages[value.0] {
                buffers[index].first_write = position;
            }
        }
    }
}

/// Checks that the segment which begins with step `first` writes no more buffers than a function may: one step never does, and a block may.
fn check_writes(compiled: &Compiled, first: usize, uses: &[SegmentUse]) -> Result<(), Error> {
    let found = uses.iter().filter(|segment_use| segment_use.access.writes()).count();
    if found <= MAX_WRITES {
        return Ok(());
    }
    let what = format!(
        "begins a block that would write {found} tensors that outlive it (fetches, parameters, values that several streams use), and can write {MAX_WRITES}; \
         use several blocks, or join tensors"
    );
    let step = Some(compiled.step(first).named());
    Err(ProgramError::NotCompiled { program: compiled.program.name.clone(), step, what }.into())
}
