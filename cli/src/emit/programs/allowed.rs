//! The statements that a program can have: those that only compute and copy.

use crate::syntax::ast::{Block, Composed, Expr, ExprKind, RunCall, Statement, StatementKind};
use crate::syntax::diagnostic::Diagnostic;
use crate::syntax::source::Span;

/// A message for each part of a block that cannot be in a program.
pub(super) fn check(block: &Block, errors: &mut Vec<Diagnostic>) {
    for Statement { span, kind } in block {
        let refused = |what: &str, help: &str| {
            Diagnostic::new(*span, format!("{what} cannot be part of a program")).with_help(help.to_owned())
        };
        match kind {
            StatementKind::Let { value, .. } | StatementKind::Into { value, .. } => expression(value, errors),
            StatementKind::Refill { lane, .. } => lane.iter().for_each(|lane| errors.push(no_lane(lane.span))),
            StatementKind::Repeat { body, .. }
            | StatementKind::While { body, .. }
            | StatementKind::Scope { body, .. } => {
                check(body, errors);
            }
            StatementKind::If { then, otherwise, .. } => {
                check(then, errors);
                check(otherwise, errors);
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
            StatementKind::Run(RunCall { feeds, lane, .. }) => {
                feeds.iter().for_each(|feed| expression(feed, errors));
                lane.iter().for_each(|lane| errors.push(no_lane(lane.span)));
            }
        }
    }
}

fn expression(expr: &Expr, errors: &mut Vec<Diagnostic>) {
    if let Some(lane) = &expr.lane {
        errors.push(no_lane(lane.span));
    }
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

fn no_lane(span: Span) -> Diagnostic {
    Diagnostic::new(span, "a program has no lanes").with_help("put `on lane N` after a `run` outside of programs")
}
