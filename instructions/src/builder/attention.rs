//! Scaled dot-product attention (Vaswani et al., NeurIPS 2017), made of two products and a softmax for each block of queries.

use streamvm_ep::{Axes, DType, Op, Params, Shape, infer};

use crate::builder::instructions_builder::InstructionsBuilder;
use crate::error::build_error::BuildError;
use crate::error::engine_error::Error;
use crate::tensor::handle::Tensor;

/// The queries whose scores exist at a time. A product of so many rows keeps the vector units of a CPU as busy as one of all rows.
const QUERIES: usize = 128;

impl InstructionsBuilder {
    /// Returns `softmax(q k^T / sqrt(d) + mask) v`, where the softmax is over the keys. Queries `[.., m, d]`, keys `[.., n, d]` and values `[.., n, e]` of
    /// one float dtype give `[.., m, e]`; the leading axes broadcast as in [`matmul`](InstructionsBuilder::matmul).
    ///
    /// The mask broadcasts to the scores, `[.., m, n]`. Where a mask of bools is false, a query does not attend to a key; a mask of the dtype of the
    /// queries is added to the scores. A query that attends to no key gives NaN.
    ///
    /// Scores exist for 128 queries at a time, so memory grows with `m + n` and not with `m n`. They are rounded to the dtype of the queries.
    ///
    /// # Errors
    /// The shapes do not fit, or the dtypes differ or are no floats; the mask has another dtype, or does not broadcast to the scores; an operand lives in
    /// host memory. The list is unchanged then.
    #[track_caller]
    pub fn attention(&mut self, q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> Result<Tensor, Error> {
        let attended = if self.options.transfers {
            self.attended_with_transfers(q, k, v, mask)
        } else {
            self.attended(q, k, v, mask)
        };
        attended.map_err(|error| error.in_call("attention"))
    }

    /// Brings the operands together before the blocks, so that none of them is copied for each block.
    #[track_caller]
    fn attended_with_transfers(
        &mut self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        mask: Option<&Tensor>,
    ) -> Result<Tensor, Error> {
        let mut transfers = self.without_transfers();
        let operands: Vec<&Tensor> = [q, k, v].into_iter().chain(mask).collect();
        let is_added = mask.is_some_and(|mask| mask.dtype() != DType::Bool);
        let fitted = transfers.brought_together(&operands, |at| at < 3 || is_added)?;
        let output = transfers.attended(&fitted[0], &fitted[1], &fitted[2], fitted.get(3))?;
        self.list.append(transfers.finish());
        Ok(output)
    }

    #[track_caller]
    fn attended(&mut self, q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> Result<Tensor, Error> {
        let device = q.place().device().ok_or(BuildError::OnHost { op: Op::MatMul })?;
        let keys = transposed(k)?;
        let product =
            |a: &Shape, b: &Tensor| infer(Op::MatMul, &[(q.dtype(), a), (b.dtype(), &b.shape())], &Params::default());
        let (dtype, all_scores) = product(&q.shape(), &keys)?;
        let (_, output) = product(&all_scores, v)?;
        // A product has two axes at least.
        let (rows, columns) = (all_scores.rank() - 2, all_scores.rank() - 1);
        let over_keys = Params::over(Axes::new(&[columns])?);
        infer(Op::Softmax, &[(dtype, &all_scores)], &over_keys)?;
        let masked = match mask {
            Some(mask) => Some(masked(mask, dtype, &all_scores)?),
            None => None,
        };

        let queries = all_scores.dims()[rows];
        let mut block = all_scores.dims().to_vec();
        block[rows] = queries.min(QUERIES);
        let block = Shape::new(&block)?;
        let output = self.output(device, dtype, output);
        let [scores, weights] = [0, 1].map(|_| self.output(device, dtype, block));
        let mut steps = self.list_of_its_own();
        let scaled = steps.mul(q, 1.0 / (q.shape().dims()[q.shape().rank() - 1] as f64).sqrt())?;
        // Once where there are no queries, so that the output is written.
        for first in (0..queries.max(1)).step_by(QUERIES) {
            let these = first..(first + QUERIES).min(queries);
            let own = |of: &Tensor, range| of.slice(of.shape().rank() - 2, range);
            let (scores, weights) = (own(&scores, 0..these.len())?, own(&weights, 0..these.len())?);
            steps.op_into(Op::MatMul, &[&own(&scaled, these.clone())?, &keys], Params::default(), &scores)?;
            if let (Some(mask), Some(op)) = (mask, masked) {
                let is_alike = mask.shape().rank() < 2 || mask.shape().dims()[mask.shape().rank() - 2] == 1;
                let mask = if is_alike { mask.clone() } else { own(mask, these.clone())? };
                let (inputs, params) = match op {
                    Op::Where => ([&mask, &scores], Params::default().with_number(2, f64::NEG_INFINITY)),
                    _ => ([&scores, &mask], Params::default()),
                };
                steps.op_into(op, &inputs, params, &scores)?;
            }
            steps.op_into(Op::Softmax, &[&scores], over_keys, &weights)?;
            steps.op_into(Op::MatMul, &[&weights, v], Params::default(), &own(&output, these)?)?;
        }
        self.list.append(steps.finish());
        Ok(output)
    }
}

/// A view with the two innermost axes exchanged; a tensor that has no two is left as it is, and a product refuses it.
#[track_caller]
fn transposed(matrices: &Tensor) -> Result<Tensor, Error> {
    let mut order: Vec<usize> = (0..matrices.shape().rank()).collect();
    if let [.., row, column] = &mut order[..] {
        std::mem::swap(row, column);
    }
    matrices.permute(&order)
}

/// The op that applies a mask to the scores.
#[track_caller]
fn masked(mask: &Tensor, dtype: DType, scores: &Shape) -> Result<Op, Error> {
    let (op, found) = match mask.dtype() {
        DType::Bool => {
            let inputs = [(DType::Bool, &mask.shape()), (dtype, scores), (dtype, scores)];
            (Op::Where, infer(Op::Where, &inputs, &Params::default())?.1)
        }
        other => (Op::Add, infer(Op::Add, &[(dtype, scores), (other, &mask.shape())], &Params::default())?.1),
    };
    if found == *scores {
        return Ok(op);
    }
    Err(BuildError::Mask { found: Box::new(mask.shape()), scores: Box::new(*scores) }.into())
}
