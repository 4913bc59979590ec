//! The MPI library, loaded at run time: its functions, and the constants of its two encodings of handles.
//!
//! * The standard ABI of MPI 5.0 (`libmpi_abi.so.1`; MPICH from 5.0, Open MPI from 6.0): handles are small numbers, listed in the MPI standard, version 5.0, annex A.
//! * Open MPI 4 and 5 (`libmpi.so.40`): handles are addresses of exported objects `ompi_mpi_*`.
//!
//! Both take handles as pointers, and agree in all other arguments that are used here. MPI may be initialised once in a process, so there is one
//! [`Library`], which the first rank loads.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use libloading::os::unix::{Library as Loaded, RTLD_GLOBAL, RTLD_NOW};
use streamvm::DType;
use streamvm::ep::error_chain;

use crate::transport::Fold;
use crate::transport::RankError;

pub(super) type Handle = *mut c_void;

/// How handles are encoded.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Encoding {
    Standard,
    OpenMpi,
}

macro_rules! functions {
    ($($field:ident = $name:literal: fn($($argument:ty),*);)*) => {
        /// The functions that are called. Each returns an error code, 0 for success.
        #[allow(clippy::struct_field_names, reason = "the names are those of MPI")]
        pub(super) struct Functions {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Functions {
            /// # Safety
            /// The library is an MPI library, whose functions have these types.
            unsafe fn load(library: &Loaded) -> Result<Functions, libloading::Error> {
                // SAFETY: the caller's promise.
                Ok(unsafe { Functions { $($field: *library.get(concat!($name, "\0").as_bytes())?,)* } })
            }
        }
    };
}

functions! {
    initialized = "MPI_Initialized": fn(*mut c_int);
    finalized = "MPI_Finalized": fn(*mut c_int);
    init_thread = "MPI_Init_thread": fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int);
    query_thread = "MPI_Query_thread": fn(*mut c_int);
    finalize = "MPI_Finalize": fn();
    abort = "MPI_Abort": fn(Handle, c_int);
    comm_rank = "MPI_Comm_rank": fn(Handle, *mut c_int);
    comm_size = "MPI_Comm_size": fn(Handle, *mut c_int);
    comm_dup = "MPI_Comm_dup": fn(Handle, *mut Handle);
    comm_group = "MPI_Comm_group": fn(Handle, *mut Handle);
    comm_create_group = "MPI_Comm_create_group": fn(Handle, Handle, c_int, *mut Handle);
    comm_set_errhandler = "MPI_Comm_set_errhandler": fn(Handle, Handle);
    group_incl = "MPI_Group_incl": fn(Handle, c_int, *const c_int, *mut Handle);
    group_free = "MPI_Group_free": fn(*mut Handle);
    iallreduce = "MPI_Iallreduce": fn(*const c_void, *mut c_void, c_int, Handle, Handle, Handle, *mut Handle);
    ireduce = "MPI_Ireduce": fn(*const c_void, *mut c_void, c_int, Handle, Handle, c_int, Handle, *mut Handle);
    ibcast = "MPI_Ibcast": fn(*mut c_void, c_int, Handle, c_int, Handle, *mut Handle);
    iallgather = "MPI_Iallgather": fn(*const c_void, c_int, Handle, *mut c_void, c_int, Handle, Handle, *mut Handle);
    ireduce_scatter_block = "MPI_Ireduce_scatter_block": fn(*const c_void, *mut c_void, c_int, Handle, Handle, Handle, *mut Handle);
    igather = "MPI_Igather": fn(*const c_void, c_int, Handle, *mut c_void, c_int, Handle, c_int, Handle, *mut Handle);
    iscatter = "MPI_Iscatter": fn(*const c_void, c_int, Handle, *mut c_void, c_int, Handle, c_int, Handle, *mut Handle);
    ialltoall = "MPI_Ialltoall": fn(*const c_void, c_int, Handle, *mut c_void, c_int, Handle, Handle, *mut Handle);
    isend = "MPI_Isend": fn(*const c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle);
    irecv = "MPI_Irecv": fn(*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle);
    ibarrier = "MPI_Ibarrier": fn(Handle, *mut Handle);
    test = "MPI_Test": fn(*mut Handle, *mut c_int, *mut c_void);
    recv = "MPI_Recv": fn(*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut c_void);
    get_count = "MPI_Get_count": fn(*const c_void, Handle, *mut c_int);
    iprobe = "MPI_Iprobe": fn(c_int, c_int, Handle, *mut c_int, *mut c_void);
    error_string = "MPI_Error_string": fn(c_int, *mut c_char, *mut c_int);
    group_size = "MPI_Group_size": fn(Handle, *mut c_int);
    group_translate_ranks = "MPI_Group_translate_ranks": fn(Handle, c_int, *const c_int, Handle, *mut c_int);
    library_version = "MPI_Get_library_version": fn(*mut c_char, *mut c_int);
}

