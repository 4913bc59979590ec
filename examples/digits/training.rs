//! What networks that learn the digits have in common: parameters with momentum, and the results of a step.

use streamvm::program::Recorder;
use streamvm::{DType, Tensor, Vm};

use super::CPU;

const MOMENTUM: f64 = 0.9;

/// A tensor that is trained, and its velocity: the sum of its past gradients, each older one counting less.
pub(crate) struct Parameter {
    pub(crate) names: [&'static str; 2],
    pub(crate) value: Tensor,
    pub(crate) velocity: Tensor,
}

impl Parameter {
    pub(crate) fn new(vm: &Vm, names: [&'static str; 2], value: Tensor) -> Result<Parameter, streamvm::Error> {
        let velocity = vm.zeros(CPU, DType::F32, value.shape().dims())?;
        Ok(Parameter { names, value, velocity })
    }

    /// What stands for it in a recording.
    pub(crate) fn recorded(&self, r: &Recorder) -> Result<Parameter, streamvm::Error> {
        let names @ [value, velocity] = self.names;
        Ok(Parameter {
            names,
            value: r.parameter(value, &self.value)?,
            velocity: r.parameter(velocity, &self.velocity)?,
        })
    }

    /// One step of gradient descent with momentum, which writes value and velocity.
    pub(crate) fn descend(&self, gradient: Tensor, learning_rate: f64) -> Result<(), streamvm::Error> {
        let next_velocity = ((&self.velocity * MOMENTUM)? + gradient)?;
        let next_value = (&self.value - (&next_velocity * learning_rate)?)?;
        self.velocity.copy_from(&next_velocity)?;
        self.value.copy_from(&next_value)
    }
}

/// The results of a step over its batch, each one element: the mean loss as f32, and how many images were recognised as i64.
pub(crate) struct Outcome {
    pub(crate) loss: Tensor,
    pub(crate) correct: Tensor,
}

/// The number of images whose largest logit is at their label: one i64.
pub(crate) fn count_correct(logits: &Tensor, labels: &Tensor) -> Result<Tensor, streamvm::Error> {
    logits.argmax(1)?.eq(labels)?.cast(DType::I64)?.sum(&[])
}
