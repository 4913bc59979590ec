//! The tools of the cases: devices, memory that is freed when no command uses it, and errors that name the expected value.
//!
//! This is the only file of the suite with `unsafe` code of its own; wrappers around devices pass the duties of their callers on.
//! Invariants that make it sound:
//! * A [`Memory`] is freed when its last [`Buffer`], and the last [`Lane`] with a queued command on it, are dropped. A lane releases its
//!   memory only once its device reports that the commands have passed; otherwise it leaks the memory.
//! * Operands are made only from buffers, whose views lie inside their memory.
//! * The host accesses only memory that no command in flight uses: fresh memory, or memory after a `synchronize` or a wait of the case. The
//!   cases are responsible for the order of commands; they look for backends that ignore it.

use std::fmt::{Debug, Display};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use streamvm_ep::{
    Access, DType, Device, DeviceKind, Element, Error, EventId, Kernel, KernelRegistry, Layout, MemoryKind, Op,
    Operand, Region, Shape,
};

use super::backend::{Backend, Made, Setup, Tag};
use super::host::HostTensor;
use super::lane::Lane;

/// Why a case failed. Any type with `Display` converts to it, so that cases can use `?`.
#[derive(Debug)]
pub struct Fail(String);

impl Fail {
    pub(super) fn into_text(self) -> String {
        self.0
    }
}

impl<E: Display> From<E> for Fail {
    fn from(error: E) -> Fail {
        Fail(error.to_string())
    }
}

/// Fails the case unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err(format!($($text)+).into());
        }
    };
}

/// Fails the case unless both are equal.
macro_rules! ensure_eq {
    ($found:expr, $expected:expr, $($text:tt)+) => {
        match (&$found, &$expected) {
            (found, expected) => {
                if *found != *expected {
                    let (found, expected) = ($crate::conformance::lab::brief(found), $crate::conformance::lab::brief(expected));
                    return Err(format!("{}: found {found}, expected {expected}", format!($($text)+)).into());
                }
            }
        }
    };
}

/// Fails the case unless the value has this pattern.
macro_rules! ensure_matches {
    ($found:expr, $pattern:pat $(if $guard:expr)?, $($text:tt)+) => {
        match &$found {
            $pattern $(if $guard)? => {}
            found => {
                let expected = stringify!($pattern);
                return Err(format!("{}: found {found:?}, expected {expected}", format!($($text)+)).into());
            }
        }
    };
}

pub(super) use {ensure, ensure_eq, ensure_matches};

/// The context of one case: a backend that makes devices.
pub struct Bench {
    backend: Backend,
    audits: Mutex<Vec<Made>>,
}

impl Bench {
    pub(super) fn new(backend: Backend) -> Bench {
        Bench { backend, audits: Mutex::default() }
    }

    /// A new device.
    pub(super) fn lab(&self) -> Result<Lab, Fail> {
        Ok(self.labs(1, None)?.remove(0))
    }

    /// A new device with a memory limit in bytes.
    pub(super) fn limited(&self, limit: u64) -> Result<Lab, Fail> {
        Ok(self.labs(1, Some(limit))?.remove(0))
    }

    /// New devices of one backend.
    pub(super) fn labs(&self, devices: u32, memory_limit: Option<u64>) -> Result<Vec<Lab>, Fail> {
        let made = self.backend.make(&Setup { devices, memory_limit })?;
        ensure_eq!(made.devices.len(), devices as usize, "number of devices made");
        self.audits.lock().unwrap_or_else(PoisonError::into_inner).push(made.clone());
        let kernels = self.backend.kernels();
        let lab = |device: &Arc<dyn Device>| Lab { device: Arc::clone(device), kernels: Arc::clone(kernels) };
        Ok(made.devices.iter().map(lab).collect())
    }

    pub(super) fn has(&self, tag: Tag) -> bool {
        self.backend.has(tag)
    }

    /// Fails with the objections of the devices, if there are any.
    pub(super) fn audit(&self) -> Result<(), String> {
        let made = self.audits.lock().unwrap_or_else(PoisonError::into_inner);
        let objections: Vec<String> = made.iter().flat_map(|made| (made.audit)()).collect();
        if objections.is_empty() { Ok(()) } else { Err(format!("the device objects: {}", objections.join("; "))) }
    }
}

/// A device and its kernels.
pub(super) struct Lab {
    pub(super) device: Arc<dyn Device>,
    pub(super) kernels: Arc<KernelRegistry>,
}

impl Lab {
    pub(super) fn kind(&self) -> DeviceKind {
        self.device.id().kind
    }

    pub(super) fn lane(&self) -> Result<Lane, Fail> {
        Lane::new(&self.device, &self.kernels)
    }

