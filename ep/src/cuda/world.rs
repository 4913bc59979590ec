//! What the CUDA devices of one engine share, and each device's own part of it.
//!
//! A [`World`] owns every device of the process's driver, as seen by one engine: one event pool for all, so that streams
//! of different devices wait for each other's events; the driver's events behind it; the book of what is allocated. It
//! ends when the last device and the last stream of it are gone, and gives all contexts back then.
//!
//! A [`Core`] is one device in it. Its context is retained, and its kernels are loaded, when it is first used: a machine
//! may have many devices that a program does not want. From then on, until the world ends, both stay.
//!
//! **Losing a device.** A driver's code that leaves a context unusable is noted once, here; from then on every command of
//! the device is refused with the same [`Error::DeviceLost`], without asking the driver. Others go on.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::absent::{CudaAbsent, CudaVersion};
use super::book::{Book, Home};
use super::config::CudaConfig;
use super::current::{self, Context, Entered};
use super::driver::{Driver, DriverFailure, ModuleHandle, StreamHandle};
use super::error::{PEER_ACCESS_ALREADY_ENABLED, ends_device};
use super::functions::{Functions, Refused};
use super::marks::Marks;
use super::probe::{self, Found};
use super::progress::Progress;
use super::statuses::Statuses;
use super::times::{Timed, Times};
use crate::accounts::Accounts;
use crate::device::DeviceId;
use crate::error::Error;
use crate::event::EventPool;
use crate::memory::MemoryKind;

/// What the CUDA devices of one engine share.
#[derive(Debug)]
pub(super) struct World {
    pub(super) driver: Driver,
    pub(super) config: CudaConfig,
    pub(super) events: EventPool,
    pub(super) marks: Marks,
    pub(super) book: Book,
    pub(super) cores: Box<[Core]>,
    /// Held while a device is opened: of two that are used first at the same time, the second sees the first.
    opening: Mutex<()>,
}

/// One device of a world.
#[derive(Debug)]
pub(super) struct Core {
    driver: Driver,
    pub(super) id: DeviceId,
    /// The driver's number of it.
    number: i32,
    pub(super) name: String,
    pub(super) units: usize,
    pub(super) accounts: Accounts,
    pub(super) statuses: Statuses,
    pub(super) times: Times,
    pub(super) products: Products,
    opened: OnceLock<Opened>,
    lost: OnceLock<Error>,
    /// Which devices' memory its kernels reach, one bit for each index.
    peers: AtomicU64,
    streams: Mutex<Vec<Arc<Progress>>>,
    /// Modules of callers.
    modules: Mutex<Vec<ModuleHandle>>,
    /// What a launching thread has given back, to be freed by another.
    trash: Mutex<Vec<Trash>>,
}

/// How many matrix products a device was given, by what computes them.
#[derive(Debug, Default)]
pub(super) struct Products {
    pub(super) cublas: AtomicU64,
    pub(super) own: AtomicU64,
}

/// What a device has from its first use on.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) context: Context,
    pub(super) functions: Functions,
    /// Where fresh memory is zeroed.
    zeroing: StreamHandle,
    /// Of streams: the lowest and the highest.
    pub(super) priorities: (i32, i32),
}

/// Memory to be given back to the driver.
#[derive(Debug)]
struct Trash {
    address: usize,
    bytes: usize,
    kind: MemoryKind,
}

impl World {
    /// The devices of the driver, none of them used yet.
    pub(super) fn open(config: &CudaConfig) -> Result<Arc<World>, CudaAbsent> {
        let Found { driver, version, devices } = probe::probe()?;
        let failed = |failure| CudaAbsent::Init(probe::told(driver, failure));
        let core = |index| Core::new(driver, index, version, config).map_err(failed);
        let cores = (0..devices).map(core).collect::<Result<_, _>>()?;
        let (events, marks, book) = (EventPool::new(), Marks::default(), Book::default());
        Ok(Arc::new(World { driver, config: config.clone(), events, marks, book, cores, opening: Mutex::default() }))
    }

    /// What the core of this index has from its first use on. The first call makes it, which takes long.
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

    /// The same, where it has been used.
    pub(super) fn opened_already(&self, index: usize) -> Option<&Opened> {
        self.cores[index].opened.get()
    }

