//! What a call does in a child of `fork`: it is refused, before it takes a lock.

pub(crate) use streamvm_ep::{Fork, PerProcess};
use streamvm_instructions::Error;

/// Rejects a call in a child of the process that built the engine.
///
/// # Errors
/// [`Error::Forked`] in a child.
#[inline]
#[track_caller]
pub(crate) fn refuse_in_child(fork: Fork) -> Result<(), Error> {
    if fork.is_child() { Err(Error::forked()) } else { Ok(()) }
}