    pub(super) fn lanes<const N: usize>(&self) -> Result<[Lane; N], Fail> {
        let lanes = (0..N).map(|_| self.lane()).collect::<Result<Vec<_>, _>>()?;
        lanes.try_into().map_err(|_| Fail::from("another number of lanes"))
    }

    pub(super) fn event(&self) -> EventId {
        self.device.events().acquire()
    }

    pub(super) fn allocate(&self, kind: MemoryKind, bytes: usize) -> Result<Arc<Memory>, Error> {
        let region = self.device.allocate(kind, bytes)?;
        Ok(Arc::new(Memory { device: Arc::clone(&self.device), region: Some(region) }))
    }

    /// A row-major tensor in fresh memory of the device.
    pub(super) fn tensor(&self, dtype: DType, dims: &[usize]) -> Result<Buffer, Fail> {
        self.tensor_in(MemoryKind::Device, dtype, dims)
    }

    pub(super) fn tensor_in(&self, kind: MemoryKind, dtype: DType, dims: &[usize]) -> Result<Buffer, Fail> {
        let layout = Layout::contiguous(Shape::new(dims)?);
        let memory = self.allocate(kind, layout.elements() * dtype.size())?;
        Ok(Buffer { memory, start: 0, dtype, layout })
    }

    /// A vector of these elements in fresh memory of the device.
    pub(super) fn vector<T: Element>(&self, lane: &mut Lane, elements: &[T]) -> Result<Buffer, Fail> {
        let buffer = self.tensor(T::DTYPE, &[elements.len()])?;
        self.write(lane, &buffer, T::as_bytes(elements))?;
        Ok(buffer)
    }

    /// A buffer with the whole storage of a host tensor in fresh memory, with the tensor's layout.
    pub(super) fn upload(&self, lane: &mut Lane, tensor: &HostTensor) -> Result<Buffer, Fail> {
        let bytes = tensor.bytes();
        let memory = self.allocate(MemoryKind::Device, bytes.len())?;
        let buffer = Buffer { memory, start: 0, dtype: tensor.dtype, layout: tensor.layout };
        self.write(lane, &buffer, &bytes)?;
        Ok(buffer)
    }

    /// Writes bytes to the start of the buffer's memory, which must be fresh.
    pub(super) fn write(&self, lane: &mut Lane, buffer: &Buffer, bytes: &[u8]) -> Result<(), Fail> {
        if self.is_open(&buffer.memory) {
            buffer.memory.host_write(bytes);
            return Ok(());
        }
        let staging = self.tensor_in(MemoryKind::Pinned, DType::U8, &[bytes.len()])?;
        staging.memory.host_write(bytes);
        lane.copy(&staging, &buffer.raw(0..bytes.len()))?;
        Ok(())
    }

    /// All bytes of the buffer's memory; waits for the commands on `lane` first.
    pub(super) fn bytes(&self, lane: &mut Lane, buffer: &Buffer) -> Result<Vec<u8>, Fail> {
        if self.is_open(&buffer.memory) {
            lane.sync()?;
            return Ok(buffer.memory.host_read());
        }
        let bytes = buffer.memory.bytes();
        let staging = self.tensor_in(MemoryKind::Pinned, DType::U8, &[bytes])?;
        lane.copy(&buffer.raw(0..bytes), &staging)?;
        lane.sync()?;
        Ok(staging.memory.host_read())
    }

    /// The elements of a row-major buffer; waits for the commands on `lane` first.
    pub(super) fn read<T: Element>(&self, lane: &mut Lane, buffer: &Buffer) -> Result<Vec<T>, Fail> {
        ensure_eq!(T::DTYPE, buffer.dtype, "dtype to read");
        ensure!(buffer.layout.is_contiguous(), "only row-major buffers are read as elements");
        let bytes = self.bytes(lane, buffer)?;
        let start = buffer.start + buffer.layout.offset() * size_of::<T>();
        let bytes = &bytes[start..start + buffer.layout.elements() * size_of::<T>()];
        Ok(elements(bytes))
    }

    /// Fails unless the buffer holds `expected`.
    pub(super) fn expect<T: Element>(
        &self,
        lane: &mut Lane,
        buffer: &Buffer,
        expected: &[T],
        what: &str,
    ) -> Result<(), Fail> {
        let found = self.read::<T>(lane, buffer)?;
        ensure_eq!(found.len(), expected.len(), "number of elements of {what}");
        if let Some(at) = (0..found.len()).find(|&at| found[at] != expected[at]) {
            let (found, expected) = (found[at], expected[at]);
            return Err(format!("{what}: element {at} is {found:?}, expected {expected:?}").into());
        }
        Ok(())
    }

    pub(super) fn kernel(&self, op: Op, dtype: DType) -> Result<Kernel, Fail> {
        Ok(self.kernels.get(op, self.kind(), dtype)?)
    }

