//! The kernels of one context: every module is loaded and every function looked up when the device is first used.
//!
//! Loading is eager, because loading a module later would wait for running commands. Looking a function up also loads it, if the driver
//! loads lazily. After that, a launch finds its function in a table by a small index.

use std::ffi::{CStr, CString};

use super::driver::{Driver, DriverFailure, FunctionHandle, ModuleHandle};
use super::kernel_name::{KernelName, Module};

/// The size of the buffer for messages of the driver's compiler, in bytes.
const LOG_BYTES: usize = 4096;

/// The kernels of one context.
#[derive(Debug)]
pub(super) struct LoadedKernels {
    modules: Vec<ModuleHandle>,
    /// Indexed by [`KernelName::index`].
    table: Box<[Option<FunctionHandle>]>,
}

/// A module or kernel that the driver refused.
#[derive(Debug)]
pub(super) struct LoadError {
    pub(super) failure: DriverFailure,
    /// Its name, and the messages of the driver's compiler.
    pub(super) text: String,
}

impl LoadedKernels {
    /// Loads everything into the current context. Takes long if the driver must compile the kernels because its cache lacks them.
    pub(super) fn load(driver: Driver) -> Result<LoadedKernels, LoadError> {
        let mut kernels = LoadedKernels {
            modules: Vec::with_capacity(Module::ALL.len()),
            table: vec![None; KernelName::INDICES].into(),
        };
        for module in Module::ALL {
            let loaded = load_module(driver, module.ptx(), module.name()).and_then(|handle| {
                kernels.modules.push(handle);
                kernels.look_up(driver, module, handle)
            });
            if let Err(refused) = loaded {
                kernels.unload(driver);
                return Err(refused);
            }
        }
        Ok(kernels)
    }

    fn look_up(&mut self, driver: Driver, module: Module, handle: ModuleHandle) -> Result<(), LoadError> {
        for name in KernelName::all().filter(|name| name.module() == module) {
            let text = name.to_string();
            // A name consists of letters, digits and underscores, so it has no NUL.
            let c_name = CString::new(text.as_str()).unwrap_or_default();
            // SAFETY: the module has just been loaded.
            let function = unsafe { driver.function(handle, &c_name) };
            self.table[name.index()] = Some(function.map_err(|failure| LoadError { failure, text })?);
        }
        Ok(())
    }

    /// The kernel of this name; every valid name has one.
    #[inline]
    pub(super) fn get(&self, name: KernelName) -> Option<FunctionHandle> {
        self.table.get(name.index()).copied().flatten()
    }

    /// Unloads everything. The context must be current, and no kernel may be running.
    pub(super) fn unload(&self, driver: Driver) {
        for module in &self.modules {
            // SAFETY: the module was loaded into the current context, and is not used any longer.
            let _ = unsafe { driver.unload_module(*module) };
        }
    }
}

/// Loads PTX into the current context.
pub(super) fn load_module(driver: Driver, ptx: &CStr, name: &str) -> Result<ModuleHandle, LoadError> {
    let mut log = vec![0u8; LOG_BYTES];
    driver.load_module(ptx, &mut log).map_err(|failure| {
        let messages = CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy();
        let messages = messages.split_whitespace().collect::<Vec<_>>().join(" ");
        LoadError { failure, text: format!("module {name}{}{messages}", if messages.is_empty() { "" } else { ": " }) }
    })
}
