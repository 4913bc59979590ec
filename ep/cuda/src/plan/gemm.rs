//! A matrix product in the form of BLAS: column-major, with leading dimensions and one stride between products.
//!
//! A row-major matrix is its transpose in column-major order. So a product of row-major matrices is the column-major product of the
//! second by the first.

use streamvm_ep::DType;

use crate::plan::abi::{Arguments, View};

/// One factor, as BLAS reads it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Factor {
    /// Address of the first element.
    pub(crate) base: u64,
    /// Whether it is read transposed.
    pub(crate) transposed: bool,
    /// Elements from one column to the next.
    pub(crate) leading: i32,
    /// Elements from one product to the next; 0 for one that all share.
    pub(crate) stride: i64,
}

/// `C = A·B`, `count` times over, all column-major: `A` is `rows`×`depth`, `B` is `depth`×`columns`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gemm {
    pub(crate) rows: i32,
    pub(crate) columns: i32,
    pub(crate) depth: i32,
    pub(crate) a: Factor,
    pub(crate) b: Factor,
    /// Never transposed.
    pub(crate) c: Factor,
    pub(crate) count: i32,
}

/// The most products per call: the limit on the blocks of a grid along its last axis.
const MAX_PRODUCTS: i64 = 65_535;

impl Gemm {
    /// The same product as a launch of our own kernel, if BLAS supports it: of floats, with stride 1 along one axis of each matrix, and
    /// one stride between products.
    pub(crate) fn of(dtype: DType, arguments: &Arguments) -> Option<Gemm> {
        let [m, n, k, ..] = arguments.inner;
        if !dtype.is_float() || m.min(n).min(k) == 0 || arguments.rank > 1 || arguments.shape[0] > MAX_PRODUCTS {
            return None;
        }
        let batch = arguments.rank as usize;
        let matrix = |view: usize, rows, columns| Matrix::of(&arguments.views[view], batch, rows, columns);
        let (a, b, c) = (matrix(0, m, k), matrix(1, k, n), matrix(2, m, n));
        let int = |size: i64| i32::try_from(size).ok();
        let (rows, columns) = if c.is_row_major() { (n, m) } else { (m, n) };
        let (first, second, c) = if c.is_row_major() { (b, a, c) } else { (a.flipped(), b.flipped(), c.flipped()) };
        Some(Gemm {
            rows: int(rows)?,
            columns: int(columns)?,
            depth: int(k)?,
            a: first.factor()?,
            b: second.factor()?,
            c: c.factor().filter(|c| !c.transposed)?,
            count: int(arguments.shape[0])?,
        })
    }
}

/// A matrix, described by its strides.
#[derive(Copy, Clone)]
struct Matrix {
    base: u64,
    rows: i64,
    columns: i64,
    row: i64,
    column: i64,
    stride: i64,
}

impl Matrix {
    fn of(view: &View, batch: usize, rows: i64, columns: i64) -> Matrix {
        let (mut row, mut column) = (view.strides[batch], view.strides[batch + 1]);
        // An axis of one element is never advanced along, so its stride can be chosen.
        if columns == 1 && row != 1 {
            column = 1;
        }
        if rows == 1 {
            row = if column == 1 { columns } else { 1 };
        }
        let stride = if batch == 1 { view.strides[0] } else { 0 };
        Matrix { base: view.base, rows, columns, row, column, stride }
    }

    fn is_row_major(&self) -> bool {
        self.column == 1 && self.row >= self.columns
    }

    fn flipped(self) -> Matrix {
        Matrix { rows: self.columns, columns: self.rows, row: self.column, column: self.row, ..self }
    }

    /// The factor for BLAS: this row-major matrix, read as its column-major transpose.
    fn factor(self) -> Option<Factor> {
        let (transposed, leading) = match self {
            _ if self.is_row_major() => (false, self.row),
            _ if self.flipped().is_row_major() => (true, self.column),
            _ => return None,
        };
        let leading = i32::try_from(leading.max(1)).ok()?;
        Some(Factor { base: self.base, transposed, leading, stride: self.stride })
    }
}

#[cfg(test)]
#[path = "gemm_tests.rs"]
mod tests;
