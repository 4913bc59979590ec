//! The fused kernels of one device: made at most once for each source, and found again by it.
//!
//! A kernel is compiled by the thread that compiles the program, and stays loaded as long as the instance: the driver must not unload a kernel that is
//! running or that a graph has. A device makes at most [`MOST_KERNELS`]; the steps of further groups run one by one. The launching thread finds a kernel by
//! the address of its [`FusedKernel`].
//!
//! If NVRTC is missing, or it or the driver refuses a kernel, the device makes no more of them, and the log has one line. The likely reasons hold for all
//! kernels alike: no library, or a driver older than the library. Too little memory is no such reason: then the steps of this group alone run one by one.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use streamvm_ep::backend::FusedView;
use streamvm_ep::{FusedGroup, FusedKernel};

use crate::compile::Compiler;
use crate::driver::{Driver, FunctionHandle, ModuleHandle};
use crate::error_codes::OUT_OF_MEMORY;
use crate::fused::source::{FUSED_NAME, fused_headers, fused_source};
use crate::instance::DeviceState;
use crate::loaded_kernels::{LoadError, load_module};
use crate::source::{CompileError, Ptx, text_of};

/// The most fused kernels of a device. Sources have no shapes, so programs need about as many as they have different groups of steps; a kernel takes some
/// tens of KiB.
const MOST_KERNELS: usize = 1_024;

/// How the source is compiled, besides its architecture. `--fmad=false`: a multiplication and an addition stay two rounded steps, as in steps that run one
/// by one; the shipped elementwise kernels are compiled in the same way. 186 is the compiler's warning about `y < 0` for an unsigned `y`.
const OPTIONS: [&str; 3] = ["--std=c++17", "--fmad=false", "--diag-suppress=186"];

/// The fused kernels of one device.
#[derive(Debug, Default)]
pub(crate) struct FusedKernels {
    kernels: Mutex<Kernels>,
    /// Whether no more kernels are made.
    given_up: AtomicBool,
    /// Whether the log has said that there are as many kernels as there may be.
    told_full: AtomicBool,
    /// Lines for the log. Other threads may wait for the program while its kernels are made, so no logger, which is user code, is called then.
    to_log: Mutex<Vec<(log::Level, String)>>,
}

#[derive(Debug, Default)]
struct Kernels {
    by_source: HashMap<String, FusedKernel>,
    /// By the address of its name, which the map above keeps alive.
    loaded: HashMap<usize, Loaded>,
}

/// A kernel that can be launched.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    module: ModuleHandle,
    pub(crate) function: FunctionHandle,
    /// The views that it takes.
    pub(crate) views: Arc<[FusedView]>,
}

/// Why a kernel was not made.
#[derive(Debug)]
enum Refusal {
    Compiler(CompileError),
    Driver(LoadError),
}

fn address(kernel: &FusedKernel) -> usize {
    Arc::as_ptr(&kernel.0).addr()
}

impl FusedKernels {
    /// The kernel of a group, made now if there is none with its source. The device's context is current. `None`: the steps run one by one.
    pub(crate) fn make(&self, device: &DeviceState, driver: Driver, group: &FusedGroup) -> Option<FusedKernel> {
        // A number that does not fit is told by the fill that runs.
        let source = fused_source(group).ok()?;
        if let Some(known) = self.lock().by_source.get(&source) {
            return Some(known.clone());
        }
        if self.given_up.load(Ordering::Relaxed) || self.is_full(device) {
            return None;
        }
        match compile(driver, device.capability, &source) {
            Ok((module, function)) => {
                let loaded = Loaded { module, function, views: group.views.as_slice().into() };
                Some(self.add(source, loaded, driver))
            }
            Err(Refusal::Driver(refused)) if refused.failure.code() == OUT_OF_MEMORY => {
                let why = device.refused(refused);
                let text = format!(
                    "{} runs a group of elementwise steps one by one, without a fused kernel: {why}",
                    device.id
                );
                self.log_later(log::Level::Warn, text);
                None
            }
            Err(refusal) => {
                self.give_up(device, refusal);
                None
            }
        }
    }

    /// The kernel of this name; `None` if it was made by another device.
    pub(crate) fn get(&self, kernel: &FusedKernel) -> Option<Loaded> {
        self.lock().loaded.get(&address(kernel)).cloned()
    }

    /// Unloads everything. The context is current, and no kernel is running.
    pub(crate) fn unload(&self, driver: Driver) {
        let Kernels { loaded, by_source } = std::mem::take(&mut *self.lock());
        drop(by_source);
        loaded.into_values().for_each(|kernel| unload(driver, kernel));
    }

    /// Adds a kernel, unless another thread has made the same one meanwhile.
    fn add(&self, source: String, loaded: Loaded, driver: Driver) -> FusedKernel {
        let mut kernels = self.lock();
        if let Some(known) = kernels.by_source.get(&source).cloned() {
            drop(kernels);
            unload(driver, loaded);
            return known;
        }
        let kernel = FusedKernel(Arc::new(()));
        kernels.loaded.insert(address(&kernel), loaded);
        kernels.by_source.insert(source, kernel.clone());
        kernel
    }

