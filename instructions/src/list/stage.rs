//! Staging: a copy between pageable memory and a device that cannot reach pageable memory goes through pinned memory of the device.
//!
//! When a GPU driver gets pageable memory, it copies while the caller waits, so an engine never hands it such a copy. Instead a CPU
//! stream copies between pageable and pinned memory, and the device's own stream copies between pinned memory and the device. Both
//! halves are ordinary instructions: soft sync orders them, each may fail by itself, and the pinned memory is reused once both have
//! passed.
//!
//! ```text
//! copy h2d@cuda:0:0 host:t0 -> t1        copy h2d@cpu:0:0  host:t0 -> cuda:0:t2      t2: upload
//!                                        copy h2d@cuda:0:0 upload:t2 -> t1
//! ```
//!
//! A copy to a device goes through memory that the host only writes ([`MemoryKind::Upload`]), a copy back through ordinary pinned
//! memory, which the host reads. Each memory kind has a pool of its own, so a block of one kind is never handed out as the other.
//!
//! **Pieces.** A copy of more than one piece ([`STAGING_PIECE`] bytes, unless the engine was built with another size) is cut along
//! its axes into one pair of copies per piece. The pairs use two blocks of pinned memory in turn: while the device copies one
//! piece, the CPU copies the next, and the piece after that waits for the first block. The ordinary rules for instructions order
//! them:
//!
//! ```text
//! copy h2d@cuda:0:0 host:t0 -> t1        copy h2d@cpu:0:0  host:t0[0] -> cuda:0:t2
//!                                        copy h2d@cuda:0:0 upload:t2 -> t1[0]
//!                                        copy h2d@cpu:0:0  host:t0[1] -> cuda:0:t3
//!                                        copy h2d@cuda:0:0 upload:t3 -> t1[1]
//!                                        copy h2d@cpu:0:0  host:t0[2] -> cuda:0:t2      after the read of t2
//!                                        …
//!                                        touch h2d@cuda:0:0 update t1
//! ```
//!
//! The pieces are disjoint parts of the target's storage, so each is ordered by itself and may fail by itself. The last instruction
//! is an update of the whole target: if a piece has failed, it is skipped, and so the copy fails as a whole, as a copy by the
//! device alone would. Where the copy covers its whole target, the first piece counts as a write of all of it ([`Tensor::begin`]),
//! so that it heals a failed target as the whole copy would. Printing and parsing a staged list loses that mark, and the parsed
//! list heals nothing.

use std::mem;
use std::ops::Range;

use streamvm_ep::{DeviceId, Layout, MemoryKind};
use streamvm_stream::{Capabilities, RunBy, StreamClass, StreamKey, StreamType};

use crate::engine::interface::EngineRef;
use crate::list::instruction::Instruction;
use crate::list::instruction_list::InstructionList;
use crate::list::kind::{BLANK, Kind, WaitFor};
use crate::place::HOST_DEVICE;
use crate::tensor::handle::Tensor;
use crate::tensor::reach::Home;
use crate::tensor::uses::{Declared, HeldUse, Use};

/// The most bytes that are staged in one piece, unless the engine was built with another size: 8 MiB. Sixteen lanes of PCIe 4.0 (32
/// GB/s by their specification) take at least a quarter of a millisecond for a piece, which is long compared with handing the piece
/// from one stream to the next. Not measured on a GPU.
pub const STAGING_PIECE: usize = 8 << 20;

/// The number of blocks of pinned memory for a copy in pieces: the CPU uses one while the device uses the other.
const BLOCKS: usize = 2;

/// A list whose copies can all be made by the runners of their streams.
pub struct Staged {
    /// The list.
    pub list: InstructionList,
    /// For each line of `list`, the line of the original list that it came from.
    pub lines: Vec<usize>,
}

impl InstructionList {
    /// Moves the instructions into a new list, in which each copy between pageable memory and a device that cannot reach it goes
    /// through pinned memory, in pieces of at most `piece` bytes. Returns `None`, and moves nothing, if there is no such copy.
    pub fn staged(&mut self, capabilities: &Capabilities, piece: usize) -> Option<Staged> {
        stage(self, capabilities, piece)
    }
}

