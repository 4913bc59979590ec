//! Segments of compiled programs, which one instruction runs: what a device prepares, and the parts of which devices make what runs it.
//!
//! Layer: uses `names`, `tensor`, `errors`, `call`; is used by `provider`.
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
//! | `others` | steps that the host or another device runs between the commands of a device |
//! | `group` | the check that steps are elementwise and of one shape |
//! | `fused` | elementwise steps that one kernel of a device computes together |
//! | `finite` | finds infinities and NaN in an output |
//! | `looks` | copies outputs of a device to the host, and looks for them there |
//! | `times` | how long steps took |
//! | `fused_group` | the description of such steps |
//! | `segment` | what a device prepares: steps over buffers, and how they are to run |
//! | `command_sequence` | queues the steps on the stream of a device that runs commands later |
//! | `commands` | what `command_sequence` needs of a stream |
//! | `graph` | commands that a stream may launch as a whole |

mod block_graph;
pub(crate) mod blocks;
pub(crate) mod branches;
pub(crate) mod buffers;
mod command_sequence;
pub(crate) mod commands;
pub(crate) mod conflicts;
pub(crate) mod finite;
mod function;
mod fused;
pub(crate) mod fused_group;
pub(crate) mod graph;
pub(crate) mod group;
mod looks;
pub(crate) mod others;
mod segment;
pub(crate) mod step;
pub(crate) mod times;
mod uses_of_buffer;

pub use branches::SequenceBranch;
pub use buffers::SequenceBuffer;
pub use command_sequence::{CommandSequence, MakeKernel};
pub use finite::{NotFinite, call_checking_finite};
pub use function::{SequenceCode, SequenceFunction};
pub use group::SequenceGroup;
pub use others::{DeviceCode, ExecuteOnHost, HostCode, LentStream, OtherSteps, OtherWork, StreamLender};
pub use segment::{Segment, SegmentOptions, SequenceFlag};
pub use step::{SequenceMemory, SequenceOperand, SequenceStep, SequenceWork};
