//! The words of the language: functions and keywords.
//!
//! An op is a function of the same name, except for two reductions: `max` and `min` are binary ops with two operands and reductions
//! with one.

use crate::base::engine::{DType, Op, OpClass, RegisteredOp};

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
    /// A registered op over tensors: `f a b 0.5`, its tensors and then its numbers, with `axis 1` or `axes 0 1` if wanted
    Registered(Op),
}

impl Form {
    /// The operands of a call, as they are written; several where there are several ways.
    fn operands(self) -> &'static [&'static str] {
        match self {
            Form::Unary(_) => &["x"],
            Form::Binary(_) => &["x y"],
            Form::BinaryOrReduce(..) => &["x y", "x axis 0", "x axes 0 1 keep", "x"],
            Form::Where => &["c x y"],
            Form::Ternary(_) => &["x y z"],
            Form::Reduce(_) => &["x axis 0", "x axes 0 1 keep", "x"],
            Form::ArgReduce(_) => &["x axis 0", "x axis 0 keep"],
            Form::AlongAxis(_) => &["x axis 0"],
            Form::BinaryAlongAxis(_) => &["y dy axis 0"],
            Form::Cast => &["x f64"],
            Form::Pad => &["x 1 2", "x 1 2 axis 0 value 0"],
            Form::OneHot => &["i 10 f32"],
            Form::Norm(Op::LayerNorm) => &["x w b epsilon 1e-5"],
            Form::Norm(_) => &["x w epsilon 1e-5"],
            Form::Convolution(Op::Conv2d) => &["x w", "x w stride 2 padding 1 0 dilation 1 groups 2"],
            Form::Convolution(_) => &["x w dy", "x w dy stride 2 padding 1 0 dilation 1 groups 2"],
            Form::Pooling(op) if op.arity() == 2 => &["x dy window 2", "x dy window 2 stride 2 padding 1 0"],
            Form::Pooling(_) => &["x window 2", "x window 2 stride 2 padding 1 0"],
            Form::Attention => &["q k v", "q k v mask"],
            Form::GroupNorm => &["x w b groups 4 epsilon 1e-5"],
            Form::Dropout => &["x 0.1 seed 7"],
            Form::AlongAxes(_) => &["x axis 0", "x axes 0 1", "x"],
            Form::Triangle(_) => &["x", "x diagonal -1"],
            Form::ByIndex(op) if op.arity() == 3 => &["x i y axis 0"],
            Form::ByIndex(_) => &["x i axis 0"],
            Form::ArgSort | Form::Sort => &["x axis 0", "x axis 0 descending"],
            Form::ArgTopK | Form::TopK => &["x 3 axis 0", "x 3 axis 0 smallest"],
            Form::Cat | Form::Stack => &["x y z axis 0"],
            Form::Tile => &["x 2 1"],
            Form::Roll => &["x -1 axis 0"],
            Form::Eye => &["f32 3 4 on cpu:0"],
            Form::Arange => &["f32 0 10 2 on cpu:0"],
            Form::Linspace => &["f32 0 1 11 on cpu:0"],
            Form::Load => &["\"x.npy\"", "\"x.npz\" \"name\""],
            Form::Copy => &["x to cpu:0", "x into y"],
            Form::Empty => &["f32 2 3 on cpu:0"],
            Form::Fill => &["f32 2 3 value 1 on cpu:0"],
            Form::Random(_) => &["f32 2 3 seed 7 on cpu:0"],
            Form::Reshape => &["x 4 -1"],
            Form::Broadcast => &["x 4 10"],
            Form::Permute => &["x 1 0"],
            Form::Slice => &["x rows 0..4", "x cols 2..", "x axis 2 0..1"],
            // As many as the op has: see `Function::calls`.
            Form::Registered(_) => &[""],
        }
    }
}

const ALL: &[DType] = &DType::ALL;
const FLOATS: &[DType] = &[DType::F32, DType::F64, DType::F16, DType::BF16];

