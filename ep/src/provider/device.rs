//! Devices: a place with memory, streams and events.

use std::fmt;
use std::time::{Duration, Instant};

use crate::call::label::ProgramStep;
use crate::call::prepared::Prepared;
use crate::errors::error::Error;
use crate::errors::sequence_error::SequenceError;
use crate::names::device_id::DeviceId;
use crate::names::event_id::EventId;
use crate::names::memory_kind::MemoryKind;
use crate::provider::accounts::Accounts;
use crate::provider::event_pool::EventPool;
use crate::provider::memory::{MemoryStats, Region};
use crate::provider::stream::Stream;
use crate::sequence::{CommandSequence, Segment};

/// Facts about a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its id.
    pub id: DeviceId,
    /// Its name, for display.
    pub name: String,
    /// The number of units that compute in parallel: cores of a CPU, multiprocessors of a GPU. At least 1.
    pub units: usize,
    /// The most bytes that may be allocated from it, over all memory kinds; `None` if only the machine limits it.
    pub memory_limit: Option<u64>,
}

/// The order in which a device starts the work of streams when it could start any of them.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Priority {
    /// Starts after that of other streams.
    Low,
    /// The default.
    #[default]
    Normal,
    /// Starts before that of other streams.
    High,
}

/// The commands that the creator of a stream will queue on it.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum StreamUse {
    /// Kernels, and copies within the device.
    Kernels,
    /// Copies from and to the device.
    Copies,
}

/// A queued command that failed.
#[derive(Clone, Debug, PartialEq)]
pub struct LateFailure {
    /// The stream, as in the [`Label`](crate::Label) of the instruction.
    pub stream: u32,
    /// The number of the instruction, as in its label.
    pub seq: u64,
    /// The step of a program, if the command was one.
    pub step: Option<ProgramStep>,
    /// The cause.
    pub cause: LateCause,
}

/// The cause of a failure of a queued command.
#[derive(Clone, Debug, PartialEq)]
pub enum LateCause {
    /// The device or a kernel failed.
    Device(Error),
    /// The caller's code returned an error; its text.
    Function(String),
    /// The kernel or the caller's code panicked; its message.
    Panic(String),
}

/// The time during which a device ran one instruction, by the device's clock: in nanoseconds since its *zero*, a time shortly after its
/// first use. Times of one stream do not overlap, and times of different streams of one device can be compared.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct InstructionTime {
    /// The stream, as in the [`Label`](crate::Label) of the instruction.
    pub stream: u32,
    /// The number of the instruction, as in its label.
    pub seq: u64,
    /// When it began.
    pub start: u64,
    /// When it was over.
    pub end: u64,
    /// A time of the host's clock before it began: about when it was launched.
    pub launched: Instant,
    /// The zero by the clock of the host: it was between these two times.
    pub zero: [Instant; 2],
}

/// The time between two queries of an event for which a thread waits: what a thread takes to sleep and wake, so that the processor is mostly free.
const BETWEEN_QUERIES: Duration = Duration::from_micros(50);

/// A device: memory, streams and events.
///
/// Thread-safe: any method may be called from any thread.
///
/// # Safety
///
/// * A region from [`allocate`](Device::allocate) has as many allocated and zeroed bytes as were asked for, which are nobody else's until
///   [`free`](Device::free) gets the region.
/// * The host can access them at their address, except for [`MemoryKind::Device`] of a device without
///   [memory of the host](crate::KindInfo::host_memory).
/// * [`query`](Device::query) and [`wait`](Device::wait) return `true` only once the commands before the event have completed, and no longer
///   use their operands.
pub unsafe trait Device: Send + Sync + fmt::Debug {
    /// The counters of its memory, which know its id and its limit.
    fn accounts(&self) -> &Accounts;

    /// Its id.
    fn id(&self) -> DeviceId {
        self.accounts().device()
    }

    /// Facts about it. By default it is named as its kind, and has one unit that computes.
    fn info(&self) -> DeviceInfo {
        let id = self.id();
        DeviceInfo { id, name: id.kind.to_string(), units: 1, memory_limit: self.accounts().limit() }
    }

    /// The memory of one kind in use. Does not block on the device.
    fn memory(&self, kind: MemoryKind) -> MemoryStats {
        self.accounts().of(kind)
    }

    /// Alignment of every region, in bytes: a power of two, at least 64, which is the default.
    fn alignment(&self) -> usize {
        64
    }

    /// A region of `bytes` zeroed bytes, aligned to [`alignment`](Device::alignment). Zero bytes
    /// give a region without memory. May block in the driver.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`] past the device's limit or the machine's memory.
    fn allocate(&self, kind: MemoryKind, bytes: usize) -> Result<Region, Error>;

