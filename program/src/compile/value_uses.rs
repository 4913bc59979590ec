//! Which values each step uses, without the layouts of its views.
//!
//! Most passes want no more of an operand. With its layout it takes 160 bytes, behind a pointer of its step, so a pass over a million steps would wait for
//! memory most of its time. Here it takes 16, in the order of the steps.
//!
//! A step that writes a part of a value, and whose place or size in it depends on the sizes of the run, counts as one that changes the value: it may leave any byte as it is.

use streamvm_ep::Access;

use crate::compile::lists::Lists;
use crate::ir::program::{Operand, Program, ValueId};

/// What a step does to a value, for one operand.
#[derive(Copy, Clone, Debug)]
pub(super) struct ValueUse {
    pub(super) value: ValueId,
    pub(super) access: Access,
}

/// The uses of each step of the program, in the order of its operands.
pub(super) fn of(program: &Program) -> Lists<ValueUse> {
    let mut uses = Lists::with_capacity(program.steps.len());
    for step in &program.steps {
        uses.push(
            step.operands.iter().map(|operand| ValueUse { value: operand.value, access: access(program, operand) }),
        );
    }
    uses
}

/// Whether the step reads, writes or changes the value of this operand.
pub(super) fn access(program: &Program, operand: &Operand) -> Access {
    let changes = operand.access == Access::Write && program.is_any_part(operand);
    if changes { Access::ReadWrite } else { operand.access }
}

/// The values that steps with these uses write.
pub(super) fn written<'u>(uses: impl IntoIterator<Item = &'u ValueUse>) -> impl Iterator<Item = ValueId> {
    uses.into_iter().filter(|it| it.access.writes()).map(|it| it.value)
}
