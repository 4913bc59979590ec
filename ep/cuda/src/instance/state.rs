//! The state that the CUDA devices of one engine share, and each device's own part.
//!
//! An engine has one [`Instance`], which owns every device of the process's driver for this engine. The devices share:
//!
//! * one event pool, so that streams of different devices can wait for each other's events,
//! * the driver's events behind the ids of that pool,
//! * the map from addresses to allocations.
//!
//! The instance ends when its last device and last stream are dropped, and then releases all contexts.
//!
//! A [`DeviceState`] is one device of the instance. Its context is retained, and its kernels are loaded, at its first use, because a
//! machine may have many devices that a program does not use. Both stay until the instance ends.
//!
//! **Losing a device.** If the driver returns a code that makes a context unusable, this is recorded once, here. From then on every
//! command of the device is refused with the same [`Error::DeviceLost`], without calling the driver. Other devices stay usable.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use streamvm_ep::Accounts;
use streamvm_ep::{CudaAbsent, CudaVersion, DeviceId, Error, EventPool, MemoryKind};

use crate::driver::context_stack::{self, Context, CurrentContext};
use crate::driver::error_codes::{PEER_ACCESS_ALREADY_ENABLED, ends_device};
use crate::driver::probe::{self, UsableDriver};
use crate::driver::{Driver, DriverFailure, ModuleHandle, StreamHandle};
use crate::instance::address_map::{AddressMap, Owner};
use crate::instance::conditions::Conditions;
use crate::instance::config::CudaConfig;
use crate::instance::driver_events::DriverEvents;
use crate::instance::fused_kernels::FusedKernels;
use crate::instance::loaded_kernels::{LoadError, LoadedKernels};
use crate::instance::progress::Progress;
use crate::instance::statuses::Statuses;
use crate::instance::timing::{StreamTiming, Timing};

/// The state that the CUDA devices of one engine share.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) driver: Driver,
    pub(crate) config: CudaConfig,
    pub(crate) events: EventPool,
    pub(crate) driver_events: DriverEvents,
    pub(crate) address_map: AddressMap,
    pub(crate) devices: Box<[DeviceState]>,
    /// Held while a device is opened. If two devices are first used at the same time, the second finds the first one open and can connect
    /// to it as a peer.
    opening: Mutex<()>,
}

/// One device of an instance.
#[derive(Debug)]
pub(crate) struct DeviceState {
    driver: Driver,
    pub(crate) id: DeviceId,
    /// The driver's number of the device.
    number: i32,
    pub(crate) name: String,
    /// Major and minor compute capability.
    pub(crate) capability: (i32, i32),
    pub(crate) units: usize,
    pub(crate) accounts: Accounts,
    pub(crate) statuses: Statuses,
    pub(crate) timing: Timing,
    pub(crate) products: Products,
    pub(crate) fused_kernels: FusedKernels,
    pub(crate) conditions: Conditions,
    /// Whether a warning has told that the driver refused a graph.
    pub(crate) warned_of_graphs: AtomicBool,
    opened: OnceLock<Opened>,
    lost: OnceLock<Error>,
    /// It is lost because its commands do not end: nothing waits for it, and what it has stays as it is.
    runs_on: AtomicBool,
    /// For each device of the instance, whether kernels of this one can access its memory.
    peers: Box<[AtomicBool]>,
    streams: Mutex<Vec<Arc<Progress>>>,
    /// Modules loaded for callers.
    modules: Mutex<Vec<ModuleHandle>>,
    /// Memory that launching threads have given back, to be freed by another thread.
    deferred_frees: Mutex<Vec<DeferredFree>>,
}

/// The number of matrix products that were submitted to a device, by implementation.
#[derive(Debug, Default)]
pub(crate) struct Products {
    pub(crate) cublas: AtomicU64,
    pub(crate) own: AtomicU64,
}

/// The state of a device from its first use on.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) context: Context,
    pub(crate) kernels: LoadedKernels,
    /// The stream on which fresh memory is zeroed.
    zeroing: StreamHandle,
    /// The lowest and the highest priority of streams.
    pub(crate) priorities: (i32, i32),
}

/// Memory whose free was deferred, because the driver may wait for the device and a launching thread must not wait.
#[derive(Debug)]
struct DeferredFree {
    address: usize,
    /// The bytes of a region that counts for the memory limit; `None` for memory that does not, such as scratch memory.
    counted: Option<usize>,
    kind: MemoryKind,
}

