//! Ranks over MPI, which is loaded at run time.
//!
//! Layer: uses `transport`; is used by no other folder.
//!
//! Each collective is a nonblocking call of MPI, whose request the thread of the collective streams polls. Each group has a communicator of its own
//! (`MPI_Comm_dup`), so that calls of the program to MPI cannot meet ours.

mod library;

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use streamvm::FnError;
use streamvm::ep::Operation;

use crate::error::RankError;
use crate::transport::{Capabilities, Communicator, Transfer, Verb};
use library::{Handle, IN_PLACE, STATUS_IGNORE};
pub(crate) use library::Library;

/// A group of ranks over MPI.
pub(crate) struct Mpi {
    library: Arc<Library>,
    /// A communicator of this group alone.
    communicator: Handle,
    rank: usize,
    size: usize,
}

// SAFETY: the handle is a value that MPI functions take, and those are called one at a time.
unsafe impl Send for Mpi {}
// SAFETY: as above.
unsafe impl Sync for Mpi {}

impl Mpi {
    /// The group of all ranks of the job. Blocks until all ranks call it.
    ///
    /// # Errors
    /// MPI is missing or refuses.
    pub(crate) fn world() -> Result<Mpi, RankError> {
        let library = Library::get()?;
        library.check_running()?;
        let mut communicator = null_mut();
        // SAFETY: MPI is initialised; the world is a communicator.
        let code = unsafe { (library.lock().comm_dup)(library.world(), &raw mut communicator) };
        library.check("MPI_Comm_dup", 0, code)?;
        Mpi::of(library, communicator)
    }

    /// # Errors
    /// MPI refuses.
    fn of(library: Arc<Library>, communicator: Handle) -> Result<Mpi, RankError> {
        let (mut rank, mut size) = (0, 0);
        {
            let functions = library.lock();
            // SAFETY: a communicator that MPI has just made.
            let code = unsafe { (functions.comm_set_errhandler)(communicator, library.errors_return()) };
            library.check("MPI_Comm_set_errhandler", 0, code)?;
            // SAFETY: as above, with places for the answers.
            let codes = unsafe {
                [
                    (functions.comm_rank)(communicator, &raw mut rank),
                    (functions.comm_size)(communicator, &raw mut size),
                ]
            };
            for code in codes {
                library.check("MPI_Comm_rank", 0, code)?;
            }
        }
        Ok(Mpi { library, communicator, rank: rank as usize, size: size as usize })
    }

    /// # Errors
    /// MPI refuses, or a count is too large for it.
    unsafe fn begin(&self, transfer: &Transfer) -> Result<(&'static str, Handle), RankError> {
        let Transfer { verb, dtype, count, .. } = *transfer;
        let (input, output): (*const c_void, *mut c_void) = (transfer.input.cast(), transfer.output.cast());
        let in_place = std::ptr::eq(input, output) && !input.is_null();
        let number = |count: usize| {
            c_int::try_from(count).map_err(|_| {
                RankError::Argument(format!("MPI takes at most {} elements or bytes at once, not {count}; split the tensor", c_int::MAX))
            })
        };
        // What is not reduced is moved as bytes.
        let bytes = number(transfer.part_bytes())?;
        let elements = number(count)?;
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
        library.check(name, self.rank, code)?;
        Ok((name, request))
    }
}

impl Communicator for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { backend: "mpi", survives_loss: false }
    }

    unsafe fn start(&self, transfer: Transfer) -> Result<Box<dyn Operation>, RankError> {
        // SAFETY: the caller's promise.
        let (call, request) = unsafe { self.begin(&transfer) }?;
        Ok(Box::new(Request { library: self.library.clone(), request, call, rank: self.rank }))
    }

    fn subgroup(&self, members: &[usize], serial: u64) -> Result<Box<dyn Communicator>, RankError> {
        let library = &self.library;
        let ranks: Vec<c_int> = members.iter().map(|&rank| rank as c_int).collect();
        let (mut all, mut some, mut communicator) = (null_mut(), null_mut(), null_mut());
        let mpi = library.lock();
        // Tags are at least 32,767 in every MPI.
        let tag = (serial % 32_767) as c_int;
        // SAFETY: the communicator and the groups are of this library; the list has that many ranks, all in the group.
        let code = unsafe {
            let mut code = (mpi.comm_group)(self.communicator, &raw mut all);
            if code == 0 {
                code = (mpi.group_incl)(all, ranks.len() as c_int, ranks.as_ptr(), &raw mut some);
                if code == 0 {
                    code = (mpi.comm_create_group)(self.communicator, some, tag, &raw mut communicator);
                    (mpi.group_free)(&raw mut some);
                }
                (mpi.group_free)(&raw mut all);
            }
            code
        };
        drop(mpi);
        library.check("MPI_Comm_create_group", self.rank, code)?;
        Ok(Box::new(Mpi::of(library.clone(), communicator)?))
    }
}

/// A request of MPI.
struct Request {
    library: Arc<Library>,
    request: Handle,
    call: &'static str,
    rank: usize,
}

// SAFETY: the handle is a value that MPI functions take, and those are called one at a time.
unsafe impl Send for Request {}
// SAFETY: as above; nothing is reached through a shared reference.
unsafe impl Sync for Request {}

impl Operation for Request {
    fn poll(&mut self) -> Result<bool, FnError> {
        let mut over = 0;
        // SAFETY: a request that MPI has made, or its null after it was over.
        let code = unsafe { (self.library.lock().test)(&raw mut self.request, &raw mut over, STATUS_IGNORE) };
        self.library.check(self.call, self.rank, code)?;
        Ok(over != 0)
    }
}
