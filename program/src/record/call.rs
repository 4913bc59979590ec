//! Programs inside programs: the steps of a recorded program become steps of a recording.
//!
//! * A feed is the tensor that is given for it, or a copy without gaps in the place of the feed, as in a run.
//! * A parameter is the whole tensor that is given for it.
//! * Every other value of the program becomes a new value of the recording.
//! * Steps keep the source line that recorded them.
//! * Random numbers: a call draws what the program drew when it was recorded, unless steps of the recording have drawn these numbers, or later ones
//!   of the same seed; then it goes on after them.

use std::ops::Range;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;
use streamvm_ep::{Access, Extra, Layout, MemoryKind, Site};
use streamvm_instructions::{BuildError, Error, Lane, ProgramError, Tensor};

use crate::ir::function::FunctionOrder;
use crate::ir::program::{
    COLLECTIVE_IN_BLOCK, FUNCTION_IN_BLOCK, MOST_NESTED, Operand, Program, Step, StepOrder, TOUCH_IN_BLOCK, Value,
    ValueId, ValueRole, Work,
};
use crate::ir::section::SECTION_IN_BLOCK;
use crate::ir::shared_layouts::SharedLayouts;
use crate::record::recording::{BESIDE_BLOCK, OF_ENDED_BLOCK, Recording, TOO_DEEP, WRITES_FEED, elsewhere};
use crate::record::results::Results;

/// The value of the recording that a value of the called program becomes.
#[derive(Copy, Clone)]
struct Bound {
    value: ValueId,
    /// The element of the value at which it begins.
    offset: usize,
}

impl Bound {
    fn operand(self, layout: &Layout, access: Access, layouts: &mut SharedLayouts) -> Result<Operand, Error> {
        let layout = if self.offset == 0 {
            layouts.of(layout)
        } else {
            let moved = Layout::with_strides(*layout.shape(), layout.strides(), layout.offset() + self.offset);
            layouts.of(&moved.map_err(BuildError::from)?)
        };
        Ok(Operand { value: self.value, layout, access, varying: None })
    }
}

/// The lane of a step that a call on `lane` adds.
fn lane_in_call(step: &Step, lane: u32) -> u32 {
    if step.work.is_mark() || step.work.section().is_some() {
        0
    } else if step.is_collective() {
        // Groups of ranks have their lanes for all programs.
        step.lane
    } else {
        lane.wrapping_add(step.lane)
    }
}

/// The steps and values that a call adds. They enter the recording together, once all of them have been checked.
struct Draft {
    first: usize,
    /// The lane of the call.
    lane: u32,
    values: Vec<Value>,
    steps: Vec<Step>,
    orders: Vec<StepOrder>,
}

impl Draft {
    fn new_value(&mut self, value: Value) -> ValueId {
        self.values.push(Value { role: ValueRole::Computed, ..value });
        ValueId(self.first + self.values.len() - 1)
    }

    /// Adds a copy of `source`, with the layout of one whole value, to a new value like `like`.
    fn copy(&mut self, source: Operand, like: Value, site: Site) -> ValueId {
        let shape = *source.layout.shape();
        let value = self.new_value(Value { shape, ..like });
        let target =
            Operand { value, layout: Arc::new(Layout::contiguous(shape)), access: Access::Write, varying: None };
        self.steps.push(Step { work: Work::Copy, operands: vec![source, target], lane: self.lane, site });
        value
    }
}

