//! The fused kernels of one device: made at most once for equal steps, and found again by them.
//!
//! A kernel is written and loaded by the thread that compiles the program, and stays loaded as long as the instance: the driver must not unload a kernel that is
//! running or that a graph has. A device makes at most [`MOST_KERNELS`]; the steps of further groups run one by one. The launching thread finds a kernel by
//! the address of its [`FusedKernel`].
//!
//! If the driver refuses a kernel, the device makes no more of them, and the log has one line: the likely reasons hold for all kernels alike. Too little memory is no
//! such reason, nor is a kernel with code of a caller: then the steps of this group alone run one by one.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use streamvm_ep::backend::{FusedView, FusedWork};
use streamvm_ep::{FusedGroup, FusedKernel, Op};

use crate::driver::error_codes::OUT_OF_MEMORY;
use crate::driver::{Driver, FunctionHandle, ModuleHandle};
use crate::fused::{FUSED_NAME, steps, written};
use crate::instance::DeviceState;
use crate::instance::loaded_kernels::{LoadError, load_module};

/// The most fused kernels of a device. Kernels have no shapes, so programs need about as many as they have different groups of steps; a kernel takes some
/// tens of KiB.
const MOST_KERNELS: usize = 1_024;

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
    by_steps: HashMap<String, FusedKernel>,
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

fn address(kernel: &FusedKernel) -> usize {
    Arc::as_ptr(&kernel.0).addr()
}

/// Whether a step of the group is a registered op.
fn has_code_of_a_caller(group: &FusedGroup) -> bool {
    group.steps.iter().any(|step| matches!(step.work, FusedWork::Call(Op::Registered(_), _)))
}

impl FusedKernels {
    /// The kernel of a group, made now if there is none with its steps. The device's context is current. `None`: the steps run one by one.
    pub(crate) fn make(&self, device: &DeviceState, driver: Driver, group: &FusedGroup) -> Option<FusedKernel> {
        // A number that does not fit is told by the fill that runs.
        let steps = steps(group).ok()?;
        let described = steps.to_string();
        if let Some(known) = self.lock().by_steps.get(&described) {
            return Some(known.clone());
        }
        if self.given_up.load(Ordering::Relaxed) || self.is_full(device) {
            return None;
        }
        let ptx = CString::new(written(&steps).ok()?).ok()?;
        match load(driver, &ptx) {
            Ok((module, function)) => {
                let loaded = Loaded { module, function, views: group.views.as_slice().into() };
                Some(self.add(described, loaded, driver))
            }
            Err(refused) if refused.failure.code() == OUT_OF_MEMORY || has_code_of_a_caller(group) => {
                let why = device.refused(refused);
                let text = format!(
                    "{} runs a group of elementwise steps one by one, without a fused kernel: {why}",
                    device.id
                );
                self.log_later(log::Level::Warn, text);
                None
            }
            Err(refused) => {
                self.give_up(device, refused);
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
        let Kernels { loaded, by_steps } = std::mem::take(&mut *self.lock());
        drop(by_steps);
        loaded.into_values().for_each(|kernel| unload(driver, kernel));
    }

    /// Adds a kernel, unless another thread has made the same one meanwhile.
    fn add(&self, steps: String, loaded: Loaded, driver: Driver) -> FusedKernel {
        let mut kernels = self.lock();
        if let Some(known) = kernels.by_steps.get(&steps).cloned() {
            drop(kernels);
            unload(driver, loaded);
            return known;
        }
        let kernel = FusedKernel(Arc::new(()));
        kernels.loaded.insert(address(&kernel), loaded);
        kernels.by_steps.insert(steps, kernel.clone());
        kernel
    }

    /// Whether the device has as many kernels as it may. The first time the log says so.
    fn is_full(&self, device: &DeviceState) -> bool {
        let is_full = self.lock().by_steps.len() >= MOST_KERNELS;
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
    fn give_up(&self, device: &DeviceState, refused: LoadError) {
        if self.given_up.swap(true, Ordering::Relaxed) {
            return;
        }
        let why = device.refused(refused);
        let text = format!("{} runs elementwise steps of programs one by one, without fused kernels: {why}", device.id);
        self.log_later(log::Level::Warn, text);
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

/// Loads the kernel into the current context.
fn load(driver: Driver, ptx: &CStr) -> Result<(ModuleHandle, FunctionHandle), LoadError> {
    let module = load_module(driver, ptx, FUSED_NAME)?;
    let name = CString::new(FUSED_NAME).unwrap_or_default();
    // SAFETY: the module has just been loaded.
    match unsafe { driver.function(module, &name) } {
        Ok(function) => Ok((module, function)),
        Err(failure) => {
            // SAFETY: as above, and nothing uses it.
            let _ = unsafe { driver.unload_module(module) };
            Err(LoadError { failure, text: FUSED_NAME.to_owned() })
        }
    }
}

/// Unloads a kernel that nobody may launch any longer and that is not running. The context is current.
fn unload(driver: Driver, kernel: Loaded) {
    // SAFETY: the module was loaded into the current context; it is not used any longer, by the caller's duty.
    let _ = unsafe { driver.unload_module(kernel.module) };
}
