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

use std::mem;

use streamvm_ep::{DeviceKind, MemoryKind};
use streamvm_stream::{Capabilities, StreamKey, StreamType};

use crate::builder::HOST_DEVICE;
use crate::list::{BLANK, Instruction};
use crate::{InstructionList, Kind, Tensor, Use, WaitFor};

/// A list whose copies can all be made by the devices of their streams.
pub struct Staged {
    /// The list.
    pub list: InstructionList,
    /// For each of its lines, the line that it came from.
    pub lines: Vec<usize>,
}

/// Moves `list` into one in which every copy is staged that has to be; `None` if none has to. A list that will be refused, as
/// it waits for a line that does not come before or is on another stream, stays as it is.
pub(crate) fn stage(list: &mut InstructionList, capabilities: &Capabilities) -> Option<Staged> {
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
        staged.push(line, instruction, instruction.uses_of(uses), &moved, capabilities);
        moved.push(staged.list.len() - 1);
    }
    Some(staged)
}

/// The source and the target of a copy that has to be staged.
fn ends<'a>(
    instruction: &Instruction,
    uses: &'a [Use],
    capabilities: &Capabilities,
) -> Option<(&'a Tensor, &'a Tensor)> {
    if !matches!(instruction.kind, Kind::Copy) || !capabilities.pinned_only(instruction.stream.device.kind) {
        return None;
    }
    let [source, target] = uses else { return None };
    let (source, target) = (source.as_tensor()?, target.as_tensor()?);
    (is_pageable(source) != is_pageable(target)).then_some((source, target))
}

/// Whether the tensor lies in memory of no device but a CPU.
fn is_pageable(tensor: &Tensor) -> bool {
    tensor.place().device().is_none_or(|device| device.kind == DeviceKind::Cpu)
}

impl Staged {
    fn push(
        &mut self,
        line: usize,
        instruction: &mut Instruction,
        uses: &[Use],
        moved: &[usize],
        capabilities: &Capabilities,
    ) {
        let Instruction { stream, site, .. } = *instruction;
        if let Some((source, target)) = ends(instruction, uses, capabilities) {
            let (first, halfway, second) = halves(stream, source, target);
            self.list.push_unchecked(first, Kind::Copy, [source.read(), halfway.write()], site);
            self.list.push_unchecked(second, Kind::Copy, [halfway.read(), target.write()], site);
            self.lines.extend([line, line]);
            return;
        }
        let mut kind = mem::replace(&mut instruction.kind, BLANK);
        if let Kind::Wait { source, target: WaitFor::Line(earlier), .. } = &mut kind {
            *earlier = moved[*earlier];
            // The last half of a copy may run on another stream than the copy was to.
            *source = self.list.instructions()[*earlier].stream;
        }
        self.list.push_unchecked(stream, kind, uses.iter().cloned(), site);
        self.lines.push(line);
    }
}

/// The two streams of a staged copy on `stream`, and the pinned memory between them.
fn halves(stream: StreamKey, source: &Tensor, target: &Tensor) -> (StreamKey, Tensor, StreamKey) {
    let host = |tensor: &Tensor, stream_type| {
        StreamKey::new(tensor.place().device().unwrap_or(HOST_DEVICE), stream_type, stream.lane)
    };
    let (first, memory, second) = if is_pageable(source) {
        (host(source, StreamType::HostToDevice), MemoryKind::Upload, stream)
    } else {
        (stream, MemoryKind::Pinned, host(target, StreamType::DeviceToHost))
    };
    let engine = source.resource().engine().or(target.resource().engine());
    let halfway = Tensor::unbound_of(engine, stream.device.into(), memory, source.dtype(), source.shape());
    (first, halfway, second)
}

#[cfg(test)]
mod tests {
    use std::panic::Location;

    use streamvm_stream::WaitKind;

    use super::*;

    /// The list that `text` becomes, and where its lines came from.
    fn staged(text: &str) -> (String, Vec<usize>) {
        let mut list = InstructionList::parse(text.trim_start()).expect("a list");
        assert!(list.copies_by_devices());
        let staged = list.staged(&Capabilities::standard()).expect("a copy that is staged");
        assert!(list.is_empty(), "all was moved");
        (staged.list.to_string(), staged.lines)
    }

    fn unstaged(text: &str) {
        let mut list = InstructionList::parse(text.trim_start()).expect("a list");
        assert!(list.copies_by_devices());
        let before = list.to_string();
        assert!(list.staged(&Capabilities::standard()).is_none());
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
    fn a_list_that_waits_for_a_later_line_stays_as_it_is() {
        let text = "t0 = tensor host f32[2]\n%0 copy h2d@cuda:0:0 host:t0 -> t1 f32[2]\n";
        let mut list = InstructionList::parse(text).expect("a list");
        let stream = StreamKey::new(streamvm_ep::DeviceId::cuda(0), StreamType::Compute, 0);
        let kind = Kind::Wait { source: stream, target: WaitFor::Line(1), kind: WaitKind::Device };
        list.push(stream, kind, [], Location::caller()).expect("a wait");
        assert!(list.staged(&Capabilities::standard()).is_none());
        assert_eq!(list.len(), 2);
    }

    #[test]
    fn a_device_that_reaches_pageable_memory_copies_by_itself() {
        unstaged("t0 = tensor host f32[2]\n%0 copy h2d@sim:0:0 host:t0 -> t1 f32[2]\n");
        let text = "t0 = tensor host f32[2]\n%0 copy h2d@cpu:0:0 host:t0 -> t1 f32[2]\n";
        assert!(!InstructionList::parse(text).expect("a list").copies_by_devices());
    }
}