impl Instance {
    /// The devices of the driver, none of them opened yet.
    pub(crate) fn open(config: &CudaConfig) -> Result<Arc<Instance>, CudaAbsent> {
        let UsableDriver { driver, version, devices } = probe::probe()?;
        let failed = |failure| CudaAbsent::Init(probe::driver_error(driver, failure));
        let device = |index| DeviceState::new(driver, index, devices, version, config).map_err(failed);
        let devices = (0..devices).map(device).collect::<Result<_, _>>()?;
        let (events, driver_events, address_map) = (EventPool::new(), DriverEvents::default(), AddressMap::default());
        Ok(Arc::new(Instance {
            driver,
            config: config.clone(),
            events,
            driver_events,
            address_map,
            devices,
            opening: Mutex::default(),
        }))
    }

    /// The state of the device with this index. The first call opens the device, which takes long.
    pub(crate) fn opened(&self, index: usize) -> Result<&Opened, Error> {
        let device = &self.devices[index];
        device.check()?;
        if let Some(opened) = device.opened.get() {
            return Ok(opened);
        }
        let _one_at_a_time = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = device.opened.get() {
            return Ok(opened);
        }
        let opened = device.open()?;
        self.open_peers(device, &opened);
        Ok(device.opened.get_or_init(|| opened))
    }

    /// The state of the device with this index, if it has been opened.
    pub(crate) fn opened_already(&self, index: usize) -> Option<&Opened> {
        self.devices[index].opened.get()
    }

    /// Lets kernels of this device and of all opened ones access each other's memory, if the machine supports it. Copies do not need
    /// this.
    fn open_peers(&self, device: &DeviceState, opened: &Opened) {
        for other in self.devices.iter().filter(|other| other.id != device.id) {
            let Some(theirs) = other.opened.get() else { continue };
            device.enable_peer(opened, other, theirs);
            other.enable_peer(theirs, device, opened);
        }
    }

    /// Whether kernels of the device with this index may use the address.
    pub(crate) fn reaches(&self, index: usize, address: usize) -> bool {
        match self.address_map.owner(address) {
            Some(Owner::Host) => true,
            Some(Owner::Device(owner)) => owner == index || self.has_peer(index, owner),
            None => false,
        }
    }

    /// Whether kernels of one device can access the memory of the other.
    pub(crate) fn has_peer(&self, index: usize, other: usize) -> bool {
        self.devices[index].has_peer(other)
    }
}

impl DeviceState {
    fn new(
        driver: Driver,
        index: u32,
        devices: u32,
        version: CudaVersion,
        config: &CudaConfig,
    ) -> Result<DeviceState, DriverFailure> {
        let id = DeviceId::cuda(index);
        let number = driver.device(index as i32)?;
        let (major, minor) = driver.capability(number)?;
        let name = format!("{} (sm_{major}{minor}, CUDA {version})", driver.device_name(number)?);
        let units = usize::try_from(driver.multiprocessors(number)?).unwrap_or(1).max(1);
        Ok(DeviceState {
            driver,
            id,
            number,
            name,
            capability: (major, minor),
            units,
            accounts: Accounts::new(id, config.memory_limit),
            statuses: Statuses::default(),
            timing: Timing::default(),
            products: Products::default(),
            fused_kernels: FusedKernels::default(),
            conditions: Conditions::default(),
            warned_of_graphs: AtomicBool::new(false),
            opened: OnceLock::new(),
            lost: OnceLock::new(),
            runs_on: AtomicBool::new(false),
            peers: (0..devices).map(|_| AtomicBool::new(false)).collect(),
            streams: Mutex::default(),
            modules: Mutex::default(),
            deferred_frees: Mutex::default(),
        })
    }

    fn open(&self) -> Result<Opened, Error> {
        let driver = self.driver;
        let refused = |failure| {
            let text = String::from("at the first use of the device; do other programs hold it or its memory?");
            self.refused(LoadError { failure, text })
        };
        let context = Context::new(driver.retain(self.number).map_err(refused)?);
        let made = self.open_in(context);
        if made.is_err() {
            // SAFETY: it was retained above, and nothing made in it is kept.
            let _ = unsafe { driver.release(self.number) };
        }
        made
    }

    fn open_in(&self, context: Context) -> Result<Opened, Error> {
        let driver = self.driver;
        let failed = |failure| self.fail(failure);
        // SAFETY: the context stays retained until after the guard is dropped.
        let _current = unsafe { context.enter(driver) }.map_err(failed)?;
        let kernels = LoadedKernels::new(driver).map_err(|refused| self.refused(refused))?;
        let priorities = driver.priorities().map_err(failed)?;
        let zeroing = driver.create_stream(priorities.0).map_err(failed)?;
        Ok(Opened { context, kernels, zeroing, priorities })
    }

