//! Staging: a copy between pageable memory and a device that reaches none goes by way of pinned memory of the device.
//!
//! The driver of a GPU that is handed pageable memory copies it while the caller waits, so no such copy is handed to one: a
//! CPU stream copies to or from pinned memory, and the device's own stream does the other half. Both are instructions like
//! any others: ordered by soft sync, failing singly, and the pinned memory is reused when both have passed.
//!
//! ```text
//! copy h2d@cuda:0:0 host:t0 -> t1        copy h2d@cpu:0:0  host:t0 -> cuda:0:t2      t2: upload
//!                                        copy h2d@cuda:0:0 upload:t2 -> t1
//! ```
//!
//! On the way to a device it is memory that the host only writes ([`MemoryKind::Upload`]), on the way back the plain kind,
//! which it reads. A pool has one kind, so no block of the one is ever handed out as the other.
//!
//! **Pieces.** A copy of more than a piece ([`STAGING_PIECE`] bytes, unless an engine was built otherwise) is cut along its axes,
//! and becomes as many pairs as there are pieces, through two blocks of pinned memory in turn: while the device copies one piece the
//! CPU copies the next, and the one after that waits for the first block. No rule but those for any instructions orders them:
//!
//! ```text
//! copy h2d@cuda:0:0 host:t0 -> t1        copy h2d@cpu:0:0  host:t0[0] -> cuda:0:t2
//!                                        copy h2d@cuda:0:0 upload:t2 -> t1[0]
//!                                        copy h2d@cpu:0:0  host:t0[1] -> cuda:0:t3
//!                                        copy h2d@cuda:0:0 upload:t3 -> t1[1]
//!                                        copy h2d@cpu:0:0  host:t0[2] -> cuda:0:t2      behind the read of t2
//!                                        …
//!                                        touch h2d@cuda:0:0 update t1
//! ```
//!
//! The pieces are disjoint parts of the target's storage, so each is ordered, and fails, by itself. The last instruction touches all of
//! the target: it is skipped where a piece has failed, so that the copy fails as a whole, as it would if the device made it by itself.
//! Where the copy covers all of its target, the first piece counts as a write of all of it ([`Tensor::begin`]): it heals as the
//! whole would. A list that was printed and parsed has lost that, and heals nothing.

use std::mem;
use std::ops::Range;

use streamvm_ep::{DeviceId, Layout, MemoryKind};
use streamvm_stream::{Capabilities, RunBy, StreamClass, StreamKey, StreamType};

use crate::builder::HOST_DEVICE;
use crate::engine::EngineRef;
use crate::list::{BLANK, Instruction};
use crate::reach::Home;
use crate::{Declared, HeldUse, InstructionList, Kind, Tensor, Use, WaitFor};

/// The most bytes that are staged in one piece, unless an engine was built otherwise: 8 MiB. Sixteen lanes of PCIe 4.0, 32 GB/s by
/// their specification, take a quarter of a millisecond for that at best, which is long against handing a piece from one stream to
/// the next; and a copy of several pieces is one that is worth cutting. Not measured on a GPU.
pub const STAGING_PIECE: usize = 8 << 20;

/// Blocks of pinned memory that a copy in pieces takes: one that the CPU copies to or from, and one that the device does.
const BLOCKS: usize = 2;

/// A list whose copies can all be made by the devices of their streams.
pub struct Staged {
    /// The list.
    pub list: InstructionList,
    /// For each of its lines, the line that it came from.
    pub lines: Vec<usize>,
}

/// Moves `list` into one in which every copy is staged that has to be; `None` if none has to. A list that will be refused, as
/// it waits for a line that does not come before or is on another stream, stays as it is.
pub(crate) fn stage(list: &mut InstructionList, capabilities: &Capabilities, piece: usize) -> Option<Staged> {
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
    // The last line that came from each line.
    let mut moved = Vec::new();
    let (instructions, uses) = list.parts_mut();
    for (line, instruction) in instructions.iter_mut().enumerate() {
        staged.push(line, instruction, instruction.uses_of(uses), &moved, (capabilities, piece));
        moved.push(staged.list.len() - 1);
    }
    Some(staged)
}

