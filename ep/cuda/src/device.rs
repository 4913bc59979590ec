//! A CUDA device: memory, streams and events, for which its streams and those of other CUDA devices can wait.

use std::ptr::{with_exposed_provenance_mut, without_provenance_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use streamvm_ep::{
    Accounts, CommandSequence, CudaAbsent, Device, DeviceInfo, DeviceKind, Error, EventId, EventPool, FusedGroup,
    FusedKernel, InstructionTime, LateFailure, MemoryKind, Prepared, Priority, Region, Segment, SequenceError, Stream,
    StreamUse,
};

use crate::driver::DriverFailure;
use crate::driver::error_codes::OUT_OF_MEMORY;
use crate::instance::Owner;
use crate::instance::config::CudaConfig;
use crate::instance::driver_events::EventRecord;
use crate::instance::{DeviceState, Instance, Opened};
use crate::stream::CudaStream;
use crate::stream::blas::{Blas, BlasError};

/// Alignment of every region, in bytes: the driver's guarantee for device memory, and more than a kernel's widest access.
const ALIGNMENT: usize = 256;

/// The largest request, in bytes, that is passed to the driver. No address space is larger (addresses of a process have at most 57 bits),
/// and the driver's answer to a larger request is not specified.
const MAX_BYTES: usize = 1 << 57;

/// How long a host wait with a deadline polls before it sleeps between polls. About the cost of waking a thread, so that short waits do
/// not pay it.
const SPIN: Duration = Duration::from_micros(20);

/// The first and the longest sleep between two polls.
const SLEEP: (Duration, Duration) = (Duration::from_micros(10), Duration::from_micros(500));

/// The number of matrix products that were submitted to a device, by implementation. A product without elements does not count. A product in a block that is
/// part of a graph counts once for each launch of the graph.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct CudaProducts {
    /// Products, or whole batches of them, by cuBLAS.
    pub cublas: u64,
    /// Products, or whole batches of them, by streamvm's own kernel.
    pub own: u64,
}

/// An NVIDIA GPU.
///
/// * Device memory comes from `cuMemAlloc`; the device zeroes it, and [`allocate`](Device::allocate) waits for that.
/// * Pinned, upload and pageable memory are all page-locked host memory, zeroed by the host, so that every command can access them.
///   Upload memory is write-combined.
///
/// The context is the device's primary context. It is retained at first use and released when the last device and stream of the same
/// [`open`](CudaDevice::open) call have been dropped.
#[derive(Debug)]
pub struct CudaDevice {
    index: usize,
    instance: Arc<Instance>,
}

impl CudaDevice {
    /// The devices of this machine for one engine, `cuda:0` first. They share one event pool and can wait for each other's events. The
    /// first call in a process initialises the driver, which may take seconds; a device is opened at its first use.
    ///
    /// # Errors
    ///
    /// The reason why there is none.
    pub fn open(config: &CudaConfig) -> Result<Vec<Arc<CudaDevice>>, CudaAbsent> {
        let instance = Instance::open(config)?;
        let device = |index| Arc::new(CudaDevice { index, instance: Arc::clone(&instance) });
        Ok((0..instance.devices.len()).map(device).collect())
    }

    /// Free and total bytes of the device's memory, as reported by the driver; memory of other processes counts as used. The first use of
    /// a device takes long, as with [`allocate`](Device::allocate).
    ///
    /// # Errors
    ///
    /// [`Error::DeviceLost`], and other errors of the driver.
    pub fn memory_info(&self) -> Result<(u64, u64), Error> {
        let device = self.device();
        let _current = device.enter(self.instance.opened(self.index)?)?;
        let (free, total) = self.instance.driver.memory_info().map_err(|failure| device.fail(failure))?;
        Ok((free as u64, total as u64))
    }

