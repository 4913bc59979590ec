//! Chains: elementwise calls of which each reads what the one before wrote, computed in the processor's registers.
//!
//! When kernels run one after the other over a block of elements, each loads its operands from the first-level cache and stores its result there. For a light operation
//! this takes longer than the operation. A chain keeps the elements of one *tile*, a few vectors, in registers, does all its calls there, and goes on to the
//! next tile. It looks up once for each tile what a call does.
//!
//! Chains have operations of a few instructions, whose results IEEE 754 or a comparison fixes, with the meaning that [`Number`](super::number::Number) gives them. So
//! the results have the bits of the kernels; only which NaN a result is may differ.

use std::marker::PhantomData;

use pulp::{Simd, WithSimd};
use streamvm_ep::{DType, Op};

use crate::lanes;
use crate::simd_dispatch::run_wide;

/// The operation of a link: its operands are the value of the chain so far and, for binary operations, another one.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "most are ops of the same name")]
pub enum LinkWork {
    /// The other operand is the value from now on.
    Take,
    Neg,
    Abs,
    Relu,
    Sqrt,
    Reciprocal,
    Add,
    Mul,
    Sub,
    /// The other operand is on the left.
    SubFrom,
    Div,
    /// The other operand is on the left.
    DivInto,
    Min,
    /// The other operand is on the left.
    MinWith,
    Max,
    /// The other operand is on the left.
    MaxWith,
}

impl LinkWork {
    /// The work of a unary op, whose operand is the value.
    pub fn of_one(op: Op) -> Option<LinkWork> {
        Some(match op {
            Op::Neg => LinkWork::Neg,
            Op::Abs => LinkWork::Abs,
            Op::Relu => LinkWork::Relu,
            Op::Sqrt => LinkWork::Sqrt,
            Op::Reciprocal => LinkWork::Reciprocal,
            _ => return None,
        })
    }

    /// The work of a binary op. `on_left`: the value is its left operand.
    pub fn of_two(op: Op, on_left: bool) -> Option<LinkWork> {
        Some(match (op, on_left) {
            (Op::Add, _) => LinkWork::Add,
            (Op::Mul, _) => LinkWork::Mul,
            (Op::Sub, true) => LinkWork::Sub,
            (Op::Sub, false) => LinkWork::SubFrom,
            (Op::Div, true) => LinkWork::Div,
            (Op::Div, false) => LinkWork::DivInto,
            (Op::Min, true) => LinkWork::Min,
            (Op::Min, false) => LinkWork::MinWith,
            (Op::Max, true) => LinkWork::Max,
            (Op::Max, false) => LinkWork::MaxWith,
            _ => return None,
        })
    }
}

/// The other operand of a link.
#[derive(Copy, Clone, Debug)]
pub enum OtherOperand {
    /// The other operand of the previous link, which is still in registers. Links of unary ops have this, too, and ignore it.
    Same,
    /// The value of the chain itself.
    Value,
    /// Elements one behind the other, from this address on.
    Elements(*const u8),
    /// One element for all.
    Single(*const u8),
}

/// A call of a chain.
#[derive(Copy, Clone, Debug)]
pub struct Link {
    /// What it computes.
    pub work: LinkWork,
    /// The operand beside the value of the chain.
    pub other: OtherOperand,
    /// Where the elements of the result are stored, one behind the other; null if only the next link needs them.
    pub to: *mut u8,
}

/// Whether there are chains over this dtype.
pub fn has_chains(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64)
}

/// Computes a chain over `length` elements of `dtype`, for which [`has_chains`] is true. The first link takes its operand.
///
/// # Safety
///
/// * The addresses of the links are aligned to elements of `dtype`. The elements that they name, `length` or one, may be read; those of `to` may be written, and
///   nothing else accesses them during the call. They are initialised, or an earlier link stores them.
/// * Of two links, one of which stores, both use the same addresses or no byte in common.
pub unsafe fn run(dtype: DType, links: &[Link], length: usize) {
    debug_assert!(matches!(links.first(), Some(Link { work: LinkWork::Take, .. })));
    match dtype {
        DType::F32 => run_wide(Chain::<f32> { links, length, elements: PhantomData }),
        DType::F64 => run_wide(Chain::<f64> { links, length, elements: PhantomData }),
        _ => unreachable!("`has_chains` is false"),
    }
}

#[derive(Copy, Clone)]
struct Chain<'l, T> {
    links: &'l [Link],
    length: usize,
    elements: PhantomData<T>,
}

/// A part of the elements, for which all links are done before the next part.
#[derive(Copy, Clone)]
struct Tile {
    /// The first element.
    first: usize,
    /// Of the last tile, which is a part of one vector, how many elements it has; 0 otherwise.
    rest: usize,
}

