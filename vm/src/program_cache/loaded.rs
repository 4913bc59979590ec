//! A compiled program with its kernels.

use streamvm_ep::{CommandSequence, CpuSequence};
use streamvm_program::{ArenaPlan, Compiled, CompiledStep, Located, Operand, Part, PartUse, Program, Step};

/// A compiled program with its kernels. No tensor is bound to it, so executables with different parameters share it.
#[derive(Debug)]
pub(crate) struct LoadedProgram {
    pub(crate) compiled: Compiled,
    /// One for each part of the compiled program.
    pub(crate) parts: Vec<LoadedPart>,
}

/// How a part runs.
#[derive(Debug)]
pub(crate) enum LoadedPart {
    /// A thread runs the steps one after the other.
    Cpu(CpuSequence),
    /// The steps are queued on the stream of a device, one command each.
    Commands(CommandSequence),
    /// It is a copy between two memories: an instruction of that kind.
    Transfer,
}

impl LoadedPart {
    fn heap_bytes(&self) -> usize {
        match self {
            LoadedPart::Cpu(sequence) => sequence.heap_bytes(),
            LoadedPart::Commands(sequence) => sequence.heap_bytes(),
            LoadedPart::Transfer => 0,
        }
    }
}

impl LoadedProgram {
    /// The bytes that count against the bound of the cache: the arenas of one run, and about as many bytes of host memory as the plan takes.
    pub(crate) fn bytes(&self) -> u64 {
        (self.compiled.arena_bytes() + self.plan_bytes()) as u64
    }

    /// About how many bytes of host memory the compiled program takes: the elements of its vectors.
    fn plan_bytes(&self) -> usize {
        let of_step = |step: &CompiledStep| size_of::<CompiledStep>() + step.operands.len() * size_of::<Located>();
        let steps: usize = self.compiled.steps().iter().map(of_step).sum();
        let of_part = |part: &Part| size_of::<Part>() + part.uses.len() * size_of::<PartUse>();
        let parts: usize = self.compiled.parts().iter().map(of_part).sum();
        let arenas = self.compiled.arenas().len() * size_of::<ArenaPlan>();
        let compiled =
            size_of_val(self.compiled.buffers()) + size_of_val(self.compiled.fused()) + steps + parts + arenas;
        let loaded: usize = self.parts.iter().map(LoadedPart::heap_bytes).sum();
        program_bytes(self.compiled.program()) + compiled + size_of_val(self.parts.as_slice()) + loaded
    }
}

/// About how many bytes of host memory a program takes.
pub(crate) fn program_bytes(program: &Program) -> usize {
    let steps = program.steps.iter().map(|step| size_of::<Step>() + size_of::<Operand>() * step.operands.len());
    let ports = program.feeds.iter().chain(&program.parameters).chain(&program.fetches);
    let ports = ports.map(|port| size_of_val(port) + port.name.len());
    size_of_val(program.values.as_slice()) + steps.chain(ports).sum::<usize>()
}
