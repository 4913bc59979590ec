//! Which names of the script a program uses: those that it uses before it binds them.

use std::collections::HashSet;

use crate::syntax::ast::{Block, Expr, ExprKind, ProgramBlock, Statement, StatementKind};

/// The names from outside, each once, in the order of their first uses.
pub(super) fn names(block: &ProgramBlock) -> Vec<&str> {
    let inputs = block.feeds.iter().map(|feed| feed.name.value.as_str()).collect();
    let mut walk = Walk { bound: inputs, found: Vec::new() };
    walk.block(&block.body);
    block.fetches.iter().for_each(|fetch| walk.used(&fetch.value));
    walk.found
}

struct Walk<'a> {
    /// Inputs, and names that a `let` before has bound. Once a name from outside was found, it is here, too.
    bound: HashSet<&'a str>,
    found: Vec<&'a str>,
}

impl<'a> Walk<'a> {
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
                    self.bound.insert(&name.value);
                }
                StatementKind::Into { value, target } => {
                    self.expression(value);
                    self.used(&target.name.value);
                }
                StatementKind::Refill { target, .. } => self.used(&target.name.value),
                // The first round decides: in later ones the names of the body are bound.
                StatementKind::Repeat { body, .. } => self.block(body),
                // `allowed` refuses these.
                StatementKind::Device { .. }
                | StatementKind::PrintText(_)
                | StatementKind::Print(_)
                | StatementKind::PrintAccuracy { .. }
                | StatementKind::Save { .. }
                | StatementKind::Expect { .. }
                | StatementKind::Time { .. }
                | StatementKind::Program(_)
                | StatementKind::Run(_) => {}
            }
        }
    }

    fn expression(&mut self, expr: &'a Expr) {
        match &expr.kind {
            ExprKind::Name(name) => self.used(name),
            ExprKind::Copy { value, .. } | ExprKind::View { value, .. } => self.expression(value),
            ExprKind::Call { inputs, .. } => inputs.iter().for_each(|input| self.expression(input)),
            ExprKind::Number(_) | ExprKind::Load { .. } | ExprKind::Fill { .. } | ExprKind::Random { .. } => {}
        }
    }
}
