//! The syntax tree of a script: statements and expressions with their places. Names are not resolved yet.

use std::sync::Arc;

use streamvm_ranks::Reduction;

use crate::base::engine::{Convolution, DType, DeviceId, Op, Pooling};
use crate::syntax::source::{Span, Spanned};

/// A whole script, or the body of a block.
pub type Block = Vec<Statement>;

/// One statement.
#[derive(Clone, Debug, PartialEq)]
pub struct Statement {
    /// The statement without its line end; a block's span ends with its opening brace.
    pub span: Span,
    /// Its kind and parts.
    pub kind: StatementKind,
}

/// The kinds of statements.
#[derive(Clone, Debug, PartialEq)]
pub enum StatementKind {
    /// `device acc = cuda:0 else cpu:0`
    Device {
        /// The new name.
        name: Spanned<String>,
        /// The devices to try, in this order.
        choices: Vec<Spanned<DeviceId>>,
    },
    /// `let h = relu x`
    Let {
        /// The new name.
        name: Spanned<String>,
        /// The value that it names.
        value: Expr,
    },
    /// `matmul a b into y rows 0..4`
    Into {
        /// The copy or the op.
        value: Expr,
        /// The tensor that receives the result.
        target: Target,
    },
    /// `fill y rows 0..4 value 0`
    Refill {
        /// The part that is filled.
        target: Target,
        /// The value of every element.
        value: Spanned<Number>,
        /// `on lane N`.
        lane: Option<Spanned<u32>>,
    },
    /// `all_reduce x sum over world`, `broadcast x from 0 over world`
    Collective {
        /// The collective.
        call: CollectiveCall,
        /// The tensor, or the part of one, that each rank gives and gets.
        target: Target,
    },
    /// `print "text"`
    PrintText(String),
    /// `print y`
    Print(Expr),
    /// `print accuracy scores labels`
    PrintAccuracy {
        /// Scores; the argmax over the last axis is the predicted class.
        scores: Expr,
        /// The correct classes, `i64`.
        labels: Expr,
    },
    /// `save y "out.npy"`
    Save {
        /// The value to save.
        value: Expr,
        /// The file.
        path: Spanned<String>,
    },
    /// `expect a == b` or `expect a ~= b tol 1e-4`
    Expect {
        /// The computed value.
        found: Expr,
        /// The value that it should have.
        expected: Expr,
        /// The tolerance of `~=`; `None` for `==`.
        tolerance: Option<f64>,
    },
    /// `repeat 10 { ... }`
    Repeat {
        /// The number of rounds.
        count: u64,
        /// The statements of a round.
        body: Block,
    },
    /// `while goes_on { ... }`
    While {
        /// The name of one bool, which is looked at before each round.
        condition: Spanned<String>,
        /// The statements of a round.
        body: Block,
    },
    /// `if large { ... }`, `if large { ... } else { ... }`
    If {
        /// The name of one bool.
        condition: Spanned<String>,
        /// The statements that run if it is true.
        then: Block,
        /// The statements that run if it is false; empty without an `else`.
        otherwise: Block,
    },
    /// `if rank 0 { ... }`, `if rank 0 { ... } else { ... }`
    IfRank {
        /// The number of a rank.
        rank: u32,
        /// The statements of that rank.
        then: Block,
        /// The statements of the other ranks.
        otherwise: Block,
    },
    /// `time "label" { ... }`
    Time {
        /// The label of the printed time.
        label: String,
        /// The statements that are timed.
        body: Block,
    },
    /// `scope "layer 3" { ... }`
    Scope {
        /// The name, in messages and reports about its statements.
        name: String,
        /// The statements.
        body: Block,
    },
    /// `program layer (x f32 2 3 on acc) -> y { ... }`. Shared, because whatever walks the script keeps the block for its runs.
    Program(Arc<ProgramBlock>),
    /// `let y = run layer x`
    Run(RunCall),
}

/// Whether a statement of a script, or of its blocks, is a collective.
pub fn has_collectives(block: &Block) -> bool {
    block.iter().any(|statement| match &statement.kind {
        StatementKind::Collective { .. } => true,
        StatementKind::Repeat { body, .. }
        | StatementKind::While { body, .. }
        | StatementKind::Time { body, .. }
        | StatementKind::Scope { body, .. } => has_collectives(body),
        StatementKind::Program(program) => has_collectives(&program.body),
        StatementKind::If { then, otherwise, .. } => has_collectives(then) || has_collectives(otherwise),
        // The parser refuses them in `IfRank`, and the check those of the programs that run there.
        _ => false,
    })
}

