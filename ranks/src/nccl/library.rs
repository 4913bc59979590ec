//! The NCCL library, loaded at run time: its functions, and the constants of NCCL 2.18, which later versions understand.
//!
//! cudarc has bindings, too. They make a program that is built where CUDA is installed link NCCL, which CUDA does not contain, and panic where a function is
//! missing.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use libloading::Library as Loaded;
use streamvm::DType;
use streamvm::ep::error_chain;

use crate::transport::{Fold, RankError};

/// A communicator: an `ncclComm_t`.
pub(super) type Handle = *mut c_void;

/// A `cudaStream_t`, which is a `CUstream`.
pub(super) type Stream = *mut c_void;

/// An `ncclResult_t`.
pub(super) type Status = c_int;

pub(super) const SUCCESS: Status = 0;
pub(super) const IN_PROGRESS: Status = 7;

/// Elements without a meaning: `ncclUint8`.
pub(super) const BYTES: c_int = 1;

/// The name of a communicator that is being made: an `ncclUniqueId`.
#[repr(C)]
#[derive(Copy, Clone)]
pub(super) struct UniqueId(pub(super) [u8; 128]);

/// An `ncclConfig_t` of NCCL 2.18. NCCL reads as much of it as `size` says, and takes its defaults for what later versions have.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

impl Config {
    /// Calls return at once, and what becomes of them is asked for (`comm_get_async_error`).
    pub(super) fn nonblocking() -> Config {
        const UNSET: c_int = c_int::MIN;
        Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: OLDEST as c_uint,
            blocking: 0,
            cga_cluster_size: UNSET,
            min_ctas: UNSET,
            max_ctas: UNSET,
            net_name: std::ptr::null(),
            split_share: UNSET,
        }
    }
}

/// The oldest version that has all that is used, as NCCL writes versions: 2.18.0.
const OLDEST: c_int = 21_800;

macro_rules! functions {
    ($($field:ident = $name:literal: fn($($argument:ty),*);)*) => {
        /// The functions that are called. Each returns an `ncclResult_t`.
        #[allow(clippy::struct_field_names, reason = "the names are those of NCCL")]
        pub(super) struct Functions {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> Status,)*
        }

        impl Functions {
            /// # Safety
            /// The library is NCCL, whose functions have these types.
            unsafe fn load(library: &Loaded) -> Result<Functions, libloading::Error> {
                // SAFETY: the caller's promise.
                Ok(unsafe { Functions { $($field: *library.get(concat!($name, "\0").as_bytes())?,)* } })
            }
        }
    };
}

functions! {
    get_version = "ncclGetVersion": fn(*mut c_int);
    get_unique_id = "ncclGetUniqueId": fn(*mut UniqueId);
    comm_init_rank_config = "ncclCommInitRankConfig": fn(*mut Handle, c_int, UniqueId, c_int, *mut Config);
    comm_get_async_error = "ncclCommGetAsyncError": fn(Handle, *mut Status);
    comm_abort = "ncclCommAbort": fn(Handle);
    group_start = "ncclGroupStart": fn();
    group_end = "ncclGroupEnd": fn();
    all_reduce = "ncclAllReduce": fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Stream);
    reduce = "ncclReduce": fn(*const c_void, *mut c_void, usize, c_int, c_int, c_int, Handle, Stream);
    broadcast = "ncclBroadcast": fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Stream);
    all_gather = "ncclAllGather": fn(*const c_void, *mut c_void, usize, c_int, Handle, Stream);
    reduce_scatter = "ncclReduceScatter": fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Stream);
    send = "ncclSend": fn(*const c_void, usize, c_int, c_int, Handle, Stream);
    recv = "ncclRecv": fn(*mut c_void, usize, c_int, c_int, Handle, Stream);
}

/// NCCL, loaded once in a process and never unloaded.
pub(super) struct Library {
    pub(super) functions: Functions,
    error_string: unsafe extern "C" fn(Status) -> *const c_char,
    last_error: unsafe extern "C" fn(Handle) -> *const c_char,
    /// Its version, such as `2.27.3`.
    pub(super) version: String,
    _loaded: Loaded,
}

