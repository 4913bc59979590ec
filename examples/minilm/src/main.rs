//! The `minilm` command.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command prints its results and what it does")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use streamvm::{DeviceId, DeviceKind, Vm};
use streamvm_minilm::bert::Bert;
use streamvm_minilm::embed::embed;
use streamvm_minilm::error::Error;
use streamvm_minilm::files::{Output, read_texts};
use streamvm_minilm::tokens::Tokens;

/// Sentence embeddings by all-MiniLM-L6-v2.
#[derive(Parser)]
#[command(name = "minilm", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Computes the embeddings of texts: 384 numbers each, of length 1.
    Embed(Embed),
}

#[derive(Parser)]
struct Embed {
    /// A JSON array of texts. A text is cut at 256 tokens
    #[arg(long = "in", value_name = "FILE")]
    input: PathBuf,
    /// The .npy file to write: float32, one row for each text
    #[arg(long = "out", value_name = "FILE")]
    output: PathBuf,
    /// The device that computes, such as cuda:0
    #[arg(long, default_value = "cpu:0")]
    device: DeviceId,
    /// How many texts are computed together
    #[arg(long, value_name = "N", default_value = "32", value_parser = clap::value_parser!(u16).range(1..=4096))]
    batch: u16,
    /// The folder of the model, to which `make model` fetches it
    #[arg(long, value_name = "FOLDER", default_value = "target/model")]
    model: PathBuf,
}

/// Times between two lines about progress.
const EACH: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    env_logger::init();
    let Command::Embed(arguments) = Arguments::parse().command;
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("minilm: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Embed) -> Result<(), Error> {
    let texts = read_texts(&arguments.input)?;
    let output = Output::create(&arguments.output, &arguments.input)?;
    let tokens = Tokens::read(&arguments.model)?;
    let vm = engine(arguments.device)?;
    let bert = Bert::read(&vm, arguments.device, &arguments.model)?;
    let begin = Instant::now();
    let mut told = begin;
    let rows = embed(&vm, &bert, &tokens, &texts, arguments.batch.into(), |passed| {
        if passed < texts.len() && told.elapsed() >= EACH {
            told = Instant::now();
            eprintln!("{passed} of {} texts", texts.len());
        }
    })?;
    output.write(&rows, bert.size())?;
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "{}: {} texts, {} numbers each, {seconds:.2} s on {}",
        arguments.output.display(),
        texts.len(),
        bert.size(),
        arguments.device
    );
    Ok(())
}

/// An engine that has the device.
fn engine(device: DeviceId) -> Result<Vm, streamvm::Error> {
    let builder = Vm::builder();
    match device.kind {
        DeviceKind::Cpu => builder.cpu_devices(device.index + 1),
        DeviceKind::Sim => builder.sim_devices(device.index + 1),
        DeviceKind::Cuda => builder,
    }
    .build()
}
