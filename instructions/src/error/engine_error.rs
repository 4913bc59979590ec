//! The errors of submitting and of waiting.

use std::sync::Arc;
use std::time::Duration;

use streamvm_ep::{self as ep, DType, Site};
use streamvm_stream::StreamKey;

use crate::error::build_error::BuildError;
use crate::error::failure::Failure;
use crate::error::program_error::ProgramError;
use crate::place::Place;

/// Why a list was refused, or why a wait ended without success.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A view or an instruction could not be built: shapes, dtypes, places or parameters do not fit.
    #[error("{}{error}{}", in_call(*call), called_at(*site))]
    Build {
        /// The reason.
        error: BuildError,
        /// The call, if it is that of a view, or is made of several instructions: the reason does not name it then.
        call: Option<&'static str>,
        /// Where the caller called.
        site: Site,
    },
    /// An instruction failed. Every wait for a resource that it should have written returns its root cause.
    #[error("{0}")]
    Failed(Arc<Failure>),
    /// An error of a device, stream or kernel, such as a device that the engine does not have.
    #[error("{error}{}", called_at(*site))]
    Device {
        /// The error of the device.
        error: ep::Error,
        /// Where the caller issued what the error is about.
        site: Site,
    },
    /// There is not enough memory for a tensor that an instruction creates. The engine had first waited for all pending work, and
    /// had freed its cached memory.
    #[error("{}{what}, issued at {site}: {source}; free tensors, raise the limit, or work in smaller parts", numbered(*line))]
    OutOfMemory {
        /// The line of the list; `None` for a tensor that was made from the caller's data, without an instruction.
        line: Option<usize>,
        /// The instruction.
        what: String,
        /// Where the caller issued it.
        site: Site,
        /// The error of the device.
        source: Box<ep::Error>,
    },
    /// A call could not be recorded, or a program not compiled or run.
    #[error("{error}{}", if error.has_site() { String::new() } else { called_at(*site) })]
    Program {
        /// The reason.
        error: Box<ProgramError>,
        /// Where the caller called.
        site: Site,
    },
    /// An environment variable names an engine that does not exist.
    #[error(
        "{variable} is {found:?}, and no engine is called so; set it to inline, shared or per-device, or to nothing for the \
         default"
    )]
    UnknownEngine {
        /// The environment variable.
        variable: &'static str,
        /// Its value.
        found: String,
    },
    /// An environment variable that sets a number of threads holds something else.
    #[error(
        "{variable} is {found:?}, which is no number of threads; set it to 1 or more, or to nothing for the default"
    )]
    NoThreadCount {
        /// The environment variable.
        variable: &'static str,
        /// Its value.
        found: String,
    },
    /// The operating system could not start a thread.
    #[error("no thread could be started for the engine: {reason}")]
    NoThread {
        /// The error of the operating system.
        reason: String,
    },
    /// The trace of an engine cannot be begun or written.
    #[error("no trace can be written to {file}: {reason}")]
    NoTrace {
        /// The file.
        file: String,
        /// Why not, and what to do about it.
        reason: String,
    },
    /// The engine cannot manage the memory of a place as configured.
    #[error("no memory on {place}: {reason}{}", called_at(*site))]
    NoMemory {
        /// Where the caller asked for the first memory there.
        site: Site,
        /// The place.
        place: Place,
        /// The reason.
        reason: String,
    },
    /// No backend of this engine runs a stream of this type and device.
    #[error("no stream {stream} in this engine: {reason}{}", called_at(*site))]
    NoStream {
        /// The stream.
        stream: StreamKey,
        /// The reason.
        reason: String,
        /// Where the caller issued the first instruction for it.
        site: Site,
    },
    /// A record, a wait, a barrier or a global sync on a stream of workers: it has no order in which the instruction could have a
    /// position.
    #[error(
        "{} has no meaning on {stream}, which runs each instruction as soon as its needs are met; put it on an ordered stream, or wait for a tensor or variable",
        told(*line, what, *site)
    )]
    Unordered {
        /// The line of the list.
        line: usize,
        /// The instruction.
        what: String,
        /// The stream.
        stream: StreamKey,
        /// Where the caller issued it.
        site: Site,
    },
    /// An instruction reads a tensor that no instruction has written.
    #[error(
        "{} needs {operand}, which nothing has written; write it first, or submit the list that does", told(*line, what, *site)
    )]
    NeverWritten {
        /// The line of the list.
        line: usize,
        /// The instruction.
        what: String,
        /// The tensor, in words.
        operand: String,
        /// Where the caller issued it.
        site: Site,
    },
    /// A tensor is used after its release, or a variable after its deletion.
    #[error(
        "{} uses {operand} after it was released or deleted; make a new one", told(*line, what, *site)
    )]
    Released {
        /// The line of the list.
        line: usize,
        /// The instruction.
        what: String,
        /// The tensor or variable, in words.
        operand: String,
        /// Where the caller issued it.
        site: Site,
    },
    /// An instruction writes or releases a tensor whose memory is lent to code outside of the engine, such as another library, or belongs to such code.
    #[error(
        "{} writes or releases {operand}, whose memory is shared with code outside of the engine, to be read; write a copy, or first drop what it is lent to, such as the array of another library", told(*line, what, *site)
    )]
    Lent {
        /// The line of the list.
        line: usize,
        /// The instruction.
        what: String,
        /// The tensor, in words.
        operand: String,
        /// Where the caller issued it.
        site: Site,
    },
    /// A tensor or variable belongs to another engine.
    #[error(
        "{} uses {operand} of another engine; copy the values of a tensor over, and make a variable of this engine", told(*line, what, *site)
    )]
    Foreign {
        /// The line of the list.
        line: usize,
        /// The instruction.
        what: String,
        /// The tensor or variable, in words.
        operand: String,
        /// Where the caller issued it.
        site: Site,
    },
    /// A wait names an event or instruction that was not submitted before the wait.
    #[error(
        "instruction {line}, issued at {site}, waits for {target}, which is not submitted before it; a wait must name an earlier point"
    )]
    WaitsForLater {
        /// The line of the list.
        line: usize,
        /// Where the caller issued it.
        site: Site,
        /// The event or the instruction that the wait names.
        target: String,
    },
    /// The instructions of a list that is planned are on more streams than an engine may have.
    #[error("instruction {line} is the first on {stream}, and an engine has at most {most} streams; use fewer lanes")]
    TooManyStreams {
        /// The line of the list.
        line: usize,
        /// The first stream past the limit.
        stream: StreamKey,
        /// How many streams an engine has at most.
        most: usize,
    },
    /// The plan of a list has too many waits.
    #[error("up to instruction {line} the list comes to more than {most} waits; plan it in smaller parts")]
    TooManyWaits {
        /// The line of the list.
        line: usize,
        /// How many waits a plan has at most.
        most: usize,
    },
    /// An event was recorded twice.
    #[error(
        "instruction {line}, issued at {site}, records an event that was recorded before; make a new event for each record"
    )]
    RecordedTwice {
        /// The line of the list.
        line: usize,
        /// Where the caller issued it.
        site: Site,
    },
    /// A list or a program begins a critical section and does not end it.
    #[error(
        "instruction {line} begins the critical section over {section} at {site}, and no later one ends it; end it in the same list or \
         program, or enter it by `Vm::enter_section` and run the program in it"
    )]
    NotEnded {
        /// The line of the list, or the number of the step of the program.
        line: usize,
        /// The names of the section's resources.
        section: String,
        /// Where the caller began it.
        site: Site,
    },
    /// A critical section begins in another one of the same thread, list or program.
    #[error(
        "instruction {line} begins the critical section over {section} inside of the one over {open}, which begins at {site}; end that one \
         first, or name the resources of both in one section"
    )]
    NestedSection {
        /// The line of the list, or the number of the step of the program.
        line: usize,
        /// The names of the section's resources.
        section: String,
        /// The names of the resources of the open section.
        open: String,
        /// Where the caller began the open section.
        site: Site,
    },
    /// A list or a program ends a critical section that is not open.
    #[error(
        "instruction {line}, issued at {site}, ends the critical section over {section}, which is not open there; begin it before, in the same list or program, and end it once"
    )]
    NoSection {
        /// The line of the list, or the number of the step of the program.
        line: usize,
        /// Where the caller issued it.
        site: Site,
        /// The names of the section's resources.
        section: String,
    },
    /// Another thread has a critical section over a resource open, and the caller asked not to block, or may not.
    #[error(
        "another thread has the critical section over {section} open, which begins at {site}; submit after it has ended, or let the call block"
    )]
    SectionHeld {
        /// The names of the resources of the open section.
        section: String,
        /// Where its holder began it.
        site: Site,
    },
    /// The function was parsed from text, so it has no code to run.
    #[error(
        "instruction {line}, issued at {site}: fn {name:?} was parsed from text and has no code to run; build the list in a program to run it"
    )]
    Placeholder {
        /// The line of the list.
        line: usize,
        /// Where the caller issued it.
        site: Site,
        /// The function's name.
        name: String,
    },
    /// The queue is full, or other submitters wait for space in it, and the caller asked not to block, or may not.
    #[error(
        "the queue has no room for {more} more instructions: {instructions} of at most {most_instructions} instructions and {bytes} of at most {most_bytes} \
         bytes are pending, or other submitters wait for room; wait for some, or raise `max_instructions` or `max_bytes`{}", called_at(*site)
    )]
    WouldBlock {
        /// Where the caller called.
        site: Site,
        /// How many instructions were to be submitted.
        more: u64,
        /// Instructions pending.
        instructions: u64,
        /// How many may be pending.
        most_instructions: u64,
        /// Bytes that pending instructions keep alive.
        bytes: u64,
        /// How many they may keep alive.
        most_bytes: u64,
    },
    /// The caller waits on a thread of an engine, so that the thread would wait for itself.
    #[error(
        "waiting on a thread of an engine (kernel, function or callback) would deadlock; a function declares what it needs by read() and takes it from \
         `context.reads`; else wait on a thread of your own, or use a callback{}",
        called_at(*site)
    )]
    WouldDeadlock {
        /// Where the caller called.
        site: Site,
    },
    /// The deadline passed before the wait was over.
    #[error("not over after {after:?}: {waited_for}; {advice}{}", called_at(*site))]
    Timeout {
        /// The time limit of the wait.
        after: Duration,
        /// What has not happened: the instruction that all others waited for in the end, a full queue, a critical section.
        waited_for: String,
        /// The advice that ends the message: whether the call has submitted anything, and when to call again.
        advice: &'static str,
        /// Where the caller waited.
        site: Site,
    },
    /// No pending work can make progress. Only a simulated engine, which runs its own steps, can detect this.
    #[error("nothing can go on{}: {report}", called_at(*site))]
    Stalled {
        /// Where the caller waited.
        site: Site,
        /// The pending work, and what each part of it waits for.
        report: String,
    },
    /// The engine was shut down.
    #[error(
        "the engine takes nothing more: it was closed by `close` or `shutdown`, or its last `Vm` was dropped; results are read before `shutdown` and the drop{}",
        called_at(*site)
    )]
    Shutdown {
        /// Where the caller called.
        site: Site,
    },
    /// This process was forked from the process that built the engine.
    #[error(
        "this process was forked from the one that built the engine, and has none of the engine's threads; \
         use the engine in that process, or build another one here{}", called_at(*site)
    )]
    Forked {
        /// Where the caller called.
        site: Site,
    },
    /// The tensor or variable is not bound to an engine yet.
    #[error("no submission has used {operand} yet; submit the list that writes it first{}", called_at(*site))]
    NotSubmitted {
        /// The tensor or variable, in words.
        operand: String,
        /// Where the caller called.
        site: Site,
    },
    /// An error of the caller's own code, in a closure that gives this type: `Err("no such layer".into())`.
    #[error("{0}")]
    Caller(String),
    /// The caller asked for elements of another dtype.
    #[error("the tensor is {found}{shape}, and its elements were asked for or given as {asked}; cast it first{}", called_at(*site))]
    WrongDType {
        /// Where the caller called.
        site: Site,
        /// The dtype of the tensor.
        found: DType,
        /// The shape of the tensor.
        shape: Box<ep::Shape>,
        /// The dtype that the caller asked for.
        asked: DType,
    },
}

