//! Records the block of a program.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{Defined, MAX_STEPS, Parameter, allowed, captured};
use crate::base::engine::{
    Error, InstructionList, Kind, Place, ProgramError, Recorder, Shape, Tensor, ValueId, ValueRole, record,
};
use crate::emit::{Binding, Emitter, Scope, rounds, value};
use crate::syntax::ast::{Block, Feed, ProgramBlock, StatementKind};
use crate::syntax::diagnostic::Diagnostic;
use crate::syntax::source::{Span, Spanned};

/// What a recording has gathered so far.
#[derive(Default)]
struct Recording {
    /// The statement of each step.
    steps: Vec<Span>,
    errors: Vec<Diagnostic>,
    /// Was a statement wrong, or could it not be judged because of an earlier error?
    failed: bool,
}

impl Recording {
    fn fail(&mut self, error: Diagnostic) {
        self.failed = true;
        if !error.echo {
            self.errors.push(error);
        }
    }
}

impl Emitter<'_> {
    /// Records a program and makes its name known. Adds no instruction to the list.
    ///
    /// # Errors
    /// A message for every wrong part of it; none if it is wrong only because it uses a name of a wrong `let`. Runs of a wrong program are
    /// echoes of its errors.
    pub fn define(&mut self, block: &Arc<ProgramBlock>) -> Result<(), Vec<Diagnostic>> {
        match self.recorded(block) {
            Ok(defined) => {
                self.programs.insert(block.name.value.clone(), Arc::new(defined));
                Ok(())
            }
            Err(errors) => {
                self.poisoned_programs.insert(block.name.value.clone());
                Err(errors)
            }
        }
    }

    fn recorded(&mut self, block: &Arc<ProgramBlock>) -> Result<Defined, Vec<Diagnostic>> {
        let mut recording = Recording::default();
        if let Err(error) = self.check_new_program(&block.name) {
            recording.fail(error);
        }
        allowed::check(&block.body, &mut recording.errors);
        let feeds: Vec<(Place, Shape)> = block
            .feeds
            .iter()
            .filter_map(|feed| self.feed_type(feed).map_err(|error| recording.fail(error)).ok())
            .collect();
        if !recording.errors.is_empty() {
            return Err(recording.errors);
        }
        let names = captured::names(block);
        let captured: HashMap<String, Binding> =
            names.iter().filter_map(|name| Some(((*name).to_owned(), self.scope.names.get(*name)?.clone()))).collect();
        let mut parameters: Vec<(String, Tensor)> = Vec::new();
        let builder = std::mem::take(&mut self.builder);
        let outer = self.scope.clone();
        let program = record(block.name.value.clone(), |recorder| {
            let mut inner = Scope { names: HashMap::new(), poisoned: outer.poisoned.clone() };
            for (feed, (place, shape)) in block.feeds.iter().zip(&feeds) {
                let tensor = recorder.feed(feed.name.value.clone(), *place, feed.dtype, shape.dims())?;
                inner.poisoned.remove(&feed.name.value);
                inner.names.insert(feed.name.value.clone(), Binding { tensor, span: feed.name.span });
            }
            let mut recorded: Vec<Tensor> = Vec::new();
            for name in names.iter().filter(|name| captured.contains_key(**name)) {
                let Binding { tensor, span } = &captured[*name];
                let known = parameters.iter().position(|(_, owner)| owner.shares_storage(tensor));
                let place = match known {
                    Some(place) => place,
                    None => {
                        recorded.push(recorder.parameter(*name, tensor.owner())?);
                        parameters.push(((*name).to_owned(), tensor.owner().clone()));
                        recorded.len() - 1
                    }
                };
                let tensor = match tensor.is_view() {
                    true => recorded[place].view(*tensor.layout())?,
                    false => recorded[place].clone(),
                };
                inner.names.insert((*name).to_owned(), Binding { tensor, span: *span });
            }
            self.scope = inner;
            self.outer = Some(outer.clone());
            self.record_block(recorder, &block.body, &mut recording);
            for fetch in &block.fetches {
                match self.named(&fetch.value, fetch.span) {
                    Ok(tensor) => recorder.fetch(fetch.value.clone(), &tensor)?,
                    Err(error) => recording.fail(error),
                }
            }
            Ok(())
        });
        (self.scope, self.outer) = (outer, None);
        self.builder = builder;
        if recording.failed {
            return Err(recording.errors);
        }
        let program = program.map_err(|error| vec![Diagnostic::new(block.name.span, told(&error))])?;
        let outputs: HashSet<ValueId> = program.steps.iter().filter_map(|step| Some(step.output()?.value)).collect();
        let parameters = program.parameters.iter().zip(parameters).map(|(port, (name, tensor))| Parameter {
            name,
            tensor,
            is_written: outputs.contains(&port.value),
        });
        let parameters = parameters.collect();
        let copied = |(place, _): &(usize, _)| program.value(program.fetches[*place].value).role != ValueRole::Computed;
        recording.steps.extend(block.fetches.iter().enumerate().filter(copied).map(|(_, fetch)| fetch.span));
        Ok(Defined { block: block.clone(), program, steps: recording.steps.into(), parameters, captured })
    }

    fn check_new_program(&self, name: &Spanned<String>) -> Result<(), Diagnostic> {
        self.check_bindable(name)?;
        if self.scope.names.contains_key(&name.value) {
            return Err(Diagnostic::new(name.span, format!("`{}` names a tensor already", name.value)));
        }
        Ok(())
    }

    fn feed_type(&self, feed: &Feed) -> Result<(Place, Shape), Diagnostic> {
        if self.devices.contains(&feed.name.value) {
            return Err(Diagnostic::new(feed.name.span, format!("`{}` is a device already", feed.name.value)));
        }
        Ok((self.devices.place(&feed.on)?, value::sizes(&feed.dims, feed.span)?))
    }

    fn record_block(&mut self, recorder: &Recorder, block: &Block, recording: &mut Recording) {
        for statement in block {
            if let StatementKind::Repeat { count, body } = &statement.kind {
                self.record_rounds(recorder, *count, body, recording);
            } else if let Err(error) = self.statement(statement) {
                recording.fail(error);
                if let StatementKind::Let { name, .. } = &statement.kind {
                    self.poison(name);
                }
            }
            let list = self.take_list();
            let added = steps(&list);
            if recording.steps.len() + added > MAX_STEPS {
                if !recording.failed {
                    recording.fail(
                        Diagnostic::new(statement.span, format!("the program has more than {MAX_STEPS} steps here"))
                            .with_help("put the `repeat` around the `run`, or use several programs"),
                    );
                }
                return;
            }
            match recorder.submit(list) {
                Ok(()) => recording.steps.extend(std::iter::repeat_n(statement.span, added)),
                // The operands of a wrong statement were dropped with it, so what follows from that is no news.
                Err(_) if recording.failed => return,
                Err(error) => recording.fail(Diagnostic::new(statement.span, told(&error))),
            }
        }
    }

    /// Records the rounds of a `repeat` one after the other.
    fn record_rounds(&mut self, recorder: &Recorder, count: u64, body: &Block, recording: &mut Recording) {
        for round in 0..count {
            let before = (round == 0).then(|| self.scope.names.clone());
            let steps = recording.steps.len();
            self.record_block(recorder, body, recording);
            if let Some(before) = before
                && !recording.failed
            {
                rounds::changed(&before, &self.scope.names).into_iter().for_each(|error| recording.fail(error));
            }
            // Rounds that add nothing now add nothing later.
            if recording.failed || recording.steps.len() == steps {
                return;
            }
        }
    }
}

/// How many steps a list becomes.
fn steps(list: &InstructionList) -> usize {
    let is_step = |kind: &Kind| matches!(kind, Kind::Call { .. } | Kind::Copy | Kind::Fill(_));
    list.instructions().iter().filter(|instruction| is_step(&instruction.kind)).count()
}

/// An error of the recording, without the location of the call in this program's source.
fn told(error: &Error) -> String {
    match error {
        Error::Program(program) => match &**program {
            ProgramError::NotRecordable { what, why, .. } => format!("{what} cannot be part of a program: {why}"),
            other => other.to_string(),
        },
        other => other.to_string(),
    }
}
