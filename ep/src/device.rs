//! Devices: a place with memory, streams and events.

use std::fmt;
use std::str::FromStr;
use std::time::Instant;

use crate::error::{Error, ParseError};
use crate::event::{EventId, EventPool};
use crate::memory::{MemoryKind, MemoryStats, Region};
use crate::stream::Stream;

/// What drives a device.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum DeviceKind {
    /// The processor that runs this program.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
    /// A simulated device that checks the order of what it is told.
    Sim,
}

impl DeviceKind {
    /// Every kind, in the order of the enum.
    pub const ALL: [DeviceKind; 3] = [DeviceKind::Cpu, DeviceKind::Cuda, DeviceKind::Sim];

    /// The name that [`Display`](fmt::Display) prints, such as `"cpu"`.
    pub const fn name(self) -> &'static str {
        match self {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Cuda => "cuda",
            DeviceKind::Sim => "sim",
        }
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Name of a device within one process, such as `cpu:0`.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId {
    /// What drives it.
    pub kind: DeviceKind,
    /// Which of its kind, from 0.
    pub index: u32,
}

crate::debug_as_display!(DeviceId);

impl DeviceId {
    /// The CPU device `cpu:<index>`.
    pub const fn cpu(index: u32) -> DeviceId {
        DeviceId { kind: DeviceKind::Cpu, index }
    }

    /// The CUDA device `cuda:<index>`.
    pub const fn cuda(index: u32) -> DeviceId {
        DeviceId { kind: DeviceKind::Cuda, index }
    }

    /// The simulated device `sim:<index>`.
    pub const fn sim(index: u32) -> DeviceId {
        DeviceId { kind: DeviceKind::Sim, index }
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.index)
    }
}

impl FromStr for DeviceId {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<DeviceId, ParseError> {
        let refused = || {
            let expected = "cpu:<index>, cuda:<index> or sim:<index>, such as cpu:0";
            ParseError::new("device", text, expected)
        };
        let (kind, index) = text.split_once(':').ok_or_else(refused)?;
        let kind = DeviceKind::ALL.into_iter().find(|known| known.name() == kind).ok_or_else(refused)?;
        // Digits alone: `u32::from_str` would also accept a sign.
        if !index.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(refused());
        }
        let index = index.parse().map_err(|_| refused())?;
        Ok(DeviceId { kind, index })
    }
}

/// What a device says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its id.
    pub id: DeviceId,
    /// Its name, for people.
    pub name: String,
    /// Units that compute side by side: cores of a CPU, multiprocessors of a GPU. At least 1.
    pub units: usize,
    /// Most bytes that may be allocated from it, over all memory kinds; `None` if only the machine
    /// limits it.
    pub memory_limit: Option<u64>,
}

/// Which stream's work starts first where a device could start either's.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Priority {
    /// After the others'.
    Low,
    /// The ordinary one.
    #[default]
    Normal,
    /// Before the others'.
    High,
}

/// A queued command that failed.
#[derive(Clone, Debug, PartialEq)]
pub struct LateFailure {
    /// The stream and the number that its [`Label`](crate::Label) named.
    pub stream: u32,
    /// See `stream`.
    pub seq: u64,
    /// What went wrong.
    pub cause: LateCause,
}

/// What went wrong in a queued command.
#[derive(Clone, Debug, PartialEq)]
pub enum LateCause {
    /// The device or a kernel failed.
    Device(Error),
    /// The caller's code returned an error; its text.
    Function(String),
    /// The kernel or the caller's code panicked; its message.
    Panic(String),
}

/// When a device ran what it was given for one instruction, by its own clock: in nanoseconds since its *zero*, a time shortly
/// after its first use. Of one stream no two overlap; times of the streams of one device can be compared.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// The stream and the number that its [`Label`](crate::Label) named.
    pub stream: u32,
    /// See `stream`.
    pub seq: u64,
    /// When it began.
    pub start: u64,
    /// When it was over.
    pub end: u64,
}

