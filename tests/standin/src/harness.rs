//! Loads the stand-in into a test process, and gives access to its findings.

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use libloading::Library;

/// Names of the libraries as cargo builds them.
const FILE: &str = "libstreamvm_standin.so";
const CUBLAS: &str = "libstreamvm_standin_cublas.so";

/// The stand-in, loaded into this process as its CUDA driver and set up for one test.
///
/// Only one test at a time has it. When it is dropped, the test fails if findings were not taken or if objects are still alive. A test that
/// expects findings or leaks must therefore ask for them first.
#[derive(Debug)]
pub struct Standin {
    library: &'static Library,
    leaks_wanted: std::cell::Cell<bool>,
    _alone: MutexGuard<'static, ()>,
}

impl Standin {
    /// Loads the stand-in, unless it is loaded already, and sets it up; blocks while another test has it.
    ///
    /// A program that asks a driver only once per process for the number of its devices, as streamvm does, sees the number of the first
    /// test. So the tests of one binary that use streamvm must use the same number.
    ///
    /// # Panics
    ///
    /// If the library is not beside this test (building the crate makes it), or if the settings are invalid.
    pub fn load(settings: &str) -> Standin {
        static ALONE: Mutex<()> = Mutex::new(());
        // A test that failed while it had the driver does not affect this one, since the driver is set up anew.
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let driver = Standin { library: loaded(), leaks_wanted: false.into(), _alone: alone };
        assert_eq!(driver.with_text("standin_set_up", settings), 0, "settings `{settings}`: stderr says what is wrong");
        driver
    }

    /// A folder with the stand-in under the names of the CUDA driver's library, for `LD_LIBRARY_PATH` of another process. There
    /// `STREAMVM_STANDIN` holds its settings, of which `leaks=1` makes objects that are alive at the exit findings;
    /// `STREAMVM_STANDIN_FINDINGS` names a file for findings.
    ///
    /// # Panics
    ///
    /// If the library is not beside this test, or the folder cannot be made.
    pub fn folder() -> PathBuf {
        // Made once per process, whose threads run several tests at a time.
        static FOLDER: OnceLock<PathBuf> = OnceLock::new();
        FOLDER.get_or_init(Standin::make_folder).clone()
    }

    fn make_folder() -> PathBuf {
        let library = path(FILE);
        let folder = library.with_file_name("standin-driver");
        std::fs::create_dir_all(&folder).expect("the folder of the test's binary can be written");
        for name in ["libcuda.so", "libcuda.so.1"] {
            let link = folder.join(name);
            if !std::fs::read_link(&link).is_ok_and(|target| target == library) {
                // Another process may make it at the same time, so each process makes its own link and renames it over the other.
                let new = folder.join(format!("{name}.{}", std::process::id()));
                std::os::unix::fs::symlink(&library, &new).expect("the folder can be written");
                std::fs::rename(&new, &link).expect("the folder can be written");
            }
        }
        folder
    }

    /// Loads the stand-in for cuBLAS into this process, where cudarc then finds it. Its calls are counted, and fail on demand, like those
    /// of the driver, under their own names. Call it before the first matrix product, because a process looks for cuBLAS only once.
    ///
    /// # Panics
    ///
    /// If the library is not beside this test: building `streamvm-standin-cublas` makes it.
    pub fn load_cublas() {
        static LIBRARY: OnceLock<Library> = OnceLock::new();
        LIBRARY.get_or_init(|| library(CUBLAS));
    }

    /// Removes and returns the findings so far, one a line.
    pub fn findings(&self) -> String {
        self.text_of("standin_findings")
    }

    /// The objects that are alive, one a line: contexts, streams, events, modules, memory. After this call they do not fail the test.
    pub fn leaks(&self) -> String {
        self.leaks_wanted.set(true);
        self.text_of("standin_leaks")
    }

    /// The kernels that were launched in this process, one module a line: the instructions that were reached, all instructions of the
    /// functions that were entered, and the names of the kernels, with spaces between.
    pub fn coverage(&self) -> String {
        self.text_of("standin_coverage")
    }

    /// Adds faults, such as `fail=cuMemAlloc_v2:1:2`, which count from now on.
    ///
    /// # Panics
    ///
    /// If the text is not a list of faults.
    pub fn fault(&self, text: &str) {
        assert_eq!(self.with_text("standin_fault", text), 0, "`{text}` is no fault");
    }

