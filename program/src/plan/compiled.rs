//! The result of the compiler: what a run needs, as plain data.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use smallvec::SmallVec;
use streamvm_ep::{Access, DType, DeviceId, Extra, Layout, Params, ProgramStep, Site};
use streamvm_instructions::Error;
use streamvm_stream::{StreamKey, StreamType};

use crate::ir::function::StepFunction;
use crate::ir::program::{Operand, Program, ValueId, Work};
use crate::plan::options::CompileOptions;

/// Where the memory of a buffer comes from.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum BufferRole {
    /// The tensor given for a feed, an index into [`Program::feeds`].
    Feed(usize),
    /// The tensor bound to a parameter, an index into [`Program::parameters`].
    Parameter(usize),
    /// A new tensor of each run for a value that is fetched.
    Fetched(ValueId),
    /// Memory of each run for a value that several streams use, and that is not fetched.
    Own(ValueId),
    /// The memory of one run for the other values of one stream, or of the lanes of one segment: the arena of this number, an index into [`Compiled::arenas`].
    Arena(usize),
    /// Page-locked memory of each run, to which a stream of this device copies what the host reads: the conditions of blocks, a byte each, and with
    /// [`CompileOptions::check_finite`] the outputs of steps, one at a time.
    Flag(DeviceId),
}

/// Memory that the steps use.
#[derive(Clone, PartialEq, Debug)]
pub struct CompiledBuffer {
    /// Where it comes from.
    pub role: BufferRole,
    /// Its size.
    pub bytes: usize,
    /// What a run does to it as a whole. [`Access::Write`] where a run overwrites all of it before it reads any.
    pub access: Access,
    /// The position of the first step that writes it; 0 if none does.
    pub(crate) first_write: usize,
}

/// Where the bytes of a value are during a run.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Storage {
    /// In a buffer.
    Buffer {
        /// The buffer, as an index into [`Compiled::buffers`].
        index: usize,
        /// Where the value begins in the buffer, in bytes.
        offset: usize,
    },
    /// In the scratch memory of each thread that computes a [`FusedSteps`], which holds one block of the value at a time: the piece with
    /// this number.
    Scratch(usize),
}

/// A view of a value in its storage.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Located<'c> {
    /// The value that it is a view of.
    pub value: ValueId,
    /// Where the value is.
    pub storage: Storage,
    /// The dtype of its elements.
    pub dtype: DType,
    /// Its layout, from the beginning of the value.
    pub layout: &'c Layout,
    /// Whether the step reads or writes it.
    pub access: Access,
}

/// One step over buffers.
#[derive(Clone, PartialEq, Debug)]
pub struct CompiledStep<'c> {
    /// Its work.
    pub work: &'c Work,
    /// Its operands: inputs, then the output.
    pub operands: SmallVec<[Located<'c>; 4]>,
    /// The number of the step in [`Compiled::program`].
    pub number: usize,
    /// Of a step that draws random numbers: by how many counter blocks each run's numbers start after those of the previous run. So many do all
    /// steps of the program with the same seed draw in one run.
    pub advance: u64,
    /// Where it was recorded.
    pub site: Site,
}

impl CompiledStep<'_> {
    /// The step as errors and reports name it.
    pub fn named(&self) -> ProgramStep {
        ProgramStep { number: self.number, name: self.work.name(), site: self.site }
    }
}

/// Elementwise steps that run together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FusedSteps {
    /// The steps, as a range of [`Compiled::steps`].
    pub steps: Range<usize>,
    /// How they run together.
    pub by: FusedBy,
}

/// How fused steps run together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FusedBy {
    /// On a CPU: all of them compute one block of at most so many elements, then the next.
    Blocks(usize),
    /// On a CUDA device: one kernel computes all of them. If the driver refuses it, they run one by one.
    Kernel {
        /// The values that only these steps use. The kernel has them in registers; their places in the arena are used by steps that run one by one.
        unstored: Vec<ValueId>,
    },
}

impl FusedSteps {
    /// Whether a kernel of the steps does not store the value.
    pub fn is_unstored(&self, value: ValueId) -> bool {
        matches!(&self.by, FusedBy::Kernel { unstored } if unstored.contains(&value))
    }
}

