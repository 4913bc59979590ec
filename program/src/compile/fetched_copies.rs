//! Pass: a fetch of a feed or of a parameter becomes a fetch of a copy.
//!
//! The tensor that a run returns is the run's own, because the caller or a later run may change the parameter while the results of this run are
//! still read. The copy is the last step, so it has the parameter's final value.

use std::sync::Arc;

use streamvm_ep::{Access, Layout};
use streamvm_instructions::{Error, ProgramError};

use crate::ir::program::{Operand, Program, Step, Value, ValueId, ValueRole, Work};

/// # Errors
/// [`ProgramError::NotCompiled`] if the numbers of a copy without gaps do not follow from the bounded sizes.
pub(super) fn insert(program: &mut Arc<Program>) -> Result<(), Error> {
    let mut vary = false;
    for place in 0..program.fetches.len() {
        let fetch = &program.fetches[place];
        let (source, layout, varying) = (fetch.value, fetch.layout, fetch.varying);
        if program.value(source).role == ValueRole::Computed {
            continue;
        }
        // Who has given the program keeps it as it is.
        let program = Arc::make_mut(program);
        let copy = ValueId(program.values.len());
        let of_copy = match varying.map(|id| program.contiguous_like(id)) {
            None => None,
            Some(Some(id)) => Some(id),
            Some(None) => {
                let (program, name) = (program.name.clone(), &program.fetches[place].name);
                let what = format!(
                    "the fetch {name:?} is a view of a feed or parameter, and the strides of its copy do not follow from the sizes by sums, products and quotients; \
                     fetch the result of a step"
                );
                return Err(ProgramError::NotCompiled { program, step: None, what }.into());
            }
        };
        let (role, shape) = (ValueRole::Computed, *layout.shape());
        let value = Value { role, shape, varying: of_copy, ..program.value(source).clone() };
        let whole = Layout::contiguous(*layout.shape());
        program.values.push(value);
        program.steps.push(Step {
            work: Work::Copy,
            operands: vec![
                Operand { value: source, layout: Arc::new(layout), access: Access::Read, varying },
                Operand { value: copy, layout: Arc::new(whole), access: Access::Write, varying: of_copy },
            ],
            lane: 0,
            site: program.fetches[place].site,
        });
        let fetch = &mut program.fetches[place];
        (fetch.value, fetch.layout, fetch.varying) = (copy, whole, of_copy);
        vary |= of_copy.is_some();
    }
    if vary {
        // An empty copy has the strides of its formulas.
        Arc::make_mut(program).set_layouts_at_bounds();
    }
    Ok(())
}
