//! A transformer layer as a case: a BERT layer of hidden size 384 with 12 heads over 128 tokens, through the engine, one eager call an op.
//!
//! The other libraries run the same layer with their own ops, as their users do.

use std::time::Duration;

use streamvm::{DType, DeviceId, Error, Tensor, Vm};

use crate::ours::{self, time};

const CPU: DeviceId = DeviceId::cpu(0);
const TOKENS: usize = 128;
const HIDDEN: usize = 384;
const HEADS: usize = 12;
const INNER: usize = 1_536;

/// A product with a bias.
struct Linear {
    weight: Tensor,
    bias: Tensor,
}

impl Linear {
    fn new(vm: &Vm, from: usize, to: usize) -> Result<Linear, Error> {
        Ok(Linear { weight: numbers(vm, &[from, to])?, bias: numbers(vm, &[to])? })
    }

    fn apply(&self, x: &Tensor) -> Result<Tensor, Error> {
        x.matmul(&self.weight)?.add(&self.bias)
    }
}

/// The gain and the offset of a layer norm.
struct Norm {
    gain: Tensor,
    offset: Tensor,
}

impl Norm {
    fn new(vm: &Vm) -> Result<Norm, Error> {
        Ok(Norm { gain: vm.ones(CPU, DType::F32, &[HIDDEN])?, offset: vm.zeros(CPU, DType::F32, &[HIDDEN])? })
    }

    fn apply(&self, x: &Tensor) -> Result<Tensor, Error> {
        x.layer_norm(&self.gain, &self.offset, 1e-12)
    }
}

/// The batch of a case `bert_layer_BATCH`.
pub(crate) fn batch_of(name: &str) -> Option<usize> {
    name.strip_prefix("bert_layer_")?.parse().ok()
}

/// The weights of a layer.
struct Layer {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    first: Norm,
    up: Linear,
    down: Linear,
    second: Norm,
}

impl Layer {
    fn new(vm: &Vm) -> Result<Layer, Error> {
        let square = || Linear::new(vm, HIDDEN, HIDDEN);
        Ok(Layer {
            query: square()?,
            key: square()?,
            value: square()?,
            output: square()?,
            first: Norm::new(vm)?,
            up: Linear::new(vm, HIDDEN, INNER)?,
            down: Linear::new(vm, INNER, HIDDEN)?,
            second: Norm::new(vm)?,
        })
    }

    fn apply(&self, x: &Tensor, batch: usize) -> Result<Tensor, Error> {
        let heads = |linear: &Linear, axes: [usize; 4]| -> Result<Tensor, Error> {
            let split = linear.apply(x)?.reshape(&[batch, TOKENS, HEADS, HIDDEN / HEADS])?;
            split.permute(&axes)
        };
        let query = heads(&self.query, [0, 2, 1, 3])?;
        let key = heads(&self.key, [0, 2, 3, 1])?;
        let value = heads(&self.value, [0, 2, 1, 3])?;
        let scale = ((HIDDEN / HEADS) as f64).sqrt().recip();
        let scores = (query.matmul(&key)? * scale)?.softmax(3)?;
        let attended = scores.matmul(&value)?.permute(&[0, 2, 1, 3])?.reshape(&[batch * TOKENS, HIDDEN])?;
        let middle = self.first.apply(&(self.output.apply(&attended)? + x)?)?;
        let wide = self.up.apply(&middle)?.gelu_tanh()?;
        self.second.apply(&(self.down.apply(&wide)? + &middle)?)
    }
}

/// Small numbers, as `small` in drivers/python.py and drivers/candle.
pub(crate) fn numbers(vm: &Vm, shape: &[usize]) -> Result<Tensor, Error> {
    let count = shape.iter().product();
    let numbers: Vec<f32> = (0..count).map(|i: usize| ((i * 7919 % 8192) as f32 / 4096.0 - 1.0) * 0.05).collect();
    vm.from_slice(&numbers, shape)?.to(CPU)
}

/// An engine with so many threads for streams, and as many for a kernel.
pub(crate) fn engine(threads: usize) -> Result<Vm, Error> {
    Vm::builder().cpu_threads(threads).kernel_threads(threads).build()
}

/// The compared element of the output of a layer.
pub(crate) fn element(threads: usize, batch: usize) -> Result<f64, Error> {
    let vm = engine(threads)?;
    let x = numbers(&vm, &[batch * TOKENS, HIDDEN])?;
    ours::element(&Layer::new(&vm)?.apply(&x, batch)?)
}

/// The median time of a layer in nanoseconds, from the first call until its output is there.
pub(crate) fn measure(threads: usize, batch: usize, budget: Duration) -> Result<f64, Error> {
    let vm = engine(threads)?;
    let (layer, x) = (Layer::new(&vm)?, numbers(&vm, &[batch * TOKENS, HIDDEN])?);
    vm.wait_all()?;
    time(budget, || layer.apply(&x, batch)?.wait())
}
