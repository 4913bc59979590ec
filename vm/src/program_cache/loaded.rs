//! A compiled program with its kernels.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use streamvm_ep::{Access, DType, FnContext, InlineFn, Layout, MemoryKind, Prepared, SegmentRun, Shape};
use streamvm_instructions::{EngineRef, Place, Role, Tensor, Use};
use streamvm_program::{
    BufferRole, Compiled, CompiledBuffer, Operand, Program, Segment, SegmentBranch, SegmentUse, Step,
};

use crate::program_cache::cache::{Bounds, ProgramCache};
use crate::program_cache::function::LoadedFunction;
use crate::program_cache::only_kernel::OnlyKernel;

/// A compiled program with its kernels. No tensor is bound to it, so executables with different parameters share it.
#[derive(Debug)]
pub(crate) struct LoadedProgram {
    /// Parts of it that compute some of the fetches. Made once one is asked for.
    pub(crate) parts: OnceLock<Box<ProgramCache>>,
    /// The programs for the sizes of runs, if it has bounded ones. Made once it is run.
    pub(crate) sized: OnceLock<Box<ForSizes>>,
    pub(crate) compiled: Compiled,
    /// One for each segment of the compiled program.
    pub(crate) segments: Vec<LoadedSegment>,
    /// The kernel call that the program is, if a run may submit it as an eager call would. Boxed, so that other programs take no room for it.
    pub(crate) only_kernel: Option<Box<OnlyKernel>>,
    /// For each fetch its buffer.
    pub(crate) fetches: Vec<usize>,
    /// Whether it draws random numbers.
    pub(crate) draws: bool,
    /// The number of the next run, which decides about its random numbers. Counts only if it draws some.
    pub(crate) next_run: Arc<AtomicU64>,
}

/// The programs for some sizes, of one with bounded sizes.
#[derive(Debug)]
pub(crate) struct ForSizes {
    /// Those of the last runs.
    pub(crate) kept: ProgramCache,
    /// For each segment the owner that its graphs of all sizes share.
    pub(crate) graphs: Vec<Arc<()>>,
    /// How many were made.
    pub(crate) made: AtomicU64,
}

/// How a segment runs.
#[derive(Debug)]
pub(crate) enum LoadedSegment {
    /// The device of its stream has prepared the steps.
    Prepared(Box<dyn Prepared>),
    /// It is a function of the caller: an instruction of that kind.
    Function(LoadedFunction),
    /// It is a copy between two memories: an instruction of that kind.
    Transfer,
    /// It is a touch: an instruction of that kind.
    Touch,
    /// It begins or ends a critical section: instructions of that kind.
    SectionMark,
}

impl LoadedSegment {
    /// The role of its instruction.
    pub(crate) fn role(&self) -> Role {
        match self {
            LoadedSegment::Prepared(prepared) if prepared.pauses() => Role::Blocks,
            LoadedSegment::Prepared(prepared) if prepared.calls_functions() => Role::ProgramWithCode,
            LoadedSegment::Function(function) => function.role,
            _ => Role::Program,
        }
    }

    /// Whether it has prepared steps, and is no instruction of another kind.
    pub(crate) fn is_prepared(&self) -> bool {
        matches!(self, LoadedSegment::Prepared(_))
    }

    fn heap_bytes(&self) -> usize {
        match self {
            LoadedSegment::Prepared(prepared) => size_of_val(&**prepared) + prepared.heap_bytes(),
            LoadedSegment::Function(_)
            | LoadedSegment::Transfer
            | LoadedSegment::Touch
            | LoadedSegment::SectionMark => 0,
        }
    }
}

impl LoadedProgram {
    /// Whether runs give sizes by their feeds: each runs the program for its sizes.
    pub(crate) fn has_bounded_sizes(&self) -> bool {
        !self.compiled.program().dims.is_empty()
    }

    /// The programs for the sizes of runs: the last 16, whatever the memory of a run, which is that of the bounds.
    pub(crate) fn for_sizes(&self) -> &ForSizes {
        self.sized.get_or_init(|| {
            let graphs = self.segments.iter().map(|_| Arc::default()).collect();
            let kept = ProgramCache::new(Bounds { programs: 16, bytes: u64::MAX });
            Box::new(ForSizes { kept, graphs, made: AtomicU64::new(0) })
        })
    }