macro_rules! chains {
    ($($float:ident $vector:ident {
        $splat:ident $load:ident $store:ident $neg:ident $abs:ident $sqrt:ident $add:ident $sub:ident $mul:ident $div:ident
        $greater:ident $less:ident $equal:ident $not:ident $or:ident $select:ident
    })*) => {$(
        impl WithSimd for Chain<'_, $float> {
            type Output = ();

            #[inline(always)]
            fn with_simd<S: Simd>(self, simd: S) {
                // As many vectors as leave registers for as many of the other operand.
                // SAFETY: only `run` makes a chain and runs it at once; its caller guarantees the elements.
                unsafe {
                    match S::REGISTER_COUNT {
                        32.. => self.tiles::<S, 8>(simd),
                        _ => self.tiles::<S, 4>(simd),
                    }
                }
            }
        }

        impl Chain<'_, $float> {
            /// # Safety
            ///
            /// * The elements are as [`run`] asks.
            #[inline(always)]
            unsafe fn tiles<S: Simd, const WIDTH: usize>(self, simd: S) {
                let lanes = size_of::<S::$vector>() / size_of::<$float>();
                let mut first = 0;
                // SAFETY: the tiles lie within the elements; the caller guarantees the rest.
                unsafe {
                    while first + WIDTH * lanes <= self.length {
                        self.tile::<S, WIDTH, false>(simd, Tile { first, rest: 0 });
                        first += WIDTH * lanes;
                    }
                    while first + lanes <= self.length {
                        self.tile::<S, 1, false>(simd, Tile { first, rest: 0 });
                        first += lanes;
                    }
                    if first < self.length {
                        self.tile::<S, 1, true>(simd, Tile { first, rest: self.length - first });
                    }
                }
            }

            /// # Safety
            ///
            /// * As for `tiles`, and the tile lies within the elements. `PARTIAL` is true if it has a `rest`, which is less than a vector.
            #[inline(always)]
            unsafe fn tile<S: Simd, const WIDTH: usize, const PARTIAL: bool>(self, simd: S, tile: Tile) {
                let zero = simd.$splat(0.0);
                let mut value = [zero; WIDTH];
                let mut other = [zero; WIDTH];
                for link in self.links {
                    other = match link.other {
                        OtherOperand::Same => other,
                        OtherOperand::Value => value,
                        OtherOperand::Elements(from) => {
                            let from = from.cast::<$float>().wrapping_add(tile.first);
                            if PARTIAL {
                                // SAFETY: the caller guarantees the elements, which nobody else writes.
                                [simd.$load(unsafe { std::slice::from_raw_parts(from, tile.rest) }); WIDTH]
                            } else {
                                let from = from.cast::<S::$vector>();
                                // SAFETY: as above. The vector types of `pulp` are plain numbers.
                                lanes::array(|place| unsafe { from.wrapping_add(place).read_unaligned() })
                            }
                        }
                        // SAFETY: as above.
                        OtherOperand::Single(from) => [simd.$splat(unsafe { from.cast::<$float>().read() }); WIDTH],
                    };
                    let smaller = |x: S::$vector, y| {
                        let is_first = simd.$or(simd.$less(x, y), simd.$not(simd.$equal(x, x)));
                        simd.$select(is_first, x, y)
                    };
                    let larger = |x: S::$vector, y| {
                        let is_first = simd.$or(simd.$greater(x, y), simd.$not(simd.$equal(x, x)));
                        simd.$select(is_first, x, y)
                    };
                    value = match link.work {
                        LinkWork::Take => other,
                        LinkWork::Neg => lanes::array(|place| simd.$neg(value[place])),
                        LinkWork::Abs => lanes::array(|place| simd.$abs(value[place])),
                        LinkWork::Relu => lanes::array(|place| larger(value[place], zero)),
                        LinkWork::Sqrt => lanes::array(|place| simd.$sqrt(value[place])),
                        LinkWork::Reciprocal => lanes::array(|place| simd.$div(simd.$splat(1.0), value[place])),
                        LinkWork::Add => lanes::array(|place| simd.$add(value[place], other[place])),
                        LinkWork::Mul => lanes::array(|place| simd.$mul(value[place], other[place])),
                        LinkWork::Sub => lanes::array(|place| simd.$sub(value[place], other[place])),
                        LinkWork::SubFrom => lanes::array(|place| simd.$sub(other[place], value[place])),
                        LinkWork::Div => lanes::array(|place| simd.$div(value[place], other[place])),
                        LinkWork::DivInto => lanes::array(|place| simd.$div(other[place], value[place])),
                        LinkWork::Min => lanes::array(|place| smaller(value[place], other[place])),
                        LinkWork::MinWith => lanes::array(|place| smaller(other[place], value[place])),
                        LinkWork::Max => lanes::array(|place| larger(value[place], other[place])),
                        LinkWork::MaxWith => lanes::array(|place| larger(other[place], value[place])),
                    };
                    if !link.to.is_null() {
                        let to = link.to.cast::<$float>().wrapping_add(tile.first);
                        if PARTIAL {
                            // SAFETY: the caller guarantees the elements, which nobody else accesses.
                            simd.$store(unsafe { std::slice::from_raw_parts_mut(to, tile.rest) }, value[0]);
                        } else {
                            let to = to.cast::<S::$vector>();
                            for (place, vector) in value.into_iter().enumerate() {
                                // SAFETY: as above.
                                unsafe { to.wrapping_add(place).write_unaligned(vector) };
                            }
                        }
                    }
                }
            }
        }
    )*};
}

