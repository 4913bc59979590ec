//! One recording: the program so far, and which resource is which of its values.

use std::ops::Range;

use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;
use streamvm_ep::{Access, DType, Layout, Shape, Site};
use streamvm_instructions::{
    Batch, BuildError, Declared, EngineRef, Error, Instruction, Kind, ProgramError, Resource, ResourceId, Role, Tensor,
};
use streamvm_stream::StreamType;

use crate::ir::dims::{BoundedDim, Dim, MOST_DIMS, Sizes};
use crate::ir::function::{FunctionOrder, StepFunction};
use crate::ir::program::{
    COLLECTIVE_IN_BLOCK, FUNCTION_IN_BLOCK, MOST_NESTED, Operand, Port, Program, Step, TOUCH_IN_BLOCK, Value, ValueId,
    ValueRole, Work,
};
use crate::ir::section::{SECTION_IN_BLOCK, StepSection};
use crate::ir::shared_layouts::SharedLayouts;

/// A recording on one thread. The number of a resource in it is the number of its value.
pub(crate) struct Recording {
    pub(crate) engine: EngineRef,
    pub(crate) program: Program,
    /// The lane of the steps of the blocks that have begun and not ended, once there is a step.
    lane_of_block: Option<u32>,
    /// Whether calls on its tensors insert copies and casts ([`Recorder::insert_transfers`](crate::Recorder::insert_transfers)).
    pub(super) inserts_transfers: bool,
    /// For a recording that may have bounded sizes, the sizes to record for; empty for the bounds.
    pub(super) sizes: Option<Sizes>,
    /// Values that a list has released.
    released: HashSet<ValueId>,
    /// The blocks that have begun and not ended, the innermost last.
    open: Vec<OpenBlock>,
    /// Values that steps of a block wrote first, which has ended.
    ended: HashSet<ValueId>,
    /// For each seed the end of the random numbers that steps have drawn, in counter blocks.
    pub(super) drawn: HashMap<u64, u64>,
    /// The layouts of its operands.
    pub(super) layouts: SharedLayouts,
}

/// A block that has begun and not ended.
struct OpenBlock {
    work: Work,
    /// What its steps wrote first.
    values: Vec<ValueId>,
}

/// What a batch adds, before it is known that all of it can be recorded.
#[derive(Default)]
struct Draft {
    /// The lane of its last step.
    lane_of_block: Option<u32>,
    values: Vec<Value>,
    /// Resources without a value so far, by address: the batch keeps them alive.
    new: HashMap<*const Resource, ValueId>,
    steps: Vec<Step>,
    released: HashSet<ValueId>,
    /// The feeds of the critical section that begins next.
    section_feeds: Vec<Operand>,
    /// Those of the recording.
    layouts: SharedLayouts,
}

impl Recording {
    pub(crate) fn new(engine: EngineRef, name: String, sizes: Option<Sizes>) -> Recording {
        Recording {
            engine,
            program: Program::new(name),
            lane_of_block: None,
            inserts_transfers: false,
            sizes,
            released: HashSet::new(),
            open: Vec::new(),
            ended: HashSet::new(),
            drawn: HashMap::new(),
            layouts: SharedLayouts::default(),
        }
    }

    /// Adds all instructions of a batch, or none.
    ///
    /// # Errors
    /// [`ProgramError::NotRecordable`] with the first instruction that cannot be recorded; [`Error::NeverWritten`] and
    /// [`Error::Released`] as an engine returns them.
    pub(crate) fn add<B: Batch>(&mut self, batch: &B) -> Result<(), Error> {
        self.add_part(batch, 0..batch.instructions().len())
    }

    /// Adds a call of `function`, whose uses the only instruction of the batch declares.
    ///
    /// # Errors
    /// As [`add`](Recording::add).
    pub(crate) fn add_function<B: Batch>(&mut self, batch: &B, function: &StepFunction) -> Result<(), Error> {
        self.add_lines(batch, 0..batch.instructions().len(), Some(function))
    }

    /// Adds these instructions of a batch, or none, as [`add`](Recording::add) does.
    ///
    /// # Errors
    /// As [`add`](Recording::add).
    pub(crate) fn add_part<B: Batch>(&mut self, batch: &B, lines: Range<usize>) -> Result<(), Error> {
        self.add_lines(batch, lines, None)
    }

