//! Training a convolutional network: forward pass, backward pass and the update of the weights are one program, which runs once for each batch.
//!
//! Two convolutions with max pooling and a dense layer learn handwritten digits of 8 by 8 pixels. As in `train_digits.rs`, the function `step` is
//! written once: inside of `Vm::record` its calls become a program, and with `--eager` they are called for each batch. Both ways compute the same
//! bits. Each line that is printed shows the mean loss of an epoch as a bar.
//!
//! Run with `cargo run --release --example train_conv -p streamvm`. After `--`:
//!
//! * `--eager` calls the step for each batch, and records nothing.
//! * `--check` trains in both ways, and fails unless the weights agree bit for bit, the test accuracy is at least 0.975, and the temporaries of a step take at
//!   most 1.05 times the memory that they need at the least. With the vectors of AVX-512 the accuracy is 0.983; other vectors add up in another order.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example shows what it does")]

mod digits;

use std::process::ExitCode;
use std::time::Instant;

use digits::training::{Outcome, Parameter, count_correct};
use digits::{AnyError, CPU, Digits};
use streamvm::program::{CompileOptions, Recorder};
use streamvm::{Convolution, DType, Executable, Generator, Pooling, Tensor, Vm};

/// Height and width of an image.
const SIDE: usize = 8;
const CHANNELS: [usize; 2] = [16, 32];
/// What the second pooling leaves of an image: 2 by 2 elements of each channel.
const FEATURES: usize = CHANNELS[1] * SIDE / 4 * SIDE / 4;
const CLASSES: usize = 10;
/// Images of a step. Those of an epoch that do not fill a batch are left out of it.
const BATCH: usize = 32;
const EPOCHS: usize = 20;
const LEARNING_RATE: f64 = 0.01;
const SEED: u64 = 7;
const WANTED_ACCURACY: f64 = 0.975;

