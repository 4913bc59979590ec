//! Sequences: kernels, copies and fills that one call of a function runs one after the other.
//!
//! Layer: uses `kernels`; no folder of `cpu` uses it.
//!
//! | file | idea |
//! |---|---|
//! | `step` | a step: its work and its operands |
//! | `group` | elementwise steps that run together, block by block |
//! | `finite` | finds infinities and NaN in an output |
//! | `run` | checked steps, and the call that runs them |

mod finite;
mod group;
mod run;
mod step;

pub use group::SequenceGroup;
pub use run::CpuSequence;
pub use step::{SequenceError, SequenceMemory, SequenceOperand, SequenceStep, SequenceWork};