/// A place with memory, streams and events.
///
/// Thread safe: any method may be called from any thread.
pub trait Device: Send + Sync + fmt::Debug {
    /// Its id.
    fn id(&self) -> DeviceId;

    /// What it says about itself.
    fn info(&self) -> DeviceInfo;

    /// Use of memory of one kind. Does not block on the device.
    fn memory(&self, kind: MemoryKind) -> MemoryStats;

    /// Alignment of every region, in bytes: a power of two, 64 on CPU.
    fn alignment(&self) -> usize;

    /// May the host read and write memory of this device through its address?
    fn host_accessible(&self) -> bool;

    /// A region of `bytes` zeroed bytes, aligned to [`alignment`](Device::alignment). Zero bytes
    /// give a region without memory. May block in the driver.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`] past the device's limit or the machine's memory.
    fn allocate(&self, kind: MemoryKind, bytes: usize) -> Result<Region, Error>;

    /// Gives a region back. May block in the driver.
    ///
    /// # Safety
    ///
    /// * `region` came from this device's [`allocate`](Device::allocate).
    /// * No operand, pointer or queued command uses its memory any more.
    unsafe fn free(&self, region: Region);

    /// A new stream on this device, with no commands.
    ///
    /// # Errors
    ///
    /// What the driver reports; never on CPU.
    fn create_stream(&self) -> Result<Box<dyn Stream>, Error>;

    /// A new stream whose work starts before or after that of others, where the device knows priorities; else one as by
    /// [`create_stream`](Device::create_stream).
    ///
    /// # Errors
    ///
    /// Those of [`create_stream`](Device::create_stream).
    fn create_stream_with(&self, _: Priority) -> Result<Box<dyn Stream>, Error> {
        self.create_stream()
    }

    /// The calling thread is an engine's own and will give this device's streams commands: what the device's driver keeps
    /// for each thread is set up, for as long as the thread or the device lives, or until a caller's code runs in the thread,
    /// which may change it: behind that, and behind the drops of what it has captured or returned, the thread says so again.
    /// Any other thread may give commands too, and is left as it was found, which costs each call a little. Devices without
    /// such state do nothing.
    ///
    /// # Errors
    ///
    /// What the driver reports.
    fn bind_thread(&self) -> Result<(), Error> {
        Ok(())
    }

    /// The events of this device. Devices of one kind that can wait for each other share one pool.
    fn events(&self) -> &EventPool;

    /// Whether the place that `event` marks has passed. Never blocks.
    ///
    /// # Errors
    ///
    /// [`Error::EventNotRecorded`], [`Error::StaleEvent`]; [`Error::DeviceLost`] if it never will.
    fn query(&self, event: EventId) -> Result<bool, Error>;

    /// Blocks until the place that `event` marks has passed, or until the deadline: then `false`.
    ///
    /// # Errors
    ///
    /// Those of [`query`](Device::query).
    fn wait(&self, event: EventId, deadline: Option<Instant>) -> Result<bool, Error>;

    /// The failures of queued commands since the last call, in the order in which they happened. A
    /// failure is here before [`query`](Device::query) calls a later place passed. Never blocks.
    fn take_failures(&self) -> Vec<LateFailure>;

    /// When instructions ran, of those that are over and have not been told before: of each stream in its order. None where
    /// the device has no clock, or was not asked to look at it. What cannot be read is left out. Never blocks.
    fn take_times(&self) -> Vec<Ran> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_round_trip() {
        for id in [DeviceId::cpu(0), DeviceId::cuda(7), DeviceId::sim(u32::MAX)] {
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        assert_eq!(DeviceId::cuda(1).to_string(), "cuda:1");
    }

    #[test]
    fn a_bad_id_says_what_would_work() {
        for text in ["", "cpu", "gpu:0", "cpu:", "cpu:x", "cpu:-1", "cpu:+1", "cpu:4294967296"] {
            let error = text.parse::<DeviceId>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`")), "{error}");
            assert!(error.contains("cpu:0"), "{error}");
        }
    }
}
