//! The state of a device for conditional nodes of graphs: the kernel that sets conditions, the word that stops loops, and memory of streams.
//!
//! The kernel is loaded when a stream captures blocks for the first time. Where the driver has no conditional nodes, or refuses the kernel, the log says so once,
//! and the host decides about blocks, as it does on other devices. Where only memory is missing, a later capture tries again.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::driver::conditional::ConditionalDriver;
use crate::driver::error_codes::OUT_OF_MEMORY;
use crate::driver::{Driver, DriverFailure, Extent, FunctionHandle, ModuleHandle, StreamHandle};
use crate::instance::DeviceState;
use crate::instance::loaded_kernels::load_module;
use crate::plan::condition::{CONDITION_NAME, CONDITION_PTX, ConditionArguments, LoopState};

/// The bytes of page-locked memory of a request: the smallest unit that the driver locks.
const PAGE: usize = 4096;

/// Why a stream cannot capture blocks.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum NoBlocks {
    /// The device or the host lacks memory, which may be there later.
    NoMemory,
    /// The driver lacks a function, or has refused a call.
    Refused,
}

impl NoBlocks {
    /// The reason if a call has failed so.
    pub(crate) fn of(failure: DriverFailure) -> NoBlocks {
        if failure.code() == OUT_OF_MEMORY { NoBlocks::NoMemory } else { NoBlocks::Refused }
    }
}

/// The kernel that sets conditions, and what its launches need.
#[derive(Copy, Clone, Debug)]
pub(crate) struct ConditionKernel {
    pub(crate) driver: ConditionalDriver,
    module: ModuleHandle,
    function: FunctionHandle,
    /// The address of the word that stops loops, which is the same on the host and on devices.
    pub(crate) stop: u64,
}

impl ConditionKernel {
    /// Launches the kernel.
    ///
    /// # Safety
    /// * The stream is alive, and its context is that of the kernel, and current.
    /// * The condition and the state are valid memory of the device, and other accesses to them are ordered by streams. `stop` is that of this kernel.
    /// * The stream captures into the graph that the handle was made for, or into a body in it.
    pub(crate) unsafe fn launch(
        &self,
        driver: Driver,
        stream: StreamHandle,
        mut arguments: ConditionArguments,
    ) -> Result<(), DriverFailure> {
        let one = Extent { grid: [1; 3], block: [1; 3], shared_bytes: 0 };
        let mut parameters = [std::ptr::from_mut(&mut arguments).cast()];
        // SAFETY: the kernel takes one parameter of this type; the caller guarantees the rest.
        unsafe { driver.launch(self.function, &one, stream, &mut parameters) }
    }
}

/// Where the loops of one stream keep their [`LoopState`]. It lives as long as the device's part of the instance.
#[derive(Copy, Clone, Debug)]
pub(crate) struct LoopRecord {
    /// The address in memory of the device, where kernels change it.
    pub(crate) on_device: u64,
    /// In page-locked memory: the state before a launch, and after it.
    on_host: *mut LoopState,
}

// SAFETY: this is only an address of the driver's memory, which is not tied to a thread; one stream uses it, which one thread uses at a time.
unsafe impl Send for LoopRecord {}

impl LoopRecord {
    /// The bytes that are copied before and after the loops.
    pub(crate) const BYTES: usize = size_of::<LoopState>();

    /// The address of the page-locked memory.
    pub(crate) fn host_address(&self) -> u64 {
        self.on_host.addr() as u64
    }

    /// Sets the state that the next launch begins with. No launch that uses the record is in flight.
    pub(crate) fn begin(&self, rounds: u64) {
        let state = LoopState { rounds, ..LoopState::default() };
        // SAFETY: the page lives as long as the instance, and no command accesses it now.
        unsafe { self.on_host.write_volatile(state) }
    }

    /// The state after the last launch, which is over.
    pub(crate) fn read(&self) -> LoopState {
        // SAFETY: as in `begin`.
        unsafe { self.on_host.read_volatile() }
    }
}

/// Whether loops must end.
#[derive(Debug, Default)]
struct Stop {
    requested: bool,
    /// Where kernels read that.
    word: Option<StopWord>,
}

#[derive(Debug)]
struct StopWord(*mut u32);

// SAFETY: this is only an address of the driver's memory, which is not tied to a thread.
unsafe impl Send for StopWord {}

impl StopWord {
    fn set(&self, stops: bool) {
        // SAFETY: the page lives as long as the conditions of the device. The host writes it under their lock; kernels only read it.
        unsafe { self.0.write_volatile(stops.into()) }
    }
}

/// The part of a device for conditional nodes.
#[derive(Debug, Default)]
pub(crate) struct Conditions {
    /// `None` inside if there is no kernel, whatever comes.
    kernel: OnceLock<Option<ConditionKernel>>,
    /// Locked while the kernel is loaded, so that it is loaded once.
    loading: Mutex<()>,
    stop: Mutex<Stop>,
    /// Those of all streams, also of dropped ones, whose commands may still run.
    records: Mutex<Vec<LoopRecord>>,
}

