//! The subcommands, one in each file, and what they share: the arguments that name a model and a device, and lines about progress.

pub(crate) mod embed;
pub(crate) mod search;
pub(crate) mod serve;

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use streamvm::{DeviceId, DeviceKind, Vm};
use streamvm_minilm::bert::Bert;
use streamvm_minilm::config::longest_text;
use streamvm_minilm::error::Error;
use streamvm_minilm::layers::Placement;
use streamvm_minilm::tokens::Tokens;

/// The arguments of all subcommands.
#[derive(clap::Args)]
pub(crate) struct ModelArguments {
    /// The device that computes, such as cuda:0
    #[arg(long, default_value = "cpu:0")]
    pub(crate) device: DeviceId,
    /// How many texts are computed together, at most
    #[arg(long, value_name = "N", default_value = "32", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) batch: u16,
    /// The folder of the model, to which `make model` fetches it
    #[arg(long, value_name = "FOLDER", default_value = "target/model")]
    pub(crate) model: PathBuf,
    /// Where the weights of the model are
    #[arg(long, value_enum, default_value_t = Weights::Device)]
    weights: Weights,
}

/// Where the weights of the model are.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Weights {
    /// All on the device
    Device,
    /// In host memory; those of two layers are on the device, and the next layer is copied while one computes
    Stream,
}

/// A model that is ready to compute.
pub(crate) struct Model {
    pub(crate) tokens: Tokens,
    pub(crate) bert: Bert,
    pub(crate) vm: Vm,
}

impl ModelArguments {
    /// Reads the model.
    pub(crate) fn read(&self) -> Result<Model, Error> {
        let tokens = Tokens::read(&self.model)?;
        let vm = engine(self.device)?;
        let placement = match self.weights {
            Weights::Device => Placement::Compiled { texts: self.batch.into(), tokens: longest_text(&self.model)? },
            Weights::Stream => Placement::Streamed,
        };
        let bert = Bert::read(&vm, self.device, placement, &self.model)?;
        Ok(Model { tokens, bert, vm })
    }
}

/// The most CPU devices or simulated devices of the engine.
const MOST_DEVICES: u32 = 8;

/// An engine that has the device.
fn engine(device: DeviceId) -> Result<Vm, streamvm::Error> {
    let builder = Vm::builder();
    // A larger index is an error of the engine, which says what devices there are.
    let devices = device.index.saturating_add(1).min(MOST_DEVICES);
    match device.kind {
        DeviceKind::CPU => builder.cpu_devices(devices),
        DeviceKind::SIM => builder.sim_devices(devices),
        _ => builder,
    }
    .build()
}

/// Times between two lines about progress.
const EACH: Duration = Duration::from_secs(1);

/// Lines on standard error about how much is over, once a second.
pub(crate) struct Progress {
    things: &'static str,
    all: usize,
    begin: Instant,
    told: Instant,
}

impl Progress {
    /// Progress over `all` things, which begins now.
    pub(crate) fn new(things: &'static str, all: usize) -> Progress {
        let now = Instant::now();
        Progress { things, all, begin: now, told: now }
    }

    /// Tells that the embeddings of `passed` things are there, if a second has passed since the last line and some are left.
    pub(crate) fn tell(&mut self, passed: usize) {
        if passed < self.all && self.told.elapsed() >= EACH {
            self.told = Instant::now();
            say(&line(self.things, passed, self.all, self.begin.elapsed()));
        }
    }

    /// The time since the begin.
    pub(crate) fn seconds(&self) -> f64 {
        self.begin.elapsed().as_secs_f64()
    }
}

/// The line about `passed` of `all` things after this time. The time that is left is that of the others at the same rate.
fn line(things: &str, passed: usize, all: usize, time: Duration) -> String {
    let rate = passed as f64 / time.as_secs_f64();
    format!("{passed} of {all} {things}, {rate:.0} a second, {:.0} s left", (all - passed) as f64 / rate)
}

/// A line on standard error, for people; that nobody can read it is no error.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_about_progress_tells_the_rate_and_the_time_left() {
        let told = line("lines", 3200, 10_000, Duration::from_secs(8));
        assert_eq!(told, "3200 of 10000 lines, 400 a second, 17 s left");
    }
}
