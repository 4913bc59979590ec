//! Elementwise kernels: unary, predicates, binary, comparisons, where, clamp. Inputs broadcast to the output; the output
//! may be exactly the view of an input.
//!
//! A kernel names the dtypes of its operands and a function over [`tiles`](super::tiles), and little else: there is one for each op and dtype.

use streamvm_ep::backend::check::{InPlace, check_broadcast, checked_operands};
use streamvm_ep::{DType, ElementWork, Error, KernelCall, KernelError, Op, Operand};

use crate::arith::{self, Binary, Refused, Unary};
use crate::folds;
use crate::loop_nest::LoopNest;
use crate::number::{DTypeTag, Number};
use crate::parallel;
use crate::random::offset;
use crate::rows::input;
use crate::tile_functions::{of_one, of_three, of_two};
use crate::tiles::{Function, Map, TileFn};

/// The kernel of a unary op.
pub(super) fn unary<D: DTypeTag, U: Unary<D::Computed>>(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError> {
    let dtype = D::dtype(call);
    let map = const { &Map::of::<D>(of_one::<D::Computed, U>, U::WORK) };
    // SAFETY: the function computes elements of `D`.
    unsafe { run(call, [dtype], dtype, map) }
}

/// The kernel of a light unary op that takes 16-bit floats as they are.
pub(super) fn unary_of_bits<D: DTypeTag, U: Unary<D::Store>>(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError> {
    let map = const { &Map::of_bits(of_one::<D::Store, U>) };
    // SAFETY: as in `unary`.
    unsafe { run(call, [D::DTYPE], D::DTYPE, map) }
}

/// The kernel of a predicate.
pub(super) fn predicate<D: DTypeTag, P: Unary<D::Store, Out = u8>>(
    call: &mut KernelCall<'_, '_>,
) -> Result<(), KernelError> {
    let map = const { &Map::of_bits(of_one::<D::Store, P>) };
    // SAFETY: as in `unary`; the results are bytes.
    unsafe { run(call, [D::DTYPE], DType::Bool, map) }
}

/// The kernel of a binary op.
pub(super) fn binary<D: DTypeTag, B: Binary<D::Computed>>(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError> {
    let dtype = D::dtype(call);
    let map = const { &Map::of::<D>(of_two::<D::Computed, B>, B::WORK) };
    match B::REFUSES {
        // SAFETY: as in `unary`.
        None => unsafe { run(call, [dtype; 2], dtype, map) },
        // SAFETY: as in `unary`.
        Some(refused) => unsafe { run_checked(call, dtype, refused, map) },
    }
}

/// The kernel of a light binary op that takes 16-bit floats as they are.
pub(super) fn binary_of_bits<D: DTypeTag, B: Binary<D::Store>>(
    call: &mut KernelCall<'_, '_>,
) -> Result<(), KernelError> {
    let map = const { &Map::of_bits(of_two::<D::Store, B>) };
    // SAFETY: as in `unary`.
    unsafe { run(call, [D::DTYPE; 2], D::DTYPE, map) }
}

/// The kernel of a comparison.
pub(super) fn compare<D: DTypeTag, C: Binary<D::Store, Out = u8>>(
    call: &mut KernelCall<'_, '_>,
) -> Result<(), KernelError> {
    let dtype = D::dtype(call);
    let map = const { &Map::of_bits(of_two::<D::Store, C>) };
    // SAFETY: as in `predicate`.
    unsafe { run(call, [dtype; 2], DType::Bool, map) }
}

/// The kernel of [`Op::Where`], which moves elements as they are: dtypes of one size have one function.
pub(super) fn select<D: DTypeTag>(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError> {
    let dtype = D::dtype(call);
    let map = const {
        &Map::of_bits(match size_of::<D::Store>() {
            1 => of_three::<u8, u8, arith::Select>,
            2 => of_three::<u8, u16, arith::Select>,
            4 => of_three::<u8, u32, arith::Select>,
            _ => of_three::<u8, u64, arith::Select>,
        })
    };
    // SAFETY: elements of `D` have this size; the condition is a byte.
    unsafe { run(call, [DType::Bool, dtype, dtype], dtype, map) }
}

/// The kernel of [`Op::Clamp`].
pub(super) fn clamp<D: DTypeTag>(call: &mut KernelCall<'_, '_>) -> Result<(), KernelError> {
    let map = const { &Map::of_bits(of_three::<D::Store, D::Store, arith::Clamp>) };
    // SAFETY: as in `unary`.
    unsafe { run(call, [D::DTYPE; 3], D::DTYPE, map) }
}

impl Map {
    /// A function over elements of `D`.
    const fn of<D: DTypeTag>(function: TileFn, work: ElementWork) -> Map {
        Map { function, work: parallel::of_work(work), widens: matches!(D::DTYPE, DType::F16 | DType::BF16) }
    }

    /// A light function that takes 16-bit floats as they are.
    pub(super) const fn of_bits(function: TileFn) -> Map {
        Map { function, work: parallel::LIGHT, widens: false }
    }
}

/// Checks a call and computes it. It is compiled once for each number of inputs, and kind of function.
///
/// # Safety
///
/// * The function of `map` is for operands of these dtypes.
#[inline(never)]
pub(super) unsafe fn run<const N: usize, F: Function>(
    call: &mut KernelCall<'_, '_>,
    inputs: [DType; N],
    output: DType,
    map: &Map<F>,
) -> Result<(), KernelError> {
    let (inputs, out) = checked(call, inputs, output)?;
    // SAFETY: the caller guarantees the types, and `checked` the rest.
    unsafe { map.run(&inputs, out) };
    Ok(())
}

/// [`run`], with a look at the right-hand side before.
///
/// # Safety
///
/// * The function of `map` is for operands of `dtype`.
unsafe fn run_checked(
    call: &mut KernelCall<'_, '_>,
    dtype: DType,
    refused: Refused,
    map: &Map,
) -> Result<(), KernelError> {
    let ([a, b], out) = checked(call, [dtype; 2], dtype)?;
    check_right(call.kernel.op, b, out, refused)?;
    // SAFETY: as in `run`.
    unsafe { map.run(&[a, b], out) };
    Ok(())
}

/// The operands of a call, whose dtypes, alignment, write access, overlap and shapes are checked.
#[inline(always)]
fn checked<'a, const N: usize>(
    call: &'a KernelCall<'_, '_>,
    inputs: [DType; N],
    output: DType,
) -> Result<([&'a Operand<'a>; N], &'a Operand<'a>), KernelError> {
    let (inputs, out) = checked_operands(call, inputs, output, InPlace::Allowed)?;
    check_broadcast(call.kernel.op, &inputs, out)?;
    Ok((inputs, out))
}

/// Returns an error if an element of the right-hand side `b` is refused. This runs before anything is written, so that an in-place call
/// that fails leaves its input unchanged.
fn check_right(op: Op, b: &Operand, out: &Operand, refused: Refused) -> Result<(), KernelError> {
    // For every arm: the operand holds integers of this size, and of this sign where that matters.
    match (refused, b.dtype()) {
        // SAFETY: see above.
        (Refused::Zero, dtype) if dtype.size() == 1 => unsafe { check_each(b, out, zero::<u8>(op)) },
        // SAFETY: see above.
        (Refused::Zero, dtype) if dtype.size() == 2 => unsafe { check_each(b, out, zero::<u16>(op)) },
        // SAFETY: see above.
        (Refused::Zero, dtype) if dtype.size() == 4 => unsafe { check_each(b, out, zero::<u32>(op)) },
        // SAFETY: see above.
        (Refused::Zero, _) => unsafe { check_each(b, out, zero::<u64>(op)) },
        // SAFETY: see above.
        (Refused::Negative, DType::I8) => unsafe { check_each(b, out, negative::<i8>(op)) },
        // SAFETY: see above.
        (Refused::Negative, DType::I16) => unsafe { check_each(b, out, negative::<i16>(op)) },
        // SAFETY: see above.
        (Refused::Negative, DType::I32) => unsafe { check_each(b, out, negative::<i32>(op)) },
        // SAFETY: see above.
        (Refused::Negative, DType::I64) => unsafe { check_each(b, out, negative::<i64>(op)) },
        (Refused::Negative, _) => Ok(()),
    }
}

fn zero<T: Number>(op: Op) -> impl Fn(T, usize) -> Option<KernelError> + Copy {
    move |y, index| (y.compared() == T::ZERO.compared()).then_some(KernelError::DivisionByZero { op, index })
}

fn negative<T: Number + Into<i64>>(op: Op) -> impl Fn(T, usize) -> Option<KernelError> + Copy {
    move |y, index| {
        let exponent = y.into();
        (exponent < 0).then_some(KernelError::NegativeExponent { op, index, exponent })
    }
}

/// Returns the error of the first element of the output, in row-major order, whose right-hand side is refused: for which there is an error, which may also be asked for
/// with another index.
///
/// # Safety
///
/// * `b` holds elements stored as `T`, aligned, which nothing writes meanwhile. It broadcasts to `out`.
unsafe fn check_each<T: Number<Computed = T>>(
    b: &Operand,
    out: &Operand,
    error: impl Fn(T, usize) -> Option<KernelError> + Copy,
) -> Result<(), KernelError> {
    if out.layout().elements() == 0 {
        return Ok(());
    }
    let nest = LoopNest::new([b.layout()]);
    let [stride] = nest.row_strides();
    let mut refused = false;
    nest.rows(|[from]| {
        let step = |refused, [y]: [T; 1]| refused | error(y, 0).is_some();
        let (row, join) = (input::<T>(b, from, stride), |a, b| a | b);
        // SAFETY: the loop nest stays within `b`; the caller guarantees the rest.
        refused |= unsafe { folds::fold(nest.row_length(), [row], (false, false), step, join) };
    });
    if !refused {
        return Ok(());
    }
    let wide = b.layout().broadcast_to(out.layout().shape()).map_err(Error::from)?;
    for index in 0..out.layout().elements() {
        // SAFETY: this is the offset of an index of the view; the caller guarantees the rest.
        let y = unsafe { input(b, offset(&wide, index), 1).get(0) };
        if let Some(error) = error(y, index) {
            return Err(error);
        }
    }
    Ok(())
}