/// As [`InstructionList::staged`]. Also returns `None` for a list that will be refused because a wait names a line that is not
/// earlier, or is on another stream than the wait says.
fn stage(list: &mut InstructionList, capabilities: &Capabilities, piece: usize) -> Option<Staged> {
    let mut any = false;
    for (line, instruction) in list.instructions().iter().enumerate() {
        match &instruction.kind {
            Kind::Copy => any |= ends(instruction, list.uses(instruction), capabilities).is_some(),
            Kind::Wait { source, target: WaitFor::Line(earlier), .. } => {
                let waited_for = list.instructions()[..line].get(*earlier);
                if waited_for.is_none_or(|waited_for| waited_for.stream != *source) {
                    return None;
                }
            }
            _ => {}
        }
    }
    if !any {
        return None;
    }
    let mut list = mem::take(list);
    let mut staged = Staged { list: InstructionList::new(), lines: Vec::new() };
    // For each line of the original list, the last line that came from it.
    let mut moved = Vec::new();
    let (instructions, uses) = list.parts_mut();
    for (line, instruction) in instructions.iter_mut().enumerate() {
        staged.push(line, instruction, instruction.uses_of(uses), &moved, (capabilities, piece));
        moved.push(staged.list.len() - 1);
    }
    Some(staged)
}

/// The source and the target of a copy that must be staged; `None` for any other instruction.
fn ends<'a>(
    instruction: &Instruction,
    uses: &'a [HeldUse],
    capabilities: &Capabilities,
) -> Option<(&'a Tensor, &'a Tensor)> {
    let class = StreamClass::of(&instruction.stream);
    // Threads of the host reach pageable memory, whatever the device of their stream is.
    let stages = class.run_by() == RunBy::Device && capabilities.pinned_only(class.device);
    if !stages || !matches!(instruction.kind, Kind::Copy) {
        return None;
    }
    let [source, target] = uses else { return None };
    let (source, target) = (source.as_tensor()?, target.as_tensor()?);
    let pageable = [source, target].map(|end| Home::of(end) == Home::Pageable);
    (pageable[0] != pageable[1]).then_some((source, target))
}

impl Staged {
    fn push(
        &mut self,
        line: usize,
        instruction: &mut Instruction,
        uses: &[HeldUse],
        moved: &[usize],
        (capabilities, piece): (&Capabilities, usize),
    ) {
        let Instruction { stream, site, .. } = *instruction;
        if let Some((source, target)) = ends(instruction, uses, capabilities) {
            let halves = Halves::of(stream, source, target);
            let mut copy = |source: &Tensor, halfway: &Tensor, written: Use<'_>| {
                self.list.push_unchecked(halves.first, Kind::Copy, [source.read(), halfway.write()], site);
                self.list.push_unchecked(halves.second, Kind::Copy, [halfway.read(), written], site);
                self.lines.extend([line, line]);
            };
            match Cut::of(source, piece) {
                None => copy(source, &halves.block(source), target.write()),
                Some(cut) => {
                    let blocks = [(); BLOCKS].map(|()| halves.block(&cut.piece(source, 0)));
                    for number in 0..cut.pieces(source) {
                        let (source, piece) = (cut.piece(source, number), cut.piece(target, number));
                        let begins = number == 0 && target.covers_storage();
                        let written = if begins { piece.begin() } else { piece.write() };
                        copy(&source, &cut.part(&blocks[number % BLOCKS], &source), written);
                    }
                    // A copy fails as a whole: if a piece has failed, the touch is skipped, and its point marks all of the target
                    // as failed.
                    self.list.push_unchecked(halves.second, Kind::Touch, [target.update()], site);
                    self.lines.push(line);
                }
            }
            return;
        }
        let mut kind = mem::replace(&mut instruction.kind, BLANK);
        if let Kind::Wait { source, target: WaitFor::Line(earlier), .. } = &mut kind {
            *earlier = moved[*earlier];
            // The last half of a copy may be on another stream than the original copy was.
            *source = self.list.instructions()[*earlier].stream;
        }
        self.list.push_unchecked(stream, kind, uses.iter().map(Declared::seen), site);
        self.list.set_launch_options(instruction.launch);
        self.lines.push(line);
    }
}

