//! Programs: runs of a compiled program beside the same calls made eagerly, one after the other in the same process.

use std::time::Instant;

use streamvm::program::{CompileOptions, Program};
use streamvm::{DType, Executable, InstructionsBuilder, Op, Params, Tensor, Vm};

use super::DEVICE;
use crate::harness::case::{Sample, Sizes};
use crate::harness::error::Error;

/// Steps of the chain.
const CHAIN: usize = 64;

/// Elements of each tensor of the chain, f32.
const CHAIN_ELEMENTS: usize = 16;

/// Elements of each tensor of the elementwise program, f32.
const ELEMENTS: usize = 1_000_000;

/// Steps of the elementwise program.
const ELEMENTWISE: usize = 8;

/// A chain of 64 steps over 16 elements: runs follow each other without a wait. Eagerly as calls and in lists.
///
/// # Errors
/// The engine failed.
pub fn chain(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let vm = Vm::builder().build()?;
    let x = vm.full(DEVICE, DType::F32, &[CHAIN_ELEMENTS], 1.0)?;
    let calls = |x: &Tensor| -> Result<Tensor, Error> {
        let mut y = x.clone();
        for _ in 0..CHAIN {
            y = y.neg()?;
        }
        Ok(y)
    };
    let list = |x: &Tensor| -> Result<Tensor, Error> {
        let mut builder = InstructionsBuilder::new();
        let mut y = x.clone();
        for _ in 0..CHAIN {
            y = builder.op(Op::Neg, &[&y], Params::default())?;
        }
        vm.submit(builder.finish())?;
        Ok(y)
    };
    let program = vm.record("chain", |r| {
        let mut y = r.feed("x", DEVICE, DType::F32, &[CHAIN_ELEMENTS])?;
        for _ in 0..CHAIN {
            y = y.neg()?;
        }
        r.fetch("y", &y)
    })?;
    let executable = compiled(&vm, &program, &CompileOptions::default())?;
    let rounds = (sizes.ops / CHAIN).max(1);
    let warm_up = (sizes.warm_up().ops / CHAIN).max(1);
    let run = |x: &Tensor| Ok(executable.run(&[("x", x)])?["y"].clone());
    let mut samples = Vec::new();
    in_flight("compiled", &x, run, (warm_up, rounds), CHAIN, &mut samples)?;
    in_flight("eager_lists", &x, list, (warm_up, rounds), CHAIN, &mut samples)?;
    in_flight("eager_calls", &x, calls, (warm_up, rounds), CHAIN, &mut samples)?;
    Ok(samples)
}

/// One operation over 16 elements, and a wait for it.
///
/// # Errors
/// The engine failed.
pub fn one_op(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let vm = Vm::builder().build()?;
    let x = vm.full(DEVICE, DType::F32, &[CHAIN_ELEMENTS], 1.0)?;
    let program = vm.record("one", |r| {
        let x = r.feed("x", DEVICE, DType::F32, &[CHAIN_ELEMENTS])?;
        r.fetch("y", &x.neg()?)
    })?;
    let executable = compiled(&vm, &program, &CompileOptions::default())?;
    let run = |x: &Tensor| Ok(executable.run(&[("x", x)])?["y"].clone());
    let mut samples = Vec::new();
    waited("compiled", &x, run, sizes, &mut samples)?;
    waited("eager", &x, |x| Ok(x.neg()?), sizes, &mut samples)?;
    Ok(samples)
}

/// A perceptron over one image of 64 pixels, 32 hidden units and 10 classes, and a wait for its result.
///
/// # Errors
/// The engine failed.
pub fn perceptron(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let vm = Vm::builder().build()?;
    let random = |shape: &[usize], scale: f32| {
        let elements: Vec<f32> =
            (0..shape.iter().product()).map(|it: usize| scale * ((it * 37 % 17) as f32 - 8.0)).collect();
        vm.from_slice(&elements, shape)?.to(DEVICE)
    };
    let weights = [random(&[64, 32], 0.02)?, random(&[32], 0.1)?, random(&[32, 10], 0.03)?, random(&[10], 0.1)?];
    let image = random(&[1, 64], 0.1)?;
    fn layers(x: &Tensor, [w1, b1, w2, b2]: &[Tensor; 4]) -> Result<Tensor, streamvm::Error> {
        let hidden = (&x.matmul(w1)? + b1)?.relu()?;
        &hidden.matmul(w2)? + b2
    }
    let names = ["w1", "b1", "w2", "b2"];
    let program = vm.record("perceptron", |r| {
        let x = r.feed("x", DEVICE, DType::F32, &[1, 64])?;
        let mut parameters = weights.clone();
        for (name, parameter) in names.iter().zip(&mut parameters) {
            *parameter = r.parameter(*name, parameter)?;
        }
        r.fetch("y", &layers(&x, &parameters)?)
    })?;
    let parameters: Vec<(&str, &Tensor)> = names.into_iter().zip(&weights).collect();
    let executable = vm.compile(&program, &parameters, &CompileOptions::default())?;
    let run = |x: &Tensor| Ok(executable.run(&[("x", x)])?["y"].clone());
    let mut samples = Vec::new();
    waited("compiled", &image, run, sizes, &mut samples)?;
    waited("eager", &image, |x| Ok(layers(x, &weights)?), sizes, &mut samples)?;
    Ok(samples)
}

