//! [`Launch`] and [`Launched`]: a collective from the call that queues it until its device has passed it.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use streamvm::ep::{self, Operation};
use streamvm::{DType, FnError};

use crate::nccl::comm::{ABORT_LIMIT, Comm};
use crate::nccl::library::{BYTES, IN_PROGRESS, SUCCESS, Status, datatype, operation};
use crate::transport::{Piece, RankError, Verb};

/// How often the ranks of the group on the host are asked for.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A rank that has ended may have done its part of the collectives of the others: those have this long to come to their end.
const GRACE: Duration = Duration::from_millis(300);

/// A collective that a function of a stream is to queue.
pub(crate) struct Launch {
    pub(crate) verb: Verb,
    pub(crate) dtype: DType,
    /// [`Transfer::count`], of each piece by itself where there are several.
    pub(crate) count: usize,
    pub(crate) mean: bool,
    pub(crate) pieces: Vec<Piece>,
    pub(super) stream: *mut c_void,
}

// SAFETY: the stream is a handle, which the thread that polls the operation passes on to NCCL; the engine keeps the stream until the operation has passed.
unsafe impl Send for Launch {}
// SAFETY: as above; through a shared reference it is only copied.
unsafe impl Sync for Launch {}

/// How long something has waited for the other ranks of a communicator, and what the group on the host knows of them.
pub(super) struct Watch {
    began: Instant,
    looked: Instant,
    /// Since when a rank is known to have ended.
    since: Option<Instant>,
}

impl Watch {
    pub(super) fn new() -> Watch {
        let now = Instant::now();
        Watch { began: now, looked: now, since: None }
    }

    /// # Errors
    /// A rank is lost, or late.
    pub(super) fn check(&mut self, comm: &Comm) -> Result<(), RankError> {
        if self.looked.elapsed() < LOOK_EVERY {
            return Ok(());
        }
        self.looked = Instant::now();
        if let Some(error) = comm.host.failure(&comm.others) {
            let has_ended = matches!(error, RankError::Gone { .. });
            if !has_ended || self.since.get_or_insert_with(Instant::now).elapsed() > GRACE {
                return Err(error);
            }
        }
        if self.began.elapsed() > comm.limit { Err(comm.late()) } else { Ok(()) }
    }
}

/// A collective that NCCL queues, or has queued.
pub(super) struct Launched {
    comm: Arc<Comm>,
    /// The wait until it is queued.
    queuing: Watch,
    /// The wait since it may run on the device, where it waits for the other ranks.
    running: Option<Watch>,
    /// Why it has failed. The communicator is being aborted.
    failed: Option<RankError>,
}

impl Launched {
    /// Has NCCL queue a collective. If NCCL refuses, that is the failure of the operation, because a part may be queued.
    ///
    /// # Errors
    /// The communicator is aborted.
    ///
    /// # Safety
    /// As for [`Nccl::start`](crate::nccl::Nccl::start).
    pub(super) unsafe fn start(comm: Arc<Comm>, launch: &Launch) -> Result<Launched, RankError> {
        let queued = {
            let _one_at_a_time = comm.calls();
            comm.check()?;
            // SAFETY: the caller's promise.
            unsafe { queue(&comm, launch) }
        };
        let mut launched = Launched { comm, queuing: Watch::new(), running: None, failed: None };
        if let Err(error) = queued {
            // The operation is over once the abort is.
            launched.fail(error);
        }
        Ok(launched)
    }

    /// Fails the operation, and with it the communicator.
    fn fail(&mut self, error: RankError) {
        let is_seen = matches!(error, RankError::Gone { .. } | RankError::Broken(_));
        self.failed = Some(self.comm.abort(error, !is_seen));
    }

    /// Whether the calls so far have come to their end.
    ///
    /// # Errors
    /// NCCL has failed.
    fn state(&self) -> Result<bool, RankError> {
        // The host knows more of a rank that is lost than NCCL does.
        let Comm { host, others, .. } = &*self.comm;
        self.comm.state("a collective of NCCL").map_err(|error| host.failure(others).unwrap_or(error))
    }

    /// The error of an operation that has failed: `None` while the abort goes on.
    fn end(&self) -> Option<FnError> {
        let failed = self.failed.as_ref()?;
        if self.comm.ended.load(Ordering::Acquire) {
            return Some(failed.clone().into());
        }
        // Its kernels may still use the operands.
        let hangs = self.comm.aborted_for().is_some_and(|time| time > ABORT_LIMIT);
        hangs.then(|| {
            let limit = ABORT_LIMIT.as_secs();
            let reason = format!("{failed}, and NCCL did not end what it had queued within {limit} s");
            ep::Error::DeviceLost { device: self.comm.device, reason }.into()
        })
    }
}

impl Operation for Launched {
    fn poll(&mut self) -> Result<bool, FnError> {
        if self.failed.is_none() {
            match self.queuing.check(&self.comm).and_then(|()| self.state()) {
                Ok(is_over) => return Ok(is_over),
                Err(error) => self.fail(error),
            }
        }
        self.end().map_or(Ok(false), Err)
    }