impl Library {
    /// Loads the library that STREAMVM_NCCL names, or the one that the loader finds.
    ///
    /// # Errors
    /// There is none, or it lacks a function or is too old.
    pub(super) fn get() -> Result<&'static Library, RankError> {
        static LIBRARY: OnceLock<Result<Library, RankError>> = OnceLock::new();
        LIBRARY.get_or_init(Library::load).as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Library, RankError> {
        let names = match std::env::var("STREAMVM_NCCL") {
            Ok(named) => vec![named],
            Err(_) => vec!["libnccl.so.2".to_owned(), "libnccl.so".to_owned()],
        };
        let mut tried = Vec::new();
        for name in names {
            // SAFETY: loading may run the initialisers of the library with this name, which is the purpose of the call.
            let loaded = unsafe { Loaded::new(&name) };
            // SAFETY: the library is the one that is called NCCL.
            match loaded.and_then(|loaded| unsafe { Library::of(loaded) }) {
                Ok(library) => return library.checked(),
                Err(error) => tried.push(error_chain(&error)),
            }
        }
        Err(RankError::NoNccl { tried })
    }

    /// # Safety
    /// The library is NCCL.
    unsafe fn of(loaded: Loaded) -> Result<Library, libloading::Error> {
        // SAFETY: the caller's promise.
        let functions = unsafe { Functions::load(&loaded) }?;
        // SAFETY: the function has this type in NCCL.
        let error_string = *unsafe { loaded.get(b"ncclGetErrorString\0") }?;
        // SAFETY: as above.
        let last_error = *unsafe { loaded.get(b"ncclGetLastError\0") }?;
        Ok(Library { functions, error_string, last_error, version: String::new(), _loaded: loaded })
    }

    fn checked(mut self) -> Result<Library, RankError> {
        let mut version = 0;
        // SAFETY: the place is a local variable.
        self.check("ncclGetVersion", unsafe { (self.functions.get_version)(&raw mut version) })?;
        self.version = format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100);
        if version < OLDEST {
            return Err(RankError::NoNccl { tried: vec![format!("NCCL {} is older than 2.18", self.version)] });
        }
        Ok(self)
    }

    /// # Errors
    /// The status is an error; a call that goes on is none.
    pub(super) fn check(&self, call: &'static str, status: Status) -> Result<(), RankError> {
        match status {
            SUCCESS | IN_PROGRESS => Ok(()),
            status => Err(self.error(call, status)),
        }
    }

    /// The error of a call, with what NCCL says of it.
    pub(super) fn error(&self, call: &'static str, status: Status) -> RankError {
        // SAFETY: NCCL gives the text of any status.
        let text = unsafe { (self.error_string)(status) };
        // SAFETY: it ignores the communicator, and gives the last text of this thread or process.
        let more = unsafe { (self.last_error)(std::ptr::null_mut()) };
        let [text, more] = [text, more].map(|text| {
            // SAFETY: both are null or C strings, which stay as they are until the next call of this thread.
            let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) });
            text.map(|text| text.to_string_lossy().trim().to_owned()).filter(|text| !text.is_empty())
        });
        let reason = [text, more].into_iter().flatten().collect::<Vec<_>>().join(": ");
        RankError::Nccl { call, reason }
    }
}

/// The `ncclRedOp_t` of a reduction; a mean is one by itself.
pub(super) fn operation(fold: Fold, mean: bool) -> c_int {
    match fold {
        _ if mean => 4,
        Fold::Sum => 0,
        Fold::Prod => 1,
        Fold::Max => 2,
        Fold::Min => 3,
    }
}

/// The `ncclDataType_t` of elements that NCCL combines; `None` for those that are cast before ([`crate::nccl::combined_as`]).
pub(super) fn datatype(dtype: DType) -> Option<c_int> {
    Some(match dtype {
        DType::I8 => 0,
        DType::U8 | DType::Bool => BYTES,
        DType::I32 => 2,
        DType::U32 => 3,
        DType::I64 => 4,
        DType::U64 => 5,
        DType::F32 => 7,
        DType::F64 => 8,
        _ => return None,
    })
}