chains! {
    f32 f32s {
        splat_f32s partial_load_f32s partial_store_f32s neg_f32s abs_f32s sqrt_f32s add_f32s sub_f32s mul_f32s div_f32s
        greater_than_f32s less_than_f32s equal_f32s not_m32s or_m32s select_f32s
    }
    f64 f64s {
        splat_f64s partial_load_f64s partial_store_f64s neg_f64s abs_f64s sqrt_f64s add_f64s sub_f64s mul_f64s div_f64s
        greater_than_f64s less_than_f64s equal_f64s not_m64s or_m64s select_f64s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKS: [LinkWork; 15] = [
        LinkWork::Add,
        LinkWork::Neg,
        LinkWork::Mul,
        LinkWork::Abs,
        LinkWork::Sub,
        LinkWork::Sqrt,
        LinkWork::SubFrom,
        LinkWork::Max,
        LinkWork::Div,
        LinkWork::Min,
        LinkWork::DivInto,
        LinkWork::MaxWith,
        LinkWork::Reciprocal,
        LinkWork::MinWith,
        LinkWork::Relu,
    ];

    macro_rules! every_vector_gives_the_same_bits {
        ($name:ident $float:ident) => {
            /// Each processor has the vectors of older ones: all of them compute the same, in tiles of every width.
            #[test]
            fn $name() {
                for length in [0, 1, 3, 15, 16, 17, 31, 64, 127, 128, 129, 300] {
                    let numbers: Vec<$float> = (0..length).map(|it| (it * 37 % 101) as $float / 7.0 - 5.0).collect();
                    let others: Vec<$float> = (0..length).map(|it| (it * 53 % 89) as $float / 3.0 - 11.0).collect();
                    let single: $float = 1.75;
                    let result = |run: &dyn Fn(Chain<'_, $float>)| -> Vec<Vec<u64>> {
                        let mut results = vec![vec![0.0 as $float; length]; WORKS.len()];
                        let mut links = vec![Link {
                            work: LinkWork::Take,
                            other: OtherOperand::Elements(numbers.as_ptr().cast()),
                            to: std::ptr::null_mut(),
                        }];
                        for (place, (work, to)) in WORKS.into_iter().zip(&mut results).enumerate() {
                            let other = match place % 4 {
                                0 => OtherOperand::Elements(others.as_ptr().cast()),
                                1 => OtherOperand::Single((&raw const single).cast()),
                                2 => OtherOperand::Same,
                                _ => OtherOperand::Value,
                            };
                            links.push(Link { work, other, to: to.as_mut_ptr().cast() });
                        }
                        run(Chain { links: &links, length, elements: PhantomData });
                        let bits = |it: &$float| if it.is_nan() { u64::MAX } else { u64::from(it.to_bits()) };
                        results.iter().map(|result| result.iter().map(bits).collect()).collect()
                    };
                    let scalar = result(&|chain| pulp::Simd::vectorize(pulp::Scalar::new(), chain));
                    assert_eq!(result(&|chain| run_wide(chain)), scalar, "{length} elements, the widest vectors");
                    #[cfg(target_arch = "x86_64")]
                    if let Some(avx2) = crate::simd_dispatch::avx2() {
                        assert_eq!(result(&|chain| pulp::Simd::vectorize(avx2, chain)), scalar, "{length} elements");
                    }
                }
            }
        };
    }

    every_vector_gives_the_same_bits!(every_vector_gives_the_same_bits_of_f32 f32);
    every_vector_gives_the_same_bits!(every_vector_gives_the_same_bits_of_f64 f64);
}
