//! The elements of a tensor as text.

use std::fmt;

use streamvm_ep::{DType, Element, FnContext, FnError, Scalar, bf16, f16};

use crate::error::engine_error::Error;
use crate::error::program_error::ProgramError;
use crate::tensor::handle::Tensor;
use crate::tensor::show::show;

/// The elements as nested brackets with aligned columns, long axes cut: `[[1.0 2.0]\n [3.0 4.0]]`. `{:.6}` has six digits after the point; without a precision a
/// float has four, or fewer if that shows it exactly.
///
/// Blocks until the elements are written, as [`Tensor::to_vec`] does. If that fails, the error is the text, in angle brackets. `{:?}` waits for nothing, and shows dtype,
/// shape, place and state.
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dtype, shape, decimals) = (self.dtype(), self.shape(), f.precision());
        let text = self.read_out(move |context| {
            Ok(match dtype {
                DType::F32 => text::<f32>(context, shape.dims(), decimals)?,
                DType::F64 => text::<f64>(context, shape.dims(), decimals)?,
                DType::F16 => text::<f16>(context, shape.dims(), decimals)?,
                DType::BF16 => text::<bf16>(context, shape.dims(), decimals)?,
                DType::I8 => text::<i8>(context, shape.dims(), decimals)?,
                DType::I16 => text::<i16>(context, shape.dims(), decimals)?,
                DType::I32 => text::<i32>(context, shape.dims(), decimals)?,
                DType::I64 => text::<i64>(context, shape.dims(), decimals)?,
                DType::U8 => text::<u8>(context, shape.dims(), decimals)?,
                DType::U16 => text::<u16>(context, shape.dims(), decimals)?,
                DType::U32 => text::<u32>(context, shape.dims(), decimals)?,
                DType::U64 => text::<u64>(context, shape.dims(), decimals)?,
                DType::Bool => text::<bool>(context, shape.dims(), decimals)?,
            })
        });
        match text {
            Ok(text) => f.write_str(&text),
            Err(Error::Program { error, .. }) if matches!(*error, ProgramError::NoElements { .. }) => {
                f.write_str("<a tensor of a recording, which has no elements; fetch it by a name, and run the program>")
            }
            // Not with the place of the call, which is in the formatting code of the standard library.
            Err(error) => write!(f, "<{}>", error.without_call()),
        }
    }
}

fn text<T: Element + Into<Scalar>>(
    context: &mut FnContext<'_>,
    shape: &[usize],
    decimals: Option<usize>,
) -> Result<String, FnError> {
    let elements = context.reads.get::<T>(0)?;
    Ok(show(T::DTYPE, shape, decimals, |index| elements[index].into()))
}