    /// Whether the device has as many kernels as it may. The first time the log says so.
    fn is_full(&self, device: &DeviceState) -> bool {
        let is_full = self.lock().by_source.len() >= MOST_KERNELS;
        if is_full && !self.told_full.swap(true, Ordering::Relaxed) {
            let text = format!(
                "{} has {MOST_KERNELS} fused kernels, the most that it makes: elementwise steps of further programs run one by one",
                device.id
            );
            self.log_later(log::Level::Warn, text);
        }
        is_full
    }

    /// Makes no more kernels.
    #[cold]
    fn give_up(&self, device: &DeviceState, refusal: Refusal) {
        if self.given_up.swap(true, Ordering::Relaxed) {
            return;
        }
        let (level, why) = match refusal {
            Refusal::Compiler(why @ CompileError::NoCompiler { .. }) => (log::Level::Info, why.to_string()),
            Refusal::Compiler(why) => (log::Level::Warn, why.to_string()),
            Refusal::Driver(refused) => (log::Level::Warn, device.refused(refused).to_string()),
        };
        let text = format!("{} runs elementwise steps of programs one by one, without fused kernels: {why}", device.id);
        self.log_later(level, text);
    }

    fn log_later(&self, level: log::Level, text: String) {
        self.to_log.lock().unwrap_or_else(PoisonError::into_inner).push((level, text));
    }

    /// Logs what there is to log. The caller holds no lock.
    pub(crate) fn log(&self) {
        let lines = std::mem::take(&mut *self.to_log.lock().unwrap_or_else(PoisonError::into_inner));
        lines.into_iter().for_each(|(level, text)| log::log!(level, "{text}"));
    }

    fn lock(&self) -> MutexGuard<'_, Kernels> {
        // Every change keeps both maps consistent before anything can panic.
        self.kernels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Compiles the source for devices of this capability.
///
/// # Errors
/// NVRTC is missing or refuses the source.
fn ptx_of(capability: (i32, i32), source: &str) -> Result<Ptx, CompileError> {
    let compiler = Compiler::find()?;
    let architecture = format!("--gpu-architecture=compute_{}", compiler.architecture(capability)?);
    let options = [architecture.as_str()].into_iter().chain(OPTIONS);
    let options = options.map(|option| text_of(option, "an option")).collect::<Result<Vec<_>, _>>()?;
    let headers = fused_headers().map(|(name, text)| (text_of(name, "a name"), text_of(text, "a header")));
    let headers = headers.into_iter().map(|(name, text)| Ok((name?, text?))).collect::<Result<Vec<_>, _>>()?;
    compiler.compile(c"fused.cu", &text_of(source, "the source")?, &headers, &options)
}

/// Compiles the source for devices of this capability and loads the kernel into the current context.
fn compile(driver: Driver, capability: (i32, i32), source: &str) -> Result<(ModuleHandle, FunctionHandle), Refusal> {
    let ptx = ptx_of(capability, source).map_err(Refusal::Compiler)?;
    let module = load_module(driver, ptx.as_c_str(), FUSED_NAME).map_err(Refusal::Driver)?;
    let name = CString::new(FUSED_NAME).unwrap_or_default();
    // SAFETY: the module has just been loaded.
    match unsafe { driver.function(module, &name) } {
        Ok(function) => Ok((module, function)),
        Err(failure) => {
            // SAFETY: as above, and nothing uses it.
            let _ = unsafe { driver.unload_module(module) };
            Err(Refusal::Driver(LoadError { failure, text: FUSED_NAME.to_owned() }))
        }
    }
}

/// Unloads a kernel that nobody may launch any longer and that is not running. The context is current.
fn unload(driver: Driver, kernel: Loaded) {
    // SAFETY: the module was loaded into the current context; it is not used any longer, by the caller's duty.
    let _ = unsafe { driver.unload_module(kernel.module) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NVRTC compiles the source with the headers in memory, for the architecture of the device or an older one. Without NVRTC that is the error; with
    /// `STREAMVM_NEEDS_NVRTC` it must be there.
    #[test]
    fn a_source_is_compiled_for_the_capability_of_a_device() {
        let group = crate::fused::source::tests::group();
        let source = fused_source(&group).expect("a source");
        for (capability, targets) in
            [((7, 0), ["sm_70", "sm_70"]), ((8, 9), ["sm_89", "sm_87"]), ((10, 0), ["sm_100", "sm_90"])]
        {
            match ptx_of(capability, &source) {
                Ok(ptx) => {
                    let text = ptx.as_c_str().to_string_lossy().into_owned();
                    assert!(
                        targets.iter().any(|target| text.contains(&format!(".target {target}"))),
                        "{capability:?}: {text}"
                    );
                    assert!(text.contains(FUSED_NAME), "{text}");
                }
                Err(CompileError::NoCompiler { .. }) if std::env::var_os("STREAMVM_NEEDS_NVRTC").is_none() => return,
                Err(error) => panic!("{capability:?}: {error}"),
            }
        }
    }
}
