//! The statements that a program can have: those that only compute and copy.

use crate::syntax::ast::{Block, Composed, Expr, ExprKind, RunCall, Statement, StatementKind};
use crate::syntax::diagnostic::Diagnostic;

/// A message for each part of a block that cannot be in a program.
pub(super) fn check(block: &Block, errors: &mut Vec<Diagnostic>) {
    for Statement { span, kind } in block {
        let refused = |what: &str, help: &str| {
            Diagnostic::new(*span, format!("{what} cannot be part of a program")).with_help(help.to_owned())
        };
        match kind {
            StatementKind::Let { value, .. } | StatementKind::Into { value, .. } => expression(value, errors),
            StatementKind::Refill { .. } | StatementKind::Collective { .. } => {}
            StatementKind::Repeat { body, .. }
            | StatementKind::While { body, .. }
            | StatementKind::Scope { body, .. } => {
                check(body, errors);
            }
            StatementKind::If { then, otherwise, .. } => {
                check(then, errors);
                check(otherwise, errors);
            }
            StatementKind::IfRank { .. } => {
                errors.push(refused("`if rank`", "put the `run` into the block of the rank"));
            }
            StatementKind::Device { .. } => errors.push(refused("`device`", "name the device before the program")),
            StatementKind::PrintText(_) | StatementKind::Print(_) | StatementKind::PrintAccuracy { .. } => {
                errors
                    .push(refused("`print`", "make the tensor a result of the program, and print it after the `run`"));
            }
            StatementKind::Save { .. } => {
                errors.push(refused("`save`", "make the tensor a result of the program, and save it after the `run`"));
            }
            StatementKind::Expect { .. } => {
                errors.push(refused(
                    "`expect`",
                    "make the tensor a result of the program, and compare it after the `run`",
                ));
            }
            StatementKind::Time { .. } => errors.push(refused("`time`", "put the `run` into the `time` block")),
            StatementKind::Program(_) => errors.push(refused("`program`", "move this block in front of the program")),
            StatementKind::Run(RunCall { feeds, .. }) => feeds.iter().for_each(|feed| expression(feed, errors)),
        }
    }
}

fn expression(expr: &Expr, errors: &mut Vec<Diagnostic>) {
    match &expr.kind {
        ExprKind::Load { .. } => errors.push(
            Diagnostic::new(expr.span, "`load` cannot be part of a program")
                .with_help("load the file before the program, under a name that the program uses"),
        ),
        ExprKind::Random { op, .. } => errors.push(
            Diagnostic::new(expr.span, format!("`{op}` cannot be part of a program"))
                .with_help("draw the numbers outside, and give them to the `run` as an input"),
        ),
        ExprKind::Copy { value, .. } | ExprKind::View { value, .. } => expression(value, errors),
        ExprKind::Call { inputs, .. } | ExprKind::Composed { inputs, .. } | ExprKind::Join { inputs, .. } => {
            if let ExprKind::Composed { call: Composed::Dropout { .. }, .. } = &expr.kind {
                errors.push(Diagnostic::new(expr.span, "`dropout` cannot be part of a program").with_help(
                    "make the factors outside, by a `dropout` of ones, and give them to the `run` as an input",
                ));
            }
            inputs.iter().for_each(|input| expression(input, errors));
        }
        ExprKind::Name(_) | ExprKind::Number(_) | ExprKind::Fill { .. } => {}
        ExprKind::Eye { .. } | ExprKind::Range { .. } => {}
    }
}
