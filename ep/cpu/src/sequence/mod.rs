//! Sequences on a CPU: the steps of one segment of a compiled program, run as one call.
//!
//! Layer: uses no other folder; is used by no other folder.
//!
//! | file | idea |
//! |---|---|
//! | `cpu_sequence` | runs the steps in the calling thread, or branches of them in several threads |
//! | `run_work` | the call of a kernel, copy or fill |
//! | `host_lanes` | the threads that run branches side by side |
//! | `group` | elementwise steps that run together, block by block |
//! | `group_blocks` | the blocks of a group, and the parts of operands in them |
//! | `chains` | which steps of a group are computed together in registers |
//! | `sync` | the atomics of this folder |

mod chains;
mod cpu_sequence;
mod group;
mod group_blocks;
mod host_lanes;
mod run_work;
mod sync;

pub use cpu_sequence::CpuSequence;
