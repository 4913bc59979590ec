//! The objects of the stand-in for cuBLAS: handles, and a matrix product, column-major, as a job of a stream.

use std::ffi::c_int;
use std::sync::{Arc, Mutex};

use streamvm_cuda::KernelName;
use streamvm_ep::{Access, DType, Layout, Op, Params, Shape};

use crate::context::Context;
use crate::kernel::{Decoded, Decoding};
use crate::stream::Stream;

/// `CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION`.
pub(crate) const FULL_PRECISION: c_int = 16;

/// The object of a cuBLAS handle.
#[derive(Debug)]
pub(crate) struct Cublas {
    pub(crate) context: Arc<Context>,
    /// Address of its device memory.
    pub(crate) workspace: u64,
    pub(crate) set: Mutex<Set>,
}

/// The settings of a handle.
#[derive(Clone, Debug, Default)]
pub(crate) struct Set {
    pub(crate) stream: Option<Arc<Stream>>,
    pub(crate) math: c_int,
    /// The address of device memory of the caller that it uses.
    pub(crate) own_workspace: Option<u64>,
}

/// One matrix of a product, as passed to cuBLAS.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Matrix {
    pub(crate) base: u64,
    pub(crate) transposed: bool,
    pub(crate) leading: c_int,
    pub(crate) stride: i64,
}

/// `C = A·B`, `count` times: `A` is `rows`×`depth`, `B` is `depth`×`columns`.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Product {
    pub(crate) dtype: DType,
    pub(crate) rows: c_int,
    pub(crate) columns: c_int,
    pub(crate) depth: c_int,
    pub(crate) a: Matrix,
    pub(crate) b: Matrix,
    pub(crate) c: Matrix,
    pub(crate) count: c_int,
}

impl Product {
    /// The same product as operands of a kernel.
    ///
    /// # Errors
    ///
    /// The reason, as text, for a product that cuBLAS refuses.
    pub(crate) fn decode(&self) -> Result<Decoded, String> {
        let Product { dtype, rows, columns, depth, a, b, c, .. } = *self;
        let operands = vec![
            self.operand("A", &a, [rows, depth], Access::Read)?,
            self.operand("B", &b, [depth, columns], Access::Read)?,
            self.operand("C", &c, [rows, columns], Access::Write)?,
        ];
        if operands[2].layout.overlaps_itself() {
            return Err(format!("the products lie on each other: a stride of {}", c.stride));
        }
        let function = KernelName::Op(Op::MatMul, dtype);
        Ok(Decoded {
            function,
            operands,
            params: Params::default(),
            value: 0,
            before: Vec::new(),
            behind: 1,
            status: None,
            has_states: false,
        })
    }

    fn operand(
        &self,
        name: &str,
        matrix: &Matrix,
        [rows, columns]: [c_int; 2],
        access: Access,
    ) -> Result<Decoding, String> {
        let wrong = |error: &dyn std::fmt::Display| format!("{name}: {error}");
        let stored = if matrix.transposed { columns } else { rows };
        if matrix.leading < stored.max(1) {
            return Err(format!("{name}: a leading dimension of {} for columns of {stored}", matrix.leading));
        }
        let size = |size: i64| usize::try_from(size).map_err(|_| format!("{name}: a size or stride of {size}"));
        let leading = size(matrix.leading.into())?;
        let (row, column) = if matrix.transposed { (leading, 1) } else { (1, leading) };
        let dims = [size(self.count.into())?, size(rows.into())?, size(columns.into())?];
        let shape = Shape::new(&dims).map_err(|error| wrong(&error))?;
        let layout =
            Layout::with_strides(shape, &[size(matrix.stride)?, row, column], 0).map_err(|error| wrong(&error))?;
        Ok(Decoding { base: matrix.base as usize, dtype: self.dtype, layout, access })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Matrix = Matrix { base: 256, transposed: false, leading: 4, stride: 0 };

    fn product() -> Product {
        Product { dtype: DType::F32, rows: 2, columns: 3, depth: 4, a: PLAIN, b: PLAIN, c: PLAIN, count: 1 }
    }

    #[test]
    fn matrices_are_column_major() {
        let of = |product: Product| -> Vec<String> {
            let decoded = product.decode().unwrap();
            let one = |one: &Decoding| format!("{} {:?}", one.layout.shape(), one.layout.strides());
            decoded.operands.iter().map(one).collect()
        };
        assert_eq!(of(product()), ["[1,2,4] [0, 1, 4]", "[1,4,3] [0, 1, 4]", "[1,2,3] [0, 1, 4]"]);
        let batch = Product {
            a: Matrix { transposed: true, stride: 8, ..PLAIN },
            c: Matrix { stride: 12, ..PLAIN },
            count: 2,
            ..product()
        };
        assert_eq!(of(batch), ["[2,2,4] [8, 4, 1]", "[2,4,3] [0, 1, 4]", "[2,2,3] [12, 1, 4]"]);
    }

    #[test]
    fn what_cublas_refuses_is_refused() {
        for (wrong, part) in [
            (Product { a: Matrix { leading: 1, ..PLAIN }, ..product() }, "A: a leading dimension of 1"),
            (Product { a: Matrix { transposed: true, leading: 3, ..PLAIN }, ..product() }, "for columns of 4"),
            (Product { b: Matrix { leading: 3, ..PLAIN }, ..product() }, "B: a leading dimension of 3"),
            (Product { c: Matrix { leading: 0, ..PLAIN }, ..product() }, "C: a leading dimension of 0"),
            (Product { rows: -1, ..product() }, "a size or stride of -1"),
            (Product { count: 2, ..product() }, "the products lie on each other"),
        ] {
            let error = wrong.decode().unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
