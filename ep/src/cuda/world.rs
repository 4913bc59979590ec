//! The state that the CUDA devices of one engine share, and each device's own part.
//!
//! A [`World`] owns every device of the process's driver for one engine: one event pool for all devices, so that streams of different
//! devices can wait for each other's events; the driver's events behind the ids; and the book of allocations. It ends when its last
//! device and last stream are dropped, and then releases all contexts.
//!
//! A [`Core`] is one device in it. Its context is retained, and its kernels are loaded, at its first use, because a machine may have many
//! devices that a program does not use. Both stay until the world ends.
//!
//! **Losing a device.** If the driver returns a code that makes a context unusable, this is recorded once, here. From then on every
//! command of the device is refused with the same [`Error::DeviceLost`], without calling the driver. Other devices stay usable.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::book::{Book, Home};
use super::codes::{PEER_ACCESS_ALREADY_ENABLED, ends_device};
use super::config::CudaConfig;
use super::current::{self, Context, Entered};
use super::driver::{Driver, DriverFailure, ModuleHandle, StreamHandle};
use super::functions::{Functions, Refused};
use super::marks::Marks;
use super::probe::{self, Found};
use super::progress::Progress;
use super::statuses::Statuses;
use super::times::{Timed, Times};
use crate::errors::cuda_absent::{CudaAbsent, CudaVersion};
use crate::errors::error::Error;
use crate::names::device_id::DeviceId;
use crate::names::memory_kind::MemoryKind;
use crate::provider::accounts::Accounts;
use crate::provider::event_pool::EventPool;

/// The state that the CUDA devices of one engine share.
#[derive(Debug)]
pub(super) struct World {
    pub(super) driver: Driver,
    pub(super) config: CudaConfig,
    pub(super) events: EventPool,
    pub(super) marks: Marks,
    pub(super) book: Book,
    pub(super) cores: Box<[Core]>,
    /// Held while a device is opened. If two devices are first used at the same time, the second finds the first one open and can connect
    /// to it as a peer.
    opening: Mutex<()>,
}

/// One device of a world.
#[derive(Debug)]
pub(super) struct Core {
    driver: Driver,
    pub(super) id: DeviceId,
    /// The driver's number of the device.
    number: i32,
    pub(super) name: String,
    pub(super) units: usize,
    pub(super) accounts: Accounts,
    pub(super) statuses: Statuses,
    pub(super) times: Times,
    pub(super) products: Products,
    opened: OnceLock<Opened>,
    lost: OnceLock<Error>,
    /// The devices whose memory its kernels can access, one bit per index.
    peers: AtomicU64,
    streams: Mutex<Vec<Arc<Progress>>>,
    /// Modules loaded for callers.
    modules: Mutex<Vec<ModuleHandle>>,
    /// Memory that a launching thread has given back, to be freed by another thread.
    trash: Mutex<Vec<Trash>>,
}

/// The number of matrix products that were submitted to a device, by implementation.
#[derive(Debug, Default)]
pub(super) struct Products {
    pub(super) cublas: AtomicU64,
    pub(super) own: AtomicU64,
}

/// The state of a device from its first use on.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) context: Context,
    pub(super) functions: Functions,
    /// The stream on which fresh memory is zeroed.
    zeroing: StreamHandle,
    /// The lowest and the highest priority of streams.
    pub(super) priorities: (i32, i32),
}

/// Memory to be freed by the driver.
#[derive(Debug)]
struct Trash {
    address: usize,
    bytes: usize,
    kind: MemoryKind,
}

impl World {
    /// The devices of the driver, none of them opened yet.
    pub(super) fn open(config: &CudaConfig) -> Result<Arc<World>, CudaAbsent> {
        let Found { driver, version, devices } = probe::probe()?;
        let failed = |failure| CudaAbsent::Init(probe::told(driver, failure));
        let core = |index| Core::new(driver, index, version, config).map_err(failed);
        let cores = (0..devices).map(core).collect::<Result<_, _>>()?;
        let (events, marks, book) = (EventPool::new(), Marks::default(), Book::default());
        Ok(Arc::new(World { driver, config: config.clone(), events, marks, book, cores, opening: Mutex::default() }))
    }

    /// The state of the core with this index. The first call opens the device, which takes long.
    pub(super) fn opened(&self, index: usize) -> Result<&Opened, Error> {
        let core = &self.cores[index];
        core.check()?;
        if let Some(opened) = core.opened.get() {
            return Ok(opened);
        }
        let _one_at_a_time = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = core.opened.get() {
            return Ok(opened);
        }
        let opened = core.open()?;
        self.open_peers(core, &opened);
        Ok(core.opened.get_or_init(|| opened))
    }

    /// The state of the core with this index, if it has been opened.
    pub(super) fn opened_already(&self, index: usize) -> Option<&Opened> {
        self.cores[index].opened.get()
    }

