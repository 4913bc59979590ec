//! Ranks whose collectives run on GPUs, by NCCL.
//!
//! Layer: uses `transport`; is used by no other folder.
//!
//! A collective is a function on a collective stream of its GPU, which queues NCCL's kernels there. Events order it, as they order all work of the device. NCCL's calls return
//! before they have queued anything, so the function starts an operation ([`Launched`]): the engine polls it until the kernels are queued, and looks at it until the device has
//! passed them. The kernels of a collective wait for the other ranks on the device itself. If one of those is lost, NCCL or the ranks' group on the host may tell; then the communicator
//! is aborted, which ends the kernels.

mod channel;
mod comm;
mod launched;
mod library;

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};

use streamvm::ep::{Operation, RawCall};
use streamvm::{DType, DeviceId, InstructionsBuilder, Vm};

use crate::transport::{Capabilities, Communicator, Piece, RankError, Transfer, Verb, block_on};
use channel::{Channels, Message};
use comm::{Comm, name_of};
use launched::{Launch, Launched};
use library::{Library, UniqueId};

/// Bytes in which each rank says whether it has NCCL, and which: a flag, then a text, or the name of the communicator.
const HELLO: usize = 512;

/// A group of ranks with a GPU each.
pub(crate) struct Nccl {
    comm: Arc<Comm>,
    /// The driver's context of the device, which tells streams of other devices apart.
    context: Arc<AtomicPtr<c_void>>,
    channels: Arc<Channels>,
}

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
        let submitted = submitted.map_err(|error| RankError::Argument(format!("no group on {device}: {error}")));
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
    /// The stream is of another device than the group was made for.
    pub(crate) fn launch(
        &self,
        raw: &RawCall<'_>,
        (verb, dtype, count, mean): (Verb, DType, usize, bool),
        pieces: Vec<Piece>,
    ) -> Result<Launch, RankError> {
        if raw.context != self.context.load(Ordering::Relaxed) {
            let what = format!("the group is for {}, and not for {}", self.comm.device, raw.device);
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

    fn failure(&self, of: &[usize]) -> Option<RankError> {
        self.comm.check().err().or_else(|| self.comm.host.failure(of))
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
