//! Sequences: the steps of one segment of a compiled program, which one instruction runs one after the other.
//!
//! Layer: uses `names`, `tensor`, `errors`, `call`; is used by no other folder.
//!
//! | file | idea |
//! |---|---|
//! | `step` | a step: its work and its operands |
//! | `branches` | steps that lanes run side by side |
//! | `conflicts` | the check that branches which use the same bytes are ordered |
//! | `uses_of_buffer` | the uses of a buffer's bytes, found by range and lane |
//! | `buffers` | the buffers of a sequence, and the check that the operands of a call are these |
//! | `blocks` | where blocks begin and end, and how many rounds loops may make |
//! | `block_graph` | which parts with blocks a stream may launch as a whole |
//! | `function` | a step that is a function of the caller |
//! | `group` | the check that steps are elementwise and of one shape |
//! | `fused` | elementwise steps that one kernel of a device computes together |
//! | `finite` | finds infinities and NaN in an output |
//! | `looks` | copies outputs of a device to the host, and looks for them there |
//! | `times` | how long steps took |
//! | `command_sequence` | queues the steps on the stream of a device that runs commands later |

mod block_graph;
pub(crate) mod blocks;
pub(crate) mod branches;
pub(crate) mod buffers;
mod command_sequence;
pub(crate) mod conflicts;
pub(crate) mod finite;
mod function;
mod fused;
pub(crate) mod group;
mod looks;
pub(crate) mod step;
pub(crate) mod times;
mod uses_of_buffer;

pub use branches::SequenceBranch;
pub use buffers::SequenceBuffer;
pub use command_sequence::{CommandSequence, SequenceFlag, SequencePosition};
pub use finite::{NotFinite, call_checking_finite};
pub use function::{SequenceCode, SequenceFunction};
pub use fused::SequenceFusion;
pub use group::SequenceGroup;
pub use step::{SequenceError, SequenceMemory, SequenceOperand, SequenceStep, SequenceWork};
pub use times::SequenceTime;
