//! A matrix product of cuBLAS, column-major: what it accesses, and its computation by the CPU's kernel, as NVIDIA's is no PTX.

use std::ffi::c_int;

use streamvm_cpu::{CpuConfig, CpuDevice};
use streamvm_ep::{Access, DType, Device, DeviceKind, KernelCall, Layout, Op, Operand, Params, Shape};

use super::Decoding;

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
    /// Its matrices as operands: the two factors and the product.
    ///
    /// # Errors
    ///
    /// The reason, as text, for a product that cuBLAS refuses.
    pub(crate) fn decode(&self) -> Result<Vec<Decoding>, String> {
        let Product { rows, columns, depth, a, b, c, .. } = *self;
        let operands = vec![
            self.operand("A", &a, [rows, depth], Access::Read)?,
            self.operand("B", &b, [depth, columns], Access::Read)?,
            self.operand("C", &c, [rows, columns], Access::Write)?,
        ];
        if operands[2].layout.overlaps_itself() {
            return Err(format!("the products lie on each other: a stride of {}", c.stride));
        }
        Ok(operands)
    }

    /// Computes the product of these operands.
    ///
    /// # Errors
    ///
    /// The error of the CPU's kernel, as text.
    pub(crate) fn run(dtype: DType, operands: &mut [Operand<'static>]) -> Result<(), String> {
        let text = |error: streamvm_ep::Error| error.to_string();
        let kernel = streamvm_kernels::builtin().get(Op::MatMul, DeviceKind::CPU, dtype);
        let kernel = kernel.map_err(|error| error.to_string())?;
        let mut stream = CpuDevice::new(0, CpuConfig::default()).create_stream().map_err(text)?;
        stream.launch(&mut KernelCall::new(kernel, operands, 2, &Params::default())).map_err(text)
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
            decoded.iter().map(one).collect()
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