/// Windows of 3 by 3 whose output is as large as the input.
const SAME: Convolution = Convolution { stride: [1; 2], padding: [1; 2], dilation: [1; 2], groups: 1 };
/// Halves height and width.
const HALVE: Pooling = Pooling::square(2);

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
        eprintln!("train_conv: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

#[derive(Copy, Clone, Debug)]
enum Way {
    Compiled,
    Eager,
}

/// Weights and biases of two convolutions and a dense layer.
struct Model {
    parameters: [Parameter; 6],
    /// The share that the loss of each image has in the mean loss of a batch.
    share: Tensor,
}

/// The name of [`Model::share`] in a program.
const SHARE: &str = "share";

/// The outputs of the layers, which the backward pass needs.
struct Activations {
    first: Tensor,
    first_pooled: Tensor,
    second: Tensor,
    features: Tensor,
    logits: Tensor,
}

impl Model {
    /// Weights drawn from a normal distribution, of the width that suits relu (He et al., ICCV 2015); biases of zero.
    fn new(vm: &Vm, generator: &Generator) -> Result<Model, streamvm::Error> {
        let [first, second] = CHANNELS;
        let drawn = |shape: &[usize], inputs: usize| {
            vm.randn(generator, CPU, DType::F32, shape)? * (2.0 / inputs as f64).sqrt()
        };
        // A bias of channels broadcasts over height and width.
        let zeros = |shape: &[usize]| vm.zeros(CPU, DType::F32, shape);
        let parameters = [
            Parameter::new(vm, ["w1", "w1.velocity"], drawn(&[first, 1, 3, 3], 9)?)?,
            Parameter::new(vm, ["b1", "b1.velocity"], zeros(&[first, 1, 1])?)?,
            Parameter::new(vm, ["w2", "w2.velocity"], drawn(&[second, first, 3, 3], 9 * first)?)?,
            Parameter::new(vm, ["b2", "b2.velocity"], zeros(&[second, 1, 1])?)?,
            Parameter::new(vm, ["w3", "w3.velocity"], drawn(&[FEATURES, CLASSES], FEATURES)?)?,
            Parameter::new(vm, ["b3", "b3.velocity"], zeros(&[CLASSES])?)?,
        ];
        Ok(Model { parameters, share: vm.full(CPU, DType::F32, &[BATCH], 1.0 / BATCH as f64)? })
    }

    fn recorded(&self, r: &Recorder) -> Result<Model, streamvm::Error> {
        let [w1, b1, w2, b2, w3, b3] = &self.parameters;
        let parameters =
            [w1.recorded(r)?, b1.recorded(r)?, w2.recorded(r)?, b2.recorded(r)?, w3.recorded(r)?, b3.recorded(r)?];
        Ok(Model { parameters, share: r.parameter(SHARE, &self.share)? })
    }

    /// All tensors that are trained, by name.
    fn trained(&self) -> Vec<(&'static str, &Tensor)> {
        self.parameters.iter().flat_map(|p| [(p.names[0], &p.value), (p.names[1], &p.velocity)]).collect()
    }

    fn forward(&self, images: &Tensor) -> Result<Activations, streamvm::Error> {
        let [w1, b1, w2, b2, w3, b3] = self.parameters.each_ref().map(|parameter| &parameter.value);
        let first = (images.conv2d(w1, SAME)? + b1)?.relu()?;
        let first_pooled = first.max_pool2d(HALVE)?;
        let second = (first_pooled.conv2d(w2, SAME)? + b2)?.relu()?;
        let features = second.max_pool2d(HALVE)?.reshape(&[images.shape().dims()[0], FEATURES])?;
        let logits = (features.matmul(w3)? + b3)?;
        Ok(Activations { first, first_pooled, second, features, logits })
    }
}

/// The gradient of the input of relu, given its output: it passes where the output is not 0.
fn relu_backward(output: &Tensor, gradient: &Tensor) -> Result<Tensor, streamvm::Error> {
    gradient * output.cast(DType::Bool)?.cast(DType::F32)?
}

/// The gradient of a bias of channels.
fn bias_backward(gradient: &Tensor) -> Result<Tensor, streamvm::Error> {
    let channels = gradient.shape().dims()[1];
    gradient.sum(&[0, 2, 3])?.reshape(&[channels, 1, 1])
}

/// One step of stochastic gradient descent with momentum, which writes the model.
fn step(model: &Model, images: &Tensor, labels: &Tensor) -> Result<Outcome, streamvm::Error> {
    let [w1, _, w2, _, w3, _] = model.parameters.each_ref().map(|parameter| &parameter.value);
    let Activations { first, first_pooled, second, features, logits } = model.forward(images)?;
    let loss = logits.cross_entropy(labels)?.mean(&[])?;
    let correct = count_correct(&logits, labels)?;

    // The gradients of the loss, from the back to the front: `d_x` is that by `x`.
    let d_logits = logits.cross_entropy_backward(labels, &model.share)?;
    let d_w3 = features.transpose(0, 1)?.matmul(&d_logits)?;
    let d_b3 = d_logits.sum(&[0])?;
    let d_features = d_logits.matmul(&w3.transpose(0, 1)?)?;
    let d_pooled = d_features.reshape(&[BATCH, CHANNELS[1], SIDE / 4, SIDE / 4])?;
    let d_second = relu_backward(&second, &second.max_pool2d_backward(&d_pooled, HALVE)?)?;
    let d_w2 = first_pooled.conv2d_backward_weight(w2, &d_second, SAME)?;
    let d_b2 = bias_backward(&d_second)?;
    let d_pooled = first_pooled.conv2d_backward_input(w2, &d_second, SAME)?;
    let d_first = relu_backward(&first, &first.max_pool2d_backward(&d_pooled, HALVE)?)?;
    let d_w1 = images.conv2d_backward_weight(w1, &d_first, SAME)?;
    let d_b1 = bias_backward(&d_first)?;

    let gradients = [d_w1, d_b1, d_w2, d_b2, d_w3, d_b3];
    for (parameter, gradient) in model.parameters.iter().zip(gradients) {
        parameter.descend(gradient, LEARNING_RATE)?;
    }
    Ok(Outcome { loss, correct })
}

/// The step as a program with the feeds `images` and `labels`, bound to the tensors of `model`.
fn compile_step(vm: &Vm, model: &Model) -> Result<Executable, streamvm::Error> {
    let program = vm.record("training step", |r| {
        let images = r.feed("images", CPU, DType::F32, &[BATCH, 1, SIDE, SIDE])?;
        let labels = r.feed("labels", CPU, DType::I64, &[BATCH])?;
        let outcome = step(&model.recorded(r)?, &images, &labels)?;
        r.fetch("loss", &outcome.loss)?;
        r.fetch("correct", &outcome.correct)
    })?;
    let mut tensors = model.trained();
    tensors.push((SHARE, &model.share));
    vm.compile(&program, &tensors, &CompileOptions::default())
}

/// The result of a training.
struct Trained {
    tensors: Vec<(&'static str, Vec<f32>)>,
    /// The share of the test images that are recognised.
    accuracy: f64,
    /// Of a compiled step: the bytes of its temporaries, and the fewest that any plan needs.
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
    let test_images = test_images.reshape(&[test.labels.len(), 1, SIDE, SIDE])?;

    println!("{way:?}: {} training images, {} test images", training.labels.len(), test.labels.len());
    println!("epoch    loss  train   test  seconds");
    let mut accuracy = 0.0;
    for epoch in 1..=EPOCHS {
        let begin = Instant::now();
        let (images, labels) = training.upload(&vm, &training.shuffled(&vm, &generator)?)?;
        let images = images.reshape(&[training.labels.len(), 1, SIDE, SIDE])?;
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
        let correct = count_correct(&model.forward(&test_images)?.logits, &test_labels)?;
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
    let tensors = model.trained().into_iter().map(|(name, tensor)| Ok((name, tensor.to_vec()?)));
    let memory = program.map(|program| (program.compiled().arena_bytes(), program.compiled().arena_lower_bound()));
    Ok(Trained { tensors: tensors.collect::<Result<_, streamvm::Error>>()?, accuracy, memory })
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
