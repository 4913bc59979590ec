//! `cvt`: between integers and floats of all widths.

use half::f16;

use crate::compute::{Computation, Function};
use crate::text::syntax::{Kind, Type};

const NAN16: u64 = 0x7fff;

/// A register's bits as an integer of a type.
fn integer(bits: u64, of: Type) -> i128 {
    let spare = 64 - of.bits;
    let raised = bits << spare;
    if of.kind == Kind::Signed { i128::from(raised as i64 >> spare) } else { i128::from(raised >> spare) }
}

/// An integer in a register: extended by its own sign, which is what PTX does with a destination wider than the type.
fn extended(number: i128, to: Type) -> u64 {
    let spare = 64 - to.bits;
    let raised = (number as u64) << spare;
    if to.kind == Kind::Signed { (raised as i64 >> spare) as u64 } else { raised >> spare }
}

macro_rules! types {
    ($name:ident, $kind:ident, $bits:literal) => {
        const $name: Type = Type { kind: Kind::$kind, bits: $bits };
    };
}
types!(S8, Signed, 8);
types!(S16, Signed, 16);
types!(S32, Signed, 32);
types!(S64, Signed, 64);
types!(U8, Unsigned, 8);
types!(U16, Unsigned, 16);
types!(U32, Unsigned, 32);
types!(U64, Unsigned, 64);

/// Chooses an instance for an integer type, so that the type is known when the function runs.
macro_rules! by_integer {
    ($of:expr, $T:ident => $function:expr) => {
        match $of {
            S8 => {
                const $T: Type = S8;
                $function
            }
            S16 => {
                const $T: Type = S16;
                $function
            }
            S32 => {
                const $T: Type = S32;
                $function
            }
            S64 => {
                const $T: Type = S64;
                $function
            }
            U8 => {
                const $T: Type = U8;
                $function
            }
            U16 => {
                const $T: Type = U16;
                $function
            }
            U32 => {
                const $T: Type = U32;
                $function
            }
            U64 => {
                const $T: Type = U64;
                $function
            }
            _ => return None,
        }
    };
}

/// An instance for each rounding and type.
macro_rules! to_integers {
    ($from:expr, $to:expr, $round:path) => {
        match $from.bits {
            32 => by_integer!($to, TO => |a, _, _| clamped($round(f64::from(f32::from_bits(a as u32))), false, TO)),
            64 => by_integer!($to, TO => |a, _, _| clamped($round(f64::from_bits(a)), true, TO)),
            _ => return None,
        }
    };
}

pub(super) fn conversion(modifiers: &[&str], to: Type, from: Type) -> Option<Computation> {
    let is_float = |of: Type| of.kind == Kind::Float;
    let function: Function = match (is_float(to), is_float(from), modifiers) {
        (false, false, []) => {
            by_integer!(from, FROM => by_integer!(to, TO => |a, _, _| extended(integer(a, FROM), TO)))
        }
        (true, false, ["rn"]) => match to.bits {
            32 => by_integer!(from, FROM => |a, _, _| u64::from((integer(a, FROM) as f32).to_bits())),
            64 => by_integer!(from, FROM => |a, _, _| (integer(a, FROM) as f64).to_bits()),
            _ => return None,
        },
        (false, true, ["rzi"]) => to_integers!(from, to, f64::trunc),
        (false, true, ["rni"]) => to_integers!(from, to, f64::round_ties_even),
        (false, true, ["rmi"]) => to_integers!(from, to, f64::floor),
        (false, true, ["rpi"]) => to_integers!(from, to, f64::ceil),
        (true, true, _) => return Some(widened(Computation::new(between_floats(modifiers, to, from)?, to, &[from]))),
        _ => return None,
    };
    Some(widened(Computation::new(function, to, &[from])))
}

fn widened(computation: Computation) -> Computation {
    Computation { may_be_wider: true, ..computation }
}

/// The integer that a float is rounded to: the nearest end of the range if it is past it. NaN gives 0, or, if one of the two types has 64 bits, the highest
/// bit alone, as PTX says.
fn clamped(number: f64, of_64_bits: bool, to: Type) -> u64 {
    let (low, high) = match to.kind {
        Kind::Signed => (-(1i128 << (to.bits - 1)), (1i128 << (to.bits - 1)) - 1),
        _ => (0, (1i128 << to.bits) - 1),
    };
    if number.is_nan() {
        return if of_64_bits || to.bits == 64 { 1 << (to.bits - 1) } else { 0 };
    }
    extended((number as i128).clamp(low, high), to)
}

fn between_floats(modifiers: &[&str], to: Type, from: Type) -> Option<Function> {
    Some(match (modifiers, to.bits, from.bits) {
        ([], 64, 32) => |a, _, _| {
            let number = f64::from(f32::from_bits(a as u32));
            if number.is_nan() { 0xfff8_0000_0000_0000 } else { number.to_bits() }
        },
        (["rn"], 32, 64) => |a, _, _| single(f64::from_bits(a) as f32),
        ([], 32, 16) => |a, _, _| single(f16::from_bits(a as u16).to_f32()),
        (["rn"], 16, 32) => |a, _, _| {
            let number = f16::from_f32(f32::from_bits(a as u32));
            if number.is_nan() { NAN16 } else { u64::from(number.to_bits()) }
        },
        // NaN becomes 0.
        (["sat"], 32, 32) => |a, _, _| {
            let number = f32::from_bits(a as u32);
            single(if number > 0.0 { number.min(1.0) } else { 0.0 })
        },
        (["rni"], 32, 32) => |a, _, _| single(f32::from_bits(a as u32).round_ties_even()),
        (["rzi"], 32, 32) => |a, _, _| single(f32::from_bits(a as u32).trunc()),
        (["rmi"], 32, 32) => |a, _, _| single(f32::from_bits(a as u32).floor()),
        (["rpi"], 32, 32) => |a, _, _| single(f32::from_bits(a as u32).ceil()),
        (["rni"], 64, 64) => |a, _, _| f64::from_bits(a).round_ties_even().to_bits(),
        (["rzi"], 64, 64) => |a, _, _| f64::from_bits(a).trunc().to_bits(),
        (["rmi"], 64, 64) => |a, _, _| f64::from_bits(a).floor().to_bits(),
        (["rpi"], 64, 64) => |a, _, _| f64::from_bits(a).ceil().to_bits(),
        _ => return None,
    })
}

fn single(number: f32) -> u64 {
    u64::from(if number.is_nan() { 0x7fff_ffff } else { number.to_bits() })
}