    /// Adds these instructions, or none. A function among them is `function`, or was parsed from text and has no code.
    fn add_lines<B: Batch>(
        &mut self,
        batch: &B,
        lines: Range<usize>,
        function: Option<&StepFunction>,
    ) -> Result<(), Error> {
        let mut draft = Draft { layouts: std::mem::take(&mut self.layouts), ..Draft::default() };
        let drafted = lines.clone().try_for_each(|line| {
            let instruction = &batch.instructions()[line];
            self.draft((line, instruction), batch.uses(instruction), function, &mut draft)
        });
        self.layouts = draft.layouts;
        drafted?;
        // Another thread may have submitted a tensor of this batch to an engine meanwhile. Then the batch is refused, and its other new
        // tensors stay without a value.
        let instructions = &batch.instructions()[lines];
        for instruction in instructions {
            for u in batch.uses(instruction) {
                if draft.new.contains_key(&std::ptr::from_ref(u.resource())) {
                    let claimed = u.resource().claim(self.engine);
                    claimed.map_err(|_| elsewhere(instruction.kind.name(), &u.described(), instruction.site))?;
                }
            }
        }
        for u in instructions.iter().flat_map(|instruction| batch.uses(instruction)) {
            if let Some(id) = draft.new.get(&std::ptr::from_ref(u.resource())) {
                u.resource().keep(self.engine, resource_id(*id), true);
            }
        }
        draft.steps.iter().for_each(|step| self.note_drawn(step, &draft.values));
        let first = self.program.values.len();
        self.note_new_values(first..first + draft.values.len());
        self.program.values.append(&mut draft.values);
        self.program.steps.append(&mut draft.steps);
        self.note_lane(draft.lane_of_block);
        self.released.extend(draft.released);
        Ok(())
    }

    fn draft<T, V>(
        &self,
        (line, instruction): (usize, &Instruction),
        uses: &[Declared<T, V>],
        function: Option<&StepFunction>,
        draft: &mut Draft,
    ) -> Result<(), Error>
    where
        T: std::borrow::Borrow<Tensor>,
        V: std::borrow::Borrow<streamvm_instructions::Var>,
    {
        let (site, name) = (instruction.site, instruction.kind.name());
        let refused =
            |why: &str| Err(ProgramError::NotRecordable { what: name.to_owned(), site, why: why.to_owned() }.into());
        let work = match &instruction.kind {
            Kind::Call { op, params } => Some(Work::Call(*op, *params)),
            Kind::Copy => Some(Work::Copy),
            Kind::Fill(value) => Some(Work::Fill(*value)),
            // The memory of a program is planned, so a value begins with the first step that writes it.
            Kind::Allocate => return Ok(()),
            // On the stream of sections it names the feeds of the section that begins after it, or a result of the one that ends before it.
            Kind::Touch if instruction.stream.stream_type == StreamType::Critical => None,
            Kind::Touch if !self.open.is_empty() => return refused(TOUCH_IN_BLOCK),
            Kind::Touch if instruction.stream.stream_type != StreamType::Compute => {
                return refused("in a program a touch is on a compute stream");
            }
            Kind::Touch => Some(Work::Touch(instruction.stream.device)),
            Kind::Release => None,
            Kind::Function { .. } if !self.open.is_empty() && !instruction.stream.device.kind.is_run_by_host() => {
                return refused(FUNCTION_IN_BLOCK);
            }
            Kind::Function { .. }
                if !self.open.is_empty() && instruction.stream.stream_type == StreamType::Collective =>
            {
                return refused(COLLECTIVE_IN_BLOCK);
            }
            Kind::Function { role: role @ (Role::Function | Role::Host | Role::Cuda), name, body }
                if *role != Role::Cuda || instruction.stream.stream_type == StreamType::Collective =>
            {
                match (function, body) {
                    (Some(function), _) => Some(Work::Function(function.clone())),
                    (None, None) => {
                        let function = StepFunction::new(&**name, instruction.stream.device, None);
                        Some(Work::Function(function.ordered(FunctionOrder::of(instruction.stream.stream_type))))
                    }
                    (None, Some(_)) => {
                        return refused(
                            "the code of a list can be called once; record the function with `Recorder::call_fn`, for code that each run calls",
                        );
                    }
                }
            }
            Kind::Function { role: Role::Cuda, .. } => {
                return refused(
                    "its code is called once; a kernel of your own that each run launches is an op: register a `TensorOp` with code for CUDA",
                );
            }
            Kind::Function { .. } => {
                return refused(
                    "of functions, a program has those of `Recorder::call_fn` and `host_fn` alone; call it before or behind the program",
                );
            }
            Kind::Record(_) | Kind::Wait { .. } | Kind::Barrier { .. } | Kind::GlobalSync => {
                return refused("a program finds its waits itself; leave out records, waits and barriers");
            }
            Kind::SectionBegin(_) | Kind::SectionEnd(_) if !self.open.is_empty() => return refused(SECTION_IN_BLOCK),
            Kind::SectionBegin(section) => Some(Work::SectionBegin(StepSection::new(section.clone()))),
            Kind::SectionEnd(section) => Some(Work::SectionEnd(StepSection::new(section.clone()))),
        };
        let is_section = work.as_ref().is_some_and(|work| work.section().is_some());
        let lane = if is_section { 0 } else { instruction.stream.lane };
        let beside_others = !self.open.is_empty() && draft.lane_of_block.is_some_and(|of_block| of_block != lane);
        if work.is_some() && (beside_others || self.is_beside_block(lane)) {
            return refused(BESIDE_BLOCK);
        }
        let mut operands = Vec::with_capacity(uses.len());
        // The begin and the end of a section use its resources, which no other instruction uses.
        for u in uses.iter().filter(|_| !is_section) {
            let Some(tensor) = u.as_tensor() else {
                return refused("it uses a variable; a program orders its steps by their tensors alone");
            };
            let value = match self
                .value_of(tensor.resource(), draft)
                .map_err(|_| elsewhere(name, &tensor.described(), site))?
            {
                Some(value) => value,
                None if u.access().reads() || matches!(instruction.kind, Kind::Release) => {
                    return Err(Error::NeverWritten { line, what: name.to_owned(), operand: u.described(), site });
                }
                None => self.new_value(tensor, draft),
            };
            if self.released.contains(&value) || draft.released.contains(&value) {
                return Err(Error::Released { line, what: name.to_owned(), operand: u.described(), site });
            }
            if self.ended.contains(&value) {
                return refused(OF_ENDED_BLOCK);
            }
            if u.access().writes()
                && let Some(Value { role: ValueRole::Feed(_), .. }) = self.program.values.get(value.0)
                && !matches!(instruction.kind, Kind::Release)
            {
                return refused(WRITES_FEED);
            }
            operands.push(Operand {
                value,
                layout: draft.layouts.of(tensor.layout()),
                access: u.access(),
                varying: None,
            });
        }
        match work {
            Some(work) => {
                if matches!(work, Work::SectionBegin(_)) {
                    operands.append(&mut draft.section_feeds);
                }
                draft.lane_of_block = Some(lane);
                draft.steps.push(Step { work, operands, lane, site });
            }
            None if matches!(instruction.kind, Kind::Release) => {
                draft.released.extend(operands.iter().map(|operand| operand.value));
            }
            None => {
                let (results, feeds): (Vec<_>, Vec<_>) =
                    operands.into_iter().partition(|operand| operand.access.writes());
                draft.section_feeds.extend(feeds);
                if let Some(Step { work: Work::SectionEnd(_), operands, .. }) = draft.steps.last_mut() {
                    operands.extend(results);
                }
            }
        }
        Ok(())
    }

