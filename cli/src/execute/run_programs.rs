//! Programs of a script that runs: compiled, or emitted statement by statement.

use std::sync::{Arc, PoisonError};

use crate::base::engine::{Lane, Tensor};
use crate::emit::programs::not_compiled::not_compiled;
use crate::execute::run::{Runner, Stop};
use crate::syntax::ast::{ProgramBlock, RunCall};
use crate::syntax::diagnostic::Diagnostic;
use crate::syntax::source::Span;

impl Runner<'_> {
    /// Makes a program known, and compiles it if programs are compiled.
    pub(super) fn define(&mut self, program: &Arc<ProgramBlock>) -> Result<(), Stop> {
        self.emitter.define(program).map_err(|errors| match errors.into_iter().next() {
            Some(error) => Stop::Statement(error),
            None => Stop::Statement(Diagnostic::new(program.name.span, "this program follows from an earlier error")),
        })?;
        if let Some(options) = self.compile_options {
            let defined = self.emitter.program(&program.name)?;
            let parameters: Vec<(&str, &Tensor)> =
                defined.parameters.iter().map(|parameter| (parameter.name.as_str(), &parameter.tensor)).collect();
            let compiled = self.vm.compile(&defined.program, &parameters, options);
            let executable = compiled.map_err(|error| Stop::Statement(not_compiled(&error, &defined, self.source)))?;
            log::info!("compiled {}: {} steps", program.name.value, executable.compiled().steps().len());
            if let Some(timed) = self.timed {
                timed.lock().unwrap_or_else(PoisonError::into_inner).push(executable.clone());
            }
            self.executables.insert(program.name.value.clone(), executable);
        }
        Ok(())
    }

    /// Runs a program statement by statement.
    pub(super) fn run_statements(&mut self, run: &RunCall, span: Span) -> Result<(), Stop> {
        let program = self.emit(span, |emitter| emitter.enter(run))?;
        self.flush_if_full(span)?;
        // Messages name the outermost run, as they do where programs are compiled.
        let within = self.within;
        self.within = within.or(Some(self.source.site(span, None)));
        let outside = std::mem::take(&mut self.rounds);
        self.block(&program.block.body)?;
        self.rounds = outside;
        self.within = within;
        self.emit(span, |emitter| emitter.leave(run, &program))?;
        self.flush_if_full(span)
    }

    /// Runs the executable of a program, after the instructions that were gathered.
    pub(super) fn run_executable(&mut self, run: &RunCall, span: Span) -> Result<(), Stop> {
        let (program, inputs) = self.emit(span, |emitter| emitter.run_inputs(run))?;
        self.flush(span)?;
        let name = &run.program.value;
        if let Some(dump) = &mut self.dump {
            dump.run(name)?;
        }
        let Some(executable) = self.executables.get(name) else {
            return Err(Diagnostic::new(run.program.span, format!("`{name}` was not compiled")).into());
        };
        let inputs: Vec<(&str, &Tensor)> =
            program.block.feeds.iter().map(|feed| feed.name.value.as_str()).zip(&inputs).collect();
        let lane = Lane(run.lane.as_ref().map_or(0, |lane| lane.value));
        self.added += executable.compiled().segments().len() as u64;
        let results = {
            let (_lane, _site) = (lane.enter(), self.source.site(span, None).enter());
            executable.run(&inputs)
        };
        let results = results.map_err(|error| self.explain(&error, span))?;
        self.emitter.bind_results(run, results.iter().map(|(_, tensor)| tensor.clone()));
        Ok(())
    }
}
