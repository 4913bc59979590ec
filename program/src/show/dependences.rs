//! Which steps of a compiled program depend on each other, by the bytes that they use.

use hashbrown::HashMap;
use streamvm_ep::Footprint;

use crate::ir::program::Work;
use crate::plan::compiled::{Compiled, Located, Storage};

/// Why a step must come after an earlier one.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum DependenceKind {
    /// It reads bytes that the earlier one writes.
    ReadAfterWrite,
    /// It writes bytes that the earlier one reads.
    WriteAfterRead,
    /// It writes bytes that the earlier one writes.
    WriteAfterWrite,
}

/// A step that must come after an earlier one, by their positions in [`Compiled::steps`].
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Dependence {
    /// The earlier step.
    pub from: usize,
    /// The later step.
    pub to: usize,
    /// Why.
    pub kind: DependenceKind,
    /// The buffer that has the bytes, as an index into [`Compiled::buffers`]; `None` for scratch memory.
    pub buffer: Option<usize>,
}

/// Memory with bytes of its own: a buffer, or a piece of the scratch memory of a group of steps.
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
enum Memory {
    Buffer(usize),
    Scratch { group: usize, piece: usize },
}

/// One use of bytes, as long as no later write covers all of them.
struct Use {
    step: usize,
    bytes: Footprint,
    writes: bool,
    /// Whether the step runs in each run of the program: it is in no block.
    always: bool,
}

impl Compiled {
    /// The dependences of the steps, sorted by their steps. Two steps have none because of bytes that a third one between them overwrites:
    /// where its write covers the whole view of one of the two. Takes time in proportion to the steps times the uses of one buffer that no
    /// later write has covered, at worst the square of the steps.
    ///
    /// The dependences are those of one round of each loop. Steps of a block might be skipped, so their writes cover nothing for others.
    pub fn dependences(&self) -> Vec<Dependence> {
        let mut open: HashMap<Memory, Vec<Use>> = HashMap::new();
        let mut found = Vec::new();
        let mut blocks: usize = 0;
        for (position, work) in (0..self.step_count()).map(|position| (position, self.work(position))) {
            match work {
                Work::If | Work::While => blocks += 1,
                Work::End => blocks -= 1,
                Work::Else | Work::Call(..) | Work::Copy | Work::Fill(_) | Work::Function(_) => {}
                Work::Touch(_) | Work::SectionBegin(_) | Work::SectionEnd(_) => {}
            }
            for operand in self.operands(position) {
                let (memory, bytes) = self.memory_of(position, &operand);
                let open = open.entry(memory).or_default();
                let buffer = if let Memory::Buffer(index) = memory { Some(index) } else { None };
                let (reads, writes) = (operand.access.reads(), operand.access.writes());
                let of_others = open.iter().rev().filter(|earlier| earlier.step != position);
                for earlier in of_others.filter(|earlier| earlier.bytes.overlaps(&bytes)) {
                    let kinds = [
                        (earlier.writes && reads, DependenceKind::ReadAfterWrite),
                        (!earlier.writes && writes, DependenceKind::WriteAfterRead),
                        (earlier.writes && writes, DependenceKind::WriteAfterWrite),
                    ];
                    let kinds = kinds.into_iter().filter(|(holds, _)| *holds);
                    found.extend(kinds.map(|(_, kind)| Dependence { from: earlier.step, to: position, kind, buffer }));
                    if earlier.writes && earlier.always && earlier.bytes.covers(&bytes) {
                        break; // what came before has been overwritten here
                    }
                }
                if writes && blocks == 0 {
                    open.retain(|earlier| !bytes.covers(&earlier.bytes));
                }
                open.push(Use { step: position, bytes, writes, always: blocks == 0 });
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }
}

impl Compiled {
    /// The memory that an operand of a step uses, and its bytes. A piece of scratch memory counts as a whole: it holds one block of a value.
    fn memory_of(&self, position: usize, operand: &Located<'_>) -> (Memory, Footprint) {
        match operand.storage {
            Storage::Buffer { index, offset } => {
                (Memory::Buffer(index), Footprint::scaled(operand.layout, offset, operand.dtype.size()))
            }
            Storage::Scratch(piece) => {
                let group = self.fused.iter().position(|fused| fused.steps.contains(&position)).unwrap_or_default();
                (Memory::Scratch { group, piece }, Footprint::all())
            }
        }
    }
}
