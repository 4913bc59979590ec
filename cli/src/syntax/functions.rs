//! The words of the language: functions and keywords.
//!
//! An op is a function of the same name, except for two reductions: `max` and `min` are binary ops with two operands and reductions
//! with one.

use crate::base::engine::{Op, OpClass};

/// The form of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `f a`
    Unary(Op),
    /// `f a b`
    Binary(Op),
    /// `f a b`, or `f a axis 1` for the second op
    BinaryOrReduce(Op, Op),
    /// `f c a b`
    Where,
    /// `f a b c`
    Ternary(Op),
    /// `f a axis 1`, `f a axes 0 1`, `f a`, each with `keep` if wanted
    Reduce(Op),
    /// `f a axis 1`, exactly one axis, with `keep` if wanted
    ArgReduce(Op),
    /// `f a axis 1`, exactly one axis
    AlongAxis(Op),
    /// `f a b axis 1`, exactly one axis
    BinaryAlongAxis(Op),
    /// `f a f64`
    Cast,
    /// `pad a 1 2`, with `axis 1` or `axes 0 1` and `value 0` if wanted
    Pad,
    /// `one_hot a 10 f32`
    OneHot,
    /// `layer_norm a w b epsilon 1e-5`, `rms_norm a w epsilon 1e-5`
    Norm(Op),
    /// `conv2d x w` with `stride 2`, `padding 1 0`, `dilation 1` and `groups 2` if wanted; a gradient takes a third operand
    Convolution(Op),
    /// `max_pool2d x window 2` with `stride 2` and `padding 1 0` if wanted; a gradient takes a second operand
    Pooling(Op),
    /// `attention q k v`, with a mask as a fourth operand if wanted
    Attention,
    /// `group_norm x w b groups 4 epsilon 1e-5`
    GroupNorm,
    /// `dropout x 0.1 seed 7`
    Dropout,
    /// `flip a`, with `axis 1` or `axes 0 1` if wanted
    AlongAxes(Op),
    /// `tril a`, with `diagonal -1` if wanted
    Triangle(Op),
    /// `scatter a i s axis 1`, exactly one axis
    ByIndex(Op),
    /// `argsort a axis 1`, exactly one axis, with `descending` if wanted
    ArgSort,
    /// `argtopk a 3 axis 1`, exactly one axis, with `smallest` if wanted
    ArgTopK,
    /// `sort a axis 1`, exactly one axis, with `descending` if wanted
    Sort,
    /// `topk a 3 axis 1`, exactly one axis, with `smallest` if wanted
    TopK,
    /// `cat a b c axis 0`
    Cat,
    /// `stack a b c axis 0`
    Stack,
    /// `tile a 2 1`
    Tile,
    /// `roll a -1 axis 0`
    Roll,
    /// `eye dtype 3 4 on place`
    Eye,
    /// `arange dtype 0 10 2 on place`
    Arange,
    /// `linspace dtype 0 1 11 on place`
    Linspace,
    /// `load "file"` and a tensor name
    Load,
    /// `copy a to place`
    Copy,
    /// `empty dtype dims on place`
    Empty,
    /// `fill dtype dims value v on place`
    Fill,
    /// `uniform dtype dims seed 7 on place`
    Random(Op),
    /// `reshape a 4 -1`
    Reshape,
    /// `broadcast a 4 10`
    Broadcast,
    /// `permute a 1 0`
    Permute,
    /// `slice a rows 0..4`
    Slice,
}

/// The functions that are not ops.
const OTHERS: [(&str, Form); 19] = [
    ("load", Form::Load),
    ("copy", Form::Copy),
    ("empty", Form::Empty),
    ("fill", Form::Fill),
    ("reshape", Form::Reshape),
    ("broadcast", Form::Broadcast),
    ("permute", Form::Permute),
    ("slice", Form::Slice),
    ("cat", Form::Cat),
    ("stack", Form::Stack),
    ("tile", Form::Tile),
    ("roll", Form::Roll),
    ("sort", Form::Sort),
    ("topk", Form::TopK),
    ("attention", Form::Attention),
    ("group_norm", Form::GroupNorm),
    ("dropout", Form::Dropout),
    ("eye", Form::Eye),
    ("linspace", Form::Linspace),
];

/// Every function of the language: the ops by their names, and the others.
pub fn functions() -> impl Iterator<Item = (&'static str, Form)> {
    Op::ALL.into_iter().filter_map(|op| Some((op.name(), form(op)?))).chain(OTHERS)
}

