//! A compiled program as text, for people and golden tests.

use std::fmt;
use std::ops::Range;

use streamvm_ep::{Access, DeviceId};
use streamvm_stream::{StreamKey, StreamType};

use crate::ir::program::Work;
use crate::plan::compiled::{
    BufferRole, Compiled, CompiledStep, FusedBy, Located, OtherPart, OtherRole, Segment, SegmentBranch, Storage,
};

impl Compiled {
    /// The name of a feed, parameter or fetch; `arena`, with its number where there are several; for a value that several streams use, `%` and
    /// the position of the step that writes it first; `of` and the stream for the flag of a stream.
    pub fn buffer_name(&self, buffer: usize) -> String {
        match self.buffers[buffer].role {
            BufferRole::Feed(place) => self.program.feeds[place].name.clone(),
            BufferRole::Parameter(place) => self.program.parameters[place].name.clone(),
            BufferRole::Fetched(value) => {
                let fetch = self.program.fetches.iter().find(|fetch| fetch.value == value);
                fetch.map_or_else(String::new, |fetch| fetch.name.clone())
            }
            BufferRole::Own(_) => format!("%{}", self.buffers[buffer].first_write),
            BufferRole::Arena(_) if self.arenas.len() == 1 => "arena".to_owned(),
            BufferRole::Arena(number) => format!("arena{number}"),
            BufferRole::Flag(_) => {
                let uses = |segment: &&Segment| segment.uses.iter().any(|it| it.buffer == buffer);
                self.segments.iter().find(uses).map_or_else(String::new, |segment| format!("of {}", segment.stream))
            }
        }
    }

    /// The line before the steps of a segment.
    fn write_segment(&self, f: &mut fmt::Formatter<'_>, number: usize) -> fmt::Result {
        let Segment { stream, after, .. } = &self.segments[number];
        let after: Vec<String> = after.iter().map(usize::to_string).collect();
        let waits = if after.is_empty() { String::new() } else { format!(", after segment {}", after.join(", ")) };
        writeln!(f, "segment {number} on {stream}{waits}:")
    }

    /// The line before the steps of a branch.
    fn write_branch(&self, f: &mut fmt::Formatter<'_>, number: usize, branch: &SegmentBranch) -> fmt::Result {
        let after: Vec<String> = branch.after.iter().map(usize::to_string).collect();
        let waits = if after.is_empty() { String::new() } else { format!(", after branch {}", after.join(", ")) };
        writeln!(f, "branch {number} on lane {}{waits}:", branch.lane)
    }

    /// Neighbouring steps that would be a CUDA graph if one were made of so few calls of the driver, with the number of these: of segments on one lane without
    /// blocks. Lanes need calls for their events, so no segment on several lanes is that small by default.
    fn too_small_for_graphs(&self) -> Vec<(Range<usize>, usize)> {
        let mut found = Vec::new();
        if !self.options.capture || self.options.check_finite || self.options.time_steps {
            return found;
        }
        let may_be_graphs = |segment: &&Segment| {
            let StreamKey { device, stream_type, .. } = segment.stream;
            device.kind.info().captures && stream_type == StreamType::Compute && segment.branches.is_empty()
        };
        for Segment { steps, .. } in self.segments.iter().filter(may_be_graphs) {
            let has_blocks = steps.clone().any(|position| self.work(position).is_mark());
            let mut begin = steps.start;
            while begin < steps.end && !has_blocks {
                let is_captured = |step: &CompiledStep<'_>| {
                    let key = if let Work::Call(op, _) = step.work { step.operands.get(op.key_input()) } else { None };
                    step.work.is_captured(key.map(|operand| operand.dtype))
                };
                let of_graph = self.steps_of(begin..steps.end).take_while(is_captured).count();
                let of_graph = begin..begin + of_graph;
                let groups = self.fused.iter().filter(|fused| of_graph.contains(&fused.steps.start));
                let calls = of_graph.len() - groups.map(|fused| fused.steps.len() - 1).sum::<usize>();
                begin = of_graph.end + 1;
                if calls > 1 && calls < self.options.smallest_graph {
                    found.push((of_graph, calls));
                }
            }
        }
        found
    }

    fn operand(&self, names: &[String], operand: &Located<'_>) -> String {
        let mut text = match operand.storage {
            Storage::Buffer { index, offset } if matches!(self.buffers[index].role, BufferRole::Arena(_)) => {
                format!("{}+{offset}", names[index])
            }
            Storage::Buffer { index, .. } => names[index].clone(),
            Storage::Scratch(piece) => format!("scratch{piece}"),
        };
        if !self.program.is_whole_view(operand.value, operand.layout) {
            let strides: Vec<String> = operand.layout.strides().iter().map(usize::to_string).collect();
            text = format!("{text}[strides {} offset {}]", strides.join(","), operand.layout.offset());
        }
        text
    }
}

/// The line before steps in which another device has a part.
fn write_other_part(f: &mut fmt::Formatter<'_>, OtherPart { steps, device, role }: &OtherPart) -> fmt::Result {
    let (first, last) = (steps.start, steps.end - 1);
    match role {
        OtherRole::Run if first == last => writeln!(f, "%{first} runs on {device}:"),
        OtherRole::Run => writeln!(f, "%{first} to %{last} run on {device}:"),
        OtherRole::Upload(_) | OtherRole::Download(_) => writeln!(f, "%{first} is copied by way of {device}:"),
        OtherRole::Condition => writeln!(f, "%{first} reads its condition on {device}:"),
    }
}

