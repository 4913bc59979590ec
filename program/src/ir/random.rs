//! The random numbers that steps draw.

use streamvm_ep::Extra;
use streamvm_instructions::Generator;

use crate::ir::program::{Step, Value, ValueId, Work};

/// Counter blocks of one seed.
pub(crate) struct Drawn {
    pub(crate) seed: u64,
    pub(crate) first: u64,
    pub(crate) blocks: u64,
}

impl Step {
    /// The random numbers that the step draws, if it draws some.
    pub(crate) fn draws<'v>(&self, value: impl Fn(ValueId) -> &'v Value) -> Option<Drawn> {
        let (Work::Call(_, params), output) = (&self.work, self.output()?) else { return None };
        let Extra::Random { seed, counter } = params.extra else { return None };
        let blocks = Generator::blocks(value(output.value).dtype, output.layout.elements());
        Some(Drawn { seed, first: counter, blocks })
    }
}
