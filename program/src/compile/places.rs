//! Where each value of a compiled program lies, and between which steps.

use hashbrown::HashMap;

use crate::compile::compiled::{BufferRole, Compiled};
use crate::ir::program::ValueId;

/// A value, its life time and its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ValuePlace {
    /// The feed, parameter or fetch; otherwise `%` and the position of the step that writes it first.
    pub name: String,
    /// The buffer, as an index into [`Compiled::buffers`].
    pub buffer: usize,
    /// The position of the first step that uses it.
    pub lower: usize,
    /// The position behind the last step that uses it.
    pub upper: usize,
    /// Its size in bytes.
    pub bytes: usize,
    /// Where it begins in its buffer, in bytes.
    pub offset: usize,
}

impl Compiled {
    /// The values that the steps use, in the order of their first uses. Values of the arena that share memory at the same time have taken it
    /// over from each other: a step writes over its input.
    pub fn places(&self) -> Vec<ValuePlace> {
        let mut places: Vec<ValuePlace> = Vec::new();
        let mut known: HashMap<ValueId, usize> = HashMap::new();
        for (position, step) in self.steps.iter().enumerate() {
            for operand in &step.operands {
                let place = *known.entry(operand.value).or_insert_with(|| {
                    let name = match self.buffers[operand.buffer].role {
                        BufferRole::Arena => format!("%{position}"),
                        _ => self.buffer_name(operand.buffer),
                    };
                    let (bytes, offset) = (self.program.value(operand.value).bytes(), operand.offset);
                    places.push(ValuePlace { name, buffer: operand.buffer, lower: position, upper: 0, bytes, offset });
                    places.len() - 1
                });
                places[place].upper = position + 1;
            }
        }
        places
    }
}
