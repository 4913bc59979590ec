//! Random numbers: element `i`, in row-major order, is made from its part of block `counter + i / n` of Philox, where `n` is the number
//! of elements per block. So it depends only on the seed, the counter and its index: not on strides, the thread or device that computes
//! it, or other draws.

use half::{bf16, f16};
use streamvm_ep::backend::check::{InPlace, checked_operands};
use streamvm_ep::{KernelCall, KernelError, Layout, check_source};

use crate::number::{DTypeTag, Float};
use crate::philox::block;
use crate::rows::output;

/// An element type that can be drawn. The functions use the first [`Draw::OF_A_BLOCK`] of the four results.
pub(super) trait Draw: Float {
    /// The number of elements that one block makes.
    const OF_A_BLOCK: usize;

    /// Uniform in `[0, 1)`: every multiple of the smallest step below 1 is equally likely.
    fn uniform(words: [u32; 4]) -> [Self; 4];

    /// Normal with mean 0 and variance 1, by the transform of Box and Muller (1958).
    fn normal(words: [u32; 4]) -> [Self; 4];
}

/// 2^-24: the step of an `f32` below 1.
const STEP_F32: f32 = 1.0 / (1 << 24) as f32;
/// 2^-53: the step of an `f64` below 1.
const STEP_F64: f64 = 1.0 / (1u64 << 53) as f64;

macro_rules! pair {
    ($name:ident $float:ident) => {
        /// Two normal numbers from a number in `(0, 1]` and one in `[0, 1)`.
        fn $name(size: $float, turn: $float) -> [$float; 2] {
            let (radius, angle) = ((-2.0 * size.ln()).sqrt(), std::$float::consts::TAU * turn);
            [radius * angle.cos(), radius * angle.sin()]
        }
    };
}

pair!(pair_f32 f32);
pair!(pair_f64 f64);

impl Draw for f32 {
    const OF_A_BLOCK: usize = 4;

    fn uniform(words: [u32; 4]) -> [f32; 4] {
        words.map(|word| (word >> 8) as f32 * STEP_F32)
    }

    fn normal(words: [u32; 4]) -> [f32; 4] {
        let [a, turn, b, turn2] = words.map(|word| word >> 8);
        let pair = |size: u32, turn: u32| pair_f32((size + 1) as f32 * STEP_F32, turn as f32 * STEP_F32);
        let ([x, y], [z, w]) = (pair(a, turn), pair(b, turn2));
        [x, y, z, w]
    }
}

impl Draw for f64 {
    const OF_A_BLOCK: usize = 2;

    fn uniform(words: [u32; 4]) -> [f64; 4] {
        let [x, y] = wide(words).map(|word| word as f64 * STEP_F64);
        [x, y, 0.0, 0.0]
    }

    fn normal(words: [u32; 4]) -> [f64; 4] {
        let [size, turn] = wide(words);
        let [x, y] = pair_f64((size + 1) as f64 * STEP_F64, turn as f64 * STEP_F64);
        [x, y, 0.0, 0.0]
    }
}

/// Two numbers of 53 bits, the low word of each first.
fn wide([low, high, low2, high2]: [u32; 4]) -> [u64; 2] {
    [(low, high), (low2, high2)].map(|(low, high)| (u64::from(high) << 32 | u64::from(low)) >> 11)
}

macro_rules! narrow {
    ($float:ident $bits:literal) => {
        impl Draw for $float {
            const OF_A_BLOCK: usize = 4;

            fn uniform(words: [u32; 4]) -> [$float; 4] {
                words.map(|word| $float::rounded((word >> (32 - $bits)) as f32 / (1 << $bits) as f32))
            }

            fn normal(words: [u32; 4]) -> [$float; 4] {
                f32::normal(words).map($float::rounded)
            }
        }
    };
}

narrow!(f16 11);
narrow!(bf16 8);

/// The distribution: how the words of a block become elements.
pub(super) trait Distribution {
    fn of<T: Draw>(words: [u32; 4]) -> [T; 4];
}

pub(super) struct Uniform;

impl Distribution for Uniform {
    fn of<T: Draw>(words: [u32; 4]) -> [T; 4] {
        T::uniform(words)
    }
}

pub(super) struct Normal;

impl Distribution for Normal {
    fn of<T: Draw>(words: [u32; 4]) -> [T; 4] {
        T::normal(words)
    }
}

/// The kernel of [`Op::Uniform`](streamvm_ep::Op::Uniform) and [`Op::Normal`](streamvm_ep::Op::Normal).
pub(super) fn random<D, F: Distribution>(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError>
where
    D: DTypeTag,
    D::Store: Draw,
{
    let ([], out) = checked_operands(call, [], D::DTYPE, InPlace::Refused)?;
    check_source(call.kernel.op, D::DTYPE, call.params)?;
    let (seed, counter) = call.params.checked_random(call.kernel.op)?;
    let (layout, elements) = (out.layout(), out.layout().elements());
    let whole = layout.is_contiguous();
    let target = output::<D::Store>(out, 0, 1);
    let each = D::Store::OF_A_BLOCK;
    for first in (0..elements).step_by(each) {
        let drawn = F::of::<D::Store>(block(seed, counter.wrapping_add((first / each) as u64)));
        for (index, element) in (first..elements).zip(&drawn[..each]) {
            let place = if whole { index } else { offset(layout, index) };
            // SAFETY: this is the position of an index of the output, which holds `D` and may be written.
            unsafe { target.set(place, *element) };
        }
    }
    Ok(())
}

/// The offset of the element with this row-major index, counted from the first element.
pub(super) fn offset(layout: &Layout, index: usize) -> usize {
    let mut left = index;
    let axes = layout.shape().dims().iter().zip(layout.strides()).rev();
    axes.fold(0, |offset, (&size, &stride)| {
        let step = left % size;
        left /= size;
        offset + step * stride
    })
}