/// The functions that are not ops, with the dtypes that they accept.
const OTHERS: [(&str, Form, &[DType]); 19] = [
    ("load", Form::Load, ALL),
    ("copy", Form::Copy, ALL),
    ("empty", Form::Empty, ALL),
    ("fill", Form::Fill, ALL),
    ("reshape", Form::Reshape, ALL),
    ("broadcast", Form::Broadcast, ALL),
    ("permute", Form::Permute, ALL),
    ("slice", Form::Slice, ALL),
    ("cat", Form::Cat, ALL),
    ("stack", Form::Stack, ALL),
    ("tile", Form::Tile, ALL),
    ("roll", Form::Roll, ALL),
    ("sort", Form::Sort, ALL),
    ("topk", Form::TopK, ALL),
    ("attention", Form::Attention, FLOATS),
    ("group_norm", Form::GroupNorm, FLOATS),
    ("dropout", Form::Dropout, FLOATS),
    ("eye", Form::Eye, ALL),
    ("linspace", Form::Linspace, FLOATS),
];

/// A function of the language.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// Its word.
    pub name: &'static str,
    /// How it is called.
    pub form: Form,
    /// What it accepts.
    pub dtypes: &'static [DType],
    /// The op that it is, if it is one.
    pub op: Option<Op>,
}

impl Function {
    /// The ways in which it is called, such as `sum x axis 0`.
    pub fn calls(self) -> impl Iterator<Item = String> {
        let of_op = match self.form {
            Form::Registered(op) => op.inputs().join(" "),
            _ => String::new(),
        };
        self.form.operands().iter().map(move |operands| format!("{} {operands}{of_op}", self.name))
    }

    /// How it is called, as a help of a message.
    pub(crate) fn written(self) -> String {
        let calls: Vec<String> = self.calls().map(|call| format!("`{call}`")).collect();
        format!("it is called so: {}", calls.join(" or "))
    }
}

/// Every function of the language: the ops by their names, the others, and the registered ops. One of the name of a function is not among them, nor one that draws
/// random numbers, because a call of a script has no generator.
pub fn functions() -> impl Iterator<Item = Function> {
    let of_op = |op: Op| Some(Function { name: op.name(), form: form(op)?, dtypes: op.dtypes(), op: Some(op) });
    let others = OTHERS.into_iter().map(|(name, form, dtypes)| Function { name, form, dtypes, op: None });
    let is_new = |op: &Op| !op.is_random() && OTHERS.iter().all(|(name, ..)| *name != op.name());
    Op::ALL
        .into_iter()
        .filter_map(of_op)
        .chain(others)
        .chain(RegisteredOp::all().map(Op::Registered).filter(is_new).filter_map(of_op))
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
        (_, OpClass::Registered) => Form::Registered(op),
    })
}

/// The statements that have a first word of their own. A function can also begin a statement, one that writes its result `into` a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum First {
    Device,
    Let,
    Print,
    Save,
    Expect,
    Repeat,
    While,
    If,
    Time,
    Scope,
    Program,
    Run,
    AllReduce,
    Broadcast,
    /// `fill` is a function, too.
    Fill,
}

/// The first words of these statements. The parser and its messages have this table alone.
const STATEMENTS: [(&str, First); 15] = [
    ("device", First::Device),
    ("let", First::Let),
    ("print", First::Print),
    ("save", First::Save),
    ("expect", First::Expect),
    ("repeat", First::Repeat),
    ("while", First::While),
    ("if", First::If),
    ("time", First::Time),
    ("scope", First::Scope),
    ("program", First::Program),
    ("run", First::Run),
    ("all_reduce", First::AllReduce),
    ("broadcast", First::Broadcast),
    ("fill", First::Fill),
];

/// The statement that a word begins. Not inlined, as [`function`].
#[inline(never)]
pub(crate) fn first_word(word: &str) -> Option<First> {
    STATEMENTS.iter().find(|(first, _)| *first == word).map(|(_, statement)| *statement)
}

/// The words that begin statements, besides functions.
pub fn first_words() -> impl Iterator<Item = &'static str> {
    STATEMENTS.iter().map(|(word, _)| *word)
}

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

