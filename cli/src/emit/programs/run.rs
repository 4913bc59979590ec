//! Runs of a program: its inputs, the scope of its statements, its results.

use std::sync::Arc;

use super::{Defined, Parameter};
use crate::base::engine::{Tensor, ValueId, ValueRole};
use crate::base::spelling::did_you_mean;
use crate::emit::{Binding, Emitter, Scope};
use crate::syntax::ast::{Expr, FeedAxis, RunCall};
use crate::syntax::diagnostic::Diagnostic;
use crate::syntax::source::Spanned;

impl Emitter<'_> {
    /// The program with this name.
    ///
    /// # Errors
    /// There is none; an echo if its block was wrong.
    pub fn program(&self, name: &Spanned<String>) -> Result<Arc<Defined>, Diagnostic> {
        if let Some(defined) = self.programs.get(&name.value) {
            return Ok(defined.clone());
        }
        let mut error = Diagnostic::new(name.span, format!("unknown program `{}`", name.value));
        error.echo = self.poisoned_programs.contains(&name.value);
        let mut known: Vec<&str> = self.programs.keys().map(String::as_str).collect();
        known.sort_unstable(); // the same guess in every run
        if self.recording.as_ref() == Some(&name.value) {
            let help =
                "a program can run programs that are defined before it; repeat statements with `repeat` or `while`";
            return Err(
                Diagnostic::new(name.span, format!("program `{}` cannot run itself", name.value)).with_help(help)
            );
        }
        let help = did_you_mean(&name.value, known);
        Err(error
            .with_help(help.unwrap_or_else(|| "define it before this line: `program NAME ... { ... }`".to_owned())))
    }

    /// Emits the inputs of a run, and enters the scope of the program's statements: the caller emits them, then calls
    /// [`Emitter::leave`].
    ///
    /// # Errors
    /// The program is unknown, or an input does not fit.
    pub fn enter(&mut self, run: &RunCall) -> Result<Arc<Defined>, Diagnostic> {
        let (defined, inputs) = self.run_inputs(run)?;
        let mut scope = Scope { names: defined.captured.clone(), ..Scope::default() };
        for (feed, tensor) in defined.block.feeds.iter().zip(inputs) {
            scope.note_sizes(feed, &tensor);
            scope.names.insert(feed.name.value.clone(), Binding { tensor, span: feed.name.span });
        }
        let lane = self.lane_of(run.lane.as_ref()).unwrap_or(self.lane);
        self.outer.push((std::mem::replace(&mut self.scope, scope), self.lane));
        self.lane = lane;
        Ok(defined)
    }

    /// Leaves the scope of a program, and binds the results to the names of the `run`. A result that is an input or a parameter is copied.
    ///
    /// # Errors
    /// A result cannot be copied.
    pub fn leave(&mut self, run: &RunCall, defined: &Defined) -> Result<(), Diagnostic> {
        let results: Result<Vec<Tensor>, Diagnostic> = defined
            .program
            .fetches
            .iter()
            .zip(&defined.block.fetches)
            .map(|(port, fetch)| {
                let tensor = self.named(&fetch.value, fetch.span)?;
                if !defined.is_given(port.value) {
                    return Ok(tensor);
                }
                let copy = self.builder.on_lane(self.lane).copy(&tensor, tensor.place());
                copy.map_err(|error| Diagnostic::new(fetch.span, error.without_call()))
            })
            .collect();
        self.leave_without_results();
        self.bind_results(run, results?);
        Ok(())
    }

    /// Leaves the scope of a program.
    pub(crate) fn leave_without_results(&mut self) {
        (self.scope, self.lane) = self.outer.pop().unwrap_or_default();
    }

    /// Are statements of a program being emitted?
    pub(crate) fn is_in_program(&self) -> bool {
        !self.outer.is_empty()
    }

    /// A storage of the script; while a program is recorded, the parameter that stands for it.
    pub(super) fn stand_in<'t>(&'t self, storage: &'t Tensor) -> &'t Tensor {
        let known = self.recorded.iter().find(|(known, _)| known.shares_storage(storage));
        known.map_or(storage, |(_, parameter)| parameter)
    }

    /// Binds the results of a run to its names.
    pub fn bind_results(&mut self, run: &RunCall, results: impl IntoIterator<Item = Tensor>) {
        for (name, tensor) in run.names.iter().zip(results) {
            self.bind(name, tensor);
        }
    }

    /// Emits the inputs of a run. An input with gaps is copied, so that each has the layout that the recording has: `reshape` makes a view
    /// of one tensor and a copy of another, by their layouts.
    ///
    /// # Errors
    /// The program is unknown, or an input does not fit.
    pub fn run_inputs(&mut self, run: &RunCall) -> Result<(Arc<Defined>, Vec<Tensor>), Diagnostic> {
        let defined = self.program(&run.program)?;
        let block = &defined.block;
        run.names.iter().try_for_each(|name| self.check_bindable(name))?;
        if !run.names.is_empty() && run.names.len() != block.fetches.len() {
            let message = format!("`{}` gives {}", run.program.value, counted("result", block.fetches.iter()));
            let last = run.names.last().map_or(run.program.span, |last| run.names[0].span.to(last.span));
            let found = if run.names.len() == 1 { "1 name".to_owned() } else { format!("{} names", run.names.len()) };
            return Err(Diagnostic::new(last, format!("{message}, found {found}"))
                .with_help("write a name for each of them, or leave out `let` and the names"));
        }
        if run.feeds.len() != block.feeds.len() {
            let takes = counted("input", block.feeds.iter().map(|feed| &feed.name));
            let message = format!("`{}` takes {takes}, found {}", run.program.value, run.feeds.len());
            let inputs: String = block.feeds.iter().map(|feed| format!(" {}", feed.name.value)).collect();
            let help =
                format!("it is run as `run {}{inputs}`; a call as an input lies in parentheses", run.program.value);
            return Err(Diagnostic::new(run.program.span, message).with_help(help));
        }
        let lane = self.lane_of(run.lane.as_ref()).unwrap_or(self.lane);
        let inputs = run.feeds.iter().enumerate().map(|(place, expr)| self.input_of_run(&defined, place, expr, lane));
        let inputs = inputs.collect::<Result<Vec<Tensor>, Diagnostic>>()?;
        check_sizes(&defined, run, &inputs)?;
        Ok((defined, inputs))
    }

    fn input_of_run(&mut self, defined: &Defined, place: usize, expr: &Expr, lane: u32) -> Result<Tensor, Diagnostic> {
        let tensor = self.value(expr, lane)?;
        let port = &defined.program.feeds[place];
        let value = defined.program.value(port.value);
        let axes = &defined.block.feeds[place].axes;
        let fits = |(axis, size): (&Spanned<FeedAxis>, &usize)| match axis.value {
            FeedAxis::Fixed(fixed) => fixed == *size as i64,
            FeedAxis::Bounded { least, most, .. } => (least..=most).contains(size),
        };
        let shape = tensor.shape();
        let has_axes = shape.rank() == axes.len() && axes.iter().zip(shape.dims()).all(fits);
        if (tensor.dtype(), tensor.place()) != (value.dtype, value.place) || !has_axes {
            let needed = format!("{}{} on {}", value.dtype, written(axes), value.place);
            let found = format!("{}{} on {}", tensor.dtype(), tensor.shape(), tensor.place());
            return Err(Diagnostic::new(expr.span, format!("the input `{}` is {needed}, found {found}", port.name))
                .with_help("use `cast`, `reshape` or `copy`, or change the program"));
        }
        let mut written = defined.parameters.iter().filter(|parameter| parameter.is_written);
        if let Some(Parameter { name, .. }) =
            written.find(|parameter| self.stand_in(&parameter.tensor).shares_storage(&tensor))
        {
            let message = format!("the input `{}` shares memory with `{name}`, which the program writes", port.name);
            return Err(Diagnostic::new(expr.span, message).with_help("give a copy to the `run`"));
        }
        if tensor.layout().is_contiguous() {
            return Ok(tensor);
        }
        self.builder
            .on_lane(lane)
            .copy(&tensor, tensor.place())
            .map_err(|error| Diagnostic::new(expr.span, error.without_call()))
    }
}