/// Each conversion takes the caller's line: that of the `?`, or of the call of the function with `#[track_caller]` that it is in.
macro_rules! from {
    ($($source:ty, $error:ident => $made:expr;)*) => {$(
        impl From<$source> for Error {
            #[track_caller]
            fn from($error: $source) -> Error {
                let site = Site::caller();
                $made(site)
            }
        }
    )*};
}

from! {
    BuildError, error => |site| Error::Build { error, call: None, site };
    ep::ShapeError, error => |site| Error::Build { error: error.into(), call: None, site };
    ep::OpError, error => |site| Error::Build { error: error.into(), call: None, site };
    ep::Error, error => |site| Error::Device { error, site };
    ep::RegisterError, error => |site| Error::Device { error: error.into(), site };
    ProgramError, error => |site| Error::Program { error: Box::new(error), site };
}

impl From<&str> for Error {
    fn from(text: &str) -> Error {
        Error::Caller(text.to_owned())
    }
}

impl From<String> for Error {
    fn from(text: String) -> Error {
        Error::Caller(text)
    }
}

impl Error {
    /// [`Error::NoStream`], told of the caller.
    #[track_caller]
    pub fn no_stream(stream: StreamKey, reason: String) -> Error {
        Error::NoStream { stream, reason, site: Site::caller() }
    }

