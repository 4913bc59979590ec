//! Which steps of a compiled program depend on each other, by the bytes that they use.

use streamvm_ep::Footprint;

use crate::compile::compiled::{Compiled, Located};

/// Why a step must come behind an earlier one.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum DependenceKind {
    /// It reads bytes that the earlier one writes.
    ReadAfterWrite,
    /// It writes bytes that the earlier one reads.
    WriteAfterRead,
    /// It writes bytes that the earlier one writes.
    WriteAfterWrite,
}

/// A step that must come behind an earlier one, by their positions in [`Compiled::steps`].
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Dependence {
    /// The earlier step.
    pub from: usize,
    /// The later step.
    pub to: usize,
    /// Why.
    pub kind: DependenceKind,
    /// The buffer that has the bytes, as an index into [`Compiled::buffers`].
    pub buffer: usize,
}

/// One use of bytes of a buffer, as long as no later write covers all of them.
struct Use {
    step: usize,
    bytes: Footprint,
    writes: bool,
}

impl Compiled {
    /// The dependences of the steps, sorted by their steps. Two steps have none because of bytes that a third one between them overwrites:
    /// where its write covers the whole view of one of the two. Takes time in proportion to the steps times the uses of one buffer that no
    /// later write has covered, at worst the square of the steps.
    pub fn dependences(&self) -> Vec<Dependence> {
        let mut open: Vec<Vec<Use>> = self.buffers.iter().map(|_| Vec::new()).collect();
        let mut found = Vec::new();
        for (position, step) in self.steps.iter().enumerate() {
            for operand in &step.operands {
                let (buffer, bytes) = (operand.buffer, bytes(operand));
                let (reads, writes) = (operand.access.reads(), operand.access.writes());
                let of_others = open[buffer].iter().rev().filter(|earlier| earlier.step != position);
                for earlier in of_others.filter(|earlier| earlier.bytes.overlaps(&bytes)) {
                    let kinds = [
                        (earlier.writes && reads, DependenceKind::ReadAfterWrite),
                        (!earlier.writes && writes, DependenceKind::WriteAfterRead),
                        (earlier.writes && writes, DependenceKind::WriteAfterWrite),
                    ];
                    let kinds = kinds.into_iter().filter(|(holds, _)| *holds);
                    found.extend(kinds.map(|(_, kind)| Dependence { from: earlier.step, to: position, kind, buffer }));
                    if earlier.writes && earlier.bytes.covers(&bytes) {
                        break; // what came before has been overwritten here
                    }
                }
                if writes {
                    open[buffer].retain(|earlier| !bytes.covers(&earlier.bytes));
                }
                open[buffer].push(Use { step: position, bytes, writes });
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// The bytes of the buffer that an operand uses.
fn bytes(operand: &Located) -> Footprint {
    Footprint::scaled(&operand.layout, operand.offset, operand.dtype.size())
}
