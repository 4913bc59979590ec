//! Messages about programs that cannot be compiled.

use super::Defined;
use crate::base::engine::{Error, ProgramError};
use crate::syntax::diagnostic::Diagnostic;

/// The message about a program that cannot be compiled: at the statement of the step that is the reason, or at the name of the program.
pub(crate) fn not_compiled(error: &Error, defined: &Defined) -> Diagnostic {
    let name = defined.block.name.span;
    let Some((step, why)) = why_not_compiled(error) else { return Diagnostic::new(name, error.to_string()) };
    let statement = step.and_then(|number| defined.steps.get(number));
    match statement {
        Some(statement) => {
            Diagnostic::new(*statement, format!("program `{}` cannot be compiled: {why}", defined.block.name.value))
        }
        None => Diagnostic::new(name, format!("this program cannot be compiled: {why}")),
    }
}

/// The number of the step that is the reason why a program cannot be compiled, if it is one step, and the reason. The reason leaves out the line
/// of this program's source that recorded the step.
pub(crate) fn why_not_compiled(error: &Error) -> Option<(Option<usize>, String)> {
    let Error::Program(error) = error else { return None };
    let ProgramError::NotCompiled { step, what, .. } = &**error else { return None };
    Some(match step {
        Some(step) => (Some(step.number), format!("step {} ({}) {what}", step.number, step.name)),
        None => (None, what.clone()),
    })
}
