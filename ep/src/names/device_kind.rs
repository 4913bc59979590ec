//! Kinds of devices: a name with a record of what every device of the kind can do.
//!
//! Engine and compiler compare no names of kinds. They ask the record, so that a kind that was registered by another crate is treated as those of
//! this repository are.
//!
//! The kinds of a process are a table that only grows, and a [`DeviceKind`] is the number of a row. Rows do not change once they are written, so
//! reading one takes no lock.

use std::fmt;
use std::num::NonZeroU8;
use std::sync::OnceLock;

use crate::names::text::listed;

/// The side that runs the commands of a stream.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum RunBy {
    /// Threads of the host. A command is over when the call that issued it returns.
    Host,
    /// The device. A command may run some time after the call that issued it has returned; events show when it is over.
    Device,
}

/// How neighbouring elementwise steps of a program run together.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Fusion {
    /// They run one by one.
    None,
    /// Threads of the host run all of them over one block of elements after the other, so that what one step writes is in the cache for the next.
    Blocks,
    /// One kernel, which the device makes when the program is loaded, computes all of them.
    Kernels,
}

/// How the lanes of a program, which have no order among each other, run.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Lanes {
    /// One after the other.
    InOrder,
    /// Side by side, each on a thread of the host.
    OnThreads,
    /// Side by side where their commands are [captured](KindInfo::captures), as branches of one graph.
    InGraphs,
}

/// What holds for every device of a kind.
///
/// The default is a device that runs commands later, over memory of its own that the host cannot use, one by one. A kind names what is different.
/// Fusion, lanes and graphs are for devices that [prepare](crate::Device::prepare) segments by themselves; the provided method makes nothing of them.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct KindInfo {
    /// The side that runs the commands of its streams. Barriers, workers and critical sections are run by threads of the host on every kind.
    pub run_by: RunBy,
    /// Whether its memory is ordinary memory of the host: any thread of the host may use the addresses of
    /// [`MemoryKind::Device`](crate::MemoryKind::Device), as those of a CPU device.
    pub host_memory: bool,
    /// Whether its streams run callers' functions, which get the bytes of its memory. Otherwise such a function can be given memory of the
    /// host alone.
    pub runs_functions: bool,
    /// Whether its copies cannot reach pageable memory, so that the engine stages copies from and to the host through page-locked memory.
    pub pinned_only: bool,
    /// How neighbouring elementwise steps of a program run together.
    pub fusion: Fusion,
    /// How the lanes of a program run.
    pub lanes: Lanes,
    /// Whether it can keep the commands of a program as a graph, and launch them by one call.
    pub captures: bool,
}

impl KindInfo {
    const DEFAULT: KindInfo = KindInfo {
        run_by: RunBy::Device,
        host_memory: false,
        runs_functions: false,
        pinned_only: false,
        fusion: Fusion::None,
        lanes: Lanes::InOrder,
        captures: false,
    };

    /// What contradicts itself, and what to do instead.
    fn contradiction(&self) -> Option<&'static str> {
        let by_host = self.run_by == RunBy::Host;
        if by_host && !(self.host_memory && self.runs_functions) {
            return Some("threads of the host run its commands, so set `host_memory` and `runs_functions`");
        }
        if !by_host && (self.fusion == Fusion::Blocks || self.lanes == Lanes::OnThreads) {
            return Some(
                "its commands are not run by threads of the host, so it has neither blocks nor lanes on threads",
            );
        }
        let by_device = self.captures || self.pinned_only || self.fusion == Fusion::Kernels;
        if by_host && (by_device || self.lanes == Lanes::InGraphs) {
            return Some(
                "threads of the host run its commands, so it has no graphs, fused kernels or page-locked copies",
            );
        }
        if self.lanes == Lanes::InGraphs && !self.captures {
            return Some("its lanes are branches of graphs, so set `captures`");
        }
        None
    }
}

impl Default for KindInfo {
    fn default() -> KindInfo {
        KindInfo::DEFAULT
    }
}

/// A kind of device, such as `cpu`. Kinds are ordered as they were registered, those of this repository first.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceKind(
    /// The number of the row, from 1: so an optional kind takes no more memory than a kind.
    NonZeroU8,
);

crate::debug_as_display!(DeviceKind);

impl DeviceKind {
    /// The processor that runs this program.
    pub const CPU: DeviceKind = DeviceKind::at(0);
    /// NVIDIA GPUs.
    pub const CUDA: DeviceKind = DeviceKind::at(1);
    /// Simulated devices, which check the order of their commands.
    pub const SIM: DeviceKind = DeviceKind::at(2);

    /// The kinds of this repository.
    pub const BUILT_IN: [DeviceKind; 3] = [DeviceKind::CPU, DeviceKind::CUDA, DeviceKind::SIM];

    /// The most kinds that one process may have.
    pub const MOST: usize = 64;

    const fn at(row: usize) -> DeviceKind {
        assert!(row < DeviceKind::MOST);
        DeviceKind(NonZeroU8::MIN.saturating_add(row as u8))
    }