/// What a segment does to a buffer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentUse {
    /// The buffer, as an index into [`Compiled::buffers`].
    pub buffer: usize,
    /// The bytes from the first to the last one that its steps use. All of the buffer if it is an arena, or if the program has one segment.
    pub bytes: Range<usize>,
    /// The view of the value whose elements alone its steps use, if there are gaps between them; without it, it uses all of the bytes.
    pub view: Option<Layout>,
    /// What the segment does to these bytes. [`Access::Write`] where it overwrites all of them before it reads any.
    pub access: Access,
}

/// Steps that run as one instruction on one stream: in their order, or on several lanes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// The stream. Its lane counts from the lane of the run.
    pub stream: StreamKey,
    /// The steps, as a range of [`Compiled::steps`].
    pub steps: Range<usize>,
    /// What the segment uses, each buffer once.
    pub uses: Vec<SegmentUse>,
    /// The segments of other streams that it waits for, as indices into [`Compiled::segments`]. One that an earlier segment of its stream has waited
    /// for is left out, as is one that another of these segments waits for.
    pub after: Vec<usize>,
    /// Segments that it waits for because functions are called in order, or because the recording asks for that: no tensor tells the engine. They are
    /// of other streams, or copies of its own, which may end on another stream.
    pub waits: Vec<usize>,
    /// The branches into which its steps are divided, if several lanes run them; none if its stream runs all of them. Each comes after the
    /// earlier ones of its lane, and after those of other lanes that it names.
    pub branches: Vec<SegmentBranch>,
    /// The steps of its blocks that are not, or not alone, commands of its device, in their order; none on a CPU.
    pub others: Vec<OtherPart>,
}

/// Neighbouring steps of a segment on a device that runs commands later in which another device, or the host, has a part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OtherPart {
    /// The steps, as a range of [`Compiled::steps`]: one, unless the other device runs them.
    pub steps: Range<usize>,
    /// The other device: a CPU where the host has a part.
    pub device: DeviceId,
    /// How it takes part in the steps.
    pub role: OtherRole,
}

/// The part that another device has in steps of a segment.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum OtherRole {
    /// It runs them.
    Run,
    /// It, a CPU, copies the source of a copy to the flag, which this device copies to the target.
    Upload(DeviceId),
    /// It, a CPU, copies the flag, to which this device has copied the source of a copy, to the target.
    Download(DeviceId),
    /// It has the condition of the block that the step begins. The host reads it: in memory of a CPU, or in the flag, to which another device copies it.
    Condition,
}

impl OtherPart {
    /// The devices that take part in it.
    fn devices(&self) -> impl Iterator<Item = DeviceId> {
        let copies = match self.role {
            OtherRole::Upload(device) | OtherRole::Download(device) => Some(device),
            OtherRole::Run | OtherRole::Condition => None,
        };
        std::iter::once(self.device).chain(copies)
    }
}

impl OtherRole {
    /// Whether values are copied by way of the flag.
    pub fn uses_flag(self) -> bool {
        matches!(self, OtherRole::Upload(_) | OtherRole::Download(_))
    }
}

/// Steps of a segment that one lane runs in their order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentBranch {
    /// The steps, as a range of [`Compiled::steps`].
    pub steps: Range<usize>,
    /// The lane within the segment: 0 is its stream, and others are side streams of that.
    pub lane: usize,
    /// The branches of other lanes that it waits for, as indices into [`Segment::branches`]. One that an earlier branch of its lane has waited for is left
    /// out, as is one that another of these branches waits for.
    pub after: Vec<usize>,
}

impl Segment {
    /// Whether it is a copy between the memories of two devices, or of a device and the host: one step, which is a copy instruction.
    pub fn is_transfer(&self) -> bool {
        !matches!(self.stream.stream_type, StreamType::Compute | StreamType::Collective | StreamType::Critical)
    }

    /// Whether it begins or ends a critical section: one step.
    pub fn is_section_mark(&self) -> bool {
        self.stream.stream_type == StreamType::Critical
    }
}

