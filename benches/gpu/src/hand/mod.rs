//! CUDA by hand: driver calls through cudarc's thin layer, as a program without an engine makes them.
//!
//! Nothing here orders anything: who uses a stream, an event or memory says what comes after what, as by-hand code must.
//! What is dropped is given back at once, so a [`Stream`] that still uses memory is synchronised first; benches do.

mod graph;
mod kernels;
mod loops;
mod memory;
mod products;

pub use graph::Graph;
pub use kernels::{Kernels, Ready, f32s};
pub use loops::SetCondition;
pub use memory::{DeviceMemory, PinnedMemory};
pub use products::Products;

use std::cell::Cell;

use cudarc::driver::result::{self, stream::StreamKind};
use cudarc::driver::{DriverError, sys};

use crate::contest::error::Error;

/// The first device, its primary context current in this thread, and how often it was told to record and to wait.
#[derive(Debug)]
pub struct Cuda {
    device: sys::CUdevice,
    records: Cell<u64>,
    waits: Cell<u64>,
}

impl Cuda {
    /// Opens the first device and makes its primary context current in the calling thread.
    ///
    /// # Errors
    /// There is no driver or no device.
    pub fn open() -> Result<Cuda, Error> {
        // SAFETY: looking for the library runs its initialisers, which is what loading it is for.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::Missing("there is no CUDA driver".to_owned()));
        }
        result::init()?;
        let device = result::device::get(0)?;
        // SAFETY: the device has just been found.
        let context = unsafe { result::primary_ctx::retain(device) }?;
        let cuda = Cuda { device, records: Cell::new(0), waits: Cell::new(0) };
        // SAFETY: the context is retained until the end of `cuda`.
        unsafe { result::ctx::set_current(context) }?;
        Ok(cuda)
    }

    /// A new stream that waits for no other by itself.
    ///
    /// # Errors
    /// The driver's.
    pub fn stream(&self) -> Result<Stream<'_>, DriverError> {
        Ok(Stream { cuda: self, raw: result::stream::create(StreamKind::NonBlocking)? })
    }

    /// A new event without timing.
    ///
    /// # Errors
    /// The driver's.
    pub fn event(&self) -> Result<Event, DriverError> {
        let raw = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?;
        Ok(Event { raw })
    }

    /// So many of what `make` makes.
    ///
    /// # Errors
    /// The first of `make`.
    pub fn several<T>(
        &self,
        count: usize,
        make: impl Fn(&Cuda) -> Result<T, DriverError>,
    ) -> Result<Vec<T>, DriverError> {
        (0..count).map(|_| make(self)).collect()
    }

    /// Records and waits so far.
    pub fn records_and_waits(&self) -> (u64, u64) {
        (self.records.get(), self.waits.get())
    }

    /// Whether the device has memory pools: `cuMemAllocAsync`.
    ///
    /// # Errors
    /// The driver's.
    pub fn has_pools(&self) -> Result<bool, DriverError> {
        let pools = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED;
        // SAFETY: the device is one.
        Ok(unsafe { result::device::get_attribute(self.device, pools) }? != 0)
    }

    /// Lets the device's pool keep what is freed, rather than give it back to the system at each synchronisation.
    ///
    /// # Errors
    /// The driver's.
    pub fn keep_pool(&self) -> Result<(), DriverError> {
        // SAFETY: the device is one.
        let pool = unsafe { result::device::get_default_mem_pool(self.device) }?;
        let mut most = u64::MAX;
        let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: the pool is the device's, and the attribute is a `u64`.
        unsafe { sys::cuMemPoolSetAttribute(pool, threshold, (&raw mut most).cast()) }.result()
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // SAFETY: no context is one that may be current.
        let _ = unsafe { result::ctx::set_current(std::ptr::null_mut()) };
        // SAFETY: it was retained once.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// A stream.
#[derive(Debug)]
pub struct Stream<'c> {
    cuda: &'c Cuda,
    raw: sys::CUstream,
}

impl Stream<'_> {
    /// The driver's handle.
    pub fn raw(&self) -> sys::CUstream {
        self.raw
    }

    /// Marks the present end of the stream.
    ///
    /// # Errors
    /// The driver's.
    pub fn record(&self, event: &Event) -> Result<(), DriverError> {
        self.cuda.records.set(self.cuda.records.get() + 1);
        // SAFETY: both are alive.
        unsafe { result::event::record(event.raw, self.raw) }
    }

    /// Orders what follows after the last record of `event`.
    ///
    /// # Errors
    /// The driver's.
    pub fn wait(&self, event: &Event) -> Result<(), DriverError> {
        self.cuda.waits.set(self.cuda.waits.get() + 1);
        // SAFETY: both are alive.
        unsafe { result::stream::wait_event(self.raw, event.raw, sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT) }
    }

    /// Copies all of `source` to `target`, which is as long.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// If the sizes differ.
    pub fn to_device(&self, source: &PinnedMemory, target: &DeviceMemory) -> Result<(), DriverError> {
        assert_eq!(source.bytes(), target.bytes());
        // SAFETY: both are alive and as long, and no one writes the source: benches synchronise before they do.
        unsafe { sys::cuMemcpyAsync(target.address(), source.address(), target.bytes(), self.raw) }.result()
    }

    /// Copies all of `source` to `target`, which is as long.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// If the sizes differ.
    pub fn to_host(&self, source: &DeviceMemory, target: &PinnedMemory) -> Result<(), DriverError> {
        assert_eq!(source.bytes(), target.bytes());
        // SAFETY: both are alive and as long, and no one reads the target: benches synchronise before they do.
        unsafe { sys::cuMemcpyAsync(target.address(), source.address(), target.bytes(), self.raw) }.result()
    }

    /// Copies all of `source` to `target`, which is as long.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// If the sizes differ.
    pub fn within_device(&self, source: &DeviceMemory, target: &DeviceMemory) -> Result<(), DriverError> {
        assert_eq!(source.bytes(), target.bytes());
        // SAFETY: both are alive and as long, and this stream alone uses them.
        unsafe { sys::cuMemcpyAsync(target.address(), source.address(), target.bytes(), self.raw) }.result()
    }

    /// Takes memory and gives it back, both in the order of the stream, by the device's pool.
    ///
    /// # Errors
    /// The driver's.
    pub fn take_and_give_back(&self, bytes: usize) -> Result<(), DriverError> {
        // SAFETY: nothing uses the memory.
        let address = unsafe { result::malloc_async(self.raw, bytes) }?;
        // SAFETY: as above.
        unsafe { result::free_async(address, self.raw) }
    }

    /// Blocks until all of it is over.
    ///
    /// # Errors
    /// The driver's, and what of the stream has failed.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        // SAFETY: it is alive.
        unsafe { result::stream::synchronize(self.raw) }
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        // SAFETY: it is alive, and this is its end.
        let _ = unsafe { result::stream::destroy(self.raw) };
    }
}

/// An event without timing.
#[derive(Debug)]
pub struct Event {
    raw: sys::CUevent,
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: it is alive, and this is its end.
        let _ = unsafe { result::event::destroy(self.raw) };
    }
}
