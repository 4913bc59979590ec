//! Training by a pipeline: the layers of a network are stages on lanes of their own, and each batch goes through them in micro-batches.
//!
//! A network of two dense layers learns handwritten digits of 8 by 8 pixels. Each stage has four programs: `reset` sets the sums of gradients to
//! zero, `forward` and `backward` run for each micro-batch, and `update` changes the weights. A plan orders their runs; it is printed first.
//!
//! Run with `cargo run --release --example pipeline_training -p streamvm-jobs`. After `--`:
//!
//! * `--check` trains by several plans, and fails unless the weights agree: bit for bit between all plans with four micro-batches, and within
//!   rounding with the plan that takes the whole batch at once.
//!
//! In both cases it fails if the temporaries of a program take more than 1.05 times the memory that they need at the least.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example shows what it does")]

use std::error::Error;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::ExitCode;

use npyz::{Deserialize, NpyFile};
use streamvm::program::{CompileOptions, Recorder};
use streamvm::{DType, DeviceId, Executable, Generator, Tensor, Vm};
use streamvm_jobs::{JobPlan, Jobs, Pipeline, PipelineStage};

type AnyError = Box<dyn Error + Send + Sync>;

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/data");
const CPU: DeviceId = DeviceId::cpu(0);
const PIXELS: usize = 64;
const HIDDEN: usize = 64;
const CLASSES: usize = 10;
const BATCH: usize = 128;
const MICRO_BATCHES: usize = 4;
const EPOCHS: usize = 12;
const LEARNING_RATE: f64 = 0.5;
const SEED: u64 = 7;
const WANTED_ACCURACY: f64 = 0.9;