/// The memory of one run for values that one stream uses, or the lanes of one segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ArenaPlan {
    /// The device that the memory is on.
    pub device: DeviceId,
    /// Its size.
    pub bytes: usize,
    /// The largest sum of sizes of values that live in it at one time: no plan can be smaller. Of an arena that the lanes of one segment share, the sum of
    /// those sums of the lanes, because the device may run any part of one lane beside any part of another.
    pub lower_bound: usize,
    /// Whether the planner has proven that no plan is smaller. Else it has used all of [`CompileOptions::search_steps`](crate::CompileOptions::search_steps),
    /// or, with more than 30,000 values, as many fewer.
    pub is_optimal: bool,
}

/// A compiled program.
#[derive(Clone, PartialEq, Debug)]
pub struct Compiled {
    pub(crate) program: Arc<Program>,
    pub(crate) segments: Vec<Segment>,
    pub(crate) arenas: Vec<ArenaPlan>,
    pub(crate) buffers: Vec<CompiledBuffer>,
    /// The numbers of the steps, in the order in which they run.
    pub(crate) order: Vec<usize>,
    /// Where each value is that a step uses.
    pub(crate) storages: Vec<Option<Storage>>,
    /// For each seed the number of counter blocks that a run draws with it.
    pub(crate) drawn: HashMap<u64, u64>,
    pub(crate) fused: Vec<FusedSteps>,
    /// The options that it was compiled with.
    pub(crate) options: CompileOptions,
    /// Functions are steps of the segments of their streams; otherwise each that lies in no block is a segment by itself.
    pub(crate) functions_join: bool,
}

impl Compiled {
    /// The program as recorded, then the copies that the compiler has added for fetches of feeds and parameters. Steps that the compiler
    /// has removed are still in it; [`steps`](Compiled::steps) has those that run.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The same program, to be compiled again without a copy.
    pub fn share_program(&self) -> Arc<Program> {
        self.program.clone()
    }

    /// The compiled program for these sizes, in the order of [`Program::dims`]: the same steps in the same order over smaller tensors, with its temporaries
    /// where they are for the largest sizes. Takes time in proportion to the steps; nothing is planned anew.
    ///
    /// # Errors
    /// Those of [`Program::at`]; [`ProgramError::Malformed`](streamvm_instructions::ProgramError::Malformed) if a value is larger than for the largest sizes.
    #[track_caller]
    pub fn at(&self, sizes: &[usize]) -> Result<Compiled, Error> {
        let program = self.program.at(sizes)?;
        // Memory is that of the largest sizes.
        let mut values = self.program.values.iter().zip(&program.values);
        if let Some(value) = values.position(|(whole, value)| value.bytes() > whole.bytes()) {
            return Err(self
                .program
                .malformed(format!("for the sizes {sizes:?} value {value} is larger than for the largest ones")));
        }
        let mut compiled = self.clone();
        // For a buffer of one value: that value for the bounds, and its bytes for these sizes.
        let whole = |buffer: usize| {
            self.value_of(buffer).map(|value| (self.program.value(value), program.value(value).bytes()))
        };
        for (index, buffer) in compiled.buffers.iter_mut().enumerate() {
            whole(index).into_iter().for_each(|(_, bytes)| buffer.bytes = bytes);
            if matches!(buffer.role, BufferRole::Flag(_)) && self.options.check_finite {
                // A view may have more elements than for the largest sizes.
                let operands = program.steps.iter().flat_map(|step| &step.operands);
                let bytes = operands.map(|it| it.layout.elements() * program.value(it.value).dtype.size());
                buffer.bytes = bytes.max().unwrap_or(0).max(buffer.bytes);
            }
        }
        for Segment { uses, others, .. } in &self.segments {
            let through_flag = others.iter().filter(|part| part.role.uses_flag());
            let operands = through_flag.flat_map(|part| &program.steps[self.order[part.steps.start]].operands);
            let bytes =
                operands.map(|it| it.layout.elements() * program.value(it.value).dtype.size()).max().unwrap_or(0);
            let flag = uses.iter().find(|it| matches!(self.buffers[it.buffer].role, BufferRole::Flag(_)));
            if let Some(flag) = flag.map(|it| &mut compiled.buffers[it.buffer]) {
                flag.bytes = flag.bytes.max(bytes);
            }
        }
        for it in compiled.segments.iter_mut().flat_map(|segment| &mut segment.uses) {
            // What varies is used whole, or in parts that count as the whole.
            match whole(it.buffer) {
                Some((value, bytes)) if it.bytes.end == value.bytes() && value.varying.is_some() => {
                    it.bytes.end = bytes
                }
                None if matches!(self.buffers[it.buffer].role, BufferRole::Flag(_)) => {
                    it.bytes.end = compiled.buffers[it.buffer].bytes;
                }
                _ => {}
            }
        }
        compiled.program = Arc::new(program);
        Ok(compiled)
    }

