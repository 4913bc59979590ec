//! Pass: buffers, their accesses, and steps over them.

use streamvm_ep::{Access, DeviceId};

use crate::compile::arena::Arena;
use crate::compile::fuse::Fused;
use crate::ir::program::{Program, ValueId, ValueRole, Work};
use crate::plan::compiled::{BufferRole, Compiled, CompiledBuffer, CompiledStep, Located, Storage};
use crate::plan::options::CompileOptions;

pub(super) fn emit(
    program: Program,
    device: DeviceId,
    kept: &[usize],
    fused: Fused,
    arena: &Arena,
    options: &CompileOptions,
) -> Compiled {
    let mut buffers = Vec::new();
    let mut storages: Vec<Option<Storage>> = fused.scratch.iter().map(|piece| piece.map(Storage::Scratch)).collect();
    let (mut used, mut fetched) = (vec![false; program.values.len()], vec![false; program.values.len()]);
    program.fetches.iter().for_each(|fetch| fetched[fetch.value.0] = true);
    kept.iter().flat_map(|&number| &program.steps[number].operands).for_each(|operand| used[operand.value.0] = true);
    let mut add = |value: ValueId, role: BufferRole| {
        storages[value.0] = Some(Storage::Buffer { index: buffers.len(), offset: 0 });
        // The access is found below, from the steps.
        buffers.push(CompiledBuffer { role, bytes: program.value(value).bytes(), access: Access::Read });
    };
    // Feeds and parameters that no step uses need no buffer, so a run does not wait for them.
    for (index, value) in program.values.iter().enumerate().filter(|(index, _)| used[*index]) {
        match value.role {
            ValueRole::Feed(place) => add(ValueId(index), BufferRole::Feed(place)),
            ValueRole::Parameter(place) => add(ValueId(index), BufferRole::Parameter(place)),
            ValueRole::Computed if fetched[index] => add(ValueId(index), BufferRole::Fetched(ValueId(index))),
            ValueRole::Computed => {}
        }
    }
    if arena.bytes > 0 || !arena.offsets.is_empty() {
        for &(value, offset) in &arena.offsets {
            storages[value.0] = Some(Storage::Buffer { index: buffers.len(), offset });
        }
        buffers.push(CompiledBuffer { role: BufferRole::Arena, bytes: arena.bytes, access: Access::Write });
    }
    let mut touched = vec![false; buffers.len()];
    let mut steps = Vec::with_capacity(kept.len());
    let mut blocks = 0;
    for &number in kept {
        let step = &program.steps[number];
        let operands = step.operands.iter().map(|operand| {
            let storage = storages[operand.value.0];
            let storage = storage.unwrap_or_else(|| unreachable!("the passes give each used value its storage"));
            if let Storage::Buffer { index, .. } = storage {
                // A step in a block may not run.
                let whole = blocks == 0 && program.is_whole(operand.value, &operand.layout);
                note_use(&mut buffers[index], &mut touched[index], operand.access, whole);
            }
            let dtype = program.value(operand.value).dtype;
            Located { value: operand.value, storage, dtype, layout: operand.layout, access: operand.access }
        });
        let operands = operands.collect();
        match step.work {
            Work::If | Work::While => blocks += 1,
            Work::End => blocks -= 1,
            _ => {}
        }
        let (work, location) = (step.work.clone(), step.location);
        steps.push(CompiledStep { work, operands, number, location });
    }
    Compiled {
        program,
        device,
        buffers,
        steps,
        fused: fused.groups,
        most_rounds: options.most_rounds,
        check_finite: options.check_finite,
        arena_lower_bound: arena.lower_bound,
    }
}

/// Notes one use of a buffer that holds one value. What a run overwrites whole before it reads any of it, it writes; what it changes
/// otherwise, it reads and writes. New memory is written whatever the first use is: nothing of it is kept.
fn note_use(buffer: &mut CompiledBuffer, touched: &mut bool, access: Access, whole: bool) {
    match buffer.role {
        BufferRole::Arena => {}
        BufferRole::Fetched(_) => buffer.access = Access::Write,
        BufferRole::Feed(_) | BufferRole::Parameter(_) => {
            let first = !std::mem::replace(touched, true);
            if first && access == Access::Write && whole {
                buffer.access = Access::Write;
            } else if access.writes() && buffer.access == Access::Read {
                buffer.access = Access::ReadWrite;
            }
        }
    }
}