    fn look(&mut self, has_passed: bool) -> Result<(), FnError> {
        if self.failed.is_none()
            && let Err(error) = self.state().and_then(|_| match has_passed {
                true => Ok(()),
                false => self.running.get_or_insert_with(Watch::new).check(&self.comm),
            })
        {
            self.fail(error);
        }
        match &self.failed {
            // Whether an abort has ended it, or whether it was over before, is not known.
            Some(failed) if has_passed => Err(failed.clone().into()),
            _ => self.end().map_or(Ok(()), Err),
        }
    }
}

/// Calls NCCL for a collective. The caller holds the lock of the communicator.
///
/// # Errors
/// NCCL refuses.
///
/// # Safety
/// As for [`Nccl::start`](crate::nccl::Nccl::start).
unsafe fn queue(comm: &Comm, launch: &Launch) -> Result<(), RankError> {
    let (library, functions) = (comm.library, comm.functions());
    // SAFETY: no condition: NCCL counts the calls of this thread.
    library.check("ncclGroupStart", unsafe { (functions.group_start)() })?;
    let mut refused = SUCCESS;
    let many = launch.pieces.len() > 1;
    for &piece in &launch.pieces {
        let count = if many { piece.elements } else { launch.count };
        // SAFETY: the caller's promise.
        let status = unsafe { queue_piece(comm, launch, piece, count) };
        refused = first_error(refused, status);
    }
    // SAFETY: the group of calls was started above.
    let ended = unsafe { (functions.group_end)() };
    library.check("a call of NCCL", refused)?;
    library.check("ncclGroupEnd", ended)
}

/// Calls NCCL for one tensor of a collective.
///
/// # Safety
/// As for [`Nccl::start`](crate::nccl::Nccl::start).
unsafe fn queue_piece(comm: &Comm, launch: &Launch, piece: Piece, count: usize) -> Status {
    let (f, handle, stream) = (comm.functions(), comm.handle(), launch.stream);
    let (input, output) = (piece.input.cast::<c_void>(), piece.output.cast::<c_void>());
    let bytes = count * launch.dtype.size();
    if bytes == 0 {
        // All ranks pass the same shape, so nobody waits for this.
        return SUCCESS;
    }
    let size = comm.size;
    // Where nothing is combined, elements are bytes.
    let part = |rank: usize| rank * bytes;
    let to = |from: *const c_void, at: usize, rank: usize| {
        // SAFETY: the caller promises the memory of all parts, of which this is one.
        unsafe { (f.send)(from.wrapping_byte_add(at), bytes, BYTES, rank as i32, handle, stream) }
    };
    let from = |to: *mut c_void, at: usize, rank: usize| {
        // SAFETY: as above.
        unsafe { (f.recv)(to.wrapping_byte_add(at), bytes, BYTES, rank as i32, handle, stream) }
    };
    let combines = |fold| Some((datatype(launch.dtype)?, operation(fold, launch.mean)));
    const UNKNOWN: Status = 4;
    match launch.verb {
        Verb::AllReduce(fold) => {
            let Some((dtype, by)) = combines(fold) else { return UNKNOWN };
            // SAFETY: the caller promises the memory.
            unsafe { (f.all_reduce)(input, output, count, dtype, by, handle, stream) }
        }
        Verb::Reduce(fold, root) => {
            let Some((dtype, by)) = combines(fold) else { return UNKNOWN };
            // SAFETY: as above.
            unsafe { (f.reduce)(input, output, count, dtype, by, root as i32, handle, stream) }
        }
        Verb::ReduceScatter(fold) => {
            let Some((dtype, by)) = combines(fold) else { return UNKNOWN };
            // SAFETY: as above.
            unsafe { (f.reduce_scatter)(input, output, count, dtype, by, handle, stream) }
        }
        Verb::Broadcast(root) => {
            // One of both is null: in place, the root sends and the others receive.
            let memory = if output.is_null() { input.cast_mut() } else { output };
            // SAFETY: as above.
            unsafe { (f.broadcast)(memory, memory, bytes, BYTES, root as i32, handle, stream) }
        }
        // SAFETY: as above.
        Verb::AllGather => unsafe { (f.all_gather)(input, output, bytes, BYTES, handle, stream) },
        Verb::Gather(root) => {
            let sent = to(input, 0, root);
            let ranks = if comm.rank == root { 0..size } else { 0..0 };
            std::iter::once(sent).chain(ranks.map(|rank| from(output, part(rank), rank))).fold(SUCCESS, first_error)
        }
        Verb::Scatter(root) => {
            let ranks = if comm.rank == root { 0..size } else { 0..0 };
            let sent = ranks.map(|rank| to(input, part(rank), rank));
            sent.chain(std::iter::once_with(|| from(output, 0, root))).fold(SUCCESS, first_error)
        }
        Verb::AllToAll => {
            let both = |rank| [to(input, part(rank), rank), from(output, part(rank), rank)];
            (0..size).flat_map(both).fold(SUCCESS, first_error)
        }
        // The communicator of messages has the sender as rank 0, and the receiver as rank 1.
        Verb::Send(_) => to(input, 0, 1),
        Verb::Receive(_) => from(output, 0, 0),
        // Its operand is one number (`Draft::token`).
        Verb::Barrier => {
            // SAFETY: as above.
            unsafe { (f.all_reduce)(input, output, bytes, BYTES, 0, handle, stream) }
        }
    }
}

/// The first of two statuses that is an error. Calls that go on are none.
fn first_error(first: Status, second: Status) -> Status {
    match first {
        SUCCESS | IN_PROGRESS => second,
        error => error,
    }
}
