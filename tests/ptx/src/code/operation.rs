//! Operations as the interpreter runs them.

use crate::compute::{Function, WithCarry};
use crate::text::syntax::Space;

/// What an operation reads.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Source {
    Register(u32),
    Constant(u64),
}

/// Where an operation reads or writes memory.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Place {
    pub(crate) space: Space,
    pub(crate) base: Source,
    pub(crate) offset: i64,
    /// Bytes of one element, and how many lie side by side: 1, 2 or 4.
    pub(crate) bytes: u32,
    pub(crate) elements: u32,
    /// Volatile accesses are made to race.
    pub(crate) is_volatile: bool,
}

/// A register that is written, and the bits that it has.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Target {
    pub(crate) register: u32,
    pub(crate) mask: u64,
}

#[derive(Copy, Clone, Debug)]
pub(crate) enum Special {
    Thread(usize),
    ThreadsOfBlock(usize),
    Block(usize),
    BlocksOfGrid(usize),
}

/// Bytes of a parameter or result that a call copies.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Passed {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) bytes: usize,
}

pub(crate) struct Call {
    /// Which of the functions of the module.
    pub(crate) function: usize,
    pub(crate) arguments: Vec<Passed>,
    pub(crate) results: Vec<Passed>,
}

pub(crate) enum Action {
    Compute {
        function: Function,
        to: Target,
        from: [Source; 3],
    },
    /// As `Compute`; the second operand may not be 0.
    Divide {
        function: Function,
        to: Target,
        from: [Source; 3],
    },
    /// The register of the carry is one of the thread.
    WithCarry {
        function: WithCarry,
        to: Target,
        from: [Source; 3],
        reads: bool,
        writes: bool,
    },
    /// Bits of `width` from the place `from` on are replaced by those of the first operand.
    Insert {
        to: Target,
        from: [Source; 4],
    },
    /// `mov` of several registers into one: the first has the lowest bits.
    Pack {
        to: Target,
        from: Vec<Source>,
        bits: u32,
    },
    Unpack {
        to: Vec<Option<Target>>,
        from: Source,
        bits: u32,
    },
    Special {
        to: Target,
        which: Special,
    },
    Load {
        to: [Option<Target>; 4],
        place: Place,
        is_signed: bool,
    },
    Store {
        from: [Source; 4],
        place: Place,
    },
    /// Reads memory, and writes what the function makes of it and of the operands.
    Atomic {
        function: Function,
        to: Option<Target>,
        place: Place,
        from: [Source; 2],
    },
    Branch(u32),
    Barrier,
    Fence,
    Call(Box<Call>),
    Return,
}

pub(crate) struct Operation {
    /// The predicate, and the value for which the operation runs.
    pub(crate) guard: Option<(u32, bool)>,
    pub(crate) action: Action,
}