    /// Registers a kind for the whole process, or finds the one that was registered with an equal record. Thread-safe; does not block.
    ///
    /// ```
    /// use streamvm_ep::{DeviceId, DeviceKind, KindInfo};
    ///
    /// let npu = DeviceKind::register("npu", KindInfo { pinned_only: true, ..KindInfo::default() })?;
    /// assert_eq!("npu:1".parse(), Ok(DeviceId { kind: npu, index: 1 }));
    /// # Ok::<(), streamvm_ep::KindError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// A name that is no name of a kind, or that a kind with another record has; a record that contradicts itself; more than
    /// [`MOST`](DeviceKind::MOST) kinds.
    pub fn register(name: &'static str, info: KindInfo) -> Result<DeviceKind, KindError> {
        KINDS.register(Row { name, info })
    }

    /// The kinds that are registered now.
    pub fn all() -> impl Iterator<Item = DeviceKind> {
        (0..DeviceKind::MOST).map_while(|row| KINDS.row(row).map(|_| DeviceKind::at(row)))
    }

    /// The kind of this name, if one is registered.
    pub(crate) fn named(name: &str) -> Option<DeviceKind> {
        DeviceKind::all().find(|kind| kind.name() == name)
    }

    /// The name that [`Display`](fmt::Display) prints, such as `"cpu"`.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// What holds for every device of the kind.
    #[inline]
    pub fn info(self) -> &'static KindInfo {
        &self.row().info
    }

    /// Whether threads of the host run the commands of its streams.
    #[inline]
    pub fn is_run_by_host(self) -> bool {
        self.info().run_by == RunBy::Host
    }

    /// Whether it is the processor that runs this program, which has the memory outside of devices, too.
    #[inline]
    pub fn is_cpu(self) -> bool {
        self == DeviceKind::CPU
    }

    /// The place of the kind in tables, below [`MOST`](DeviceKind::MOST).
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0.get()) - 1
    }

    #[inline]
    fn row(self) -> &'static Row {
        match BUILT_IN.get(self.index()) {
            Some(row) => row,
            None => registered(self.index()),
        }
    }
}

#[inline(never)]
fn registered(row: usize) -> &'static Row {
    KINDS.row(row).expect("only a row that is written has a kind")
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The error of registering a kind.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the text of each variant says what its fields are")]
pub enum KindError {
    /// A name that cannot be read back from a text.
    #[error(
        "`{name}` cannot name a kind of device; take a small letter, then at most 15 small letters and digits, but not `host`"
    )]
    Name { name: &'static str },
    /// Two records for one name.
    #[error(
        "there is a kind of device `{name}` with another record already ({known:?}); register that record, or take another name than {}",
        listed(kinds)
    )]
    Taken { name: &'static str, known: KindInfo, kinds: Vec<&'static str> },
    /// A record that contradicts itself.
    #[error("the record of the kind of device `{name}` contradicts itself: {what}")]
    Contradiction { name: &'static str, what: &'static str },
    /// The table is full.
    #[error("`{name}` would be one kind of device more than a process may have, which is {most}; register each kind once", most = DeviceKind::MOST)]
    TooMany { name: &'static str },
}

crate::debug_as_display!(KindError);

#[derive(Debug)]
struct Row {
    name: &'static str,
    info: KindInfo,
}

/// Apart from the rows that are registered, so that their records are constants of the program.
static BUILT_IN: [Row; DeviceKind::BUILT_IN.len()] = [
    Row {
        name: "cpu",
        info: KindInfo {
            run_by: RunBy::Host,
            host_memory: true,
            runs_functions: true,
            fusion: Fusion::Blocks,
            lanes: Lanes::OnThreads,
            ..KindInfo::DEFAULT
        },
    },
    Row {
        name: "cuda",
        info: KindInfo {
            pinned_only: true,
            fusion: Fusion::Kernels,
            lanes: Lanes::InGraphs,
            captures: true,
            ..KindInfo::DEFAULT
        },
    },
    Row { name: "sim", info: KindInfo { runs_functions: true, ..KindInfo::DEFAULT } },
];

static KINDS: Kinds = Kinds::new();

/// The rows after the built-in ones. They are written in their order, each once.
struct Kinds([OnceLock<Row>; DeviceKind::MOST - DeviceKind::BUILT_IN.len()]);

impl Kinds {
    const fn new() -> Kinds {
        Kinds([const { OnceLock::new() }; DeviceKind::MOST - DeviceKind::BUILT_IN.len()])
    }

    fn row(&self, row: usize) -> Option<&Row> {
        BUILT_IN.get(row).or_else(|| self.0.get(row - BUILT_IN.len())?.get())
    }

    fn register(&self, Row { name, info }: Row) -> Result<DeviceKind, KindError> {
        let begins = name.starts_with(|first: char| first.is_ascii_lowercase());
        let plain = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        if !(begins && plain && name.len() <= 16 && name != "host") {
            return Err(KindError::Name { name });
        }
        if let Some(what) = info.contradiction() {
            return Err(KindError::Contradiction { name, what });
        }
        for place in 0..DeviceKind::MOST {
            // Of threads that come to an empty row together one writes it; the others compare theirs with it, and go on to the next.
            let row = match BUILT_IN.get(place) {
                Some(row) => row,
                None => self.0[place - BUILT_IN.len()].get_or_init(|| Row { name, info }),
            };
            if row.name == name && row.info == info {
                return Ok(DeviceKind::at(place));
            }
            if row.name == name {
                let kinds = (0..DeviceKind::MOST).map_while(|row| Some(self.row(row)?.name)).collect();
                return Err(KindError::Taken { name, known: row.info, kinds });
            }
        }
        Err(KindError::TooMany { name })
    }
}

#[cfg(test)]
#[path = "device_kind_tests.rs"]
mod tests;
