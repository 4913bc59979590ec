//! The kernels of one context. Each is a module of its own, which is loaded when the kernel is first launched.
//!
//! A driver compiles a module of PTX when it is loaded, unless its cache has it: some tens of milliseconds for a kernel, and half a minute for all of
//! them. Loading may also wait for running commands, so it happens once for each kernel, and never during a capture. After that, a launch finds its
//! function in a table by a small index; those of registered ops are in a map.

use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::driver::{Driver, DriverFailure, FunctionHandle, ModuleHandle};
use crate::elementwise::kernel_ptx::{entry_name, kernel_ptx};
use crate::plan::kernel_name::KernelName;

/// The size of the buffer for messages of the driver's compiler, in bytes.
const LOG_BYTES: usize = 4096;

/// The kernel that is loaded when a device is opened: a driver that cannot compile our PTX refuses it there.
const FIRST: KernelName = KernelName::Fill(4);

/// The kernels of one context.
#[derive(Debug)]
pub(crate) struct LoadedKernels {
    /// Indexed by [`KernelName::index`].
    table: Box<[OnceLock<FunctionHandle>]>,
    /// Those of registered ops.
    registered: Mutex<HashMap<KernelName, FunctionHandle>>,
    /// Locked while a kernel is loaded, so that it is loaded once.
    modules: Mutex<Vec<ModuleHandle>>,
}

/// A module, a kernel or scratch memory that the driver refused.
#[derive(Debug)]
pub(crate) struct LoadError {
    pub(crate) failure: DriverFailure,
    /// For a kernel, its name and the messages of the driver's compiler; for scratch memory, the advice to the user.
    pub(crate) text: String,
}

impl LoadedKernels {
    /// The kernels of the current context, of which the first one is loaded now.
    pub(crate) fn new(driver: Driver) -> Result<LoadedKernels, LoadError> {
        let table = (0..KernelName::INDICES).map(|_| OnceLock::new()).collect();
        let kernels = LoadedKernels { table, registered: Mutex::default(), modules: Mutex::default() };
        kernels.load(driver, FIRST)?;
        Ok(kernels)
    }

    /// The kernel of this name, if it is loaded.
    #[inline]
    pub(crate) fn get(&self, name: KernelName) -> Option<FunctionHandle> {
        match name.index() {
            Some(index) => self.table.get(index)?.get().copied(),
            None => self.registered().get(&name).copied(),
        }
    }

    fn registered(&self) -> MutexGuard<'_, HashMap<KernelName, FunctionHandle>> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads the kernel of this name into the context, which must be current. Takes long if the driver must compile it because its cache lacks it.
    #[cold]
    pub(crate) fn load(&self, driver: Driver, name: KernelName) -> Result<FunctionHandle, LoadError> {
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have loaded it meanwhile.
        if let Some(function) = self.get(name) {
            return Ok(function);
        }
        let text = name.to_string();
        let missing = || LoadError { failure: DriverFailure::NO_FUNCTION, text: text.clone() };
        let ptx = kernel_ptx(name).ok_or_else(missing)?;
        let module = load_module(driver, &ptx, &text)?;
        let c_name = entry_name(name);
        // SAFETY: the module has just been loaded.
        match unsafe { driver.function(module, &c_name) } {
            Ok(function) => {
                modules.push(module);
                match name.index() {
                    Some(index) => _ = self.table[index].get_or_init(|| function),
                    None => _ = self.registered().insert(name, function),
                }
                Ok(function)
            }
            Err(failure) => {
                // SAFETY: the module was loaded above, and nothing of it was launched.
                let _ = unsafe { driver.unload_module(module) };
                Err(LoadError { failure, text })
            }
        }
    }

    /// Unloads everything. The context must be current, and no kernel may be running.
    pub(crate) fn unload(&mut self, driver: Driver) {
        for module in self.modules.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // SAFETY: the module was loaded into the current context, and is not used any longer.
            let _ = unsafe { driver.unload_module(module) };
        }
    }
}

/// Loads PTX into the current context.
pub(crate) fn load_module(driver: Driver, ptx: &CStr, name: &str) -> Result<ModuleHandle, LoadError> {
    let mut log = vec![0u8; LOG_BYTES];
    driver.load_module(ptx, &mut log).map_err(|failure| {
        let messages = CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy();
        let messages = messages.split_whitespace().collect::<Vec<_>>().join(" ");
        LoadError { failure, text: format!("module {name}{}{messages}", if messages.is_empty() { "" } else { ": " }) }
    })
}