    /// Keeps streams from beginning another command until the result is dropped. A test that fails meanwhile drops it, so that it does not
    /// wait for streams for ever.
    #[must_use = "dropped, it holds nothing"]
    pub fn hold(&self) -> Held<'_> {
        shut(true);
        Held { _driver: self }
    }

    /// Number of calls of a driver function since [`load`](Standin::load). The name `cuStreamCreateWithPriority, greatest` gives the number
    /// of streams of the greatest priority that were created.
    pub fn calls(&self, name: &str) -> u64 {
        Standin::count(name)
    }

    /// As [`calls`](Standin::calls), for a thread that does not have the `Standin`.
    pub fn count(name: &str) -> u64 {
        let name = CString::new(name).expect("no function has a NUL in its name");
        // SAFETY: the library exports the function with this type.
        let calls = unsafe { loaded().get::<unsafe extern "C" fn(*const c_char) -> u64>(b"standin_calls") };
        let calls = calls.expect("the library is the stand-in");
        // SAFETY: the name is a C string.
        unsafe { calls(name.as_ptr()) }
    }

    /// Makes a context (a `CUcontext`) the current one of the calling thread, as other code beside streamvm may do.
    pub fn make_current(context: *mut c_void) {
        // SAFETY: the library exports the function with this type.
        let set = unsafe { loaded().get::<unsafe extern "C" fn(*mut c_void) -> c_int>(b"cuCtxSetCurrent") };
        let set = set.expect("the library is the stand-in");
        // SAFETY: the function checks the handle, so any value may be passed.
        assert_eq!(unsafe { set(context) }, 0, "{context:?} is no context");
    }

    /// The current context of the calling thread; null for none.
    pub fn current() -> *mut c_void {
        let mut context = std::ptr::null_mut();
        // SAFETY: the library exports the function with this type.
        let get = unsafe { loaded().get::<unsafe extern "C" fn(*mut *mut c_void) -> c_int>(b"cuCtxGetCurrent") };
        let get = get.expect("the library is the stand-in");
        // SAFETY: the pointer is to a local variable with room for the handle.
        assert_eq!(unsafe { get(&raw mut context) }, 0, "the driver is not ready");
        context
    }

    fn with_text(&self, function: &str, text: &str) -> c_int {
        let text = CString::new(text).expect("no setting has a NUL in it");
        // SAFETY: the library exports both functions that are called here with this type.
        let function = unsafe { self.library.get::<unsafe extern "C" fn(*const c_char) -> c_int>(function.as_bytes()) };
        let function = function.expect("the library is the stand-in");
        // SAFETY: the text is a C string. The `Standin` is exclusive, so no other test uses the driver while it is set up, and the last
        // test has ended.
        unsafe { function(text.as_ptr()) }
    }

    fn text_of(&self, function: &str) -> String {
        // SAFETY: the library exports all functions that are called here with this type.
        let function =
            unsafe { self.library.get::<unsafe extern "C" fn(*mut u8, usize) -> usize>(function.as_bytes()) };
        let function = function.expect("the library is the stand-in");
        let mut text = Vec::new();
        loop {
            // SAFETY: the buffer has room for `text.len()` bytes.
            let bytes = unsafe { function(text.as_mut_ptr(), text.len()) };
            if bytes <= text.len() {
                text.truncate(bytes);
                return String::from_utf8_lossy(&text).into_owned();
            }
            text.resize(bytes, 0);
        }
    }
}

/// While it lives, streams begin no command.
#[derive(Debug)]
pub struct Held<'d> {
    _driver: &'d Standin,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        shut(false);
    }
}

/// Shuts or opens the gate of the streams.
fn shut(shut: bool) {
    // SAFETY: the library exports the function with this type.
    let hold = unsafe { loaded().get::<extern "C" fn(c_int)>(b"standin_hold") };
    hold.expect("the library is the stand-in")(c_int::from(shut));
}

impl Drop for Standin {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let (wanted, findings) = (self.leaks_wanted.get(), self.findings());
        let leaks = self.leaks();
        assert_eq!(findings, "", "the stand-in driver found something");
        assert!(wanted || leaks.is_empty(), "alive at the end:\n{leaks}");
    }
}

/// The library, loaded once per process and never unloaded.
fn loaded() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| library(FILE))
}

fn library(file: &str) -> Library {
    let path = path(file);
    // SAFETY: the library runs no code when it is loaded.
    unsafe { Library::new(&path) }.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The path of a library that cargo has built: beside the binary of this process, one folder up or down from it, or, for examples in
/// documentation, in a folder of `LD_LIBRARY_PATH`, which cargo sets.
fn path(file: &str) -> PathBuf {
    let binary = std::env::current_exe().expect("a process has a binary");
    let near = binary.ancestors().skip(1).take(3).flat_map(|folder| [folder.join("deps"), folder.to_owned()]);
    let listed = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let found = near.chain(std::env::split_paths(&listed)).map(|folder| folder.join(file)).find(|path| path.is_file());
    found.unwrap_or_else(|| {
        panic!(
            "there is no {file} near {}; run `cargo build -p streamvm-standin -p streamvm-standin-cublas`",
            binary.display()
        )
    })
}
