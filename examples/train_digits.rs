//! Training: forward pass, backward pass and the update of the weights are one program, which runs once for each batch.
//!
//! A network of two dense layers learns handwritten digits of 8 by 8 pixels. The function `step` is written once. Inside of `Vm::record`
//! its calls become a program, whose parameters are the weights; each run reads them and writes the new ones. With `--eager` the same
//! function is called for each batch instead. Both ways compute the same bits.
//!
//! Run with `cargo run --release --example train_digits -p streamvm`. After `--`:
//!
//! * `--eager` calls the step for each batch, and records nothing.
//! * `--check` trains in both ways, and fails unless the weights agree bit for bit, the test accuracy is at least 0.97, and the temporaries
//!   of a step take at most 1.05 times the memory that they need at the least.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example shows what it does")]

mod digits;

use std::process::ExitCode;
use std::time::Instant;

use digits::training::{Outcome, Parameter, count_correct};
use digits::{AnyError, CPU, Digits, PIXELS};
use streamvm::program::{CompileOptions, Recorder};
use streamvm::{DType, Executable, Generator, Tensor, Vm};

const HIDDEN: usize = 64;
const CLASSES: usize = 10;
/// Images of a step. A program has fixed shapes, so the images of an epoch that do not fill a batch are left out of it; which ones differs
/// from epoch to epoch, as each has an order of its own.
const BATCH: usize = 32;
const EPOCHS: usize = 15;
const LEARNING_RATE: f64 = 0.05;
const SEED: u64 = 7;
const WANTED_ACCURACY: f64 = 0.97;