/// The functions of fault tolerance that Open MPI has beyond the standard (ULFM), where `mpirun --with-ft ulfm` has switched it on.
pub(super) struct Faults {
    pub(super) revoke: unsafe extern "C" fn(Handle) -> c_int,
    pub(super) shrink: unsafe extern "C" fn(Handle, *mut Handle) -> c_int,
    pub(super) get_failed: unsafe extern "C" fn(Handle, *mut Handle) -> c_int,
}

impl Faults {
    /// # Safety
    /// The library is an MPI library.
    unsafe fn load(library: &Loaded) -> Option<Faults> {
        // What mpirun sets for its option.
        std::env::var("OMPI_MCA_mpi_ft_enable").ok().filter(|value| value != "0")?;
        // SAFETY: the function has this type in each MPI that has it.
        let revoke = *unsafe { library.get(b"MPIX_Comm_revoke\0") }.ok()?;
        // SAFETY: as above.
        let shrink = *unsafe { library.get(b"MPIX_Comm_shrink\0") }.ok()?;
        // SAFETY: as above.
        let get_failed = *unsafe { library.get(b"MPIX_Comm_get_failed\0") }.ok()?;
        Some(Faults { revoke, shrink, get_failed })
    }
}

/// Room for the texts of any MPI library: the standard ABI needs 8,192 bytes for its version, and 512 for an error.
const TEXT: usize = 8192;

/// `MPI_IN_PLACE` of both encodings.
pub(super) const IN_PLACE: *const c_void = std::ptr::without_provenance(1);

/// `MPI_ANY_SOURCE` of both encodings.
const ANY_SOURCE: c_int = -1;

/// How long the end of MPI waits for short messages that have not been sent.
const UNSENT: Duration = Duration::from_secs(5);

/// `MPI_STATUS_IGNORE` of both encodings.
pub(super) const STATUS_IGNORE: *mut c_void = null_mut();

/// The MPI library of this process, initialised.
pub(crate) struct Library {
    functions: Functions,
    pub(super) faults: Option<Faults>,
    encoding: Encoding,
    loaded: Loaded,
    /// Its calls come one at a time: MPI is asked for that level of threads alone (`MPI_THREAD_SERIALIZED`).
    calls: Mutex<()>,
    /// The name and version that the library gives, on one line.
    pub(crate) version: String,
    /// Whether this process initialised it, and so finalises it.
    ours: bool,
    /// A rank of the job is lost.
    lost: AtomicBool,
    /// The program has finished on this rank.
    finished: AtomicBool,
    /// Requests that are not over.
    requests: AtomicUsize,
    /// Short messages that may not have been sent yet.
    sent: Mutex<Vec<(Handle, *mut [u8])>>,
    /// The communicator whose ranks watch each other; null without one.
    watched: AtomicPtr<c_void>,
}

// SAFETY: the functions may be called from any thread, one at a time, which `calls` guarantees. Handles are values.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

