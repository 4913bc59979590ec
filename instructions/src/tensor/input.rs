//! An input of an op: a tensor, or a number in its place.

use smallvec::SmallVec;
use streamvm_ep::{Params, Scalar, bf16, f16};

use crate::tensor::handle::Tensor;

/// An input of an elementwise op. A number counts as a tensor of rank 0, of the dtype of the tensor beside it, filled with the number, but it is a part of the
/// instruction and takes no memory. One that the dtype has no value for is refused; one that it cannot represent is rounded once ([`Scalar::fits`]).
#[derive(Copy, Clone, Debug)]
pub enum Input<'t> {
    /// A tensor.
    Tensor(&'t Tensor),
    /// A number.
    Number(Scalar),
}

/// What can be an input of an elementwise op: a borrowed tensor, and a number. So `x.clamp(0.0, &high)` has a number and a tensor.
pub trait AsInput {
    /// This value as an input.
    fn as_input(&self) -> Input<'_>;
}

impl AsInput for &Tensor {
    #[inline]
    fn as_input(&self) -> Input<'_> {
        Input::Tensor(self)
    }
}

impl AsInput for Input<'_> {
    #[inline]
    fn as_input(&self) -> Input<'_> {
        *self
    }
}

macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl AsInput for $number {
            #[inline]
            fn as_input(&self) -> Input<'_> {
                Input::Number((*self).into())
            }
        }
    )*};
}

numbers!(Scalar f64 f32 f16 bf16 i8 i16 i32 i64 u8 u16 u32 u64 bool);

/// The tensors among the inputs, and parameters with the numbers.
#[inline]
pub(crate) fn divided<const N: usize>(inputs: [Input<'_>; N], mut params: Params) -> (SmallVec<[&Tensor; 3]>, Params) {
    let mut tensors = SmallVec::new();
    for (place, input) in inputs.into_iter().enumerate() {
        match input {
            Input::Tensor(tensor) => tensors.push(tensor),
            Input::Number(number) => params = params.with_number(place, number),
        }
    }
    (tensors, params)
}