/// Eight elementwise operations over a million elements, and a wait for the result: fused, compiled without fusion, and eagerly.
///
/// # Errors
/// The engine failed.
pub fn elementwise(sizes: &Sizes) -> Result<Vec<Sample>, Error> {
    let vm = Vm::builder().build()?;
    let x = vm.full(DEVICE, DType::F32, &[ELEMENTS], 0.5)?;
    fn steps(x: &Tensor) -> Result<Tensor, streamvm::Error> {
        let mut y = x.clone();
        for _ in 0..ELEMENTWISE / 2 {
            y = (&(&y * x)? + x)?;
        }
        Ok(y)
    }
    let program = vm.record("elementwise", |r| {
        let x = r.feed("x", DEVICE, DType::F32, &[ELEMENTS])?;
        r.fetch("y", &steps(&x)?)
    })?;
    let fused = compiled(&vm, &program, &CompileOptions::default())?;
    let unfused = compiled(&vm, &program, &CompileOptions { fuse: false, ..CompileOptions::default() })?;
    let rounds = (sizes.small / 2_000).max(1);
    let warm_up = (rounds / 10).max(1);
    let run = |executable: Executable| move |x: &Tensor| Ok(executable.run(&[("x", x)])?["y"].clone());
    let mut samples = Vec::new();
    each_waited("fused", &x, run(fused), (warm_up, rounds), ELEMENTWISE, &mut samples)?;
    each_waited("unfused", &x, run(unfused), (warm_up, rounds), ELEMENTWISE, &mut samples)?;
    each_waited("eager", &x, |x| Ok(steps(x)?), (warm_up, rounds), ELEMENTWISE, &mut samples)?;
    Ok(samples)
}

fn compiled(vm: &Vm, program: &Program, options: &CompileOptions) -> Result<Executable, Error> {
    Ok(vm.compile(program, &[], options)?)
}

/// The time of each operation, of rounds that follow each other without a wait.
fn in_flight(
    way: &str,
    x: &Tensor,
    round: impl Fn(&Tensor) -> Result<Tensor, Error>,
    (warm_up, rounds): (usize, usize),
    ops: usize,
    samples: &mut Vec<Sample>,
) -> Result<(), Error> {
    let mut last = round(x)?;
    for _ in 0..warm_up {
        last = round(x)?;
    }
    last.wait()?;
    let clock = Instant::now();
    for _ in 0..rounds {
        last = round(x)?;
    }
    last.wait()?;
    let ns = clock.elapsed().as_nanos() as f64 / (rounds * ops) as f64;
    samples.push(Sample::ns(&format!("ns_per_op_{way}"), ns));
    Ok(())
}

/// The time of each round of one wait.
fn waited(
    way: &str,
    x: &Tensor,
    round: impl Fn(&Tensor) -> Result<Tensor, Error>,
    sizes: &Sizes,
    samples: &mut Vec<Sample>,
) -> Result<(), Error> {
    each_waited(way, x, round, (sizes.warm_up().trips, sizes.trips), 1, samples)
}

/// The time of each operation, of rounds that each end with a wait.
fn each_waited(
    way: &str,
    x: &Tensor,
    round: impl Fn(&Tensor) -> Result<Tensor, Error>,
    (warm_up, rounds): (usize, usize),
    ops: usize,
    samples: &mut Vec<Sample>,
) -> Result<(), Error> {
    for _ in 0..warm_up {
        round(x)?.wait()?;
    }
    let clock = Instant::now();
    for _ in 0..rounds {
        round(x)?.wait()?;
    }
    let ns = clock.elapsed().as_nanos() as f64 / (rounds * ops) as f64;
    let metric = if ops == 1 { format!("ns_per_run_{way}") } else { format!("ns_per_op_{way}") };
    samples.push(Sample::ns(&metric, ns));
    Ok(())
}