    /// [`Error::Shutdown`], told of the caller.
    #[track_caller]
    pub fn shutdown() -> Error {
        Error::Shutdown { site: Site::caller() }
    }

    /// [`Error::Forked`], told of the caller.
    #[track_caller]
    pub fn forked() -> Error {
        Error::Forked { site: Site::caller() }
    }

    /// Adds to an error without an instruction the one that it is about: its name, where running out of memory is told, and its site.
    #[must_use]
    pub fn about(self, line: Option<usize>, what: &str, site: Site) -> Error {
        match self {
            Error::Device { error: source @ ep::Error::OutOfMemory { .. }, .. } => {
                Error::OutOfMemory { line, what: what.to_owned(), site, source: Box::new(source) }
            }
            other => other.called_from(site),
        }
    }

    /// The same error, told of a call at `site`. Errors of an instruction keep the site of that.
    #[must_use]
    pub fn called_from(mut self, site: Site) -> Error {
        if let Some(own) = self.call() {
            *own = site;
        }
        self
    }

    /// The same error, and the caller is told that a call was given up before it submitted anything.
    #[must_use]
    pub fn not_submitted(mut self) -> Error {
        if let Error::Timeout { advice, .. } = &mut self {
            *advice = "nothing was submitted; call again later, or with a longer limit";
        }
        self
    }

