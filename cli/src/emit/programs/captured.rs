//! The names of the script that a program uses: those that it uses before it binds them. Their storages are its parameters.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{Defined, Parameter};
use crate::base::engine::{Dim, Error, Place, Program, Recorder, Resource, Tensor, ValueId};
use crate::emit::{Binding, Scope};
use crate::syntax::ast::{Block, Expr, ExprKind, Feed, ProgramBlock, Statement, StatementKind};

/// The names and tensors of the script that a program uses.
pub(super) struct Captured {
    /// The tensor that each name stands for.
    pub(super) names: HashMap<String, Binding>,
    /// The names that are bound to a storage, with the number of its parameter, in the order of their first uses.
    parameter_of: Vec<(String, usize)>,
    /// The storage of each parameter, and the name by which the block uses it first.
    storages: Vec<(String, Tensor)>,
    /// The names that a wrong `let` should have bound.
    poisoned: HashSet<String>,
}

impl Captured {
    /// What `block` captures of `scope`.
    pub(super) fn by(block: &ProgramBlock, scope: &Scope, programs: &HashMap<String, Arc<Defined>>) -> Captured {
        let (names, poisoned) = (HashMap::new(), HashSet::new());
        let mut captured = Captured { names, parameter_of: Vec::new(), storages: Vec::new(), poisoned };
        let mut numbers: HashMap<*const Resource, usize> = HashMap::new();
        let Walk { found, runs, .. } = Walk::through(block);
        for name in found {
            if scope.poisoned.contains(name) {
                captured.poisoned.insert(name.to_owned());
            }
            let Some(binding) = scope.names.get(name) else { continue };
            let number = *numbers.entry(std::ptr::from_ref(binding.tensor.resource())).or_insert_with(|| {
                captured.storages.push((name.to_owned(), binding.tensor.owner().clone()));
                captured.storages.len() - 1
            });
            captured.parameter_of.push((name.to_owned(), number));
            captured.names.insert(name.to_owned(), binding.clone());
        }
        for (program, defined) in runs.into_iter().filter_map(|name| Some((name, programs.get(name)?))) {
            for Parameter { name, tensor, .. } in &defined.parameters {
                numbers.entry(std::ptr::from_ref(tensor.resource())).or_insert_with(|| {
                    let name = captured.free_name(program, name);
                    captured.storages.push((name, tensor.clone()));
                    captured.storages.len() - 1
                });
            }
        }
        captured
    }

    /// A name that no parameter has, for a parameter `name` of `program`.
    fn free_name(&self, program: &str, name: &str) -> String {
        let mut free = name.to_owned();
        while self.storages.iter().any(|(known, _)| *known == free) {
            free = format!("{program}.{free}");
        }
        free
    }

    /// The scope of the block, on tensors of the recording: the inputs, and for each name a parameter, or the view of it that the name is
    /// of its storage.
    ///
    /// Also returns the storages, each with its parameter.
    pub(super) fn scope(
        &self,
        recorder: &Recorder,
        feeds: &[Feed],
        types: &[(Place, Vec<Dim>)],
    ) -> Result<(Scope, Vec<(Tensor, Tensor)>), Error> {
        let mut scope = Scope { poisoned: self.poisoned.clone(), ..Scope::default() };
        for (feed, (place, dims)) in feeds.iter().zip(types) {
            let tensor = recorder.bounded_feed(feed.name.value.clone(), *place, feed.dtype, dims)?;
            scope.note_sizes(feed, &tensor);
            scope.names.insert(feed.name.value.clone(), Binding { tensor, span: feed.name.span });
        }
        let recorded = self.storages.iter().map(|(name, storage)| recorder.parameter(name.clone(), storage));
        let recorded = recorded.collect::<Result<Vec<Tensor>, Error>>()?;
        for (name, number) in &self.parameter_of {
            let Binding { tensor, span } = &self.names[name];
            let parameter = &recorded[*number];
            let tensor = if tensor.is_view() { parameter.view(*tensor.layout())? } else { parameter.clone() };
            scope.names.insert(name.clone(), Binding { tensor, span: *span });
        }
        let storages = self.storages.iter().map(|(_, storage)| storage.clone());
        Ok((scope, storages.zip(recorded).collect()))
    }

