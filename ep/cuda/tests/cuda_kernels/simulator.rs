//! The kernels' source, compiled for the CPU with g++ when the first test asks, and launched as a driver would.

use std::ffi::{CString, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use streamvm_cuda::abi::{Arguments, Status};
use streamvm_cuda::{Launch, Module};

use crate::guarded::Guarded;

/// Warnings are errors, and what C++ does not define ends in a trap.
const FLAGS: [&str; 11] = [
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-shared",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unknown-pragmas",
    "-ffp-contract=off",
    "-fsanitize=alignment,signed-integer-overflow,integer-divide-by-zero,shift,float-cast-overflow",
    "-fsanitize-undefined-trap-on-error",
];

type Simulate = unsafe extern "C" fn(
    kernel: *mut c_void,
    grid: *const c_uint,
    block: *const c_uint,
    shared_bytes: c_uint,
    arguments: *const Arguments,
    coroutines: c_int,
    seed: u64,
) -> c_int;

/// A library of kernels, loaded for as long as the process lives.
pub(crate) struct Library(usize);

impl Library {
    /// Compiles `text` behind what CUDA C has and C++ has not, and loads the result.
    pub(crate) fn of(name: &str, text: &str) -> Library {
        let path = CString::new(compile(name, text).to_str().unwrap()).unwrap();
        // SAFETY: the path ends in NUL; the library's only code that runs at loading is C++'s own.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{path:?} cannot be loaded");
        Library(handle as usize)
    }

    pub(crate) fn symbol(&self, name: &str) -> *mut c_void {
        let text = CString::new(name).unwrap();
        // SAFETY: the handle is one of `dlopen` that is never closed, and the name ends in NUL.
        let symbol = unsafe { libc::dlsym(self.0 as *mut c_void, text.as_ptr()) };
        assert!(!symbol.is_null(), "the sources have no {name}");
        symbol
    }
}

fn library(module: Module) -> &'static Library {
    static LIBRARIES: [OnceLock<Library>; Module::ALL.len()] = [const { OnceLock::new() }; Module::ALL.len()];
    LIBRARIES[module as usize]
        .get_or_init(|| Library::of(module.name(), &format!("#include \"{}.cu\"\n", module.name())))
}

fn compile(name: &str, text: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (tests, sources) = (here.join("tests/cuda_kernels"), here.join("src/kernels"));
    // A process has its own files until they are whole: several may compile at a time.
    let own = format!("kernels-{name}-{}", std::process::id());
    let own = Path::new(env!("CARGO_TARGET_TMPDIR")).join(own);
    let (source, made) = (own.with_extension("cpp"), own.with_extension("so"));
    let library = own.with_file_name(format!("kernels-{name}.so"));
    std::fs::write(&source, format!("#include \"simulate.hpp\"\n{text}")).unwrap();
    let mut command = Command::new("g++");
    command.args(FLAGS).arg("-I").arg(tests).arg("-I").arg(sources).arg(&source).arg("-o").arg(&made);
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("these tests compile the CUDA kernels with g++ (apt-get install g++): {error}"));
    assert!(output.status.success(), "{command:?}:\n{}", String::from_utf8_lossy(&output.stderr));
    std::fs::remove_file(source).unwrap();
    std::fs::rename(made, &library).unwrap();
    library
}

/// Runs a launch to its end; `seed` says in which order the threads of a block take turns. Says what failed, as the device
/// would.
pub(crate) fn run(launch: &Launch, seed: u64) -> Status {
    let mut status = Status::CLEAR;
    let mut told = *launch;
    if launch.kernel.can_fail() {
        told.arguments.status = (&raw mut status).addr() as u64;
    }
    run_as_it_is(&told, seed);
    status
}

/// Runs a launch that has nobody to tell of what fails.
pub(crate) fn run_untold(launch: &Launch) {
    run_as_it_is(launch, 1);
}

fn run_as_it_is(launch: &Launch, seed: u64) {
    let Launch { kernel, grid, block, shared_bytes, mut arguments } = *launch;
    let guarded = Guarded::move_in(kernel, &mut arguments);
    let library = library(kernel.module());
    // SAFETY: the library has this function, of this type.
    let simulate: Simulate = unsafe { std::mem::transmute(library.symbol("simulate")) };
    let symbol = library.symbol(&kernel.to_string());
    let coroutines = (shared_bytes > 0 || kernel.can_fail()).into();
    // SAFETY: the kernel is one of this library, and the operands that the launch was planned for are alive.
    let code = unsafe {
        simulate(symbol, grid.as_ptr(), block.as_ptr(), shared_bytes, &raw const arguments, coroutines, seed)
    };
    match code {
        0 => guarded.move_out(),
        1 => panic!("{kernel}: not all threads of a block came to a barrier, {launch:?}"),
        _ => panic!("{kernel}: wrote behind its shared memory, {launch:?}"),
    }
}
