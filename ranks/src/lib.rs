//! Collectives of streamvm: instructions that communicate with other *ranks*, which are processes of a job, on one machine or many.

mod draft;
mod environment;
mod group;
mod issue;
mod local;
mod mpi;
mod order;
mod ranks;
mod reduction;
mod session;
mod transport;

pub use group::Group;
pub use issue::{Collective, Issue};
pub use ranks::Ranks;
pub use reduction::Reduction;
pub use transport::{Capabilities, RankError};