    /// Lets kernels of this device and of all opened ones access each other's memory, if the machine supports it. Copies do not need
    /// this.
    fn open_peers(&self, core: &Core, opened: &Opened) {
        for other in self.cores.iter().filter(|other| other.id != core.id) {
            let Some(theirs) = other.opened.get() else { continue };
            core.reach(opened, other, theirs);
            other.reach(theirs, core, opened);
        }
    }

    /// Whether kernels of the device with this index may use the address.
    pub(super) fn reaches(&self, index: usize, address: usize) -> bool {
        match self.book.home(address) {
            Some(Home::Host) => true,
            Some(Home::Device(home)) => home == index || self.has_peer(index, home),
            None => false,
        }
    }

    /// Whether kernels of one device can access the memory of the other.
    pub(super) fn has_peer(&self, index: usize, other: usize) -> bool {
        self.cores[index].has_peer(self.cores[other].id)
    }
}

impl Core {
    fn new(driver: Driver, index: u32, version: CudaVersion, config: &CudaConfig) -> Result<Core, DriverFailure> {
        let id = DeviceId::cuda(index);
        let number = driver.device(index as i32)?;
        let (major, minor) = driver.capability(number)?;
        let name = format!("{} (sm_{major}{minor}, CUDA {version})", driver.device_name(number)?);
        let units = usize::try_from(driver.multiprocessors(number)?).unwrap_or(1).max(1);
        Ok(Core {
            driver,
            id,
            number,
            name,
            units,
            accounts: Accounts::new(id, config.memory_limit),
            statuses: Statuses::default(),
            times: Times::default(),
            products: Products::default(),
            opened: OnceLock::new(),
            lost: OnceLock::new(),
            peers: AtomicU64::new(0),
            streams: Mutex::default(),
            modules: Mutex::default(),
            trash: Mutex::default(),
        })
    }

