//! Chains: elementwise calls of which each reads what the one before wrote, computed in the processor's registers.
//!
//! When kernels run one after the other over a block of elements, each loads its operands from the first-level cache and stores its result there. For a light operation
//! this takes longer than the operation. A chain keeps the elements of one *tile*, as many vectors as there are registers for, does all its calls there, and goes on to the
//! next tile. It looks up once for each tile what a link does: the operation, and whether its other operand is elements of memory, which the instructions of the operation read
//! themselves, or one element for all. To store the value is a link of its own.
//!
//! Chains have operations of a few instructions, whose results IEEE 754 or a comparison fixes, with the meaning that `Number` gives them. So
//! the results have the bits of the kernels; only which NaN a result is may differ.

use std::marker::PhantomData;

use pulp::{Simd, WithSimd};
use streamvm_ep::{DType, Op};

use crate::lanes;
use crate::simd_dispatch::run_wide;

/// What a link does with the value of the chain. Operations of two operands have the value on the left; those that end in `From`, `Into` or `With` have it on the right. The other
/// operand is elements of memory, or one element for all (`Single`), or the value itself (`Itself`).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "most are ops of the same name")]
pub enum LinkWork {
    /// The elements are the value from now on.
    Take,
    TakeSingle,
    /// The value is written to memory.
    Store,
    /// The value stays as it is: a number is the smaller and the larger of itself and itself.
    Keep,
    Neg,
    Abs,
    Relu,
    Sqrt,
    Reciprocal,
    Add,
    AddSingle,
    AddItself,
    Mul,
    MulSingle,
    MulItself,
    Sub,
    SubSingle,
    SubItself,
    SubFrom,
    SubFromSingle,
    Div,
    DivSingle,
    DivItself,
    DivInto,
    DivIntoSingle,
    Min,
    MinSingle,
    MinWith,
    MinWithSingle,
    Max,
    MaxSingle,
    MaxWith,
    MaxWithSingle,
}

/// The other operand of a link.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum OtherOperand {
    /// Elements of memory, one after the other.
    Elements,
    /// One element for all.
    Single,
    /// The value of the chain.
    Value,
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
    pub fn of_two(op: Op, on_left: bool, other: OtherOperand) -> Option<LinkWork> {
        use OtherOperand::{Elements, Single, Value};
        Some(match (op, on_left, other) {
            (Op::Add, _, Elements) => LinkWork::Add,
            (Op::Add, _, Single) => LinkWork::AddSingle,
            (Op::Add, _, Value) => LinkWork::AddItself,
            (Op::Mul, _, Elements) => LinkWork::Mul,
            (Op::Mul, _, Single) => LinkWork::MulSingle,
            (Op::Mul, _, Value) => LinkWork::MulItself,
            (Op::Sub, true, Elements) => LinkWork::Sub,
            (Op::Sub, true, Single) => LinkWork::SubSingle,
            (Op::Sub, _, Value) => LinkWork::SubItself,
            (Op::Sub, false, Elements) => LinkWork::SubFrom,
            (Op::Sub, false, Single) => LinkWork::SubFromSingle,
            (Op::Div, true, Elements) => LinkWork::Div,
            (Op::Div, true, Single) => LinkWork::DivSingle,
            (Op::Div, _, Value) => LinkWork::DivItself,
            (Op::Div, false, Elements) => LinkWork::DivInto,
            (Op::Div, false, Single) => LinkWork::DivIntoSingle,
            (Op::Min, true, Elements) => LinkWork::Min,
            (Op::Min, true, Single) => LinkWork::MinSingle,
            (Op::Min, false, Elements) => LinkWork::MinWith,
            (Op::Min, false, Single) => LinkWork::MinWithSingle,
            (Op::Max, true, Elements) => LinkWork::Max,
            (Op::Max, true, Single) => LinkWork::MaxSingle,
            (Op::Max, false, Elements) => LinkWork::MaxWith,
            (Op::Max, false, Single) => LinkWork::MaxWithSingle,
            (Op::Min | Op::Max, _, Value) => LinkWork::Keep,
            _ => return None,
        })
    }
}

/// A link: what it does, and where the elements begin that it reads or writes, if it does.
#[derive(Copy, Clone, Debug)]
pub struct Link {
    /// What it computes.
    pub work: LinkWork,
    /// Where the elements begin.
    pub elements: *mut u8,
}

/// Whether there are chains over this dtype.
pub fn has_chains(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64)
}

