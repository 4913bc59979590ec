//! A script as it was written: statements and expressions with their places, nothing resolved.

use crate::engine::{DType, DeviceId, Op};
use crate::source::{Span, Spanned};

/// A whole script, or the body of a block.
pub type Block = Vec<Statement>;

/// One statement.
#[derive(Clone, Debug, PartialEq)]
pub struct Statement {
    /// The statement without its line end; a block's span ends with its opening brace.
    pub span: Span,
    /// What it says.
    pub kind: StatementKind,
}

/// The kinds of statements.
#[derive(Clone, Debug, PartialEq)]
pub enum StatementKind {
    /// `device acc = cuda:0 else cpu:0`
    Device {
        /// The name given.
        name: Spanned<String>,
        /// The devices to try, in this order.
        choices: Vec<Spanned<DeviceId>>,
    },
    /// `let h = relu x`
    Let {
        /// The name given.
        name: Spanned<String>,
        /// What it names.
        value: Expr,
    },
    /// `matmul a b into y rows 0..4`
    Into {
        /// The copy or the op.
        value: Expr,
        /// Where its result goes.
        target: Target,
    },
    /// `fill y rows 0..4 value 0`
    Refill {
        /// What is filled.
        target: Target,
        /// The value of every element.
        value: Spanned<Number>,
        /// `on lane N`.
        lane: Option<Spanned<u32>>,
    },
    /// `print "text"`
    PrintText(String),
    /// `print y`
    Print(Expr),
    /// `print accuracy scores labels`
    PrintAccuracy {
        /// Scores; the argmax over the last axis is the answer.
        scores: Expr,
        /// The right answers, `i64`.
        labels: Expr,
    },
    /// `save y "out.npy"`
    Save {
        /// What is saved.
        value: Expr,
        /// Where to.
        path: Spanned<String>,
    },
    /// `expect a == b` or `expect a ~= b tol 1e-4`
    Expect {
        /// What came out.
        found: Expr,
        /// What should have.
        expected: Expr,
        /// The tolerance of `~=`; nothing for `==`.
        tolerance: Option<f64>,
    },
    /// `repeat 10 { ... }`
    Repeat {
        /// How often.
        count: u64,
        /// What.
        body: Block,
    },
    /// `time "label" { ... }`
    Time {
        /// The label of the printed time.
        label: String,
        /// What is timed.
        body: Block,
    },
}

/// An expression.
#[derive(Clone, Debug, PartialEq)]
pub struct Expr {
    /// Where it stands.
    pub span: Span,
    /// What it is.
    pub kind: ExprKind,
    /// `on lane N`, which also holds for nested calls that do not name a lane themselves.
    pub lane: Option<Spanned<u32>>,
}

/// A number as written. Which dtype it becomes depends on where it is used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// Without a fraction.
    Int(i64),
    /// With a fraction or an exponent, or `inf`, `nan`.
    Float(f64),
    /// `true`, `false`.
    Bool(bool),
}

/// The kinds of expressions.
#[derive(Clone, Debug, PartialEq)]
pub enum ExprKind {
    /// A tensor by its name.
    Name(String),
    /// A number, as an operand of an elementwise op.
    Number(Number),
    /// `load "file.npy"`, `load "file.safetensors" "name"`
    Load {
        /// The file.
        path: Spanned<String>,
        /// The tensor in it.
        tensor: Option<Spanned<String>>,
    },
    /// `copy x to acc`; without `to` only in front of `into`.
    Copy {
        /// What is copied.
        value: Box<Expr>,
        /// Where to.
        to: Option<PlaceRef>,
    },
    /// `empty f32 2 3 on host`: zeros.
    /// `fill f32 2 3 value 1 on acc`
    Fill {
        /// Element type.
        dtype: DType,
        /// Sizes.
        dims: Vec<Spanned<i64>>,
        /// The value; nothing for `empty`.
        value: Option<Spanned<Number>>,
        /// Where.
        on: PlaceRef,
    },
    /// `uniform f32 2 3 seed 7 on acc`
    Random {
        /// Which.
        op: Op,
        /// Element type.
        dtype: DType,
        /// Sizes.
        dims: Vec<Spanned<i64>>,
        /// Which numbers.
        seed: u64,
        /// Where.
        on: PlaceRef,
    },
    /// A kernel.
    Call {
        /// Which.
        op: Op,
        /// Its inputs.
        inputs: Vec<Expr>,
        /// `axis`, `axes`; nothing means every axis.
        axes: Vec<Spanned<i64>>,
        /// `keep`.
        keep: bool,
        /// The target of `cast` and `one_hot`.
        to: Option<DType>,
        /// What only one op has.
        extra: ExtraRef,
    },
    /// A view or a reshape.
    View {
        /// Of what.
        value: Box<Expr>,
        /// Which.
        view: View,
    },
}

/// What only one op has, as written.
#[derive(Clone, Debug, PartialEq)]
pub enum ExtraRef {
    /// Of most ops.
    None,
    /// `pad`.
    Pad {
        /// Elements before the input.
        before: u32,
        /// Elements after the input.
        after: u32,
        /// Each of them; zero if not given.
        value: Option<Spanned<Number>>,
    },
    /// `one_hot`: how many classes.
    Classes(usize),
}

/// The kinds of views.
#[derive(Clone, Debug, PartialEq)]
pub enum View {
    /// `reshape h 4 -1`
    Reshape(Vec<Spanned<i64>>),
    /// `broadcast h 4 10`
    Broadcast(Vec<Spanned<i64>>),
    /// `permute h 1 0`
    Permute(Vec<Spanned<i64>>),
    /// `slice h rows 0..16 axis 2 4..`
    Slice(Vec<SliceSpec>),
}

/// One range of a slice.
#[derive(Clone, Debug, PartialEq)]
pub struct SliceSpec {
    /// The axis; `rows` is 0, `cols` is 1, negative counts from the end.
    pub axis: i64,
    /// First index, or from the start.
    pub start: Option<u64>,
    /// One past the last index, or to the end.
    pub end: Option<u64>,
    /// The whole range as written.
    pub span: Span,
}

/// The tensor that `into` or `fill` writes.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// The tensor.
    pub name: Spanned<String>,
    /// Which part of it.
    pub slices: Vec<SliceSpec>,
}

/// A place as written.
#[derive(Clone, Debug, PartialEq)]
pub enum PlaceRef {
    /// `host`
    Host,
    /// A name from a `device` statement.
    Named(Spanned<String>),
    /// `cpu:0`
    Device(Spanned<DeviceId>),
}
