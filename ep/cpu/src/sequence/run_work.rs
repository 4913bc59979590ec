//! The call of a kernel, copy or fill of a step.

use streamvm_ep::{Error, KernelCall, OpStates, Operand, SequenceWork};

/// Runs the kernel, copy or fill of a step that [`SequenceStep::check_form`](streamvm_ep::SequenceStep::check_form) has accepted. Of a kernel, the
/// [shared operands](streamvm_ep::SequenceStep::shared_operands) are marked.
#[inline]
pub(super) fn run_work(work: &SequenceWork, operands: &mut [Operand], states: Option<&OpStates>) -> Result<(), Error> {
    match (work, operands) {
        (SequenceWork::Kernel(kernel, params), operands) => {
            let inputs = operands.len() - 1;
            Ok(KernelCall::new(*kernel, operands, inputs, params).run(states)?)
        }
        (SequenceWork::Copy, [source, target]) => streamvm_kernels::copy(source, target),
        (SequenceWork::Fill(value), [target]) => streamvm_kernels::fill(target, *value),
        (SequenceWork::Draw { .. }, _) => unreachable!("the sequence gives the kernel the parameters of the run"),
        (SequenceWork::Copy | SequenceWork::Fill(_), _) => unreachable!("`check_form` has counted the operands"),
        (
            SequenceWork::If
            | SequenceWork::Else
            | SequenceWork::While { .. }
            | SequenceWork::End
            | SequenceWork::Function(_),
            _,
        ) => unreachable!("the sequence runs blocks and calls functions, and groups have none"),
    }
}
