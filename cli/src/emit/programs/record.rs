//! Records the block of a program.

use std::cell::RefCell;
use std::sync::Arc;

use super::captured::Captured;
use super::{Defined, MAX_ALL_STEPS, MAX_STEPS, allowed};
use crate::base::engine::{
    Dim, Error, InstructionList, Kind, Lane, Place, Program, ProgramError, Recorder, Site, Tensor, record,
    record_bounded, scope,
};
use crate::emit::{Emitter, rounds, value};
use crate::syntax::ast::{Block, Feed, FeedAxis, ProgramBlock, RunCall, StatementKind};
use crate::syntax::diagnostic::Diagnostic;
use crate::syntax::source::{Span, Spanned};

/// What a recording has gathered so far.
#[derive(Default)]
struct Recording {
    /// The number of steps.
    steps: usize,
    /// The number of steps, and of statements without a step.
    weight: usize,
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

impl Recording {
    /// Notes the step that begins or ends a block.
    fn mark(&mut self) {
        self.steps += 1;
        self.weight += 1;
    }

    /// Notes the end of a block, if it could be recorded; `condition` is the place of a message.
    fn end(&mut self, recorded: Result<(), Error>, condition: Span) {
        match recorded {
            Ok(()) => self.mark(),
            // A statement before it is wrong already, and its message comes first.
            Err(_) if self.failed => {}
            Err(error) => self.fail(Diagnostic::new(condition, told(&error))),
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
        let feeds: Vec<(Place, Vec<Dim>)> = block
            .feeds
            .iter()
            .filter_map(|feed| self.feed_type(feed).map_err(|error| recording.fail(error)).ok())
            .collect();
        if !recording.errors.is_empty() {
            return Err(recording.errors);
        }
        let captured = Captured::by(block, &self.scope, &self.programs);
        let builder = std::mem::take(&mut self.builder);
        self.outer.push((std::mem::take(&mut self.scope), self.lane));
        self.recording = Some(block.name.value.clone());
        let has_bounded_sizes = feeds.iter().flat_map(|(_, dims)| dims).any(|dim| matches!(dim, Dim::Bounded(_)));
        let program = if has_bounded_sizes {
            self.record_bounded(block, &captured, &feeds, &mut recording)
        } else {
            record(block.name.value.clone(), |recorder| {
                self.record_whole(recorder, block, &captured, &feeds, &mut recording)
            })
        };
        self.leave_without_results();
        (self.recorded, self.recording) = (Vec::new(), None);
        self.builder = builder;
        self.recorded_steps += recording.steps;
        if recording.failed {
            return Err(recording.errors);
        }
        let program = program.map_err(|error| {
            let refused = refused_at(&error).and_then(|site| self.source.span_of(site));
            vec![Diagnostic::new(refused.unwrap_or(block.name.span), told(&error))]
        })?;
        Ok(Defined {
            block: block.clone(),
            weight: recording.weight.saturating_add(block.feeds.len() + block.fetches.len()),
            parameters: captured.parameters(&program),
            captured: captured.names,
            program,
        })
    }

    /// Records the inputs, the statements and the results of a program.
    fn record_whole(
        &mut self,
        recorder: &Recorder,
        block: &ProgramBlock,
        captured: &Captured,
        feeds: &[(Place, Vec<Dim>)],
        recording: &mut Recording,
    ) -> Result<(), Error> {
        (self.scope, self.recorded) = captured.scope(recorder, &block.feeds, feeds)?;
        self.record_block(recorder, &block.body, recording);
        for fetch in &block.fetches {
            match self.named(&fetch.value, fetch.span) {
                Ok(tensor) => {
                    let _scope = self.source.site(fetch.span, None).enter();
                    recorder.fetch(fetch.value.clone(), &tensor)?;
                }
                Err(error) => recording.fail(error),
            }
        }
        Ok(())
    }

    /// Records a program with bounded sizes, for several sizes. The first of these, the bounds, decide what the program counts; what is wrong for others alone is told
    /// with them.
    fn record_bounded(
        &mut self,
        block: &ProgramBlock,
        captured: &Captured,
        feeds: &[(Place, Vec<Dim>)],
        recording: &mut Recording,
    ) -> Result<Program, Error> {
        let state = RefCell::new((self, recording, false));
        record_bounded(block.name.value.clone(), |recorder| {
            let (emitter, recording, is_recorded) = &mut *state.borrow_mut();
            if !std::mem::replace(is_recorded, true) {
                emitter.record_whole(recorder, block, captured, feeds, recording)?;
            } else {
                let mut again = Recording::default();
                emitter.record_whole(recorder, block, captured, feeds, &mut again)?;
                let mut sizes: Vec<String> =
                    emitter.scope.sizes.iter().map(|(name, size)| format!("{name} = {size}")).collect();
                sizes.sort_unstable();
                let help = format!("for {}, one of the sizes that an input may have", sizes.join(", "));
                again.errors.into_iter().for_each(|error| recording.fail(error.with_help(help.as_str())));
            }
            if recording.failed { Err(Error::from("a statement is wrong".to_owned())) } else { Ok(()) }
        })
    }

    fn check_new_program(&self, name: &Spanned<String>) -> Result<(), Diagnostic> {
        self.check_bindable(name)?;
        if self.scope.names.contains_key(&name.value) {
            return Err(Diagnostic::new(name.span, format!("`{}` names a tensor already", name.value)));
        }
        Ok(())
    }

    fn feed_type(&self, feed: &Feed) -> Result<(Place, Vec<Dim>), Diagnostic> {
        if self.devices.contains(&feed.name.value) {
            return Err(Diagnostic::new(feed.name.span, format!("`{}` is a device already", feed.name.value)));
        }
        let largest = feed.axes.iter().map(|axis| match axis.value {
            FeedAxis::Fixed(size) => Spanned::new(size, axis.span),
            FeedAxis::Bounded { most, .. } => Spanned::new(i64::try_from(most).unwrap_or(i64::MAX), axis.span),
        });
        let largest = value::shape(&largest.collect::<Vec<_>>(), feed.span)?;
        let dims = feed.axes.iter().zip(largest.dims()).map(|(axis, size)| match &axis.value {
            FeedAxis::Fixed(_) => Dim::Fixed(*size),
            FeedAxis::Bounded { name, least, most } => Dim::within(name.clone(), *least..=*most),
        });
        Ok((self.devices.place(&feed.on)?, dims.collect()))
    }

    fn record_block(&mut self, recorder: &Recorder, block: &Block, recording: &mut Recording) {
        for statement in block {
            let _scope = self.source.site(statement.span, None).enter();
            let mut is_block = true;
            match &statement.kind {
                StatementKind::Repeat { count, body } => self.record_rounds(recorder, *count, body, recording),
                StatementKind::Scope { name, body } => {
                    let _named = scope(name);
                    self.record_block(recorder, body, recording);
                }
                StatementKind::While { condition, body } => {
                    self.record_while(recorder, condition, body, recording);
                }
                StatementKind::If { condition, then, otherwise } => {
                    self.record_if(recorder, condition, [then, otherwise], recording);
                }
                StatementKind::Run(run) => {
                    if let Err(error) = self.record_run(recorder, run, statement.span, recording) {
                        recording.fail(error);
                        run.names.iter().for_each(|name| self.poison(name));
                    }
                }
                StatementKind::Collective { call, target } => {
                    is_block = false;
                    match self.collective(Some(recorder), call, target) {
                        Ok(()) => recording.steps += 1,
                        Err(error) => recording.fail(error),
                    }
                }
                kind => {
                    is_block = false;
                    if let Err(error) = self.statement(statement) {
                        recording.fail(error);
                        if let StatementKind::Let { name, .. } = kind {
                            self.poison(name);
                        }
                    }
                }
            }
            let list = self.take_list();
            let added = steps(&list);
            recording.weight += if is_block { 0 } else { added.max(1) };
            if let Err(error) = self.check_size(recording, added, statement.span) {
                if !recording.failed {
                    recording.fail(error);
                }
                return;
            }
            match recorder.submit(list) {
                Ok(()) => recording.steps += added,
                // The operands of a wrong statement were dropped with it, so what follows from that is no news.
                Err(_) if recording.failed => return,
                Err(error) => recording.fail(Diagnostic::new(statement.span, told(&error))),
            }
        }
    }

    /// Checks that `added` more steps keep to the bounds.
    fn check_size(&self, recording: &Recording, added: usize, span: Span) -> Result<(), Diagnostic> {
        let own = recording.steps + added;
        let message = if own > MAX_STEPS {
            format!("the program has more than {MAX_STEPS} steps here")
        } else if self.recorded_steps + own > MAX_ALL_STEPS {
            format!("the programs of the script have more than {MAX_ALL_STEPS} steps together here")
        } else {
            return Ok(());
        };
        Err(Diagnostic::new(span, message).with_help("put the `repeat` around the `run`, or use shorter programs"))
    }

    /// Records the steps of another program.
    fn record_run(
        &mut self,
        recorder: &Recorder,
        run: &RunCall,
        span: Span,
        recording: &mut Recording,
    ) -> Result<(), Diagnostic> {
        let (defined, inputs) = self.run_inputs(run)?;
        let list = self.take_list();
        let added = steps(&list);
        self.check_size(recording, added + defined.program.steps.len(), span)?;
        let at = |error: Error| Diagnostic::new(span, told(&error));
        recorder.submit(list).map_err(at)?;
        recording.steps += added;
        let feeds: Vec<(&str, &Tensor)> =
            defined.program.feeds.iter().map(|port| port.name.as_str()).zip(&inputs).collect();
        let parameters = defined.parameters.iter().map(|it| (it.name.as_str(), self.stand_in(&it.tensor)));
        let parameters: Vec<(&str, &Tensor)> = parameters.collect();
        let lane = Lane(self.lane_of(run.lane.as_ref()).unwrap_or(self.lane));
        let results = lane.run(|| recorder.call(&defined.program, &feeds, &parameters)).map_err(at)?;
        recording.steps += defined.program.steps.len();
        // A run of a program without steps counts, too: checking a script emits the statements of each inner run anew.
        recording.weight = recording.weight.saturating_add(added + 1).saturating_add(defined.weight);
        self.bind_results(run, results.iter().map(|(_, tensor)| tensor.clone()));
        Ok(())
    }

    fn record_while(
        &mut self,
        recorder: &Recorder,
        condition: &Spanned<String>,
        body: &Block,
        recording: &mut Recording,
    ) {
        let tensor = match self.condition(condition) {
            Ok(tensor) => tensor,
            Err(error) => return recording.fail(error),
        };
        let recorded = recorder.while_true(&tensor, || {
            recording.mark();
            self.record_inner(recorder, body, recording);
            Ok(())
        });
        recording.end(recorded, condition.span);
    }

    fn record_if(
        &mut self,
        recorder: &Recorder,
        condition: &Spanned<String>,
        [then, otherwise]: [&Block; 2],
        recording: &mut Recording,
    ) {
        let tensor = match self.condition(condition) {
            Ok(tensor) => tensor,
            Err(error) => return recording.fail(error),
        };
        let both = RefCell::new((self, recording));
        let inner = |block: &Block| {
            let (emitter, recording) = &mut *both.borrow_mut();
            recording.mark();
            emitter.record_inner(recorder, block, recording);
            Ok(())
        };
        let recorded = match otherwise.is_empty() {
            true => recorder.if_true(&tensor, || inner(then)),
            false => recorder.if_else(&tensor, || inner(then), || inner(otherwise)),
        };
        let (_, recording) = both.into_inner();
        recording.end(recorded, condition.span);
    }

    /// Records the block of a `while` or an `if`.
    fn record_inner(&mut self, recorder: &Recorder, block: &Block, recording: &mut Recording) {
        self.begin_block();
        self.record_block(recorder, block, recording);
        self.end_block();
    }

    /// Records the rounds of a `repeat` one after the other.
    fn record_rounds(&mut self, recorder: &Recorder, count: u64, body: &Block, recording: &mut Recording) {
        for round in 0..count {
            let before = (round == 0).then(|| self.scope.names.clone());
            let steps = recording.steps;
            self.record_block(recorder, body, recording);
            if let Some(before) = before
                && !recording.failed
            {
                rounds::changed(&before, &self.scope.names).into_iter().for_each(|error| recording.fail(error));
            }
            // Rounds that add nothing now add nothing later.
            if recording.failed || recording.steps == steps {
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

/// Where the call stands that cannot be recorded.
fn refused_at(error: &Error) -> Option<Site> {
    let Error::Program { error, .. } = error else { return None };
    if let ProgramError::NotRecordable { site, .. } = **error { Some(site) } else { None }
}

/// An error of the recording, without the location of the call in this program's source.
fn told(error: &Error) -> String {
    match error {
        Error::Program { error: program, .. } => match &**program {
            ProgramError::NotRecordable { what, why, .. } => format!("{what} cannot be part of a program: {why}"),
            other => other.to_string(),
        },
        other => other.without_call(),
    }
}
