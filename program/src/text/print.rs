//! Printing a program.

use std::fmt;
use std::ops::Range;

use streamvm_ep::{Access, Layout};
use streamvm_instructions::{Error, InstructionList, InstructionsBuilder, Lane, Tensor};

use crate::ir::dims::VaryingId;
use crate::ir::program::{Operand, Port, Program, Step, StepOrder, ValueId, Work};
use crate::text::sizes::{Told, View, line_of_size};

impl fmt::Display for Program {
    /// A program that is not well formed prints as the reason.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Err(error) = self.check() {
            return write!(f, "{error}");
        }
        if !self.dims.is_empty() {
            return match self.at_telling_sizes() {
                Some(Told { program, sizes, varying }) => {
                    let sizes: Vec<String> =
                        self.dims.iter().zip(sizes).map(|(dim, size)| line_of_size(dim, size)).collect();
                    let formulas = varying
                        .into_iter()
                        .map(|(view, VaryingId(index))| (view, self.varying[index as usize].named(&self.dims)));
                    program.write(f, &sizes, &formulas.collect::<Vec<_>>())
                }
                None => write!(
                    f,
                    "program {:?} has no text: its layouts look the same for the sizes that were tried",
                    self.name
                ),
            };
        }
        self.write(f, &[], &[])
    }
}

impl Program {
    /// Writes the program, with lines for its bounded sizes, and for the views that vary, with their formulas.
    fn write(&self, f: &mut fmt::Formatter<'_>, sizes: &[String], formulas: &[(View, String)]) -> fmt::Result {
        let values = self.tensors();
        let view = |value: ValueId, layout: &Layout| view(&values, value, layout).map_err(|_| fmt::Error);
        let list = match self.list(&values) {
            Ok(list) => list,
            Err(error) => return write!(f, "{error}"),
        };
        let ports = || self.feeds.iter().chain(&self.parameters).chain(&self.fetches);
        let conditions = || self.steps.iter().filter(|step| step.work.is_mark()).flat_map(|step| &step.operands);
        let named: Result<Vec<Tensor>, _> = ports()
            .map(|port: &Port| view(port.value, &port.layout))
            .chain(conditions().map(|condition| view(condition.value, &condition.layout)))
            .chain(formulas.iter().map(|((value, layout), _)| view(*value, layout)))
            .collect();
        let (text, names) = list.with_names(&named?);
        writeln!(f, "program {}", self.name)?;
        sizes.iter().try_for_each(|line| writeln!(f, "{line}"))?;
        self.write_steps(f, &text, &names[ports().count()..])?;
        self.write_orders(f)?;
        let kinds = [("feed", self.feeds.len()), ("param", self.parameters.len()), ("fetch", self.fetches.len())];
        let kinds = kinds.into_iter().flat_map(|(kind, count)| std::iter::repeat_n(kind, count));
        for ((_, formula), name) in formulas.iter().zip(&names[ports().count() + conditions().count()..]) {
            writeln!(f, "vary {name} {formula}")?;
        }
        for ((kind, port), name) in kinds.zip(ports()).zip(names) {
            writeln!(f, "{kind} {} {name}", port.name)?;
        }
        Ok(())
    }

    /// A tensor for each value.
    fn tensors(&self) -> Vec<Tensor> {
        self.values.iter().map(|value| Tensor::unbound(value.place, value.memory, value.dtype, value.shape)).collect()
    }

