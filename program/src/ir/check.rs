//! The check of a whole program, before it is compiled: programs are plain data, which any code can make.

use hashbrown::HashMap;
use streamvm_ep::{Access, DType, Footprint, Layout, MemoryKind, Site, check_source, infer};
use streamvm_instructions::{Error, InstructionList, Kind, ListSections, OpenSection, ProgramError, Tensor};
use streamvm_stream::StreamKey;

use crate::ir::function::StepFunction;
use crate::ir::program::{
    COLLECTIVE_IN_BLOCK, FUNCTION_IN_BLOCK, MOST_NESTED, Operand, Port, Program, Step, StepOrder, TOUCH_IN_BLOCK,
    ValueId, ValueRole, Work,
};
use crate::ir::section::SECTION_IN_BLOCK;

/// A block that has begun and not ended.
struct Block {
    is_if: bool,
    /// What its steps write first.
    values: Vec<ValueId>,
}

impl Program {
    /// Checks what the type's documentation promises, and that each step's operands fit its work: number, shapes, dtypes.
    ///
    /// # Errors
    /// [`ProgramError::Malformed`] with the step or the name that is wrong, and what is wrong with it. [`Error::NotEnded`],
    /// [`Error::NestedSection`] and [`Error::NoSection`], with the number of the step as their line, for critical sections that do not begin and end
    /// in turn.
    #[track_caller]
    pub fn check(&self) -> Result<(), Error> {
        let site = Site::caller();
        self.check_all().map_err(|error| error.called_from(site))
    }

    fn check_all(&self) -> Result<(), Error> {
        if self.name.contains(char::is_control) || self.name.trim() != self.name {
            return Err(self.malformed("its name has control characters, or spaces around it".to_owned()));
        }
        self.check_ports()?;
        self.check_dims()?;
        self.check_orders()?;
        let mut written: Vec<bool> = self.values.iter().map(|value| value.role != ValueRole::Computed).collect();
        let mut blocks: Vec<Block> = Vec::new();
        let mut sections = ListSections::default();
        for (number, step) in self.steps.iter().enumerate() {
            let refused = |what: String| self.malformed(format!("step {number} ({}): {what}", step.work.name()));
            if step.work.is_mark() {
                self.check_condition(step).map_err(refused)?;
            } else if let Some(kind) = section_kind(&step.work) {
                if !blocks.is_empty() {
                    return Err(refused(SECTION_IN_BLOCK.to_owned()));
                }
                self.check_section_operands(step).map_err(refused)?;
                sections.line(number, &kind, step.site)?;
            } else if let Work::Touch(_) = step.work {
                if !blocks.is_empty() {
                    return Err(refused(TOUCH_IN_BLOCK.to_owned()));
                }
                self.check_reads(step).map_err(refused)?;
            } else {
                if !blocks.is_empty() && step.is_collective() {
                    return Err(refused(COLLECTIVE_IN_BLOCK.to_owned()));
                }
                if !blocks.is_empty() && step.function().is_some_and(|function| !function.may_lie_in_block()) {
                    return Err(refused(FUNCTION_IN_BLOCK.to_owned()));
                }
                self.check_step(step).map_err(refused)?;
            }
            for input in step.inputs() {
                if !written[input.value.0] {
                    let what = format!(
                        "it reads value {}, which no step before it writes, or one in a block that has ended",
                        input.value.0
                    );
                    return Err(refused(what));
                }
            }
            for output in step.outputs() {
                if !std::mem::replace(&mut written[output.value.0], true) {
                    blocks.last_mut().into_iter().for_each(|block| block.values.push(output.value));
                }
            }
            if matches!(step.work, Work::Else | Work::End) {
                let is_if = |block: &Block| block.is_if || step.work == Work::End;
                let Some(block) = blocks.pop().filter(is_if) else {
                    return Err(refused("it ends no block, or one that is not of an if".to_owned()));
                };
                block.values.iter().for_each(|value| written[value.0] = false);
            }
            if step.work.is_mark() && step.work != Work::End {
                if blocks.len() == MOST_NESTED {
                    return Err(refused(format!("{MOST_NESTED} blocks are nested, the most that a program may have")));
                }
                blocks.push(Block { is_if: step.work == Work::If, values: Vec::new() });
            }
        }
        if !blocks.is_empty() {
            return Err(self.malformed("its steps end within a block".to_owned()));
        }
        // Also a section that a later list of its thread could end: a run is one list.
        if let Some(OpenSection { section, line, site }) = sections.open() {
            let (line, section) = (line.unwrap_or_default(), section.to_string());
            return Err(Error::NotEnded { line, section, site: *site });
        }
        match self.fetches.iter().find(|fetch| !written[fetch.value.0]) {
            Some(fetch) => Err(self.malformed(format!("no step writes the fetch {:?}", fetch.name))),
            None => Ok(()),
        }
    }

    pub(crate) fn malformed(&self, what: String) -> Error {
        ProgramError::Malformed { program: self.name.clone(), what }.into()
    }

