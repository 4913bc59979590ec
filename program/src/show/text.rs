//! A compiled program as text, for people and golden tests.

use std::fmt;

use crate::ir::program::Work;
use crate::plan::compiled::{BufferRole, Compiled, Located, Storage};

impl Compiled {
    /// The name of a feed, parameter or fetch, or `arena`.
    pub fn buffer_name(&self, buffer: usize) -> String {
        match self.buffers[buffer].role {
            BufferRole::Feed(place) => self.program.feeds[place].name.clone(),
            BufferRole::Parameter(place) => self.program.parameters[place].name.clone(),
            BufferRole::Fetched(value) => {
                let fetch = self.program.fetches.iter().find(|fetch| fetch.value == value);
                fetch.map_or_else(String::new, |fetch| fetch.name.clone())
            }
            BufferRole::Arena => "arena".to_owned(),
        }
    }

    fn operand(&self, operand: &Located) -> String {
        let mut text = match operand.storage {
            Storage::Buffer { index, offset } if self.buffers[index].role == BufferRole::Arena => {
                format!("{}+{offset}", self.buffer_name(index))
            }
            Storage::Buffer { index, .. } => self.buffer_name(index),
            Storage::Scratch(piece) => format!("scratch{piece}"),
        };
        if !self.program.is_whole(operand.value, &operand.layout) {
            let strides: Vec<String> = operand.layout.strides().iter().map(usize::to_string).collect();
            text = format!("{text}[strides {} offset {}]", strides.join(","), operand.layout.offset());
        }
        text
    }
}

/// Buffers with role, access and size in bytes, then the steps: number, work, operands, type of the output. A line tells
/// which steps run together.
impl fmt::Display for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "program {} on {}", self.program.name, self.device)?;
        for (index, buffer) in self.buffers.iter().enumerate() {
            let role = match buffer.role {
                BufferRole::Feed(_) => "feed",
                BufferRole::Parameter(_) => "param",
                BufferRole::Fetched(_) => "fetch",
                BufferRole::Arena => "arena",
            };
            let access = format!("{:?}", buffer.access).to_lowercase();
            let line = format!("{role:<5} {:<12} {access:<9} {:>12} bytes", self.buffer_name(index), buffer.bytes);
            writeln!(f, "{}", line.trim_end())?;
        }
        let mut blocks: usize = 0;
        let width = self.steps.len().saturating_sub(1).to_string().len();
        for (position, step) in self.steps.iter().enumerate() {
            if let Some(fused) = self.fused_at(position).filter(|fused| fused.steps.start == position) {
                let (last, block) = (fused.steps.end - 1, fused.block);
                writeln!(f, "%{position} to %{last} run together, on blocks of at most {block} elements:")?;
            }
            if matches!(step.work, Work::Else | Work::End) {
                blocks -= 1;
            }
            let name = format!("{:indent$}{}", "", step.work.name(), indent = 2 * blocks);
            let (output, inputs) = match step.operands.split_last() {
                Some((output, inputs)) if output.access.writes() => (Some(output), inputs),
                _ => (None, &step.operands[..]),
            };
            let inputs: Vec<String> = inputs.iter().map(|input| self.operand(input)).collect();
            let (mut operands, mut result) = (inputs.join(" "), String::new());
            if let Some(output) = output {
                let dims: Vec<String> = output.layout.shape().dims().iter().map(usize::to_string).collect();
                operands = format!("{operands} -> {}", self.operand(output));
                result = format!("{}[{}]", output.dtype, dims.join(","));
            }
            let line = format!("%{position:<width$} {name:<10} {:<40}  {result}", operands.trim_start());
            writeln!(f, "{}", line.trim_end())?;
            if step.work.is_mark() && step.work != Work::End {
                blocks += 1;
            }
        }
        Ok(())
    }
}