    /// The options that it was compiled with.
    pub fn options(&self) -> &CompileOptions {
        &self.options
    }

    /// The instructions of a run, in the order in which they are submitted. There is none for a program without steps.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The function that a segment calls, if that is all it does: such a segment is a function instruction over views of the values.
    pub fn function_of(&self, segment: &Segment) -> Option<&StepFunction> {
        match &self.program.steps[*self.order.get(segment.steps.start)?].work {
            Work::Function(function) if !self.functions_join => Some(function),
            _ => None,
        }
    }

    /// Whether all that a segment does is a touch: such a segment is that instruction over views of the values.
    pub fn is_touch(&self, segment: &Segment) -> bool {
        let step = self.order.get(segment.steps.start);
        step.is_some_and(|&number| matches!(self.program.steps[number].work, Work::Touch(_)))
    }

    /// The devices whose streams run it, and those that run steps between commands of another device, each once, in the order of their first segments. The stream of critical sections does not count.
    pub fn devices(&self) -> Vec<DeviceId> {
        let mut devices = Vec::new();
        for segment in self.segments.iter().filter(|segment| !segment.is_section_mark()) {
            for device in
                std::iter::once(segment.stream.device).chain(segment.others.iter().flat_map(OtherPart::devices))
            {
                if !devices.contains(&device) {
                    devices.push(device);
                }
            }
        }
        devices
    }

    /// Memory of each run that several values share: one for each compute stream or lane that needs it and each device whose memory it uses, and one for each segment whose
    /// lanes give values to each other.
    pub fn arenas(&self) -> &[ArenaPlan] {
        &self.arenas
    }

    /// Its memory.
    pub fn buffers(&self) -> &[CompiledBuffer] {
        &self.buffers
    }

    /// The value of a buffer that one value has to itself, a feed or a parameter among them.
    pub fn value_of(&self, buffer: usize) -> Option<ValueId> {
        match self.buffers[buffer].role {
            BufferRole::Feed(place) => Some(self.program.feeds[place].value),
            BufferRole::Parameter(place) => Some(self.program.parameters[place].value),
            BufferRole::Fetched(value) | BufferRole::Own(value) => Some(value),
            BufferRole::Arena(_) | BufferRole::Flag(_) => None,
        }
    }

    /// The number of its steps.
    pub fn step_count(&self) -> usize {
        self.order.len()
    }

