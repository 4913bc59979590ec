//! Whether the programs of a checked script can be compiled, which needs no engine.

use std::sync::Arc;

use crate::base::engine::{CompileOptions, Error, ProgramError, compile};
use crate::emit::programs::Defined;
use crate::syntax::diagnostic::Diagnostic;
use crate::syntax::source::Span;

/// Compiles each program, for its errors alone.
///
/// # Errors
/// A message for each program that cannot be compiled.
pub(crate) fn check_compiled(programs: &[Arc<Defined>], options: &CompileOptions) -> Result<(), Vec<Diagnostic>> {
    let refused = |defined: &Arc<Defined>| {
        let error = compile(&defined.program, options).err()?;
        Some(not_compiled(&error, defined.block.name.span).with_help("`streamvm run` without `--compiled` runs it"))
    };
    let errors: Vec<Diagnostic> = programs.iter().filter_map(refused).collect();
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// The message about a program that cannot be compiled, at its name, which the text of the error would repeat.
pub(crate) fn not_compiled(error: &Error, name: Span) -> Diagnostic {
    let message = match error {
        Error::Program(program) => match &**program {
            ProgramError::NotCompiled { what, .. } => format!("this program cannot be compiled: {what}"),
            other => other.to_string(),
        },
        other => other.to_string(),
    };
    Diagnostic::new(name, message)
}
