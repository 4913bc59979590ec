//! Programs of growing length: the time to compile, to load and to run them.

use std::sync::Arc;
use std::time::Instant;

use streamvm::program::{CompileOptions, Program, compile};
use streamvm::{DType, Tensor, Vm};

use crate::harness::case::Sample;
use crate::harness::error::Error;
use crate::workloads::DEVICE;
use crate::workloads::generate::{VARIABLES, random_ops};

/// Elements of each value, f32.
const ELEMENTS: usize = 16;

/// The time that the compiler takes for each of `steps` steps:
///
/// * of a chain, in which each step reads the one before;
/// * of random reads of values among the last ones;
/// * of a wide program, which has all its values at one time, and then adds them up in pairs.
///
/// Each is compiled for one lane, which needs no dependences between its steps, and for two, which find them all.
///
/// # Errors
/// A program cannot be recorded or compiled.
pub fn compiling(steps: usize, ops: usize) -> Result<Vec<Sample>, Error> {
    let vm = Vm::builder().build()?;
    let rounds = (ops / steps).clamp(1, 100);
    let mut samples = Vec::new();
    let programs = [
        (["chain", "chain_2_lanes"], chain(&vm, steps)?),
        (["random", "random_2_lanes"], random(&vm, steps)?),
        (["wide", "wide_2_lanes"], wide(&vm, steps)?),
    ];
    for (names, program) in programs {
        let program = Arc::new(program);
        for (name, lanes) in names.into_iter().zip(1..) {
            let options = CompileOptions { lanes, ..CompileOptions::default() };
            let clock = Instant::now();
            for _ in 0..rounds {
                compile(program.clone(), &options)?;
            }
            samples.push(Sample::ns(name, clock.elapsed().as_nanos() as f64 / (rounds * program.steps.len()) as f64));
        }
    }
    Ok(samples)
}

/// The lanes of the programs that run on several.
const LANES: u32 = 4;

/// The time of each of `count`:
///
/// * steps of a wide program that is compiled for four lanes and loaded;
/// * steps that each write a row of one value, compiled for four lanes and loaded;
/// * feeds of a run, which are given in the order of the program, or in reverse order.
///
/// # Errors
/// A program cannot be recorded or compiled, or the engine failed.
pub fn programs(count: usize, ops: usize) -> Result<Vec<Sample>, Error> {
    let vm = Vm::builder().build()?;
    let rounds = (ops / count).clamp(1, 5);
    let mut samples = Vec::new();
    let options = CompileOptions { lanes: LANES, ..CompileOptions::default() };
    for (name, program) in [("wide, loaded", wide(&vm, count)?), ("rows of one value, loaded", rows(&vm, count)?)] {
        let clock = Instant::now();
        for _ in 0..rounds {
            vm.compile(&program, &[], &options)?;
        }
        samples.push(Sample::ns(name, clock.elapsed().as_nanos() as f64 / (rounds * program.steps.len()) as f64));
    }
    let names: Vec<String> = (0..count).map(|feed| format!("x{feed}")).collect();
    let program = sum_of_feeds(&vm, &names)?;
    let sum = vm.compile(&program, &[], &CompileOptions::default())?;
    let x = vm.full(DEVICE, DType::F32, &[ELEMENTS], 1)?;
    let mut feeds: Vec<(&str, &Tensor)> = names.iter().map(|name| (name.as_str(), &x)).collect();
    for name in ["feeds in order", "feeds in reverse order"] {
        let clock = Instant::now();
        for _ in 0..rounds {
            sum.run(&feeds)?.wait()?;
        }
        samples.push(Sample::ns(name, clock.elapsed().as_nanos() as f64 / (rounds * count) as f64));
        feeds.reverse();
    }
    Ok(samples)
}

fn sum_of_feeds(vm: &Vm, names: &[String]) -> Result<Program, Error> {
    Ok(vm.record("sum", |r| {
        let feed = |name: &String| r.feed(name.as_str(), DEVICE, DType::F32, &[ELEMENTS]);
        let mut sum = feed(&names[0])?;
        for name in &names[1..] {
            sum = (&sum + &feed(name)?)?;
        }
        r.fetch("y", &sum)
    })?)
}

fn rows(vm: &Vm, steps: usize) -> Result<Program, Error> {
    Ok(vm.record("rows", |r| {
        let x = r.feed("x", DEVICE, DType::F32, &[1, ELEMENTS])?;
        let y = r.full(DEVICE, DType::F32, &[steps, ELEMENTS], 0)?;
        for row in 0..steps {
            y.slice(0, row..row + 1)?.copy_from(&x)?;
        }
        r.fetch("y", &y)
    })?)
}

fn chain(vm: &Vm, steps: usize) -> Result<Program, Error> {
    Ok(vm.record("chain", |r| {
        let mut y = r.feed("x", DEVICE, DType::F32, &[ELEMENTS])?;
        for _ in 0..steps {
            y = y.neg()?;
        }
        r.fetch("y", &y)
    })?)
}

fn random(vm: &Vm, steps: usize) -> Result<Program, Error> {
    let drawn = random_ops(steps);
    Ok(vm.record("random", |r| {
        let x = r.feed("x", DEVICE, DType::F32, &[ELEMENTS])?;
        let mut values: Vec<Tensor> = vec![x; VARIABLES];
        for op in &drawn {
            let read = |place: usize| &values[op.reads().get(place).map_or(0, |read| *read as usize)];
            let value = (read(0) + read(1))?;
            values[op.write as usize] = value;
        }
        let mut sum = values[0].clone();
        for value in &values[1..] {
            sum = (&sum + value)?;
        }
        r.fetch("y", &sum)
    })?)
}

fn wide(vm: &Vm, steps: usize) -> Result<Program, Error> {
    Ok(vm.record("wide", |r| {
        let x = r.feed("x", DEVICE, DType::F32, &[ELEMENTS])?;
        let mut values = (0..steps.div_ceil(2)).map(|_| x.neg()).collect::<Result<Vec<Tensor>, _>>()?;
        while values.len() > 1 {
            let pairs = values.chunks(2);
            let pair = |pair: &[Tensor]| if let [x, y] = pair { x + y } else { Ok(pair[0].clone()) };
            values = pairs.map(pair).collect::<Result<Vec<Tensor>, _>>()?;
        }
        r.fetch("y", &values[0])
    })?)
}
