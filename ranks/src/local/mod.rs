//! Ranks on one machine, over memory that they share: engines of one process, or processes.
//!
//! Layer: uses `transport`; is used by no other folder.
//!
//! A collective is a number of *rounds*. In each, a rank writes the next chunk of what it contributes into its own part of the shared memory, waits until all
//! ranks have written theirs, and takes from the chunks what it needs. There are two chunks for each rank, so a rank writes the next one while others still
//! read the last. Reductions combine the ranks in their order, so all ranks compute the same bits. Messages go through a ring of bytes for each pair of
//! ranks and direction.
//!
//! All ranks count the rounds of a group alike. A rank whose process has ended lets go of its lock ([`folder`]), which the others see within
//! [`LOOK_EVERY`].

mod exchange;
mod folder;
mod message;
mod region;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use streamvm::ep::Operation;

use crate::transport::{Capabilities, Communicator, RankError, Transfer, Verb};
use exchange::Exchange;
use folder::Folder;
use message::Message;
use region::{MOST, Region};

/// How often a rank that waits for others asks whether they are still there.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A group of ranks on one machine.
pub(crate) struct Local {
    shared: Arc<Shared>,
}

/// The state that the operations of a group share.
struct Shared {
    folder: Arc<Folder>,
    /// The name of the group's file: that of the group it was made of, and what tells it apart.
    name: String,
    region: Region,
    rank: usize,
    size: usize,
    /// The number of each rank in the job, for its lock.
    in_job: Vec<usize>,
    /// Rounds of collectives started so far.
    rounds: AtomicU64,
    /// How long a rank waits for others.
    limit: Duration,
    /// Why the group cannot be used any longer.
    broken: Mutex<Option<RankError>>,
}

impl Local {
    /// Joins the ranks of a job, whose shared memory is in the folder `path`. Blocks until all have joined.
    ///
    /// # Errors
    /// The system refuses; a rank does not join in time, or is of another version.
    pub(crate) fn join(path: &Path, rank: usize, size: usize, limit: Duration) -> Result<Local, RankError> {
        if rank >= size || size > MOST {
            return Err(RankError::Argument(format!(
                "rank {rank} of {size}: a machine has at most {MOST} ranks, numbered from 0"
            )));
        }
        let folder = Arc::new(Folder::join(path, rank, size)?);
        Local::open(folder, "world", (0..size).collect(), rank, limit)
    }

    fn open(
        folder: Arc<Folder>,
        name: &str,
        in_job: Vec<usize>,
        rank: usize,
        limit: Duration,
    ) -> Result<Local, RankError> {
        let size = in_job.len();
        let region = Region::open(&folder.group(name), size)?;
        let made_for = fingerprint(&(env!("CARGO_PKG_VERSION"), size, region::CHUNK)) | 1;
        let found = region.header().made_for.compare_exchange(0, made_for, Ordering::AcqRel, Ordering::Acquire);
        if found.is_err_and(|found| found != made_for) {
            let what = format!(
                "rank {rank} is of streamvm {} with {size} ranks, and others are not",
                env!("CARGO_PKG_VERSION")
            );
            return Err(RankError::Environment { what, help: "start all ranks with one version and one WORLD_SIZE" });
        }
        region.control(rank).joined.store(1, Ordering::Release);
        let shared = Shared {
            folder,
            name: name.to_owned(),
            region,
            rank,
            size,
            in_job,
            rounds: AtomicU64::new(0),
            limit,
            broken: Mutex::default(),
        };
        let begin = Instant::now();
        loop {
            let missing: Vec<usize> = (0..size).filter(|&rank| !shared.has_joined(rank)).collect();
            if missing.is_empty() {
                return Ok(Local { shared: Arc::new(shared) });
            }
            // All have joined the job once; those whose lock is free now never come.
            let gone: Vec<usize> = match name {
                "world" => Vec::new(),
                _ => missing.iter().copied().filter(|&rank| shared.folder.is_gone(shared.in_job[rank])).collect(),
            };
            if !gone.is_empty() {
                return Err(RankError::Gone { ranks: gone, left: false, me: rank });
            }
            if begin.elapsed() > limit {
                return Err(RankError::NotJoined { ranks: missing, size, limit });
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// The group of some ranks of this one. `name` tells apart groups of the same members.
    fn open_members(&self, members: &[usize], name: &str) -> Result<Box<dyn Communicator>, RankError> {
        let Shared { folder, in_job, limit, rank, name: parent, .. } = &*self.shared;
        let in_job: Vec<usize> = members.iter().map(|&member| in_job[member]).collect();
        let Some(mine) = members.iter().position(|member| member == rank) else {
            return Err(RankError::Argument(format!("rank {rank} is not among the members {members:?}")));
        };
        // Numbers of groups are those of the group that they are made of, so its name is a part of theirs.
        let name = format!("{name}-{:x}", fingerprint(&(parent, &in_job)));
        Ok(Box::new(Local::open(folder.clone(), &name, in_job, mine, *limit)?))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Operations under way keep this, so nothing of them is left.
        self.region.control(self.rank).left.store(1, Ordering::Release);
    }
}

impl Shared {
    fn has_joined(&self, rank: usize) -> bool {
        self.region.control(rank).joined.load(Ordering::Acquire) == 1
    }

    /// The error of a rank that waits since `began` for the ranks of which `is_missing` is true; `None` if it may go on waiting. The caller passes it to
    /// [`note`](Shared::note).
    fn lost(&self, began: Instant, is_missing: impl Fn(usize) -> bool) -> Option<RankError> {
        let missing: Vec<usize> = (0..self.size).filter(|&rank| is_missing(rank)).collect();
        let gone: Vec<usize> = missing
            .iter()
            .copied()
            .filter(|&rank| self.folder.is_gone(self.in_job[rank]) || self.has_left(rank))
            .collect();
        // Asked once more: what a rank has published before it left counts.
        let gone: Vec<usize> = gone.into_iter().filter(|&rank| is_missing(rank)).collect();
        let me = self.rank;
        if let Some(rank) = (0..self.size).find(|&rank| self.region.control(rank).failed.load(Ordering::Acquire) == 1) {
            return Some(RankError::Broken(format!("rank {rank} has given the group up; its error says why")));
        }
        if !gone.is_empty() {
            let left = gone.iter().all(|&rank| self.has_left(rank));
            return Some(RankError::Gone { ranks: gone, left, me });
        }
        let late = began.elapsed() > self.limit && !missing.is_empty();
        late.then_some(RankError::Late { ranks: missing, limit: self.limit, me })
    }

    fn has_left(&self, rank: usize) -> bool {
        self.region.control(rank).left.load(Ordering::Acquire) == 1
    }

    /// Notes that the group cannot be used any longer because of this rank, and tells the other ranks.
    fn fail(&self, error: RankError) -> RankError {
        if self.check().is_ok() {
            self.region.control(self.rank).failed.store(1, Ordering::Release);
        }
        self.note(error)
    }

    /// Notes that the group cannot be used any longer. The other ranks see the reason by themselves.
    fn note(&self, error: RankError) -> RankError {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| error.clone());
        error
    }

    /// # Errors
    /// The group cannot be used any longer.
    fn check(&self) -> Result<(), RankError> {
        match &*self.broken.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(RankError::Broken(error.to_string())),
            None => Ok(()),
        }
    }
}

impl Communicator for Local {
    fn rank(&self) -> usize {
        self.shared.rank
    }