/// The streams of the two halves of a staged copy, and the pinned memory between them.
struct Halves {
    first: StreamKey,
    second: StreamKey,
    memory: MemoryKind,
    device: DeviceId,
    engine: Option<EngineRef>,
}

impl Halves {
    fn of(stream: StreamKey, source: &Tensor, target: &Tensor) -> Halves {
        let host = |tensor: &Tensor, stream_type| {
            StreamKey::new(tensor.place().device().unwrap_or(HOST_DEVICE), stream_type, stream.lane)
        };
        let (first, memory, second) = if Home::of(source) == Home::Pageable {
            (host(source, StreamType::HostToDevice), MemoryKind::Upload, stream)
        } else {
            (stream, MemoryKind::Pinned, host(target, StreamType::DeviceToHost))
        };
        let engine = source.resource().engine().or(target.resource().engine());
        Halves { first, second, memory, device: stream.device, engine }
    }

    /// Pinned memory with the size of `source`.
    fn block(&self, source: &Tensor) -> Tensor {
        Tensor::unbound_of(self.engine, self.device.into(), self.memory, source.dtype(), source.layout().shape())
    }
}

/// How a large copy is cut: along one axis into equal ranges, of which the last may be smaller, and along each axis outside of that
/// into single indices. So each piece of a contiguous tensor is contiguous.
struct Cut {
    axis: usize,
    /// Indices of the axis in one piece.
    step: usize,
}

impl Cut {
    /// A cut into pieces of at most `bytes` bytes, or of one element. `None` if the tensor is no larger than one piece.
    fn of(tensor: &Tensor, bytes: usize) -> Option<Cut> {
        let shape = tensor.shape();
        if shape.elements() == 0 {
            return None;
        }
        let mut inner = tensor.dtype().size();
        for (axis, &size) in shape.dims().iter().enumerate().rev() {
            let all = inner.saturating_mul(size);
            if all > bytes && size > 1 {
                let pieces = size.div_ceil((bytes / inner).max(1));
                return Some(Cut { axis, step: size.div_ceil(pieces) });
            }
            inner = all;
        }
        None
    }

    /// The number of pieces of a tensor of this shape.
    fn pieces(&self, tensor: &Tensor) -> usize {
        let shape = tensor.shape();
        let outer: usize = shape.dims()[..self.axis].iter().product();
        outer * self.in_a_row(shape.dims())
    }

    fn in_a_row(&self, dims: &[usize]) -> usize {
        dims[self.axis].div_ceil(self.step)
    }

    /// Piece `number` of a tensor of this shape. No piece is larger than the first.
    fn piece(&self, tensor: &Tensor, number: usize) -> Tensor {
        let (shape, mut layout) = (tensor.shape(), *tensor.layout());
        let dims = shape.dims();
        let (mut outer, place) = (number / self.in_a_row(dims), number % self.in_a_row(dims));
        let start = place * self.step;
        layout = sliced(&layout, self.axis, start..(start + self.step).min(dims[self.axis]));
        for axis in (0..self.axis).rev() {
            let index = outer % dims[axis];
            outer /= dims[axis];
            layout = sliced(&layout, axis, index..index + 1);
        }
        tensor.view(layout).unwrap_or_else(|error| unreachable!("a part of a view lies in its storage: {error}"))
    }

    /// The part of `block` that `piece` needs; a block has the size of the first piece.
    fn part(&self, block: &Tensor, piece: &Tensor) -> Tensor {
        let needed = piece.shape().dims()[self.axis];
        if block.shape() == piece.shape() {
            return block.clone();
        }
        let layout = sliced(block.layout(), self.axis, 0..needed);
        block.view(layout).unwrap_or_else(|error| unreachable!("a part of a view lies in its storage: {error}"))
    }
}

/// Slices an axis by a range that is valid.
fn sliced(layout: &Layout, axis: usize, range: Range<usize>) -> Layout {
    layout.slice(axis, range).unwrap_or_else(|error| unreachable!("a piece lies within its tensor: {error}"))
}

#[cfg(test)]
#[path = "stage_tests.rs"]
mod tests;
