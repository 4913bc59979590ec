//! Ranks whose collectives run on GPUs, by NCCL.
//!
//! Layer: uses `transport`; is used by no other folder.
//!
//! A collective is a function on a collective stream of its GPU, which queues NCCL's kernels there. Events order it, as they order all work of the device. NCCL's calls return
//! before they have queued anything, so the function starts an operation ([`Launched`]): the engine polls it until the kernels are queued, and looks at it until the device has
//! passed them. The kernels of a collective wait for the other ranks on the device itself. If one of those is lost, NCCL or the ranks' group on the host may tell; then the communicator
//! is aborted, which ends the kernels.

mod channel;
mod launched;
mod library;

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use streamvm::ep::{Operation, RawCall};
use streamvm::{DType, DeviceId, InstructionsBuilder, Vm};

use crate::transport::{Capabilities, Communicator, Piece, RankError, Transfer, Verb, block_on};
use channel::{Channels, Message};
use launched::Launched;
use library::{Config, Functions, Handle, IN_PROGRESS, Library, UniqueId};

/// The end of a communicator that is aborted may wait for ever (NVIDIA/nccl issue 1013). After this long, or the limit of the ranks if that is less, its device counts as
/// lost.
const ABORT_LIMIT: Duration = Duration::from_secs(10);

/// The call that makes a communicator.
const MAKE: &str = "ncclCommInitRankConfig";

/// Bytes in which each rank says whether it has NCCL, and which: a flag, then a text, or the name of the communicator.
const HELLO: usize = 512;

/// A group of ranks with a GPU each.
pub(crate) struct Nccl {
    comm: Arc<Comm>,
    /// The driver's context of the device, for comparison.
    context: Arc<AtomicPtr<c_void>>,
    channels: Arc<Channels>,
}

/// A communicator, which its operations share: of a group, or of the messages from one rank to another.
struct Comm {
    library: &'static Library,
    handle: AtomicPtr<c_void>,
    /// Calls of one communicator come one at a time.
    calls: Mutex<()>,
    /// The ranks of the group on the host.
    host: Arc<dyn Communicator>,
    /// This rank, and the number of ranks, in the communicator.
    rank: usize,
    size: usize,
    /// The other ranks of the communicator, as the group numbers them.
    others: Vec<usize>,
    device: DeviceId,
    /// How long a collective may take.
    limit: Duration,
    /// Why the communicator was aborted, and when.
    aborted: Mutex<Option<(RankError, Instant)>>,
    /// The abort has returned.
    ended: AtomicBool,
}

/// A collective that a function of a stream is to queue.
#[derive(Clone)]
pub(crate) struct Launch {
    pub(crate) verb: Verb,
    pub(crate) dtype: DType,
    /// [`Transfer::count`], of each piece by itself where there are several.
    pub(crate) count: usize,
    pub(crate) mean: bool,
    pub(crate) pieces: Vec<Piece>,
    stream: *mut c_void,
}

// SAFETY: the stream is a handle, which the thread that polls the operation passes on to NCCL; the engine keeps the stream until the operation has passed.
unsafe impl Send for Launch {}
// SAFETY: as above; through a shared reference it is only copied.
unsafe impl Sync for Launch {}

