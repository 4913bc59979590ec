//! What a module consists of, as it is written: names are not resolved yet.

/// A text that is no PTX, or that uses a part of PTX which the interpreter does not know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the PTX is not understood: {reason}")]
pub struct ParseError {
    /// The line, from 1.
    pub line: u32,
    /// What was found, and what was expected or is supported.
    pub reason: String,
}

impl ParseError {
    pub(crate) fn new(line: u32, reason: impl Into<String>) -> ParseError {
        ParseError { line, reason: reason.into() }
    }
}

/// A type such as `.s64`: what kind of number, and its bits.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Type {
    pub(crate) kind: Kind,
    pub(crate) bits: u32,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Signed,
    Unsigned,
    /// `.b32`: bits without a meaning.
    Bits,
    Float,
    Predicate,
}

impl Type {
    /// The type of that name, without its dot.
    pub(crate) fn named(name: &str) -> Option<Type> {
        if name == "pred" {
            return Some(Type { kind: Kind::Predicate, bits: 1 });
        }
        let kind = match name.chars().next()? {
            's' => Kind::Signed,
            'u' => Kind::Unsigned,
            'b' => Kind::Bits,
            'f' => Kind::Float,
            _ => return None,
        };
        let bits = name[1..].parse().ok()?;
        let known = match kind {
            Kind::Float => matches!(bits, 16 | 32 | 64),
            _ => matches!(bits, 8 | 16 | 32 | 64),
        };
        known.then_some(Type { kind, bits })
    }

    pub(crate) fn bytes(self) -> usize {
        self.bits as usize / 8
    }
}

/// Where a variable lies.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Param,
    Global,
    Constant,
    Shared,
    Local,
    Generic,
}

/// A variable that is declared.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub(crate) line: u32,
    pub(crate) space: Space,
    pub(crate) name: String,
    pub(crate) alignment: usize,
    /// 0 for an array without a size, which the launch gives.
    pub(crate) bytes: usize,
    /// `None` if the text gives no value.
    pub(crate) value: Option<Vec<u8>>,
}

#[derive(Clone, Debug)]
pub(crate) enum Operand {
    Name(String),
    Integer(u64),
    F32(u32),
    F64(u64),
    /// `[name+offset]`
    Address(String, i64),
    /// `{a, b}`
    Vector(Vec<Operand>),
    /// `(a, b)`
    List(Vec<Operand>),
}

#[derive(Clone, Debug)]
pub(crate) struct Statement {
    pub(crate) line: u32,
    /// The predicate, and whether it is negated.
    pub(crate) guard: Option<(String, bool)>,
    /// `ld.param.u64` as `["ld", "param", "u64"]`.
    pub(crate) opcode: Vec<String>,
    pub(crate) operands: Vec<Operand>,
}

#[derive(Clone, Debug)]
pub(crate) enum Item {
    Open,
    Close,
    Label(u32, String),
    /// Registers `name`, or `name0` to `name{count - 1}`.
    Registers {
        line: u32,
        declared: Type,
        name: String,
        count: Option<u32>,
    },
    Variable(Variable),
    Statement(Statement),
}

#[derive(Clone, Debug)]
pub(crate) struct Function {
    pub(crate) line: u32,
    pub(crate) name: String,
    pub(crate) is_entry: bool,
    /// Results first.
    pub(crate) results: usize,
    pub(crate) parameters: Vec<Variable>,
    /// The most threads of a block, if declared.
    pub(crate) most_threads: Option<u32>,
    /// `None` for a declaration.
    pub(crate) body: Option<Vec<Item>>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Syntax {
    pub(crate) variables: Vec<Variable>,
    pub(crate) functions: Vec<Function>,
}