    /// Notes values of the innermost block, which exist until it ends.
    pub(super) fn note_new_values(&mut self, values: Range<usize>) {
        if let Some(block) = self.open.last_mut() {
            block.values.extend(values.map(ValueId));
        }
    }

    /// Notes the random numbers that a step draws; `new` are values that the program will have after its own.
    pub(super) fn note_drawn(&mut self, step: &Step, new: &[Value]) {
        let values = &self.program.values;
        let value = |id: ValueId| values.get(id.0).unwrap_or_else(|| &new[id.0 - values.len()]);
        if let Some(drawn) = step.draws(value) {
            let end = self.drawn.entry(drawn.seed).or_insert(0);
            *end = drawn.first.saturating_add(drawn.blocks).max(*end);
        }
    }

    /// Notes the lane of a step, which is that of all steps of the blocks around it.
    pub(super) fn note_lane(&mut self, lane: Option<u32>) {
        if !self.open.is_empty() {
            self.lane_of_block = self.lane_of_block.or(lane);
        }
    }

    /// Whether a step on this lane would lie in a block whose steps are on another one.
    pub(super) fn is_beside_block(&self, lane: u32) -> bool {
        self.lane_of_block.is_some_and(|of_block| of_block != lane)
    }

    /// How many blocks have begun and not ended.
    pub(super) fn open_blocks(&self) -> usize {
        self.open.len()
    }

    pub(super) fn is_released(&self, value: ValueId) -> bool {
        self.released.contains(&value)
    }

    /// Whether the value was written first in a block that has ended.
    pub(super) fn has_ended(&self, value: ValueId) -> bool {
        self.ended.contains(&value)
    }