impl Recording {
    /// Adds the steps of `program`, which was checked, or none, and returns its results.
    ///
    /// # Errors
    /// Those of [`Recorder::call`](crate::Recorder::call).
    pub(crate) fn add_program(
        &mut self,
        program: &Program,
        feeds: &[(&str, &Tensor)],
        parameters: &[(&str, &Tensor)],
        site: Site,
    ) -> Result<Results, Error> {
        // One with bounded sizes is called for the sizes of these feeds.
        let sized = if program.dims.is_empty() { None } else { Some(program.at(&program.sizes_of(feeds)?)?) };
        let program = sized.as_ref().unwrap_or(program);
        let feeds = program.given_feeds(feeds)?;
        let parameters = program.given_parameters(parameters)?;
        self.check_steps(program)?;
        let first = self.program.values.len();
        let lane = Lane::current().0;
        let mut draft = Draft { first, lane, values: Vec::new(), steps: Vec::new(), orders: Vec::new() };
        let bound = self.bind(program, &feeds, &parameters, &mut draft, site)?;
        let shifts = self.random_shifts(program);
        let begin = self.program.steps.len() + draft.steps.len();
        let moved = |steps: &Range<usize>| begin + steps.start..begin + steps.end;
        draft
            .orders
            .extend(program.orders.iter().map(|it| StepOrder { earlier: moved(&it.earlier), later: moved(&it.later) }));
        for step in &program.steps {
            let operand = |it: &Operand| bound[it.value.0].operand(&it.layout, it.access, &mut self.layouts);
            let operands = step.operands.iter().map(operand).collect::<Result<_, _>>()?;
            let lane = lane_in_call(step, lane);
            draft.steps.push(Step { work: shifted(&step.work, &shifts), operands, lane, site: step.site });
        }
        // The value and layout of each result. One that is a feed or parameter is a copy of its elements at the end of the call.
        let mut ends = Vec::with_capacity(program.fetches.len());
        for fetch in &program.fetches {
            let value = program.value(fetch.value);
            if value.role == ValueRole::Computed {
                ends.push((bound[fetch.value.0].value, fetch.layout));
            } else {
                let source = bound[fetch.value.0].operand(&fetch.layout, Access::Read, &mut self.layouts)?;
                let copy = draft.copy(source, value.clone(), site);
                ends.push((copy, Layout::contiguous(*fetch.layout.shape())));
            }
        }
        self.check_lanes(program, &draft)?;
        self.add_draft(draft);
        let mut owners: HashMap<ValueId, Tensor> = HashMap::new();
        let mut tensors = Vec::with_capacity(ends.len());
        for (value, layout) in ends {
            let owner = owners.entry(value).or_insert_with(|| self.tensor_of(value));
            tensors.push(if layout == *owner.layout() { owner.clone() } else { owner.view(layout)? });
        }
        let names = program.fetches.iter().map(|fetch| fetch.name.clone());
        Ok(Results { program: program.name.clone(), results: names.zip(tensors).collect() })
    }

    /// Checks that the steps and copies of a call in a block are on the lane of that block.
    fn check_lanes(&self, program: &Program, draft: &Draft) -> Result<(), Error> {
        let steps = || draft.steps.iter().filter(|step| self.open_blocks() > 0 && !step.work.is_mark());
        let first = steps().map(|step| step.lane).next();
        match steps().find(|step| self.is_beside_block(step.lane) || Some(step.lane) != first) {
            None => Ok(()),
            Some(Step { work, site, .. }) => {
                let (what, why) = (format!("{} of program {:?}", work.name(), program.name), BESIDE_BLOCK.to_owned());
                Err(ProgramError::NotRecordable { what, site: *site, why }.into())
            }
        }
    }

    /// Checks what depends on the blocks around the call.
    fn check_steps(&self, program: &Program) -> Result<(), Error> {
        let mut depth = self.open_blocks();
        for Step { work, site, .. } in &program.steps {
            let refused = |why: &str| {
                let what = format!("{} of program {:?}", work.name(), program.name);
                Err(ProgramError::NotRecordable { what, site: *site, why: why.to_owned() }.into())
            };
            match work {
                Work::If | Work::While if depth == MOST_NESTED => return refused(TOO_DEEP),
                Work::If | Work::While => depth += 1,
                Work::End => depth -= 1,
                Work::Function(function) if depth > 0 && function.order() == FunctionOrder::Collective => {
                    return refused(COLLECTIVE_IN_BLOCK);
                }
                Work::Function(function) if depth > 0 && !function.may_lie_in_block() => {
                    return refused(FUNCTION_IN_BLOCK);
                }
                Work::SectionBegin(_) | Work::SectionEnd(_) if depth > 0 => return refused(SECTION_IN_BLOCK),
                Work::Function(_) | Work::Else | Work::Call(..) | Work::Copy | Work::Fill(_) => {}
                Work::Touch(_) if depth > 0 => return refused(TOUCH_IN_BLOCK),
                Work::Touch(_) | Work::SectionBegin(_) | Work::SectionEnd(_) => {}
            }
        }
        Ok(())
    }