    /// The same error, told of `call`, which is a view or is made of several instructions.
    #[must_use]
    pub(crate) fn in_call(self, call: &'static str) -> Error {
        match self {
            Error::Build { error, site, .. } => Error::Build { error, call: Some(call), site },
            other => other,
        }
    }

    /// Whether it tells of the state of the engine, and not of an instruction.
    pub fn is_of_engine(&self) -> bool {
        matches!(
            self,
            Error::WouldBlock { .. }
                | Error::WouldDeadlock { .. }
                | Error::Timeout { .. }
                | Error::Stalled { .. }
                | Error::Shutdown { .. }
                | Error::Forked { .. }
        )
    }

    /// The text without the place of the call, for an interpreter that prints the place in its own way.
    pub fn without_call(&self) -> String {
        let text = self.to_string();
        match self.clone().call() {
            // The last, because a text may quote another error.
            Some(site) => match text.rsplit_once(&called_at(*site)) {
                Some((before, after)) => format!("{before}{after}"),
                None => text,
            },
            None => text,
        }
    }

    /// The place of the call, of an error that is about no instruction.
    fn call(&mut self) -> Option<&mut Site> {
        match self {
            Error::Build { site, .. }
            | Error::Device { site, .. }
            | Error::Program { site, .. }
            | Error::NoMemory { site, .. }
            | Error::NoStream { site, .. }
            | Error::WouldBlock { site, .. }
            | Error::WouldDeadlock { site }
            | Error::Timeout { site, .. }
            | Error::Stalled { site, .. }
            | Error::Shutdown { site }
            | Error::Forked { site }
            | Error::NotSubmitted { site, .. }
            | Error::WrongDType { site, .. } => Some(site),
            _ => None,
        }
    }

