//! Chains: elementwise calls of which each reads what the one before wrote, computed in the processor's registers.
//!
//! Kernels that run one after the other over a block of elements load and store each result, if only in the first-level cache: a light operation takes less time
//! than that. A chain keeps the elements of one *tile*, a few vectors, in registers, does all its calls there, and goes on to the next tile. What each
//! call does is looked up once for a tile.
//!
//! Only operations of a few instructions that IEEE 754 defines are done so, with the meaning that [`Number`](super::number::Number) gives them. So the results have
//! the bits of the kernels. NaN is an exception: where both operands are NaN, the result may be either.

use std::marker::PhantomData;

use pulp::{Simd, WithSimd};

use crate::cpu::kernels::lanes;
use crate::cpu::kernels::simd_dispatch::run_wide;
use crate::tensor::dtype::DType;
use crate::tensor::op::Op;

/// What a link does with the value of the chain so far, and with its other operand.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum LinkWork {
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
    /// That of an op of one operand, the value.
    pub(crate) fn of_one(op: Op) -> Option<LinkWork> {
        Some(match op {
            Op::Neg => LinkWork::Neg,
            Op::Abs => LinkWork::Abs,
            Op::Relu => LinkWork::Relu,
            Op::Sqrt => LinkWork::Sqrt,
            Op::Reciprocal => LinkWork::Reciprocal,
            _ => return None,
        })
    }

    /// That of an op of two operands. `on_left`: the value is the left one.
    pub(crate) fn of_two(op: Op, on_left: bool) -> Option<LinkWork> {
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
pub(crate) enum Other {
    /// That of the link before, which is still in registers; also of links without other operands.
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
pub(crate) struct Link {
    pub(crate) work: LinkWork,
    pub(crate) other: Other,
    /// Where the elements of the result are stored, one behind the other; null if only the next link needs them.
    pub(crate) to: *mut u8,
}

/// Whether there are chains over this dtype.
pub(crate) fn has_chains(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64)
}

/// Computes a chain over `length` elements of `dtype`, for which [`has_chains`] is true. The first link takes its operand.
///
/// # Safety
///
/// * The addresses of the links are aligned to elements of `dtype`. The elements that they name, `length` or one, may be read; those of `to` may be written, and
///   nothing else accesses them during the call. They are initialised, or an earlier link stores them.
/// * Of two links, one of which stores, both use the same addresses or no byte in common.
pub(crate) unsafe fn run(dtype: DType, links: &[Link], length: usize) {
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
                        Other::Same => other,
                        Other::Value => value,
                        Other::Elements(from) => {
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
                        Other::Single(from) => [simd.$splat(unsafe { from.cast::<$float>().read() }); WIDTH],
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