    /// Finds for each value of the called program the value of the recording that it becomes. Adds copies of feeds that have gaps or are elsewhere.
    fn bind(
        &self,
        program: &Program,
        feeds: &[&Tensor],
        parameters: &[&Tensor],
        draft: &mut Draft,
        site: Site,
    ) -> Result<Vec<Bound>, Error> {
        let written: HashSet<ValueId> =
            program.steps.iter().flat_map(|step| step.outputs().map(|it| it.value)).collect();
        // The parameters before the feeds, so that a feed is compared with all of them: their values, with the positions for errors.
        let mut bound_parameters: SmallVec<[Bound; 4]> = SmallVec::new();
        let mut owner: HashMap<ValueId, (usize, bool)> = HashMap::new();
        for (place, (port, tensor)) in program.parameters.iter().zip(parameters).enumerate() {
            let value = self.given_value(program, "parameter", &port.name, tensor, site)?;
            let writes = written.contains(&port.value);
            if writes && matches!(self.program.value(value).role, ValueRole::Feed(_)) {
                let what = format!("program {:?} with parameter {:?}", program.name, port.name);
                return Err(ProgramError::NotRecordable { what, site, why: WRITES_FEED.to_owned() }.into());
            }
            if let Some((other, other_writes)) = owner.insert(value, (place, writes))
                && (writes || other_writes)
            {
                let help = "the program writes one of these parameters; bind each to a tensor of its own";
                return Err(
                    BuildError::Overlap { what: program.name.clone(), first: place, second: other, help }.into()
                );
            }
            bound_parameters.push(Bound { value, offset: 0 });
        }
        let mut bound_feeds: SmallVec<[Bound; 4]> = SmallVec::new();
        for (place, (port, tensor)) in program.feeds.iter().zip(feeds).enumerate() {
            let value = self.given_value(program, "feed", &port.name, tensor, site)?;
            let needed = program.value(port.value).place;
            if tensor.layout().is_contiguous() && tensor.place() == needed {
                if let Some((parameter, true)) = owner.get(&value) {
                    let help = "the program writes this parameter; feed a tensor that shares no memory with it";
                    let (what, first) = (program.name.clone(), program.feeds.len() + parameter);
                    return Err(BuildError::Overlap { what, first, second: place, help }.into());
                }
                bound_feeds.push(Bound { value, offset: tensor.layout().offset() });
                continue;
            }
            let memory = if tensor.place() == needed { tensor.memory() } else { MemoryKind::Device };
            let source = Operand { value, layout: Arc::new(*tensor.layout()), access: Access::Read, varying: None };
            let like = Value { place: needed, memory, ..program.value(port.value).clone() };
            bound_feeds.push(Bound { value: draft.copy(source, like, site), offset: 0 });
        }
        let bind = |value: &Value| match value.role {
            ValueRole::Feed(place) => bound_feeds[place],
            ValueRole::Parameter(place) => bound_parameters[place],
            ValueRole::Computed => Bound { value: draft.new_value(value.clone()), offset: 0 },
        };
        Ok(program.values.iter().map(bind).collect())
    }

    /// The value of a tensor that is given for a feed or parameter.
    fn given_value(
        &self,
        program: &Program,
        kind: &str,
        name: &str,
        tensor: &Tensor,
        site: Site,
    ) -> Result<ValueId, Error> {
        let what = || format!("the {kind} {name:?} of program {:?}", program.name);
        let id = tensor.resource().id_in(self.engine).map_err(|_| elsewhere(&what(), &tensor.described(), site))?;
        let Some(id) = id else {
            return Err(Error::NeverWritten { line: 0, what: what(), operand: tensor.described(), site });
        };
        let value = ValueId(id.index());
        if self.is_released(value) {
            return Err(Error::Released { line: 0, what: what(), operand: tensor.described(), site });
        }
        if self.has_ended(value) {
            return Err(ProgramError::NotRecordable { what: what(), site, why: OF_ENDED_BLOCK.to_owned() }.into());
        }
        Ok(value)
    }

    /// By how many blocks of each seed the random numbers of a call are later than those of the recorded steps.
    fn random_shifts(&self, program: &Program) -> HashMap<u64, u64> {
        let mut first: HashMap<u64, u64> = HashMap::new();
        for step in &program.steps {
            if let Some(drawn) = step.draws(|id| program.value(id)) {
                let known = first.entry(drawn.seed).or_insert(drawn.first);
                *known = drawn.first.min(*known);
            }
        }
        let shift = |(seed, start): (u64, u64)| {
            let end = self.drawn.get(&seed).copied().unwrap_or(0);
            (seed, end.saturating_sub(start))
        };
        first.into_iter().map(shift).collect()
    }

    fn add_draft(&mut self, mut draft: Draft) {
        let mut lanes = draft.steps.iter().filter(|step| !step.work.is_mark()).map(|step| step.lane);
        self.note_lane(lanes.next_back());
        for step in &draft.steps {
            // Values of the draft are not part of the program yet, so outputs are looked up in both.
            self.note_drawn(step, &draft.values);
        }
        self.note_new_values(draft.first..draft.first + draft.values.len());
        self.program.values.append(&mut draft.values);
        self.program.steps.append(&mut draft.steps);
        self.program.orders.append(&mut draft.orders);
    }
}

/// The work with its random numbers moved on.
fn shifted(work: &Work, shifts: &HashMap<u64, u64>) -> Work {
    let mut work = work.clone();
    if let Work::Call(_, params) = &mut work
        && let Extra::Random { seed, counter } = &mut params.extra
    {
        *counter = counter.wrapping_add(shifts.get(seed).copied().unwrap_or(0));
    }
    work
}
