//! A program: values, the steps that read and write them, and the names of those that its user gives or gets.
//!
//! Invariants, which [`Program::check`] checks:
//! * Every operand lies within its value; a step reads a value only after a step that writes it, unless it is a feed or a parameter.
//! * A block of steps, which an `if`, an `else` or a `while` begins, has an end. A value that a step of a block writes first exists within
//!   that block only.
//! * No step writes a feed: it is the caller's tensor. Parameters may be written.
//! * Names of feeds, of parameters and of fetches are unique among each other, and a name is not empty.

use std::panic::Location;

use streamvm_ep::{Access, DType, Layout, MemoryKind, Op, Params, Scalar, Shape};
use streamvm_instructions::{Place, ProgramStep};

/// How deep blocks may nest. It bounds the work of passes that look at a step once for each block around it.
pub(crate) const MOST_NESTED: usize = 64;

/// A value of a program, as an index into [`Program::values`].
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ValueId(pub usize);

/// Where the bytes of a value come from.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum ValueRole {
    /// The tensor that a run gets for this feed, an index into [`Program::feeds`].
    Feed(usize),
    /// The tensor that is bound to this parameter, an index into [`Program::parameters`].
    Parameter(usize),
    /// A step writes it; it exists within a run, or is fetched.
    Computed,
}

/// A storage: bytes that steps read and write through views.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Value {
    /// Where its bytes come from.
    pub role: ValueRole,
    /// Where its bytes live.
    pub place: Place,
    /// The kind of memory there.
    pub memory: MemoryKind,
    /// The dtype of its elements.
    pub dtype: DType,
    /// Its shape; the layout is row-major, without gaps.
    pub shape: Shape,
}

impl Value {
    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.shape.elements() * self.dtype.size()
    }
}

/// A view of a value that a step reads or writes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Operand {
    /// The value.
    pub value: ValueId,
    /// The layout of the view within the value.
    pub layout: Layout,
    /// Whether the step reads or writes it.
    pub access: Access,
}

/// The work of a step.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Work {
    /// Runs a kernel: operands are its inputs, then its output.
    Call(Op, Params),
    /// Copies its first operand to its second.
    Copy,
    /// Sets every element of its only operand.
    Fill(Scalar),
    /// Begins a block of steps that runs if its only operand, one bool, is true.
    If,
    /// Ends the block of an [`If`](Work::If), and begins one that runs if the operand was false.
    Else,
    /// Begins a block of steps that runs as long as its only operand, one bool, is true before a round.
    While,
    /// Ends the innermost block.
    End,
}

impl Work {
    /// The word for it in errors and printed plans: the name of the op, or `copy`, `fill`, `if`, `else`, `while` or `end`.
    pub fn name(&self) -> &'static str {
        match self {
            Work::Call(op, _) => op.name(),
            Work::Copy => "copy",
            Work::Fill(_) => "fill",
            Work::If => "if",
            Work::Else => "else",
            Work::While => "while",
            Work::End => "end",
        }
    }

    /// Whether it begins or ends a block, and computes nothing.
    pub fn is_mark(&self) -> bool {
        matches!(self, Work::If | Work::Else | Work::While | Work::End)
    }
}

/// One step of a program.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Step {
    /// Its work.
    pub work: Work,
    /// What it reads, then what it writes.
    pub operands: Vec<Operand>,
    /// The source line of the call that recorded it, or that parsed the program.
    pub location: &'static Location<'static>,
}

impl Step {
    /// The operand that it writes.
    pub fn output(&self) -> Option<&Operand> {
        self.operands.last().filter(|operand| operand.access.writes())
    }

    /// The step in an error, as step `number`.
    pub(crate) fn named(&self, number: usize) -> ProgramStep {
        ProgramStep { number, name: self.work.name(), location: self.location }
    }

    /// The operands that it reads.
    pub fn inputs(&self) -> impl Iterator<Item = &Operand> {
        self.operands.iter().filter(|operand| operand.access.reads())
    }
}

/// A name, and the view of a value that it stands for. The views of feeds and parameters are whole values.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Port {
    /// The name.
    pub name: String,
    /// The value.
    pub value: ValueId,
    /// The layout of the view.
    pub layout: Layout,
}

/// Instructions over named feeds, fetches and parameters. Plain data: `Send`, `Sync`, and tied to no engine.
///
/// Two programs are equal if all of their content is: names, values, steps with their parameters, and the source lines that recorded them.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Program {
    /// Its name, in errors and reports.
    pub name: String,
    /// The storages that its steps use.
    pub values: Vec<Value>,
    /// Its steps, in program order.
    pub steps: Vec<Step>,
    /// The inputs that each run gets.
    pub feeds: Vec<Port>,
    /// The tensors that outlive a run, which it reads or writes.
    pub parameters: Vec<Port>,
    /// The results of a run.
    pub fetches: Vec<Port>,
}

impl Program {
    /// A program without steps.
    pub fn new(name: impl Into<String>) -> Program {
        let (values, steps, feeds, parameters, fetches) = Default::default();
        Program { name: name.into(), values, steps, feeds, parameters, fetches }
    }

    /// The value with this number.
    ///
    /// # Panics
    /// If there is none.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0]
    }

    /// Whether a view covers all bytes of its value.
    pub(crate) fn is_whole(&self, value: ValueId, layout: &Layout) -> bool {
        layout.offset() == 0 && layout.is_contiguous() && layout.elements() == self.value(value).shape.elements()
    }
}
