//! Names of the engine and functions over text that other folders use.
//!
//! Layer: uses no other folder; is used by all of them except `values`.
//!
//! Main parts: `engine` imports what the command uses of the crate `streamvm`; [`printable()`](printable::printable) escapes
//! control characters; [`did_you_mean`](spelling::did_you_mean) finds the known word nearest to a misspelt one.

pub(crate) mod engine;
pub mod printable;
pub use streamvm_files::spelling;