    /// Lets kernels of this device access the memory of `other`, if the machine supports it.
    fn enable_peer(&self, opened: &Opened, other: &DeviceState, theirs: &Opened) {
        let driver = self.driver;
        if !driver.can_access_peer(self.number, other.number).unwrap_or(false) {
            return;
        }
        let Ok(_current) = self.enter(opened) else { return };
        // SAFETY: the other context stays retained as long as the instance.
        let enabled = unsafe { driver.enable_peer(theirs.context.handle) };
        if enabled.map_or_else(|failure| failure.code() == PEER_ACCESS_ALREADY_ENABLED, |()| true) {
            self.peers[other.id.index as usize].store(true, Ordering::Relaxed);
        }
    }

    /// Whether kernels of this device can access the memory of the device with index `other`.
    fn has_peer(&self, other: usize) -> bool {
        self.peers[other].load(Ordering::Relaxed)
    }

    /// Makes the device's context current until the guard is dropped.
    #[inline]
    pub(crate) fn enter(&self, opened: &Opened) -> Result<CurrentContext, Error> {
        // SAFETY: the context stays retained until the instance ends, and no guard outlives the instance.
        unsafe { opened.context.enter(self.driver) }.map_err(|failure| self.fail(failure))
    }

    /// Returns an error if the device is lost.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.lost.get() {
            Some(lost) => Err(lost.clone()),
            None => Ok(()),
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// The error for a failed call: the device is lost, or only this call failed.
    #[cold]
    pub(crate) fn fail(&self, failure: DriverFailure) -> Error {
        self.fail_in(failure, None)
    }

    /// Like [`fail`](DeviceState::fail), for a call that belongs to a known instruction.
    #[cold]
    pub(crate) fn fail_in(&self, failure: DriverFailure, instruction: Option<&str>) -> Error {
        let error = probe::driver_error(self.driver, failure);
        if !ends_device(failure.code()) {
            return Error::Driver { device: self.id, source: Box::new(error) };
        }
        let whose = match instruction {
            Some(instruction) => format!("in {instruction}"),
            None => self.in_flight(),
        };
        self.mark_lost(format!("{error}; {whose}"))
    }

    /// Marks the device as lost for `reason`, unless it was lost before; returns the error.
    #[cold]
    pub(crate) fn mark_lost(&self, reason: String) -> Error {
        self.lost.get_or_init(|| Error::DeviceLost { device: self.id, reason }).clone()
    }

    /// Marks the device as lost, because its commands do not end.
    pub(crate) fn mark_running_on(&self, reason: String) {
        self.runs_on.store(true, Ordering::Release);
        self.mark_lost(reason);
    }

    /// Whether it is lost because its commands do not end.
    pub(crate) fn runs_on(&self) -> bool {
        self.runs_on.load(Ordering::Acquire)
    }

    /// The error for a module, a kernel or scratch memory that the driver refused.
    pub(crate) fn refused(&self, refused: LoadError) -> Error {
        match self.fail(refused.failure) {
            Error::Driver { device, mut source } => {
                source.text = format!("{} ({})", source.text, refused.text);
                Error::Driver { device, source }
            }
            lost => lost,
        }
    }

    /// The instructions in flight, one of which must have failed.
    fn in_flight(&self) -> String {
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let ranges: Vec<String> =
            streams.iter().filter_map(|stream| stream.range()).map(|range| range.to_string()).collect();
        match &ranges[..] {
            [] => String::from("no instruction was under way"),
            ranges => format!(
                "in one of the instructions under way, by stream and number: {}; CudaConfig::sync_each_op finds out which",
                ranges.join(", ")
            ),
        }
    }