/// Empties the blocks that are for other ranks than `rank`.
pub fn leave_to_others(block: &mut Block, rank: usize) {
    for statement in block {
        match &mut statement.kind {
            StatementKind::IfRank { rank: one, then, otherwise } => {
                let (mine, others) = if *one as usize == rank { (then, otherwise) } else { (otherwise, then) };
                others.clear();
                leave_to_others(mine, rank);
            }
            StatementKind::Repeat { body, .. }
            | StatementKind::While { body, .. }
            | StatementKind::Time { body, .. }
            | StatementKind::Scope { body, .. } => leave_to_others(body, rank),
            StatementKind::If { then, otherwise, .. } => {
                leave_to_others(then, rank);
                leave_to_others(otherwise, rank);
            }
            _ => {}
        }
    }
}

/// A collective between the ranks of a job.
#[derive(Clone, Debug, PartialEq)]
pub enum CollectiveCall {
    /// Combines the elements of all ranks.
    AllReduce(Reduction),
    /// Gives the elements of one rank to all others.
    Broadcast {
        /// That rank.
        from: Spanned<u32>,
    },
}

/// A program: statements that run as a whole, with named inputs and results.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgramBlock {
    /// Its name.
    pub name: Spanned<String>,
    /// The inputs of each run.
    pub feeds: Vec<Feed>,
    /// The names in the block whose tensors are the results of a run.
    pub fetches: Vec<Spanned<String>>,
    /// The statements.
    pub body: Block,
}

/// A size as written.
#[derive(Clone, Debug, PartialEq)]
pub enum Size {
    /// A number.
    Number(i64),
    /// The name of a bounded size of the program.
    Named(String),
}

/// An axis of an input of a program.
#[derive(Clone, Debug, PartialEq)]
pub enum FeedAxis {
    /// A size.
    Fixed(i64),
    /// A bounded size: `batch..64` or `4..batch..64`.
    Bounded {
        /// Its name.
        name: String,
        /// The smallest size.
        least: usize,
        /// The largest size.
        most: usize,
    },
}

/// An input of a program: `(x f32 2 3 on acc)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Feed {
    /// The name in the block.
    pub name: Spanned<String>,
    /// Element type.
    pub dtype: DType,
    /// Its axes.
    pub axes: Vec<Spanned<FeedAxis>>,
    /// The place.
    pub on: PlaceRef,
    /// All of it, with its parentheses.
    pub span: Span,
}

/// A run of a program.
#[derive(Clone, Debug, PartialEq)]
pub struct RunCall {
    /// The names of the results; none if the statement has no `let`.
    pub names: Vec<Spanned<String>>,
    /// The program.
    pub program: Spanned<String>,
    /// A tensor for each feed.
    pub feeds: Vec<Expr>,
    /// `on lane N`.
    pub lane: Option<Spanned<u32>>,
}

/// An expression.
#[derive(Clone, Debug, PartialEq)]
pub struct Expr {
    /// Its place in the script.
    pub span: Span,
    /// Its kind and parts.
    pub kind: ExprKind,
    /// `on lane N`; nested calls inherit the lane unless they name their own.
    pub lane: Option<Spanned<u32>>,
}

/// A number as written. Its dtype depends on where it is used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// Without a fraction.
    Int(i64),
    /// Without a fraction, above [`i64::MAX`].
    Large(u64),
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
    /// `load "file.npy"`, `load "file.npz" "name"`, `load "file.safetensors" "name"`
    Load {
        /// The file.
        path: Spanned<String>,
        /// The name of the tensor in the file.
        tensor: Option<Spanned<String>>,
    },
    /// `copy x to acc`; `to` may be missing only before `into`.
    Copy {
        /// The tensor to copy.
        value: Box<Expr>,
        /// The place to copy it to.
        to: Option<PlaceRef>,
    },
    /// `empty f32 2 3 on host`: zeros.
    /// `fill f32 2 3 value 1 on acc`
    Fill {
        /// Element type.
        dtype: DType,
        /// Sizes.
        dims: Vec<Spanned<Size>>,
        /// The value of every element; `None` for `empty`, which means zero.
        value: Option<Spanned<Number>>,
        /// The place.
        on: PlaceRef,
    },
    /// `uniform f32 2 3 seed 7 on acc`
    Random {
        /// The random op.
        op: Op,
        /// Element type.
        dtype: DType,
        /// Sizes.
        dims: Vec<Spanned<Size>>,
        /// The seed of the generator.
        seed: u64,
        /// The place.
        on: PlaceRef,
    },
    /// A kernel.
    Call {
        /// The op.
        op: Op,
        /// Its inputs.
        inputs: Vec<Expr>,
        /// `axis`, `axes`; empty means every axis.
        axes: Vec<Spanned<i64>>,
        /// `keep`.
        keep: bool,
        /// The target of `cast` and `one_hot`.
        to: Option<DType>,
        /// Parameters of this op alone.
        extra: ExtraRef,
    },
    /// A view or a reshape, or the elements in other places.
    View {
        /// The tensor.
        value: Box<Expr>,
        /// The view.
        view: View,
    },
    /// A call that is made of several ops.
    Composed {
        /// Its inputs.
        inputs: Vec<Expr>,
        /// The call.
        call: Composed,
    },
    /// `cat a b axis 0`, `stack a b axis 0`
    Join {
        /// The tensors, at least one.
        inputs: Vec<Expr>,
        /// The axis along which they lie.
        axis: Spanned<i64>,
        /// Whether the axis is a new one.
        is_new: bool,
    },
    /// `arange f32 0 10 2 on acc`, `linspace f32 0 1 11 on acc`
    Range {
        /// Element type.
        dtype: DType,
        /// The first number.
        first: Spanned<Number>,
        /// The end, or the last number.
        last: Spanned<Number>,
        /// The differences.
        by: RangeBy,
        /// The place.
        on: PlaceRef,
    },
    /// `eye f32 3 4 on acc`
    Eye {
        /// Element type.
        dtype: DType,
        /// Rows, and columns if given.
        dims: Vec<Spanned<Size>>,
        /// The place.
        on: PlaceRef,
    },
}

