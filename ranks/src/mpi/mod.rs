//! Ranks over MPI, which is loaded at run time.
//!
//! Layer: uses `transport`; is used by no other folder.
//!
//! Each collective is a nonblocking call of MPI, whose request is polled by the thread of the collective streams, or by a caller that waits for it. Each group has a communicator of its own
//! (`MPI_Comm_dup`), so that calls of the program to MPI cannot meet ours. Groups are made of the job's ranks over one more communicator, which no failure revokes.

mod library;
mod notice;
mod watch;

use std::ffi::{c_int, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use streamvm::FnError;
use streamvm::ep::Operation;

use crate::transport::{Capabilities, Communicator, RankError, Transfer, Verb, hash_of};
pub(crate) use library::Library;
use library::{Handle, IN_PLACE, STATUS_IGNORE};
use watch::{Inquiry, Job, UnderWay, Waits};

/// How long the ranks of a group whose collectives hang may take to end by themselves.
const GRACE: Duration = Duration::from_secs(3);

/// A group of ranks over MPI.
pub(crate) struct Mpi {
    shared: Arc<Shared>,
}

/// The state that the operations of a group share.
struct Shared {
    library: Arc<Library>,
    /// A communicator of this group alone. It is never freed, because that would take all ranks.
    communicator: Handle,
    job: Arc<Job>,
    /// The number in the job of each rank of the group.
    in_job: Vec<c_int>,
    /// Tells apart the groups of a job.
    identity: u64,
    rank: usize,
    size: usize,
    /// The communicator of which subgroups are made. No failure of a group revokes it, and `shrink` makes one without the ranks that are lost.
    maker: Handle,
    /// The number in it of each rank of the group.
    in_maker: Vec<c_int>,
    /// Collectives started so far.
    calls: Arc<AtomicU64>,
    /// Requests started so far.
    requests: AtomicU64,
    /// Requests that are not over, the oldest first.
    under_way: Mutex<Vec<UnderWay>>,
    inquiry: Mutex<Inquiry>,
    /// Why the group cannot be used any longer, and since when.
    broken: Mutex<Option<(RankError, Instant)>>,
}

// SAFETY: the handle is a value that MPI functions take, and those are called one at a time.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Mpi {
    /// The group of all ranks of the job. Blocks until all ranks call it.
    ///
    /// # Errors
    /// MPI is missing or refuses.
    pub(crate) fn world(limit: Duration) -> Result<Mpi, RankError> {
        let library = Library::get()?;
        library.check_running()?;
        let another = || {
            let mut communicator = null_mut();
            // SAFETY: MPI is initialised; the world is a communicator.
            let code = unsafe { (library.lock().comm_dup)(library.world(), &raw mut communicator) };
            library.check("MPI_Comm_dup", 0, code)?;
            Ok(communicator)
        };
        let (job, communicator) = (another()?, another()?);
        library.return_errors_of(job)?;
        Mpi::of(Job::begin(library.clone(), job, limit)?, (job, communicator), 0)
    }

    /// # Errors
    /// MPI refuses.
    fn of(job: Arc<Job>, (maker, communicator): (Handle, Handle), identity: u64) -> Result<Mpi, RankError> {
        let library = job.library.clone();
        library.return_errors_of(communicator)?;
        let (rank, size) = library.rank_and_size(communicator)?;
        let in_job = library.ranks_in(communicator, job.communicator, size)?;
        let in_maker = library.ranks_in(communicator, maker, size)?;
        let (calls, requests, under_way) = (Arc::default(), AtomicU64::new(0), Mutex::default());
        let (inquiry, broken) = (Mutex::default(), Mutex::default());
        let shared = Arc::new(Shared {
            library,
            communicator,
            job,
            in_job,
            identity,
            rank,
            size,
            maker,
            in_maker,
            calls,
            requests,
            under_way,
            inquiry,
            broken,
        });
        shared.job.add(&shared);
        Ok(Mpi { shared })
    }

    /// The identity of a group that is made of this one.
    fn identity(&self, members: &[usize], serial: u64) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.shared.identity, members, serial).hash(&mut hasher);
        hasher.finish()
    }

    /// Blocks until all members have called this. The call that makes their group blocks with the lock of the library held, and then no collective could start on
    /// which a member waits before it comes.
    fn meet(&self, members: &[usize], identity: u64) -> Result<(), RankError> {
        let Some((&first, others)) = members.split_first() else { return Ok(()) };
        let Shared { library, job, in_job, size, rank: me, .. } = &*self.shared;
        let _waiting = job.waiting();
        let (tag, begin, limit, job) = (tag(identity), Instant::now(), job.limit, job.communicator);
        let message = |receives: bool, peer: usize| -> Result<(), RankError> {
            let (mut request, mut nothing) = (library.no_request(), 0u8);
            let (data, byte, made) = ((&raw mut nothing).cast::<c_void>(), library.byte(), &raw mut request);
            let mut code = match receives {
                // SAFETY: a message without elements, whose address is not used.
                true => unsafe { (library.lock().irecv)(data, 0, byte, in_job[peer], tag, job, made) },
                // SAFETY: as above.
                false => unsafe { (library.lock().isend)(data, 0, byte, in_job[peer], tag, job, made) },
            };
            let mut over = 0;
            while code == 0 && over == 0 {
                // SAFETY: a request that is not over, and a place for the answer.
                code = unsafe { (library.lock().test)(&raw mut request, &raw mut over, STATUS_IGNORE) };
                if over == 0 && begin.elapsed() > limit {
                    // The request stays, so this process does not call MPI_Finalize.
                    library.note_loss();
                    let ranks = vec![peer];
                    // The first one alone knows who is missing.
                    return Err(match *me == first {
                        true => RankError::NotJoined { ranks, size: *size, limit },
                        false => RankError::Broken(format!("a member has not come within {} s", limit.as_secs_f64())),
                    });
                }
                std::thread::yield_now();
            }
            if code != 0 && self.shared.failed_ranks().contains(&peer) {
                return Err(RankError::Gone { ranks: vec![peer], left: false, me: *me });
            }
            library.check("MPI_Test", *me, code)
        };
        if *me == first {
            others.iter().try_for_each(|&other| message(true, other))?;
            return others.iter().try_for_each(|&other| message(false, other));
        }
        message(false, first)?;
        message(true, first)
    }

    /// Blocks until all ranks of the group that are not lost have called this for the same `serial`. `MPIX_Comm_shrink` would wait for one that is only late, with the lock of
    /// the library held.
    ///
    /// # Errors
    /// A rank does not come in time.
    fn meet_living(&self, serial: u64) -> Result<(), RankError> {
        let _waiting = self.shared.job.waiting();
        // A rank that comes when the others have given up finds their first messages, and not the second ones, which they send once all have come.
        for round in 0..2 {
            self.meet_round(tag(self.identity(&[round], serial)))?;
        }
        Ok(())
    }

    fn meet_round(&self, tag: c_int) -> Result<(), RankError> {
        let Shared { library, job, in_job, size, .. } = &*self.shared;
        let begin = Instant::now();
        let mut missing: Vec<usize> = self.shared.others().collect();
        missing.iter().for_each(|&other| library.send(Box::new([0; 1]), in_job[other], tag, job.communicator));
        loop {
            let gone = self.shared.failed_ranks();
            missing.retain(|other| {
                let mut came: Vec<[u8; 1]> = Vec::new();
                let runs = library.receive_all(Some(in_job[*other]), tag, job.communicator, &mut came);
                runs.is_some() && came.is_empty() && !gone.contains(other)
            });
            library.forget_sent();
            if missing.is_empty() {
                return Ok(());
            }
            if begin.elapsed() > job.limit {
                return Err(RankError::NotJoined { ranks: missing, size: *size, limit: job.limit });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Shared {
    /// Notes that the group cannot be used any longer, and has its operations fail on all ranks, if the library can do that.
    fn fail(&self, error: RankError) -> RankError {
        let mut broken = self.broken.lock().unwrap_or_else(PoisonError::into_inner);
        if broken.is_none() {
            *broken = Some((error.clone(), Instant::now()));
            if let Some(faults) = &self.library.faults {
                let _one = self.library.lock();
                // SAFETY: a communicator of this library.
                let code = unsafe { (faults.revoke)(self.communicator) };
                log::debug!("MPIX_Comm_revoke returned {code}");
            }
        }
        error
    }

    /// The error of a call that returned `code`.
    fn failure(&self, call: &'static str, code: c_int) -> RankError {
        let gone = self.failed_ranks();
        let plain = self.library.check(call, self.rank, code).err();
        let known = self.broken();
        let error = match (plain, known) {
            _ if !gone.is_empty() => RankError::Gone { ranks: gone, left: false, me: self.rank },
            // The group was given up while this request was under way.
            (_, Some((known, _))) => known,
            (Some(plain), None) => plain,
            (None, None) => RankError::Broken(format!("{call} returned {code}")),
        };
        if self.library.faults.is_some() { self.fail(error) } else { self.tell_and_fail(error) }
    }

    /// The ranks that the library knows to have died.
    fn failed_ranks(&self) -> Vec<usize> {
        let Some(faults) = &self.library.faults else { return Vec::new() };
        let mpi = self.library.lock();
        let (mut failed, mut all, mut count) = (null_mut(), null_mut(), 0);
        // SAFETY: a communicator of this library, with a place for the answer.
        if unsafe { (faults.get_failed)(self.communicator, &raw mut failed) } != 0 {
            return Vec::new();
        }
        // SAFETY: as above.
        if unsafe { (mpi.comm_group)(self.communicator, &raw mut all) } != 0 {
            return Vec::new();
        }
        // SAFETY: the group of the failed ranks, with a place for the answer.
        let counted = unsafe { (mpi.group_size)(failed, &raw mut count) };
        let own: Vec<c_int> = if counted == 0 { (0..count).collect() } else { Vec::new() };
        let mut ranks = vec![-1; own.len()];
        let number = own.len() as c_int;
        // SAFETY: both groups are of this library; the lists have that many ranks, and places for them.
        unsafe { (mpi.group_translate_ranks)(failed, number, own.as_ptr(), all, ranks.as_mut_ptr()) };
        for group in [&raw mut failed, &raw mut all] {
            // SAFETY: a group that this function was given, which is freed once.
            unsafe { (mpi.group_free)(group) };
        }
        drop(mpi);
        if !ranks.is_empty() {
            self.library.note_loss();
        }
        ranks.into_iter().filter_map(|rank| usize::try_from(rank).ok()).collect()
    }

    /// # Errors
    /// The group cannot be used any longer.
    fn check(&self) -> Result<(), RankError> {
        match self.broken() {
            Some((error @ RankError::Broken(_), _)) => Err(error),
            Some((error, _)) => Err(RankError::Broken(error.to_string())),
            None => Ok(()),
        }
    }

    /// Why the group cannot be used any longer, and since when.
    fn broken(&self) -> Option<(RankError, Instant)> {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn inquiry(&self) -> MutexGuard<'_, Inquiry> {
        self.inquiry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn under_way(&self) -> MutexGuard<'_, Vec<UnderWay>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The oldest request that is not over.
    fn oldest(&self) -> Option<UnderWay> {
        self.under_way().first().cloned()
    }

    fn is_under_way(&self, id: u64) -> bool {
        self.under_way().iter().any(|it| it.id == id)
    }

    /// The collective that is under way: the hash and the text of its call.
    fn current(&self) -> Option<(u64, String)> {
        let under_way = self.under_way();
        under_way.iter().find_map(|it| match &it.waits {
            Waits::ForAll { text, .. } => Some((hash_of(text), text.clone())),
            Waits::ForMessage { .. } => None,
        })
    }

    /// # Errors
    /// MPI refuses, or a count is too large for it.
    ///
    /// # Safety
    /// As for [`Communicator::start`].
    #[expect(
        clippy::multiple_unsafe_ops_per_block,
        reason = "each arm is one call of MPI, and all of them rest on one promise"
    )]
    unsafe fn begin(&self, transfer: &Transfer) -> Result<(&'static str, Handle), RankError> {
        let Transfer { verb, dtype, count, .. } = *transfer;
        let (input, output): (*const c_void, *mut c_void) = (transfer.input.cast(), transfer.output.cast());
        let in_place = std::ptr::eq(input, output) && !input.is_null();
        let number = |count: usize| {
            c_int::try_from(count).map_err(|_| {
                RankError::Argument(format!(
                    "MPI takes at most {} elements or bytes at once, not {count}; split the tensor",
                    c_int::MAX
                ))
            })
        };
        // What is not reduced is moved as bytes.
        let reduces = matches!(verb, Verb::AllReduce(_) | Verb::Reduce(..) | Verb::ReduceScatter(_));
        let (bytes, elements) = if reduces { (0, number(count)?) } else { (number(transfer.part_bytes())?, 0) };
        let peer = |rank: usize| rank as c_int;
        let (library, group, mut request) = (&self.library, self.communicator, self.library.no_request());
        let byte = library.byte();
        let made = &raw mut request;
        let mpi = library.lock();
        // SAFETY: the caller promises the elements at the addresses until the request is over. Counts are those of the verb; the handles are of this library.
        let (name, code) = unsafe {
            match verb {
                Verb::AllReduce(fold) => {
                    let (of, by) = (library.datatype(dtype), library.operation(fold));
                    let from = if in_place { IN_PLACE } else { input };
                    ("MPI_Iallreduce", (mpi.iallreduce)(from, output, elements, of, by, group, made))
                }
                Verb::Reduce(fold, root) => {
                    let (of, by) = (library.datatype(dtype), library.operation(fold));
                    let from = if in_place && root == self.rank { IN_PLACE } else { input };
                    let to = if root == self.rank { output } else { null_mut() };
                    ("MPI_Ireduce", (mpi.ireduce)(from, to, elements, of, by, peer(root), group, made))
                }
                Verb::Broadcast(root) => {
                    let data = if root == self.rank { input.cast_mut() } else { output };
                    ("MPI_Ibcast", (mpi.ibcast)(data, bytes, byte, peer(root), group, made))
                }
                Verb::AllGather => {
                    ("MPI_Iallgather", (mpi.iallgather)(input, bytes, byte, output, bytes, byte, group, made))
                }
                Verb::ReduceScatter(fold) => {
                    let (of, by) = (library.datatype(dtype), library.operation(fold));
                    let code = (mpi.ireduce_scatter_block)(input, output, elements, of, by, group, made);
                    ("MPI_Ireduce_scatter_block", code)
                }
                Verb::Gather(root) => {
                    let code = (mpi.igather)(input, bytes, byte, output, bytes, byte, peer(root), group, made);
                    ("MPI_Igather", code)
                }
                Verb::Scatter(root) => {
                    let code = (mpi.iscatter)(input, bytes, byte, output, bytes, byte, peer(root), group, made);
                    ("MPI_Iscatter", code)
                }
                Verb::AllToAll => {
                    ("MPI_Ialltoall", (mpi.ialltoall)(input, bytes, byte, output, bytes, byte, group, made))
                }
                Verb::Send(to) => ("MPI_Isend", (mpi.isend)(input, bytes, byte, peer(to), 0, group, made)),
                Verb::Receive(from) => ("MPI_Irecv", (mpi.irecv)(output, bytes, byte, peer(from), 0, group, made)),
                Verb::Barrier => ("MPI_Ibarrier", (mpi.ibarrier)(group, made)),
            }
        };
        drop(mpi);
        if code != 0 {
            return Err(self.failure(name, code));
        }
        library.request_begins();
        Ok((name, request))
    }
}

impl Communicator for Mpi {
    fn rank(&self) -> usize {
        self.shared.rank
    }

    fn size(&self) -> usize {
        self.shared.size
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { backend: "mpi", survives_loss: self.shared.library.faults.is_some(), checks_order: false }
    }

    unsafe fn start(&self, transfer: Transfer) -> Result<Box<dyn Operation>, RankError> {
        self.shared.check()?;
        self.shared.library.check_running()?;
        // SAFETY: the caller's promise.
        let (call, request) = unsafe { self.shared.begin(&transfer) }?;
        let waits = Waits::of(&transfer, || self.shared.calls.fetch_add(1, Ordering::Relaxed));
        let (shared, id) = (self.shared.clone(), self.shared.requests.fetch_add(1, Ordering::Relaxed));
        shared.under_way().push(UnderWay { id, began: Instant::now(), waits });
        Ok(Box::new(Request { shared, transfer, id, request, call, failed: None, over: false }))
    }

    fn give_up(&self, why: &RankError) {
        self.shared.tell_and_fail(why.clone());
    }

    fn failure(&self, of: &[usize]) -> Option<RankError> {
        if let Err(error) = self.shared.check() {
            return Some(error);
        }
        let ranks: Vec<usize> = self.shared.failed_ranks().into_iter().filter(|rank| of.contains(rank)).collect();
        (!ranks.is_empty()).then(|| RankError::Gone { ranks, left: false, me: self.shared.rank })
    }

    fn shrink(&self, serial: u64) -> Result<Box<dyn Communicator>, RankError> {
        let library = &self.shared.library;
        library.check_running()?;
        let Some(faults) = &library.faults else {
            let what = "this MPI ends the whole job when a rank is lost".to_owned();
            return Err(RankError::Environment { what, help: "start it by Open MPI's `mpirun --with-ft ulfm`" });
        };
        self.meet_living(serial)?;
        let mut communicator = null_mut();
        let locked = library.lock();
        // SAFETY: a communicator of this library, and a place for the answer.
        let code = unsafe { (faults.shrink)(self.shared.communicator, &raw mut communicator) };
        library.check("MPIX_Comm_shrink", self.shared.rank, code)?;
        let mut maker = null_mut();
        // SAFETY: as above.
        let code = unsafe { (faults.shrink)(self.shared.communicator, &raw mut maker) };
        drop(locked);
        library.check("MPIX_Comm_shrink", self.shared.rank, code)?;
        library.return_errors_of(maker)?;
        let (_, size) = library.rank_and_size(communicator)?;
        let left = library.ranks_in(communicator, self.shared.communicator, size)?;
        let left: Vec<usize> = left.into_iter().map(|rank| rank as usize).collect();
        let identity = self.identity(&left, u64::MAX - 1 - serial);
        Ok(Box::new(Mpi::of(self.shared.job.clone(), (maker, communicator), identity)?))
    }

    fn subgroup(&self, members: &[usize], serial: u64) -> Result<Box<dyn Communicator>, RankError> {
        let Shared { library, rank, job, maker, in_maker, .. } = &*self.shared;
        library.check_running()?;
        let identity = self.identity(members, serial);
        self.meet(members, identity)?;
        let ranks: Vec<c_int> = members.iter().map(|&member| in_maker[member]).collect();
        let (mut all, mut some, mut communicator) = (null_mut(), null_mut(), null_mut());
        let mpi = library.lock();
        // SAFETY: a communicator of this library, with a place for the answer.
        let mut code = unsafe { (mpi.comm_group)(*maker, &raw mut all) };
        if code == 0 {
            // SAFETY: the list has that many ranks, all in the group.
            code = unsafe { (mpi.group_incl)(all, ranks.len() as c_int, ranks.as_ptr(), &raw mut some) };
        }
        if code == 0 {
            let made = &raw mut communicator;
            // SAFETY: the group has ranks of the communicator alone; there is a place for the answer.
            code = unsafe { (mpi.comm_create_group)(*maker, some, tag(identity), made) };
            // SAFETY: a group that this function has made, which is freed once.
            unsafe { (mpi.group_free)(&raw mut some) };
        }
        if !all.is_null() {
            // SAFETY: as above.
            unsafe { (mpi.group_free)(&raw mut all) };
        }
        drop(mpi);
        library.check("MPI_Comm_create_group", *rank, code)?;
        Ok(Box::new(Mpi::of(job.clone(), (*maker, communicator), identity)?))
    }
}

/// The tag of the messages and calls that make a group. Tags are at least 32,767 in every MPI.
fn tag(identity: u64) -> c_int {
    (identity % watch::TAG as u64) as c_int
}

/// A request of MPI.
struct Request {
    shared: Arc<Shared>,
    transfer: Transfer,
    id: u64,
    request: Handle,
    /// The function of MPI that has made it.
    call: &'static str,
    /// The code with which it has failed, and when.
    failed: Option<(c_int, Instant)>,
    over: bool,
}

// SAFETY: the handle is a value that MPI functions take, and those are called one at a time.
unsafe impl Send for Request {}
// SAFETY: as above; nothing is reached through a shared reference.
unsafe impl Sync for Request {}

impl Operation for Request {
    fn poll(&mut self) -> Result<bool, FnError> {
        if let Some((code, since)) = self.failed {
            // Another rank has seen the loss of a rank first, and revoked the group. The library learns a little later which rank it was.
            self.shared.library.progress();
            let known =
                self.shared.broken().is_some() || !self.shared.failed_ranks().is_empty() || since.elapsed() > GRACE;
            return if known { Err(self.shared.failure(self.call, code).into()) } else { Ok(false) };
        }
        let (mut over, mut status) = (0, Status([0; 16]));
        let library = &self.shared.library;
        // SAFETY: a request that MPI has made and that is not over, with room for a status of either encoding.
        let code = unsafe { (library.lock().test)(&raw mut self.request, &raw mut over, (&raw mut status).cast()) };
        if !self.over && (code != 0 || over != 0) {
            self.over = true;
            library.request_ends();
            self.shared.under_way().retain(|it| it.id != self.id);
        }
        if code == 0 && over != 0 && matches!(self.transfer.verb, Verb::Receive(_)) {
            let (mut count, bytes) = (0, self.transfer.part_bytes());
            // SAFETY: the status of a receive that is over, and a place for the answer.
            let counted =
                unsafe { (library.lock().get_count)((&raw const status).cast(), library.byte(), &raw mut count) };
            if counted == 0 && count as usize != bytes {
                let what = format!("`{}` expects {bytes} bytes, and {count} have come", self.transfer.what());
                return Err(self.shared.tell_and_fail(RankError::Argument(what)).into());
            }
        }
        if code != 0 && self.shared.library.faults.is_some() {
            self.failed = Some((code, Instant::now()));
            return self.poll();
        }
        if code != 0 {
            return Err(self.shared.failure(self.call, code).into());
        }
        Ok(over != 0)
    }
}

/// Room for an `MPI_Status` of either encoding, which have at most 32 bytes.
#[repr(C, align(16))]
struct Status([c_int; 16]);

impl Drop for Request {
    fn drop(&mut self) {
        // Engines poll an operation to its end. If somebody else drops it before, its memory must not be used any longer afterwards.
        while !self.over && self.poll().is_ok() && self.shared.library.check_running().is_ok() {
            std::thread::yield_now();
        }
    }
}