impl Defined {
    /// Is the value an input or a parameter, which exists outside of a run?
    fn is_given(&self, value: ValueId) -> bool {
        self.program.value(value).role != ValueRole::Computed
    }
}

/// Checks that bounded sizes of one name are the same in all inputs.
fn check_sizes(defined: &Defined, run: &RunCall, inputs: &[Tensor]) -> Result<(), Diagnostic> {
    let mut known: Vec<(&str, usize, &str)> = Vec::new();
    for ((feed, input), expr) in defined.block.feeds.iter().zip(inputs).zip(&run.feeds) {
        for (axis, &size) in feed.axes.iter().zip(input.shape().dims()) {
            let FeedAxis::Bounded { name, .. } = &axis.value else { continue };
            let input = feed.name.value.as_str();
            match known.iter().find(|(other, ..)| other == name) {
                Some(&(_, other, of)) if other != size => {
                    let message = format!("the input `{input}` has {name} = {size}, and `{of}` has {name} = {other}");
                    return Err(Diagnostic::new(expr.span, message)
                        .with_help("sizes of one name are the same in all inputs of a `run`"));
                }
                Some(_) => {}
                None => known.push((name, size, input)),
            }
        }
    }
    Ok(())
}

/// The axes of an input, as a shape: `[2,batch..64]`.
fn written(axes: &[Spanned<FeedAxis>]) -> String {
    let of = |axis: &Spanned<FeedAxis>| match &axis.value {
        FeedAxis::Fixed(size) => size.to_string(),
        FeedAxis::Bounded { name, least: 1, most } => format!("{name}..{most}"),
        FeedAxis::Bounded { name, least, most } => format!("{least}..{name}..{most}"),
    };
    format!("[{}]", axes.iter().map(of).collect::<Vec<_>>().join(","))
}

/// A number of things with their names: `2 inputs (x, y)`.
fn counted<'a>(what: &str, names: impl Iterator<Item = &'a Spanned<String>>) -> String {
    let names: Vec<&str> = names.map(|name| name.value.as_str()).collect();
    match names.as_slice() {
        [] => format!("no {what}"),
        [one] => format!("1 {what} ({one})"),
        many => format!("{} {what}s ({})", many.len(), many.join(", ")),
    }
}
