//! Integers, bits and predicates.

use crate::compute::{Computation, Function, PREDICATE, U32};
use crate::text::syntax::{Kind, Type};

/// Type `T` for each type of PTX, `U` the unsigned one of its width, and the operands as `T`.
macro_rules! of_integers {
    ($of:expr, |$a:ident, $b:ident, $c:ident| $body:expr) => {
        match ($of.kind, $of.bits) {
            (Kind::Signed, 16) => of_integers!(@i16 u16 $a $b $c $body),
            (Kind::Signed, 32) => of_integers!(@i32 u32 $a $b $c $body),
            (Kind::Signed, 64) => of_integers!(@i64 u64 $a $b $c $body),
            (Kind::Unsigned | Kind::Bits, 16) => of_integers!(@u16 u16 $a $b $c $body),
            (Kind::Unsigned | Kind::Bits, 32) => of_integers!(@u32 u32 $a $b $c $body),
            (Kind::Unsigned | Kind::Bits, 64) => of_integers!(@u64 u64 $a $b $c $body),
            _ => return None,
        }
    };
    (@$t:ident $u:ident $a:ident $b:ident $c:ident $body:expr) => {
        |$a, $b, $c| {
            #[allow(dead_code, reason = "not every operation names the type")]
            type T = $t;
            let ($a, $b, $c) = ($a as $t, $b as $t, $c as $t);
            let _ = ($b, $c);
            $body as $u as u64
        }
    };
}

pub(super) fn computation(name: &str, modifiers: &[&str], of: Type) -> Option<Computation> {
    let number = matches!(of.kind, Kind::Signed | Kind::Unsigned);
    let bits = matches!(of.kind, Kind::Bits | Kind::Predicate);
    let function: Function = match (name, modifiers) {
        ("add", []) if number => of_integers!(of, |a, b, _c| a.wrapping_add(b)),
        ("sub", []) if number => of_integers!(of, |a, b, _c| a.wrapping_sub(b)),
        ("mul", ["lo"]) if number => of_integers!(of, |a, b, _c| a.wrapping_mul(b)),
        ("mul", ["hi"]) if number => {
            of_integers!(of, |a, b, _c| ((a as i128).wrapping_mul(b as i128) as u128 >> T::BITS))
        }
        ("mad", ["lo"]) if number => {
            return Some(Computation::new(of_integers!(of, |a, b, c| a.wrapping_mul(b).wrapping_add(c)), of, &[of; 3]));
        }
        ("mul" | "mad", ["wide"]) if number => return wide(name, of),
        ("div" | "rem", []) if number => {
            let function: Function = match name {
                "div" => of_integers!(of, |a, b, _c| a.wrapping_div(b)),
                _ => of_integers!(of, |a, b, _c| a.wrapping_rem(b)),
            };
            return Some(Computation { divides: true, ..Computation::new(function, of, &[of; 2]) });
        }
        ("min", []) if number => of_integers!(of, |a, b, _c| a.min(b)),
        ("max", []) if number => of_integers!(of, |a, b, _c| a.max(b)),
        ("abs", []) if of.kind == Kind::Signed => {
            return one(
                of,
                match of.bits {
                    16 => |a, _, _| u64::from((a as i16).wrapping_abs() as u16),
                    32 => |a, _, _| u64::from((a as i32).wrapping_abs() as u32),
                    64 => |a, _, _| (a as i64).wrapping_abs() as u64,
                    _ => return None,
                },
            );
        }
        ("neg", []) if of.kind == Kind::Signed => return one(of, of_integers!(of, |a, _b, _c| a.wrapping_neg())),
        ("and", []) if bits => |a, b, _| a & b,
        ("or", []) if bits => |a, b, _| a | b,
        ("xor", []) if bits => |a, b, _| a ^ b,
        ("not", []) if of == PREDICATE => return one(of, |a, _, _| a ^ 1),
        ("not", []) if bits => return one(of, of_integers!(of, |a, _b, _c| !a)),
        ("clz", []) if bits && of.bits >= 32 => {
            return Some(Computation::new(of_integers!(of, |a, _b, _c| a.leading_zeros()), U32, &[of]));
        }
        ("popc", []) if bits && of.bits >= 32 => {
            return Some(Computation::new(of_integers!(of, |a, _b, _c| a.count_ones()), U32, &[of]));
        }
        // Amounts past the width count as the width. The operand of the amount is always 32 bits wide.
        ("shl", []) if of.kind == Kind::Bits => {
            return shift(
                of,
                match of.bits {
                    16 => |a, amount, _| u64::from((a as u16).checked_shl(amount as u32).unwrap_or(0)),
                    32 => |a, amount, _| u64::from((a as u32).checked_shl(amount as u32).unwrap_or(0)),
                    64 => |a, amount, _| a.checked_shl(amount as u32).unwrap_or(0),
                    _ => return None,
                },
            );
        }
        ("shr", []) if of != PREDICATE => {
            return shift(
                of,
                match (of.kind, of.bits) {
                    (Kind::Signed, 16) => |a, amount, _| (a as i16 >> (amount as u32).min(15)) as u16 as u64,
                    (Kind::Signed, 32) => |a, amount, _| (a as i32 >> (amount as u32).min(31)) as u32 as u64,
                    (Kind::Signed, 64) => |a, amount, _| (a as i64 >> (amount as u32).min(63)) as u64,
                    // The bits past the width are 0.
                    (_, 16 | 32 | 64) => |a, amount, _| a.checked_shr(amount as u32).unwrap_or(0),
                    _ => return None,
                },
            );
        }
        ("selp", []) if of != PREDICATE && of.bits >= 16 => return select(of),
        ("setp", [comparison]) => return compare(comparison, of),
        ("mov", []) if of.bits != 8 => return one(of, |a, _, _| a),
        ("prmt", []) if of.bits == 32 && of.kind == Kind::Bits => {
            return Some(Computation::new(permuted, of, &[of; 3]));
        }
        _ => return None,
    };
    Some(Computation::new(function, of, &[of; 2]))
}

