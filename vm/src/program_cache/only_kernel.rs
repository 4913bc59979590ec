//! Programs that are one kernel call.

use smallvec::SmallVec;
use streamvm_ep::{DType, Layout, MemoryKind, Op, OpClass, Params};
use streamvm_instructions::{Place, Tensor};
use streamvm_program::{BufferRole, Compiled, CompiledBuffer, CompiledStep, Located, Segment, Storage, Work};

/// A program that is a single call of a kernel over whole feeds and parameters, and whose result is its only fetch. A run submits that call as
/// an eager call would, which costs less than a function. The kernel cannot fail, so no error has to name the step.
#[derive(Debug)]
pub(crate) struct OnlyKernel {
    pub(crate) op: Op,
    pub(crate) params: Params,
    inputs: SmallVec<[Input; 3]>,
    /// The buffer that it writes, as an index.
    output: usize,
    /// The place of all operands.
    place: Place,
}

/// An input of the kernel.
#[derive(Debug)]
struct Input {
    from: Source,
    /// The layout that the kernel has in a run that is a function, from the first element.
    layout: Layout,
}

/// Where an input comes from.
#[derive(Copy, Clone, Debug)]
enum Source {
    /// The feed of this index.
    Feed(usize),
    /// The parameter of this index.
    Parameter(usize),
}

impl OnlyKernel {
    /// The only kernel call of a program, if the program has nothing else.
    pub(crate) fn of(compiled: &Compiled) -> Option<OnlyKernel> {
        let ([Segment { stream, .. }], 1, [fetch]) =
            (compiled.segments(), compiled.step_count(), &compiled.program().fetches[..])
        else {
            return None;
        };
        let CompiledStep { work: Work::Call(op, params), operands, advance: 0, .. } = compiled.step(0) else {
            return None;
        };
        let dtype = operands.get(op.key_input())?.dtype;
        let looks_at_steps = compiled.checks_finite() || compiled.times_steps();
        if looks_at_steps || !stream.device.kind.is_run_by_host() || !cannot_fail(*op, params, dtype) {
            return None;
        }
        let (output, inputs) = operands.split_last()?;
        let output_buffer = whole_buffer(compiled, output)?;
        let value = compiled.program().value(output.value);
        let place = stream.device.into();
        let is_fetched = matches!(compiled.buffers()[output_buffer].role, BufferRole::Fetched(_))
            && fetch.value == output.value
            && is_whole(compiled, output, &fetch.layout);
        if !is_fetched || (value.place, value.memory) != (place, MemoryKind::Device) {
            return None;
        }
        let input_of = |input: &Located<'_>| {
            let from = match compiled.buffers()[whole_buffer(compiled, input)?].role {
                BufferRole::Feed(place) => Source::Feed(place),
                BufferRole::Parameter(place) => Source::Parameter(place),
                _ => return None,
            };
            Some(Input { from, layout: *input.layout })
        };
        let inputs = inputs.iter().map(input_of).collect::<Option<_>>()?;
        Some(OnlyKernel { op: *op, params: *params, inputs, output: output_buffer, place })
    }

    /// The inputs in a run with these feeds and parameters. `None` if one has other strides than in a function, with which a kernel might add in
    /// another order, is in another place, or is not in device memory. The run is then a function, which copies or checks it.
    #[inline]
    pub(crate) fn inputs<'t>(
        &self,
        feeds: &[&'t Tensor],
        parameters: &'t [Tensor],
    ) -> Option<SmallVec<[&'t Tensor; 3]>> {
        let usable = |input: &Input| {
            let tensor = match input.from {
                Source::Feed(place) => feeds[place],
                Source::Parameter(place) => &parameters[place],
            };
            let is_usable = tensor.place() == self.place
                && tensor.memory() == MemoryKind::Device
                && tensor.layout().strides() == input.layout.strides();
            is_usable.then_some(tensor)
        };
        self.inputs.iter().map(usable).collect()
    }

    /// The buffer that it writes.
    pub(crate) fn output<'c>(&self, compiled: &'c Compiled) -> &'c CompiledBuffer {
        &compiled.buffers()[self.output]
    }
}

/// Whether the kernels of an op have a result for all operands that fit it: they refuse no elements, and need no memory of which they could report
/// that there is none. Other ops count as ops that may fail.
fn cannot_fail(op: Op, params: &Params, dtype: DType) -> bool {
    // A function of a caller may panic.
    let is_ours = !matches!(op, Op::Registered(_));
    is_ours
        && (op.is_elementwise() || op.is_reduction() || op.class() == OpClass::MatMul)
        && !params.refuses_elements(op, dtype)
}

/// The buffer of an operand that is a whole value, and begins where its buffer does.
fn whole_buffer(compiled: &Compiled, operand: &Located<'_>) -> Option<usize> {
    let Storage::Buffer { index, offset: 0 } = operand.storage else { return None };
    is_whole(compiled, operand, operand.layout).then_some(index)
}

/// Whether a layout has all elements of the value of an operand, in order.
fn is_whole(compiled: &Compiled, operand: &Located<'_>, layout: &Layout) -> bool {
    let value = compiled.program().value(operand.value);
    operand.dtype == value.dtype && *layout == Layout::contiguous(value.shape)
}