    fn open(&self) -> Result<Opened, Error> {
        let driver = self.driver;
        let refused = |failure| {
            let text = String::from("at the first use of the device; do other programs hold it or its memory?");
            self.refused(Refused { failure, text })
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
        let functions = Functions::load(driver).map_err(|refused| self.refused(refused))?;
        let priorities = driver.priorities().map_err(failed)?;
        let zeroing = driver.create_stream(priorities.0).map_err(failed)?;
        Ok(Opened { context, functions, zeroing, priorities })
    }

    /// Lets kernels of this device access the memory of `other`, if the machine supports it.
    fn reach(&self, opened: &Opened, other: &Core, theirs: &Opened) {
        let driver = self.driver;
        if !driver.can_access_peer(self.number, other.number).unwrap_or(false) {
            return;
        }
        let Ok(_current) = self.enter(opened) else { return };
        // SAFETY: the other context stays retained as long as the world.
        let enabled = unsafe { driver.enable_peer(theirs.context.handle) };
        if enabled.map_or_else(|failure| failure.code() == PEER_ACCESS_ALREADY_ENABLED, |()| true) {
            self.peers.fetch_or(bit(other.id.index), Ordering::Relaxed);
        }
    }

    /// Whether kernels of this device can access the memory of `other`.
    fn has_peer(&self, other: DeviceId) -> bool {
        self.peers.load(Ordering::Relaxed) & bit(other.index) != 0
    }

    /// Makes the device's context current until the guard is dropped.
    #[inline]
    pub(super) fn enter(&self, opened: &Opened) -> Result<Entered, Error> {
        // SAFETY: the context stays retained until the world ends, and no guard outlives the world.
        unsafe { opened.context.enter(self.driver) }.map_err(|failure| self.fail(failure))
    }

    /// Returns an error if the device is lost.
    #[inline]
    pub(super) fn check(&self) -> Result<(), Error> {
        match self.lost.get() {
            Some(lost) => Err(lost.clone()),
            None => Ok(()),
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// The error for a failed call: the device is lost, or only this call failed.
    #[cold]
    pub(super) fn fail(&self, failure: DriverFailure) -> Error {
        self.fail_in(failure, None)
    }

    /// Like [`fail`](Core::fail), for a call that belongs to a known instruction.
    #[cold]
    pub(super) fn fail_in(&self, failure: DriverFailure, instruction: Option<&str>) -> Error {
        let error = probe::told(self.driver, failure);
        if !ends_device(failure.code()) {
            return Error::Driver { device: self.id, source: Box::new(error) };
        }
        let whose = match instruction {
            Some(instruction) => format!("in {instruction}"),
            None => self.under_way(),
        };
        self.lose(format!("{error}; {whose}"))
    }

    /// Marks the device as lost for `reason`, unless it was lost before; returns the error.
    #[cold]
    pub(super) fn lose(&self, reason: String) -> Error {
        self.lost.get_or_init(|| Error::DeviceLost { device: self.id, reason }).clone()
    }

    /// The error for a module or kernel that the driver refused.
    pub(super) fn refused(&self, refused: Refused) -> Error {
        match self.fail(refused.failure) {
            Error::Driver { device, mut source } => {
                source.text = format!("{} ({})", source.text, refused.text);
                Error::Driver { device, source }
            }
            lost => lost,
        }
    }

    /// The instructions under way, one of which must have failed.
    fn under_way(&self) -> String {
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
    pub(super) fn join(&self, progress: &Arc<Progress>) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        // A dropped stream without instructions under way is not needed any longer.
        streams.retain(|known| Arc::strong_count(known) > 1 || known.range().is_some());
        streams.push(Arc::clone(progress));
    }

    /// The times of a new stream; `None` if they cannot be set up. The device's context must be current.
    pub(super) fn time(&self, opened: &Opened, stream: StreamHandle) -> Option<Arc<Timed>> {
        let timed = self.times.open(self.driver, stream, opened.zeroing);
        timed.inspect_err(|failure| log::warn!("{} tells no times: {}", self.id, self.fail(*failure))).ok()
    }

    /// Keeps a caller's module loaded until the world ends, because its kernels may be running until then.
    pub(super) fn keep(&self, module: ModuleHandle) {
        self.modules.lock().unwrap_or_else(PoisonError::into_inner).push(module);
    }

    /// Zeroes device memory and waits until that is done. The context must be current.
    ///
    /// # Safety
    /// * The memory has `bytes` bytes, and nothing else uses them.
    pub(super) unsafe fn zero(&self, opened: &Opened, address: u64, bytes: usize) -> Result<(), DriverFailure> {
        // SAFETY: the caller guarantees the memory; the stream lives as long as the world.
        unsafe { self.driver.set_bytes(address, 0, bytes, opened.zeroing) }?;
        // SAFETY: the stream lives as long as the world.
        unsafe { self.driver.synchronize_stream(opened.zeroing) }
    }

    /// Frees memory. If this thread launches, another thread frees it later, because the driver may wait for the device.
    pub(super) fn give_back(&self, opened: &Opened, address: usize, bytes: usize, kind: MemoryKind) {
        self.trash().push(Trash { address, bytes, kind });
        self.empty_trash(opened);
    }

    /// Frees what launching threads have left, unless this thread launches itself.
    pub(super) fn empty_trash(&self, opened: &Opened) {
        if !current::is_bound() {
            self.free_trash(opened);
        }
    }

    /// Frees what launching threads have left, in any thread; the driver may wait for the device. Returns whether there was anything.
    pub(super) fn free_trash(&self, opened: &Opened) -> bool {
        let trash = std::mem::take(&mut *self.trash());
        if trash.is_empty() {
            return false;
        }
        // A lost device frees nothing; its memory goes with its context.
        let current = if self.is_lost() { None } else { self.enter(opened).ok() };
        for Trash { address, bytes, kind } in trash {
            if current.is_some() {
                // SAFETY: the caller that gave the memory back guaranteed that nothing uses it any longer.
                unsafe { self.free(address, kind) };
            }
            self.accounts.give_back(kind, bytes as u64);
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

    fn trash(&self) -> MutexGuard<'_, Vec<Trash>> {
        // No code here panics while the list is inconsistent, so a poisoned lock guards a valid list.
        self.trash.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bit of a device. A machine has fewer than 64 devices; any further ones count as out of reach.
fn bit(index: u32) -> u64 {
    1u64.checked_shl(index).unwrap_or(0)
}

impl Drop for World {
    /// Every stream has been dropped. Their last commands may still be running, so this waits for them.
    fn drop(&mut self) {
        let World { driver, marks, cores, .. } = self;
        // Wait for all devices before the first one ends, because one may still be copying from another's memory.
        for (core, opened) in cores.iter().filter_map(|core| Some((core, core.opened.get()?))) {
            core.free_trash(opened);
            // SAFETY: the context is released below, after the guard is dropped.
            if let Ok(_current) = unsafe { opened.context.enter(*driver) } {
                // A lost device answers at once.
                let _ = driver.synchronize();
            }
        }
        for (index, core) in cores.iter_mut().enumerate() {
            let Some(opened) = core.opened.get() else { continue };
            // SAFETY: the context is released below, after the guard is dropped.
            if let Ok(current) = unsafe { opened.context.enter(*driver) } {
                for event in marks.drain(index) {
                    // SAFETY: the event was made in this context, and the world, which alone could use it, ends.
                    let _ = unsafe { driver.destroy_event(event) };
                }
                // SAFETY: the stream was made for this core, which alone uses it.
                let _ = unsafe { driver.destroy_stream(opened.zeroing) };
                opened.functions.unload(*driver);
                for module in core.modules.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
                    // SAFETY: the module was loaded in this context and nothing runs any longer. Functions of it would keep the world
                    // alive.
                    let _ = unsafe { driver.unload_module(module) };
                }
                core.statuses.end(*driver);
                core.times.end(*driver);
                drop(current);
            }
            // SAFETY: it was retained once, and everything that was made in it has been destroyed.
            let _ = unsafe { driver.release(core.number) };
        }
    }
}