/// The source and the target of a copy that has to be staged.
fn ends<'a>(
    instruction: &Instruction,
    uses: &'a [HeldUse],
    capabilities: &Capabilities,
) -> Option<(&'a Tensor, &'a Tensor)> {
    let class = StreamClass::of(&instruction.stream);
    // Threads of the host reach pageable memory whatever the stream's device is.
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
                    // A copy fails as a whole: if a piece has failed, the touch is skipped, and its point marks all of the target as failed.
                    self.list.push_unchecked(halves.second, Kind::Touch, [target.update()], site);
                    self.lines.push(line);
                }
            }
            return;
        }
        let mut kind = mem::replace(&mut instruction.kind, BLANK);
        if let Kind::Wait { source, target: WaitFor::Line(earlier), .. } = &mut kind {
            *earlier = moved[*earlier];
            // The last half of a copy may run on another stream than the copy was to.
            *source = self.list.instructions()[*earlier].stream;
        }
        self.list.push_unchecked(stream, kind, uses.iter().map(Declared::seen), site);
        self.list.set_manner(instruction.manner);
        self.lines.push(line);
    }
}

/// The two streams of a staged copy, and the pinned memory between them.
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

    /// Pinned memory for all of `source`.
    fn block(&self, source: &Tensor) -> Tensor {
        Tensor::unbound_of(self.engine, self.device.into(), self.memory, source.dtype(), source.layout().shape())
    }
}

/// How a large copy is cut: along one axis into equal parts, the last of which may be smaller, and along each axis outside of
/// that into single indices. So a piece of a contiguous tensor is contiguous.
struct Cut {
    axis: usize,
    /// Indices of the axis in one piece.
    step: usize,
}

impl Cut {
    /// For pieces of at most so many bytes, or of one element; `None` where the tensor is no larger.
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

    /// How many pieces a tensor of this shape has.
    fn pieces(&self, tensor: &Tensor) -> usize {
        let shape = tensor.shape();
        let outer: usize = shape.dims()[..self.axis].iter().product();
        outer * self.in_a_row(shape.dims())
    }

    fn in_a_row(&self, dims: &[usize]) -> usize {
        dims[self.axis].div_ceil(self.step)
    }

    /// One of the pieces of a tensor of this shape; the first is as large as any.
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

    /// As much of a block, which is as large as the first piece, as `piece` needs.
    fn part(&self, block: &Tensor, piece: &Tensor) -> Tensor {
        let needed = piece.shape().dims()[self.axis];
        if block.shape() == piece.shape() {
            return block.clone();
        }
        let layout = sliced(block.layout(), self.axis, 0..needed);
        block.view(layout).unwrap_or_else(|error| unreachable!("a part of a view lies in its storage: {error}"))
    }
}

/// A part of an axis that there is.
fn sliced(layout: &Layout, axis: usize, range: Range<usize>) -> Layout {
    layout.slice(axis, range).unwrap_or_else(|error| unreachable!("a piece lies within its tensor: {error}"))
}

#[cfg(test)]
mod tests {
    use std::panic::Location;

    use streamvm_stream::WaitKind;

    use super::*;

    /// The list that `text` becomes, and where its lines came from.
    fn staged(text: &str) -> (String, Vec<usize>) {
        staged_in(STAGING_PIECE, text)
    }

    /// The same, with pieces of so many bytes.
    fn staged_in(piece: usize, text: &str) -> (String, Vec<usize>) {
        let mut list = InstructionList::parse(text.trim_start()).expect("a list");
        assert!(list.copies_by_devices());
        let staged = list.staged(&Capabilities::standard(), piece).expect("a copy that is staged");
        assert!(list.is_empty(), "all was moved");
        (staged.list.to_string(), staged.lines)
    }

    fn unstaged(text: &str) {
        let mut list = InstructionList::parse(text.trim_start()).expect("a list");
        assert!(list.copies_by_devices());
        let before = list.to_string();
        assert!(list.staged(&Capabilities::standard(), STAGING_PIECE).is_none());
        assert_eq!(list.to_string(), before);
    }

