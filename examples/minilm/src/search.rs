//! Search: the rows of an index that are nearest to a query.
//!
//! Embeddings have length 1, so the product of two is the cosine of the angle between them: 1 for the same direction. One matrix product gives
//! the scores of all rows; the host picks the best.

use streamvm::{DeviceId, Tensor, Vm};

/// A row of an index, and its score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hit {
    /// The row.
    pub row: usize,
    /// The product of its embedding and that of the query: at most 1, but for rounding.
    pub score: f32,
}

/// An index on a device.
pub struct Index {
    /// `[size, rows]`, a view of rows one after the other.
    columns: Tensor,
}

impl Index {
    /// Copies an index, rows of `size` elements, to `device`. Returns when the copy is submitted.
    ///
    /// # Errors
    ///
    /// Those of [`Vm::from_slice`] and [`Tensor::to`].
    pub fn new(vm: &Vm, device: DeviceId, rows: &[f32], size: usize) -> Result<Index, streamvm::Error> {
        let rows = vm.from_slice(rows, &[rows.len() / size.max(1), size])?.to(device)?;
        Ok(Index { columns: rows.transpose(0, 1)? })
    }

    /// The `top` rows of the highest scores, the best first; of equal scores, the first row first. `query` is an embedding, `f32 [1, size]`, on
    /// the device of the index. Blocks until the scores are computed. Several threads may call this at a time.
    ///
    /// # Errors
    ///
    /// [`streamvm::Error`] for a query of another shape, dtype or device, and the failure of the query.
    pub fn best(&self, query: &Tensor, top: usize) -> Result<Vec<Hit>, streamvm::Error> {
        let scores = query.matmul(&self.columns)?.to_vec::<f32>()?;
        let mut hits: Vec<Hit> = scores.into_iter().enumerate().map(|(row, score)| Hit { row, score }).collect();
        let order = |one: &Hit, other: &Hit| other.score.total_cmp(&one.score).then(one.row.cmp(&other.row));
        if top < hits.len() {
            hits.select_nth_unstable_by(top, order);
            hits.truncate(top);
        }
        hits.sort_unstable_by(order);
        Ok(hits)
    }
}
