//! Errors of building, submitting and waiting.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use streamvm_ep::{self as ep, DType, Op, Shape};
use streamvm_stream::{Point, RunBy, StreamClass, StreamKey};

use crate::Place;

/// Why an instruction cannot be built. Nothing was added to the list.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Operands do not fit the op: shapes, dtypes, axes.
    #[error(transparent)]
    Op(#[from] ep::OpError),
    /// A shape or a view is impossible.
    #[error(transparent)]
    Shape(#[from] ep::ShapeError),
    /// An operand lives where the instruction cannot reach it.
    #[error("{what}: an operand lives on {found}, the instruction runs on {expected}; copy it there first")]
    Place {
        /// The instruction.
        what: String,
        /// Where the operand lives.
        found: Place,
        /// Where the instruction runs.
        expected: Place,
    },
    /// An operand lies in memory that the stream's runner cannot address: the device of the stream, or threads of the host.
    #[error(
        "{what}: an operand lives on {found} in {memory} memory, and {}, which cannot reach it; {}",
        runner(*stream), way_out(*stream, *found)
    )]
    OutOfReach {
        /// The instruction.
        what: String,
        /// The instruction's stream.
        stream: StreamKey,
        /// Where the operand lives.
        found: Place,
        /// The memory of that place that the operand lives in.
        memory: ep::MemoryKind,
    },
    /// A kernel cannot run on host tensors.
    #[error("{op}: an operand lives on host memory, and kernels run on devices; copy it to one first, such as cpu:0")]
    OnHost {
        /// The op.
        op: Op,
    },
    /// The given output does not have what the instruction produces.
    #[error("{what}: the output is {found_dtype}{found}, and {expected_dtype}{expected} is needed")]
    Output {
        /// The instruction.
        what: String,
        /// What is needed.
        expected: Box<Shape>,
        /// What was given.
        found: Box<Shape>,
        /// What is needed.
        expected_dtype: DType,
        /// What was given.
        found_dtype: DType,
    },
    /// A written operand has elements in common with another operand of the same instruction. Operands count from 0, inputs first.
    #[error("{what}: operand {first} is written and has elements in common with operand {second}; {help}")]
    Overlap {
        /// The instruction.
        what: String,
        /// The written operand's position.
        first: usize,
        /// The other operand's position.
        second: usize,
        /// What to do.
        help: &'static str,
    },
    /// A written view reaches one element by two indices.
    #[error("{what}: the written view broadcasts, so several indices are one element; write to a tensor of its own")]
    WritesBroadcast {
        /// The instruction.
        what: String,
    },
    /// An instruction writes upload memory, and is no copy that threads of the host make.
    #[error(
        "{what}: the written operand lives in upload memory, which only copies by the host write; write to pinned or \
         device memory, or copy from host memory on a stream of a CPU device"
    )]
    WritesUpload {
        /// The instruction.
        what: String,
    },
    /// The scalar has no exact value in the dtype.
    #[error("{what}: the value {value} does not fit {dtype}")]
    Value {
        /// The instruction.
        what: String,
        /// The value.
        value: ep::Scalar,
        /// The dtype.
        dtype: DType,
    },
    /// An instruction that only orders claims to write.
    #[error("{what} writes nothing; declare what it orders by read()")]
    WritesNothing {
        /// The instruction.
        what: String,
    },
    /// A function that is shown no memory claims to overwrite a tensor.
    #[error("{what} is shown no memory, so it cannot overwrite a tensor; declare it by update()")]
    OrderAlone {
        /// The function.
        what: String,
    },
    /// A function writes to more operands than it can be given.
    #[error("{what} writes {found} operands; a function writes at most {most}: write fewer, or use several functions")]
    TooManyWrites {
        /// The function.
        what: String,
        /// How many it writes.
        found: usize,
        /// How many it may write.
        most: usize,
    },
    /// An instruction has other uses than its kind needs.
    #[error("{what} uses {inputs} tensors to read and then one to write; found {found} uses that are not these")]
    Form {
        /// The instruction.
        what: String,
        /// How many tensors it reads.
        inputs: usize,
        /// How many uses were given.
        found: usize,
    },
    /// A view reaches past its storage.
    #[error("a view of shape {shape} reaches past its storage of {elements} elements")]
    PastStorage {
        /// The view's shape.
        shape: Shape,
        /// How many elements the storage has.
        elements: usize,
    },
    /// Data and shape disagree.
    #[error("{elements} elements were given for shape {shape}, which has {}", shape.elements())]
    Length {
        /// How many elements were given.
        elements: usize,
        /// The shape.
        shape: Shape,
    },
}