    /// Waits on the host until the event has passed.
    pub(super) fn wait(&self, event: EventId) -> Result<(), Fail> {
        ensure_eq!(self.device.wait(event, None)?, true, "wait without a deadline");
        Ok(())
    }

    /// May the host access this memory?
    fn is_open(&self, memory: &Memory) -> bool {
        self.kind().info().host_memory || memory.kind() != MemoryKind::Device
    }
}

/// Elements from their bytes, in the machine's order.
///
/// # Panics
/// For `bool`, of which not every byte is one.
pub(super) fn elements<T: Element>(bytes: &[u8]) -> Vec<T> {
    assert_ne!(T::DTYPE, DType::Bool, "bytes are read as bool only after a check");
    let mut elements = Vec::with_capacity(bytes.len() / size_of::<T>());
    for chunk in bytes.chunks_exact(size_of::<T>()) {
        // SAFETY: an `Element` other than `bool` accepts every bit pattern, the chunk has exactly the bytes of one, and the read allows any alignment.
        elements.push(unsafe { chunk.as_ptr().cast::<T>().read_unaligned() });
    }
    elements
}

/// A region that is freed on drop.
#[derive(Debug)]
pub(super) struct Memory {
    device: Arc<dyn Device>,
    /// `Some` until the drop.
    region: Option<Region>,
}

impl Memory {
    fn region(&self) -> &Region {
        self.region.as_ref().expect("only drop takes it")
    }

    pub(super) fn bytes(&self) -> usize {
        self.region().bytes()
    }

    pub(super) fn kind(&self) -> MemoryKind {
        self.region().kind()
    }

    pub(super) fn base(&self) -> *mut u8 {
        self.region().base()
    }

    pub(super) fn device_id(&self) -> streamvm_ep::DeviceId {
        self.region().device()
    }

    /// Writes bytes to the start of the memory. Only for memory that the host may access.
    fn host_write(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.bytes(), "{} bytes do not fit {}", bytes.len(), self.bytes());
        // SAFETY: the assertion above bounds the length by the size of the region, and by the invariants of the module no command in flight
        // uses the memory.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base(), bytes.len()) };
    }

    /// All bytes. Only for memory that the host may access.
    pub(super) fn host_read(&self) -> Vec<u8> {
        if self.bytes() == 0 {
            return Vec::new();
        }
        // SAFETY: the region has that many bytes, which the device has initialised, and by the invariants of the module no command in
        // flight writes them.
        unsafe { std::slice::from_raw_parts(self.base(), self.bytes()) }.to_vec()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(region) = self.region.take() {
            // SAFETY: the region came from this device, and the buffers and lanes that used it are gone, so no command uses it.
            unsafe { self.device.free(region) };
        }
    }
}

/// A view of some memory.
#[derive(Clone, Debug)]
pub(super) struct Buffer {
    pub(super) memory: Arc<Memory>,
    /// Offset in the memory, in bytes, from which the layout counts.
    start: usize,
    pub(super) dtype: DType,
    pub(super) layout: Layout,
}

impl Buffer {
    /// The same memory seen through another layout.
    pub(super) fn with(&self, layout: Layout) -> Buffer {
        self.seen(self.start, self.dtype, layout)
    }

    /// The bytes `range` of the memory.
    pub(super) fn raw(&self, range: Range<usize>) -> Buffer {
        let shape = Shape::new(&[range.len()]).expect("a size of memory is one of a shape");
        self.seen(range.start, DType::U8, Layout::contiguous(shape))
    }

    /// The memory from byte `start` on, as elements of `dtype`.
    ///
    /// # Panics
    /// If the view reaches out of the memory.
    pub(super) fn seen(&self, start: usize, dtype: DType, layout: Layout) -> Buffer {
        let end = start + layout.span_elements().end * dtype.size();
        assert!(layout.elements() == 0 || end <= self.memory.bytes(), "the view reaches out of its memory");
        Buffer { memory: Arc::clone(&self.memory), start, dtype, layout }
    }

    /// An operand for one command. Only a lane calls this, and keeps the memory until the command has passed.
    pub(super) fn operand(&self, access: Access) -> Operand<'static> {
        let base = self.memory.base().wrapping_add(self.start);
        // SAFETY: the span lies within the memory (checked when the buffer was made), which is initialised and lives as long as the lane's
        // command. The case is responsible for the order of accesses; see the module.
        unsafe { Operand::new(base, self.dtype, self.layout, access) }
    }
}

/// The debug text of a value, cut after 300 characters.
pub(super) fn brief(value: &(impl Debug + ?Sized)) -> String {
    let text = format!("{value:?}");
    match text.char_indices().nth(300) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// The failure of a command that should have failed and returned `found` instead.
pub(super) fn unexpected(found: impl Debug, expected: &str) -> Fail {
    Fail(format!("found {found:?}, expected {expected}"))
}