    /// The number of matrix products that were submitted to the device since [`open`](CudaDevice::open), by implementation.
    pub fn products(&self) -> CudaProducts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let products = &self.device().products;
        CudaProducts { cublas: of(&products.cublas), own: of(&products.own) }
    }

    /// Whether kernels of this device can access the memory of `other`, a device of the same [`open`](CudaDevice::open) call. Known once
    /// both have been used. Copies between devices do not need it.
    pub fn reaches(&self, other: &CudaDevice) -> bool {
        Arc::ptr_eq(&self.instance, &other.instance) && self.instance.has_peer(self.index, other.index)
    }

    pub(super) fn instance(&self) -> &Arc<Instance> {
        &self.instance
    }

    pub(super) fn index(&self) -> usize {
        self.index
    }

    fn device(&self) -> &DeviceState {
        &self.instance.devices[self.index]
    }

    /// Allocates `bytes` zeroed bytes. Returns their address and the address at which kernels access them.
    fn allocate_zeroed(
        &self,
        opened: &Opened,
        kind: MemoryKind,
        bytes: usize,
    ) -> Result<(*mut u8, usize), DriverFailure> {
        let (device, driver) = (self.device(), self.instance.driver);
        match kind {
            MemoryKind::Device => {
                let address = driver.allocate(bytes)?;
                // SAFETY: the memory has just been allocated with this size, and nothing else uses it.
                if let Err(failure) = unsafe { device.zero(opened, address, bytes) } {
                    // SAFETY: as above, and no other code has the address.
                    let _ = unsafe { driver.free(address) };
                    return Err(failure);
                }
                Ok((with_exposed_provenance_mut(address as usize), address as usize))
            }
            MemoryKind::Pinned | MemoryKind::Upload | MemoryKind::Pageable => {
                let address = driver.allocate_host(bytes, kind == MemoryKind::Upload)?;
                let kernel_address = match kind {
                    // SAFETY: the address has just been allocated.
                    MemoryKind::Upload => match unsafe { driver.device_address(address) } {
                        Ok(there) => there as usize,
                        Err(failure) => {
                            // SAFETY: as above, and no other code has the address.
                            let _ = unsafe { driver.free_host(address) };
                            return Err(failure);
                        }
                    },
                    _ => address.addr(),
                };
                // SAFETY: the memory has just been allocated with this size, and the host may write it.
                unsafe { address.write_bytes(0, bytes) };
                // Drains write-combined zeros, so that they cannot arrive after a later write of another core.
                fence(Ordering::SeqCst);
                // `free` gets the memory back by its numeric address.
                address.expose_provenance();
                Ok((address, kernel_address))
            }
        }
    }

    /// The last record of the event, and the device that made it.
    fn last_record(&self, event: EventId) -> Result<(EventRecord, &DeviceState), Error> {
        let unrecorded = Error::EventNotRecorded { event, device: self.id() };
        if !self.instance.events.is_recorded(event)? {
            return Err(unrecorded);
        }
        let Some(record) = self.instance.driver_events.last_record(event) else {
            // The event was released meanwhile, and its slot reused.
            self.instance.events.is_recorded(event)?;
            return Err(unrecorded);
        };
        Ok((record, &self.instance.devices[record.device]))
    }

    /// Whether the record has passed.
    fn query_record(&self, event: EventId, record: EventRecord, device: &DeviceState) -> Result<bool, Error> {
        device.check()?;
        let _current = device.enter(self.instance.opened(record.device)?)?;
        // SAFETY: the event lives as long as the instance.
        let passed =
            unsafe { self.instance.driver.query_event(record.handle) }.map_err(|failure| device.fail(failure))?;
        self.observe(event, record, passed)
    }

    fn observe(&self, event: EventId, record: EventRecord, passed: bool) -> Result<bool, Error> {
        if passed && !self.instance.driver_events.set_passed(event, record) {
            return Err(Error::StaleEvent { event });
        }
        Ok(passed)
    }
}

impl CudaDevice {
    /// Makes a kernel that computes all steps of a group, or finds the one that it has made of an equal group. Makes no more kernels once that has failed.
    fn fuse(&self, group: &FusedGroup) -> Option<FusedKernel> {
        let device = self.device();
        let opened = self.instance.opened(self.index).ok()?;
        let _current = device.enter(opened).ok()?;
        device.fused_kernels.make(device, self.instance.driver, group)
    }
}

