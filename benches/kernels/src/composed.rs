//! Calls that are made of several ops as cases: a sort, a selection and an attention, through the engine, one eager call each.

use std::time::Duration;

use streamvm::{DeviceId, Error, Tensor, Vm};

use crate::layer;
use crate::ours::{self, number, time};

const CPU: DeviceId = DeviceId::cpu(0);
const ELEMENTS: usize = 1_000_000;
const LARGEST: usize = 10;
/// Heads, tokens, and the numbers of a token in a head.
const HEADS: [usize; 3] = [12, 128, 64];

/// The function of `Tensor` that a case calls.
#[derive(Copy, Clone)]
pub(crate) enum Call {
    /// All elements, in sorted order.
    Sort,
    /// The largest elements.
    TopK,
    /// The attention of each head to itself.
    Attention,
}

impl Call {
    /// The call of the case with this name.
    pub(crate) fn of(name: &str) -> Option<Call> {
        match name {
            "sort_1e6" => Some(Call::Sort),
            "topk_10_of_1e6" => Some(Call::TopK),
            "attention_12x128x64" => Some(Call::Attention),
            _ => None,
        }
    }

    fn apply(self, x: &Tensor) -> Result<Tensor, Error> {
        match self {
            Call::Sort => x.sort(0, false),
            Call::TopK => Ok(x.topk(LARGEST, 0, true)?.0),
            Call::Attention => x.attention(x, x, None),
        }
    }

    fn input(self, vm: &Vm) -> Result<Tensor, Error> {
        match self {
            Call::Sort | Call::TopK => vm.from_slice(&scattered(), &[ELEMENTS])?.to(CPU),
            Call::Attention => {
                let numbers: Vec<f32> = (0..HEADS.iter().product()).map(|i| number(i, -4.0)).collect();
                vm.from_slice(&numbers, &HEADS)?.to(CPU)
            }
        }
    }

    /// The median time of a call in nanoseconds, from the call until its output is there.
    pub(crate) fn measure(self, threads: usize, budget: Duration) -> Result<f64, Error> {
        let vm = layer::engine(threads)?;
        let x = self.input(&vm)?;
        vm.wait_all()?;
        time(budget, || self.apply(&x)?.wait())
    }

    /// The compared element of the output.
    pub(crate) fn element(self, threads: usize) -> Result<f64, Error> {
        let vm = layer::engine(threads)?;
        ours::element(&self.apply(&self.input(&vm)?)?)
    }
}

/// Whole numbers below 2^24 without order (Fibonacci hashing; Knuth, The Art of Computer Programming, 6.4), as `scattered` in drivers/network.py and
/// drivers/candle.
fn scattered() -> Vec<f32> {
    (0..ELEMENTS as u32).map(|i| (i.wrapping_mul(2_654_435_769) >> 8) as f32).collect()
}