fn main() -> ExitCode {
    env_logger::init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments.as_slice() {
        [] => train(Way::Compiled).map(drop),
        ["--eager"] => train(Way::Eager).map(drop),
        ["--check"] => check(),
        _ => Err("it takes --eager, --check or nothing".into()),
    };
    if let Err(error) = result {
        eprintln!("train_digits: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

#[derive(Copy, Clone, Debug)]
enum Way {
    Compiled,
    Eager,
}

/// Weights and biases of two dense layers.
struct Model {
    w1: Parameter,
    b1: Parameter,
    w2: Parameter,
    b2: Parameter,
}

impl Model {
    /// Weights drawn from a normal distribution, of the width that suits relu (He et al., ICCV 2015); biases of zero.
    fn new(vm: &Vm, generator: &Generator) -> Result<Model, streamvm::Error> {
        let drawn = |inputs: usize, outputs: usize| {
            vm.randn(generator, CPU, DType::F32, &[inputs, outputs])? * (2.0 / inputs as f64).sqrt()
        };
        let zeros = |outputs: usize| vm.zeros(CPU, DType::F32, &[outputs]);
        Ok(Model {
            w1: Parameter::new(vm, ["w1", "w1.velocity"], drawn(PIXELS, HIDDEN)?)?,
            b1: Parameter::new(vm, ["b1", "b1.velocity"], zeros(HIDDEN)?)?,
            w2: Parameter::new(vm, ["w2", "w2.velocity"], drawn(HIDDEN, CLASSES)?)?,
            b2: Parameter::new(vm, ["b2", "b2.velocity"], zeros(CLASSES)?)?,
        })
    }

    fn recorded(&self, r: &Recorder) -> Result<Model, streamvm::Error> {
        let Model { w1, b1, w2, b2 } = self;
        Ok(Model { w1: w1.recorded(r)?, b1: b1.recorded(r)?, w2: w2.recorded(r)?, b2: b2.recorded(r)? })
    }

    fn parameters(&self) -> [&Parameter; 4] {
        [&self.w1, &self.b1, &self.w2, &self.b2]
    }

    /// All tensors by name.
    fn tensors(&self) -> Vec<(&'static str, &Tensor)> {
        self.parameters().into_iter().flat_map(|p| [(p.names[0], &p.value), (p.names[1], &p.velocity)]).collect()
    }

    /// The activations of the hidden layer, and the logits.
    fn forward(&self, images: &Tensor) -> Result<(Tensor, Tensor), streamvm::Error> {
        let hidden = (images.matmul(&self.w1.value)? + &self.b1.value)?.relu()?;
        let logits = (hidden.matmul(&self.w2.value)? + &self.b2.value)?;
        Ok((hidden, logits))
    }
}

/// One step of stochastic gradient descent with momentum, which writes the model.
fn step(model: &Model, images: &Tensor, labels: &Tensor) -> Result<Outcome, streamvm::Error> {
    let (hidden, logits) = model.forward(images)?;
    let log_p = logits.log_softmax(1)?;
    let wanted = labels.one_hot(CLASSES, DType::F32)?;
    let loss = (&wanted * &log_p)?.sum(&[1])?.mean(&[])?.neg()?;
    let correct = count_correct(&logits, labels)?;

    // The gradients of the loss, from the back to the front: `d_x` is that by `x`.
    let d_log_p = (wanted * (-1.0 / BATCH as f64))?;
    let d_logits = log_p.log_softmax_backward(&d_log_p, 1)?;
    let d_w2 = hidden.transpose(0, 1)?.matmul(&d_logits)?;
    let d_b2 = d_logits.sum(&[0])?;
    // The derivative of relu: 1 where it let something through, else 0.
    let active = hidden.cast(DType::Bool)?.cast(DType::F32)?;
    let d_hidden = (d_logits.matmul(&model.w2.value.transpose(0, 1)?)? * active)?;
    let d_w1 = images.transpose(0, 1)?.matmul(&d_hidden)?;
    let d_b1 = d_hidden.sum(&[0])?;

    let gradients = [d_w1, d_b1, d_w2, d_b2];
    for (parameter, gradient) in model.parameters().into_iter().zip(gradients) {
        parameter.descend(gradient, LEARNING_RATE)?;
    }
    Ok(Outcome { loss, correct })
}

/// The step as a program with the feeds `images` and `labels`, bound to the tensors of `model`.
fn compile_step(vm: &Vm, model: &Model) -> Result<Executable, streamvm::Error> {
    let program = vm.record("training step", |r| {
        let images = r.feed("images", CPU, DType::F32, &[BATCH, PIXELS])?;
        let labels = r.feed("labels", CPU, DType::I64, &[BATCH])?;
        let outcome = step(&model.recorded(r)?, &images, &labels)?;
        r.fetch("loss", &outcome.loss)?;
        r.fetch("correct", &outcome.correct)
    })?;
    vm.compile(&program, &model.tensors(), &CompileOptions::default())
}

/// The result of a training.
struct Trained {
    tensors: Vec<(&'static str, Vec<f32>)>,
    /// The share of the test images that are recognised.
    accuracy: f64,
    /// The bytes in which a run of the program has its temporaries, and the least that any plan needs.
    memory: Option<(usize, usize)>,
}

/// Trains for all epochs, and prints a line for each.
fn train(way: Way) -> Result<Trained, AnyError> {
    let (training, test) = (Digits::of_training()?, Digits::of_test()?);
    let vm = Vm::builder().build()?;
    let generator = Generator::new(SEED);
    let model = Model::new(&vm, &generator)?;
    let program = match way {
        Way::Compiled => Some(compile_step(&vm, &model)?),
        Way::Eager => None,
    };
    let in_order: Vec<usize> = (0..test.labels.len()).collect();
    let (test_images, test_labels) = test.upload(&vm, &in_order)?;

    println!("{way:?}: {} training images, {} test images", training.labels.len(), test.labels.len());
    println!("epoch    loss  train   test  seconds");
    let mut accuracy = 0.0;
    for epoch in 1..=EPOCHS {
        let begin = Instant::now();
        let (images, labels) = training.upload(&vm, &training.shuffled(&vm, &generator)?)?;
        let mut outcomes = Vec::new();
        for batch in 0..training.labels.len() / BATCH {
            // Views of the epoch's tensors: a run uses a feed where it lies.
            let rows = batch * BATCH..(batch + 1) * BATCH;
            let (images, labels) = (images.slice(0, rows.clone())?, labels.slice(0, rows)?);
            // Both return at once. Steps are ordered by the weights that they read and write.
            outcomes.push(match &program {
                Some(program) => {
                    let run = program.run(&[("images", &images), ("labels", &labels)])?;
                    Outcome { loss: run["loss"].clone(), correct: run["correct"].clone() }
                }
                None => step(&model, &images, &labels)?,
            });
        }
        // Eager calls after the steps see the weights that these have written.
        let correct = count_correct(&model.forward(&test_images)?.1, &test_labels)?;
        let (mut loss, mut recognised) = (0.0, 0);
        for outcome in &outcomes {
            loss += f64::from(outcome.loss.to_scalar::<f32>()?) / outcomes.len() as f64;
            recognised += outcome.correct.to_scalar::<i64>()?;
        }
        accuracy = correct.to_scalar::<i64>()? as f64 / test.labels.len() as f64;
        let recognised = recognised as f64 / (outcomes.len() * BATCH) as f64;
        let (seconds, bar) = (begin.elapsed().as_secs_f64(), "#".repeat((loss * 50.0).ceil() as usize));
        println!("{epoch:>5}  {loss:.4}  {recognised:.3}  {accuracy:.3}  {seconds:>7.3}  {bar}");
    }
    let tensors = model.tensors().into_iter().map(|(name, tensor)| Ok((name, tensor.to_vec()?)));
    let tensors = tensors.collect::<Result<_, streamvm::Error>>()?;
    let memory = program.map(|program| (program.compiled().arena_bytes(), program.compiled().arena_lower_bound()));
    Ok(Trained { tensors, accuracy, memory })
}

/// Trains in both ways, and compares.
fn check() -> Result<(), AnyError> {
    let (compiled, eager) = (train(Way::Compiled)?, train(Way::Eager)?);
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
    for ((name, ours), (_, other)) in compiled.tensors.iter().zip(&eager.tensors) {
        if bits(ours) != bits(other) {
            return Err(format!("{name} differs between compiled and eager training").into());
        }
    }
    if compiled.accuracy < WANTED_ACCURACY {
        return Err(format!("the test accuracy is {:.4}, and {WANTED_ACCURACY} is wanted", compiled.accuracy).into());
    }
    let (bytes, least) = compiled.memory.ok_or("the compiled training has no program")?;
    if bytes as f64 > 1.05 * least as f64 {
        return Err(format!("temporaries take {bytes} bytes, and no plan needs less than {least}").into());
    }
    println!("a step has its temporaries in {bytes} bytes; no plan needs less than {least}");
    println!(
        "both ways give the same weights bit for bit, and recognise {:.1} % of the test images",
        compiled.accuracy * 100.0
    );
    Ok(())
}