impl Nccl {
    /// The group of the ranks of `host`, each with the GPU that it passes. Blocks until all ranks call it.
    ///
    /// # Errors
    /// A rank has no NCCL, or another version; the device is none of CUDA's, or is not there; NCCL refuses; a rank is lost or late.
    pub(crate) fn join(
        host: Arc<dyn Communicator>,
        vm: &Vm,
        device: DeviceId,
        lane: u32,
        limit: Duration,
    ) -> Result<Nccl, RankError> {
        let (rank, size, began) = (host.rank(), host.size(), Instant::now());
        // A rank that cannot go on says so, for which the others wait.
        let mine = Library::get().and_then(|library| Ok((library, name_of(library, rank)?)));
        let mut hello = [0u8; HELLO];
        match &mine {
            Ok((library, id)) => {
                hello[0] = 1;
                hello[1..129].copy_from_slice(&id.0);
                write_text(&mut hello[129..], &library.version);
            }
            Err(error) => write_text(&mut hello[129..], &error.to_string()),
        }
        let all = gather(&*host, &hello)?;
        let (library, _) = mine?;
        for (other, theirs) in all.chunks(HELLO).enumerate() {
            let text = read_text(&theirs[129..]);
            if theirs[0] != 1 {
                return Err(RankError::Broken(format!("rank {other} has no NCCL: {text}")));
            }
            if text != library.version {
                let named = |version: &str| format!("NCCL {version}");
                return Err(RankError::Version {
                    me: rank,
                    mine: named(&library.version),
                    other,
                    theirs: named(&text),
                });
            }
        }
        let mut id = UniqueId([0; 128]);
        id.0.copy_from_slice(&all[1..129]);
        let others = (0..size).filter(|&other| other != rank).collect();
        let comm = Arc::new(Comm::new(library, host, (rank, size), others, device, limit));
        let context = Arc::new(AtomicPtr::new(null_mut()));
        let mut builder = InstructionsBuilder::new();
        let (made, found) = (comm.clone(), context.clone());
        let called = builder.on_lane(lane).on_collective().call_cuda("join NCCL", device, [], move |raw| {
            found.store(raw.context, Ordering::Relaxed);
            Ok(made.make(id)?)
        });
        let submitted = called.and_then(|()| vm.submit(builder.finish())?.wait());
        let submitted = submitted.map_err(|error| RankError::Broken(format!("no group on {device}: {error}")));
        if let Err(error) = submitted.and_then(|()| comm.wait_until_made(began)) {
            return Err(comm.abort(error, true));
        }
        Ok(Nccl { comm, context, channels: Arc::default() })
    }

    /// Queues a collective over device memory, on the stream of the function that the engine calls now.
    ///
    /// # Errors
    /// It was not queued.
    ///
    /// # Safety
    /// The pieces are null, or device memory with the elements that the verb reads and writes, which the engine keeps, and orders other uses of after this instruction, until
    /// the operation has passed.
    pub(crate) unsafe fn start(&self, launch: Launch) -> Result<Box<dyn Operation>, RankError> {
        self.comm.check()?;
        if let Verb::Send(_) | Verb::Receive(_) = launch.verb {
            return Ok(Box::new(Message::start(&self.comm, &self.channels, launch)?));
        }
        // SAFETY: the caller's promise.
        Ok(Box::new(unsafe { Launched::start(self.comm.clone(), &launch) }?))
    }

    /// A collective on the stream of a call.
    ///
    /// # Errors
    /// The stream is of another device, or of another engine's context, than the group was made for.
    pub(crate) fn launch(
        &self,
        raw: &RawCall<'_>,
        (verb, dtype, count, mean): (Verb, DType, usize, bool),
        pieces: Vec<Piece>,
    ) -> Result<Launch, RankError> {
        if raw.context != self.context.load(Ordering::Relaxed) {
            let what = format!("the group is for {} of the engine that it was made with", self.comm.device);
            return Err(RankError::Argument(what));
        }
        Ok(Launch { verb, dtype, count, mean, pieces, stream: raw.stream })
    }
}

/// The dtype in which NCCL combines elements of a dtype: 16-bit floats are combined as `f32`, as on the host; integers of 16 bits it does not know.
pub(crate) fn combined_as(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        DType::I16 => DType::I32,
        DType::U16 => DType::U32,
        other => other,
    }
}

