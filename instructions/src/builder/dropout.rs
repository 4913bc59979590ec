//! Dropout (Srivastava et al., JMLR 2014), made of ops: random numbers, a comparison, a choice of factors by it, and a product with them.

use streamvm_ep::{DType, Op, OpError, Scalar, f16};

use crate::builder::instructions_builder::InstructionsBuilder;
use crate::builder::random::Generator;
use crate::error::build_error::BuildError;
use crate::error::engine_error::Error;
use crate::tensor::handle::Tensor;

impl InstructionsBuilder {
    /// Dropout of the elements of `x`, which has a float dtype. Returns `x` times factors, and the factors: each is 0 with probability `p`, else
    /// `1 / (1 - p)`. The gradient of `x` is that of the output times the same factors.
    ///
    /// The factors follow from the generator alone, so they are the same on every device and in every mode of the engine. They take the random
    /// numbers of a tensor of `f32`, of which each is below `p` or not: so `p` counts in steps of 2^-24.
    ///
    /// # Errors
    /// `p` is not at least 0 and less than 1; `x` has no float dtype, or it lives in host memory; [`BuildError::Value`] if `1 / (1 - p)` is past the range
    /// of the dtype, which of all dtypes is possible for `f16` alone, above a `p` of about 0.99998. Then the generator does not advance, and the list
    /// is unchanged.
    #[track_caller]
    pub fn dropout(&mut self, x: &Tensor, generator: &Generator, p: f64) -> Result<(Tensor, Tensor), Error> {
        self.dropped(x, generator, p).map_err(|error| error.in_call("dropout"))
    }

    #[track_caller]
    fn dropped(&mut self, x: &Tensor, generator: &Generator, p: f64) -> Result<(Tensor, Tensor), Error> {
        let device = x.place().device().ok_or(BuildError::OnHost { op: Op::Mul })?;
        if !x.dtype().is_float() {
            return Err(OpError::DType { op: Op::Uniform, dtype: x.dtype(), available: Op::Uniform.dtypes() }.into());
        }
        if !(0.0..1.0).contains(&p) {
            return Err(BuildError::Probability { found: Scalar::F64(p) }.into());
        }
        let factor = 1.0 / (1.0 - p);
        // With an infinity as a factor, kept zeros would become NaN.
        if x.dtype() == DType::F16 && f16::from_f64(factor).is_infinite() {
            let value = Scalar::F64(factor);
            return Err(BuildError::Value {
                what: "the factor of the elements that stay".to_owned(),
                value,
                dtype: x.dtype(),
            }
            .into());
        }
        // What can be refused comes before the generator advances.
        let mut steps = self.list_of_its_own();
        let scale = steps.full(device, x.dtype(), &[], factor)?;
        let drawn = steps.rand(generator, device, DType::F32, x.shape().dims())?;
        let kept = steps.ge(&drawn, p)?;
        let factors = steps.where_(&kept, &scale, 0.0)?;
        let output = steps.mul(x, &factors)?;
        self.list.append(steps.finish());
        Ok((output, factors))
    }
}
