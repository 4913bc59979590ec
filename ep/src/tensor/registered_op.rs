//! Ops that callers register: their names and inputs.
//!
//! The ops of a process are a table that only grows, and a [`RegisteredOp`] has the number of a row. Rows do not change once they are written, so reading one takes
//! no lock. What a call needs at once is in the `RegisteredOp` itself.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use crate::names::growing_table::GrowingTable;

use crate::tensor::dtype::DType;
use crate::tensor::numbers::{MOST_INPUTS, MOST_NUMBERS, MOST_PLACES};
use crate::tensor::op_class::{ElementWork, OpClass};

/// The most ops that one process may register.
const MOST: usize = GrowingTable::<Row>::MOST;

/// The most tensors that a registered op takes.
pub(crate) const MOST_TENSORS: usize = 16;

/// An op that was registered by [`ElementwiseOp`](crate::ElementwiseOp) or [`TensorOp`](crate::TensorOp).
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
pub struct RegisteredOp {
    row: u16,
    class: OpClass,
    /// Bits 0 to 4: how many tensors. Bits 5 and 6: how many numbers.
    inputs: u8,
    /// Bits 0 and 1: the work. Bits 2 and 3: in place, random.
    facts: u8,
}

// A kernel has an op, and a table has thousands of kernels.
const _: () = assert!(size_of::<RegisteredOp>() == 6 && MOST_TENSORS < 1 << 5 && MOST_NUMBERS < 1 << 2);

const IN_PLACE: u8 = 1 << 2;
const RANDOM: u8 = 1 << 3;

/// All facts about an op but its rule and its kernels.
pub(crate) struct OpFacts {
    pub(crate) name: String,
    pub(crate) documentation: String,
    /// The names of the tensors, then those of the numbers.
    pub(crate) inputs: Vec<String>,
    /// How many of the inputs are numbers.
    pub(crate) numbers: usize,
    pub(crate) dtypes: Vec<DType>,
    pub(crate) class: OpClass,
    pub(crate) work: ElementWork,
    pub(crate) in_place: bool,
    pub(crate) random: bool,
}

/// A row of the table. It is never dropped, so its texts are those of the process.
struct Row {
    name: &'static str,
    documentation: &'static str,
    inputs: &'static [&'static str],
    dtypes: &'static [DType],
    op: RegisteredOp,
}

/// The error of registering an op.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the text of each variant says what its fields are")]
pub enum RegisterError {
    /// A name that cannot be read back from a text.
    #[error("`{name}` cannot name {what}; take a small letter, then at most 47 small letters, digits and `_`")]
    Name { name: String, what: &'static str },
    /// A word of texts, profiles and costs.
    #[error("`{name}` is the name of another kind of step, so no op can have it")]
    Word { name: String },
    /// A second op of this name.
    #[error("there is an op `{name}` already; register each op once in a process, and keep the `Op` that you get")]
    Taken { name: String },
    /// A second input of this name.
    #[error("two inputs of the op `{op}` are called `{input}`")]
    TwoInputs { op: String, input: String },
    /// An op without tensors, or with too many.
    #[error("the op `{op}` takes {found} tensors; it can take 1 to {most}")]
    Tensors { op: String, found: usize, most: usize },
    /// More numbers than the parameters of an instruction have room for.
    #[error("the op `{op}` takes {found} numbers; there is room for {MOST_NUMBERS}: pass the others as tensors")]
    Numbers { op: String, found: usize },
    /// Random numbers and other numbers, for which the parameters have the same room.
    #[error("the op `{op}` draws random numbers, so there is no room for other numbers: pass these as tensors")]
    RandomWithNumbers { op: String },
    /// An op that no device can compute.
    #[error("the op `{op}` has no kernel; give it one by `kernel`")]
    NoKernel { op: String },
    /// Two kernels for one dtype on one kind of device.
    #[error("the op `{op}` has two kernels {what}")]
    TwoKernels { op: String, what: String },
    /// Code for a device that it cannot use.
    #[error("the op `{op}`: {reason}")]
    Code { op: String, reason: String },
    /// The table is full.
    #[error("`{op}` would be one op more than a process may register, which is {MOST}; register each op once")]
    TooMany { op: String },
}

crate::debug_as_display!(RegisterError);

static ROWS: GrowingTable<Row> = GrowingTable::new();

/// The names of steps and instructions that are no ops: texts, profiles and measured costs tell these apart by their names.
const WORDS: [&str; 9] = ["copy", "fill", "if", "else", "while", "end", "fn", "program", "function"];

/// How many rows are written. Locked while an op is registered.
static COUNT: Mutex<usize> = Mutex::new(0);

impl RegisteredOp {
    /// Registers an op, unless an op has its name. `keep` stores what belongs to it under its number before anybody can find the op.
    pub(crate) fn register(
        facts: OpFacts,
        is_taken: impl Fn(&str) -> bool,
        keep: impl FnOnce(usize),
    ) -> Result<RegisteredOp, RegisterError> {
        facts.check()?;
        let mut count = COUNT.lock().unwrap_or_else(PoisonError::into_inner);
        let name = facts.name;
        if is_taken(&name) {
            return Err(RegisterError::Taken { name });
        }
        let row = *count;
        if row == MOST {
            return Err(RegisterError::TooMany { op: name });
        }
        keep(row);
        let op = RegisteredOp {
            row: row as u16,
            class: facts.class,
            inputs: (facts.inputs.len() - facts.numbers) as u8 | (facts.numbers as u8) << 5,
            facts: facts.work as u8 | if facts.in_place { IN_PLACE } else { 0 } | if facts.random { RANDOM } else { 0 },
        };
        let text = |text: String| -> &'static str { text.leak() };
        let inputs = facts.inputs.into_iter().map(text).collect::<Vec<_>>().leak();
        let (documentation, dtypes) = (text(facts.documentation), facts.dtypes.leak());
        ROWS.set(row, Row { name: text(name), documentation, inputs, dtypes, op });
        *count += 1;
        Ok(op)
    }