// SAFETY: regions come from the driver, and are zeroed. Page-locked memory is the host's; only that of the device is not. The driver reports an event
// once the commands before it have completed.
unsafe impl Device for CudaDevice {
    fn accounts(&self) -> &Accounts {
        &self.device().accounts
    }

    fn info(&self) -> DeviceInfo {
        let DeviceState { id, name, units, .. } = self.device();
        DeviceInfo { id: *id, name: name.clone(), units: *units, memory_limit: self.instance.config.memory_limit }
    }

    fn alignment(&self) -> usize {
        ALIGNMENT
    }

    /// The driver compiles kernels of groups.
    fn prepare(&self, segment: Segment) -> Result<Box<dyn Prepared>, SequenceError> {
        let sequence = CommandSequence::of_segment(DeviceKind::CUDA, segment, Some(&mut |group| self.fuse(group)))?;
        Ok(Box::new(sequence))
    }

    fn log_reasons(&self) {
        self.device().fused_kernels.log();
    }

    fn lose(&self, reason: &str) {
        self.device().mark_running_on(reason.to_owned());
    }

    fn stop_loops(&self) {
        self.device().conditions.stop();
    }

    fn bind_thread(&self) -> Result<(), Error> {
        let opened = self.instance.opened(self.index)?;
        // SAFETY: commands come only from streams, which keep the instance and its context alive.
        unsafe { opened.context.bind(self.instance.driver) }.map_err(|failure| self.device().fail(failure))
    }

    fn allocate(&self, kind: MemoryKind, bytes: usize) -> Result<Region, Error> {
        let (device, requested) = (self.device(), bytes as u64);
        let known = self.instance.opened_already(self.index);
        known.inspect(|opened| device.free_deferred_unless_launching(opened));
        // Memory whose free was deferred counts until it is freed. If the limit is reached, it is freed here.
        device.accounts.charge(kind, requested).or_else(|error| {
            device.free_deferred(known.ok_or(error)?);
            device.accounts.charge(kind, requested)
        })?;
        if bytes == 0 {
            return Ok(Region::new(without_provenance_mut(ALIGNMENT), 0, kind, self.id()));
        }
        let fresh = || -> Result<(*mut u8, usize), Error> {
            if bytes > MAX_BYTES {
                return Err(device.accounts.refuse(kind, requested));
            }
            let uncharged = |error| {
                device.accounts.refuse(kind, requested);
                error
            };
            let opened = self.instance.opened(self.index).map_err(uncharged)?;
            let _current = device.enter(opened).map_err(uncharged)?;
            let allocate = || self.allocate_zeroed(opened, kind, bytes);
            let allocated = allocate().or_else(|failure| match failure.code() {
                OUT_OF_MEMORY if device.free_deferred(opened) => allocate(),
                _ => Err(failure),
            });
            allocated.map_err(|failure| {
                let refused = device.accounts.refuse(kind, requested);
                if failure.code() == OUT_OF_MEMORY { refused } else { device.fail(failure) }
            })
        };
        let (base, kernel_address) = fresh()?;
        let owner = match kind {
            MemoryKind::Device => Owner::Device(self.index),
            MemoryKind::Pinned | MemoryKind::Upload | MemoryKind::Pageable => Owner::Host,
        };
        self.instance.address_map.insert(base.addr(), bytes, owner, kernel_address);
        Ok(Region::new(base, bytes, kind, self.id()))
    }

    unsafe fn free(&self, region: Region) {
        let (device, address, bytes) = (self.device(), region.base().addr(), region.bytes());
        if bytes == 0 {
            return device.accounts.give_back(region.kind(), 0);
        }
        self.instance.address_map.remove(address);
        // A device that was never opened has handed out no memory. The region is leaked, because the caller has broken its guarantee.
        if let Some(opened) = self.instance.opened_already(self.index) {
            device.free_or_defer(opened, address, Some(bytes), region.kind());
        }
    }