    /// Lets kernels of this device and of those in use reach each other's memory, where the machine can. Copies do
    /// without.
    fn open_peers(&self, core: &Core, opened: &Opened) {
        for other in self.cores.iter().filter(|other| other.id != core.id) {
            let Some(theirs) = other.opened.get() else { continue };
            core.reach(opened, other, theirs);
            other.reach(theirs, core, opened);
        }
    }

    /// May kernels of the device of this index use the address?
    pub(super) fn reaches(&self, index: usize, address: usize) -> bool {
        match self.book.home(address) {
            Some(Home::Host) => true,
            Some(Home::Device(home)) => home == index || self.has_peer(index, home),
            None => false,
        }
    }

    /// Do kernels of one device reach the memory of the other?
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
            // SAFETY: it was retained above, and nothing of it is kept.
            let _ = unsafe { driver.release(self.number) };
        }
        made
    }

    fn open_in(&self, context: Context) -> Result<Opened, Error> {
        let driver = self.driver;
        let failed = |failure| self.fail(failure);
        // SAFETY: it is retained until after the guard is gone.
        let _current = unsafe { context.enter(driver) }.map_err(failed)?;
        let functions = Functions::load(driver).map_err(|refused| self.refused(refused))?;
        let priorities = driver.priorities().map_err(failed)?;
        let zeroing = driver.create_stream(priorities.0).map_err(failed)?;
        Ok(Opened { context, functions, zeroing, priorities })
    }

    /// Lets kernels here reach the memory of `other`, if the machine can.
    fn reach(&self, opened: &Opened, other: &Core, theirs: &Opened) {
        let driver = self.driver;
        if !driver.can_access_peer(self.number, other.number).unwrap_or(false) {
            return;
        }
        let Ok(_current) = self.enter(opened) else { return };
        // SAFETY: the other context is retained as long as the world.
        let enabled = unsafe { driver.enable_peer(theirs.context.handle) };
        if enabled.map_or_else(|failure| failure.code() == PEER_ACCESS_ALREADY_ENABLED, |()| true) {
            self.peers.fetch_or(bit(other.id.index), Ordering::Relaxed);
        }
    }

    /// Do kernels here reach the memory of `other`?
    fn has_peer(&self, other: DeviceId) -> bool {
        self.peers.load(Ordering::Relaxed) & bit(other.index) != 0
    }

    /// Makes the device's context current until the guard is dropped.
    #[inline]
    pub(super) fn enter(&self, opened: &Opened) -> Result<Entered, Error> {
        // SAFETY: the context stays retained until the world ends, which guards borrow.
        unsafe { opened.context.enter(self.driver) }.map_err(|failure| self.fail(failure))
    }

    /// Errs if the device is lost.
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

    /// What a failed call means: the device is lost, or this call alone failed.
    #[cold]
    pub(super) fn fail(&self, failure: DriverFailure) -> Error {
        self.fail_in(failure, None)
    }

    /// What a failed call means, where it is known which instruction it comes from.
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

    /// From now on the device is lost; why.
    #[cold]
    pub(super) fn lose(&self, reason: String) -> Error {
        self.lost.get_or_init(|| Error::DeviceLost { device: self.id, reason }).clone()
    }

    /// What it means that the driver refused a module or a kernel.
    pub(super) fn refused(&self, refused: Refused) -> Error {
        match self.fail(refused.failure) {
            Error::Driver { device, mut source } => {
                source.text = format!("{} ({})", source.text, refused.text);
                Error::Driver { device, source }
            }
            lost => lost,
        }
    }

    /// The instructions of which one must have failed.
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

    /// A stream is made.
    pub(super) fn join(&self, progress: &Arc<Progress>) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        // What ended with nothing under way has nothing to tell any more.
        streams.retain(|known| Arc::strong_count(known) > 1 || known.range().is_some());
        streams.push(Arc::clone(progress));
    }

    /// What a new stream keeps its times in; without where that fails. The device's context is current.
    pub(super) fn time(&self, opened: &Opened, stream: StreamHandle) -> Option<Arc<Timed>> {
        let timed = self.times.open(self.driver, stream, opened.zeroing);
        timed.inspect_err(|failure| log::warn!("{} tells no times: {}", self.id, self.fail(*failure))).ok()
    }

    /// A module of a caller's stays loaded until the world ends: who knows what still runs of it?
    pub(super) fn keep(&self, module: ModuleHandle) {
        self.modules.lock().unwrap_or_else(PoisonError::into_inner).push(module);
    }

    /// Zeroes device memory, and waits until that is done. The context is current.
    ///
    /// # Safety
    /// * There are that many bytes, and nothing else uses them.
    pub(super) unsafe fn zero(&self, opened: &Opened, address: u64, bytes: usize) -> Result<(), DriverFailure> {
        // SAFETY: the caller's promise; the stream lives as long as the world.
        unsafe { self.driver.set_bytes(address, 0, bytes, opened.zeroing) }?;
        // SAFETY: as above.
        unsafe { self.driver.synchronize_stream(opened.zeroing) }
    }

    /// Gives memory back to the driver, or leaves that to another thread where this one launches: the driver may wait for
    /// the device.
    pub(super) fn give_back(&self, opened: &Opened, address: usize, bytes: usize, kind: MemoryKind) {
        self.trash().push(Trash { address, bytes, kind });
        self.empty_trash(opened);
    }

    /// Frees what launching threads have left, unless this is one.
    pub(super) fn empty_trash(&self, opened: &Opened) {
        if !current::is_bound() {
            self.free_trash(opened);
        }
    }

    /// Frees what launching threads have left, whoever this is: the driver may wait for the device. Returns whether there
    /// was anything.
    pub(super) fn free_trash(&self, opened: &Opened) -> bool {
        let trash = std::mem::take(&mut *self.trash());
        if trash.is_empty() {
            return false;
        }
        // A lost device frees nothing; its memory is gone with it.
        let current = if self.is_lost() { None } else { self.enter(opened).ok() };
        for Trash { address, bytes, kind } in trash {
            if current.is_some() {
                // SAFETY: whoever gave it back promised that nothing uses it any more.
                unsafe { self.free(address, kind) };
            }
            self.accounts.give_back(kind, bytes as u64);
        }
        true
    }

    /// # Safety
    /// * The memory came from this device, as of this kind, and nothing uses it any more. The context is current.
    unsafe fn free(&self, address: usize, kind: MemoryKind) {
        let freed = match kind {
            // SAFETY: the caller's promise.
            MemoryKind::Device => unsafe { self.driver.free(address as u64) },
            MemoryKind::Pinned | MemoryKind::Upload | MemoryKind::Pageable => {
                let address = std::ptr::with_exposed_provenance_mut(address);
                // SAFETY: the caller's promise.
                unsafe { self.driver.free_host(address) }
            }
        };
        if let Err(failure) = freed {
            // An error of an earlier command may come back from here: it is noted if it ends the device.
            let _ = self.fail(failure);
        }
    }

    fn trash(&self) -> MutexGuard<'_, Vec<Trash>> {
        // No code here panics half way through a change, so a poisoned lock guards a whole list.
        self.trash.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A machine has fewer devices than a word has bits; those past them are not reached.
