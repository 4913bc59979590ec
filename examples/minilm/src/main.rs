//! The `minilm` command.

use std::io::{self, Write};
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
    #[arg(long, value_name = "N", default_value = "32", value_parser = clap::value_parser!(u16).range(1..=256))]
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
            let _ = writeln!(io::stderr(), "minilm: {error}");
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
            // Progress is for who reads it; nobody may.
            let _ = writeln!(io::stderr(), "{passed} of {} texts", texts.len());
        }
    })?;
    output.write(&rows, bert.size())?;
    let seconds = begin.elapsed().as_secs_f64();
    // The embeddings are written, also if nobody reads this line.
    let _ = writeln!(
        io::stdout(),
        "{}: {} texts, {} numbers each, {seconds:.2} s on {}",
        arguments.output.display(),
        texts.len(),
        bert.size(),
        arguments.device
    );
    Ok(())
}

/// The most CPU devices or simulated devices of the engine.
const MOST_DEVICES: u32 = 8;

/// An engine that has the device.
fn engine(device: DeviceId) -> Result<Vm, streamvm::Error> {
    let builder = Vm::builder();
    // A larger index is an error of the engine, which says what devices there are.
    let devices = device.index.saturating_add(1).min(MOST_DEVICES);
    match device.kind {
        DeviceKind::Cpu => builder.cpu_devices(devices),
        DeviceKind::Sim => builder.sim_devices(devices),
        DeviceKind::Cuda => builder,
    }
    .build()
}