    /// Frees a region. May block in the driver.
    ///
    /// # Safety
    ///
    /// * `region` came from this device's [`allocate`](Device::allocate).
    /// * No operand, pointer or queued command uses its memory any longer.
    unsafe fn free(&self, region: Region);

    /// A new stream on this device, with no commands.
    ///
    /// # Errors
    ///
    /// Errors of the driver; never on CPU.
    fn create_stream(&self) -> Result<Box<dyn Stream>, Error>;

    /// A new stream for one use, with a priority if the device supports priorities. By default as [`create_stream`](Device::create_stream).
    ///
    /// # Errors
    ///
    /// Those of [`create_stream`](Device::create_stream).
    fn create_stream_for(&self, _: StreamUse, _: Priority) -> Result<Box<dyn Stream>, Error> {
        self.create_stream()
    }

    /// Prepares a segment of a program for the streams of this device. May take long: kernels may be compiled. The provided
    /// method makes a [`CommandSequence`], whose steps the streams run one by one. It takes functions on a CPU alone, and blocks only with a flag, which segments of
    /// kinds that the host runs have none of; a device of such a kind that runs either prepares segments by itself.
    ///
    /// # Errors
    ///
    /// The steps do not fit their buffers, the kind of the device, their groups or their branches, or blocks do not end:
    /// [`SequenceError::Operands`], [`SequenceError::PastBuffer`], [`SequenceError::Group`], [`SequenceError::Branches`], [`SequenceError::Blocks`].
    fn prepare(&self, segment: Segment) -> Result<Box<dyn Prepared>, SequenceError> {
        Ok(Box::new(CommandSequence::of_segment(self.id().kind, segment, None)?))
    }

    /// Logs why [`prepare`](Device::prepare) made no kernels of groups, which logs nothing itself: its caller may hold what the caller's logger needs. Each
    /// reason is logged once for each device. Call it without a lock.
    fn log_reasons(&self) {}

    /// Ends loops that run on the device without the host, at their next round, from now on: in segments
    /// that it runs as a whole. A device that has none ignores it. Never blocks.
    fn stop_loops(&self) {}

    /// Commands of a device of this kind go on for ever, as an [`Operation`](crate::Operation) has found: this one counts as lost, too. What it had allocated is freed no
    /// longer, because those commands may use it. Only a device that gives functions its driver's stream ([`Stream::call_raw`](crate::Stream::call_raw)) can have such
    /// commands; by default nothing happens.
    fn lose(&self, reason: &str) {
        let _ = reason;
    }

    /// Prepares the calling thread, a thread of the engine, to submit commands to this device's streams: sets up the driver's state of
    /// this thread. Devices without such state do nothing.
    ///
    /// The setup lasts as long as the thread and the device, or until code of the caller runs in the thread, which may change that state.
    /// After such code, and after its captures and results have been dropped, the thread must call this again.
    ///
    /// Any other thread may submit commands too. The driver's state of such a thread is restored after each call, at a small cost.
    ///
    /// # Errors
    ///
    /// Errors of the driver.
    fn bind_thread(&self) -> Result<(), Error> {
        Ok(())
    }

    /// The events of this device. Devices of one kind that can wait for each other share one pool.
    fn events(&self) -> &EventPool;

    /// Whether the device has passed the place that `event` marks. Never blocks.
    ///
    /// # Errors
    ///
    /// [`Error::EventNotRecorded`], [`Error::StaleEvent`]; [`Error::DeviceLost`] if it never will.
    fn query(&self, event: EventId) -> Result<bool, Error>;

    /// Blocks until the device has passed the place that `event` marks, or until the deadline; returns `false` at the deadline. The provided
    /// method [asks](Device::query) again and again, which is for devices that cannot wake a thread.
    ///
    /// # Errors
    ///
    /// Those of [`query`](Device::query).
    fn wait(&self, event: EventId, deadline: Option<Instant>) -> Result<bool, Error> {
        while !self.query(event)? {
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(false);
            }
            std::thread::sleep(BETWEEN_QUERIES);
        }
        Ok(true)
    }

    /// The failures of queued commands since the last call, in the order in which they happened. A failure is listed here before
    /// [`query`](Device::query) reports a later place as passed. Never blocks. By default none, which is for devices whose commands fail in
    /// the calls that issue them.
    fn take_failures(&self) -> Vec<LateFailure> {
        Vec::new()
    }

    /// The times of instructions that have passed since the last call, in order for each stream. Empty if the device has no clock or
    /// timing was not asked for. Times that cannot be read are left out. Never blocks.
    fn take_times(&self) -> Vec<InstructionTime> {
        Vec::new()
    }
}