/// The form of an op's call, by its class; `None` for an op that is called by the name of another.
fn form(op: Op) -> Option<Form> {
    Some(match (op, op.class()) {
        (Op::ReduceMax | Op::ReduceMin, _) => return None,
        (Op::Max, _) => Form::BinaryOrReduce(op, Op::ReduceMax),
        (Op::Min, _) => Form::BinaryOrReduce(op, Op::ReduceMin),
        (_, OpClass::Unary | OpClass::Predicate) => Form::Unary(op),
        (_, OpClass::Binary | OpClass::Comparison | OpClass::MatMul | OpClass::IndexSelect | OpClass::CrossEntropy) => {
            Form::Binary(op)
        }
        (_, OpClass::Select) => Form::Where,
        (_, OpClass::Ternary | OpClass::CrossEntropyGradient) => Form::Ternary(op),
        (_, OpClass::Cast) => Form::Cast,
        (_, OpClass::Reduction) => Form::Reduce(op),
        (_, OpClass::ArgReduction) => Form::ArgReduce(op),
        (_, OpClass::Softmax | OpClass::RunningSum) => Form::AlongAxis(op),
        (_, OpClass::Flip) => Form::AlongAxes(op),
        (_, OpClass::Triangle) => Form::Triangle(op),
        (_, OpClass::TakeAlongAxis | OpClass::Scatter) => Form::ByIndex(op),
        (_, OpClass::SoftmaxGradient) => Form::BinaryAlongAxis(op),
        (Op::ArgTopK, _) => Form::ArgTopK,
        (_, OpClass::ArgSort) => Form::ArgSort,
        (_, OpClass::Pad) => Form::Pad,
        (_, OpClass::OneHot) => Form::OneHot,
        (_, OpClass::LayerNorm | OpClass::RmsNorm) => Form::Norm(op),
        (_, OpClass::Convolution | OpClass::ConvolutionGradient) => Form::Convolution(op),
        (_, OpClass::Pooling | OpClass::PoolingGradient) => Form::Pooling(op),
        (_, OpClass::Sequence) => Form::Arange,
        (_, OpClass::Source) => Form::Random(op),
    })
}

/// The first words of statements; `copy`, `fill` and the ops can also begin one.
pub const STATEMENTS: &[&str] =
    &["device", "let", "print", "save", "expect", "repeat", "while", "if", "time", "program", "run"];

/// Words that are part of a statement or an expression and therefore name nothing.
const OTHER_WORDS: &[&str] = &[
    "else",
    "to",
    "into",
    "on",
    "lane",
    "value",
    "axis",
    "axes",
    "rows",
    "cols",
    "keep",
    "tol",
    "accuracy",
    "host",
    "true",
    "false",
    "inf",
    "nan",
    "seed",
    "epsilon",
    "diagonal",
    "descending",
    "smallest",
    "window",
    "stride",
    "padding",
    "dilation",
    "groups",
    "f32",
    "f64",
    "f16",
    "bf16",
    "i8",
    "i16",
    "i32",
    "i64",
    "u8",
    "u16",
    "u32",
    "u64",
    "bool",
];

/// The form of a function, by name.
#[must_use]
pub fn function(name: &str) -> Option<Form> {
    functions().find(|(known, _)| *known == name).map(|(_, form)| form)
}

/// Is this a word that cannot name a tensor or a device?
#[must_use]
pub fn is_reserved(word: &str) -> bool {
    function(word).is_some() || STATEMENTS.contains(&word) || OTHER_WORDS.contains(&word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::engine::DType;
    use crate::base::spelling::nearest;

    fn guess(word: &str) -> Option<&'static str> {
        nearest(word, functions().map(|(name, _)| name))
    }

    #[test]
    fn the_nearest_function_is_found() {
        assert_eq!(guess("mtmul"), Some("matmul"));
        assert_eq!(guess("Relu"), Some("relu"));
        assert_eq!(guess("sofmax"), Some("softmax"));
        assert_eq!(guess("zzzzzz"), None);
        assert_eq!(nearest("q", ["x", "abc"]), None);
        assert_eq!(guess(&"x".repeat(100_000)), None);
    }

    /// `make diff` draws every function of this file, and fails for a function that it does not support.
    #[test]
    fn the_random_scripts_know_every_function() {
        let listed = include_str!("../../../tests/diff/functions.txt");
        let listed: Vec<&str> = listed.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
        let known: Vec<&str> = functions().map(|(name, _)| name).collect();
        assert_eq!(listed, known, "write the functions into tests/diff/functions.txt, in this order");
    }

    /// The tables of docs/language.md name every function, and give the dtypes of every op.
    #[test]
    fn the_reference_has_every_function_and_its_dtypes() {
        let page = include_str!("../../../docs/language.md");
        let words = |cell: &str| cell.replace('`', " ").split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let rows = |title: &str| {
            let table = page.split_once(title).expect("a table").1.lines().skip(1);
            table.take_while(|line| line.starts_with('|')).map(|line| line.split('|').map(str::to_owned).collect())
        };
        let named: Vec<String> = rows("| function | gives |\n").flat_map(|row: Vec<String>| words(&row[1])).collect();
        let dtypes: Vec<(Vec<String>, Vec<String>)> = rows("| functions | dtypes |\n")
            .map(|row: Vec<String>| (words(&row[1]), words(row[2].split(',').next().expect("a cell"))))
            .collect();
        for (name, _) in functions() {
            assert!(named.iter().any(|word| word == name), "docs/language.md has no function `{name}`");
        }
        for op in Op::ALL.into_iter().filter(|op| form(*op).is_some()) {
            let row = dtypes.iter().find(|(names, _)| names.iter().any(|name| name == op.name()));
            let listed = row.map(|(_, dtypes)| dtypes.join(" "));
            let accepted: Vec<&str> = op.dtypes().iter().map(|dtype| dtype.name()).collect();
            let all = op.dtypes().len() == DType::ALL.len();
            assert_eq!(
                listed.unwrap_or_else(|| "all".into()),
                if all { "all".into() } else { accepted.join(" ") },
                "{op}"
            );
        }
    }
}