unsafe extern "C" {
    /// Of the C library: has a function called when the process ends by `exit` or the end of `main`.
    fn atexit(handler: extern "C" fn()) -> c_int;
}

/// The process ends. If MPI was not ended before, an error or a panic has ended the rank early, after it has shown its message: the others would wait for it,
/// and are ended, too.
extern "C" fn end_others() {
    if let Some(Ok(library)) = LIBRARY.get()
        && library.ours
        && !library.finished.load(Ordering::Relaxed)
    {
        if library.faults.is_some() {
            // Fault tolerant MPI takes a process that exits for one that has finished, and tells the others only of one that a signal ends.
            std::process::abort();
        }
        library.abort();
    }
}

static LIBRARY: OnceLock<Result<Arc<Library>, RankError>> = OnceLock::new();

impl Library {
    /// The library of this process, which the first call loads and initialises. Blocks until all ranks of the job have done so.
    ///
    /// # Errors
    /// None is installed, or it cannot be initialised.
    pub(crate) fn get() -> Result<Arc<Library>, RankError> {
        LIBRARY.get_or_init(|| Library::load().map(Arc::new)).clone()
    }

    fn load() -> Result<Library, RankError> {
        let mut tried = Vec::new();
        for (name, encoding) in candidates() {
            // SAFETY: loading runs the initialisers of an MPI library, which the user has installed or named.
            let opened = unsafe { Loaded::open(Some(&name), RTLD_NOW | RTLD_GLOBAL) };
            // SAFETY: a library of that name has the functions of MPI.
            let loaded = opened.and_then(|loaded| Ok((unsafe { Functions::load(&loaded) }?, loaded)));
            match loaded {
                Ok((functions, loaded)) => return Library::initialise(functions, loaded, encoding),
                Err(error) => tried.push(format!("{name} ({})", error_chain(&error))),
            }
        }
        Err(RankError::NoMpi { tried })
    }

    fn initialise(functions: Functions, loaded: Loaded, encoding: Encoding) -> Result<Library, RankError> {
        let calls = Mutex::default();
        // SAFETY: the library has the functions of MPI.
        let faults = unsafe { Faults::load(&loaded) };
        let mut library = Library {
            functions,
            faults,
            encoding,
            loaded,
            calls,
            version: String::new(),
            ours: false,
            lost: AtomicBool::new(false),
            finished: AtomicBool::new(false),
            requests: AtomicUsize::new(0),
            sent: Mutex::default(),
            watched: AtomicPtr::default(),
        };
        let (serialized, multiple) = match encoding {
            Encoding::Standard => (2048, 4096),
            Encoding::OpenMpi => (2, 3),
        };
        let (mut before, mut level) = (0, 0);
        let calls = &library.functions;
        // SAFETY: the function may be called at any time, with a place for its answer.
        library.check("MPI_Initialized", 0, unsafe { (calls.initialized)(&raw mut before) })?;
        if before == 0 {
            // SAFETY: it was not initialised; null stands for the arguments of the command.
            let code = unsafe { (calls.init_thread)(null_mut(), null_mut(), serialized, &raw mut level) };
            library.check("MPI_Init_thread", 0, code)?;
        } else {
            // SAFETY: it is initialised.
            library.check("MPI_Query_thread", 0, unsafe { (calls.query_thread)(&raw mut level) })?;
        }
        // A program that has initialised it calls it at any time, beside the threads of this crate.
        let (needed, help) = match before {
            0 => (serialized, "use a build of MPI that supports MPI_THREAD_SERIALIZED"),
            _ => (multiple, "initialise MPI with MPI_THREAD_MULTIPLE, or let `Ranks::start` initialise it"),
        };
        if level < needed {
            // It is initialised, and stays loaded.
            std::mem::forget(library);
            return Err(RankError::Environment {
                what: "MPI does not allow the calls of several threads that ranks need".to_owned(),
                help,
            });
        }
        let mut text = vec![0u8; TEXT];
        let mut length = 0;
        // SAFETY: the text has the room that the standard asks for.
        let code = unsafe { (calls.library_version)(text.as_mut_ptr().cast(), &raw mut length) };
        library.check("MPI_Get_library_version", 0, code)?;
        let version = CStr::from_bytes_until_nul(&text).map(CStr::to_string_lossy).unwrap_or_default();
        library.version =
            version.lines().take(1).flat_map(|line| line.split_whitespace()).collect::<Vec<_>>().join(" ");
        library.ours = before == 0;
        if library.ours {
            // SAFETY: the handler may run at any time until the process has ended.
            let refused = unsafe { atexit(end_others) };
            if refused != 0 {
                log::warn!("a rank that ends early will not end the others: the system keeps no more handlers");
            }
        }
        Ok(library)
    }