fn main() -> ExitCode {
    env_logger::init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments.as_slice() {
        [] => train(Schedule::OneFOneB, MICRO_BATCHES).map(drop),
        ["--check"] => check(),
        _ => Err("it takes --check or nothing".into()),
    };
    if let Err(error) = result {
        eprintln!("pipeline_training: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

#[derive(Copy, Clone, Debug)]
enum Schedule {
    InOrder,
    FThenB,
    OneFOneB,
}

/// A dense layer, which is one stage: weights, biases, and the sums of their gradients over the micro-batches of a batch.
struct Layer {
    stage: usize,
    w: Tensor,
    b: Tensor,
    dw: Tensor,
    db: Tensor,
}

/// The programs of a stage.
struct Programs {
    reset: Executable,
    forward: Executable,
    backward: Executable,
    update: Executable,
}

impl Layer {
    fn new(vm: &Vm, generator: &Generator, stage: usize, inputs: usize, outputs: usize) -> Result<Layer, AnyError> {
        let w = (vm.randn(generator, CPU, DType::F32, &[inputs, outputs])? * (2.0 / inputs as f64).sqrt())?;
        let b = vm.zeros(CPU, DType::F32, &[outputs])?;
        let (dw, db) = (vm.zeros(CPU, DType::F32, &[inputs, outputs])?, vm.zeros(CPU, DType::F32, &[outputs])?);
        Ok(Layer { stage, w, b, dw, db })
    }

    fn tensors(&self) -> [(&'static str, &Tensor); 4] {
        [("w", &self.w), ("b", &self.b), ("dw", &self.dw), ("db", &self.db)]
    }

    /// Compiles a program over some of the layer's tensors, which the closure asks for by name.
    fn compile(
        &self,
        vm: &Vm,
        name: &str,
        f: impl FnOnce(&Recorder, &dyn Fn(&str) -> Result<Tensor, streamvm::Error>) -> Result<(), streamvm::Error>,
    ) -> Result<Executable, streamvm::Error> {
        let tensors = self.tensors();
        let tensor = |name: &str| tensors.iter().find(|(known, _)| *known == name).map(|(_, tensor)| *tensor);
        let program = vm.record(format!("{name}{}", self.stage), |r| {
            f(r, &|name| r.parameter(name, tensor(name).unwrap_or(&self.w)))
        })?;
        let named = |name: &str| program.parameters.iter().any(|parameter| parameter.name == name);
        let bound: Vec<(&str, &Tensor)> = tensors.into_iter().filter(|(name, _)| named(name)).collect();
        vm.compile(&program, &bound, &CompileOptions::default())
    }

    /// The programs before and after the micro-batches, and the two given ones.
    fn programs(&self, vm: &Vm, forward: Executable, backward: Executable) -> Result<Programs, streamvm::Error> {
        let reset = self.compile(vm, "reset", |_, parameter| {
            parameter("dw")?.fill(0.0)?;
            parameter("db")?.fill(0.0)
        })?;
        let update = self.compile(vm, "update", |_, parameter| {
            for (value, gradient) in [("w", "dw"), ("b", "db")] {
                let value = parameter(value)?;
                value.copy_from(&(&value - (parameter(gradient)? * LEARNING_RATE)?)?)?;
            }
            Ok(())
        })?;
        Ok(Programs { reset, forward, backward, update })
    }
}

/// Adds the gradients of one micro-batch to the sums of a layer.
fn add_gradients(
    parameter: &dyn Fn(&str) -> Result<Tensor, streamvm::Error>,
    inputs: &Tensor,
    d_outputs: &Tensor,
) -> Result<(), streamvm::Error> {
    let (dw, db) = (parameter("dw")?, parameter("db")?);
    dw.copy_from(&(&dw + inputs.transpose(0, 1)?.matmul(d_outputs)?)?)?;
    db.copy_from(&(&db + d_outputs.sum(&[0])?)?)
}

/// The first stage takes `images`, and hands `hidden` to the second.
fn first_stage(vm: &Vm, layer: &Layer, rows: usize) -> Result<Programs, streamvm::Error> {
    let forward = layer.compile(vm, "forward", |r, parameter| {
        let images = r.feed("images", CPU, DType::F32, &[rows, PIXELS])?;
        r.fetch("hidden", &(images.matmul(&parameter("w")?)? + parameter("b")?)?.relu()?)
    })?;
    let backward = layer.compile(vm, "backward", |r, parameter| {
        let images = r.feed("images", CPU, DType::F32, &[rows, PIXELS])?;
        let hidden = r.feed("hidden", CPU, DType::F32, &[rows, HIDDEN])?;
        let d_hidden = r.feed("d_hidden", CPU, DType::F32, &[rows, HIDDEN])?;
        // The derivative of relu: 1 where it let something through, else 0.
        let active = hidden.cast(DType::Bool)?.cast(DType::F32)?;
        add_gradients(parameter, &images, &(d_hidden * active)?)
    })?;
    layer.programs(vm, forward, backward)
}

/// The second stage takes `hidden` and `labels`, and hands the gradient `d_hidden` back to the first.
fn second_stage(vm: &Vm, layer: &Layer, rows: usize) -> Result<Programs, streamvm::Error> {
    let forward = layer.compile(vm, "forward", |r, parameter| {
        let hidden = r.feed("hidden", CPU, DType::F32, &[rows, HIDDEN])?;
        let labels = r.feed("labels", CPU, DType::I64, &[rows])?;
        let log_p = (hidden.matmul(&parameter("w")?)? + parameter("b")?)?.log_softmax(1)?;
        let wanted = labels.one_hot(CLASSES, DType::F32)?;
        r.fetch("loss", &((&wanted * &log_p)?.sum(&[])? * (-1.0 / BATCH as f64))?)?;
        r.fetch("d_logits", &log_p.log_softmax_backward(&(wanted * (-1.0 / BATCH as f64))?, 1)?)
    })?;
    let backward = layer.compile(vm, "backward", |r, parameter| {
        let hidden = r.feed("hidden", CPU, DType::F32, &[rows, HIDDEN])?;
        let d_logits = r.feed("d_logits", CPU, DType::F32, &[rows, CLASSES])?;
        add_gradients(parameter, &hidden, &d_logits)?;
        r.fetch("d_hidden", &d_logits.matmul(&parameter("w")?.transpose(0, 1)?)?)
    })?;
    layer.programs(vm, forward, backward)
}

/// The elements of a `.npy` file.
fn elements<T: Deserialize>(name: &str) -> Result<Vec<T>, AnyError> {
    let path = Path::new(DATA).join(name);
    let told = |error: std::io::Error| format!("cannot read {}: {error}", path.display());
    let file = NpyFile::new(BufReader::new(File::open(&path).map_err(told)?)).map_err(told)?;
    Ok(file.into_vec().map_err(told)?)
}

/// Images and labels, as tensors of the CPU.
fn digits(vm: &Vm, images: &str, labels: &str) -> Result<(Tensor, Tensor), AnyError> {
    let (images, labels) = (elements::<f32>(images)?, elements::<i64>(labels)?);
    let count = labels.len();
    let images = vm.from_slice(&images, &[count, PIXELS])?.to(CPU)?;
    Ok((images, vm.from_slice(&labels, &[count])?.to(CPU)?))
}

/// Trains for all epochs by one plan, and returns weights and biases.
fn train(schedule: Schedule, micro_batches: usize) -> Result<Vec<Vec<f32>>, AnyError> {
    let vm = Vm::builder().build()?;
    let generator = Generator::new(SEED);
    let layers = [Layer::new(&vm, &generator, 0, PIXELS, HIDDEN)?, Layer::new(&vm, &generator, 1, HIDDEN, CLASSES)?];
    let rows = BATCH / micro_batches;
    let stages = [first_stage(&vm, &layers[0], rows)?, second_stage(&vm, &layers[1], rows)?];

    let pipeline = Pipeline::new(stages.iter().map(|Programs { reset, forward, backward, update }| {
        let stage = PipelineStage::new(forward.compiled()).backward(backward.compiled());
        stage.reset(reset.compiled()).update(update.compiled())
    }));
    let pipeline = pipeline.result("loss");
    let plan: JobPlan = match schedule {
        Schedule::InOrder => pipeline.in_order(micro_batches)?,
        Schedule::FThenB => pipeline.fthenb(micro_batches)?,
        Schedule::OneFOneB => pipeline.one_f_one_b(micro_batches)?,
    };
    println!("{schedule:?}\n{plan}");
    let executables: Vec<&Executable> =
        stages.iter().flat_map(|it| [&it.reset, &it.forward, &it.backward, &it.update]).collect();
    for program in executables.iter().map(|executable| executable.compiled()) {
        let (bytes, least) = (program.arena_bytes(), program.arena_lower_bound());
        if bytes as f64 > 1.05 * least as f64 {
            let name = &program.program().name;
            return Err(
                format!("the temporaries of {name} take {bytes} bytes, and no plan needs less than {least}").into()
            );
        }
    }
    let jobs = Jobs::new(&vm, &plan, &executables)?;

    let (images, labels) = digits(&vm, "digits_train_images.npy", "digits_train_labels.npy")?;
    let (test_images, test_labels) = digits(&vm, "digits_images.npy", "digits_labels.npy")?;
    println!("epoch    loss   test");
    let mut accuracy = 0.0;
    for epoch in 1..=EPOCHS {
        let mut losses = Vec::new();
        for batch in 0..labels.shape().elements() / BATCH {
            let rows = batch * BATCH..(batch + 1) * BATCH;
            let (images, labels) = (images.slice(0, rows.clone())?, labels.slice(0, rows)?);
            // Returns at once. The plan splits both into micro-batches, which are views.
            losses.push(jobs.run(&[("images", &images), ("labels", &labels)])?.joined("loss")?.sum(&[])?);
        }
        // Eager calls after the jobs see the weights that these have written.
        let hidden = (test_images.matmul(&layers[0].w)? + &layers[0].b)?.relu()?;
        let logits = (hidden.matmul(&layers[1].w)? + &layers[1].b)?;
        let correct = logits.argmax(1)?.eq(&test_labels)?.cast(DType::I64)?.sum(&[])?;
        let mut loss = 0.0;
        for of_batch in &losses {
            loss += f64::from(of_batch.to_scalar::<f32>()?) / losses.len() as f64;
        }
        accuracy = correct.to_scalar::<i64>()? as f64 / test_labels.shape().elements() as f64;
        println!("{epoch:>5}  {loss:.4}  {accuracy:.3}");
    }
    if accuracy < WANTED_ACCURACY {
        return Err(format!("the test accuracy is {accuracy:.4}, and {WANTED_ACCURACY} is wanted").into());
    }
    let weights = layers.iter().flat_map(|layer| [&layer.w, &layer.b]);
    Ok(weights.map(Tensor::to_vec::<f32>).collect::<Result<_, streamvm::Error>>()?)
}

/// Trains by several plans, and compares.
fn check() -> Result<(), AnyError> {
    let pipelined = train(Schedule::OneFOneB, MICRO_BATCHES)?;
    let bits = |weights: &[Vec<f32>]| weights.iter().flatten().map(|weight| weight.to_bits()).collect::<Vec<u32>>();
    for schedule in [Schedule::FThenB, Schedule::InOrder] {
        if bits(&train(schedule, MICRO_BATCHES)?) != bits(&pipelined) {
            return Err(format!("the weights differ between {schedule:?} and OneFOneB").into());
        }
    }
    // The sums over a whole batch are taken in another order, so they are rounded in other ways.
    let whole = train(Schedule::InOrder, 1)?;
    let difference = |(ours, other): (&f32, &f32)| (ours - other).abs();
    let largest = whole.iter().flatten().zip(pipelined.iter().flatten()).map(difference).fold(0.0, f32::max);
    if largest > 1e-3 {
        return Err(format!("weights differ by {largest} between the whole batch and micro-batches").into());
    }
    println!("all plans give the same weights bit for bit; those of the whole batch differ by at most {largest:e}");
    Ok(())
}