    /// Writes the lines of the list, and between them the steps that begin and end blocks, with the names of their conditions.
    fn write_steps(&self, f: &mut fmt::Formatter<'_>, text: &str, conditions: &[String]) -> fmt::Result {
        let (mut steps, mut conditions) = (self.steps.iter().peekable(), conditions.iter());
        // Writes the marks up to the next other step, and returns the number of lines of that one.
        let mut marks = |f: &mut fmt::Formatter<'_>| -> Result<usize, fmt::Error> {
            while let Some(mark) = steps.next_if(|step| step.work.is_mark()) {
                let condition = mark.operands.first().and_then(|_| conditions.next());
                writeln!(f, "{}{}", mark.work.name(), condition.map_or_else(String::new, |name| format!(" {name}")))?;
            }
            Ok(steps.next().map_or(0, lines))
        };
        // How many lines of the current step are still to come; each begins with its number.
        let mut left: usize = 0;
        for line in text.lines() {
            if line.starts_with('%') {
                if left == 0 {
                    left = marks(f)?;
                }
                left = left.saturating_sub(1);
            }
            writeln!(f, "{line}")?;
        }
        marks(f).map(drop)
    }

    /// Writes the orders. Their steps have the numbers of their lines: steps that begin or end blocks have none.
    fn write_orders(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.orders.is_empty() {
            return Ok(());
        }
        let mut end = 0;
        let numbers: Vec<usize> = self
            .steps
            .iter()
            .map(|step| {
                end += lines(step);
                end
            })
            .collect();
        // The line of the first step that has one from a step on, and of the last one up to a step.
        let line = |steps: &Range<usize>| {
            let begin = steps.start.checked_sub(1).map_or(0, |before| numbers[before]);
            (begin, numbers[steps.end - 1].saturating_sub(1))
        };
        for StepOrder { earlier, later } in &self.orders {
            let ((first, last), (begin, end)) = (line(earlier), line(later));
            if first <= last && begin <= end {
                writeln!(f, "order %{first} to %{last} before %{begin} to %{end}")?;
            }
        }
        Ok(())
    }

    /// The steps as a list over `values`, without those that begin and end blocks.
    fn list(&self, values: &[Tensor]) -> Result<InstructionList, Error> {
        // The text of a program does not depend on the lane of the thread that prints it.
        let _lane = Lane(0).enter();
        let mut builder = InstructionsBuilder::new();
        for Step { work, operands, lane, site } in &self.steps {
            let mut builder = builder.on_lane(*lane);
            let tensors: Result<Vec<Tensor>, Error> =
                operands.iter().map(|Operand { value, layout, .. }| view(values, *value, layout)).collect();
            match (work, tensors?.as_slice()) {
                (Work::Call(op, params), [inputs @ .., output]) => {
                    let inputs: Vec<&Tensor> = inputs.iter().collect();
                    builder.op_into(*op, &inputs, *params, output)?;
                }
                (Work::Copy, [source, target]) => builder.copy_into(source, target)?,
                (Work::Fill(value), [target]) => builder.fill(target, *value)?,
                (Work::Function(function), tensors) => {
                    let uses = tensors.iter().zip(operands).map(|(tensor, operand)| match operand.access {
                        Access::Read => tensor.read(),
                        Access::Write => tensor.write(),
                        Access::ReadWrite => tensor.update(),
                    });
                    function.append_to(&mut builder, uses)?;
                }
                (Work::Touch(device), tensors) => builder.touch(*device, &tensors.iter().collect::<Vec<&Tensor>>()),
                (Work::SectionBegin(section), feeds) => {
                    builder.begin(section.section(), &feeds.iter().collect::<Vec<&Tensor>>(), *site)?;
                }
                (Work::SectionEnd(section), results) => {
                    builder.end(section.section(), &results.iter().collect::<Vec<&Tensor>>(), *site);
                }
                // `check` has counted the operands.
                _ => {}
            }
        }
        Ok(builder.finish())
    }
}

/// How many lines a step is printed as: feeds and results of a section have lines of their own.
fn lines(step: &Step) -> usize {
    match &step.work {
        Work::SectionBegin(_) => 1 + usize::from(!step.operands.is_empty()),
        Work::SectionEnd(_) => 1 + step.operands.len(),
        work => usize::from(!work.is_mark()),
    }
}

/// The tensor of a value, or a view of it.
fn view(values: &[Tensor], value: ValueId, layout: &Layout) -> Result<Tensor, Error> {
    let owner = &values[value.0];
    if owner.layout() == layout { Ok(owner.clone()) } else { owner.view(*layout) }
}