impl Comm {
    fn new(
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
    fn make(&self, id: UniqueId) -> Result<(), RankError> {
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
    fn wait_until_made(&self, began: Instant) -> Result<(), RankError> {
        loop {
            match self.state(MAKE)? {
                true => return Ok(()),
                false if began.elapsed() > self.limit => return Err(self.late()),
                false => {}
            }
            if let Some(error) = self.host.failure() {
                return Err(error);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether the last call has come to its end.
    ///
    /// # Errors
    /// It has failed, or something that was queued has.
    fn state(&self, call: &'static str) -> Result<bool, RankError> {
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
    fn late(&self) -> RankError {
        RankError::Late { ranks: self.others.clone(), limit: self.limit, me: self.host.rank() }
    }

    /// Ends the communicator, and with it all that it has queued, on a thread of its own, because NCCL may wait. The first reason counts, and is returned. `tells`: the other
    /// ranks do not see the reason by themselves.
    fn abort(self: &Arc<Self>, why: RankError, tells: bool) -> RankError {
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
    fn check(&self) -> Result<(), RankError> {
        match &*self.aborted.lock().unwrap_or_else(PoisonError::into_inner) {
            Some((error, _)) => Err(RankError::Broken(error.to_string())),
            None => Ok(()),
        }
    }

    /// The time since the communicator was aborted.
    fn aborted_for(&self) -> Option<Duration> {
        self.aborted.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|(_, when)| when.elapsed())
    }

    fn functions(&self) -> &'static Functions {
        &self.library.functions
    }

    fn handle(&self) -> Handle {
        self.handle.load(Ordering::Acquire)
    }

    fn calls(&self) -> MutexGuard<'_, ()> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Communicator for Nccl {
    fn rank(&self) -> usize {
        self.comm.host.rank()
    }

    fn size(&self) -> usize {
        self.comm.host.size()
    }

    fn capabilities(&self) -> Capabilities {
        let Capabilities { survives_loss, .. } = self.comm.host.capabilities();
        Capabilities { backend: "NCCL", survives_loss, checks_order: false }
    }

    /// Memory of the host, by the group on the host: what ranks tell each other beside their collectives.
    unsafe fn start(&self, transfer: Transfer) -> Result<Box<dyn Operation>, RankError> {
        // SAFETY: the caller's promise.
        unsafe { self.comm.host.start(transfer) }
    }

    fn give_up(&self, why: &RankError) {
        self.comm.abort(why.clone(), true);
    }

    fn failure(&self) -> Option<RankError> {
        self.comm.check().err()
    }

    fn shrink(&self, _: u64) -> Result<Box<dyn Communicator>, RankError> {
        Err(of_host("shrink"))
    }

    /// A group on the host, for checks of the order.
    fn subgroup(&self, members: &[usize], serial: u64) -> Result<Box<dyn Communicator>, RankError> {
        self.comm.host.subgroup(members, serial)
    }
}

/// The error of what only groups on the host do.
pub(crate) fn of_host(call: &str) -> RankError {
    let what =
        format!("`{call}` is for groups on the host; make the new group of such a one, then use its `on_device`");
    RankError::Argument(what)
}

/// The name of a new communicator, which rank 0 makes.
fn name_of(library: &Library, rank: usize) -> Result<UniqueId, RankError> {
    let mut id = UniqueId([0; 128]);
    if rank == 0 {
        // SAFETY: the place is a local variable.
        library.check("ncclGetUniqueId", unsafe { (library.functions.get_unique_id)(&raw mut id) })?;
    }
    Ok(id)
}

/// The bytes of all ranks, one after the other. Blocks.
fn gather(host: &dyn Communicator, mine: &[u8]) -> Result<Vec<u8>, RankError> {
    let mut all = vec![0; mine.len() * host.size()];
    let (verb, call) = (Verb::AllGather, "on_device".to_owned());
    let (input, output) = (mine.as_ptr(), all.as_mut_ptr());
    let transfer = Transfer { verb, dtype: DType::U8, count: mine.len(), input, output, call };
    // SAFETY: both have the bytes, and stay until the operation is over, which is awaited here.
    let operation = unsafe { host.start(transfer) }?;
    block_on(operation).map_err(RankError::of)?;
    Ok(all)
}

fn write_text(to: &mut [u8], text: &str) {
    let length = text.len().min(to.len());
    to[..length].copy_from_slice(&text.as_bytes()[..length]);
}

fn read_text(from: &[u8]) -> String {
    String::from_utf8_lossy(from).trim_end_matches('\0').to_owned()
}
