//! The errors of building an instruction.

use streamvm_ep::{self as ep, DType, Op, Scalar, Shape};
use streamvm_stream::{RunBy, StreamClass, StreamKey};

use crate::place::Place;

/// Why an instruction or a view cannot be built. The list is unchanged.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Operands do not fit the op: shapes, dtypes, axes.
    #[error(transparent)]
    Op(#[from] ep::OpError),
    /// Operands of dtypes that the op does not take, with the dtypes and shapes of all of them.
    #[error("{error} (operands: {operands})")]
    DTypes {
        /// The error of the op.
        error: ep::OpError,
        /// All operands, in words.
        operands: String,
    },
    /// A shape or view is not possible.
    #[error(transparent)]
    Shape(#[from] ep::ShapeError),
    /// An operand lives where the instruction cannot use it.
    #[error("{what}: the operand {operand} lives on {found}, the instruction runs on {expected}; copy it there first")]
    Place {
        /// The instruction.
        what: String,
        /// The dtype and shape of the operand.
        operand: String,
        /// Where the operand lives.
        found: Place,
        /// Where the instruction runs.
        expected: Place,
    },
    /// An operand lives in memory that the runner of the stream (its device, or threads of the host) cannot address.
    #[error(
        "{what}: the operand {operand} lives on {found} in {memory} memory, and {}, which cannot reach it; {}",
        runner(*stream), way_out(*stream, *found)
    )]
    OutOfReach {
        /// The instruction.
        what: String,
        /// The dtype and shape of the operand.
        operand: String,
        /// The instruction's stream.
        stream: StreamKey,
        /// Where the operand lives.
        found: Place,
        /// The kind of memory at that place.
        memory: ep::MemoryKind,
    },
    /// A collective does not fit its operands or its group of ranks.
    #[error("{name}: {why}")]
    Collective {
        /// The collective.
        name: String,
        /// The reason, and a way out.
        why: String,
    },
    /// An operand of a function lives in memory of a device whose streams give the host no access to it.
    #[error(
        "{what}: the operand {operand} lives in memory of {device}, which no function of the host can reach; copy it to cpu:0 and call the function there, \
         or queue kernels of your own by `call_cuda`"
    )]
    HostFunction {
        /// The function.
        what: String,
        /// The dtype and shape of the operand.
        operand: String,
        /// The device.
        device: ep::DeviceId,
    },
    /// A kernel has host tensors as operands; kernels run on devices only.
    #[error(
        "{op}: the first operand lives on host memory, and kernels run on devices; copy it to one first, such as cpu:0"
    )]
    OnHost {
        /// The op.
        op: Op,
    },
    /// A probability that is none, or of dropping everything.
    #[error("the probability must be at least 0 and less than 1, such as 0.1, found {found}")]
    Probability {
        /// The number.
        found: Scalar,
    },
    /// A mask that does not broadcast to the scores of an attention.
    #[error("the scores are {scores}, queries by keys, and the mask is {found}, which does not broadcast to that")]
    Mask {
        /// The shape of the mask.
        found: Box<Shape>,
        /// The shape of the scores.
        scores: Box<Shape>,
    },
    /// Channels that cannot be divided into groups.
    #[error("{found} by {groups} groups: it needs an input [n, c, ..], and groups that divide its c channels")]
    Groups {
        /// The shape of the input.
        found: Box<Shape>,
        /// The number of groups.
        groups: usize,
    },
    /// A parameter that does not have one number for each channel.
    #[error("the {what} is {found}, and one number for each of {channels} channels is needed: [{channels}]")]
    PerChannel {
        /// The weight or the bias.
        what: &'static str,
        /// The shape of the parameter.
        found: Box<Shape>,
        /// The number of channels.
        channels: usize,
    },
    /// The given output does not have the shape or dtype that the instruction produces.
    #[error(
        "{what}: the output is {found_dtype}{found}, and {expected_dtype}{expected} is needed; give it an output of that dtype and shape"
    )]
    Output {
        /// The instruction.
        what: String,
        /// The shape that the instruction produces.
        expected: Box<Shape>,
        /// The shape of the given output.
        found: Box<Shape>,
        /// The dtype that the instruction produces.
        expected_dtype: DType,
        /// The dtype of the given output.
        found_dtype: DType,
    },
    /// A copy between tensors of different dtype or shape.
    #[error("copy of {from} to {to}: dtype and shape must be the same; cast, reshape or broadcast the first")]
    Copy {
        /// The dtype and shape of the source.
        from: String,
        /// The dtype and shape of the target.
        to: String,
    },
    /// Numbers that are no sequence.
    #[error("{what} from {first} to {last}{}: {}", by(*step), needs(*step))]
    Range {
        /// The call.
        what: String,
        /// The first number.
        first: ep::Scalar,
        /// The end.
        last: ep::Scalar,
        /// The difference of two neighbours, if it is given.
        step: Option<ep::Scalar>,
    },
    /// Another number of counts than there are axes to repeat.
    #[error("repeat of {shape} needs one count for each axis, found {counts:?}")]
    Repeat {
        /// The shape of the tensor.
        shape: Box<Shape>,
        /// The counts.
        counts: Vec<usize>,
    },
    /// A written operand shares elements with another operand of the same instruction. Operands count from 0, inputs first.
    #[error("{what}: operand {first} is written and has elements in common with operand {second}; {help}")]
    Overlap {
        /// The instruction.
        what: String,
        /// The position of the written operand.
        first: usize,
        /// The position of the other operand.
        second: usize,
        /// The advice that ends the message.
        help: &'static str,
    },
    /// A written view broadcasts: several of its indices are the same element.
    #[error("{what}: the written view broadcasts, so several indices are one element; write to a tensor of its own")]
    WritesBroadcast {
        /// The instruction.
        what: String,
    },
    /// An instruction other than a copy by threads of the host writes upload memory.
    #[error(
        "{what}: the written operand lives in upload memory, which only copies by the host write; write to pinned or \
         device memory, or copy from host memory on a stream of a CPU device"
    )]
    WritesUpload {
        /// The instruction.
        what: String,
    },
    /// The dtype has no exact representation of the scalar.
    #[error("{what}: the value {value} does not fit {dtype}; give one that it has, or use another dtype")]
    Value {
        /// The instruction.
        what: String,
        /// The value.
        value: ep::Scalar,
        /// The dtype.
        dtype: DType,
    },
    /// An instruction that only orders declares a write.
    #[error("{what} writes nothing; declare what it orders by read()")]
    WritesNothing {
        /// The instruction.
        what: String,
    },
    /// A function that gets no access to bytes declares that it overwrites a tensor.
    #[error("{what} is shown no memory, so it cannot overwrite a tensor; declare it by update()")]
    OrderAlone {
        /// The function.
        what: String,
    },
    /// A list was given code for a run of a program. Waiting callers may run it, so it must be an engine's own.
    #[error("{what} is a run of a program, whose code an engine makes; add a function, or run a compiled program")]
    ProgramCode {
        /// The name of the run.
        what: String,
    },
    /// A function declares more writes than one function may have.
    #[error("{what} writes {found} operands; a function writes at most {most}: write fewer, or use several functions")]
    TooManyWrites {
        /// The function.
        what: String,
        /// How many it writes.
        found: usize,
        /// How many it may write.
        most: usize,
    },
    /// A critical section over no resource.
    #[error("a critical section is over at least one resource; name what its instructions have for themselves")]
    NoResource,
    /// A begin or an end of a critical section with other uses than writes of the section's resources, or on another stream.
    #[error("{what}: it writes the resources of its section, on a critical stream, and uses nothing else")]
    Section {
        /// The instruction.
        what: String,
    },
    /// The uses of an instruction do not match its kind.
    #[error("{what} uses {inputs} tensors to read and then one to write; found {found} uses that are not these")]
    Form {
        /// The instruction.
        what: String,
        /// How many tensors it reads.
        inputs: usize,
        /// How many uses were given.
        found: usize,
    },
    /// Tensors to join, of which one differs from the first.
    #[error(
        "tensor {index} is {found_dtype}{found}, and the first is {expected_dtype}{expected}; dtypes, and the sizes on all axes but {axis}, \
         must be equal"
    )]
    Join {
        /// The axis.
        axis: usize,
        /// The position of the tensor that differs.
        index: usize,
        /// The shape of the first tensor.
        expected: Box<Shape>,
        /// The shape of the tensor that differs.
        found: Box<Shape>,
        /// The dtype of the first tensor.
        expected_dtype: DType,
        /// The dtype of the tensor that differs.
        found_dtype: DType,
    },
    /// No tensor to join.
    #[error("there is no tensor to join; give at least one")]
    NothingToJoin,
    /// A view extends past the end of its storage.
    #[error("a view of shape {shape} reaches past its storage of {elements} elements")]
    PastStorage {
        /// The view's shape.
        shape: Box<Shape>,
        /// How many elements the storage has.
        elements: usize,
    },
    /// A tensor that has not exactly one element was asked for its only one.
    #[error("to_scalar needs a tensor of one element, and {shape} has {}; take one by `slice`, or all by `to_vec`", shape.elements())]
    NotScalar {
        /// The tensor's shape.
        shape: Box<Shape>,
    },
    /// The number of elements does not match the shape.
    #[error("{elements} elements were given for {dtype}{shape}, which has {}", shape.elements())]
    Length {
        /// The dtype.
        dtype: DType,
        /// How many elements were given.
        elements: usize,
        /// The shape.
        shape: Box<Shape>,
    },
}

/// The words of an error for the runner of a stream.
fn runner(stream: StreamKey) -> String {
    match StreamClass::of(&stream).run_by() {
        RunBy::Host => format!("threads of the host run {stream}"),
        RunBy::Device => format!("{} runs {stream}", stream.device),
    }
}

/// The words of an error for what the caller can do when an operand on `found` is out of reach for the runner of `stream`.
fn way_out(stream: StreamKey, found: Place) -> String {
    let first = "copy it to host memory first";
    match found.device() {
        Some(device) if StreamClass::of(&stream).run_by() == RunBy::Host => {
            format!("{first}, or have {device} run the instruction, if it is a kernel, a copy or a fill")
        }
        Some(_) | None => first.to_owned(),
    }
}

ep::debug_as_display!(BuildError);

fn by(step: Option<ep::Scalar>) -> String {
    step.map_or_else(String::new, |step| format!(" by {step}"))
}

fn needs(step: Option<ep::Scalar>) -> &'static str {
    match step {
        Some(_) => "give finite numbers, and a step other than 0",
        None => "give finite numbers with a finite difference",
    }
}
