//! How an engine is set up.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};

use crossbeam_utils::CachePadded;
use streamvm_ep::{CpuConfig, CpuDevice, DeviceId, DeviceRegistry, KernelRegistry};
use streamvm_instructions::{Engine, Error, SoftSync, SoftSyncMode};
use streamvm_stream::Capabilities;

use crate::callbacks::Callbacks;
use crate::context::{Context, ContextShared};
use crate::entry::StreamTable;
use crate::handle::Handle;
use crate::inbox::Inbox;
use crate::memory::Heap;
use crate::room::{Limits, Room};
use crate::scheduler;
use crate::shared::{Inline, Shared};
use crate::sleep::Sleeper;
use crate::state::State;
use crate::threads::Threads;
use crate::vm::Vm;

/// How instructions run.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// On thread contexts, out of the caller's way.
    #[default]
    Threaded,
    /// Each instruction to completion, in program order, in the thread that submits it: the naive engine, and the
    /// oracle for every other mode.
    Inline,
}

/// Instructions pending by default: deep enough that a submitter that stalls for milliseconds starves nobody, and about
/// 8 MB of slots.
const INSTRUCTIONS: u64 = 16_384;

/// Bytes that pending instructions keep by default: 1 GiB.
const BYTES: u64 = 1 << 30;

/// Sets an engine up; made by [`Vm::builder`].
#[derive(Clone, Debug)]
pub struct VmBuilder {
    mode: Mode,
    soft_sync: SoftSyncMode,
    capabilities: Capabilities,
    cpu_devices: u32,
    cpu: CpuConfig,
    host: CpuConfig,
    cpu_threads: Option<usize>,
    limits: Limits,
}

impl VmBuilder {
    pub(crate) fn new() -> VmBuilder {
        VmBuilder {
            mode: Mode::default(),
            soft_sync: SoftSyncMode::default(),
            capabilities: Capabilities::standard(),
            cpu_devices: 1,
            cpu: CpuConfig::default(),
            host: CpuConfig::default(),
            cpu_threads: None,
            limits: Limits { instructions: INSTRUCTIONS, bytes: BYTES },
        }
    }

    /// How instructions run. Default: [`Mode::Threaded`].
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> VmBuilder {
        self.mode = mode;
        self
    }

    /// Which rule finds the waits. Default: [`SoftSyncMode::Minimal`].
    #[must_use]
    pub fn soft_sync(mut self, mode: SoftSyncMode) -> VmBuilder {
        self.soft_sync = mode;
        self
    }

    /// How streams wait for each other. Default: [`Capabilities::standard`]; a table that makes pairs stricter is
    /// honoured, one that claims more than a device can do is not checked.
    #[must_use]
    pub fn capabilities(mut self, capabilities: Capabilities) -> VmBuilder {
        self.capabilities = capabilities;
        self
    }

    /// How many CPU devices there are (`cpu:0`, `cpu:1`, …), each with memory of its own. Default: 1; at least 1.
    #[must_use]
    pub fn cpu_devices(mut self, count: u32) -> VmBuilder {
        self.cpu_devices = count.max(1);
        self
    }

    /// The most memory of each CPU device, in bytes. Default: what the machine has.
    #[must_use]
    pub fn cpu_memory_limit(mut self, bytes: u64) -> VmBuilder {
        self.cpu.memory_limit = Some(bytes);
        self
    }

    /// The most host memory outside of devices, in bytes. Default: what the machine has.
    #[must_use]
    pub fn host_memory_limit(mut self, bytes: u64) -> VmBuilder {
        self.host.memory_limit = Some(bytes);
        self
    }

    /// The most thread contexts that the streams of one CPU device share. Default: the number of cores, which is also
    /// the upper bound.
    #[must_use]
    pub fn cpu_threads(mut self, threads: usize) -> VmBuilder {
        self.cpu_threads = Some(threads);
        self
    }

    /// The most instructions pending before a submitter blocks. Default: 16,384; at least 1.
    #[must_use]
    pub fn max_instructions(mut self, instructions: u64) -> VmBuilder {
        self.limits.instructions = instructions.max(1);
        self
    }

    /// The most bytes that pending instructions keep (new outputs, boxed captures) before a submitter blocks; one list
    /// may go past it. Default: 1 GiB; at least 1.
    #[must_use]
    pub fn max_bytes(mut self, bytes: u64) -> VmBuilder {
        self.limits.bytes = bytes.max(1);
        self
    }

    /// Builds the engine.
    ///
    /// # Errors
    /// The scheduler's thread could not be started.
    pub fn build(self) -> Result<Vm, Error> {
        let shared = self.build_shared()?;
        let engine: Arc<dyn Engine> = Arc::new(Handle(shared.clone()));
        Ok(Vm::new(shared, engine))
    }

    pub(crate) fn build_shared(self) -> Result<Arc<Shared>, Error> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let contexts = self.cpu_threads.unwrap_or(cores).clamp(1, cores);
        let inline = (self.mode == Mode::Inline).then(|| {
            let context = Arc::new(ContextShared::new("inline".to_owned()));
            Inline { jobs: Inbox::new(), driver: Mutex::new(Context::new(context.clone())), context }
        });
        let threads = Threads::new(contexts);
        if let Some(inline) = &inline {
            threads.adopt(DeviceId::cpu(0), inline.context.clone());
        }
        let threaded = inline.is_none();
        let shared = Arc::new(Shared {
            state: Mutex::new(State::new(SoftSync::new(self.soft_sync, self.capabilities))),
            streams: StreamTable::new(),
            failures: CachePadded::default(),
            releases: CachePadded::default(),
            returned: Inbox::new(),
            to_scheduler: Inbox::new(),
            scheduler: Arc::new(Sleeper::new()),
            callbacks: Arc::new(Callbacks::default()),
            room: CachePadded::new(Room::new()),
            limits: self.limits,
            charged_bytes: AtomicU64::new(0),
            threads,
            devices: DeviceRegistry::with_cpus(self.cpu_devices, self.cpu),
            host: Arc::new(CpuDevice::new(0, self.host)),
            kernels: KernelRegistry::builtin(),
            inline,
            closed: AtomicBool::new(false),
            heap: Heap::default(),
        });
        if threaded {
            let vm = shared.clone();
            let thread = std::thread::Builder::new()
                .name("streamvm-scheduler".to_owned())
                .spawn(move || scheduler::serve(vm))
                .map_err(|error| Error::NoThread { reason: error.to_string() })?;
            shared.threads.keep(thread);
        }
        Ok(shared)
    }
}