    /// Its steps, in the order in which they run.
    pub fn steps(&self) -> impl ExactSizeIterator<Item = CompiledStep<'_>> + DoubleEndedIterator + Clone {
        self.steps_of(0..self.order.len())
    }

    /// The steps at these positions.
    ///
    /// # Panics
    /// If there are fewer steps.
    pub fn steps_of(
        &self,
        positions: Range<usize>,
    ) -> impl ExactSizeIterator<Item = CompiledStep<'_>> + DoubleEndedIterator + Clone {
        self.order[positions].iter().map(|&number| self.of_number(number))
    }

    /// The step at this position.
    ///
    /// # Panics
    /// If there are fewer steps.
    pub fn step(&self, position: usize) -> CompiledStep<'_> {
        self.of_number(self.order[position])
    }

    /// About how many bytes its order of steps and its places of values take on the heap.
    pub fn plan_bytes(&self) -> usize {
        size_of_val(self.order.as_slice()) + size_of_val(self.storages.as_slice()) + self.options.costs.heap_bytes()
    }

    /// The work of the step at this position.
    pub(crate) fn work(&self, position: usize) -> &Work {
        &self.program.steps[self.order[position]].work
    }

    /// The operands of the step at this position.
    pub(crate) fn operands(&self, position: usize) -> impl DoubleEndedIterator<Item = Located<'_>> + Clone {
        self.program.steps[self.order[position]].operands.iter().map(|operand| self.located(operand))
    }

    fn of_number(&self, number: usize) -> CompiledStep<'_> {
        let step = &self.program.steps[number];
        let advance = match &step.work {
            Work::Call(_, Params { extra: Extra::Random { seed, .. }, .. }) => self.drawn.get(seed).copied(),
            _ => None,
        };
        CompiledStep {
            work: &step.work,
            operands: step.operands.iter().map(|operand| self.located(operand)).collect(),
            number,
            advance: advance.unwrap_or(0),
            site: step.site,
        }
    }

    fn located<'c>(&'c self, operand: &'c Operand) -> Located<'c> {
        let storage = self.storages[operand.value.0];
        Located {
            value: operand.value,
            storage: storage.unwrap_or_else(|| unreachable!("the compiler gives each used value its storage")),
            dtype: self.program.value(operand.value).dtype,
            layout: &operand.layout,
            access: operand.access,
        }
    }

    /// The steps that run together, in their order.
    pub fn fused(&self) -> &[FusedSteps] {
        &self.fused
    }

    /// The group of fused steps that this step is in.
    pub(crate) fn fused_at(&self, position: usize) -> Option<&FusedSteps> {
        let next = self.fused.partition_point(|fused| fused.steps.end <= position);
        self.fused.get(next).filter(|fused| fused.steps.contains(&position))
    }

    /// How many rounds all loops of a run may make together.
    pub fn most_rounds(&self) -> u64 {
        self.options.most_rounds
    }

    /// How long the loops of a segment may take in one run: [`CompileOptions::most_loop_time`].
    pub fn most_loop_time(&self) -> Option<Duration> {
        self.options.most_loop_time
    }

    /// The same program, a part of `whole` ([`Program::for_fetches`]), whose runs draw the numbers that runs of `whole` with the same numbers draw.
    #[must_use]
    pub fn drawing_as(mut self, whole: &Compiled) -> Compiled {
        self.drawn.clone_from(&whole.drawn);
        self
    }

    /// Whether it draws random numbers, others in each run.
    pub fn draws(&self) -> bool {
        self.steps().any(|step| step.advance > 0)
    }

    /// Whether each step is a segment of its own, with memory of its own for each value: [`CompileOptions::step_by_step`].
    pub fn is_step_by_step(&self) -> bool {
        self.options.step_by_step
    }

    /// Whether runs note how long each step takes: [`CompileOptions::time_steps`].
    pub fn times_steps(&self) -> bool {
        self.options.time_steps
    }

    /// Whether steps on a CUDA device may be launched as graphs: [`CompileOptions::capture`].
    pub fn captures(&self) -> bool {
        self.options.capture
    }

    /// The fewest calls of the driver that a graph without blocks replaces: [`CompileOptions::smallest_graph`].
    pub fn smallest_graph(&self) -> usize {
        self.options.smallest_graph
    }

    /// Whether a run looks for infinities and NaN in what its steps write: [`CompileOptions::check_finite`].
    pub fn checks_finite(&self) -> bool {
        self.options.check_finite
    }

    /// The size of all arenas together in bytes; 0 if there is none.
    pub fn arena_bytes(&self) -> usize {
        self.arenas.iter().map(|arena| arena.bytes).sum()
    }

    /// The smallest size that the arenas could have together: for each, the largest sum of sizes of values that live in it at one time.
    pub fn arena_lower_bound(&self) -> usize {
        self.arenas.iter().map(|arena| arena.lower_bound).sum()
    }

    /// Whether the planner has proven that no plan of any arena is smaller.
    pub fn arenas_are_optimal(&self) -> bool {
        self.arenas.iter().all(|arena| arena.is_optimal)
    }
}
