//! Data-parallel training: every rank computes the gradients of its part of each batch, and all ranks step by their mean.
//!
//! A network of two dense layers learns handwritten digits, as in `train_digits.rs`. The whole step is one program on each rank. The gradients are reduced in two
//! buckets, each a collective step of the program: that of the last layer begins while the gradients of the first layer are computed.
//!
//! Run with `cargo run --release --example data_parallel -p streamvm-ranks`, which trains on one rank; on four, `mpirun -n 4 target/release/examples/data_parallel`,
//! or `streamvm launch -n 4 target/release/examples/data_parallel` without MPI. The number of ranks divides 32. With `--check`, each rank then trains alone on
//! whole batches, and fails unless that gives the same loss and weights but for rounding. The speed-up that it prints needs a core for each rank, and steps that take
//! much longer than a collective: this network is too small for one.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example shows what it does")]

mod digits;

use std::process::ExitCode;
use std::time::Instant;

use digits::training::{Outcome, Parameter, count_correct};
use digits::{AnyError, CPU, Digits, PIXELS};
use streamvm::program::{CompileOptions, Recorder};
use streamvm::{DType, Error, Executable, Generator, Tensor, Vm};
use streamvm_ranks::{Group, Ranks, Reduction};

const HIDDEN: usize = 64;
const CLASSES: usize = 10;
/// Images of a step, over all ranks.
const BATCH: usize = 32;
const EPOCHS: usize = 6;
const LEARNING_RATE: f64 = 0.05;
const SEED: u64 = 7;
/// The most by which losses and weights may differ from those of one rank. The ranks add up the same products in another order.
const TOLERANCE: f64 = 2e-3;

fn main() -> ExitCode {
    env_logger::init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => run(false),
        ["--check"] => run(true),
        _ => Err("it takes --check or nothing".into()),
    };
    if let Err(error) = result {
        eprintln!("data_parallel: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn run(checks: bool) -> Result<(), AnyError> {
    let ranks = Ranks::start()?;
    let world = ranks.world();
    if !BATCH.is_multiple_of(world.size()) {
        return Err(format!("{} ranks do not divide a batch of {BATCH} images", world.size()).into());
    }
    let (together, epoch) = train(Some(world))?;
    if checks {
        let (alone, epoch_alone) = train(None)?;
        let pairs = together.iter().zip(&alone).flat_map(|(ours, other)| ours.iter().zip(other));
        let differences = pairs.map(|(ours, other)| f64::from((ours - other).abs()));
        // A NaN stays one.
        let most = differences.fold(0.0, |most: f64, next| if most >= next { most } else { next });
        if most.is_nan() || most > TOLERANCE {
            return Err(format!("losses and weights differ by {most} from those of one rank").into());
        }
        if world.rank() == 0 {
            println!("{} ranks and one give the same losses and weights, within {most:.1e}", world.size());
            let speed_up = epoch_alone / epoch;
            println!("the fastest epoch took {epoch:.4} s, alone {epoch_alone:.4} s: a speed-up of {speed_up:.2}");
        }
    }
    Ok(ranks.finish()?)
}

struct Model {
    first: [Parameter; 2],
    last: [Parameter; 2],
}

impl Model {
    /// The same weights on every rank: drawn from one seed.
    fn new(vm: &Vm, generator: &Generator) -> Result<Model, Error> {
        let drawn = |inputs: usize, outputs: usize| {
            vm.randn(generator, CPU, DType::F32, &[inputs, outputs])? * (2.0 / inputs as f64).sqrt()
        };
        let zeros = |outputs: usize| vm.zeros(CPU, DType::F32, &[outputs]);
        Ok(Model {
            first: [
                Parameter::new(vm, ["w1", "w1.velocity"], drawn(PIXELS, HIDDEN)?)?,
                Parameter::new(vm, ["b1", "b1.velocity"], zeros(HIDDEN)?)?,
            ],
            last: [
                Parameter::new(vm, ["w2", "w2.velocity"], drawn(HIDDEN, CLASSES)?)?,
                Parameter::new(vm, ["b2", "b2.velocity"], zeros(CLASSES)?)?,
            ],
        })
    }

    fn recorded(&self, r: &Recorder) -> Result<Model, Error> {
        let ([w1, b1], [w2, b2]) = (&self.first, &self.last);
        Ok(Model { first: [w1.recorded(r)?, b1.recorded(r)?], last: [w2.recorded(r)?, b2.recorded(r)?] })
    }

    fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        self.first.iter().chain(&self.last)
    }
}