    /// A new tensor that stands for a value.
    pub(super) fn tensor_of(&self, id: ValueId) -> Tensor {
        let Value { place, memory, dtype, shape, .. } = *self.program.value(id);
        self.standing_for(Tensor::unbound(place, memory, dtype, shape), id)
    }

    /// Binds a tensor that no engine owns to a value.
    fn standing_for(&self, tensor: Tensor, id: ValueId) -> Tensor {
        if tensor.resource().claim(self.engine).is_ok() {
            tensor.resource().keep(self.engine, resource_id(id), true);
        }
        tensor
    }

    /// The value of a resource, if it has one; an error if the resource is of an engine or of another recording.
    fn value_of(&self, resource: &Resource, draft: &Draft) -> Result<Option<ValueId>, streamvm_instructions::Foreign> {
        let known = resource.id_in(self.engine)?.map(|id| ValueId(id.index()));
        Ok(known.or_else(|| draft.new.get(&std::ptr::from_ref(resource)).copied()))
    }

    fn new_value(&self, tensor: &Tensor, draft: &mut Draft) -> ValueId {
        let id = ValueId(self.program.values.len() + draft.values.len());
        draft.values.push(value(tensor, ValueRole::Computed));
        draft.new.insert(std::ptr::from_ref(tensor.resource()), id);
        id
    }

    /// Adds a step that begins or ends a block.
    ///
    /// # Errors
    /// [`ProgramError::NotRecordable`]: the condition is no single bool, or is not of this recording; an `else` or an end belongs to no block.
    /// [`Error::NeverWritten`] and [`Error::Released`] of the condition.
    pub(crate) fn add_mark(&mut self, work: Work, condition: Option<&Tensor>, site: Site) -> Result<(), Error> {
        let name = work.name();
        let refused =
            |why: &str| Err(ProgramError::NotRecordable { what: name.to_owned(), site, why: why.to_owned() }.into());
        let mut operands = Vec::new();
        if let Some(tensor) = condition {
            let value = self
                .value_of(tensor.resource(), &Draft::default())
                .map_err(|_| elsewhere(name, &tensor.described(), site))?;
            let Some(value) = value else {
                return Err(Error::NeverWritten { line: 0, what: name.to_owned(), operand: tensor.described(), site });
            };
            if self.released.contains(&value) {
                return Err(Error::Released { line: 0, what: name.to_owned(), operand: tensor.described(), site });
            }
            if self.ended.contains(&value) {
                return refused(OF_ENDED_BLOCK);
            }
            if (tensor.dtype(), tensor.layout().elements()) != (DType::Bool, 1) {
                return refused(&format!(
                    "the condition of an `if` or a `while` is one bool, and it is {}; compare numbers, and reduce what has more elements",
                    tensor.described()
                ));
            }
            let layout = self.layouts.of(tensor.layout());
            operands.push(Operand { value, layout, access: Access::Read, varying: None });
        }
        if matches!(work, Work::Else | Work::End) {
            let is_right = |block: &OpenBlock| work == Work::End || block.work == Work::If;
            let Some(block) = self.open.pop_if(|block| is_right(block)) else {
                return refused("no block is left that it could end; an else ends the block of an if");
            };
            self.ended.extend(block.values);
            if self.open.is_empty() && work == Work::End {
                self.lane_of_block = None;
            }
        }
        if work != Work::End && self.open.len() == MOST_NESTED {
            return refused(TOO_DEEP);
        }
        if work != Work::End {
            self.open.push(OpenBlock { work: work.clone(), values: Vec::new() });
        }
        self.program.steps.push(Step { work, operands, lane: 0, site });
        Ok(())
    }

    /// Adds a feed or a parameter: a value that exists before the first step. Returns the tensor that stands for it.
    pub(crate) fn add_given(
        &mut self,
        name: String,
        tensor: Tensor,
        role: fn(usize) -> ValueRole,
        site: Site,
    ) -> Tensor {
        let id = ValueId(self.program.values.len());
        let ports = match role(0) {
            ValueRole::Feed(_) => &mut self.program.feeds,
            _ => &mut self.program.parameters,
        };
        self.program.values.push(value(&tensor, role(ports.len())));
        ports.push(Port { name, value: id, layout: *tensor.layout(), varying: None, site });
        self.standing_for(tensor, id)
    }