impl Conditions {
    /// The kernel, which the first call loads: that takes long, and waits for the device. The device's context is current, and the thread captures nothing.
    ///
    /// # Errors
    /// [`NoBlocks::Refused`] if the driver has no conditional nodes or has refused the kernel: then it is not asked again. [`NoBlocks::NoMemory`] if memory is
    /// missing for it; the next call tries again.
    pub(crate) fn kernel(&self, device: &DeviceState, driver: Driver) -> Result<ConditionKernel, NoBlocks> {
        if let Some(known) = self.kernel.get() {
            return known.ok_or(NoBlocks::Refused);
        }
        let alone = lock(&self.loading);
        // Another thread may have loaded it meanwhile.
        if let Some(known) = self.kernel.get() {
            return known.ok_or(NoBlocks::Refused);
        }
        let loaded = self.load(device, driver);
        let _ = match &loaded {
            Ok(kernel) => self.kernel.set(Some(*kernel)),
            Err((NoBlocks::Refused, _)) => self.kernel.set(None),
            Err((NoBlocks::NoMemory, _)) => Ok(()),
        };
        drop(alone);
        // Without the lock, because loggers are user code.
        let id = device.id;
        loaded.map_err(|(reason, why)| {
            match reason {
                NoBlocks::NoMemory => log::debug!("{id} has no memory to run blocks alone: {why}"),
                NoBlocks::Refused => log::info!("{id} reads conditions of blocks back: {why}"),
            }
            reason
        })
    }

    /// # Errors
    /// The reason why there is no kernel, and what the driver says.
    fn load(&self, device: &DeviceState, driver: Driver) -> Result<ConditionKernel, (NoBlocks, String)> {
        let conditional = ConditionalDriver::find(driver).map_err(|why| (NoBlocks::Refused, why))?;
        let loaded = load_module(driver, CONDITION_PTX, CONDITION_NAME);
        let module = loaded.map_err(|refused| (NoBlocks::of(refused.failure), device.refused(refused).to_string()))?;
        let name = std::ffi::CString::new(CONDITION_NAME).unwrap_or_default();
        // SAFETY: the module was loaded just now.
        let made = unsafe { driver.function(module, &name) }.and_then(|function| {
            let page = driver.allocate_host(PAGE, false)?;
            let mut stop = lock(&self.stop);
            let word = StopWord(page.cast());
            word.set(stop.requested);
            stop.word = Some(word);
            let stop = page.addr() as u64;
            Ok(ConditionKernel { driver: conditional, module, function, stop })
        });
        made.map_err(|failure| {
            // SAFETY: it was loaded above, and nothing uses it.
            let _ = unsafe { driver.unload_module(module) };
            (NoBlocks::of(failure), device.fail(failure).to_string())
        })
    }

    /// A record for a stream. The device's context is current, and the thread captures nothing.
    pub(crate) fn add_record(&self, driver: Driver) -> Result<LoopRecord, DriverFailure> {
        let page = driver.allocate_host(PAGE, false)?;
        let on_device = driver.allocate(LoopRecord::BYTES).inspect_err(|_| {
            // SAFETY: it was allocated above, and nothing uses it.
            let _ = unsafe { driver.free_host(page) };
        })?;
        let record = LoopRecord { on_device, on_host: page.cast() };
        record.begin(0);
        lock(&self.records).push(record);
        Ok(record)
    }

    /// Ends loops at their next round, from now on.
    pub(crate) fn stop(&self) {
        let mut stop = lock(&self.stop);
        stop.requested = true;
        if let Some(word) = &stop.word {
            word.set(true);
        }
    }

    /// Frees everything. The device's context must be current, and nothing may be running.
    pub(crate) fn destroy(&mut self, driver: Driver) {
        if let Some(kernel) = self.kernel.take().flatten() {
            // SAFETY: it was loaded in this context, and nothing runs any longer.
            let _ = unsafe { driver.unload_module(kernel.module) };
        }
        if let Some(StopWord(page)) = lock(&self.stop).word.take() {
            // SAFETY: it came from `allocate_host`, and nothing runs that reads it.
            let _ = unsafe { driver.free_host(page.cast()) };
        }
        for LoopRecord { on_device, on_host } in lock(&self.records).drain(..) {
            // SAFETY: it came from `allocate`, and nothing runs that uses it.
            let _ = unsafe { driver.free(on_device) };
            // SAFETY: as above, from `allocate_host`.
            let _ = unsafe { driver.free_host(on_host.cast()) };
        }
    }
}

/// No code here panics while the state is inconsistent, so a poisoned lock guards valid state.
fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
