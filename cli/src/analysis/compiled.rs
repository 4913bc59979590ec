//! Whether the programs of a checked script can be compiled, which needs no engine.

use std::sync::Arc;

use crate::base::engine::{CompileOptions, compile};
use crate::emit::programs::Defined;
use crate::emit::programs::not_compiled::not_compiled;
use crate::syntax::diagnostic::Diagnostic;
use crate::syntax::source::Source;

/// Compiles each program, for its errors alone.
///
/// # Errors
/// A message for each program that cannot be compiled.
pub(crate) fn check_compiled(
    programs: &[Arc<Defined>],
    options: &CompileOptions,
    source: &Source,
) -> Result<(), Vec<Diagnostic>> {
    let refused = |defined: &Arc<Defined>| {
        let error = compile(&defined.program, options).err()?;
        Some(not_compiled(&error, defined, source).with_help("`streamvm run` without `--compiled` runs it"))
    };
    let errors: Vec<Diagnostic> = programs.iter().filter_map(refused).collect();
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}