    #[test]
    fn copies_from_and_to_the_host_go_by_way_of_pinned_memory() {
        let (text, lines) = staged(
            "
t0 = tensor host f32[2,3]
%0 copy h2d@cuda:0:1 host:t0 -> t1 f32[2,3]
%1 call compute@cuda:0:1 relu t1 -> t2 f32[2,3]
%2 copy d2h@cuda:0:1 t2 -> host:t3 f32[2,3]
",
        );
        snapbox::assert_data_eq!(
            &text,
            snapbox::str![[r#"
t0 = tensor host f32[2,3]
t1 = tensor cuda:0 upload f32[2,3]
%0 copy     h2d@cpu:0:1           host:t0 -> cuda:0:t1                      f32[2,3]
%1 copy     h2d@cuda:0:1          upload:t1 -> t2                           f32[2,3]
%2 call     compute@cuda:0:1      relu t2 -> t3                             f32[2,3]
%3 copy     d2h@cuda:0:1          t3 -> pinned:t4                           f32[2,3]
%4 copy     d2h@cpu:0:1           cuda:0:t4 -> host:t5                      f32[2,3]

"#]]
        );
        assert_eq!(lines, [0, 0, 1, 2, 2]);
        InstructionList::parse(&text).expect("it can be written by hand, too");
    }

    #[test]
    fn memory_of_a_cpu_device_is_staged_by_that_device_and_pinned_memory_is_not() {
        let (text, _) = staged(
            "
t0 = tensor cpu:1 f32[2]
%0 copy h2d@cuda:0:0 cpu:1:t0 -> t1 f32[2]
",
        );
        assert!(text.contains("h2d@cpu:1:0"), "{text}");
        unstaged(
            "
t0 = tensor cuda:0 pinned f32[2]
%0 copy h2d@cuda:0:0 pinned:t0 -> t1 f32[2]
%1 copy h2d@cuda:1:0 cuda:0:t1 -> t2 f32[2]
",
        );
    }

    #[test]
    fn a_wait_for_a_line_waits_for_the_last_of_what_the_line_became() {
        let (text, _) = staged(
            "
t0 = tensor host f32[2]
%0 copy h2d@cuda:0:0 host:t0 -> t1 f32[2]
%1 wait compute@cuda:0:0 h2d@cuda:0:0 by %0
",
        );
        assert!(text.contains("wait     compute@cuda:0:0      h2d@cuda:0:0 by %1"), "{text}");
        let (text, _) = staged(
            "
t0 = tensor cuda:0 f32[2]
%0 copy d2h@cuda:0:0 t0 -> host:t1 f32[2]
%1 wait compute@cuda:0:0 d2h@cuda:0:0 by %0
",
        );
        assert!(text.contains("wait     compute@cuda:0:0      d2h@cpu:0:0 by %1"), "{text}");
    }

    #[test]
    fn a_large_copy_goes_in_pieces_through_two_blocks() {
        let text = "
t0 = tensor host f32[5,2]
%0 copy h2d@cuda:0:0 host:t0 -> t1 f32[5,2]
%1 wait compute@cuda:0:0 h2d@cuda:0:0 by %0
";
        // Pieces of two, two and one row; the last takes a part of its block.
        let (pieces, lines) = staged_in(20, text);
        snapbox::assert_data_eq!(
            &pieces,
            snapbox::str![[r#"
t0 = tensor host f32[5,2]
t1 = view t0 f32[2,2] strides 2,1 offset 0
t2 = tensor cuda:0 upload f32[2,2]
%0 copy     h2d@cpu:0:0           host:t1 -> cuda:0:t2                      f32[2,2]
t3 = tensor cuda:0 f32[5,2]
t4 = view t3 f32[2,2] strides 2,1 offset 0
%1 copy     h2d@cuda:0:0          upload:t2 -> t4                           f32[2,2]
t5 = view t0 f32[2,2] strides 2,1 offset 4
t6 = tensor cuda:0 upload f32[2,2]
%2 copy     h2d@cpu:0:0           host:t5 -> cuda:0:t6                      f32[2,2]
t7 = view t3 f32[2,2] strides 2,1 offset 4
%3 copy     h2d@cuda:0:0          upload:t6 -> t7                           f32[2,2]
t8 = view t0 f32[1,2] strides 2,1 offset 8
t9 = view t2 f32[1,2] strides 2,1 offset 0
%4 copy     h2d@cpu:0:0           host:t8 -> cuda:0:t9                      f32[1,2]
t10 = view t3 f32[1,2] strides 2,1 offset 8
%5 copy     h2d@cuda:0:0          upload:t9 -> t10                          f32[1,2]
%6 touch    h2d@cuda:0:0          update t3
%7 wait     compute@cuda:0:0      h2d@cuda:0:0 by %6

"#]]
        );
        assert_eq!(lines, [0, 0, 0, 0, 0, 0, 0, 1]);
        let list = InstructionList::parse(&pieces).expect("it can be written by hand, too");
        // The halves of a piece wait for each other, the third piece for its block, and nothing for anything else.
        let planned = crate::plan(list, &crate::PlanOptions::default()).expect("a plan");
        let waits = planned.counts.iter().map(|on| (on.stream.to_string(), on.device_waits, on.host_waits));
        let expected = [("h2d@cpu:0:0", 0, 1), ("h2d@cuda:0:0", 0, 3), ("compute@cuda:0:0", 1, 0)];
        assert_eq!(
            waits.collect::<Vec<_>>(),
            expected.map(|(stream, by_device, by_host)| (stream.to_owned(), by_device, by_host))
        );
        let (whole, _) = staged_in(40, text);
        assert_eq!(whole, staged(text).0, "what fits is one piece");
    }

    #[test]
    fn a_cut_takes_every_element_once() {
        use streamvm_ep::{DType, Shape};
        let shapes: [&[usize]; 7] = [&[], &[0, 9], &[7], &[1, 5, 1], &[3, 4, 5], &[2, 1, 6], &[9, 2]];
        for (dims, bytes) in shapes.into_iter().flat_map(|dims| (1..80).map(move |bytes| (dims, bytes))) {
            let shape = Shape::new(dims).expect("a small shape");
            let tensor = Tensor::unbound(crate::Place::Host, MemoryKind::Pageable, DType::F32, shape);
            let Some(cut) = Cut::of(&tensor, bytes) else {
                assert!(shape.elements() * 4 <= bytes.max(4), "{dims:?} in {bytes}");
                continue;
            };
            assert!(shape.elements() * 4 > bytes);
            let mut found = Vec::new();
            let first = cut.piece(&tensor, 0);
            for number in 0..cut.pieces(&tensor) {
                let piece = cut.piece(&tensor, number);
                let elements = piece.shape().elements();
                assert!((1..=first.shape().elements()).contains(&elements), "{dims:?} in {bytes}: {number}");
                assert!(elements == 1 || elements * 4 <= bytes, "{dims:?} in {bytes}: {number}");
                assert!(piece.layout().is_contiguous(), "{dims:?} in {bytes}: {number}");
                assert_eq!(cut.part(&first, &piece).shape(), piece.shape());
                found.extend(piece.layout().span_elements());
            }
            assert_eq!(found, (0..shape.elements()).collect::<Vec<_>>(), "{dims:?} in {bytes}");
        }
    }

    #[test]
    fn the_first_piece_begins_what_is_covered_as_a_whole() {
        let capabilities = Capabilities::standard();
        for (target, first) in [("t1", streamvm_ep::Access::Write), ("t2", streamvm_ep::Access::ReadWrite)] {
            let text = format!(
                "t0 = tensor host f32[4]\nt1 = tensor cuda:0 f32[4]\nt3 = tensor cuda:0 f32[8]\n\
                 t2 = view t3 f32[4] strides 1 offset 0\n%0 copy h2d@cuda:0:0 host:t0 -> {target} f32[4]\n"
            );
            let mut list = InstructionList::parse(&text).expect("a list");
            let staged = list.staged(&capabilities, 8).expect("a copy that is staged").list;
            let last = |line: &Instruction| staged.uses(line).last().expect("an operand").ordering_access();
            let written: Vec<_> = staged.instructions().iter().skip(1).step_by(2).map(last).collect();
            assert_eq!(written, [first, streamvm_ep::Access::ReadWrite], "{target}");
            let touched = staged.instructions().last().expect("a line");
            assert_eq!((touched.kind.name(), last(touched)), ("touch", streamvm_ep::Access::ReadWrite), "{target}");
        }
    }

    #[test]
    fn how_functions_are_run_is_kept() {
        let text = "t0 = tensor host f32[4]\nv0 = var\n%0 copy h2d@cuda:0:0 host:t0 -> t1 f32[4]\n\
                    %1 push workers@cpu:0:0 \"tidy\" high cleanup direct write v0\n";
        let mut list = InstructionList::parse(text).expect("a list");
        let staged = list.staged(&Capabilities::standard(), STAGING_PIECE).expect("a copy that is staged").list;
        assert!(staged.to_string().contains("\"tidy\" high cleanup direct write v0"), "{staged}");
    }

    #[test]
    fn a_list_that_waits_for_a_later_line_stays_as_it_is() {
        let text = "t0 = tensor host f32[2]\n%0 copy h2d@cuda:0:0 host:t0 -> t1 f32[2]\n";
        let mut list = InstructionList::parse(text).expect("a list");
        let stream = StreamKey::new(streamvm_ep::DeviceId::cuda(0), StreamType::Compute, 0);
        let kind = Kind::Wait { source: stream, target: WaitFor::Line(1), kind: WaitKind::Device };
        list.push(stream, kind, [], Location::caller()).expect("a wait");
        assert!(list.staged(&Capabilities::standard(), STAGING_PIECE).is_none());
        assert_eq!(list.len(), 2);
    }

    #[test]
    fn a_device_that_reaches_pageable_memory_copies_by_itself() {
        unstaged("t0 = tensor host f32[2]\n%0 copy h2d@sim:0:0 host:t0 -> t1 f32[2]\n");
        let text = "t0 = tensor host f32[2]\n%0 copy h2d@cpu:0:0 host:t0 -> t1 f32[2]\n";
        assert!(!InstructionList::parse(text).expect("a list").copies_by_devices());
    }
}
