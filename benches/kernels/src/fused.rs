//! Eight light elementwise steps over a million `f32` as cases: as a compiled program, with and without fusion.

use std::time::Duration;

use streamvm::program::CompileOptions;
use streamvm::{DType, DeviceId, Error, Executable, Tensor, Vm};

use crate::layer;
use crate::ours::{self, number, time};

const CPU: DeviceId = DeviceId::cpu(0);
const ELEMENTS: usize = 1_000_000;

/// The names of the cases: the fused and the unfused one of each kind of steps.
pub(crate) const PAIRS: [[&str; 2]; 2] =
    [["fused_products_1e6", "unfused_products_1e6"], ["fused_others_1e6", "unfused_others_1e6"]];

/// The steps of a case.
#[derive(Copy, Clone)]
pub(crate) struct Steps {
    /// Other steps than products and sums.
    others: bool,
    fuse: bool,
}

impl Steps {
    /// The steps of the case with this name.
    pub(crate) fn of(name: &str) -> Option<Steps> {
        let kind = PAIRS.iter().position(|pair| pair.contains(&name))?;
        Some(Steps { others: kind == 1, fuse: PAIRS[kind][0] == name })
    }

    fn apply(self, x: &Tensor) -> Result<Tensor, Error> {
        if self.others {
            return (x.maximum(x)? - 1.5)?.abs()?.sqrt()?.minimum(x)?.neg()?.relu()? / 3.0;
        }
        let mut y = x.clone();
        for _ in 0..4 {
            y = (&(&y * x)? + x)?;
        }
        Ok(y)
    }

    fn compiled(self, vm: &Vm) -> Result<Executable, Error> {
        let program = vm.record("steps", |r| {
            let x = r.feed("x", CPU, DType::F32, &[ELEMENTS])?;
            r.fetch("y", &self.apply(&x)?)
        })?;
        vm.compile(&program, &[], &CompileOptions { fuse: self.fuse, ..CompileOptions::default() })
    }

    fn input(vm: &Vm) -> Result<Tensor, Error> {
        let numbers: Vec<f32> = (0..ELEMENTS).map(|i| number(i, -4.0)).collect();
        vm.from_slice(&numbers, &[ELEMENTS])?.to(CPU)
    }

    /// The median time of all steps in nanoseconds, from the start of the program until its output is there.
    pub(crate) fn measure(self, threads: usize, budget: Duration) -> Result<f64, Error> {
        let vm = layer::engine(threads)?;
        let (executable, x) = (self.compiled(&vm)?, Steps::input(&vm)?);
        vm.wait_all()?;
        time(budget, || executable.run(&[("x", &x)])?["y"].wait())
    }

    /// The compared element of the output.
    pub(crate) fn element(self, threads: usize) -> Result<f64, Error> {
        let vm = layer::engine(threads)?;
        ours::element(&self.compiled(&vm)?.run(&[("x", &Steps::input(&vm)?)])?["y"])
    }
}
