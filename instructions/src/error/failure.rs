//! Failures: errors of instructions that were submitted.

use std::fmt;

use streamvm_ep::{self as ep, ProgramStep, Site};
use streamvm_stream::{Point, StreamKey};

/// One failed instruction: the root cause that every wait for its writes returns.
#[derive(Clone, PartialEq)]
pub struct Failure {
    /// The stream and the engine's own number of the instruction on it. On workers that number only identifies the instruction: it
    /// is no count.
    pub point: Point,
    /// The instruction's position, counted from 1: among the instructions of its stream, or, on workers, which have no order, among
    /// all instructions that the program has submitted.
    pub number: u64,
    /// The stream.
    pub stream: StreamKey,
    /// The op, the name of the function, or the kind of instruction.
    pub what: String,
    /// Where the caller issued it.
    pub site: Site,
    /// The error.
    pub cause: Cause,
}

/// The error of an instruction.
#[derive(Clone, PartialEq)]
pub enum Cause {
    /// An error of the device or of a kernel.
    Device(ep::Error),
    /// The text of the error that the caller's function returned.
    Function(String),
    /// The message of a panic in the kernel or in the caller's function.
    Panic(String),
    /// A step of a program failed.
    Step {
        /// The step.
        step: ProgramStep,
        /// The text of its error.
        error: String,
    },
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Device(error) => write!(f, "{error}"),
            Cause::Function(text) => write!(f, "{text}"),
            Cause::Panic(text) => write!(f, "panicked: {text}"),
            Cause::Step { step, error } => write!(f, "{step}: {error}"),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { point, number, stream, what, site, cause } = self;
        let among = if point.stream.is_unordered() { " of the engine" } else { "" };
        write!(f, "{what} failed on {stream} (instruction {number}{among}), issued at {site}: {cause}")
    }
}

impl std::error::Error for Failure {}

ep::debug_as_display!(Cause, Failure);