fn one(of: Type, function: Function) -> Option<Computation> {
    Some(Computation::new(function, of, &[of]))
}

fn shift(of: Type, function: Function) -> Option<Computation> {
    Some(Computation::new(function, of, &[of, U32]))
}

/// `selp`: the first operand if the third is true.
pub(super) fn select(of: Type) -> Option<Computation> {
    Some(Computation::new(|a, b, condition| if condition == 1 { a } else { b }, of, &[of, of, PREDICATE]))
}

fn wide(name: &str, of: Type) -> Option<Computation> {
    let to = Type { kind: of.kind, bits: of.bits * 2 };
    let function: Function = match (of.kind, of.bits) {
        (Kind::Signed, 16) => |a, b, c| {
            let product = i32::from(a as i16) * i32::from(b as i16);
            u64::from(product.wrapping_add(c as i32) as u32)
        },
        (Kind::Signed, 32) => |a, b, c| (i64::from(a as i32) * i64::from(b as i32)).wrapping_add(c as i64) as u64,
        (Kind::Unsigned, 16) => |a, b, c| u64::from((a as u32).wrapping_mul(b as u32).wrapping_add(c as u32)),
        (Kind::Unsigned, 32) => |a, b, c| a.wrapping_mul(b).wrapping_add(c),
        _ => return None,
    };
    // Of `mul` the third operand is 0.
    let from: &[Type] = if name == "mad" { &[of, of, to] } else { &[of, of] };
    Some(Computation::new(function, to, from))
}

fn compare(comparison: &str, of: Type) -> Option<Computation> {
    let ordered = matches!(of.kind, Kind::Signed | Kind::Unsigned);
    let function: Function = match comparison {
        "eq" => |a, b, _| (a == b).into(),
        "ne" => |a, b, _| (a != b).into(),
        "lt" | "lo" if ordered => of_integers!(of, |a, b, _c| u8::from(a < b)),
        "le" | "ls" if ordered => of_integers!(of, |a, b, _c| u8::from(a <= b)),
        "gt" | "hi" if ordered => of_integers!(of, |a, b, _c| u8::from(a > b)),
        "ge" | "hs" if ordered => of_integers!(of, |a, b, _c| u8::from(a >= b)),
        _ => return None,
    };
    (of.bits >= 16).then(|| Computation::new(function, PREDICATE, &[of; 2]))
}

/// `prmt`: four bytes of the eight of `b:a`, each as four bits of the third operand say; the highest of the four bits repeats the sign.
fn permuted(a: u64, b: u64, selection: u64) -> u64 {
    let bytes = (b << 32 | a).to_le_bytes();
    let mut result = [0; 4];
    for (place, byte) in result.iter_mut().enumerate() {
        let chosen = selection >> (4 * place) & 15;
        *byte = bytes[chosen as usize & 7];
        if chosen & 8 != 0 {
            *byte = if *byte & 0x80 != 0 { 0xff } else { 0 };
        }
    }
    u64::from(u32::from_le_bytes(result))
}