    /// Has calls over a communicator return their errors.
    ///
    /// # Errors
    /// MPI refuses.
    pub(super) fn return_errors_of(&self, communicator: Handle) -> Result<(), RankError> {
        // SAFETY: a communicator of this library.
        let code = unsafe { (self.lock().comm_set_errhandler)(communicator, self.errors_return()) };
        self.check("MPI_Comm_set_errhandler", 0, code)
    }

    /// The numbers that the `size` ranks of one communicator have in another one.
    ///
    /// # Errors
    /// MPI refuses.
    pub(super) fn ranks_in(&self, of: Handle, communicator: Handle, size: usize) -> Result<Vec<c_int>, RankError> {
        let (mut one, mut other) = (null_mut(), null_mut());
        let own: Vec<c_int> = (0..size as c_int).collect();
        let mut ranks = vec![0; size];
        let mpi = self.lock();
        // SAFETY: a communicator of this library, with a place for the answer.
        let mut code = unsafe { (mpi.comm_group)(of, &raw mut one) };
        if code == 0 {
            // SAFETY: as above.
            code = unsafe { (mpi.comm_group)(communicator, &raw mut other) };
        }
        if code == 0 {
            // SAFETY: both groups are of this library; the lists have that many ranks, and places for them.
            code = unsafe { (mpi.group_translate_ranks)(one, size as c_int, own.as_ptr(), other, ranks.as_mut_ptr()) };
        }
        for group in [one, other].iter_mut().filter(|group| !group.is_null()) {
            // SAFETY: a group that this function was given, which is freed once.
            unsafe { (mpi.group_free)(group) };
        }
        drop(mpi);
        self.check("MPI_Group_translate_ranks", 0, code)?;
        Ok(ranks)
    }