    /// Maps the line of the error through `lines`. The engine had rewritten the list (see [`Staged`](crate::Staged)), and `lines`
    /// has, for each line of the rewritten list, the line that it came from.
    #[must_use]
    pub fn by_lines(mut self, lines: &[usize]) -> Error {
        // Every variant is named, so that a new one with a line cannot be forgotten.
        let told = match &mut self {
            Error::OutOfMemory { line, .. } => line.as_mut(),
            Error::Unordered { line, .. }
            | Error::NeverWritten { line, .. }
            | Error::Released { line, .. }
            | Error::Lent { line, .. }
            | Error::Foreign { line, .. }
            | Error::WaitsForLater { line, .. }
            | Error::TooManyStreams { line, .. }
            | Error::TooManyWaits { line, .. }
            | Error::RecordedTwice { line, .. }
            | Error::NotEnded { line, .. }
            | Error::NestedSection { line, .. }
            | Error::NoSection { line, .. }
            | Error::Placeholder { line, .. } => Some(line),
            Error::Build { .. }
            | Error::Failed(_)
            | Error::Program { .. }
            | Error::Device { .. }
            | Error::UnknownEngine { .. }
            | Error::NoThreadCount { .. }
            | Error::NoThread { .. }
            | Error::NoTrace { .. }
            | Error::NoMemory { .. }
            | Error::NoStream { .. }
            | Error::WouldBlock { .. }
            | Error::SectionHeld { .. }
            | Error::WouldDeadlock { .. }
            | Error::Timeout { .. }
            | Error::Stalled { .. }
            | Error::Shutdown { .. }
            | Error::Forked { .. }
            | Error::Caller(_)
            | Error::NotSubmitted { .. }
            | Error::WrongDType { .. } => None,
        };
        if let Some(line) = told {
            *line = lines.get(*line).copied().unwrap_or(*line);
        }
        self
    }
}

/// The end of a message that does not name the place of the call elsewhere.
fn called_at(site: Site) -> String {
    format!(" (called at {site})")
}

/// The name of an instruction in a message. The first of a list goes without its number: most are the only one, of an eager call.
fn told(line: usize, what: &str, site: Site) -> String {
    match line {
        0 => format!("{what}, issued at {site},"),
        _ => format!("instruction {line} ({what}, issued at {site})"),
    }
}

fn in_call(call: Option<&str>) -> String {
    call.map_or_else(String::new, |call| format!("{call}: "))
}

fn numbered(line: Option<usize>) -> String {
    line.filter(|line| *line > 0).map_or_else(String::new, |line| format!("instruction {line}: "))
}

ep::debug_as_display!(Error);

#[cfg(test)]
#[path = "engine_error_tests.rs"]
mod tests;