/// One step over this rank's part of a batch. The outcome is that of the whole batch.
fn step(
    r: &Recorder,
    group: Option<&Group>,
    model: &Model,
    images: &Tensor,
    labels: &Tensor,
) -> Result<Outcome, Error> {
    let ([w1, b1], [w2, b2]) = (&model.first, &model.last);
    let hidden = (images.matmul(&w1.value)? + &b1.value)?.relu()?;
    let logits = (hidden.matmul(&w2.value)? + &b2.value)?;
    let log_p = logits.log_softmax(1)?;
    let wanted = labels.one_hot(CLASSES, DType::F32)?;
    let loss = (&wanted * &log_p)?.sum(&[1])?.mean(&[])?.neg()?;
    let correct = count_correct(&logits, labels)?;

    // The mean over the ranks of the mean over each part is that over the batch, as all parts are of one size.
    let reduce = |gradients: &[&Tensor]| match group {
        Some(group) => group.all_reduce_in_place(r, gradients, Reduction::Mean),
        None => Ok(()),
    };
    let d_log_p = (wanted * (-1.0 / images.dims()[0] as f64))?;
    let d_logits = log_p.log_softmax_backward(&d_log_p, 1)?;
    let (d_w2, d_b2) = (hidden.transpose(0, 1)?.matmul(&d_logits)?, d_logits.sum(&[0])?);
    // Nothing below needs the reduced gradients of the last layer before it descends.
    reduce(&[&d_w2, &d_b2])?;
    let active = hidden.cast(DType::Bool)?.cast(DType::F32)?;
    let d_hidden = (d_logits.matmul(&w2.value.transpose(0, 1)?)? * active)?;
    let (d_w1, d_b1) = (images.transpose(0, 1)?.matmul(&d_hidden)?, d_hidden.sum(&[0])?);
    reduce(&[&d_w1, &d_b1, &loss])?;
    if let Some(group) = group {
        group.all_reduce_in_place(r, &[&correct], Reduction::Sum)?;
    }

    for (parameter, gradient) in model.parameters().zip([d_w1, d_b1, d_w2, d_b2]) {
        parameter.descend(gradient, LEARNING_RATE)?;
    }
    Ok(Outcome { loss, correct })
}

fn compile(vm: &Vm, group: Option<&Group>, model: &Model, part: usize) -> Result<Executable, Error> {
    let program = vm.record("training step", |r| {
        let images = r.feed("images", CPU, DType::F32, &[part, PIXELS])?;
        let labels = r.feed("labels", CPU, DType::I64, &[part])?;
        let outcome = step(r, group, &model.recorded(r)?, &images, &labels)?;
        r.fetch("loss", &outcome.loss)?;
        r.fetch("correct", &outcome.correct)
    })?;
    let tensors = model.parameters().flat_map(|p| [(p.names[0], &p.value), (p.names[1], &p.velocity)]);
    vm.compile(&program, &tensors.collect::<Vec<_>>(), &CompileOptions::default())
}

/// Trains on the ranks of a group, or alone. Returns the losses of the epochs and then the weights, and the seconds of the fastest epoch. Rank 0 prints a line for each epoch.
fn train(group: Option<&Group>) -> Result<(Vec<Vec<f32>>, f64), AnyError> {
    let (rank, size) = group.map_or((0, 1), |group| (group.rank(), group.size()));
    let (training, test) = (Digits::of_training()?, Digits::of_test()?);
    let vm = Vm::builder().build()?;
    let generator = Generator::new(SEED);
    let model = Model::new(&vm, &generator)?;
    let part = BATCH / size;
    let program = compile(&vm, group, &model, part)?;
    let in_order: Vec<usize> = (0..test.labels.len()).collect();
    let (test_images, test_labels) = test.upload(&vm, &in_order)?;
    let shows = rank == 0 && group.is_some();
    if shows {
        println!("{size} ranks of {part} images each in a step\nepoch    loss  train   test  seconds");
    }
    let (mut losses, mut fastest) = (Vec::new(), f64::INFINITY);
    for epoch in 1..=EPOCHS {
        let begin = Instant::now();
        let (images, labels) = training.upload(&vm, &training.shuffled(&vm, &generator)?)?;
        let mut runs = Vec::new();
        for batch in 0..training.labels.len() / BATCH {
            let first = batch * BATCH + rank * part;
            let (images, labels) = (images.slice(0, first..first + part)?, labels.slice(0, first..first + part)?);
            runs.push(program.run(&[("images", &images), ("labels", &labels)])?);
        }
        let (mut loss, mut recognised) = (0.0, 0);
        for run in &runs {
            loss += run["loss"].to_scalar::<f32>()? / runs.len() as f32;
            recognised += run["correct"].to_scalar::<i64>()?;
        }
        losses.push(loss);
        fastest = fastest.min(begin.elapsed().as_secs_f64());
        let hidden = (test_images.matmul(&model.first[0].value)? + &model.first[1].value)?.relu()?;
        let logits = (hidden.matmul(&model.last[0].value)? + &model.last[1].value)?;
        let correct = count_correct(&logits, &test_labels)?.to_scalar::<i64>()?;
        if shows {
            let trained = recognised as f64 / (runs.len() * BATCH) as f64;
            let accuracy = correct as f64 / test.labels.len() as f64;
            println!("{epoch:>5}  {loss:.4}  {trained:.3}  {accuracy:.3}  {:>7.3}", begin.elapsed().as_secs_f64());
        }
    }
    vm.wait_all()?;
    let weights = model.parameters().map(|parameter| parameter.value.to_vec::<f32>());
    let found = std::iter::once(Ok(losses)).chain(weights).collect::<Result<_, Error>>()?;
    Ok((found, fastest))
}
