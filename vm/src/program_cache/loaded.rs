//! A compiled program with its kernels.

use streamvm_ep::CpuSequence;
use streamvm_program::{Compiled, CompiledStep, Located, Operand, Program, Step};

/// A compiled program with its kernels. No tensor is bound to it, so executables with different parameters share it.
#[derive(Debug)]
pub(crate) struct LoadedProgram {
    pub(crate) compiled: Compiled,
    pub(crate) sequence: CpuSequence,
}

impl LoadedProgram {
    /// The bytes that count against the bound of the cache: the arena of one run, and about as many bytes of host memory as the plan takes.
    pub(crate) fn bytes(&self) -> u64 {
        (self.compiled.arena_bytes() + self.plan_bytes()) as u64
    }

    /// About how many bytes of host memory the compiled program takes: the elements of its vectors.
    fn plan_bytes(&self) -> usize {
        let of_step = |step: &CompiledStep| size_of::<CompiledStep>() + step.operands.len() * size_of::<Located>();
        let steps: usize = self.compiled.steps().iter().map(of_step).sum();
        let compiled = size_of_val(self.compiled.buffers()) + size_of_val(self.compiled.fused()) + steps;
        program_bytes(self.compiled.program()) + compiled + self.sequence.heap_bytes()
    }
}

/// About how many bytes of host memory a program takes.
pub(crate) fn program_bytes(program: &Program) -> usize {
    let steps = program.steps.iter().map(|step| size_of::<Step>() + size_of::<Operand>() * step.operands.len());
    let ports = program.feeds.iter().chain(&program.parameters).chain(&program.fetches);
    let ports = ports.map(|port| size_of_val(port) + port.name.len());
    size_of_val(program.values.as_slice()) + steps.chain(ports).sum::<usize>()
}
