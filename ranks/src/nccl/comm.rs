//! [`Comm`]: a communicator of NCCL, from when it is made until it is ended.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use streamvm::DeviceId;

use crate::nccl::library::{Config, Functions, Handle, IN_PROGRESS, Library, UniqueId};
use crate::transport::{Communicator, RankError};

/// The end of a communicator that is aborted may wait for ever (NVIDIA/nccl issue 1013). After this long its device counts as lost.
pub(super) const ABORT_LIMIT: Duration = Duration::from_secs(10);

/// The call that makes a communicator.
pub(super) const MAKE: &str = "ncclCommInitRankConfig";

/// A communicator, which its operations share: of a group, or of the messages from one rank to another.
pub(super) struct Comm {
    pub(super) library: &'static Library,
    handle: AtomicPtr<c_void>,
    /// Calls of one communicator come one at a time.
    calls: Mutex<()>,
    /// The ranks of the group on the host.
    pub(super) host: Arc<dyn Communicator>,
    /// This rank, and the number of ranks, in the communicator.
    pub(super) rank: usize,
    pub(super) size: usize,
    /// The other ranks of the communicator, as the group numbers them.
    pub(super) others: Vec<usize>,
    pub(super) device: DeviceId,
    /// How long a collective may take.
    pub(super) limit: Duration,
    /// Why the communicator was aborted, and when.
    aborted: Mutex<Option<(RankError, Instant)>>,
    /// The abort has returned.
    pub(super) ended: AtomicBool,
}

impl Comm {
    pub(super) fn new(
        library: &'static Library,
        host: Arc<dyn Communicator>,
        (rank, size): (usize, usize),
        others: Vec<usize>,
        device: DeviceId,
        limit: Duration,
    ) -> Comm {
        let (handle, calls) = (AtomicPtr::new(null_mut()), Mutex::new(()));
        let (aborted, ended) = (Mutex::new(None), AtomicBool::new(false));
        Comm { library, handle, calls, host, rank, size, others, device, limit, aborted, ended }
    }

    /// Begins to make the communicator. The context of the device must be current.
    pub(super) fn make(&self, id: UniqueId) -> Result<(), RankError> {
        let (mut handle, mut config) = (null_mut(), Config::nonblocking());
        let (make, rank, size) = (self.functions().comm_init_rank_config, self.rank as c_int, self.size as c_int);
        let _one_at_a_time = self.calls();
        self.check()?;
        // SAFETY: the places are local variables; in a wrong context NCCL makes a communicator of another device, which refuses the memory of this one.
        let status = unsafe { make(&raw mut handle, size, id, rank, &raw mut config) };
        self.handle.store(handle, Ordering::Release);
        self.library.check(MAKE, status)
    }

    /// Blocks until NCCL has made the communicator.
    pub(super) fn wait_until_made(&self, began: Instant) -> Result<(), RankError> {
        loop {
            match self.state(MAKE)? {
                true => return Ok(()),
                false if began.elapsed() > self.limit => return Err(self.late()),
                false => {}
            }
            if let Some(error) = self.host.failure(&self.others) {
                return Err(error);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether the last call has come to its end.
    ///
    /// # Errors
    /// It has failed, or something that was queued has.
    pub(super) fn state(&self, call: &'static str) -> Result<bool, RankError> {
        let mut status = IN_PROGRESS;
        let _one_at_a_time = self.calls();
        self.check()?;
        // SAFETY: the communicator was made, and is not aborted: that happens under the lock alone. The place is a local variable.
        let asked = unsafe { (self.functions().comm_get_async_error)(self.handle(), &raw mut status) };
        self.library.check("ncclCommGetAsyncError", asked)?;
        self.library.check(call, status)?;
        Ok(status != IN_PROGRESS)
    }

    /// The error of ranks that did not take part in time. NCCL does not tell which.
    pub(super) fn late(&self) -> RankError {
        RankError::Late { ranks: self.others.clone(), limit: self.limit, me: self.host.rank() }
    }

    /// Ends the communicator, and with it all that it has queued, on a thread of its own, because NCCL may wait. The first reason counts, and is returned. `tells`: the other
    /// ranks do not see the reason by themselves.
    pub(super) fn abort(self: &Arc<Self>, why: RankError, tells: bool) -> RankError {
        let calls = self.calls();
        let mut aborted = self.aborted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((first, _)) = &*aborted {
            return first.clone();
        }
        *aborted = Some((why.clone(), Instant::now()));
        drop((aborted, calls));
        if tells {
            self.host.give_up(&why);
        }
        let comm = self.clone();
        if self.handle().is_null() {
            self.ended.store(true, Ordering::Release);
            return why;
        }
        let ends = move || {
            // SAFETY: the communicator was made, and `aborted`, which was set under the lock of all calls, lets no other call come.
            let status = unsafe { (comm.functions().comm_abort)(comm.handle()) };
            if let Err(error) = comm.library.check("ncclCommAbort", status) {
                log::warn!("{error}");
            }
            comm.ended.store(true, Ordering::Release);
        };
        if let Err(error) = std::thread::Builder::new().name("nccl-abort".to_owned()).spawn(ends) {
            log::error!("no thread ends the NCCL communicator of {}: {error}", self.device);
        }
        why
    }

    /// # Errors
    /// The communicator is aborted.
    pub(super) fn check(&self) -> Result<(), RankError> {
        match &*self.aborted.lock().unwrap_or_else(PoisonError::into_inner) {
            Some((error, _)) => Err(RankError::Broken(error.to_string())),
            None => Ok(()),
        }
    }

    /// The time since the communicator was aborted.
    pub(super) fn aborted_for(&self) -> Option<Duration> {
        self.aborted.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|(_, when)| when.elapsed())
    }

    pub(super) fn functions(&self) -> &'static Functions {
        &self.library.functions
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle.load(Ordering::Acquire)
    }

    pub(super) fn calls(&self) -> MutexGuard<'_, ()> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The name of a new communicator, which rank 0 makes.
pub(super) fn name_of(library: &Library, rank: usize) -> Result<UniqueId, RankError> {
    let mut id = UniqueId([0; 128]);
    if rank == 0 {
        // SAFETY: the place is a local variable.
        library.check("ncclGetUniqueId", unsafe { (library.functions.get_unique_id)(&raw mut id) })?;
    }
    Ok(id)
}