/// Who runs a stream, for errors.
fn runner(stream: StreamKey) -> String {
    match StreamClass::of(&stream).run_by() {
        RunBy::Host => format!("threads of the host run {stream}"),
        RunBy::Device => format!("{} runs {stream}", stream.device),
    }
}

/// What to do about an operand that lives on `found`, where the runner of `stream` cannot reach it.
fn way_out(stream: StreamKey, found: Place) -> String {
    let first = "copy it to host memory first";
    match found.device() {
        Some(device) if StreamClass::of(&stream).run_by() == RunBy::Host => {
            format!("{first}, or have {device} run the instruction, if it is a kernel, a copy or a fill")
        }
        Some(_) | None => first.to_owned(),
    }
}

/// One failed instruction: the root cause that every waiter sees.
#[derive(Clone, PartialEq)]
pub struct Failure {
    /// The instruction: its stream and the engine's own number of it there. On workers that number means nothing else.
    pub point: Point,
    /// Which instruction it is, counted from 1: among those of its stream, or on workers, which have no order, among all that the
    /// program has submitted.
    pub number: u64,
    /// The stream.
    pub stream: StreamKey,
    /// What ran: the op, the function's name, or the kind of instruction.
    pub what: String,
    /// Where the caller issued it.
    pub site: &'static Location<'static>,
    /// What went wrong.
    pub cause: Cause,
}

/// What went wrong in an instruction.
#[derive(Clone, PartialEq)]
pub enum Cause {
    /// The device or a kernel reported it.
    Device(ep::Error),
    /// The caller's function returned an error; its text.
    Function(String),
    /// The kernel or the caller's function panicked; its message.
    Panic(String),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Device(error) => write!(f, "{error}"),
            Cause::Function(text) => write!(f, "{text}"),
            Cause::Panic(text) => write!(f, "panicked: {text}"),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { point, number, stream, what, site, cause } = self;
        let among = if point.stream.is_unordered() { " of the program" } else { "" };
        write!(f, "{what} failed on {stream} (instruction {number}{among}), issued at {site}: {cause}")
    }
}

impl std::error::Error for Failure {}

ep::debug_as_display!(BuildError, Cause, Failure, Error);

impl Error {
    /// The error with the instruction that it is about, where that matters and is not known yet: who is out of memory.
    #[must_use]
    pub fn about(self, line: Option<usize>, what: &str, site: &'static Location<'static>) -> Error {
        match self {
            Error::Device(source @ ep::Error::OutOfMemory { .. }) => {
                Error::OutOfMemory { line, what: what.to_owned(), site, source: Box::new(source) }
            }
            other => other,
        }
    }

    /// The error about a line of a list that was written anew, told by the line that it came from: `lines` has it for each.
    #[must_use]
    pub fn by_lines(mut self, lines: &[usize]) -> Error {
        let told = match &mut self {
            Error::OutOfMemory { line, .. } => line.as_mut(),
            Error::NeverWritten { line, .. }
            | Error::Released { line, .. }
            | Error::Foreign { line, .. }
            | Error::WaitsForLater { line, .. }
            | Error::RecordedTwice { line }
            | Error::Placeholder { line, .. } => Some(line),
            _ => None,
        };
        if let Some(line) = told {
            *line = lines.get(*line).copied().unwrap_or(*line);
        }
        self
    }
}

fn numbered(line: Option<usize>) -> String {
    line.map_or_else(String::new, |line| format!("instruction {line}: "))
}