    fn check_ports(&self) -> Result<(), Error> {
        for (kind, ports) in [("feed", &self.feeds), ("parameter", &self.parameters), ("fetch", &self.fetches)] {
            let mut sites: HashMap<&str, Site> = HashMap::new();
            for port in ports {
                let unfit = |c: char| c.is_whitespace() || c.is_control();
                let first = sites.insert(&port.name, port.site);
                if port.name.is_empty() || port.name.contains(unfit) || first.is_some() {
                    let (program, name, site) = (self.name.clone(), port.name.clone(), port.site);
                    return Err(ProgramError::Name { program, kind, name, site, first }.into());
                }
                self.check_view(port.value, &port.layout)
                    .map_err(|what| self.malformed(format!("{kind} {:?}: {what}", port.name)))?;
            }
        }
        let roles = |ports: &[Port], role: fn(usize) -> ValueRole| {
            let fits = |(place, port): (usize, &Port)| {
                let value = self.value(port.value);
                value.role == role(place) && port.layout == Layout::contiguous(value.shape)
            };
            ports.iter().enumerate().all(fits)
        };
        let known = |role: ValueRole| match role {
            ValueRole::Feed(place) => place < self.feeds.len(),
            ValueRole::Parameter(place) => place < self.parameters.len(),
            ValueRole::Computed => true,
        };
        let given = self.values.iter().filter(|value| value.role != ValueRole::Computed).count();
        let one_each = given == self.feeds.len() + self.parameters.len();
        let all = self.values.iter().all(|value| known(value.role));
        if all && one_each && roles(&self.feeds, ValueRole::Feed) && roles(&self.parameters, ValueRole::Parameter) {
            return Ok(());
        }
        Err(self.malformed("each feed and each parameter is a whole value of its own".to_owned()))
    }

    fn check_orders(&self) -> Result<(), Error> {
        let fits = |order: &StepOrder| {
            let StepOrder { earlier, later } = order;
            !earlier.is_empty() && !later.is_empty() && earlier.end <= later.start && later.end <= self.steps.len()
        };
        match self.orders.iter().find(|order| !fits(order)) {
            Some(StepOrder { earlier, later }) => {
                Err(self.malformed(format!("steps {later:?} cannot be ordered after steps {earlier:?}")))
            }
            None => Ok(()),
        }
    }

    fn check_view(&self, value: ValueId, layout: &Layout) -> Result<(), String> {
        let Some(found) = self.values.get(value.0) else {
            return Err(format!("there is no value {}", value.0));
        };
        let (end, elements) = (layout.span_elements().end, found.shape.elements());
        if end > elements {
            return Err(format!("a view reaches element {end} of value {}, which has {elements}", value.0));
        }
        Ok(())
    }

    /// A step that begins or ends a block reads one bool, or nothing.
    fn check_condition(&self, step: &Step) -> Result<(), String> {
        match (&step.work, &step.operands[..]) {
            (Work::If | Work::While, [condition]) => {
                self.check_view(condition.value, &condition.layout)?;
                let (dtype, elements) = (self.value(condition.value).dtype, condition.layout.elements());
                if condition.access == Access::Read && dtype == DType::Bool && elements == 1 {
                    return Ok(());
                }
                let access = condition.access;
                Err(format!(
                    "the condition of this {} has {elements} elements of {dtype} with {access:?}, and it must be one bool that is read",
                    step.work.name()
                ))
            }
            (Work::If | Work::While, _) => Err(format!(
                "a {} has one operand, its condition, and this one has {}",
                step.work.name(),
                step.operands.len()
            )),
            (_, []) => Ok(()),
            (_, _) => Err("it has operands, and takes none".to_owned()),
        }
    }

    /// A touch reads its operands.
    fn check_reads(&self, step: &Step) -> Result<(), String> {
        step.operands.iter().try_for_each(|operand| match operand.access {
            Access::Read => self.check_view(operand.value, &operand.layout),
            access => Err(format!("its operands must be {:?}, and one is {access:?}", Access::Read)),
        })
    }

    /// The begin of a section reads its feeds, and the end changes its results.
    fn check_section_operands(&self, step: &Step) -> Result<(), String> {
        step.operands.iter().try_for_each(|operand| self.check_view(operand.value, &operand.layout))?;
        let access = if matches!(step.work, Work::SectionBegin(_)) { Access::Read } else { Access::ReadWrite };
        if step.operands.iter().any(|operand| operand.access != access) {
            return Err(format!("its operands must be {access:?}"));
        }
        if step.work.section().is_some_and(|section| section.section().resources().is_empty()) {
            return Err("it is over no resource".to_owned());
        }
        step.outputs().try_for_each(|output| self.check_not_feed(output))
    }