    fn create_stream(&self) -> Result<Box<dyn Stream>, Error> {
        self.create_stream_for(StreamUse::Kernels, Priority::Normal)
    }

    /// If cuBLAS is found and not disabled, a stream for kernels gets a handle of it, which has device memory of its own. A product on a stream for
    /// copies is computed by our own kernel.
    fn create_stream_for(&self, stream_use: StreamUse, priority: Priority) -> Result<Box<dyn Stream>, Error> {
        let opened = self.instance.opened(self.index)?;
        let _current = self.device().enter(opened)?;
        // Lower numbers have precedence; 0 is the default, which every device has.
        let (lowest, highest) = opened.priorities;
        let number = match priority {
            Priority::Low => lowest,
            Priority::Normal => 0.clamp(highest.min(lowest), lowest.max(highest)),
            Priority::High => highest,
        };
        let handle = self.instance.driver.create_stream(number).map_err(|failure| self.device().fail(failure))?;
        let blas = (stream_use == StreamUse::Kernels && !self.instance.config.own_matmul).then(|| {
            // SAFETY: handle and stream belong to the new `CudaStream`, which drops this first; its context is current.
            unsafe { Blas::new(self.instance.driver, handle, self.device().capability) }
                .inspect_err(BlasError::log)
                .ok()
        });
        let timing = self.instance.config.timed.then(|| self.device().time_stream(opened, handle));
        Ok(Box::new(CudaStream::new(
            self.index,
            Arc::clone(&self.instance),
            (handle, number),
            blas.flatten(),
            timing.flatten(),
        )))
    }

    fn events(&self) -> &EventPool {
        &self.instance.events
    }

    fn query(&self, event: EventId) -> Result<bool, Error> {
        let (record, device) = self.last_record(event)?;
        self.query_record(event, record, device)
    }

    fn wait(&self, event: EventId, deadline: Option<Instant>) -> Result<bool, Error> {
        let (record, device) = self.last_record(event)?;
        if self.query_record(event, record, device)? {
            return Ok(true);
        }
        let Some(deadline) = deadline else {
            let _current = device.enter(self.instance.opened(record.device)?)?;
            // SAFETY: the event lives as long as the instance.
            let waited = unsafe { self.instance.driver.synchronize_event(record.handle) };
            waited.map_err(|failure| device.fail(failure))?;
            return self.observe(event, record, true);
        };
        // The driver has no wait with a deadline, so this polls.
        let (start, (mut pause, longest)) = (Instant::now(), SLEEP);
        loop {
            let now = Instant::now();
            if now >= deadline {
                return Ok(false);
            }
            if now.duration_since(start) < SPIN {
                std::hint::spin_loop();
            } else {
                std::thread::sleep(pause.min(deadline - now));
                pause = (pause * 2).min(longest);
            }
            if self.query_record(event, record, device)? {
                return Ok(true);
            }
        }
    }

    fn take_failures(&self) -> Vec<LateFailure> {
        let device = self.device();
        if !device.statuses.has_pending() {
            return Vec::new();
        }
        if !device.is_lost()
            && let Some(opened) = self.instance.opened_already(self.index)
        {
            let collected = device.enter(opened).and_then(|_current| {
                device.statuses.collect(self.instance.driver).map_err(|failure| device.fail(failure))
            });
            if let Err(error) = collected {
                // The caller decides the outcomes of instructions next, so a failure that is reported later would be missed.
                device.mark_lost(format!("it cannot be told which kernels have failed: {error}"));
            }
        }
        device.statuses.take()
    }

    fn take_times(&self) -> Vec<InstructionTime> {
        let device = self.device();
        match self.instance.opened_already(self.index) {
            Some(opened) if self.instance.config.timed && !device.is_lost() => {
                device.enter(opened).map(|_current| device.timing.take(self.instance.driver)).unwrap_or_default()
            }
            _ => Vec::new(),
        }
    }
}
