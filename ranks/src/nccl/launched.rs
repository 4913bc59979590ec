//! [`Launch`] and [`Launched`]: a collective from the call that queues it until its device has passed it.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use streamvm::ep::{self, Operation};
use streamvm::{DType, FnError};

use crate::nccl::comm::{ABORT_LIMIT, Comm};
use crate::nccl::library::{BYTES, SUCCESS, Status, datatype, operation};
use crate::transport::{Piece, RankError, Verb};

/// How often the ranks of the group on the host are asked for.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A rank that has ended may have done its part of the collectives of the others: those have this long to come to their end.
const GRACE: Duration = Duration::from_millis(300);

/// A collective that a function of a stream is to queue.
#[derive(Clone)]
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

/// A collective that NCCL queues, or has queued.
pub(super) struct Launched {
    comm: Arc<Comm>,
    began: Instant,
    looked: Instant,
    /// Since when a rank is known to have ended.
    since: Option<Instant>,
    /// Why it has failed. The communicator is being aborted.
    failed: Option<RankError>,
}

impl Launched {
    /// Has NCCL queue a collective.
    ///
    /// # Errors
    /// NCCL refuses; the communicator is aborted.
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
        let now = Instant::now();
        let mut launched = Launched { comm, began: now, looked: now, since: None, failed: None };
        if let Err(error) = queued {
            // A part of it may be queued: the operation is over once the abort is.
            launched.fail(error);
        }
        Ok(launched)
    }

    /// Fails the operation, and with it the communicator.
    fn fail(&mut self, error: RankError) {
        let is_seen = matches!(error, RankError::Gone { .. } | RankError::Broken(_));
        self.failed = Some(self.comm.abort(error, !is_seen));
    }

    /// Finds out whether NCCL, or the group on the host, knows of a failure. Returns whether the calls so far have come to their end.
    fn check(&mut self) -> Result<bool, RankError> {
        // The host knows more of a rank that is lost than NCCL does.
        let is_over =
            self.comm.state("a collective of NCCL").map_err(|error| self.comm.host.failure().unwrap_or(error))?;
        if self.looked.elapsed() > LOOK_EVERY {
            self.looked = Instant::now();
            if let Some(error) = self.comm.host.failure() {
                let has_ended = matches!(error, RankError::Gone { .. });
                if !has_ended || self.since.get_or_insert_with(Instant::now).elapsed() > GRACE {
                    return Err(error);
                }
            }
            if self.began.elapsed() > self.comm.limit {
                return Err(self.comm.late());
            }
        }
        Ok(is_over)
    }

    /// The error of an operation that has failed: `None` while the abort goes on.
    fn end(&self) -> Option<FnError> {
        let failed = self.failed.as_ref()?;
        if self.comm.ended.load(Ordering::Acquire) {
            return Some(failed.clone().into());
        }
        // Its kernels may still use the operands.
        let limit = self.comm.limit.min(ABORT_LIMIT);
        let hangs = self.comm.aborted_for().is_some_and(|time| time > limit);
        hangs.then(|| {
            let limit = limit.as_secs_f64();
            let reason = format!("{failed}, and NCCL did not end what it had queued within {limit} s");
            ep::Error::DeviceLost { device: self.comm.device, reason }.into()
        })
    }
}

impl Operation for Launched {
    fn poll(&mut self) -> Result<bool, FnError> {
        if self.failed.is_none() {
            match self.check() {
                Ok(is_over) => return Ok(is_over),
                Err(error) => self.fail(error),
            }
        }
        self.end().map_or(Ok(false), Err)
    }

    fn look(&mut self) -> Result<(), FnError> {
        if self.failed.is_none()
            && let Err(error) = self.check()
        {
            self.fail(error);
        }
        self.end().map_or(Ok(()), Err)
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
    let mut first = SUCCESS;
    let many = launch.pieces.len() > 1;
    for &piece in &launch.pieces {
        let count = if many { piece.elements } else { launch.count };
        // SAFETY: the caller's promise.
        let status = unsafe { queue_piece(comm, launch, piece, count) };
        first = if first == SUCCESS { status } else { first };
    }
    // SAFETY: the group of calls was started above.
    let ended = unsafe { (functions.group_end)() };
    library.check("a call of NCCL", first)?;
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
    let worst = |statuses: &mut dyn Iterator<Item = Status>| {
        statuses.fold(SUCCESS, |worst, it| if worst == SUCCESS { it } else { worst })
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
            // One of both is null. On the root NCCL writes what is there.
            let memory = if output.is_null() { input.cast_mut() } else { output };
            // SAFETY: as above.
            unsafe { (f.broadcast)(memory, memory, bytes, BYTES, root as i32, handle, stream) }
        }
        // SAFETY: as above.
        Verb::AllGather => unsafe { (f.all_gather)(input, output, bytes, BYTES, handle, stream) },
        Verb::Gather(root) => {
            let sent = to(input, 0, root);
            let ranks = if comm.rank == root { 0..size } else { 0..0 };
            worst(&mut std::iter::once(sent).chain(ranks.map(|rank| from(output, part(rank), rank))))
        }
        Verb::Scatter(root) => {
            let ranks = if comm.rank == root { 0..size } else { 0..0 };
            let sent = ranks.map(|rank| to(input, part(rank), rank));
            worst(&mut sent.chain(std::iter::once_with(|| from(output, 0, root))))
        }
        Verb::AllToAll => {
            let both = |rank| [to(input, part(rank), rank), from(output, part(rank), rank)];
            worst(&mut (0..size).flat_map(both))
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
