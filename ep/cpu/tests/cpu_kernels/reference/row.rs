//! What the [table of ops](streamvm_ep::op_table) gives as the reference of elementwise ops and reductions.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use streamvm_ep::{DType, Op};

use super::{Value, exact_sum, wrapped};

/// The reference of an op, over numbers of one type.
enum Reference<T> {
    Unary(fn(T) -> T),
    Predicate(fn(T) -> bool),
    Binary(fn(T, T) -> T),
    Comparison(fn(T, T) -> bool),
    Reduction(fn(&[T]) -> T),
}

enum Answer<T> {
    Number(T),
    Truth(bool),
}

impl<T: Copy> Reference<T> {
    fn of(&self, terms: &[T]) -> Answer<T> {
        match self {
            Reference::Unary(of) => Answer::Number(of(terms[0])),
            Reference::Predicate(of) => Answer::Truth(of(terms[0])),
            Reference::Binary(of) => Answer::Number(of(terms[0], terms[1])),
            Reference::Comparison(of) => Answer::Truth(of(terms[0], terms[1])),
            Reference::Reduction(of) => Answer::Number(of(terms)),
        }
    }
}

macro_rules! references {
    ({$($(#[$doc:meta])* $op:ident: $name:literal, $class:ident, $dtypes:ident,
        $method:ident($($signature:tt)*) $(=> $params:expr)? $(, {
            $(work: $work:ident,)? $(empty: $empty:literal,)? $(samples: $($samples:ident)+,)? $(error: $error:ident($($number:literal),+),)?
            $(numpy: $numpy:literal,)? $(both: $both:expr,)? $(floats: $floats:expr,)? $(integers: $integers:expr,)?
        })?;)*}
     {$($sources:tt)*}) => {
        fn of_floats(op: Op) -> Option<Reference<f64>> {
            Some(match op {
                $($($(Op::$op => Reference::$class($both),)? $(Op::$op => Reference::$class($floats),)?)?)*
                _ => return None,
            })
        }

        fn of_integers(op: Op) -> Option<Reference<i128>> {
            Some(match op {
                $($($(Op::$op => Reference::$class($both),)? $(Op::$op => Reference::$class($integers),)?)?)*
                _ => return None,
            })
        }
    };
}
streamvm_ep::op_table!(references);

/// The value that an elementwise op gives for the values of its inputs, or a reduction for its terms, all of this dtype.
pub(super) fn value_of(op: Op, dtype: DType, terms: &[Value]) -> Value {
    let missing = || -> ! { panic!("the row of {op} has no reference for {dtype}") };
    if dtype.is_float() {
        let terms: Vec<f64> = terms.iter().map(|term| term.float()).collect();
        return match of_floats(op).unwrap_or_else(|| missing()).of(&terms) {
            Answer::Number(number) => Value::Float(number),
            Answer::Truth(truth) => Value::Int(truth.into()),
        };
    }
    let terms: Vec<i128> = terms.iter().map(|term| term.int()).collect();
    match of_integers(op).unwrap_or_else(|| missing()).of(&terms) {
        Answer::Number(number) => wrapped(dtype, number),
        Answer::Truth(truth) => Value::Int(truth.into()),
    }
}

/// The exact result of a unary op of floats; `None` for other ops.
#[allow(dead_code, reason = "not every suite that takes this file asks for one function")]
pub(crate) fn function(op: Op) -> Option<fn(f64) -> f64> {
    match of_floats(op)? {
        Reference::Unary(function) => Some(function),
        _ => None,
    }
}

// Functions that rows name.

fn variance(terms: &[f64]) -> f64 {
    let count = terms.len() as f64;
    let mean = exact_sum(terms.iter().copied()) / count;
    exact_sum(terms.iter().map(|x| (x - mean).powi(2))) / count
}

/// NaN if any is NaN.
fn largest(terms: &[f64]) -> f64 {
    terms.iter().fold(f64::NEG_INFINITY, |x, &y| if x.is_nan() || y.is_nan() { f64::NAN } else { x.max(y) })
}

fn opposed(x: f64, y: f64) -> bool {
    x < 0.0 && y > 0.0 || x > 0.0 && y < 0.0
}

fn remainder(x: f64, y: f64) -> f64 {
    match y == 0.0 || x.is_infinite() {
        true => f64::NAN,
        false => x % y + if opposed(x % y, y) { y } else { 0.0 },
    }
}

fn floor_div(x: f64, y: f64) -> f64 {
    if y == 0.0 || x.is_nan() || y.is_nan() {
        return x / y;
    }
    match (x.is_infinite(), y.is_infinite()) {
        (true, _) => f64::NAN,
        (false, true) if opposed(x, y) => -1.0,
        (false, true) => 0.0,
        // `x % y` is exact, so the quotient without it is nearly a whole number.
        (false, false) => ((x - x % y) / y).round() - f64::from(u8::from(opposed(x % y, y))),
    }
}
