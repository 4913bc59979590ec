//! Collectives of streamvm: instructions that communicate with other *ranks*, which are the processes of a job, on one machine or many.
//!
//! ```text
//!   Group ── all_reduce, send, … ──▶ Collective ──▶ Vm, InstructionsBuilder or Recorder     (issue)
//!     │                                  │ its function, on a collective stream, starts an Operation
//!     ▼                                  ▼
//!   Communicator: local (shared memory), mpi or nccl (loaded at run time)                   (transport)
//! ```
//!
//! | file | idea |
//! |---|---|
//! | `ranks`, `session` | this process as a rank of a job, and what its groups share |
//! | `environment` | the rank that the launcher has named |
//! | `group`, `running` | ranks that communicate: their collectives as they are issued, and as they run |
//! | `draft`, `issue` | the operands of a collective with their copies, and where its instructions go |
//! | `reduction` | how elements are combined |
//! | `order` | whether all ranks call the same |
//! | `transport` | the interface of backends; reductions by way of a buffer |
//! | `local` | ranks of one machine |
//! | `mpi` | MPI |
//! | `nccl` | NCCL, for ranks with a GPU each |
//!
//! The user's page is `docs/ranks.md`.
//!
//! # Example
//!
//! ```
//! use streamvm::{DType, DeviceId, Vm};
//! use streamvm_ranks::{Ranks, Reduction};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let ranks = Ranks::start()?;
//! let (world, vm) = (ranks.world(), Vm::builder().build()?);
//! let x = vm.full(DeviceId::cpu(0), DType::F32, &[2], 3.0)?;
//! let mean = world.all_reduce(&vm, &x, Reduction::Mean)?;
//! assert_eq!(mean.to_vec::<f32>()?, [3.0; 2]); // whatever the number of ranks
//! vm.wait_all()?;
//! ranks.finish()?;
//! # Ok(())
//! # }
//! ```

/// Runs the programs of the page about ranks as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/ranks.md")]
struct Page;

mod draft;
mod environment;
mod group;
mod issue;
mod local;
mod mpi;
mod nccl;
mod order;
mod ranks;
mod reduction;
mod running;
mod session;
mod transport;

pub use group::Group;
pub use issue::{Collective, Issue};
pub use ranks::Ranks;
pub use reduction::Reduction;
pub use transport::{Capabilities, RankError};
