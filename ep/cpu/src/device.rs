//! The CPU device: memory and streams.

use std::alloc::{Layout as HeapLayout, LayoutError, alloc, alloc_zeroed, dealloc};
use std::ptr::without_provenance_mut;
use std::sync::Arc;

use streamvm_ep::{
    Accounts, Device, DeviceId, DeviceInfo, Error, EventId, EventPool, MemoryKind, OpStates, Prepared, Region, Segment,
    SequenceError, Stream,
};

use crate::sequence::CpuSequence;
use crate::stream::CpuStream;

/// Alignment of every region, in bytes: one cache line, and the widest vector register.
const ALIGNMENT: usize = 64;

/// The size of a huge page of x86-64 and of most AArch64 systems, in bytes.
const HUGE_PAGE: usize = 1 << 21;

/// Regions of this size and more lie on huge pages, where the system has them: with pages of 4 KiB the processor spends a large part of the
/// time of a light kernel on translating addresses. For smaller regions a cache holds the translations. It is NumPy's limit, too.
const LARGE: usize = 1 << 22;

/// The configuration of a CPU device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuConfig {
    /// The most bytes that may be allocated from the device, over all memory kinds; `None` for no limit.
    pub memory_limit: Option<u64>,
    /// The most threads that compute one large kernel, or run the lanes of a sequence, the calling thread included; `None` for the number of cores that the process may
    /// use. Results have the same bits for every number.
    pub threads: Option<usize>,
}

/// The devices `cpu:0` to `cpu:<count - 1>`, each with this configuration. All run on the same cores; more than one is for programs that need several
/// memories and queues.
pub fn devices(count: u32, config: &CpuConfig) -> impl Iterator<Item = Arc<dyn Device>> {
    (0..count).map(|index| -> Arc<dyn Device> { Arc::new(CpuDevice::new(index, config.clone())) })
}

/// The processor that runs this program, as a device.
#[derive(Debug)]
pub struct CpuDevice {
    id: DeviceId,
    config: CpuConfig,
    cores: usize,
    accounts: Accounts,
    events: Arc<EventPool>,
    states: Arc<OpStates>,
}

impl CpuDevice {
    /// The device `cpu:<index>`, with no memory allocated.
    pub fn new(index: u32, config: CpuConfig) -> CpuDevice {
        let id = DeviceId::cpu(index);
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        CpuDevice {
            id,
            accounts: Accounts::new(id, config.memory_limit),
            config,
            cores,
            events: Arc::new(EventPool::new()),
            states: Arc::new(OpStates::new(id)),
        }
    }
}

// SAFETY: regions are zeroed allocations of the process's own, which `free` gives back. Commands complete within their calls, so before any record.
unsafe impl Device for CpuDevice {
    fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    fn id(&self) -> DeviceId {
        self.id
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            id: self.id,
            name: format!("CPU ({})", std::env::consts::ARCH),
            units: self.cores,
            memory_limit: self.config.memory_limit,
        }
    }

    fn allocate(&self, kind: MemoryKind, bytes: usize) -> Result<Region, Error> {
        let requested = bytes as u64;
        self.accounts.charge(kind, requested)?;
        if bytes == 0 {
            let nowhere = without_provenance_mut(ALIGNMENT);
            return Ok(Region::new(nowhere, 0, kind, self.id));
        }
        let Ok(layout) = heap_layout(bytes) else {
            return Err(self.accounts.refuse(kind, requested));
        };
        // SAFETY: the size is not 0.
        let base = unsafe { zeroed(layout) };
        if base.is_null() {
            return Err(self.accounts.refuse(kind, requested));
        }
        Ok(Region::new(base, bytes, kind, self.id))
    }

    unsafe fn free(&self, region: Region) {
        if region.bytes() > 0 {
            // `allocate` made a layout of the same size, so this cannot fail; if it did, the memory would leak.
            let Ok(layout) = heap_layout(region.bytes()) else {
                return;
            };
            // SAFETY: the caller guarantees that the region came from `allocate`, which used the same layout, and that nothing uses it
            // any longer. A region is freed once, because it is moved.
            unsafe { dealloc(region.base(), layout) };
        }
        self.accounts.give_back(region.kind(), region.bytes() as u64);
    }

    fn create_stream(&self) -> Result<Box<dyn Stream>, Error> {
        let threads = self.config.threads.unwrap_or(self.cores).max(1);
        Ok(Box::new(CpuStream::new(self.id, threads, Arc::clone(&self.events), Arc::clone(&self.states))))
    }

    fn prepare(&self, segment: Segment) -> Result<Box<dyn Prepared>, SequenceError> {
        Ok(Box::new(CpuSequence::of_segment(segment, &self.states)?))
    }

    fn events(&self) -> &EventPool {
        &self.events
    }

    fn query(&self, event: EventId) -> Result<bool, Error> {
        // A recorded event has passed, because every command has run when its call returns.
        if self.events.is_recorded(event)? { Ok(true) } else { Err(Error::EventNotRecorded { event, device: self.id }) }
    }
}

/// The layout of a region of this size.
fn heap_layout(bytes: usize) -> Result<HeapLayout, LayoutError> {
    HeapLayout::from_size_align(bytes, if bytes < LARGE { ALIGNMENT } else { HUGE_PAGE })
}

/// Memory of zeros; null if there is none.
///
/// # Safety
///
/// * The size of the layout is not 0.
unsafe fn zeroed(layout: HeapLayout) -> *mut u8 {
    if layout.size() < LARGE {
        // SAFETY: the caller guarantees this.
        return unsafe { alloc_zeroed(layout) };
    }
    // SAFETY: the caller guarantees this.
    let base = unsafe { alloc(layout) };
    if !base.is_null() {
        // Before the first write, which gives the memory its pages.
        use_huge_pages(base, layout.size());
        // SAFETY: the memory was just allocated with this size.
        unsafe { base.write_bytes(0, layout.size()) };
    }
    base
}

/// Asks for huge pages. The memory is as good without them, so a refusal is passed over, and not logged: the engine allocates memory under a lock,
/// and loggers are user code.
#[cfg(target_os = "linux")]
fn use_huge_pages(base: *mut u8, bytes: usize) {
    use rustix::mm::{Advice, madvise};
    // SAFETY: the advice changes no contents; `base` is aligned to a page, and the bytes are allocated.
    let _ = unsafe { madvise(base.cast(), bytes, Advice::LinuxHugepage) };
}

/// Other systems choose the size of pages by themselves.
#[cfg(not(target_os = "linux"))]
fn use_huge_pages(_: *mut u8, _: usize) {}

#[cfg(test)]
#[path = "device_tests.rs"]
mod tests;