/// Computes a chain over `length` elements of `dtype`, for which [`has_chains`] is true. The first link takes its operand.
///
/// # Safety
///
/// * The addresses of the links are aligned to elements of `dtype`. The elements that they name, `length` or one, may be read; those that are stored may be written, and
///   nothing else accesses them during the call. They are initialised, or an earlier link stores them.
/// * Of two links, one of which stores, both use the same addresses or no byte in common.
pub unsafe fn run(dtype: DType, links: &[Link], length: usize) {
    debug_assert!(matches!(links.first(), Some(Link { work: LinkWork::Take | LinkWork::TakeSingle, .. })));
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

/// A type that chains compute in, with the operations of its vectors.
trait Vectors: Copy {
    type Vector<S: Simd>: Copy;
    const ONE: Self;
    const ZERO: Self;

    fn splat<S: Simd>(simd: S, x: Self) -> Self::Vector<S>;
    /// A vector that begins with these elements.
    fn part<S: Simd>(simd: S, elements: &[Self]) -> Self::Vector<S>;
    fn store_part<S: Simd>(simd: S, elements: &mut [Self], x: Self::Vector<S>);
    fn neg<S: Simd>(simd: S, x: Self::Vector<S>) -> Self::Vector<S>;
    fn abs<S: Simd>(simd: S, x: Self::Vector<S>) -> Self::Vector<S>;
    fn sqrt<S: Simd>(simd: S, x: Self::Vector<S>) -> Self::Vector<S>;
    fn add<S: Simd>(simd: S, x: Self::Vector<S>, y: Self::Vector<S>) -> Self::Vector<S>;
    fn sub<S: Simd>(simd: S, x: Self::Vector<S>, y: Self::Vector<S>) -> Self::Vector<S>;
    fn mul<S: Simd>(simd: S, x: Self::Vector<S>, y: Self::Vector<S>) -> Self::Vector<S>;
    fn div<S: Simd>(simd: S, x: Self::Vector<S>, y: Self::Vector<S>) -> Self::Vector<S>;
    fn smaller<S: Simd>(simd: S, x: Self::Vector<S>, y: Self::Vector<S>) -> Self::Vector<S>;
    fn larger<S: Simd>(simd: S, x: Self::Vector<S>, y: Self::Vector<S>) -> Self::Vector<S>;
}

macro_rules! vectors {
    ($($float:ident $vector:ident {
        $splat:ident $part:ident $store_part:ident $neg:ident $abs:ident $sqrt:ident $add:ident $sub:ident $mul:ident $div:ident
        $greater:ident $less:ident $equal:ident $select:ident
    })*) => {$(
        impl Vectors for $float {
            type Vector<S: Simd> = S::$vector;
            const ONE: $float = 1.0;
            const ZERO: $float = 0.0;

            #[inline(always)]
            fn splat<S: Simd>(simd: S, x: $float) -> S::$vector {
                simd.$splat(x)
            }

            #[inline(always)]
            fn part<S: Simd>(simd: S, elements: &[$float]) -> S::$vector {
                simd.$part(elements)
            }

            #[inline(always)]
            fn store_part<S: Simd>(simd: S, elements: &mut [$float], x: S::$vector) {
                simd.$store_part(elements, x);
            }

            vectors!(@one $vector: neg $neg, abs $abs, sqrt $sqrt);
            vectors!(@two $vector: add $add, sub $sub, mul $mul, div $div);

            #[inline(always)]
            fn smaller<S: Simd>(simd: S, x: S::$vector, y: S::$vector) -> S::$vector {
                let of_numbers = simd.$select(simd.$less(x, y), x, y);
                simd.$select(simd.$equal(x, x), of_numbers, x)
            }

            #[inline(always)]
            fn larger<S: Simd>(simd: S, x: S::$vector, y: S::$vector) -> S::$vector {
                let of_numbers = simd.$select(simd.$greater(x, y), x, y);
                simd.$select(simd.$equal(x, x), of_numbers, x)
            }
        }
    )*};
    (@one $vector:ident: $($name:ident $method:ident),*) => {$(
        #[inline(always)]
        fn $name<S: Simd>(simd: S, x: S::$vector) -> S::$vector {
            simd.$method(x)
        }
    )*};
    (@two $vector:ident: $($name:ident $method:ident),*) => {$(
        #[inline(always)]
        fn $name<S: Simd>(simd: S, x: S::$vector, y: S::$vector) -> S::$vector {
            simd.$method(x, y)
        }
    )*};
}

vectors! {
    f32 f32s {
        splat_f32s partial_load_f32s partial_store_f32s neg_f32s abs_f32s sqrt_f32s add_f32s sub_f32s mul_f32s div_f32s
        greater_than_f32s less_than_f32s equal_f32s select_f32s
    }
    f64 f64s {
        splat_f64s partial_load_f64s partial_store_f64s neg_f64s abs_f64s sqrt_f64s add_f64s sub_f64s mul_f64s div_f64s
        greater_than_f64s less_than_f64s equal_f64s select_f64s
    }
}

impl<T: Vectors> WithSimd for Chain<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // Some registers are left for what an operation needs beside its operands.
        match S::REGISTER_COUNT {
            // SAFETY: only `run` makes a chain and runs it at once; its caller guarantees the elements.
            32.. => unsafe { self.tiles::<S, 16>(simd) },
            // SAFETY: as above.
            _ => unsafe { self.tiles::<S, 12>(simd) },
        }
    }
}