    /// The parameters, in the order in which they were recorded.
    pub(super) fn parameters(&self, program: &Program) -> Vec<Parameter> {
        let written: HashSet<ValueId> =
            program.steps.iter().flat_map(|step| step.outputs().map(|it| it.value)).collect();
        let parameters = program.parameters.iter().zip(&self.storages).map(|(port, (name, tensor))| Parameter {
            name: name.clone(),
            tensor: tensor.clone(),
            is_written: written.contains(&port.value),
        });
        parameters.collect()
    }
}

struct Walk<'a> {
    /// Inputs, and names that a `let` before has bound. Once a name from outside was found, it is here, too.
    bound: HashSet<&'a str>,
    /// The names from outside, each once, in the order of their first uses.
    found: Vec<&'a str>,
    /// The programs that the block runs.
    runs: Vec<&'a str>,
    /// The names that each open block of a `while` or an `if` has bound, and nothing outside of it.
    blocks: Vec<Vec<&'a str>>,
}

impl<'a> Walk<'a> {
    fn through(block: &'a ProgramBlock) -> Walk<'a> {
        let inputs = block.feeds.iter().map(|feed| feed.name.value.as_str()).collect();
        let mut walk = Walk { bound: inputs, found: Vec::new(), runs: Vec::new(), blocks: Vec::new() };
        walk.block(&block.body);
        block.fetches.iter().for_each(|fetch| walk.used(&fetch.value));
        walk
    }

    fn binds(&mut self, name: &'a str) {
        if self.bound.insert(name)
            && let Some(block) = self.blocks.last_mut()
        {
            block.push(name);
        }
    }

    fn used(&mut self, name: &'a str) {
        if self.bound.insert(name) {
            self.found.push(name);
        }
    }

    fn block(&mut self, block: &'a Block) {
        for Statement { kind, .. } in block {
            match kind {
                StatementKind::Let { name, value } => {
                    self.expression(value);
                    self.binds(&name.value);
                }
                StatementKind::Run(run) => {
                    run.feeds.iter().for_each(|feed| self.expression(feed));
                    self.runs.push(&run.program.value);
                    run.names.iter().for_each(|name| self.binds(&name.value));
                }
                StatementKind::Into { value, target } => {
                    self.expression(value);
                    self.used(&target.name.value);
                }
                StatementKind::Refill { target, .. } | StatementKind::Collective { target, .. } => {
                    self.used(&target.name.value);
                }
                // The first round decides: in later ones the names of the body are bound.
                StatementKind::Repeat { body, .. } | StatementKind::Scope { body, .. } => self.block(body),
                StatementKind::While { condition, body } => {
                    self.used(&condition.value);
                    self.inner(body);
                }
                StatementKind::If { condition, then, otherwise } => {
                    self.used(&condition.value);
                    self.inner(then);
                    self.inner(otherwise);
                }
                // `allowed` refuses these.
                StatementKind::Device { .. }
                | StatementKind::IfRank { .. }
                | StatementKind::PrintText(_)
                | StatementKind::Print(_)
                | StatementKind::PrintAccuracy { .. }
                | StatementKind::Save { .. }
                | StatementKind::Expect { .. }
                | StatementKind::Time { .. }
                | StatementKind::Program(_) => {}
            }
        }
    }

    /// The block of a `while` or an `if`, whose names are not known after it.
    fn inner(&mut self, block: &'a Block) {
        self.blocks.push(Vec::new());
        self.block(block);
        for name in self.blocks.pop().unwrap_or_default() {
            self.bound.remove(name);
        }
    }

    fn expression(&mut self, expr: &'a Expr) {
        match &expr.kind {
            ExprKind::Name(name) => self.used(name),
            ExprKind::Copy { value, .. } | ExprKind::View { value, .. } => self.expression(value),
            ExprKind::Call { inputs, .. } | ExprKind::Composed { inputs, .. } | ExprKind::Join { inputs, .. } => {
                inputs.iter().for_each(|input| self.expression(input));
            }
            ExprKind::Number(_) | ExprKind::Load { .. } | ExprKind::Fill { .. } | ExprKind::Random { .. } => {}
            ExprKind::Eye { .. } | ExprKind::Range { .. } => {}
        }
    }
}