    /// The ops that are registered now, in the order in which they were.
    pub fn all() -> impl Iterator<Item = RegisteredOp> {
        ROWS.iter().map(|row| row.op)
    }

    /// The place of the op in tables.
    #[inline]
    pub(crate) fn row(self) -> usize {
        self.row.into()
    }

    fn facts(self) -> &'static Row {
        ROWS.get(self.row()).expect("only a row that is written has an op")
    }

    pub(crate) fn name(self) -> &'static str {
        self.facts().name
    }

    pub(crate) fn documentation(self) -> &'static str {
        self.facts().documentation
    }

    pub(crate) fn inputs(self) -> &'static [&'static str] {
        self.facts().inputs
    }

    pub(crate) fn dtypes(self) -> &'static [DType] {
        self.facts().dtypes
    }

    #[inline]
    pub(crate) const fn class(self) -> OpClass {
        self.class
    }

    #[inline]
    pub(crate) const fn arity(self) -> usize {
        (self.inputs & 0b11111) as usize + self.numbers()
    }

    /// How many of the inputs are numbers.
    #[inline]
    pub const fn numbers(self) -> usize {
        (self.inputs >> 5) as usize
    }

    #[inline]
    pub(crate) const fn work(self) -> ElementWork {
        match self.facts & 0b11 {
            0 => ElementWork::Light,
            1 => ElementWork::Long,
            _ => ElementWork::Call,
        }
    }

    /// Whether it is an op [in place](crate::TensorOp::in_place).
    #[inline]
    pub const fn is_in_place(self) -> bool {
        self.facts & IN_PLACE != 0
    }

    #[inline]
    pub(crate) const fn is_random(self) -> bool {
        self.facts & RANDOM != 0
    }
}

impl fmt::Debug for RegisteredOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl OpFacts {
    fn check(&self) -> Result<(), RegisterError> {
        let is_name = |name: &str| {
            let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
            name.starts_with(|first: char| first.is_ascii_lowercase()) && name.len() <= 48 && name.bytes().all(plain)
        };
        let op = || self.name.clone();
        if !is_name(&self.name) {
            return Err(RegisterError::Name { name: op(), what: "an op" });
        }
        if WORDS.contains(&self.name.as_str()) {
            return Err(RegisterError::Word { name: op() });
        }
        for (place, input) in self.inputs.iter().enumerate() {
            if !is_name(input) {
                return Err(RegisterError::Name { name: input.clone(), what: "an input" });
            }
            if self.inputs[..place].contains(input) {
                return Err(RegisterError::TwoInputs { op: op(), input: input.clone() });
            }
        }
        let found = self.inputs.len() - self.numbers;
        let most = match (self.class, self.numbers) {
            (OpClass::Registered, 0) => MOST_TENSORS,
            (OpClass::Registered, numbers) => MOST_PLACES.saturating_sub(numbers),
            _ => MOST_INPUTS,
        };
        if !(1..=most).contains(&found) {
            return Err(RegisterError::Tensors { op: op(), found, most });
        }
        if self.numbers > 0 && self.random {
            return Err(RegisterError::RandomWithNumbers { op: op() });
        }
        if self.numbers > MOST_NUMBERS {
            return Err(RegisterError::Numbers { op: op(), found: self.numbers });
        }
        Ok(())
    }
}