    fn check_step(&self, step: &Step) -> Result<(), String> {
        step.operands.iter().try_for_each(|operand| self.check_view(operand.value, &operand.layout))?;
        if let Some(function) = step.function() {
            return self.check_function(step, function);
        }
        let Some((output, inputs)) = step.operands.split_last() else {
            return Err("it has no operands".to_owned());
        };
        if output.access != Access::Write || inputs.iter().any(|input| input.access != Access::Read) {
            return Err("it must read its inputs and write its last operand".to_owned());
        }
        let target = self.value(output.value);
        self.check_not_feed(output)?;
        if target.memory == MemoryKind::Upload {
            return Err("it writes upload memory, which only copies by the host write, outside of programs".to_owned());
        }
        if matches!(step.work, Work::Call(..)) {
            let place = target.place;
            let elsewhere = inputs.iter().any(|input| self.value(input.value).place != place);
            if place.device().is_none() || elsewhere {
                return Err("it is a kernel, whose operands must live on one device".to_owned());
            }
        }
        if output.layout.overlaps_itself() {
            return Err("it writes a view of which several indices are one element".to_owned());
        }
        let expected = match (&step.work, inputs) {
            (Work::Call(op, params), []) if op.is_source() => {
                check_source(*op, target.dtype, params).map(|_| (target.dtype, *output.layout.shape()))
            }
            (Work::Call(op, params), inputs) => {
                let described: Vec<_> =
                    inputs.iter().map(|input| (self.value(input.value).dtype, input.layout.shape())).collect();
                infer(*op, &described, params)
            }
            (Work::Copy, [source]) => Ok((self.value(source.value).dtype, *source.layout.shape())),
            (Work::Fill(value), []) if value.fits(target.dtype) => Ok((target.dtype, *output.layout.shape())),
            (Work::Fill(value), []) => return Err(format!("the value {value} does not fit {}", target.dtype)),
            // `check` keeps steps that begin or end blocks from this function.
            (_, inputs) => return Err(format!("it cannot have {} inputs", inputs.len())),
        };
        let (dtype, shape) = expected.map_err(|error| error.to_string())?;
        if (dtype, &shape) != (target.dtype, output.layout.shape()) {
            let found = output.layout.shape();
            return Err(format!(
                "the output of this {} is {}{found}, and from its inputs follows {dtype}{shape}",
                step.work.name(),
                target.dtype
            ));
        }
        self.check_overlap(step, output, inputs)
    }

    fn check_not_feed(&self, output: &Operand) -> Result<(), String> {
        match self.value(output.value).role {
            ValueRole::Feed(place) => {
                Err(format!("it writes the feed {:?}, which is the caller's tensor", self.feeds[place].name))
            }
            _ => Ok(()),
        }
    }

    /// The rules of functions in lists: the host reaches all operands, and what one writes no other one touches.
    fn check_function(&self, step: &Step, function: &StepFunction) -> Result<(), String> {
        step.outputs().try_for_each(|output| self.check_not_feed(output))?;
        // One tensor for each value, so that operands of one value share memory.
        let mut owners: HashMap<ValueId, Tensor> = HashMap::new();
        let of = |operand: &Operand| {
            let owner = owners.entry(operand.value).or_insert_with(|| {
                let value = self.value(operand.value);
                Tensor::unbound(value.place, value.memory, value.dtype, value.shape)
            });
            if *owner.layout() == *operand.layout { Ok(owner.clone()) } else { owner.view(*operand.layout) }
        };
        let views: Result<Vec<Tensor>, Error> = step.operands.iter().map(of).collect();
        let views = views.map_err(|error| error.without_call())?;
        let uses = views.iter().zip(&step.operands).map(|(view, operand)| match operand.access {
            Access::Read => view.read(),
            Access::Write => view.write(),
            Access::ReadWrite => view.update(),
        });
        let stream = StreamKey::new(function.device(), function.order().stream_type(), 0);
        let kind = Kind::Function { role: function.role(), name: function.name().to_owned().into(), body: None };
        InstructionList::new().push(stream, kind, uses, step.site).map_err(|error| error.to_string())
    }

    /// A step shares no element between its output and an input; an elementwise op, or one in place, may write exactly the view that it reads.
    fn check_overlap(&self, step: &Step, output: &Operand, inputs: &[Operand]) -> Result<(), String> {
        let may_write = |place: usize| matches!(&step.work, Work::Call(op, _) if op.may_write(place));
        let clashes = |(place, input): (usize, &Operand)| {
            let same = may_write(place) && input.layout == output.layout;
            let overlap = || Footprint::of(&input.layout).overlaps(&Footprint::of(&output.layout));
            input.value == output.value && !same && overlap()
        };
        match inputs.iter().enumerate().position(clashes) {
            Some(place) => Err(format!(
                "the output of this {} has elements in common with input {place}; write elsewhere",
                step.work.name()
            )),
            None => Ok(()),
        }
    }
}

/// The kind of the instruction that begins or ends a critical section, if the step is that.
fn section_kind(work: &Work) -> Option<Kind> {
    match work {
        Work::SectionBegin(section) => Some(Kind::SectionBegin(section.section().clone())),
        Work::SectionEnd(section) => Some(Kind::SectionEnd(section.section().clone())),
        _ => None,
    }
}
