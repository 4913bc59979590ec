//! What the caller of the compiler chooses.

use std::time::Duration;

use crate::plan::costs::Costs;
use crate::plan::mutant::Mutant;

/// Options of [`compile`](crate::compile()).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CompileOptions {
    /// Whether an elementwise step may write over an input that nothing reads later. Default: yes.
    pub in_place: bool,
    /// Whether neighbouring elementwise steps over tensors of one shape run together: on a CPU block by block, so that what lies between them stays
    /// in the processor's cache; on a CUDA device as one kernel. The results are the same, bit for bit on a CPU. Default: yes.
    pub fuse: bool,
    /// How many elements a block of fused steps has on a CPU. Tensors of no more elements are computed whole, step by step. At
    /// least 1 and at most 8,192; other numbers count as the nearest of these. Default: 2,048, of which three operands of 4 bytes
    /// an element fit into a first-level cache of 32 KiB.
    pub block: usize,
    /// Over how many lanes of each device the steps that were recorded on lane 0 are spread, where that shortens the estimated time; at least 1. A run takes this many lanes
    /// from the one that it is submitted on. Large kernels use every core by themselves, so more lanes help programs of many steps that are too
    /// small for that and do not depend on each other. Default: 1.
    pub lanes: u32,
    /// How long it takes, by estimate, until one lane sees that another has passed a point, in nanoseconds. Steps that depend on each other are
    /// put on different lanes only where that gains more. Default: 2,000, as between streams of the engine or of a GPU; threads that run the lanes of one segment
    /// on a CPU see it sooner, so set less for programs of small steps there.
    pub hand_over_ns: u64,
    /// How long steps take, as far as it was measured, for spreading them over lanes; estimates from the sizes of tensors fill the rest. Default: none.
    pub costs: Costs,
    /// How many rounds the loops of a segment may make together in one run: a run that needs more fails, so that a loop which never ends does not
    /// hold its stream for ever. Default: 10 million.
    pub most_rounds: u64,
    /// How long the loops of a segment may take in one run, from the beginning of the first round: a loop that would begin a round later fails.
    /// A round that has begun is not interrupted. Default: no bound.
    pub most_loop_time: Option<Duration>,
    /// Whether a run looks for infinities and NaN in what its steps write, and fails at the first step that writes one, with the index of the
    /// element. A step is passed over whose inputs have one already, or to which one was given as a number, such as the value of a fill. Each output is read once more,
    /// so is what a step overwrites, and no steps are fused. On a device other than a CPU, both are copied to page-locked memory of the host,
    /// which has room for the largest operand, and the next step of the stream is queued when the host has looked at them. Copies between devices are not
    /// looked at. Default: no.
    pub check_finite: bool,
    /// Whether each step runs as an instruction of its own, and each value has memory of its own, so that a run can be watched step by step.
    /// Turns fusion, in-place steps and the sharing of memory off. Default: no.
    pub step_by_step: bool,
    /// Whether runs note how long each step takes. On CPUs they read the clock twice a step. On other devices the next step of a stream is queued when the
    /// host knows that the one before has run: a time begins when the step is queued, and ends then. Default: no.
    pub time_steps: bool,
    /// Whether steps on a CUDA device that are the same commands in each run are captured into a CUDA graph, once runs use the same memory
    /// again, and launched by one call. Without it, lanes of a CUDA device are segments of their own, and no branches of one. Default: yes.
    pub capture: bool,
    /// The fewest calls of the driver that a CUDA graph replaces, unless it has blocks: launches, copies and fills, and the records and waits of lanes. A graph
    /// of fewer costs more than the calls. Graphs with blocks are made however few calls they replace, because the host then waits for no condition, or for
    /// none in each round. Default: 4.
    pub smallest_graph: usize,
    /// How many steps the search for memory offsets may take once a first plan is found. The search ends earlier when the plan reaches
    /// the lower bound. With more than 30,000 values it takes fewer, in inverse proportion. The same number gives
    /// the same plan on every machine. Default: 1,000, at most some tens of milliseconds.
    pub search_steps: u64,
    /// A rule of the compiler to break, so that a test suite can prove that it detects that.
    #[doc(hidden)]
    #[cfg(feature = "mutants")]
    pub mutant: Option<Mutant>,
}

impl CompileOptions {
    /// Whether this rule is to be broken: never, in a build without the feature `mutants`.
    pub(crate) fn has(&self, mutant: Mutant) -> bool {
        #[cfg(feature = "mutants")]
        return self.mutant == Some(mutant);
        #[cfg(not(feature = "mutants"))]
        {
            let _ = mutant;
            false
        }
    }
}

impl Default for CompileOptions {
    fn default() -> CompileOptions {
        CompileOptions {
            in_place: true,
            fuse: true,
            block: 2_048,
            lanes: 1,
            hand_over_ns: 2_000,
            costs: Costs::default(),
            most_rounds: 10_000_000,
            most_loop_time: None,
            check_finite: false,
            step_by_step: false,
            time_steps: false,
            capture: true,
            smallest_graph: 4,
            search_steps: 1_000,
            #[cfg(feature = "mutants")]
            mutant: None,
        }
    }
}
