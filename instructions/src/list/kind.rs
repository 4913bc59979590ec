//! Kinds of instructions: what an instruction does, and the launch options of a function.

use std::borrow::Cow;

use streamvm_ep::{InlineFn, Op, Params, Priority, Scalar};
use streamvm_stream::{StreamKey, WaitKind};

use crate::engine::event::Event;
use crate::tensor::critical::Section;

/// The code of the caller in an instruction; `None` if it was parsed from text, or an engine has moved the code out.
pub type Body = Option<InlineFn>;

/// The role of a caller's function. All roles run alike; they print with different words.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Role {
    /// Computes over declared reads and writes.
    Function,
    /// Uses no resource that streamvm knows.
    Host,
    /// Reads or changes the bytes of one tensor.
    Access,
    /// Queues commands on a GPU's own stream: kernels of the caller, or calls of libraries.
    Cuda,
    /// Runs the steps of a compiled program, which are kernels, copies and fills alone. It neither blocks nor takes a lock of the caller, so a
    /// caller that waits for it may run it.
    Program,
    /// As [`Program`](Role::Program), with functions of the caller among the steps, so a caller that waits must not run it.
    ProgramWithCode,
    /// As [`Program`](Role::Program), with blocks, on a device that runs commands later: it is launched in pieces, and its stream launches nothing
    /// else until the condition of each block is known. The thread that launches runs steps of the host in between, functions of the caller among them. A caller that
    /// waits runs nothing of a device's stream.
    Blocks,
    /// Runs any code in the order that its uses ask for, without access to their bytes.
    Push,
}

/// The launch options of a function, besides its uses.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct LaunchOptions {
    /// Which of the functions that are ready on an unordered stream runs first.
    pub priority: Priority,
    /// Whether the function also runs when a resource that it reads has failed.
    pub clean_up: bool,
    /// Whether the function runs before all queued functions, whatever their priority.
    pub ahead: Ahead,
}

/// Whether a function on an unordered stream runs before the queued functions of all priorities.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Ahead {
    /// The function is queued by its priority.
    #[default]
    No,
    /// The worker that finds that the function is ready runs it next; no other worker does.
    Direct,
    /// The next worker that is free runs it. For deletions of variables.
    First,
}

/// The point that a `wait` instruction waits for.
#[derive(Clone, Debug)]
pub enum WaitFor {
    /// A recorded event.
    Event(Event),
    /// Another instruction of the same list, by line.
    Line(usize),
    /// An instruction submitted before the list, by its number on its stream.
    Number(u64),
}

/// What an instruction does. Its uses are the tensors and variables that it does it to.
#[derive(Debug)]
pub enum Kind {
    /// Runs a kernel: the first uses are the inputs that are tensors, the last is the output.
    Call {
        /// The op.
        op: Op,
        /// Its parameters, and the inputs that are numbers.
        params: Params,
    },
    /// Copies the first use to the second.
    Copy,
    /// Sets every element of its use.
    Fill(Scalar),
    /// Allocates the memory of its use.
    Allocate,
    /// Frees the memory of its use before the last handle is dropped; deletes a variable.
    Release,
    /// Orders its stream after its uses, which are reads or updates, and runs no code. An update fails if the resource has failed.
    Touch,
    /// Runs a caller's code.
    Function {
        /// The role of the function.
        role: Role,
        /// Its name in lists, errors and profiles.
        name: Cow<'static, str>,
        /// The code.
        body: Body,
    },
    /// Records an event.
    Record(Event),
    /// Waits for a point of another stream.
    Wait {
        /// The stream waited for.
        source: StreamKey,
        /// The point of that stream.
        target: WaitFor,
        /// The side that waits. In a printed plan, [`WaitKind::Host`] shows that the scheduler holds the instruction back. An
        /// engine ignores this field: it decides by its own capability table.
        kind: WaitKind,
    },
    /// Orders everything issued later after everything issued earlier.
    Barrier {
        /// Its name in lists and errors.
        name: Cow<'static, str>,
        /// Code to run between the two; `None` runs no code.
        body: Body,
        /// Whether the barrier has code, also where `body` is `None` because the list was parsed or the code was moved out.
        calls: bool,
    },
    /// A point after everything issued earlier; later instructions do not wait for it.
    GlobalSync,
    /// Begins a critical section: the instructions after it run after everything of earlier sections over the same resources.
    SectionBegin(Section),
    /// Ends a critical section: it comes after all instructions of the section.
    SectionEnd(Section),
}

impl Role {
    /// Whether it runs steps of a compiled program.
    #[inline]
    pub fn is_of_program(self) -> bool {
        matches!(self, Role::Program | Role::ProgramWithCode | Role::Blocks)
    }
}

impl Kind {
    /// The word for the kind in a printed list.
    pub fn word(&self) -> &'static str {
        match self {
            Kind::Call { .. } => "call",
            Kind::Copy => "copy",
            Kind::Fill(_) => "fill",
            Kind::Allocate => "alloc",
            Kind::Release => "release",
            Kind::Touch => "touch",
            Kind::Function { role: Role::Function, .. } => "fn",
            Kind::Function { role: Role::Host, .. } => "host",
            Kind::Function { role: Role::Access, .. } => "access",
            Kind::Function { role: Role::Cuda, .. } => "cuda",
            Kind::Function { role: Role::Program | Role::ProgramWithCode | Role::Blocks, .. } => "program",
            Kind::Function { role: Role::Push, .. } => "push",
            Kind::Record(_) => "record",
            Kind::Wait { kind: WaitKind::Device, .. } => "wait",
            Kind::Wait { kind: WaitKind::Host, .. } => "hostwait",
            Kind::Barrier { .. } => "barrier",
            Kind::GlobalSync => "sync",
            Kind::SectionBegin(_) => "begin",
            Kind::SectionEnd(_) => "end",
        }
    }

    /// Whether it has an order of its own, or changes memory, beyond what its uses declare.
    #[inline]
    pub fn has_explicit_order(&self) -> bool {
        match self {
            Kind::Function { role, .. } => *role == Role::Blocks,
            Kind::Call { .. } | Kind::Copy | Kind::Fill(_) | Kind::Touch => false,
            Kind::Allocate | Kind::Release => true,
            Kind::Record(_) | Kind::Wait { .. } | Kind::Barrier { .. } | Kind::GlobalSync => true,
            Kind::SectionBegin(_) | Kind::SectionEnd(_) => true,
        }
    }

    /// Whether dropping it has an effect.
    #[inline]
    pub(super) fn holds_something(&self) -> bool {
        match self {
            Kind::Function { name, body, .. } | Kind::Barrier { name, body, .. } => {
                body.is_some() || matches!(name, Cow::Owned(_))
            }
            Kind::Record(_) | Kind::Wait { .. } | Kind::SectionBegin(_) | Kind::SectionEnd(_) => true,
            Kind::Call { .. }
            | Kind::Copy
            | Kind::Fill(_)
            | Kind::Allocate
            | Kind::Release
            | Kind::Touch
            | Kind::GlobalSync => false,
        }
    }

    /// The name for errors: the op, the function's name, or the kind.
    pub fn name(&self) -> &str {
        match self {
            Kind::Call { op, .. } => op.name(),
            Kind::Function { name, .. } => name,
            other => other.word(),
        }
    }
}

/// The kind of a blank instruction: it holds nothing. An emptied instruction whose kind needs no drop keeps that kind.
pub(crate) const BLANK: Kind = Kind::GlobalSync;