/// Buffers with role, access and size in bytes, then the steps: number, work, operands, type of the output. A line tells
/// which steps run together, and another which are one of several segments, on which stream, and after which segments of other streams. A further
/// line tells which of them a lane of the segment runs, and after which branches of other lanes; and one which steps on a CUDA device are too few for a graph.
/// In a block on such a device, a line tells which steps another device runs, or has a part in.
/// Of a program with bounded sizes, these come first, and all numbers are those for the bounds.
impl fmt::Display for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices: Vec<String> = self.devices().iter().map(DeviceId::to_string).collect();
        let on = if devices.is_empty() { String::new() } else { format!(" on {}", devices.join(", ")) };
        writeln!(f, "program {}{on}", self.program.name)?;
        if !self.program.dims.is_empty() {
            writeln!(f, "sizes {}", self.program.dims_in_words())?;
        }
        let names: Vec<String> = (0..self.buffers.len()).map(|index| self.buffer_name(index)).collect();
        for (buffer, name) in self.buffers.iter().zip(&names) {
            let role = match buffer.role {
                BufferRole::Feed(_) => "feed",
                BufferRole::Parameter(_) => "param",
                BufferRole::Fetched(_) => "fetch",
                BufferRole::Own(_) => "value",
                BufferRole::Arena(_) => "arena",
                BufferRole::Flag(_) => "flag",
            };
            let access = format!("{:?}", buffer.access).to_lowercase();
            let line = format!("{role:<5} {name:<12} {access:<9} {:>12} bytes", buffer.bytes);
            writeln!(f, "{}", line.trim_end())?;
        }
        let mut segments = self.segments.iter().enumerate().peekable();
        let branches = self.segments.iter().flat_map(|segment| segment.branches.iter().enumerate());
        let mut branches = branches.peekable();
        let mut others = self.segments.iter().flat_map(|segment| &segment.others).peekable();
        let mut too_small = self.too_small_for_graphs().into_iter().peekable();
        let mut blocks: usize = 0;
        let width = self.step_count().saturating_sub(1).to_string().len();
        for (position, step) in self.steps().enumerate() {
            if let Some((number, _)) = segments.next_if(|(_, segment)| segment.steps.start == position)
                && self.segments.len() > 1
            {
                self.write_segment(f, number)?;
            }
            if let Some((number, branch)) = branches.next_if(|(_, branch)| branch.steps.start == position) {
                self.write_branch(f, number, branch)?;
            }
            if let Some((steps, calls)) = too_small.next_if(|(steps, _)| steps.start == position) {
                let (last, least) = (steps.end - 1, self.options.smallest_graph);
                // Where the driver refuses a fused kernel, each of its steps is a call.
                let fused = if steps.len() < least { "" } else { " where they are fused" };
                writeln!(
                    f,
                    "%{position} to %{last} are {calls} calls of the driver{fused}, too few for a graph (smallest_graph is {least}):"
                )?;
            }
            if let Some(fused) = self.fused_at(position).filter(|fused| fused.steps.start == position) {
                let last = fused.steps.end - 1;
                match fused.by {
                    FusedBy::Blocks(block) => {
                        writeln!(f, "%{position} to %{last} run together, on blocks of at most {block} elements:")?;
                    }
                    FusedBy::Kernel { .. } => {
                        writeln!(f, "%{position} to %{last} run together, as one kernel:")?;
                    }
                }
            }
            if let Some(part) = others.next_if(|part| part.steps.start == position) {
                write_other_part(f, part)?;
            }
            if matches!(step.work, Work::Else | Work::End) {
                blocks -= 1;
            }
            let name = format!("{:indent$}{}", "", step.work.name(), indent = 2 * blocks);
            let text_of = |chosen: fn(Access) -> bool| -> Vec<String> {
                let chosen = step.operands.iter().filter(|it| chosen(it.access));
                chosen.map(|it| self.operand(&names, it)).collect()
            };
            let (mut inputs, outputs) = (text_of(Access::reads), text_of(Access::writes));
            if let Work::Call(_, params) = step.work {
                for (place, number) in params.numbers().iter() {
                    inputs.insert(place.min(inputs.len()), number.to_string());
                }
            }
            let (mut operands, mut result, mut register) = (inputs.join(" "), String::new(), "");
            if let Work::Function(function) = step.work {
                operands = format!("{:?} {operands}", function.name());
            } else if let Some(section) = step.work.section() {
                operands = format!("{section} {operands}");
            } else if let Some(output) = step.operands.last().filter(|output| output.access.writes()) {
                let dims: Vec<String> = output.layout.shape().dims().iter().map(usize::to_string).collect();
                let unstored = self.fused_at(position).is_some_and(|fused| fused.is_unstored(output.value));
                register = if unstored { " or register" } else { "" };
                result = format!("{}[{}]", output.dtype, dims.join(","));
            }
            if !outputs.is_empty() && step.work.section().is_none() {
                operands = format!("{} -> {}{register}", operands.trim_end(), outputs.join(" "));
            }
            let line = format!("%{position:<width$} {name:<10} {:<40}  {result}", operands.trim_start());
            writeln!(f, "{}", line.trim_end())?;
            if step.work.is_mark() && *step.work != Work::End {
                blocks += 1;
            }
        }
        Ok(())
    }
}
