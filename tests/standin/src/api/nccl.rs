//! The functions of NCCL that streamvm calls, over the files of a folder (`objects/collective.rs`), so that ranks may be processes. The library that loaders find as
//! the driver is NCCL, too: `STREAMVM_NCCL` names it.
//!
//! Communicators are non-blocking. What is called is queued only when the caller has asked a few times how it goes, so a caller that does not ask finds its results
//! missing. `hang=ncclCommAbort` makes the end of a communicator wait for ever.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::commands::collective::{check_stream, element, queue};
use crate::driver::Driver;
use crate::objects::collective::{Call, Comm, Moves};
use crate::values::code::{Code, Outcome};
use crate::values::findings::Kind;
use crate::values::out::Out;

const INVALID_ARGUMENT: c_int = 4;
const REMOTE_ERROR: c_int = 6;
const IN_PROGRESS: c_int = 7;

/// An `ncclUniqueId`: here the name of a folder.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct UniqueId([u8; 128]);

thread_local! {
    /// The calls of this thread between `ncclGroupStart` and `ncclGroupEnd`.
    static GROUP: RefCell<Group> = const { RefCell::new(Group { depth: 0, calls: Vec::new() }) };
}

struct Group {
    depth: usize,
    /// Each with the communicator and the stream.
    calls: Vec<(usize, usize, Call)>,
}

/// Exports calls of NCCL, each with a body over the driver that returns a status of NCCL. They are counted, and fail on demand, like driver calls.
macro_rules! nccl_calls {
    ($($(#[$doc:meta])* fn $name:ident($driver:ident $(, $argument:ident: $type:ty)* $(,)?) $body:block)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// * The duties of the NCCL function of this name, as far as they concern memory of the caller.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            let mut status = 0;
            let code = crate::driver::entry::enter(stringify!($name), |$driver| {
                let body: Outcome<c_int> = $body;
                status = body?;
                Ok(())
            });
            match Code(code) {
                Code(0) => status,
                Code::INVALID_VALUE | Code::INVALID_HANDLE => INVALID_ARGUMENT,
                _ => 1,
            }
        }
    )*};
}

/// The text that NCCL has for a status.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(status: c_int) -> *const c_char {
    let text = match status {
        0 => c"no error",
        1 => c"unhandled cuda error",
        INVALID_ARGUMENT => c"invalid argument",
        REMOTE_ERROR => c"remote process exited or there was a network error",
        IN_PROGRESS => c"NCCL operation in progress",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

/// The last error, of which there is no more than its status.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_comm: *mut c_void) -> *const c_char {
    c"".as_ptr()
}

