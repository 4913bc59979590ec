//! Programs that are one kernel.

use smallvec::SmallVec;
use streamvm_ep::{DeviceKind, Layout, MemoryKind, Op, Params};
use streamvm_instructions::{Place, Tensor};
use streamvm_program::{BufferRole, Compiled, CompiledBuffer, CompiledStep, Located, Segment, Storage, Work};

/// The only step of a program that a run submits as an eager call does, the shortest way to run a kernel. Its inputs are feeds and
/// parameters, and its output is the only fetch, each whole. The kernel fails for no elements, so no error has to name the step.
#[derive(Debug)]
pub(crate) struct OnlyKernel {
    pub(crate) op: Op,
    pub(crate) params: Params,
    /// Where its inputs come from.
    inputs: SmallVec<[Input; 3]>,
    /// The buffer that it writes, as an index.
    output: usize,
    /// The place of all operands.
    place: Place,
}

/// Where an input comes from.
#[derive(Copy, Clone, Debug)]
enum Input {
    /// The feed of this index.
    Feed(usize),
    /// The parameter of this index.
    Parameter(usize),
}

impl OnlyKernel {
    /// The kernel that a program is; `None` for any other program.
    pub(crate) fn of(compiled: &Compiled) -> Option<OnlyKernel> {
        let ([Segment { stream, .. }], [step], [fetch]) =
            (compiled.segments(), compiled.steps(), &compiled.program().fetches[..])
        else {
            return None;
        };
        let CompiledStep { work: Work::Call(op, params), operands, advance: 0, .. } = step else { return None };
        let dtype = operands.get(op.key_input())?.dtype;
        let (output, inputs) = operands.split_last()?;
        let output_buffer = whole_buffer(compiled, output)?;
        let is_fetched = matches!(compiled.buffers()[output_buffer].role, BufferRole::Fetched(_))
            && fetch.value == output.value
            && is_whole(compiled, output, &fetch.layout);
        let looks_at_steps = compiled.checks_finite() || compiled.times_steps();
        let is_on_cpu = stream.device.kind == DeviceKind::Cpu;
        if !is_fetched || looks_at_steps || !is_on_cpu || op.refuses_elements(dtype) {
            return None;
        }
        let input_of = |input: &Located| match compiled.buffers()[whole_buffer(compiled, input)?].role {
            BufferRole::Feed(place) => Some(Input::Feed(place)),
            BufferRole::Parameter(place) => Some(Input::Parameter(place)),
            _ => None,
        };
        let inputs = inputs.iter().map(input_of).collect::<Option<_>>()?;
        Some(OnlyKernel { op: *op, params: *params, inputs, output: output_buffer, place: stream.device.into() })
    }

    /// The inputs in a run with these feeds and parameters; `None` if one must be copied first, or is in memory of which only the
    /// instruction of a program can tell whether a kernel may use it.
    #[inline]
    pub(crate) fn inputs<'t>(
        &self,
        feeds: &[&'t Tensor],
        parameters: &'t [Tensor],
    ) -> Option<SmallVec<[&'t Tensor; 3]>> {
        let tensors = self.inputs.iter().map(|input| match *input {
            Input::Feed(place) => feeds[place],
            Input::Parameter(place) => &parameters[place],
        });
        let is_usable = |tensor: &Tensor| {
            tensor.place() == self.place && tensor.memory() == MemoryKind::Device && tensor.layout().is_contiguous()
        };
        tensors.map(|tensor| is_usable(tensor).then_some(tensor)).collect()
    }

    /// The buffer that it writes.
    pub(crate) fn output<'c>(&self, compiled: &'c Compiled) -> &'c CompiledBuffer {
        &compiled.buffers()[self.output]
    }
}

/// The buffer of an operand that is a whole value, and begins where its buffer does.
fn whole_buffer(compiled: &Compiled, operand: &Located) -> Option<usize> {
    let Storage::Buffer { index, offset: 0 } = operand.storage else { return None };
    is_whole(compiled, operand, &operand.layout).then_some(index)
}

/// Whether a layout has all elements of the value of an operand, in order.
fn is_whole(compiled: &Compiled, operand: &Located, layout: &Layout) -> bool {
    let value = compiled.program().value(operand.value);
    operand.dtype == value.dtype && *layout == Layout::contiguous(value.shape)
}