/// A function, by name. Not inlined: the parser calls it in functions that recurse.
#[must_use]
#[inline(never)]
pub fn function(name: &str) -> Option<Function> {
    functions().find(|known| known.name == name)
}

/// Is this a word that cannot name a tensor or a device?
#[must_use]
pub fn is_reserved(word: &str) -> bool {
    function(word).is_some() || first_word(word).is_some() || OTHER_WORDS.contains(&word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::spelling::nearest;

    #[test]
    fn every_call_that_is_told_is_taken_by_the_parser() {
        use crate::syntax::parser::parse;
        use crate::syntax::source::Source;
        for call in functions().flat_map(Function::calls) {
            let text = if call.contains(" into ") { call.clone() } else { format!("let z = {call}") };
            assert!(parse(&Source::from_text("t", "", text.as_str())).is_ok(), "{call}");
        }
    }

    fn guess(word: &str) -> Option<&'static str> {
        nearest(word, functions().map(|known| known.name))
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

    /// What a page says of the functions: a table of elementwise functions and reductions, whose rows are those of the table of ops, and the dtypes of the others.
    fn tables() -> (String, String) {
        let dtypes = |of: &[DType]| match of.len() == DType::ALL.len() {
            true => "all".to_owned(),
            false => of.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(" "),
        };
        let mut calls = "| function | gives | dtypes |\n|---|---|---|\n".to_owned();
        let mut others: Vec<(&[DType], Vec<&str>)> = Vec::new();
        for op in Op::ALL.into_iter().filter(|op| op.is_elementwise() || op.class() == OpClass::Reduction) {
            // The reductions that share a word with an op of two operands.
            let name = match op {
                Op::ReduceMax => "max",
                Op::ReduceMin => "min",
                op => op.name(),
            };
            let (inputs, gives) = (op.inputs().join(" "), op.documentation());
            calls += &format!("| `{name} {inputs}` | {gives} | {} |\n", dtypes(op.dtypes()));
        }
        let is_other = |it: &Function| !it.op.is_some_and(|op| op.is_elementwise() || op.class() == OpClass::Reduction);
        for function in functions().filter(is_other) {
            match others.iter_mut().find(|(dtypes, _)| *dtypes == function.dtypes) {
                Some((_, names)) => names.push(function.name),
                None => others.push((function.dtypes, vec![function.name])),
            }
        }
        let rows = others.iter().map(|(of, names)| format!("| `{}` | {} |\n", names.join(" "), dtypes(of)));
        (calls, format!("| functions | dtypes |\n|---|---|\n{}", rows.collect::<String>()))
    }

    /// `SNAPSHOTS=overwrite` renews the tables.
    #[test]
    fn the_page_of_the_language_has_every_function_as_the_table_of_ops_says() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/language.md");
        let page = std::fs::read_to_string(path).expect("the page");
        let (calls, others) = tables();
        let mut renewed = page.clone();
        for (name, table) in [("elementwise functions and reductions", calls), ("dtypes of the others", others)] {
            let marks = [format!("<!-- {name}, from the table of ops -->\n"), format!("<!-- end of {name} -->")];
            let (before, rest) = renewed.split_once(&marks[0]).expect("the mark before a table");
            let (_, after) = rest.split_once(&marks[1]).expect("the mark after a table");
            renewed = format!("{before}{}\n{table}\n{}{after}", marks[0], marks[1]);
        }
        if std::env::var("SNAPSHOTS").is_ok_and(|what| what == "overwrite") {
            std::fs::write(path, &renewed).expect("a page that can be written");
        } else {
            assert!(page == renewed, "call this test with SNAPSHOTS=overwrite, and commit docs/language.md");
        }
        let words = |cell: &str| cell.replace('`', " ").split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let named: Vec<String> = renewed.lines().filter_map(|line| line.split('|').nth(1)).flat_map(words).collect();
        for function in functions() {
            assert!(named.iter().any(|word| word == function.name), "no table has `{}`", function.name);
        }
    }
}
