//! Messages about programs that cannot be compiled.

use super::Defined;
use crate::base::engine::{Error, ProgramError, ProgramStep};
use crate::syntax::diagnostic::Diagnostic;
use crate::syntax::source::Source;

/// The message about a program that cannot be compiled: at the statement of the step that is the reason, or at the name of the program.
pub(crate) fn not_compiled(error: &Error, defined: &Defined, source: &Source) -> Diagnostic {
    let name = defined.block.name.span;
    let Some((step, why)) = why_not_compiled(error) else { return Diagnostic::new(name, error.without_call()) };
    match step.and_then(|step| source.span_of(step.site)) {
        Some(statement) => {
            Diagnostic::new(statement, format!("program `{}` cannot be compiled: {why}", defined.block.name.value))
        }
        None => Diagnostic::new(name, format!("this program cannot be compiled: {why}")),
    }
}

/// The step that is the reason why a program cannot be compiled, if it is one step, and the reason. The reason leaves out where the step was
/// recorded.
pub(crate) fn why_not_compiled(error: &Error) -> Option<(Option<ProgramStep>, String)> {
    let Error::Program { error, .. } = error else { return None };
    let ProgramError::NotCompiled { step, what, .. } = &**error else { return None };
    Some(match step {
        Some(step) => (Some(*step), format!("step {} ({}) {what}", step.number, step.name)),
        None => (None, what.clone()),
    })
}
