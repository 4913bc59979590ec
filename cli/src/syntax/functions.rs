//! The words of the language: functions and keywords.
//!
//! A kernel is a function of the same name, except for two reductions: `max` and `min` are binary ops with two operands and
//! reductions with one.

use crate::base::engine::Op;

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
    /// `f a axis 1`, `f a axes 0 1`, `f a`, each with `keep` if wanted
    Reduce(Op),
    /// `f a axis 1`, exactly one axis, with `keep` if wanted
    ArgMax,
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

/// Every function of the language.
pub const FUNCTIONS: &[(&str, Form)] = &[
    ("neg", Form::Unary(Op::Neg)),
    ("abs", Form::Unary(Op::Abs)),
    ("exp", Form::Unary(Op::Exp)),
    ("log", Form::Unary(Op::Log)),
    ("sqrt", Form::Unary(Op::Sqrt)),
    ("tanh", Form::Unary(Op::Tanh)),
    ("relu", Form::Unary(Op::Relu)),
    ("sigmoid", Form::Unary(Op::Sigmoid)),
    ("add", Form::Binary(Op::Add)),
    ("sub", Form::Binary(Op::Sub)),
    ("mul", Form::Binary(Op::Mul)),
    ("div", Form::Binary(Op::Div)),
    ("pow", Form::Binary(Op::Pow)),
    ("min", Form::BinaryOrReduce(Op::Min, Op::ReduceMin)),
    ("max", Form::BinaryOrReduce(Op::Max, Op::ReduceMax)),
    ("eq", Form::Binary(Op::Eq)),
    ("ne", Form::Binary(Op::Ne)),
    ("lt", Form::Binary(Op::Lt)),
    ("le", Form::Binary(Op::Le)),
    ("gt", Form::Binary(Op::Gt)),
    ("ge", Form::Binary(Op::Ge)),
    ("where", Form::Where),
    ("sum", Form::Reduce(Op::Sum)),
    ("mean", Form::Reduce(Op::Mean)),
    ("argmax", Form::ArgMax),
    ("matmul", Form::Binary(Op::MatMul)),
    ("softmax", Form::AlongAxis(Op::Softmax)),
    ("log_softmax", Form::AlongAxis(Op::LogSoftmax)),
    ("softmax_backward", Form::BinaryAlongAxis(Op::SoftmaxBackward)),
    ("log_softmax_backward", Form::BinaryAlongAxis(Op::LogSoftmaxBackward)),
    ("cast", Form::Cast),
    ("pad", Form::Pad),
    ("one_hot", Form::OneHot),
    ("load", Form::Load),
    ("copy", Form::Copy),
    ("empty", Form::Empty),
    ("fill", Form::Fill),
    ("uniform", Form::Random(Op::Uniform)),
    ("normal", Form::Random(Op::Normal)),
    ("reshape", Form::Reshape),
    ("broadcast", Form::Broadcast),
    ("permute", Form::Permute),
    ("slice", Form::Slice),
];

/// The first words of statements; `copy`, `fill` and the ops can also begin one.
pub const STATEMENTS: &[&str] = &["device", "let", "print", "save", "expect", "repeat", "time"];

/// Words that are part of a statement or an expression and therefore name nothing.
const OTHER_WORDS: &[&str] = &[
    "else", "to", "into", "on", "lane", "value", "axis", "axes", "rows", "cols", "keep", "tol", "accuracy", "host",
    "true", "false", "inf", "nan", "seed", "f32", "f64", "f16", "bf16", "i32", "i64", "u8", "bool",
];

/// The form of a function, by name.
#[must_use]
pub fn function(name: &str) -> Option<Form> {
    FUNCTIONS.iter().find(|(known, _)| *known == name).map(|(_, form)| *form)
}

/// Is this a word that cannot name a tensor or a device?
#[must_use]
pub fn is_reserved(word: &str) -> bool {
    function(word).is_some() || STATEMENTS.contains(&word) || OTHER_WORDS.contains(&word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::spelling::nearest;

    fn guess(word: &str) -> Option<&'static str> {
        nearest(word, FUNCTIONS.iter().map(|(name, _)| *name))
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
        let known: Vec<&str> = FUNCTIONS.iter().map(|(name, _)| *name).collect();
        assert_eq!(listed, known, "write the functions into tests/diff/functions.txt, in this order");
    }

    #[test]
    fn every_op_has_a_function() {
        use std::collections::HashSet;
        let mut ops: HashSet<Op> = HashSet::from([Op::Where, Op::ArgMax, Op::Cast, Op::Pad, Op::OneHot]);
        for (_, form) in FUNCTIONS {
            match form {
                Form::Unary(op)
                | Form::Binary(op)
                | Form::Reduce(op)
                | Form::AlongAxis(op)
                | Form::BinaryAlongAxis(op)
                | Form::Random(op) => {
                    ops.insert(*op);
                }
                Form::BinaryOrReduce(binary, reduction) => ops.extend([*binary, *reduction]),
                _ => {}
            }
        }
        for op in Op::ALL {
            assert!(ops.contains(&op), "{} has no function", op.name());
        }
    }
}
