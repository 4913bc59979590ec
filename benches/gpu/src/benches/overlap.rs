//! Batches: a copy to the device, products, a copy back, side by side where they can be.

use streamvm::{InstructionsBuilder, Tensor, Vm};

use super::batches::close;
use super::{Batches, HOSTS, Settings, Sizes, engine, products_of};
use crate::CUDA;
use crate::contest::error::Error;
use crate::contest::{Contender, Outcome, Ratio};
use crate::hand::{Cuda, Products};

const STREAMVM: &str = "streamvm, plain program order";
const THREE: &str = "by hand, three streams";
const SERIAL: &str = "by hand, serial";
const PYTORCH: &str = "PyTorch, streams by hand";
const COPY: &str = "copies alone";
const COMPUTE: &str = "products alone";

/// Batches in plain program order, beside the same on one stream, on three streams with events, and in PyTorch; copies alone
/// and products alone say how fast it could be.
///
/// # Errors
/// There is no device; somebody computes the wrong thing.
pub fn overlap(settings: &Settings) -> Result<Outcome, Error> {
    let Sizes { n, products, batches, .. } = settings.sizes;
    let work = format!("{batches} batches of {n} x {n} f32: copy in, {products} products, copy out");
    let mut outcome = Outcome::new("overlap", "ns a batch", work);
    let vm = engine()?;
    let pipeline = Pipeline::new(&vm, settings.sizes)?;
    pipeline.run(&vm)?;
    pipeline.check()?;
    let cuda = Cuda::open()?;
    let by_hand = Batches::new(&cuda, settings.sizes, Products::find(&cuda))?;
    by_hand.three_streams()?;
    by_hand.check()?;
    outcome.notes.push(format!("products by hand: {}", by_hand.products.name()));
    let mut contenders = vec![
        Contender::timed(STREAMVM, || pipeline.run(&vm)),
        Contender::timed(THREE, || by_hand.three_streams()),
        Contender::timed(SERIAL, || by_hand.serial()),
        Contender::timed(COPY, || by_hand.copies()),
        Contender::timed(COMPUTE, || by_hand.computing()),
    ];
    contenders.extend(settings.torch.contender(&mut outcome, PYTORCH, "overlap.py", &[n, products, batches, HOSTS]));
    outcome.contest(settings.runs, batches as f64, contenders);
    outcome.notes.push(products_of(&vm)?);
    outcome.compare(STREAMVM, &[THREE, SERIAL, PYTORCH]);
    if let (Some(copy), Some(compute)) = (outcome.median(COPY), outcome.median(COMPUTE)) {
        for of in [STREAMVM, THREE, PYTORCH] {
            if let Some(whole) = outcome.median(of) {
                let to = "max(copies alone, products alone)".to_owned();
                outcome.ratios.push(Ratio { of: of.to_owned(), to, value: copy.max(compute) / whole });
            }
        }
    }
    Ok(outcome)
}

/// The same batches as [`Batches`], as a program of streamvm has them.
pub(super) struct Pipeline {
    sizes: Sizes,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    weights: Tensor,
}

impl Pipeline {
    pub(super) fn new(vm: &Vm, sizes: Sizes) -> Result<Pipeline, Error> {
        let n = sizes.n;
        let pinned = |value: f32| vm.from_slice_pinned(CUDA, &vec![value; n * n], &[n, n]);
        let several = |value| (0..HOSTS).map(|_| pinned(value)).collect::<Result<Vec<_>, _>>();
        let (inputs, outputs) = (several(1.0)?, several(0.0)?);
        let weights = pinned(1.0 / n as f32)?.to(CUDA)?;
        vm.wait_all()?;
        Ok(Pipeline { sizes, inputs, outputs, weights })
    }

    /// Issues all batches, and waits for them.
    pub(super) fn run(&self, vm: &Vm) -> Result<(), Error> {
        self.issue(vm)?;
        Ok(vm.wait_all()?)
    }

    /// One list a batch, in program order; nothing says what waits for what.
    pub(super) fn issue(&self, vm: &Vm) -> Result<(), Error> {
        for batch in 0..self.sizes.batches {
            let mut builder = InstructionsBuilder::new();
            let mut x = builder.copy(&self.inputs[batch % HOSTS], CUDA)?;
            for _ in 0..self.sizes.products {
                x = builder.matmul(&x, &self.weights)?;
            }
            builder.copy_into(&x, &self.outputs[batch % HOSTS])?;
            vm.submit(builder.finish())?;
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Error> {
        for output in self.outputs.iter().take(self.sizes.batches) {
            output.to_vec::<f32>()?.into_iter().try_for_each(|element| close(element, "streamvm"))?;
        }
        Ok(())
    }
}
