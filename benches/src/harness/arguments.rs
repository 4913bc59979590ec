//! The arguments that the measuring programs share, and how these programs reject arguments.

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, value_parser};

/// Runs of a full measurement: the fewest whose median is not affected by two bad runs.
const RUNS: u32 = 5;

/// Runs of a quick measurement: two, so that a second run is exercised.
const QUICK_RUNS: u32 = 2;

/// What to measure, and how often.
#[derive(Args)]
pub struct Measuring {
    /// How often each case runs; figures are medians [default: 5; 2 with --quick]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=1000))]
    runs: Option<u32>,
    /// Tiny sizes, to see that everything works; the figures mean nothing
    #[arg(long)]
    pub quick: bool,
    /// Only what has NAME in its name, and what that is read against
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub filter: String,
}

impl Measuring {
    /// Number of runs of each case.
    pub fn runs(&self) -> u32 {
        self.runs.unwrap_or(if self.quick { QUICK_RUNS } else { RUNS })
    }
}

/// Prints the error of rejected arguments as clap does, and returns exit code 2.
pub fn reject<Program: CommandFactory>(message: &str) -> ExitCode {
    let error = Program::command().error(ErrorKind::InvalidValue, message);
    // If stderr is closed, only the exit code reports the error.
    let _ = error.print();
    ExitCode::from(2)
}