    /// Adds a new stream.
    pub(crate) fn add_stream(&self, progress: &Arc<Progress>) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        // A dropped stream without instructions in flight is not needed any longer.
        streams.retain(|known| Arc::strong_count(known) > 1 || known.range().is_some());
        streams.push(Arc::clone(progress));
    }

    /// The times of a new stream; `None` if they cannot be set up. The device's context must be current.
    pub(crate) fn time_stream(&self, opened: &Opened, stream: StreamHandle) -> Option<Arc<StreamTiming>> {
        let stream_timing = self.timing.open(self.driver, stream, opened.zeroing);
        stream_timing.inspect_err(|failure| log::warn!("{} tells no times: {}", self.id, self.fail(*failure))).ok()
    }

    /// Keeps a caller's module loaded until the instance ends, because its kernels may be running until then.
    pub(crate) fn keep_module(&self, module: ModuleHandle) {
        self.modules.lock().unwrap_or_else(PoisonError::into_inner).push(module);
    }

    /// Zeroes device memory and waits until that is done. The context must be current.
    ///
    /// # Safety
    /// * The memory has `bytes` bytes, and nothing else uses them.
    pub(crate) unsafe fn zero(&self, opened: &Opened, address: u64, bytes: usize) -> Result<(), DriverFailure> {
        // SAFETY: the caller guarantees the memory; the stream lives as long as the instance.
        unsafe { self.driver.set_bytes(address, 0, bytes, opened.zeroing) }?;
        // SAFETY: the stream lives as long as the instance.
        unsafe { self.driver.synchronize_stream(opened.zeroing) }
    }

    /// Frees memory. If this thread launches, another thread frees it later, because the driver may wait for the device. `counted` is as in [`DeferredFree`].
    pub(crate) fn free_or_defer(&self, opened: &Opened, address: usize, counted: Option<usize>, kind: MemoryKind) {
        self.deferred_frees().push(DeferredFree { address, counted, kind });
        self.free_deferred_unless_launching(opened);
    }

    /// Frees the memory whose free launching threads have deferred, unless this thread launches itself.
    pub(crate) fn free_deferred_unless_launching(&self, opened: &Opened) {
        if !context_stack::is_bound() {
            self.free_deferred(opened);
        }
    }

    /// Frees the memory whose free launching threads have deferred. Any thread may call this; the driver may wait for the device. Returns
    /// whether there was any.
    pub(crate) fn free_deferred(&self, opened: &Opened) -> bool {
        let deferred_frees = std::mem::take(&mut *self.deferred_frees());
        if deferred_frees.is_empty() {
            return false;
        }
        // A lost device frees nothing; its memory goes with its context.
        let current = if self.is_lost() { None } else { self.enter(opened).ok() };
        for DeferredFree { address, counted, kind } in deferred_frees {
            if current.is_some() {
                // SAFETY: the caller that gave the memory back guaranteed that nothing uses it any longer.
                unsafe { self.free(address, kind) };
            }
            if let Some(bytes) = counted {
                self.accounts.give_back(kind, bytes as u64);
            }
        }
        true
    }

    /// # Safety
    /// * The memory came from this device, with this kind, and nothing uses it any longer.
    /// * The device's context is current.
    unsafe fn free(&self, address: usize, kind: MemoryKind) {
        let freed = match kind {
            // SAFETY: the caller guarantees this.
            MemoryKind::Device => unsafe { self.driver.free(address as u64) },
            MemoryKind::Pinned | MemoryKind::Upload | MemoryKind::Pageable => {
                let address = std::ptr::with_exposed_provenance_mut(address);
                // SAFETY: the caller guarantees this.
                unsafe { self.driver.free_host(address) }
            }
        };
        if let Err(failure) = freed {
            // The call may return an error of an earlier command; `fail` records it if it ends the device.
            let _ = self.fail(failure);
        }
    }

    fn deferred_frees(&self) -> MutexGuard<'_, Vec<DeferredFree>> {
        // No code here panics while the list is inconsistent, so a poisoned lock guards a valid list.
        self.deferred_frees.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Instance {
    /// Every stream has been dropped. Their last commands may still be running, so this waits for them.
    fn drop(&mut self) {
        let Instance { driver, driver_events, devices, .. } = self;
        // Wait for all devices before the first one ends, because one may still be copying from another's memory.
        let ends = |device: &&DeviceState| !device.runs_on();
        for (device, opened) in devices.iter().filter(ends).filter_map(|device| Some((device, device.opened.get()?))) {
            device.free_deferred(opened);
            // SAFETY: the context is released below, after the guard is dropped.
            if let Ok(_current) = unsafe { opened.context.enter(*driver) } {
                // A lost device answers at once.
                let _ = driver.synchronize();
            }
        }
        for (index, device) in devices.iter_mut().enumerate() {
            if device.runs_on() {
                continue;
            }
            let Some(opened) = device.opened.get_mut() else { continue };
            // SAFETY: the context is released below, after the guard is dropped.
            if let Ok(current) = unsafe { opened.context.enter(*driver) } {
                for event in driver_events.drain(index) {
                    // SAFETY: the event was made in this context, and the instance, which alone could use it, ends.
                    let _ = unsafe { driver.destroy_event(event) };
                }
                // SAFETY: the stream was made for this device, which alone uses it.
                let _ = unsafe { driver.destroy_stream(opened.zeroing) };
                opened.kernels.unload(*driver);
                device.fused_kernels.unload(*driver);
                for module in device.modules.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
                    // SAFETY: the module was loaded in this context and nothing runs any longer. Functions of it would keep the instance
                    // alive.
                    let _ = unsafe { driver.unload_module(module) };
                }
                device.statuses.destroy(*driver);
                device.conditions.destroy(*driver);
                device.timing.destroy(*driver);
                drop(current);
            }
            // SAFETY: it was retained once, and everything that was made in it has been destroyed.
            let _ = unsafe { driver.release(device.number) };
        }
    }
}