    fn size(&self) -> usize {
        self.shared.size
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { backend: "local", survives_loss: true, checks_order: true }
    }

    unsafe fn start(&self, transfer: Transfer) -> Result<Box<dyn Operation>, RankError> {
        self.shared.check()?;
        let shared = self.shared.clone();
        Ok(match transfer.verb {
            Verb::Send(_) | Verb::Receive(_) => Box::new(Message::new(shared, transfer)),
            _ => Box::new(Exchange::new(shared, transfer)),
        })
    }

    fn give_up(&self, why: &RankError) {
        self.shared.fail(why.clone());
    }

    fn failure(&self, of: &[usize]) -> Option<RankError> {
        let shared = &self.shared;
        shared.lost(Instant::now(), |rank| rank != shared.rank && of.contains(&rank))
    }

    fn shrink(&self, serial: u64) -> Result<Box<dyn Communicator>, RankError> {
        let Shared { folder, in_job, rank, size, limit, name, .. } = &*self.shared;
        let name = format!("shrink-{serial}-{:x}", fingerprint(&(name, in_job)));
        let region = Region::open(&folder.group(&name), *size)?;
        region.control(*rank).joined.store(1, Ordering::Release);
        let begin = Instant::now();
        let joined = |rank: usize| region.control(rank).joined.load(Ordering::Acquire) == 1;
        let mask = loop {
            let waits = |rank: usize| !joined(rank) && !folder.is_gone(in_job[rank]) && !self.shared.has_left(rank);
            // The first rank that knows of all others decides for all: one that dies meanwhile may count, and fails the next collective.
            let decided = region.header().decided.load(Ordering::Acquire);
            if decided != 0 {
                break decided;
            }
            let waited_for: Vec<usize> = (0..*size).filter(|&rank| waits(rank)).collect();
            if waited_for.is_empty() {
                let mask = (0..*size).filter(|&rank| joined(rank)).fold(0u64, |mask, rank| mask | 1 << rank);
                let _another_rank_was_first =
                    region.header().decided.compare_exchange(0, mask, Ordering::AcqRel, Ordering::Acquire);
            } else if begin.elapsed() > *limit {
                return Err(RankError::NotJoined { ranks: waited_for, size: *size, limit: *limit });
            } else {
                std::thread::sleep(Duration::from_micros(200));
            }
        };
        let members: Vec<usize> = (0..*size).filter(|rank| mask >> rank & 1 == 1).collect();
        self.open_members(&members, &name)
    }

    fn subgroup(&self, members: &[usize], serial: u64) -> Result<Box<dyn Communicator>, RankError> {
        self.open_members(members, &serial.to_string())
    }
}

fn fingerprint(what: &impl Hash) -> u64 {
    // The same in all processes of one version of the library, which is all that is asked.
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}