impl<T: Vectors> Chain<'_, T> {
    /// # Safety
    ///
    /// * The elements are as [`run`] asks.
    #[inline(always)]
    unsafe fn tiles<S: Simd, const WIDTH: usize>(self, simd: S) {
        let lanes = size_of::<T::Vector<S>>() / size_of::<T>();
        let mut first = 0;
        while first + WIDTH * lanes <= self.length {
            // SAFETY: the tile lies within the elements; the caller guarantees the rest.
            unsafe { self.tile::<S, WIDTH, false>(simd, first, WIDTH * lanes) };
            first += WIDTH * lanes;
        }
        while first + lanes <= self.length {
            // SAFETY: as above.
            unsafe { self.tile::<S, 1, false>(simd, first, lanes) };
            first += lanes;
        }
        if first < self.length {
            // SAFETY: as above.
            unsafe { self.tile::<S, 1, true>(simd, first, self.length - first) };
        }
    }

    /// Does all links for the `count` elements from `first` on.
    ///
    /// # Safety
    ///
    /// * As for `tiles`, and the elements lie within those of the chain. They are `WIDTH` vectors or, if it is `PARTIAL`, less than one.
    #[inline(always)]
    unsafe fn tile<S: Simd, const WIDTH: usize, const PARTIAL: bool>(self, simd: S, first: usize, count: usize) {
        let mut value = [T::splat(simd, T::ZERO); WIDTH];
        for link in self.links {
            let from = link.elements.cast::<T>().wrapping_add(first);
            let vector = |place: usize| {
                if PARTIAL {
                    // SAFETY: the caller guarantees the elements, which nobody else writes.
                    T::part(simd, unsafe { std::slice::from_raw_parts(from, count) })
                } else {
                    // SAFETY: as above. The vector types of `pulp` are plain numbers.
                    unsafe { from.cast::<T::Vector<S>>().wrapping_add(place).read_unaligned() }
                }
            };
            // SAFETY: as above.
            let single = || T::splat(simd, unsafe { link.elements.cast::<T>().read() });
            macro_rules! one {
                ($result:expr) => {
                    lanes::array(|place| $result(simd, value[place]))
                };
            }
            macro_rules! two {
                (value, $operation:ident, elements) => {
                    lanes::array(|place| T::$operation(simd, value[place], vector(place)))
                };
                (elements, $operation:ident, value) => {
                    lanes::array(|place| T::$operation(simd, vector(place), value[place]))
                };
                (value, $operation:ident, single) => {{
                    let other = single();
                    lanes::array(|place| T::$operation(simd, value[place], other))
                }};
                (single, $operation:ident, value) => {{
                    let other = single();
                    lanes::array(|place| T::$operation(simd, other, value[place]))
                }};
                (value, $operation:ident, value) => {
                    lanes::array(|place| T::$operation(simd, value[place], value[place]))
                };
            }
            value = match link.work {
                LinkWork::Take => lanes::array(vector),
                LinkWork::TakeSingle => [single(); WIDTH],
                LinkWork::Store => {
                    if PARTIAL {
                        // SAFETY: the caller guarantees the elements, which nobody else accesses.
                        T::store_part(simd, unsafe { std::slice::from_raw_parts_mut(from, count) }, value[0]);
                    } else {
                        let to = from.cast::<T::Vector<S>>();
                        for (place, vector) in value.into_iter().enumerate() {
                            // SAFETY: as above.
                            unsafe { to.wrapping_add(place).write_unaligned(vector) };
                        }
                    }
                    value
                }
                LinkWork::Keep => value,
                LinkWork::Neg => one!(T::neg),
                LinkWork::Abs => one!(T::abs),
                LinkWork::Relu => {
                    let zero = T::splat(simd, T::ZERO);
                    lanes::array(|place| T::larger(simd, value[place], zero))
                }
                LinkWork::Sqrt => one!(T::sqrt),
                LinkWork::Reciprocal => {
                    let one = T::splat(simd, T::ONE);
                    lanes::array(|place| T::div(simd, one, value[place]))
                }
                LinkWork::Add => two!(value, add, elements),
                LinkWork::AddSingle => two!(value, add, single),
                LinkWork::AddItself => two!(value, add, value),
                LinkWork::Mul => two!(value, mul, elements),
                LinkWork::MulSingle => two!(value, mul, single),
                LinkWork::MulItself => two!(value, mul, value),
                LinkWork::Sub => two!(value, sub, elements),
                LinkWork::SubSingle => two!(value, sub, single),
                LinkWork::SubItself => two!(value, sub, value),
                LinkWork::SubFrom => two!(elements, sub, value),
                LinkWork::SubFromSingle => two!(single, sub, value),
                LinkWork::Div => two!(value, div, elements),
                LinkWork::DivSingle => two!(value, div, single),
                LinkWork::DivItself => two!(value, div, value),
                LinkWork::DivInto => two!(elements, div, value),
                LinkWork::DivIntoSingle => two!(single, div, value),
                LinkWork::Min => two!(value, smaller, elements),
                LinkWork::MinSingle => two!(value, smaller, single),
                LinkWork::MinWith => two!(elements, smaller, value),
                LinkWork::MinWithSingle => two!(single, smaller, value),
                LinkWork::Max => two!(value, larger, elements),
                LinkWork::MaxSingle => two!(value, larger, single),
                LinkWork::MaxWith => two!(elements, larger, value),
                LinkWork::MaxWithSingle => two!(single, larger, value),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKS: [LinkWork; 30] = [
        LinkWork::Add,
        LinkWork::Neg,
        LinkWork::Mul,
        LinkWork::Abs,
        LinkWork::SubSingle,
        LinkWork::Sqrt,
        LinkWork::SubFrom,
        LinkWork::Max,
        LinkWork::DivSingle,
        LinkWork::Min,
        LinkWork::DivInto,
        LinkWork::MaxWith,
        LinkWork::Reciprocal,
        LinkWork::AddItself,
        LinkWork::MinWithSingle,
        LinkWork::Keep,
        LinkWork::Relu,
        LinkWork::MulSingle,
        LinkWork::Sub,
        LinkWork::MaxSingle,
        LinkWork::MinWith,
        LinkWork::AddSingle,
        LinkWork::MulItself,
        LinkWork::DivIntoSingle,
        LinkWork::Div,
        LinkWork::MinSingle,
        LinkWork::SubFromSingle,
        LinkWork::MaxWithSingle,
        LinkWork::SubItself,
        LinkWork::DivItself,
    ];

    macro_rules! every_vector_gives_the_same_bits {
        ($name:ident $float:ident) => {
            /// Each processor has the vectors of older ones: all of them compute the same, in tiles of every width.
            #[test]
            fn $name() {
                for length in [0, 1, 3, 15, 16, 17, 31, 64, 95, 96, 97, 127, 128, 129, 300] {
                    let numbers: Vec<$float> = (0..length).map(|it| (it * 37 % 101) as $float / 7.0 - 5.0).collect();
                    let others: Vec<$float> = (0..length).map(|it| (it * 53 % 89) as $float / 3.0 - 11.0).collect();
                    let single: $float = 1.75;
                    let result = |run: &dyn Fn(Chain<'_, $float>)| -> Vec<Vec<u64>> {
                        let mut results = vec![vec![0.0 as $float; length]; WORKS.len()];
                        let elements = |from: &[$float]| from.as_ptr().cast_mut().cast();
                        let mut links = vec![Link { work: LinkWork::Take, elements: elements(&numbers) }];
                        for (work, to) in WORKS.into_iter().zip(&mut results) {
                            let is_single = format!("{work:?}").ends_with("Single");
                            let other =
                                if is_single { elements(std::slice::from_ref(&single)) } else { elements(&others) };
                            links.push(Link { work, elements: other });
                            links.push(Link { work: LinkWork::Store, elements: to.as_mut_ptr().cast() });
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
