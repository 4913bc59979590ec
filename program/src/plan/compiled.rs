//! The result of the compiler: what a run needs, as plain data.

use std::ops::Range;
use std::panic::Location;

use streamvm_ep::{Access, DType, DeviceId, Layout};

use crate::ir::program::{Program, ValueId, Work};

/// Where the memory of a buffer comes from.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum BufferRole {
    /// The tensor given for a feed, by its place among [`Program::feeds`].
    Feed(usize),
    /// The tensor bound to a parameter, by its place among [`Program::parameters`].
    Parameter(usize),
    /// A new tensor of each run for a value that is fetched.
    Fetched(ValueId),
    /// The memory of one run for all other values.
    Arena,
}

/// Memory that the steps use.
#[derive(Clone, PartialEq, Debug)]
pub struct CompiledBuffer {
    /// Where it comes from.
    pub role: BufferRole,
    /// Its size.
    pub bytes: usize,
    /// What a run does to it as a whole. [`Access::Write`] where a run overwrites all of it before it reads any.
    pub access: Access,
}

/// Where the bytes of a value are during a run.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Storage {
    /// In a buffer.
    Buffer {
        /// The buffer, as an index into [`Compiled::buffers`].
        index: usize,
        /// Where the value begins in the buffer, in bytes.
        offset: usize,
    },
    /// In the scratch memory of each thread that computes a [`FusedSteps`], which holds one block of the value at a time: the piece with
    /// this number.
    Scratch(usize),
}

/// A view of a value in its storage.
#[derive(Clone, PartialEq, Debug)]
pub struct Located {
    /// The value that it is a view of.
    pub value: ValueId,
    /// Where the value is.
    pub storage: Storage,
    /// The dtype of its elements.
    pub dtype: DType,
    /// Its layout, from the beginning of the value.
    pub layout: Layout,
    /// Whether the step reads or writes it.
    pub access: Access,
}

/// One step over buffers.
#[derive(Clone, PartialEq, Debug)]
pub struct CompiledStep {
    /// Its work.
    pub work: Work,
    /// Its operands: inputs, then the output.
    pub operands: Vec<Located>,
    /// The number of the step in [`Compiled::program`].
    pub number: usize,
    /// The source line that recorded it.
    pub location: &'static Location<'static>,
}

/// Elementwise steps that run together: all of them compute one block of elements, then the next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FusedSteps {
    /// The steps, as a range of [`Compiled::steps`].
    pub steps: Range<usize>,
    /// How many elements a block has at most.
    pub block: usize,
}

/// A compiled program.
#[derive(Clone, PartialEq, Debug)]
pub struct Compiled {
    pub(crate) program: Program,
    pub(crate) device: DeviceId,
    pub(crate) buffers: Vec<CompiledBuffer>,
    pub(crate) steps: Vec<CompiledStep>,
    pub(crate) fused: Vec<FusedSteps>,
    pub(crate) most_rounds: u64,
    pub(crate) check_finite: bool,
    pub(crate) arena_lower_bound: usize,
}

impl Compiled {
    /// The program as recorded, and behind it the copies that the compiler has added for fetches of feeds and parameters. Steps that the compiler
    /// has removed are still in it; [`steps`](Compiled::steps) has those that run.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The device that runs it.
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// Its memory. At most one buffer is the arena.
    pub fn buffers(&self) -> &[CompiledBuffer] {
        &self.buffers
    }

    /// Its steps, in the order in which they run.
    pub fn steps(&self) -> &[CompiledStep] {
        &self.steps
    }

    /// The steps that run together, in their order.
    pub fn fused(&self) -> &[FusedSteps] {
        &self.fused
    }

    /// The group of fused steps that this step is in.
    pub(crate) fn fused_at(&self, position: usize) -> Option<&FusedSteps> {
        let next = self.fused.partition_point(|fused| fused.steps.end <= position);
        self.fused.get(next).filter(|fused| fused.steps.contains(&position))
    }

    /// How many rounds all loops of a run may make together.
    pub fn most_rounds(&self) -> u64 {
        self.most_rounds
    }

    /// Whether a run looks for infinities and NaN in what its steps write.
    pub fn checks_finite(&self) -> bool {
        self.check_finite
    }

    /// The size of the arena in bytes; 0 if there is none.
    pub fn arena_bytes(&self) -> usize {
        self.buffers.iter().find(|buffer| buffer.role == BufferRole::Arena).map_or(0, |arena| arena.bytes)
    }

    /// The largest sum of sizes of values that live in the arena at one time: no plan of the arena can be smaller.
    pub fn arena_lower_bound(&self) -> usize {
        self.arena_lower_bound
    }
}
