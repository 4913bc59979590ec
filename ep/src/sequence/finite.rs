//! Looking for infinities and NaN that a step has made: they are in what it wrote, and not in what it read.

use crate::call::fn_context::FnContext;
use crate::call::operand::{Access, Operand};
use crate::errors::call_error::FnError;
use crate::errors::error::Error;
use crate::names::site::Site;
use crate::tensor::dtype::DType;
use crate::tensor::layout::Layout;
use crate::tensor::shape::{MAX_RANK, Shape};

/// An element that is infinite or NaN.
#[derive(Clone, PartialEq, Debug)]
pub struct NotFinite {
    /// The operand, among those that the function writes.
    pub output: usize,
    /// The index of the element, one number for each axis.
    pub index: Vec<usize>,
    /// NaN, `inf` or `-inf`.
    pub value: f64,
}

/// Calls `code` with `context`, and then looks for the first element of what it has written that is infinite or NaN. If what it reads has such an element,
/// the function is not where it comes from, and nothing is found.
///
/// # Errors
/// Those of `code`. [`Error::AlreadyTaken`], and the code is not called, if a written operand was taken before.
pub fn call_checking_finite(
    context: &mut FnContext<'_>,
    code: &dyn for<'a, 'b> Fn(&'a mut FnContext<'b>) -> Result<(), FnError>,
) -> Result<Option<NotFinite>, FnError> {
    if context.has_taken() {
        return Err(Error::AlreadyTaken { index: 0, site: Site::caller() }.into());
    }
    // What the function overwrites is looked at before the call, and what it only reads, where it matters.
    for operand in context.writes.iter().filter(|operand| operand.access() == Access::ReadWrite) {
        if first_not_finite(operand)?.is_some() {
            return code(context).map(|()| None);
        }
    }
    code(context)?;
    context.check_taken()?;
    // No slice that the code has taken is left: the code takes contexts of any lifetime, so nothing that outlives the call can keep one.
    for (output, operand) in context.writes.iter().enumerate() {
        if let Some((index, value)) = first_not_finite(operand)? {
            for read in context.reads.iter() {
                if first_not_finite(read)?.is_some() {
                    return Ok(None);
                }
            }
            return Ok(Some(NotFinite { output, index, value }));
        }
    }
    Ok(None)
}

/// The index of the first element of `output`, in row-major order, that is infinite or NaN, and its value. `None` for dtypes that are no floats.
///
/// # Errors
/// Those of [`Operand::slice`].
pub fn first_not_finite(output: &Operand) -> Result<Option<(Vec<usize>, f64)>, Error> {
    if !output.dtype().is_float() {
        return Ok(None);
    }
    let shape = output.layout().shape();
    if output.is_contiguous() {
        return Ok(first_in(output)?.map(|(place, value)| (index_of(place, shape), value)));
    }
    // A view with gaps: element by element.
    let (mut one, mut index) = (Operand::blank(), [0; MAX_RANK]);
    let index = &mut index[..shape.rank()];
    for _ in 0..shape.elements() {
        let offset: usize = index.iter().zip(output.layout().strides()).map(|(at, stride)| at * stride).sum();
        let base = output.ptr().wrapping_add(offset * output.dtype().size());
        // SAFETY: one element of `output`, which is borrowed for longer than `one` is used; it is only read.
        unsafe { one.set(base, output.dtype(), &Layout::contiguous(Shape::SCALAR), Access::Read) };
        if let Some((_, value)) = first_in(&one)? {
            return Ok(Some((index.to_vec(), value)));
        }
        // The next index: the last axis first, and an axis that overflows begins anew.
        for (at, &size) in index.iter_mut().zip(shape.dims()).rev() {
            *at = (*at + 1) % size;
            if *at != 0 {
                break;
            }
        }
    }
    Ok(None)
}

fn first_in(operand: &Operand) -> Result<Option<(usize, f64)>, Error> {
    fn first<T: Copy>(elements: &[T], wide: impl Fn(T) -> f64) -> Option<(usize, f64)> {
        let mut values = elements.iter().map(|&element| wide(element)).enumerate();
        values.find(|(_, value)| !value.is_finite())
    }
    Ok(match operand.dtype() {
        DType::F32 => first(operand.slice::<f32>()?, f64::from),
        DType::F64 => first(operand.slice::<f64>()?, |it| it),
        DType::F16 => first(operand.slice::<half::f16>()?, f64::from),
        DType::BF16 => first(operand.slice::<half::bf16>()?, f64::from),
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => None,
        DType::U8 | DType::U16 | DType::U32 | DType::U64 | DType::Bool => None,
    })
}

/// The index of the element that is number `place` in row-major order.
fn index_of(place: usize, shape: &Shape) -> Vec<usize> {
    let mut left = place;
    let mut index: Vec<usize> = shape
        .dims()
        .iter()
        .rev()
        .map(|&size| {
            let at = left % size;
            left /= size;
            at
        })
        .collect();
    index.reverse();
    index
}