    /// The shape of a feed with these axes, for the sizes of this recording.
    ///
    /// # Errors
    /// [`ProgramError::NotRecordable`] for a bounded size that cannot be one; the shape is impossible.
    pub(crate) fn bounded_shape(&mut self, name: &str, axes: &[Dim], site: Site) -> Result<Shape, Error> {
        let refused =
            |why: String| Error::from(ProgramError::NotRecordable { what: format!("the feed {name:?}"), site, why });
        let dims = &mut self.program.dims;
        let mut size = |axis: &Dim| match axis {
            Dim::Fixed(size) => Ok(*size),
            Dim::Bounded(dim) => {
                let sizes = self.sizes.as_ref().ok_or_else(|| refused(ONCE_CALLED.to_owned()))?;
                let place = dims.iter().position(|known| known.name == dim.name).unwrap_or_else(|| {
                    dims.push(dim.clone());
                    dims.len() - 1
                });
                if !dim.has_fitting_name() {
                    return Err(refused(format!("{:?} is no name of a size; use letters, digits and _", dim.name)));
                }
                if dims[place] != *dim {
                    let ([least, most], [l, m]) = ([dim.least, dim.most], [dims[place].least, dims[place].most]);
                    return Err(refused(format!(
                        "{} is {least} to {most} here, and {l} to {m} in an earlier feed",
                        dim.name
                    )));
                }
                if !dim.is_sound() {
                    let BoundedDim { name, least, most } = dim;
                    return Err(refused(format!(
                        "{name} is {least} to {most}; give bounds of two sizes or more, from 1 on"
                    )));
                }
                if dims.len() > MOST_DIMS {
                    let why =
                        format!("{} is one bounded size more than the {MOST_DIMS} that a program can have", dim.name);
                    return Err(refused(why));
                }
                Ok(sizes.get(place).copied().unwrap_or(dim.most))
            }
        };
        let sizes = axes.iter().map(&mut size).collect::<Result<SmallVec<[usize; 8]>, Error>>()?;
        Ok(Shape::new(&sizes).map_err(BuildError::from)?)
    }

    /// Names a result.
    ///
    /// # Errors
    /// [`ProgramError::NotRecordable`] if no step of this recording has written the tensor; [`Error::Released`].
    pub(crate) fn add_fetch(&mut self, name: String, tensor: &Tensor, site: Site) -> Result<(), Error> {
        let what = || format!("the fetch {name:?}");
        let id = tensor.resource().id_in(self.engine).map_err(|_| elsewhere(&what(), &tensor.described(), site))?;
        let Some(id) = id else {
            let why = "no step of the program has written the tensor; record a call that writes it first";
            return Err(ProgramError::NotRecordable { what: what(), site, why: why.to_owned() }.into());
        };
        if self.released.contains(&ValueId(id.index())) {
            return Err(Error::Released { line: 0, what: what(), operand: tensor.described(), site });
        }
        let id = ValueId(id.index());
        if self.ended.contains(&id) || self.open.iter().any(|block| block.values.contains(&id)) {
            return Err(ProgramError::NotRecordable { what: what(), site, why: OF_ENDED_BLOCK.to_owned() }.into());
        }
        let layout: Layout = *tensor.layout();
        self.program.fetches.push(Port { name, value: id, layout, varying: None, site });
        Ok(())
    }
}

/// Why a feed cannot have a bounded size.
const ONCE_CALLED: &str = "it has a bounded size, for which a closure is called several times; record it by `record_bounded`, `vm.record_bounded` or `Jit::bounded`";

/// Why a step cannot be on its lane.
pub(super) const BESIDE_BLOCK: &str = "it is on another lane than the steps before it in the same block, all of which run on one; enter the lane before the block, or record the step there";

/// Why a step cannot begin a block.
pub(super) const TOO_DEEP: &str = "64 blocks are nested, the most that a program may have";

/// Why a step cannot write a value.
pub(super) const WRITES_FEED: &str =
    "it writes a feed, which is the caller's tensor; make it a parameter, or copy it first";

/// Why a step cannot use a value.
pub(super) const OF_ENDED_BLOCK: &str =
    "a tensor that a block writes first exists in that block only; make a tensor before the block, and copy into it";

/// The storage of a tensor, as a value.
fn value(tensor: &Tensor, role: ValueRole) -> Value {
    let owner = tensor.owner();
    let (place, memory, dtype, shape) = (owner.place(), owner.memory(), owner.dtype(), owner.shape());
    Value { role, place, memory, dtype, shape, varying: None }
}

fn resource_id(id: ValueId) -> ResourceId {
    ResourceId(id.0 as u32)
}

pub(super) fn elsewhere(what: &str, operand: &str, site: Site) -> Error {
    let why = format!(
        "it uses {operand} of an engine or of another recording; hand it over as a feed or a parameter, or make it by the recorder, as in `r.zeros`"
    );
    ProgramError::NotRecordable { what: what.to_owned(), site, why }.into()
}