/// The parameters that only one op has, as written.
#[derive(Clone, Debug, PartialEq)]
pub enum ExtraRef {
    /// None, as for most ops.
    None,
    /// `pad`.
    Pad {
        /// Elements before the input.
        before: u32,
        /// Elements after the input.
        after: u32,
        /// The value of these elements; zero if not given.
        value: Option<Spanned<Number>>,
    },
    /// `tril`, `triu`: the diagonal; 0 if not given.
    Diagonal(i64),
    /// `argsort`: whether the largest come first.
    Order {
        /// `descending`.
        descending: bool,
    },
    /// `argtopk`.
    Top {
        /// How many elements.
        count: usize,
        /// Whether the largest, and not `smallest`.
        largest: bool,
    },
    /// `one_hot`: the number of classes.
    Classes(usize),
    /// Convolutions and their gradients.
    Convolution(Convolution),
    /// Poolings and their gradients.
    Pooling(Pooling),
    /// `layer_norm` and `rms_norm`: what is added to each variance or mean of squares.
    Epsilon(Spanned<Number>),
}

/// The calls of neural networks that are made of several ops, with their parameters.
#[derive(Clone, Debug, PartialEq)]
pub enum Composed {
    /// `attention q k v`, `attention q k v mask`
    Attention,
    /// `group_norm x w b groups 4 epsilon 1e-5`
    GroupNorm {
        /// Into how many groups the channels are divided.
        groups: usize,
        /// The number that `layer_norm` adds to each variance.
        epsilon: Spanned<Number>,
    },
    /// `dropout x 0.1 seed 7`
    Dropout {
        /// The probability with which an element is dropped.
        p: Spanned<Number>,
        /// The seed of the generator.
        seed: u64,
    },
}

/// How far apart the numbers of a range are.
#[derive(Clone, Debug, PartialEq)]
pub enum RangeBy {
    /// By so much.
    Step(Spanned<Number>),
    /// As far as so many numbers are.
    Count(usize),
}

/// The kinds of views, and of new tensors with the elements in other places.
#[derive(Clone, Debug, PartialEq)]
pub enum View {
    /// `reshape h 4 -1`
    Reshape(Vec<Spanned<Size>>),
    /// `broadcast h 4 10`
    Broadcast(Vec<Spanned<Size>>),
    /// `permute h 1 0`
    Permute(Vec<Spanned<i64>>),
    /// `slice h rows 0..16 axis 2 4..`
    Slice(Vec<SliceSpec>),
    /// `tile h 2 1`: how often on each axis
    Tile(Vec<Spanned<Size>>),
    /// `roll h -1 axis 0`
    Roll {
        /// By how many places.
        shift: i64,
        /// Along which axis.
        axis: Spanned<i64>,
    },
    /// `sort h axis 0 descending`
    Sort {
        /// Along which axis.
        axis: Spanned<i64>,
        /// `descending`.
        descending: bool,
    },
    /// `topk h 3 axis 0 smallest`
    Top {
        /// How many elements.
        count: usize,
        /// Along which axis.
        axis: Spanned<i64>,
        /// Whether the largest, and not `smallest`.
        largest: bool,
    },
}

/// One range of a slice.
#[derive(Clone, Debug, PartialEq)]
pub struct SliceSpec {
    /// The axis; `rows` is 0, `cols` is 1, negative counts from the end.
    pub axis: i64,
    /// First index; `None` means the start.
    pub start: Option<Size>,
    /// One past the last index; `None` means the end.
    pub end: Option<Size>,
    /// The whole range as written.
    pub span: Span,
}

/// The tensor that `into` or `fill` writes.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// The tensor.
    pub name: Spanned<String>,
    /// The part of it that is written.
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
