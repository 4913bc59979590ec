//! Elements that all ranks know of each other, and tensors of any dtype from and to whole numbers.

use streamvm::{DType, DeviceId, Error, Tensor, Vm};

const CPU: DeviceId = DeviceId::cpu(0);

/// Element `index` of tensor `tensor` of a rank: a small number, so that sums and products of a few are exact in every dtype.
pub(crate) fn element(rank: usize, tensor: usize, index: usize) -> i64 {
    ((rank * 7 + tensor * 5 + index * 3) % 5) as i64 - 1
}

/// `numbers` as elements of a dtype: unsigned integers wrap, and `bool` is whether a number is above 0.
pub(crate) fn tensor(vm: &Vm, dtype: DType, numbers: &[i64], dims: &[usize]) -> Result<Tensor, Error> {
    let whole = match dtype {
        DType::Bool => vm.from_slice(&numbers.iter().map(|&number| number > 0).collect::<Vec<bool>>(), dims)?,
        _ => vm.from_slice(numbers, dims)?,
    };
    let there = whole.to(CPU)?;
    if dtype == there.dtype() { Ok(there) } else { there.cast(dtype) }
}

/// The elements as numbers, `bool` as 0 and 1. Blocks.
pub(crate) fn numbers(x: &Tensor) -> Result<Vec<i64>, Error> {
    if x.dtype() == DType::Bool {
        return Ok(x.to_vec::<bool>()?.into_iter().map(i64::from).collect());
    }
    // The stand-in for a GPU takes long for kernels.
    x.to(CPU)?.cast(DType::I64)?.to_vec::<i64>()
}

/// A number as an element of the dtype gives it back.
pub(crate) fn wrapped(dtype: DType, number: i64) -> i64 {
    match dtype {
        DType::I8 => i64::from(number as i8),
        DType::I16 => i64::from(number as i16),
        DType::I32 => i64::from(number as i32),
        DType::U8 => i64::from(number as u8),
        DType::U16 => i64::from(number as u16),
        DType::U32 => i64::from(number as u32),
        DType::Bool => i64::from(number > 0),
        // An unsigned number of 64 bits comes back as the signed one with its bits.
        DType::I64 | DType::U64 | DType::F16 | DType::BF16 | DType::F32 | DType::F64 => number,
    }
}
