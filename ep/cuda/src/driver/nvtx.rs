//! Ranges of NVTX around the commands of streams, for NVIDIA's tools: they show a kernel with the op that launched it.
//!
//! A tool that starts a program names its own library in [`INJECTION`], and the library of NVTX hands all ranges to that. So the library is loaded if that variable or [`NAMED`] is set, at the
//! first command, and otherwise a command tests one word.

use std::ffi::{CString, c_char, c_int};
use std::marker::PhantomData;
use std::sync::OnceLock;

use libloading::Library;

use crate::driver::optional_library;

/// Tools set this variable.
const INJECTION: &str = "NVTX_INJECTION64_PATH";

/// Names the library to load.
const NAMED: &str = "STREAMVM_NVTX";

/// The names of the library, with CUDA 12.9 and later, and before.
const LIBRARIES: [&str; 3] = ["libnvtx3interop.so.1", "libnvtx3interop.so", "libnvToolsExt.so.1"];

/// The functions of the library, which stays loaded.
struct Nvtx {
    push: unsafe extern "C" fn(*const c_char) -> c_int,
    pop: unsafe extern "C" fn() -> c_int,
    _library: Library,
}

/// A range of this thread, which ends when it is dropped. Ranges of a thread nest.
pub(crate) struct Range {
    nvtx: &'static Nvtx,
    of_the_thread: PhantomData<*const ()>,
}

/// Begins a range, if a tool wants to see ranges.
#[inline]
pub(crate) fn range(name: &str) -> Option<Range> {
    static NVTX: OnceLock<Option<Nvtx>> = OnceLock::new();
    NVTX.get_or_init(Nvtx::wanted).as_ref().map(|nvtx| nvtx.begin(name))
}

impl Nvtx {
    #[cold]
    fn begin(&'static self, name: &str) -> Range {
        // Names of ops have no NUL.
        let name = CString::new(name).unwrap_or_default();
        // SAFETY: the function is that of NVTX with this name, and copies the text.
        unsafe { (self.push)(name.as_ptr()) };
        Range { nvtx: self, of_the_thread: PhantomData }
    }

    #[cold]
    fn wanted() -> Option<Nvtx> {
        let named = std::env::var_os(NAMED).map(|named| named.to_string_lossy().into_owned());
        if named.is_none() && std::env::var_os(INJECTION).is_none() {
            return None;
        }
        let names = named.map_or_else(|| LIBRARIES.map(str::to_owned).to_vec(), |named| vec![named]);
        let loaded =
            optional_library::find(&names).map_err(|reason| reason.unwrap_or_else(|| "no such file".to_owned()));
        let found = loaded.and_then(|name| Nvtx::load(&name));
        found.inspect_err(|reason| {
            let names = names.join(", ");
            log::warn!("no ranges of NVTX: {names}: {reason}; CUDA has the library, as does `pip install nvidia-nvtx`: name its libnvtx3interop.so.1 in {NAMED}");
        })
        .ok()
    }

    fn load(name: &str) -> Result<Nvtx, String> {
        // SAFETY: loading may run the initialisers of the library with this name, which is the purpose of the call.
        let library = unsafe { Library::new(name) }.map_err(|error| error.to_string())?;
        // SAFETY: the function of NVTX with this name has this type.
        let push = unsafe { library.get::<unsafe extern "C" fn(*const c_char) -> c_int>(b"nvtxRangePushA") };
        let push = *push.map_err(|error| error.to_string())?;
        // SAFETY: as above.
        let pop = *unsafe { library.get::<unsafe extern "C" fn() -> c_int>(b"nvtxRangePop") }
            .map_err(|error| error.to_string())?;
        Ok(Nvtx { push, pop, _library: library })
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: the function is that of NVTX with this name. This thread has begun the range, because a range stays on its thread.
        unsafe { (self.nvtx.pop)() };
    }
}
