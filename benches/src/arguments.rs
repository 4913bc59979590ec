//! What the programs that measure have in common: their arguments, and how they end.

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, value_parser};

/// Runs of a full measurement: the fewest whose median shrugs off two bad ones.
const RUNS: u32 = 5;

/// Runs of a quick one: two, so that a second run is tried at all.
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
    /// How often each case runs.
    pub fn runs(&self) -> u32 {
        self.runs.unwrap_or(if self.quick { QUICK_RUNS } else { RUNS })
    }
}

/// Ends a program whose arguments were rejected, as the reader of arguments ends it.
pub fn reject<Program: CommandFactory>(message: &str) -> ExitCode {
    let error = Program::command().error(ErrorKind::InvalidValue, message);
    // Nothing is left to be done where standard error is closed.
    let _ = error.print();
    ExitCode::from(2)
}
