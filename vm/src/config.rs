//! How an engine is set up.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_utils::CachePadded;
use streamvm_ep::cuda::CudaConfig;
use streamvm_ep::faults::{FaultPlan, FaultyDevice};
use streamvm_ep::races::Detector;
use streamvm_ep::sim::{SimConfig, SimWorld};
use streamvm_ep::{CpuConfig, CpuDevice, Device, DeviceId, DeviceKind, DeviceRegistry, KernelRegistry};
use streamvm_instructions::{Error, STAGING_PIECE, SoftSync, SoftSyncMode};
use streamvm_stream::Capabilities;
use streamvm_stream::mutant::Planted;

use crate::callbacks::Callbacks;
use crate::completion::Completion;
use crate::context::Context;
use crate::context_shared::ContextShared;
use crate::cuda::CudaDevices;
use crate::engine_kind::EngineKind;
use crate::entry::StreamTable;
use crate::failures::{Failures, Memory};
use crate::handle::Handle;
use crate::inbox::Inbox;
use crate::memory::Heap;
use crate::monitor::Monitor;
use crate::prepare::MOST_ON_WORKERS;
use crate::push::{Pool, PoolConfig, PoolConfigs};
use crate::room::{Limits, Room};
use crate::scheduler;
use crate::shared::{Inline, Shared};
use crate::simulated::Simulated;
use crate::sleep::Sleeper;
use crate::stall::{STALL_AFTER, Stall};
use crate::state::State;
use crate::sync::{AtomicBool, AtomicU64, Builder, Mutex};
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
    /// By the callers that wait, one step of the scheduler, a thread context, the completion or a simulated device at a
    /// time, in an order drawn from the seed: the same program with the same seed runs the same way. Callbacks run in
    /// the caller, before the call that asks for them returns.
    Simulated {
        /// What the order is drawn from.
        seed: u64,
    },
}

/// Instructions pending by default: deep enough that a submitter that stalls for milliseconds starves nobody, and about
/// 15 MiB of slots.
const INSTRUCTIONS: u64 = 16_384;

/// Bytes that pending instructions keep by default: 1 GiB.
const BYTES: u64 = 1 << 30;

/// Sets an engine up; made by [`Vm::builder`].
pub struct VmBuilder {
    /// What the environment says, if the program does not.
    mode: Option<Mode>,
    in_order: bool,
    soft_sync: SoftSyncMode,
    capabilities: Capabilities,
    staging_piece: usize,
    cpu_devices: u32,
    cuda: Option<CudaConfig>,
    sim: SimConfig,
    races: bool,
    faults: Option<Arc<FaultPlan>>,
    trace: Option<Box<dyn Write + Send>>,
    profiles: bool,
    planted: Planted,
    cpu: CpuConfig,
    host: CpuConfig,
    cpu_threads: Option<usize>,
    workers: Option<usize>,
    pools: PoolConfigs,
    limits: Limits,
    memory: Memory,
    stall_after: Duration,
}

impl VmBuilder {
    pub(crate) fn new() -> VmBuilder {
        VmBuilder {
            mode: None,
            in_order: false,
            soft_sync: SoftSyncMode::default(),
            capabilities: Capabilities::standard(),
            staging_piece: STAGING_PIECE,
            cpu_devices: 1,
            cuda: Some(CudaConfig::default()),
            sim: SimConfig { devices: 0, ..SimConfig::default() },
            races: false,
            faults: None,
            trace: None,
            profiles: false,
            planted: Planted::default(),
            cpu: CpuConfig::default(),
            host: CpuConfig::default(),
            cpu_threads: None,
            workers: None,
            pools: PoolConfigs::default(),
            limits: Limits { instructions: INSTRUCTIONS, bytes: BYTES },
            memory: Memory::default(),
            stall_after: STALL_AFTER,
        }
    }

    /// How instructions run. Default: what the engine that the environment names does (see [`VmBuilder::engine`]), else
    /// [`Mode::Threaded`].
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> VmBuilder {
        self.mode = Some(mode);
        self
    }

