//! What instructions compute: from the words of an opcode to a function on register values.
//!
//! Layer: uses `text`; is used by `code`.
//!
//! A register holds a `u64` whose bits past its width are 0. A float is held as its bits. Every function takes three such values, of which it may
//! ignore some, and returns one.
//!
//! # Choices where PTX leaves one
//!
//! * A float operation whose result is NaN gives the NaN of the hardware: 0x7fffffff for `.f32`, 0x7fff for `.f16`. For `.f64` PTX does not say
//!   which; the result is 0xfff8000000000000. Selecting, moving, `abs` and `neg` keep other bits.
//! * `ex2.approx`, `rcp.approx.f32` and `div.approx` give the number nearest to the exact result, which is within the error that PTX allows (2^-22
//!   relative, 1 unit, 2 units in the last place). `rcp.approx.ftz.f64` and `rsqrt.approx.ftz.f64` read the upper 32 bits of the operand, and clear the
//!   lower 32 bits of the nearest result, as PTX describes.
//! * `min` and `max` of floats return the operand that is a number if the other is NaN, and order -0 below +0.

mod convert;
mod float;
mod integer;

use crate::text::syntax::{Kind, Type};

/// A computation on the bits of registers.
pub(crate) type Function = fn(u64, u64, u64) -> u64;

/// What an opcode computes, and of which types its operands are.
#[derive(Clone)]
pub(crate) struct Computation {
    pub(crate) function: Function,
    pub(crate) to: Type,
    pub(crate) from: Vec<Type>,
    /// Whether the second operand may not be 0.
    pub(crate) divides: bool,
    /// Whether registers may be wider than the types say: so it is for `cvt`.
    pub(crate) may_be_wider: bool,
}

impl Computation {
    fn new(function: Function, to: Type, from: &[Type]) -> Computation {
        Computation { function, to, from: from.to_vec(), divides: false, may_be_wider: false }
    }
}

pub(crate) const PREDICATE: Type = Type { kind: Kind::Predicate, bits: 1 };
const U32: Type = Type { kind: Kind::Unsigned, bits: 32 };

/// What the opcode computes; `None` if it is not known. `cvt.f32.f64` has two types, others one, at the end.
pub(crate) fn computation(opcode: &[String]) -> Option<Computation> {
    let words: Vec<&str> = opcode.iter().map(String::as_str).collect();
    let (&name, rest) = words.split_first()?;
    let (&last, modifiers) = rest.split_last()?;
    let of = Type::named(last)?;
    if name == "cvt" {
        let (&to, modifiers) = modifiers.split_last()?;
        return convert::conversion(modifiers, Type::named(to)?, of);
    }
    if name == "cvta" {
        // Addresses of all state spaces are different numbers here, and a generic address is the same number.
        return (of.bits == 64).then(|| Computation::new(|a, _, _| a, of, &[of]));
    }
    if of.kind == Kind::Float {
        float::computation(name, modifiers, of)
    } else {
        integer::computation(name, modifiers, of)
    }
}

/// What a step of an addition of several words computes: the result, and the carry. Operands are 32 bits wide.
pub(crate) type WithCarry = fn(u32, u32, u32, u32) -> u64;

/// An instruction of extended precision: the function of three operands and the carry, how many operands there are, and whether the carry is read and written.
pub(crate) fn with_carry(opcode: &[String]) -> Option<(WithCarry, usize, bool, bool)> {
    let words: Vec<&str> = opcode.iter().map(String::as_str).collect();
    // The carry of a subtraction is a borrow: 1 means that one more is taken away.
    let sum: WithCarry = |a, b, _, carry| u64::from(a) + u64::from(b) + u64::from(carry);
    let difference: WithCarry = |a, b, _, borrow| {
        let exact = i64::from(a) - i64::from(b) - i64::from(borrow);
        u64::from(exact as u32) | u64::from(exact < 0) << 32
    };
    let low: WithCarry = |a, b, c, carry| u64::from(a.wrapping_mul(b)) + u64::from(c) + u64::from(carry);
    let high: WithCarry = |a, b, c, carry| ((u64::from(a) * u64::from(b)) >> 32) + u64::from(c) + u64::from(carry);
    Some(match &*words {
        ["add", "cc", "u32" | "s32"] => (sum, 2, false, true),
        ["addc", "cc", "u32" | "s32"] => (sum, 2, true, true),
        ["addc", "u32" | "s32"] => (sum, 2, true, false),
        ["sub", "cc", "u32" | "s32"] => (difference, 2, false, true),
        ["subc", "cc", "u32" | "s32"] => (difference, 2, true, true),
        ["subc", "u32" | "s32"] => (difference, 2, true, false),
        ["mad", "lo", "cc", "u32"] => (low, 3, false, true),
        ["mad", "hi", "cc", "u32"] => (high, 3, false, true),
        ["madc", "lo", "cc", "u32"] => (low, 3, true, true),
        ["madc", "hi", "cc", "u32"] => (high, 3, true, true),
        ["madc", "lo", "u32"] => (low, 3, true, false),
        ["madc", "hi", "u32"] => (high, 3, true, false),
        _ => return None,
    })
}