nccl_calls! {
    /// The version that it behaves like.
    fn ncclGetVersion(driver, version: Out<c_int>) {
        version.put(driver.config.nccl).map(|()| 0)
    }

    /// A name for a new communicator.
    fn ncclGetUniqueId(_driver, place: Out<UniqueId>) {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("nccl-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let mut id = UniqueId([0; 128]);
        id.0[..name.len()].copy_from_slice(name.as_bytes());
        place.put(id).map(|()| 0)
    }

    /// Begins to make a communicator in the current context. The configuration is not read.
    fn ncclCommInitRankConfig(driver, place: Out<usize>, size: c_int, id: UniqueId, rank: c_int, _config: *mut c_void) {
        let context = driver.current("ncclCommInitRankConfig")?;
        let name = String::from_utf8_lossy(&id.0).trim_end_matches('\0').to_owned();
        let (Ok(rank), Ok(size)) = (usize::try_from(rank), usize::try_from(size)) else { return Err(Code::INVALID_VALUE) };
        if rank >= size || name.is_empty() {
            let text = format!("ncclCommInitRankConfig of {name:?} as rank {rank} of {size}");
            return Err(driver.refuse(Kind::BadArguments, text, Code::INVALID_VALUE));
        }
        let folder: PathBuf = std::env::temp_dir().join(name);
        let comm = Arc::new(Comm::new(context.handle, folder, rank, size));
        comm.tell("joined").map_err(|_| Code::OPERATING_SYSTEM)?;
        let handle = driver.tables().comms.add(comm);
        place.put(handle).map(|()| IN_PROGRESS)
    }

    /// How the last calls of a communicator go. Queues them, when it is asked for the third time.
    fn ncclCommGetAsyncError(driver, handle: usize, place: Out<c_int>) {
        let comm = comm(driver, "ncclCommGetAsyncError", handle)?;
        let status = if comm.told("aborted") > 0 {
            REMOTE_ERROR
        } else if !comm.is_complete() {
            IN_PROGRESS
        } else {
            let mut state = comm.state();
            state.asked += 1;
            let is_called = !state.called.is_empty();
            if is_called && state.asked > 2 {
                state.error = c_int::from(queue(driver, &comm, &mut state).is_err());
            }
            if is_called && state.asked <= 2 { IN_PROGRESS } else { state.error }
        };
        place.put(status).map(|()| 0)
    }

    /// Ends a communicator, and what it has queued.
    fn ncclCommAbort(driver, handle: usize) {
        let comm = comm(driver, "ncclCommAbort", handle)?;
        let _ = driver.tables().comms.remove(handle);
        // The folder may be gone with the job.
        let _ = comm.tell("aborted");
        comm.aborted.store(true, Ordering::Release);
        // Its kernels end before it does.
        std::thread::sleep(std::time::Duration::from_millis(30));
        Ok(0)
    }

    /// Begins a group of calls of this thread.
    fn ncclGroupStart(_driver) {
        GROUP.with_borrow_mut(|group| group.depth += 1);
        Ok(0)
    }

    /// Ends a group of calls.
    fn ncclGroupEnd(driver) {
        GROUP.with_borrow_mut(|group| group.depth -= 1);
        given(driver)
    }

    /// Combines the elements of all ranks, for all.
    fn ncclAllReduce(driver, input: usize, output: usize, count: usize, datatype: c_int, by: c_int, comm: usize, stream: usize) {
        call(driver, (comm, stream), Call { name: "ncclAllReduce", moves: Moves::AllReduce(by), datatype, bytes: count, input, output })
    }

    /// Combines the elements of all ranks, for one.
    fn ncclReduce(driver, input: usize, output: usize, count: usize, datatype: c_int, by: c_int, root: c_int, comm: usize, stream: usize) {
        let moves = Moves::Reduce(by, root as usize);
        call(driver, (comm, stream), Call { name: "ncclReduce", moves, datatype, bytes: count, input, output })
    }

    /// The elements of one rank, for all.
    fn ncclBroadcast(driver, input: usize, output: usize, count: usize, datatype: c_int, root: c_int, comm: usize, stream: usize) {
        let moves = Moves::Broadcast(root as usize);
        call(driver, (comm, stream), Call { name: "ncclBroadcast", moves, datatype, bytes: count, input, output })
    }

    /// The elements of all ranks, joined.
    fn ncclAllGather(driver, input: usize, output: usize, count: usize, datatype: c_int, comm: usize, stream: usize) {
        call(driver, (comm, stream), Call { name: "ncclAllGather", moves: Moves::AllGather, datatype, bytes: count, input, output })
    }

    /// Combines the elements of all ranks, a part for each.
    fn ncclReduceScatter(driver, input: usize, output: usize, count: usize, datatype: c_int, by: c_int, comm: usize, stream: usize) {
        let moves = Moves::ReduceScatter(by);
        call(driver, (comm, stream), Call { name: "ncclReduceScatter", moves, datatype, bytes: count, input, output })
    }

    /// Sends elements to a rank.
    fn ncclSend(driver, input: usize, count: usize, datatype: c_int, to: c_int, comm: usize, stream: usize) {
        let moves = Moves::Send(to as usize);
        call(driver, (comm, stream), Call { name: "ncclSend", moves, datatype, bytes: count, input, output: 0 })
    }

    /// Receives elements of a rank.
    fn ncclRecv(driver, output: usize, count: usize, datatype: c_int, from: c_int, comm: usize, stream: usize) {
        let moves = Moves::Receive(from as usize);
        call(driver, (comm, stream), Call { name: "ncclRecv", moves, datatype, bytes: count, input: 0, output })
    }
}

/// The communicator of a handle.
fn comm(driver: &Driver, call: &str, handle: usize) -> Outcome<Arc<Comm>> {
    let found = driver.tables().comms.get(handle).cloned();
    found.map_err(|why| driver.bad_handle(call, "communicator", handle, why, Code::INVALID_HANDLE))
}

/// Adds a call, whose `bytes` are elements yet, to the group of this thread.
fn call(driver: &Driver, (handle, stream): (usize, usize), call: Call) -> Outcome<c_int> {
    let element = element(&call).ok_or_else(|| {
        let text = format!("{}: elements of type {}", call.name, call.datatype);
        driver.refuse(Kind::BadArguments, text, Code::INVALID_VALUE)
    })?;
    if call.bytes == 0 {
        // As NCCL does: an empty call waits for no rank.
        return Ok(0);
    }
    let call = Call { bytes: call.bytes * element, ..call };
    GROUP.with_borrow_mut(|group| group.calls.push((handle, stream, call)));
    given(driver)
}

/// Gives the calls of this thread to their communicator, unless a group of calls is open.
fn given(driver: &Driver) -> Outcome<c_int> {
    let calls =
        GROUP.with_borrow_mut(|group| if group.depth == 0 { std::mem::take(&mut group.calls) } else { Vec::new() });
    let Some(&(handle, on, first)) = calls.first() else { return Ok(0) };
    let comm = comm(driver, first.name, handle)?;
    check_stream(driver, &comm, first.name, on)?;
    let mut state = comm.state();
    let others = calls.iter().any(|(other, stream, _)| (*other, *stream) != (handle, on));
    if others || !state.called.is_empty() || !comm.is_complete() {
        let what = if others {
            "with another communicator or stream in one group"
        } else {
            "while another call is in progress"
        };
        return Err(driver.refuse(Kind::BadArguments, format!("{} {what}", first.name), Code::INVALID_VALUE));
    }
    state.asked = 0;
    state.called.push((on, calls.into_iter().map(|(_, _, call)| call).collect()));
    Ok(IN_PROGRESS)
}
