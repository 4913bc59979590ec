//! The cast kernel: every dtype to every dtype, by the rules of Rust's `as`, and `!= 0` to bool.
//!
//! A 16-bit float is cast from its exact `f32` value; a cast to one rounds once.

use half::{bf16, f16};
use streamvm_ep::backend::check::{InPlace, check_inferred, checked_operands};
use streamvm_ep::{DType, KernelCall, KernelError, KernelFn, Op, OpError};

use crate::binary16;
use crate::elementwise::{map1_nest, rows_of};
use crate::half_floats::Nearest;
use crate::number::Float;

/// The kernel that casts from one dtype. Integers that have the same bits in the result, whatever their sign, are one case.
macro_rules! cast_kernel {
    ($name:ident: $dtype:ident, $store:ty, $value:expr; $($($to:ident)|+ as $int:ty),*) => {
        fn $name(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError> {
            let to = call.params.to.ok_or(OpError::MissingTarget { op: Op::Cast })?;
            let ([a], out) = checked_operands(call, [DType::$dtype], to, InPlace::Allowed)?;
            check_inferred(Op::Cast, [a], out, call)?;
            // SAFETY: `checked_operands` has checked the dtypes, which are `f32` and `f16`, and alignment, write access and overlap; the
            // loop nest stays within the operands.
            let round = |length, out, a| unsafe { binary16::round_row(length, out, a) };
            // SAFETY: as above.
            let widen = |length, out, a| unsafe { binary16::widen_row(length, out, a) };
            match (DType::$dtype, to) {
                (DType::F32, DType::F16) => return Ok(rows_of(a, out, round)),
                (DType::F16, DType::F32) => return Ok(rows_of(a, out, widen)),
                _ => {}
            }
            let value = $value;
            // For every arm: `checked_operands` has checked that the input holds the dtype of this kernel and the output the matched
            // dtype, and alignment, write access and overlap.
            match to {
                // SAFETY: see above.
                DType::F32 => unsafe { map1_nest(a, out, |x: $store| value(x) as f32) },
                // SAFETY: see above.
                DType::F64 => unsafe { map1_nest(a, out, |x: $store| value(x) as f64) },
                // SAFETY: see above.
                DType::F16 => unsafe { map1_nest(a, out, |x: $store| f16::nearest(value(x))) },
                // SAFETY: see above.
                DType::BF16 => unsafe { map1_nest(a, out, |x: $store| bf16::nearest(value(x))) },
                $(
                    // SAFETY: see above; an integer of the other sign has the size of this one.
                    $(DType::$to)|+ => unsafe { map1_nest(a, out, |x: $store| value(x) as $int) },
                )*
                // SAFETY: see above.
                DType::Bool => unsafe { map1_nest(a, out, |x: $store| u8::from(x != <$store>::default())) },
            }
            Ok(())
        }
    };
}

macro_rules! casts {
    (
        floats { $($float:ident: $float_dtype:ident, $float_store:ty, $float_value:expr;)* }
        others { $($other:ident: $other_dtype:ident, $other_store:ty, $other_value:expr;)* }
    ) => {
        // A float beyond an integer's range gives the end of the range.
        $(cast_kernel!(
            $float: $float_dtype, $float_store, $float_value;
            I8 as i8, I16 as i16, I32 as i32, I64 as i64, U8 as u8, U16 as u16, U32 as u32, U64 as u64
        );)*
        // An integer keeps its low bits.
        $(cast_kernel!(
            $other: $other_dtype, $other_store, $other_value;
            I8 | U8 as u8, I16 | U16 as u16, I32 | U32 as u32, I64 | U64 as u64
        );)*

        /// The kernel that casts from `dtype`.
        pub(super) fn cast_from(dtype: DType) -> KernelFn {
            match dtype {
                $(DType::$float_dtype => $float,)*
                $(DType::$other_dtype => $other,)*
            }
        }
    };
}

casts! {
    floats {
        from_f32: F32, f32, |x: f32| x;
        from_f64: F64, f64, |x: f64| x;
        from_f16: F16, f16, |x: f16| x.wide();
        from_bf16: BF16, bf16, |x: bf16| x.wide();
    }
    others {
        from_i8: I8, i8, |x: i8| x;
        from_i16: I16, i16, |x: i16| x;
        from_i32: I32, i32, |x: i32| x;
        from_i64: I64, i64, |x: i64| x;
        from_u8: U8, u8, |x: u8| x;
        from_u16: U16, u16, |x: u16| x;
        from_u32: U32, u32, |x: u32| x;
        from_u64: U64, u64, |x: u64| x;
        from_bool: Bool, u8, |x: u8| u8::from(x != 0);
    }
}