    /// The functions, for one thread at a time.
    pub(super) fn lock(&self) -> Locked<'_> {
        Locked { functions: &self.functions, _one: self.calls.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    fn is_over(&self) -> bool {
        let mut over = 0;
        // SAFETY: the function may be called at any time, with a place for its answer.
        unsafe { (self.functions.finalized)(&raw mut over) != 0 || over != 0 }
    }

    /// # Errors
    /// MPI has ended in this process, and cannot begin again.
    pub(super) fn check_running(&self) -> Result<(), RankError> {
        if self.is_over() {
            let help = "a process can begin MPI once: keep its `Ranks` until the end";
            return Err(RankError::Environment { what: "MPI has ended in this process".to_owned(), help });
        }
        Ok(())
    }

    /// Sends a short message, or nothing once the program has finished on this rank. One that cannot be sent is left out.
    pub(super) fn send(&self, bytes: Box<[u8]>, to: c_int, tag: c_int, communicator: Handle) {
        let (count, mut request) = (bytes.len() as c_int, self.no_request());
        let mpi = self.lock();
        if self.finished.load(Ordering::Relaxed) {
            return;
        }
        let bytes = Box::into_raw(bytes);
        // SAFETY: the bytes stay until the request is over, or for ever.
        let code =
            unsafe { (mpi.isend)(bytes.cast::<c_void>(), count, self.byte(), to, tag, communicator, &raw mut request) };
        drop(mpi);
        match code {
            0 => self.sent.lock().unwrap_or_else(PoisonError::into_inner).push((request, bytes)),
            // SAFETY: the box from above, which nothing uses.
            _ => drop(unsafe { Box::from_raw(bytes) }),
        }
    }

    /// Lets go of the messages that have been sent. Returns whether some have not.
    pub(super) fn forget_sent(&self) -> bool {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        sent.retain_mut(|(request, bytes)| {
            let mut over = 0;
            let mpi = self.lock();
            if self.finished.load(Ordering::Relaxed) {
                return true;
            }
            // SAFETY: a request that is not over, and a place for the answer.
            let code = unsafe { (mpi.test)(request, &raw mut over, STATUS_IGNORE) };
            drop(mpi);
            if code == 0 && over != 0 {
                // SAFETY: the box of `send`, which MPI uses no longer.
                drop(unsafe { Box::from_raw(*bytes) });
            }
            code == 0 && over == 0
        });
        !sent.is_empty()
    }

    /// Receives the short messages of this length that have come from a rank, or from any. `None` once the program has finished on this rank.
    pub(super) fn receive_all<const BYTES: usize>(
        &self,
        from: Option<c_int>,
        tag: c_int,
        communicator: Handle,
        came: &mut Vec<[u8; BYTES]>,
    ) -> Option<()> {
        let from = from.unwrap_or(ANY_SOURCE);
        loop {
            let mpi = self.lock();
            if self.finished.load(Ordering::Relaxed) || self.is_over() {
                return None;
            }
            let mut found = 0;
            // SAFETY: a communicator of this library, and a place for the answer.
            let code = unsafe { (mpi.iprobe)(from, tag, communicator, &raw mut found, STATUS_IGNORE) };
            if code != 0 || found == 0 {
                return Some(());
            }
            let mut bytes = [0; BYTES];
            let data = bytes.as_mut_ptr().cast();
            // SAFETY: such a message has come, which nobody else receives, because the lock is held; it has at most these bytes, or the call fails.
            let code = unsafe { (mpi.recv)(data, BYTES as c_int, self.byte(), from, tag, communicator, STATUS_IGNORE) };
            if code == 0 {
                came.push(bytes);
            }
        }
    }

    /// The number of this rank in a communicator, and that of all.
    ///
    /// # Errors
    /// MPI refuses.
    pub(super) fn rank_and_size(&self, communicator: Handle) -> Result<(usize, usize), RankError> {
        let (mut rank, mut size) = (0, 0);
        let functions = self.lock();
        // SAFETY: a communicator of this library, with a place for the answer.
        let ranked = unsafe { (functions.comm_rank)(communicator, &raw mut rank) };
        // SAFETY: as above.
        let sized = unsafe { (functions.comm_size)(communicator, &raw mut size) };
        drop(functions);
        self.check("MPI_Comm_rank", 0, ranked)?;
        self.check("MPI_Comm_size", 0, sized)?;
        Ok((rank as usize, size as usize))
    }

    /// Counts a request that was made.
    pub(super) fn request_begins(&self) {
        self.requests.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts a request that is over.
    pub(super) fn request_ends(&self) {
        self.requests.fetch_sub(1, Ordering::AcqRel);
    }

    /// Notes that a rank of the job is lost. From then on nothing ends MPI in this process before the process ends: `MPI_Finalize` of Open MPI 5.0 sometimes
    /// waits for the lost rank for ever.
    pub(super) fn note_loss(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }

    /// Ends MPI in this process, if this process has begun it. Blocks until all ranks do.
    ///
    /// # Errors
    /// MPI refuses.
    pub(crate) fn finalise(&self) -> Result<(), RankError> {
        self.await_others();
        let begin = Instant::now();
        while self.forget_sent() && begin.elapsed() < UNSENT {
            std::thread::sleep(Duration::from_millis(1));
        }
        let functions = self.lock();
        if self.requests.load(Ordering::Acquire) > 0 {
            let what = "collectives are under way".to_owned();
            return Err(RankError::Environment { what, help: "call `Vm::wait_all` before `Ranks::finish`" });
        }
        self.finished.store(true, Ordering::Relaxed);
        if !self.ours || self.is_over() || self.lost.load(Ordering::Relaxed) {
            return Ok(());
        }
        // SAFETY: MPI is initialised and not finalised; the caller has no operation under way.
        self.check("MPI_Finalize", 0, unsafe { (functions.finalize)() })
    }

    /// Notes the communicator whose ranks watch each other.
    pub(super) fn watched(&self, communicator: Handle) {
        self.watched.store(communicator, Ordering::Release);
    }

    /// Blocks until all ranks are at their end, or one is lost. In `MPI_Finalize` a rank would answer nobody who asks where it is.
    fn await_others(&self) {
        let communicator = self.watched.load(Ordering::Acquire);
        if communicator.is_null() || self.is_over() || self.requests.load(Ordering::Acquire) > 0 {
            return;
        }
        let (mut request, mut over) = (self.no_request(), 0);
        // SAFETY: a communicator of this library, which nothing else has a collective on, and a place for the request.
        let mut code = unsafe { (self.lock().ibarrier)(communicator, &raw mut request) };
        while code == 0 && over == 0 && !self.lost.load(Ordering::Relaxed) {
            // SAFETY: a request that is not over, and a place for the answer.
            code = unsafe { (self.lock().test)(&raw mut request, &raw mut over, STATUS_IGNORE) };
            if over == 0 {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        if code != 0 && self.faults.is_some() {
            self.note_loss();
        }
    }

    /// Ends all ranks of the job.
    pub(super) fn abort(&self) {
        if !self.is_over() {
            // SAFETY: MPI is running. The call does not return, or the launcher ends this process, too.
            unsafe { (self.functions.abort)(self.world(), 1) };
        }
    }

    /// # Errors
    /// The code is not that of success.
    pub(super) fn check(&self, call: &'static str, rank: usize, code: c_int) -> Result<(), RankError> {
        if code == 0 {
            return Ok(());
        }
        let mut text = vec![0u8; TEXT];
        let mut length = 0;
        // SAFETY: the text has more room than any error text needs.
        unsafe { (self.functions.error_string)(code, text.as_mut_ptr().cast(), &raw mut length) };
        let reason = CStr::from_bytes_until_nul(&text).map(|text| text.to_string_lossy().into_owned());
        Err(RankError::Mpi { call, rank, reason: reason.unwrap_or_default() })
    }

    fn constant(&self, standard: usize, symbol: &'static str) -> Handle {
        match self.encoding {
            Encoding::Standard => std::ptr::without_provenance_mut(standard),
            Encoding::OpenMpi => {
                // SAFETY: the address of the object is taken, and nothing of it is read.
                let found = unsafe { self.loaded.get::<Handle>(symbol.as_bytes()) };
                found.map_or(null_mut(), |symbol| symbol.into_raw())
            }
        }
    }

    /// `MPI_COMM_WORLD`.
    pub(super) fn world(&self) -> Handle {
        self.constant(0x101, "ompi_mpi_comm_world\0")
    }

    /// Has the library do what is to be done, such as to learn which ranks are lost: by a question that has no other effect.
    pub(super) fn progress(&self) {
        let alone = self.constant(0x102, "ompi_mpi_comm_self\0");
        let mut found = 0;
        // SAFETY: the communicator of this rank alone, in which there is a rank 0, and a place for the answer.
        unsafe { (self.lock().iprobe)(0, 0, alone, &raw mut found, STATUS_IGNORE) };
    }

    /// `MPI_ERRORS_RETURN`.
    pub(super) fn errors_return(&self) -> Handle {
        self.constant(0x143, "ompi_mpi_errors_return\0")
    }

    /// `MPI_REQUEST_NULL`.
    pub(super) fn no_request(&self) -> Handle {
        self.constant(0x180, "ompi_request_null\0")
    }

    /// `MPI_BYTE`.
    pub(super) fn byte(&self) -> Handle {
        self.constant(0x247, "ompi_mpi_byte\0")
    }

    /// The datatype of a reduction.
    pub(super) fn datatype(&self, dtype: DType) -> Handle {
        match dtype {
            DType::F32 => self.constant(0x210, "ompi_mpi_float\0"),
            DType::F64 => self.constant(0x214, "ompi_mpi_double\0"),
            DType::I8 => self.constant(0x240, "ompi_mpi_int8_t\0"),
            DType::U8 | DType::Bool => self.constant(0x241, "ompi_mpi_uint8_t\0"),
            DType::I16 => self.constant(0x248, "ompi_mpi_int16_t\0"),
            DType::U16 => self.constant(0x249, "ompi_mpi_uint16_t\0"),
            DType::I32 => self.constant(0x250, "ompi_mpi_int32_t\0"),
            DType::U32 => self.constant(0x251, "ompi_mpi_uint32_t\0"),
            DType::I64 => self.constant(0x258, "ompi_mpi_int64_t\0"),
            DType::U64 => self.constant(0x259, "ompi_mpi_uint64_t\0"),
            DType::F16 | DType::BF16 => unreachable!("reduced as f32: see Staged"),
        }
    }

    /// The operation of a reduction.
    pub(super) fn operation(&self, fold: Fold) -> Handle {
        match fold {
            Fold::Sum => self.constant(0x21, "ompi_mpi_op_sum\0"),
            Fold::Min => self.constant(0x22, "ompi_mpi_op_min\0"),
            Fold::Max => self.constant(0x23, "ompi_mpi_op_max\0"),
            Fold::Prod => self.constant(0x24, "ompi_mpi_op_prod\0"),
        }
    }
}

/// The functions while their lock is held.
pub(super) struct Locked<'l> {
    functions: &'l Functions,
    _one: MutexGuard<'l, ()>,
}

impl std::ops::Deref for Locked<'_> {
    type Target = Functions;

    fn deref(&self) -> &Functions {
        self.functions
    }
}

/// Where the library may be, the likeliest first: as STREAMVM_MPI names it; beside the `mpirun` of the path, where a wheel of PyPI has it; where the loader finds it.
/// The launcher tells which of the two it is.
fn candidates() -> Vec<(String, Encoding)> {
    if let Ok(named) = std::env::var("STREAMVM_MPI") {
        let encoding = if named.contains("mpi_abi") { Encoding::Standard } else { Encoding::OpenMpi };
        return vec![(named, encoding)];
    }
    let standard = [("libmpi_abi.so.1", Encoding::Standard), ("libmpi_abi.so.0", Encoding::Standard)];
    let open = [("libmpi.so.40", Encoding::OpenMpi)];
    let by_open = std::env::var_os("OMPI_COMM_WORLD_RANK").is_some();
    let names: Vec<_> =
        if by_open { open.into_iter().chain(standard).collect() } else { standard.into_iter().chain(open).collect() };
    let beside = std::env::var_os("PATH").into_iter().flat_map(|path| std::env::split_paths(&path).collect::<Vec<_>>());
    let beside =
        beside.filter(|folder| folder.join("mpirun").exists()).filter_map(|folder| Some(folder.parent()?.join("lib")));
    let folders: Vec<_> = beside.take(1).collect();
    let found =
        folders.iter().flat_map(|folder| names.iter().map(move |(name, encoding)| (folder.join(name), *encoding)));
    let found = found
        .filter(|(path, _)| path.exists())
        .filter_map(|(path, encoding)| Some((path.to_str()?.to_owned(), encoding)));
    found.chain(names.iter().map(|(name, encoding)| ((*name).to_owned(), *encoding))).collect()
}
