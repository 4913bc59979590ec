//! [`Ranks`]: this process as one rank of a job.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use streamvm::DType;

use crate::environment::{self, Place};
use crate::group::Group;
use crate::local::Local;
use crate::mpi::{Library, Mpi};
use crate::order::agree;
use crate::session::Session;
use crate::transport::{Communicator, RankError, Transfer, Verb, block_on};

/// Bytes in which each rank says what it runs.
const VERSION: usize = 256;

/// This process, or this engine of the process, as one rank of a job.
///
/// A program calls [`finish`](Ranks::finish) at its end. A process that ends without it has ended early, by an error or a panic, and the others must not
/// wait for it: over MPI all ranks are ended, on one machine the collectives of the others fail.
#[derive(Debug)]
pub struct Ranks {
    world: Group,
    uses_mpi: bool,
}

impl Ranks {
    /// The rank that the environment names: that of mpirun; that of torchrun, `streamvm launch` or another launcher that sets `RANK`, `WORLD_SIZE`,
    /// `LOCAL_WORLD_SIZE` and `MASTER_PORT`, where all ranks are on one machine; else this process is the only rank. `STREAMVM_RANKS=mpi`, `local` or `alone`
    /// decides instead. Blocks until all ranks have joined, up to `STREAMVM_RANKS_TIMEOUT` seconds (600).
    ///
    /// # Errors
    /// The environment contradicts itself; MPI is missing; a rank does not join, or runs another version.
    pub fn start() -> Result<Ranks, RankError> {
        let get = |name: &str| std::env::var(name).ok();
        environment::end_with_launcher(get);
        match environment::place(get)? {
            Place::Mpi => Ranks::mpi(),
            Place::Local { folder, rank, size } => Ranks::local(&folder, rank, size, environment::limit(get)?),
            Place::Alone => Ranks::alone(),
        }
    }

    /// The number of this process among the ranks of its job, and their number, as the environment has them, without starting: `None` if it is no rank of a job.
    ///
    /// # Errors
    /// The environment contradicts itself, or its launcher does not say.
    pub fn of_environment() -> Result<Option<(usize, usize)>, RankError> {
        environment::numbers(|name| std::env::var(name).ok())
    }

    /// A rank of an MPI job. MPI is loaded now: the library that `STREAMVM_MPI` names, that beside `mpirun`, or that of the system. Blocks until all ranks have
    /// joined.
    ///
    /// # Errors
    /// MPI is missing or refuses; a rank runs another version.
    pub fn mpi() -> Result<Ranks, RankError> {
        let limit = environment::limit(|name| std::env::var(name).ok())?;
        let world = Mpi::world(limit)?;
        let version = Library::get()?.version.clone();
        Ranks::of(Box::new(world), &version, limit)
    }

    /// A rank of a job on this machine, whose ranks name the same folder: processes, or engines of one process, each on a thread of its own. The folder is made,
    /// and removed when the last rank has left; it should be in memory, as `/dev/shm` is. Blocks until all ranks have joined, at most for `limit`, which
    /// also holds for each wait of a collective for another rank.
    ///
    /// # Errors
    /// The system refuses; a rank does not join, or runs another version.
    pub fn local(folder: &Path, rank: usize, size: usize, limit: Duration) -> Result<Ranks, RankError> {
        Ranks::of(Box::new(Local::join(folder, rank, size, limit)?), "", limit)
    }

    /// The only rank of a job.
    ///
    /// # Errors
    /// The system refuses.
    pub fn alone() -> Result<Ranks, RankError> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("streamvm-alone-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Ranks::local(&std::env::temp_dir().join(name), 0, 1, Duration::MAX)
    }

    /// `library` is the MPI library, if there is one.
    fn of(world: Box<dyn Communicator>, library: &str, limit: Duration) -> Result<Ranks, RankError> {
        let mine = match library {
            "" => format!("streamvm {}", env!("CARGO_PKG_VERSION")),
            library => format!("streamvm {} on {library}", env!("CARGO_PKG_VERSION")),
        };
        let asks = environment::checks_order(|name| std::env::var(name).ok())?;
        check_versions(&*world, &mine)?;
        let session = Arc::new(Session::new(asks, limit));
        let uses_mpi = !library.is_empty();
        Ok(Ranks { world: Group::new("world".to_owned(), Arc::from(world), None, session), uses_mpi })
    }

    /// The group of all ranks.
    pub fn world(&self) -> &Group {
        &self.world
    }

    /// The number of this process among the ranks of its machine, from 0, as the launcher says it; 0 if it does not. It tells which GPU a rank takes, where each has one:
    /// `DeviceId::cuda(Ranks::local_rank() as u32)`.
    pub fn local_rank() -> usize {
        environment::local_rank(|name| std::env::var(name).ok()).unwrap_or_default()
    }

    /// Ends the job on this rank. Over MPI this blocks until all ranks do so. What was submitted must have passed: call
    /// [`Vm::wait_all`](streamvm::Vm::wait_all) before.
    ///
    /// # Errors
    /// MPI refuses.
    pub fn finish(self) -> Result<(), RankError> {
        if self.uses_mpi { Library::get()?.finalise() } else { Ok(()) }
    }
}

/// # Errors
/// A rank runs another version, or is gone.
fn check_versions(world: &dyn Communicator, mine: &str) -> Result<(), RankError> {
    let mut hasher = DefaultHasher::new();
    mine.hash(&mut hasher);
    if agree(world, hasher.finish())? {
        return Ok(());
    }
    // Each learns which rank differs.
    let padded = |text: &str| {
        let mut bytes = [0u8; VERSION];
        let length = text.len().min(VERSION);
        bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
        bytes
    };
    let (input, mut output) = (padded(mine), vec![0u8; VERSION * world.size()]);
    let transfer = Transfer {
        verb: Verb::AllGather,
        dtype: DType::U8,
        count: VERSION,
        input: input.as_ptr(),
        output: output.as_mut_ptr(),
        call: "start".to_owned(),
    };
    // SAFETY: both arrays have the elements, and stay until the operation is over, which is awaited here.
    let operation = unsafe { world.start(transfer) }?;
    block_on(operation).map_err(RankError::of)?;
    for (other, theirs) in output.chunks(VERSION).enumerate() {
        if theirs != input {
            let theirs = String::from_utf8_lossy(theirs).trim_end_matches('\0').to_owned();
            return Err(RankError::Version { me: world.rank(), mine: mine.to_owned(), other, theirs });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_another_version_are_named() {
        let folder = std::env::temp_dir().join(format!("streamvm-versions-{}", std::process::id()));
        let versions = ["streamvm 1", "streamvm 1", "streamvm 2"];
        let check = &|rank: usize| {
            let joined = Local::join(&folder, rank, versions.len(), Duration::from_secs(60)).expect("it joins");
            check_versions(&joined, versions[rank]).expect_err("they differ")
        };
        let said = std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..versions.len()).map(|rank| scope.spawn(move || check(rank))).collect();
            ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect::<Vec<_>>()
        });
        let texts: Vec<String> = said.iter().map(ToString::to_string).collect();
        assert!(texts[0].starts_with("rank 2 runs streamvm 2, rank 0 runs streamvm 1;"), "{texts:?}");
        assert!(texts[1].starts_with("rank 2 runs streamvm 2, rank 1 runs streamvm 1;"), "{texts:?}");
        assert!(texts[2].starts_with("rank 0 runs streamvm 1, rank 2 runs streamvm 2;"), "{texts:?}");
    }
}