    /// A new tensor for a buffer that each run has of its own, which belongs to `engine`: another one refuses instructions over it. `None` for feeds and parameters,
    /// which the caller gives.
    pub(crate) fn fresh(&self, buffer: &CompiledBuffer, engine: EngineRef) -> Option<Tensor> {
        Some(match buffer.role {
            BufferRole::Fetched(value) | BufferRole::Own(value) => {
                let value = self.compiled.program().value(value);
                Tensor::unbound_of(Some(engine), value.place, value.memory, value.dtype, &value.shape)
            }
            BufferRole::Arena(number) => {
                let shape = Shape::new(&[buffer.bytes]);
                let shape = shape.unwrap_or_else(|_| unreachable!("the compiler has checked the size of the arena"));
                let device = self.compiled.arenas()[number].device;
                Tensor::unbound_of(Some(engine), Place::Device(device), MemoryKind::Device, DType::U8, &shape)
            }
            BufferRole::Flag(device) => {
                let shape = Shape::new(&[buffer.bytes]);
                let shape = shape.unwrap_or_else(|_| unreachable!("a byte, or as many as a value has"));
                Tensor::unbound_of(Some(engine), Place::Device(device), MemoryKind::Pinned, DType::U8, &shape)
            }
            BufferRole::Feed(_) | BufferRole::Parameter(_) => return None,
        })
    }

    /// The function that runs `segment` in run number `run`.
    pub(crate) fn code(self: &Arc<Self>, segment: usize, run: u64) -> InlineFn {
        let this = self.clone();
        let mut run = SegmentRun::new(run);
        InlineFn::new(move |context: &mut FnContext<'_>| this.call(segment, &mut run, context))
    }

    /// The bytes that count against the bound of the cache: the memory that one run has beside its feeds, parameters and fetches, and about as
    /// many bytes of host memory as the plan takes.
    pub(crate) fn bytes(&self) -> u64 {
        let buffers = self.compiled.buffers().iter();
        let own = buffers
            .filter(|buffer| matches!(buffer.role, BufferRole::Own(_) | BufferRole::Arena(_) | BufferRole::Flag(_)));
        own.map(|buffer| buffer.bytes as u64).sum::<u64>() + self.plan_bytes() as u64
    }

    /// About how many bytes of host memory the compiled program takes: itself, and the elements of its vectors.
    fn plan_bytes(&self) -> usize {
        let steps = self.compiled.plan_bytes();
        let of_branch = |branch: &SegmentBranch| size_of::<SegmentBranch>() + size_of_val(branch.after.as_slice());
        let of_segment = |segment: &Segment| {
            let branches: usize = segment.branches.iter().map(of_branch).sum();
            let others = size_of_val(segment.others.as_slice());
            size_of::<Segment>() + segment.uses.len() * size_of::<SegmentUse>() + branches + others
        };
        let segments: usize = self.compiled.segments().iter().map(of_segment).sum();
        let arenas = size_of_val(self.compiled.arenas());
        let compiled =
            size_of_val(self.compiled.buffers()) + size_of_val(self.compiled.fused()) + steps + segments + arenas;
        let loaded: usize = self.segments.iter().map(LoadedSegment::heap_bytes).sum();
        let only_kernel = self.only_kernel.as_deref().map_or(0, size_of_val);
        size_of_val(self)
            + program_bytes(self.compiled.program())
            + compiled
            + size_of_val(self.segments.as_slice())
            + loaded
            + only_kernel
    }
}

/// A use of a tensor with this access.
pub(crate) fn with_access(tensor: &Tensor, access: Access) -> Use<'_> {
    match access {
        Access::Read => tensor.read(),
        Access::Write => tensor.write(),
        Access::ReadWrite => tensor.update(),
    }
}

/// About how many bytes of host memory a program takes.
pub(crate) fn program_bytes(program: &Program) -> usize {
    // Each operand has its share of a layout that others have, too.
    let layout = |operand: &Operand| size_of::<Layout>() / Arc::strong_count(&operand.layout);
    let operands = |step: &Step| step.operands.iter().map(|it| size_of::<Operand>() + layout(it)).sum::<usize>();
    let steps = program.steps.iter().map(|step| size_of::<Step>() + operands(step));
    let ports = program.feeds.iter().chain(&program.parameters).chain(&program.fetches);
    let ports = ports.map(|port| size_of_val(port) + port.name.len());
    let orders = size_of_val(program.orders.as_slice());
    size_of_val(program) + size_of_val(program.values.as_slice()) + orders + steps.chain(ports).sum::<usize>()
}