/// Why a list was refused, or a wait ended without success.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The instruction could not be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// An instruction failed; waiters of what it should have written see its root cause each time they ask.
    #[error("{0}")]
    Failed(Arc<Failure>),
    /// No device of that name in this engine.
    #[error(transparent)]
    Device(#[from] ep::Error),
    /// There is not enough memory for what an instruction creates, also after everything pending had passed and cached
    /// memory was given back.
    #[error("{}{what}, issued at {site}: {source}; free tensors, raise the limit, or work in smaller parts", numbered(*line))]
    OutOfMemory {
        /// The line of the list; `None` for a tensor that is made of the caller's data, without an instruction.
        line: Option<usize>,
        /// The instruction.
        what: String,
        /// Where the caller issued it.
        site: &'static Location<'static>,
        /// What the device said.
        source: Box<ep::Error>,
    },
    /// The environment names an engine that there is not.
    #[error(
        "{variable} is {found:?}, and no engine is called so; set it to inline, shared or per-device, or to nothing for the \
         default"
    )]
    UnknownEngine {
        /// The variable of the environment.
        variable: &'static str,
        /// What it holds.
        found: String,
    },
    /// A thread could not be started.
    #[error("no thread could be started for the engine: {reason}")]
    NoThread {
        /// What the system said.
        reason: String,
    },
    /// Memory cannot be managed as asked.
    #[error("no memory on {place}: {reason}")]
    NoMemory {
        /// The place.
        place: Place,
        /// What is in the way.
        reason: String,
    },
    /// No backend of this engine runs such a stream.
    #[error("no stream {stream} in this engine: {reason}")]
    NoStream {
        /// The stream.
        stream: StreamKey,
        /// What is missing.
        reason: String,
    },
    /// A record, a wait, a barrier or a sync on workers, which have no order for it to stand in.
    #[error(
        "instruction {line} ({what}) has no meaning on {stream}, which runs each instruction as soon as its needs are met; put it on an ordered stream, or wait for a tensor or variable"
    )]
    Unordered {
        /// The line of the list.
        line: usize,
        /// The instruction.
        what: String,
        /// The stream.
        stream: StreamKey,
    },
    /// A tensor is used before anything wrote it.
    #[error(
        "instruction {line} ({what}) needs a tensor that nothing has written; write it first, or submit the list that does"
    )]
    NeverWritten {
        /// The line of the list.
        line: usize,
        /// The instruction.
        what: String,
    },
    /// A tensor is used after it was released, or a variable after it was deleted.
    #[error(
        "instruction {line} ({what}) uses a tensor after its release, or a variable after it was deleted; make a new one"
    )]
    Released {
        /// The line of the list.
        line: usize,
        /// The instruction.
        what: String,
    },
    /// A tensor or variable belongs to another engine.
    #[error("instruction {line} ({what}) uses a tensor or variable of another engine; copy its values over")]
    Foreign {
        /// The line of the list.
        line: usize,
        /// The instruction.
        what: String,
    },
    /// A wait names something that is not submitted before it.
    #[error(
        "instruction {line} waits for {target}, which is not submitted before it; a wait must name an earlier point"
    )]
    WaitsForLater {
        /// The line of the list.
        line: usize,
        /// What it waits for.
        target: String,
    },
    /// A list is planned whose instructions are on more streams than an engine has.
    #[error("instruction {line} is the first on {stream}, and an engine has at most {most} streams; use fewer lanes")]
    TooManyStreams {
        /// The line of the list.
        line: usize,
        /// The stream that is one too many.
        stream: StreamKey,
        /// How many streams an engine has at most.
        most: usize,
    },
    /// A list is planned that comes to very many waits.
    #[error("up to instruction {line} the list comes to more than {most} waits; plan it in smaller parts")]
    TooManyWaits {
        /// The line of the list.
        line: usize,
        /// How many waits a plan has at most.
        most: usize,
    },
    /// An event was recorded twice.
    #[error("instruction {line} records an event that was recorded before; make a new event for each record")]
    RecordedTwice {
        /// The line of the list.
        line: usize,
    },
    /// A parsed function stands for code that is not there.
    #[error(
        "instruction {line}: fn {name:?} was parsed from text and has no code to run; build the list in a program to run it"
    )]
    Placeholder {
        /// The line of the list.
        line: usize,
        /// The function's name.
        name: String,
    },
    /// The caller asked not to block, or may not, and the queue is full or other submitters wait for room in it.
    #[error(
        "the queue is full, or other submitters wait for room in it: {instructions} instructions and {bytes} bytes are pending; \
         wait for some, or raise the limits"
    )]
    WouldBlock {
        /// Instructions pending.
        instructions: u64,
        /// Bytes that pending instructions keep.
        bytes: u64,
    },
    /// Waiting on a thread of an engine would wait for itself.
    #[error(
        "waiting on a thread of an engine (kernel, function or callback) would deadlock; wait outside, or use a callback"
    )]
    WouldDeadlock,
    /// The deadline passed first.
    #[error("not over after {0:?}; the work goes on, ask again")]
    Timeout(Duration),
    /// Nothing can go on, and something is pending. Only a simulated engine, which steps itself, can know.
    #[error("nothing can go on: {report}")]
    Stalled {
        /// What is pending, and what it waits for.
        report: String,
    },
    /// The engine was shut down.
    #[error("the engine was shut down; nothing more runs on it")]
    Shutdown,
    /// This process was forked from the one that built the engine.
    #[error(
        "this process was forked from the one that built the engine, and has none of the engine's threads; \
         use the engine in that process, or build another one here"
    )]
    Forked,
    /// The tensor is not known to any engine yet.
    #[error("the tensor is not submitted to an engine yet; submit the list that writes it first")]
    NotSubmitted,
    /// Elements of another dtype were asked for.
    #[error("the tensor holds {found}, and {asked} was asked for; cast it first")]
    WrongDType {
        /// What the tensor holds.
        found: DType,
        /// What was asked for.
        asked: DType,
    },
}
