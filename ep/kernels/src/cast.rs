//! The cast kernel: every dtype to every dtype, by the rules of Rust's `as`, and `!= 0` to bool.
//!
//! A 16-bit float is cast from its exact `f32` value. A cast to one is a cast to an `f32` that gives the same 16-bit float as the number itself, which is then rounded.

use std::marker::PhantomData;

use streamvm_ep::backend::check::{InPlace, check_inferred, checked_operands};
use streamvm_ep::{DType, KernelCall, KernelError, Op, OpError};

use crate::arith::Unary;
use crate::half_floats::RoundedToOdd;
use crate::halves::Half;
use crate::number::{DTypeTag, Number};
use crate::parallel;
use crate::tile_functions::of_one;
use crate::tiles::{Map, TileFn};

/// The kernel of [`Op::Cast`] from one dtype.
pub(super) fn cast<D: DTypeTag>(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError> {
    cast_from(D::DTYPE, call)
}

fn cast_from(from: DType, call: &mut KernelCall<'_, '_>) -> Result<(), KernelError> {
    let to = call.params.to.ok_or(OpError::MissingTarget { op: Op::Cast })?;
    let ([a], out) = checked_operands(call, [from], to, InPlace::Allowed)?;
    check_inferred(Op::Cast, [a], out, call)?;
    // SAFETY: the function is for these dtypes; `checked_operands` has checked them, alignment, write access and overlap, and `check_inferred` the shapes.
    unsafe { map(from, to).run(&[a], out) };
    Ok(())
}

/// How elements of one dtype become those of another.
fn map(from: DType, to: DType) -> Map {
    match (from, to) {
        (DType::F16, DType::F32) => Map::of_bits(widen_f16),
        (DType::BF16, DType::F32) => Map::of_bits(widen_bf16),
        (DType::F32, DType::F16) => Map::of_bits(round_f16),
        (DType::F32, DType::BF16) => Map::of_bits(round_bf16),
        _ => {
            let widens = Half::of(from).or(Half::of(to)).is_some();
            Map { function: function(from, to), work: parallel::LIGHT, widens }
        }
    }
}

struct Same;

impl<T: Copy> Unary<T> for Same {
    type Out = T;

    #[inline(always)]
    fn apply(x: T) -> T {
        x
    }
}

struct IsNotZero;

impl<T: Number> Unary<T> for IsNotZero {
    type Out = u8;

    #[inline(always)]
    fn apply(x: T) -> u8 {
        u8::from(x.compared() != T::ZERO.compared())
    }
}

/// A bool, of which every byte but 0 is true, as a number.
struct IsTrue<T>(PhantomData<T>);

impl<T: Number + From<u8>> Unary<u8> for IsTrue<T> {
    type Out = T;

    #[inline(always)]
    fn apply(x: u8) -> T {
        T::from(u8::from(x != 0))
    }
}

/// To a 16-bit float, which the `f32` here is rounded to.
struct ToHalf;

impl<T: RoundedToOdd> Unary<T> for ToHalf {
    type Out = f32;

    #[inline(always)]
    fn apply(x: T) -> f32 {
        x.rounded_to_odd()
    }
}

struct To<T>(PhantomData<T>);

macro_rules! casts {
    ($($from:ident $from_dtypes:pat => [$($to:ident $to_dtypes:pat),*] $(half $half:ident)?;)*) => {
        $($(
            impl Unary<$from> for To<$to> {
                type Out = $to;

                #[inline(always)]
                fn apply(x: $from) -> $to {
                    x as $to
                }
            }
        )*)*

        /// The cast of elements as they are in tiles, where a 16-bit float is an `f32`.
        fn function(from: DType, to: DType) -> TileFn {
            match (from, to) {
                $(
                    $(($from_dtypes, $to_dtypes) => of_one::<$from, To<$to>>,)*
                    $(($from_dtypes, DType::F16 | DType::BF16) => of_one::<$from, $half>,)?
                )*
                (DType::F32 | DType::F16 | DType::BF16, DType::F32) => of_one::<u32, Same>,
                (DType::F64, DType::F64) => of_one::<u64, Same>,
                (DType::I8 | DType::U8, DType::I8 | DType::U8) => of_one::<u8, Same>,
                (DType::I16 | DType::U16, DType::I16 | DType::U16) => of_one::<u16, Same>,
                (DType::I32 | DType::U32, DType::I32 | DType::U32) => of_one::<u32, Same>,
                (DType::I64 | DType::U64, DType::I64 | DType::U64) => of_one::<u64, Same>,
                (DType::F32 | DType::F16 | DType::BF16, DType::Bool) => of_one::<f32, IsNotZero>,
                (DType::F64, DType::Bool) => of_one::<f64, IsNotZero>,
                (DType::Bool, DType::I8 | DType::U8) | (DType::I8 | DType::U8 | DType::Bool, DType::Bool) => of_one::<u8, IsNotZero>,
                (DType::Bool, DType::I16 | DType::U16) => of_one::<u8, IsTrue<u16>>,
                (DType::Bool, DType::I32 | DType::U32) => of_one::<u8, IsTrue<u32>>,
                (DType::Bool, DType::I64 | DType::U64) => of_one::<u8, IsTrue<u64>>,
                (DType::Bool, DType::F32 | DType::F16 | DType::BF16) => of_one::<u8, IsTrue<f32>>,
                (DType::Bool, DType::F64) => of_one::<u8, IsTrue<f64>>,
                (DType::I16 | DType::U16, DType::Bool) => of_one::<u16, IsNotZero>,
                (DType::I32 | DType::U32, DType::Bool) => of_one::<u32, IsNotZero>,
                (DType::I64 | DType::U64, DType::Bool) => of_one::<u64, IsNotZero>,
            }
        }
    };
}

// A float beyond an integer's range gives the end of the range. An integer keeps its low bits, which are those of the unsigned one of its size.
casts! {
    f32 DType::F32 | DType::F16 | DType::BF16 => [
        f64 DType::F64, i8 DType::I8, i16 DType::I16, i32 DType::I32, i64 DType::I64, u8 DType::U8, u16 DType::U16, u32 DType::U32, u64 DType::U64
    ] half Same;
    f64 DType::F64 => [
        f32 DType::F32, i8 DType::I8, i16 DType::I16, i32 DType::I32, i64 DType::I64, u8 DType::U8, u16 DType::U16, u32 DType::U32, u64 DType::U64
    ] half ToHalf;
    i8 DType::I8 => [
        f32 DType::F32 | DType::F16 | DType::BF16, f64 DType::F64, u16 DType::I16 | DType::U16, u32 DType::I32 | DType::U32, u64 DType::I64 | DType::U64
    ];
    i16 DType::I16 => [f32 DType::F32 | DType::F16 | DType::BF16, f64 DType::F64, u32 DType::I32 | DType::U32, u64 DType::I64 | DType::U64];
    i32 DType::I32 => [f32 DType::F32, f64 DType::F64, u64 DType::I64 | DType::U64] half ToHalf;
    i64 DType::I64 => [f32 DType::F32, f64 DType::F64] half ToHalf;
    u8 DType::U8 => [
        f32 DType::F32 | DType::F16 | DType::BF16, f64 DType::F64, u16 DType::I16 | DType::U16, u32 DType::I32 | DType::U32, u64 DType::I64 | DType::U64
    ];
    u16 DType::U16 => [f32 DType::F32 | DType::F16 | DType::BF16, f64 DType::F64, u32 DType::I32 | DType::U32, u64 DType::I64 | DType::U64];
    u32 DType::U32 => [f32 DType::F32, f64 DType::F64, u64 DType::I64 | DType::U64] half ToHalf;
    u64 DType::U64 => [f32 DType::F32, f64 DType::F64] half ToHalf;
    u16 DType::I16 | DType::U16 => [u8 DType::I8 | DType::U8];
    u32 DType::I32 | DType::U32 => [u8 DType::I8 | DType::U8, u16 DType::I16 | DType::U16];
    u64 DType::I64 | DType::U64 => [u8 DType::I8 | DType::U8, u16 DType::I16 | DType::U16, u32 DType::I32 | DType::U32];
}

macro_rules! conversions {
    ($($name:ident $half:ident $method:ident;)*) => {$(
        /// # Safety
        ///
        /// * As for [`TileFn`].
        unsafe fn $name(count: usize, out: *mut u8, a: *const u8, _: *const u8, _: *const u8, _: usize) {
            // SAFETY: the caller guarantees this. Elements of two sizes do not overlap.
            unsafe { Half::$half.$method(count, out.cast(), a.cast()) }
        }
    )*};
}

conversions! {
    widen_f16 F16 widen;
    widen_bf16 BF16 widen;
    round_f16 F16 round;
    round_bf16 BF16 round;
}
