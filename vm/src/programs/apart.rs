//! Whether the tensors of a run are apart: those that it writes share memory with no other one.

use hashbrown::HashMap;
use streamvm_instructions::{Error, ProgramError, Resource, Tensor};
use streamvm_program::{BufferRole, Compiled, Program};

/// The tensor of a buffer in a run.
pub(super) enum RunBuffer<'r> {
    /// One of the caller.
    Given(&'r Tensor),
    /// One of the run's own tensors.
    Own(usize),
}

/// Checks that a parameter that a run writes is not also bound to another parameter. Parameters are whole storages, so two of them share either all
/// bytes or none.
///
/// # Errors
/// [`ProgramError::Shared`].
pub(super) fn check_apart(compiled: &Compiled, parameters: &[&Tensor]) -> Result<(), Error> {
    let mut written = vec![false; parameters.len()];
    for buffer in compiled.buffers().iter().filter(|buffer| buffer.access.writes()) {
        if let BufferRole::Parameter(place) = buffer.role {
            written[place] = true;
        }
    }
    // For each storage the last parameter that is bound to it.
    let mut bound: HashMap<*const Resource, usize> = HashMap::with_capacity(parameters.len());
    for (place, tensor) in parameters.iter().enumerate() {
        if let Some(other) = bound.insert(std::ptr::from_ref(tensor.resource()), place)
            && (written[place] || written[other])
        {
            let parameters = &compiled.program().parameters;
            let (first, second) = if written[place] { (place, other) } else { (other, place) };
            return Err(shared(compiled, &parameters[first].name, "parameter", &parameters[second].name));
        }
    }
    Ok(())
}

/// Checks that no feed shares memory with a parameter that the run writes: segments could use it in the wrong order.
///
/// # Errors
/// [`ProgramError::Shared`].
pub(super) fn check_feeds_apart(compiled: &Compiled, buffers: &[RunBuffer<'_>]) -> Result<(), Error> {
    // Parameters are whole storages, and no two that are written share one, so the written one that a feed may overlap is found by its storage.
    let mut written: HashMap<*const Resource, (usize, &Tensor)> = HashMap::new();
    for (buffer, tensor) in compiled.buffers().iter().zip(buffers) {
        if let (BufferRole::Parameter(place), RunBuffer::Given(tensor)) = (buffer.role, tensor)
            && buffer.access.writes()
        {
            written.insert(std::ptr::from_ref(tensor.resource()), (place, tensor));
        }
    }
    for (buffer, tensor) in compiled.buffers().iter().zip(buffers) {
        if let (BufferRole::Feed(feed), RunBuffer::Given(fed)) = (buffer.role, tensor)
            && let Some((parameter, tensor)) = written.get(&std::ptr::from_ref(fed.resource()))
            && fed.overlaps(tensor)
        {
            let Program { parameters, feeds, .. } = compiled.program();
            return Err(shared(compiled, &parameters[*parameter].name, "feed", &feeds[feed].name));
        }
    }
    Ok(())
}

/// The error that a parameter shares memory with a feed or another parameter.
#[cold]
pub(super) fn shared(compiled: &Compiled, parameter: &str, kind: &'static str, other: &str) -> Error {
    let (program, parameter, other) = (compiled.program().name.clone(), parameter.to_owned(), other.to_owned());
    ProgramError::Shared { program, parameter, kind, other }.into()
}
