//! Where each value of a compiled program lies, and between which steps.

use hashbrown::HashMap;

use crate::ir::program::{ValueId, Work};
use crate::plan::compiled::{BufferRole, Compiled, Storage};

/// A value, its lifetime and its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ValuePlace {
    /// The feed, parameter or fetch; otherwise `%` and the position of the step that writes it first.
    pub name: String,
    /// Where it is.
    pub storage: Storage,
    /// The position of the first step that uses it.
    pub lower: usize,
    /// One more than the position of the last step that uses it.
    pub upper: usize,
    /// Its size in bytes, also where scratch memory holds one block of it at a time.
    pub bytes: usize,
}

impl Compiled {
    /// The values that the steps use, in the order of their first uses. Values of the arena that share memory at the same time have taken it
    /// over from each other: a step writes over its input. What steps that run together use lives as long as all of them, unless it is in
    /// scratch memory or in registers of their kernel.
    pub fn places(&self) -> Vec<ValuePlace> {
        let mut places: Vec<ValuePlace> = Vec::new();
        let mut known: HashMap<ValueId, usize> = HashMap::new();
        for position in 0..self.step_count() {
            let together = self.fused_at(position);
            for operand in self.operands(position) {
                let alone = position..position + 1;
                let life = match operand.storage {
                    Storage::Buffer { .. } => match together {
                        Some(fused) if !fused.is_unstored(operand.value) => fused.steps.clone(),
                        _ => alone,
                    },
                    Storage::Scratch(_) => alone,
                };
                let place = *known.entry(operand.value).or_insert_with(|| {
                    let name = match operand.storage {
                        Storage::Buffer { index, .. } if !matches!(self.buffers[index].role, BufferRole::Arena(_)) => {
                            self.buffer_name(index)
                        }
                        _ => format!("%{position}"),
                    };
                    let (storage, bytes) = (operand.storage, self.program.value(operand.value).bytes());
                    places.push(ValuePlace { name, storage, lower: life.start, upper: 0, bytes });
                    places.len() - 1
                });
                places[place].upper = places[place].upper.max(life.end);
            }
        }
        // The next round of a loop uses again what was made before the loop.
        let mut open = Vec::new();
        for position in 0..self.step_count() {
            match self.work(position) {
                Work::If | Work::While => open.push(position),
                Work::End => {
                    let begin = open.pop().filter(|&begin| *self.work(begin) == Work::While);
                    if let Some(begin) = begin {
                        for operand in (begin..position).flat_map(|step| self.operands(step)) {
                            let Some(place) = known.get(&operand.value).map(|&place| &mut places[place]) else {
                                continue;
                            };
                            if place.lower < begin {
                                place.upper = place.upper.max(position + 1);
                            }
                        }
                    }
                }
                _ => {}
            }
        }
        places
    }
}