    /// Which engine runs functions. Sets the [mode](VmBuilder::mode) with it, so of the two the later call counts; but a
    /// simulated engine stays one, and [`EngineKind::Shared`] and [`EngineKind::PerDevice`] say which workers it steps.
    ///
    /// Default: the one that the environment variable `STREAMVM_ENGINE` names (`inline`, `shared` or `per-device`), else
    /// [`EngineKind::PerDevice`]. What a program says here or by [`VmBuilder::mode`] it says on purpose: the variable is not
    /// looked at then.
    ///
    /// ```
    /// use streamvm::{EngineKind, Vm};
    ///
    /// # fn main() -> Result<(), streamvm::Error> {
    /// let vm = Vm::builder().engine(EngineKind::Shared).workers(2).build()?;
    /// vm.push("hello", [], || Ok(()))?.wait()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn engine(mut self, kind: EngineKind) -> VmBuilder {
        self.mode = match (kind, self.mode) {
            (EngineKind::Inline, _) => Some(Mode::Inline),
            (_, stepped @ Some(Mode::Simulated { .. })) => stepped,
            _ => Some(Mode::Threaded),
        };
        self.pools.one = kind == EngineKind::Shared;
        self
    }

    /// In [`Mode::Simulated`], steps whole turns in a fixed order, as the engine's threads take them, and nothing at a
    /// submission: one thread does just what several would, for counting what it costs.
    #[doc(hidden)]
    #[must_use]
    pub fn step_in_order(mut self) -> VmBuilder {
        self.in_order = true;
        self
    }

    /// How many failed points are kept at least before the engine asks which are still needed, and how many root causes wait to be
    /// collected: small numbers have suites find what is forgotten too soon.
    #[doc(hidden)]
    #[must_use]
    pub fn remember_failures(mut self, points: usize, uncollected: usize) -> VmBuilder {
        self.memory = Memory { points, uncollected };
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

    /// How the CUDA devices (`cuda:0`, `cuda:1`, …) are set up, or that none are offered. The driver is looked for when
    /// the first of them is asked for: [`Error::Device`] with [`NoCuda`](streamvm_ep::Error::NoCuda) says why there is
    /// none. [`Mode::Simulated`] offers none, as it runs nothing by itself. Default: offered, with no limits.
    #[must_use]
    pub fn cuda(mut self, config: Option<CudaConfig>) -> VmBuilder {
        self.cuda = config;
        self
    }

    /// How many simulated devices there are (`sim:0`, `sim:1`, …). They run what they are told as late as order allows,
    /// in an order drawn from a seed, and report to the race detector, which they turn on. In
    /// [`Mode::Simulated`] the seed is the mode's. Default: 0.
    #[must_use]
    pub fn sim_devices(mut self, count: u32) -> VmBuilder {
        self.sim.devices = count;
        self
    }

    /// The most memory of each simulated device, in bytes. Default: what the machine has.
    #[must_use]
    pub fn sim_memory_limit(mut self, bytes: u64) -> VmBuilder {
        self.sim.memory_limit = Some(bytes);
        self
    }

    /// Whether simulated devices reach no pageable memory, as a GPU does: copies from and to it go by way of pinned memory,
    /// and one that does not is reported. Default: off.
    #[must_use]
    pub fn sim_pinned_only(mut self, on: bool) -> VmBuilder {
        self.sim.strict_pinned = on;
        self
    }

    /// The most bytes of a copy between pageable memory and a GPU, or a simulated device like one, that are staged in one piece.
    /// A larger copy goes in pieces, so that the host copies one while the device copies another, and takes pinned memory for
    /// two of them; a smaller one takes pinned memory of its size. Default: [`STAGING_PIECE`]; at least one element.
    #[must_use]
    pub fn staging_piece(mut self, bytes: usize) -> VmBuilder {
        self.staging_piece = bytes;
        self
    }

    /// Whether every access is judged by the order that was issued; [`Vm::races`] has what was found. Costs a lock
    /// and a look-up an access. Default: off, on with simulated devices.
    #[must_use]
    pub fn detect_races(mut self, on: bool) -> VmBuilder {
        self.races = on;
        self
    }

    /// Writes down what the engine decides, for an independent checker: instructions, what they touch, waits and
    /// records, one JSON object a line. The writer is called by submitting threads, outside of the engine's locks; it
    /// is flushed when the engine is shut down or dropped. Turns the race detector on.
    #[must_use]
    pub fn record(mut self, trace: impl Write + Send + 'static) -> VmBuilder {
        self.trace = Some(Box::new(trace));
        self
    }

    /// Whether it is counted how often each op and function runs, how long it waited for that and how long it took;
    /// [`Vm::profile`] has it. Costs two looks at the clock an instruction, one a list, and a lock that nobody else wants. Default: off.
    #[must_use]
    pub fn profile(mut self, on: bool) -> VmBuilder {
        self.profiles = on;
        self
    }

    /// Injects the faults of `plan` into every device of the engine, for tests of what must hold when they fail.
    #[must_use]
    pub fn faults(mut self, plan: Arc<FaultPlan>) -> VmBuilder {
        self.faults = Some(plan);
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

    /// The most instructions pending before a submitter blocks. Default: 16,384; at least 1, and at most 1,048,576.
    #[must_use]
    pub fn max_instructions(mut self, instructions: u64) -> VmBuilder {
        self.limits.instructions = instructions.clamp(1, MOST_ON_WORKERS as u64);
        self
    }

    /// The most bytes that pending instructions keep (new outputs, boxed captures) before a submitter blocks; one list
    /// may go past it. Default: 1 GiB; at least 1.
    #[must_use]
    pub fn max_bytes(mut self, bytes: u64) -> VmBuilder {
        self.limits.bytes = bytes.max(1);
        self
    }

    /// Breaks a rule on purpose, so that a suite can prove that it would be found.
    #[doc(hidden)]
    #[cfg(feature = "mutants")]
    #[must_use]
    pub fn mutant(mut self, mutant: streamvm_stream::mutant::Mutant) -> VmBuilder {
        self.planted = Planted::new(mutant);
        self
    }

    /// How long a waiter sees nothing pass before it logs, as a warning and once for each standstill, what blocks the
    /// engine (see [`Vm::stall_report`]). Default: 30 s; [`Duration::MAX`]: never.
    #[must_use]
    pub fn stall_after(mut self, after: Duration) -> VmBuilder {
        self.stall_after = after;
        self
    }

    /// How many workers each pool has: those of one device and lane, unless [`VmBuilder::pool`] says otherwise, or the one pool
    /// of [`EngineKind::Shared`]. Default: one per core; 1 to 64. They are started when the first instruction comes to the pool.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> VmBuilder {
        self.workers = Some(workers);
        self
    }

    /// How the workers of a pool are set up; those of [`Pool::Normal`], [`Pool::CopyIn`] and [`Pool::CopyOut`] are set up alike on every
    /// device, and [`Pool::Inline`] has those of [`Pool::Normal`]. Default: as [`PoolConfig::new`] says.
    #[must_use]
    pub fn pool(mut self, pool: Pool, config: PoolConfig) -> VmBuilder {
        self.pools.set(pool, config);
        self
    }

    /// Builds the engine.
    ///
    /// # Errors
    /// The scheduler's thread could not be started; [`Error::UnknownEngine`] if nothing was said of engine and mode, and
    /// `STREAMVM_ENGINE` holds something else than the name of an engine.
    pub fn build(self) -> Result<Vm, Error> {
        let shared = self.build_shared()?;
        shared.handle.open(&shared);
        Ok(Vm::new(shared))
    }

    pub(crate) fn build_shared(mut self) -> Result<Arc<Shared>, Error> {
        if self.mode.is_none() {
            self = self.engine(EngineKind::of_environment()?.unwrap_or_default());
        }
        let mode = self.mode.unwrap_or_default();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let contexts = self.cpu_threads.unwrap_or(cores).clamp(1, cores);
        let inline = (mode == Mode::Inline).then(|| {
            let context = Arc::new(ContextShared::new("inline".to_owned()));
            Inline { jobs: Inbox::new(), driver: Mutex::new(Context::new(context.clone())), context }
        });
        let pools = PoolConfigs { workers: self.workers.unwrap_or(cores), ..self.pools };
        let threads = Threads::new(contexts, pools);
        if let Some(inline) = &inline {
            threads.adopt(DeviceId::cpu(0), inline.context.clone());
        }
        let callbacks = Arc::new(Callbacks::default());
        let (mut sim, mut capabilities) = (self.sim, self.capabilities);
        capabilities.set_pinned_only(DeviceKind::Sim, sim.strict_pinned);
        if let Mode::Simulated { seed } = mode {
            sim.seed = seed;
            callbacks.be_stepped();
        }
        let detector = (self.races || sim.devices > 0 || self.trace.is_some()).then(|| Arc::new(Detector::new()));
        let world = detector.clone().filter(|_| sim.devices > 0).map(|detector| SimWorld::new(sim, detector));
        let simulated = match mode {
            Mode::Simulated { seed } => Some(Simulated::new(seed, self.in_order, world.clone())),
            Mode::Threaded | Mode::Inline => None,
        };
        let mut devices = devices(self.cpu_devices, self.cpu, world.as_ref(), self.faults.as_ref())?;
        let cuda = Arc::new(CudaDevices::default());
        let tells_ops = self.cuda.as_ref().is_some_and(|config| config.sync_each_op);
        if let Some(mut config) = self.cuda.filter(|_| simulated.is_none()) {
            config.timed = self.trace.is_some();
            // What goes past staging would hold up the thread that launches.
            config.strict_pinned |= capabilities.pinned_only(DeviceKind::Cuda);
            let (faults, cuda) = (self.faults.clone(), cuda.clone());
            devices = devices.with_cuda(move || {
                let found = cuda.open(&config)?.into_iter();
                Ok(found.map(|device| with_faults(device, faults.as_ref())).collect())
            });
        }
        let threaded = inline.is_none() && simulated.is_none();
        let sync = SoftSync::new(self.soft_sync, capabilities.clone());
        let mut state = State::new(sync);
        state.plant(self.planted);
        let (handle, me) = Handle::new(state);
        let shared = Arc::new(Shared {
            handle,
            me,
            streams: StreamTable::new(),
            failures: CachePadded::new(Failures::new(self.memory)),
            returned: Inbox::new(),
            to_scheduler: Inbox::new(),
            scheduler: Arc::new(Sleeper::new()),
            callbacks,
            room: CachePadded::new(Room::new()),
            limits: self.limits,
            stall: Stall::new(self.stall_after),
            charged_bytes: AtomicU64::new(0),
            threads,
            devices,
            host: Arc::new(CpuDevice::new(0, self.host)),
            kernels: KernelRegistry::builtin(),
            cuda,
            tells_ops,
            capabilities,
            staging_piece: self.staging_piece,
            inline,
            simulated,
            planted: self.planted,
            waiting: CachePadded::default(),
            completion: Completion::new(),
            monitor: detector.map(|detector| Monitor::new(detector, self.trace)),
            profiles: self.profiles,
            closed: AtomicBool::new(false),
            heap: Heap::default(),
        });
        if threaded {
            let vm = shared.clone();
            let thread = Builder::new()
                .name("streamvm-scheduler".to_owned())
                .spawn(move || scheduler::serve(vm))
                .map_err(|error| Error::NoThread { reason: error.to_string() })?;
            shared.threads.keep(thread);
        }
        Ok(shared)
    }
}

/// The devices of an engine.
fn devices(
    cpus: u32,
    config: CpuConfig,
    world: Option<&Arc<SimWorld>>,
    faults: Option<&Arc<FaultPlan>>,
) -> Result<DeviceRegistry, Error> {
    let mut devices = DeviceRegistry::new();
    let cpus = (0..cpus).map(|index| Arc::new(CpuDevice::new(index, config.clone())) as Arc<dyn Device>);
    for device in cpus.chain(world.into_iter().flat_map(|world| world.devices())) {
        devices.add(with_faults(device, faults))?;
    }
    Ok(devices)
}

fn with_faults(device: Arc<dyn Device>, faults: Option<&Arc<FaultPlan>>) -> Arc<dyn Device> {
    match faults {
        Some(plan) => FaultyDevice::wrap(device, plan),
        None => device,
    }
}