fn bit(index: u32) -> u64 {
    1u64.checked_shl(index).unwrap_or(0)
}

impl Drop for World {
    /// Every stream is gone. What they were given last may still run: it is waited for.
    fn drop(&mut self) {
        let World { driver, marks, cores, .. } = self;
        // All of them, before the first ends: one may still be copying from another's memory.
        for (core, opened) in cores.iter().filter_map(|core| Some((core, core.opened.get()?))) {
            core.free_trash(opened);
            // SAFETY: the context is released below, behind the guard.
            if let Ok(_current) = unsafe { opened.context.enter(*driver) } {
                // A lost device answers at once.
                let _ = driver.synchronize();
            }
        }
        for (index, core) in cores.iter_mut().enumerate() {
            let Some(opened) = core.opened.get() else { continue };
            // SAFETY: the context is released below, behind the guard.
            if let Ok(current) = unsafe { opened.context.enter(*driver) } {
                for event in marks.drain(index) {
                    // SAFETY: it was made there, and the world that could name it ends.
                    let _ = unsafe { driver.destroy_event(event) };
                }
                // SAFETY: it was made for this core, which alone uses it.
                let _ = unsafe { driver.destroy_stream(opened.zeroing) };
                opened.functions.unload(*driver);
                for module in core.modules.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
                    // SAFETY: it was loaded there, nothing runs any more, and functions of it would keep the world.
                    let _ = unsafe { driver.unload_module(module) };
                }
                core.statuses.end(*driver);
                core.times.end(*driver);
                drop(current);
            }
            // SAFETY: it was retained once, and all that was made in it is given back.
            let _ = unsafe { driver.release(core.number) };
        }
    }
}
