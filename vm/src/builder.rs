//! [`VmBuilder`]: the settings of an engine.

use std::sync::Arc;
use std::time::Duration;

use streamvm_cpu::CpuConfig;
use streamvm_cuda::CudaConfig;
use streamvm_ep::{Device, DeviceId, KernelRegistry, Priority};
use streamvm_instructions::{Error, Lane, STAGING_PIECE, SoftSyncMode};
use streamvm_stream::mutant::Planted;
use streamvm_stream::{Capabilities, StreamType, Threads};

use crate::dispatch::dependence_node::MOST_ON_WORKERS;
use crate::engine::lane_priorities::LanePriorities;
use crate::engine::policies::Policies;
use crate::engine::worker_sets::{Pool, PoolConfig, PoolConfigs};
use crate::execute::backpressure::Limits;
use crate::execute::stall::STALL_AFTER;
use crate::mode::Mode;
use crate::observe::instruments::Instruments;
use crate::program_cache::cache::Bounds;
use crate::progress::failures::FailureLimits;
use crate::trace_config::TraceConfig;
use crate::vm::Vm;

#[path = "build_engine.rs"]
mod build_engine;
#[cfg(feature = "sim")]
#[path = "builder_sim.rs"]
mod sim;

/// The default bound on pending instructions: enough that streams stay busy while a submitter stalls for milliseconds. As many
/// node boxes take about 15 MiB.
const INSTRUCTIONS: u64 = 16_384;

/// The default bound on bytes that pending instructions keep: 1 GiB.
const BYTES: u64 = 1 << 30;

/// The default bound on compiled programs that are kept: enough for a few dozen functions of a few shapes each. As many programs of 100 steps
/// with three operands each take 62 MiB of host memory.
const PROGRAMS: usize = 256;

/// The default bound on the bytes that those programs count: 1 GiB.
const PROGRAM_BYTES: u64 = 1 << 30;

/// Configures and builds an engine; made by [`Vm::builder`].
pub struct VmBuilder {
    /// While the program has set neither this nor `shared_workers`, [`VmBuilder::build`] asks the environment.
    mode: Option<Mode>,
    shared_workers: Option<bool>,
    in_order: bool,
    soft_sync: SoftSyncMode,
    capabilities: Capabilities,
    staging_piece: usize,
    cpu_devices: u32,
    devices: Vec<Arc<dyn Device>>,
    kernels: KernelRegistry,
    cuda: Option<CudaConfig>,
    instruments: Instruments,
    profiles: bool,
    spans: bool,
    /// While the program has not set this, [`VmBuilder::build`] asks the environment.
    trace: Option<Option<TraceConfig>>,
    planted: Planted,
    cpu: CpuConfig,
    host: CpuConfig,
    cpu_threads: Option<usize>,
    cpu_cores: Vec<usize>,
    policies: Policies,
    lane_priorities: LanePriorities,
    workers: Option<usize>,
    pools: PoolConfigs,
    limits: Limits,
    failure_limits: FailureLimits,
    stall_after: Duration,
    programs: Bounds,
}

impl VmBuilder {
    pub(crate) fn new() -> VmBuilder {
        VmBuilder {
            mode: None,
            shared_workers: None,
            in_order: false,
            soft_sync: SoftSyncMode::default(),
            capabilities: Capabilities::standard(),
            staging_piece: STAGING_PIECE,
            cpu_devices: 1,
            devices: Vec::new(),
            kernels: KernelRegistry::empty(),
            cuda: Some(CudaConfig::default()),
            instruments: Instruments::default(),
            profiles: false,
            spans: false,
            trace: None,
            planted: Planted::default(),
            cpu: CpuConfig::default(),
            host: CpuConfig::default(),
            cpu_threads: None,
            cpu_cores: Vec::new(),
            policies: Policies::default(),
            lane_priorities: LanePriorities::default(),
            workers: None,
            pools: PoolConfigs::default(),
            limits: Limits { instructions: INSTRUCTIONS, bytes: BYTES },
            failure_limits: FailureLimits::default(),
            stall_after: STALL_AFTER,
            programs: Bounds { programs: PROGRAMS, bytes: PROGRAM_BYTES },
        }
    }

    /// Sets which threads run instructions.
    ///
    /// Default: what the environment variable `STREAMVM_ENGINE` chooses, else [`Mode::Threaded`]. `inline` is [`Mode::Inline`],
    /// `per-device` is [`Mode::Threaded`], and `shared` is [`Mode::Threaded`] with [shared workers](VmBuilder::shared_workers). The
    /// variable is not read if the program calls this method or [`VmBuilder::shared_workers`].
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> VmBuilder {
        self.mode = Some(mode);
        self
    }

    /// Sets whether one pool of workers runs the functions of all devices and [pools](Pool). Default: no, or what the environment
    /// [chooses](VmBuilder::mode).
    ///
    /// * Without, each device has workers of its own for each [`Pool`] that is used, so a busy device or pool does not delay the
    ///   others. All devices share the workers of [`Pool::Urgent`].
    /// * With it, all functions run on one pool, with the configuration of [`Pool::Normal`]; configurations of other pools have no
    ///   effect. Functions for [`Pool::Urgent`] run there with [`Priority::High`](crate::Priority::High).
    ///
    /// Everything else runs on ordered streams, which have their own threads in both cases. [`Mode::Inline`] has no workers.
    ///
    /// ```
    /// # fn main() -> Result<(), streamvm::Error> {
    /// let vm = streamvm::Vm::builder().shared_workers(true).workers(2).build()?;
    /// vm.push("hello", [], || Ok(()))?.wait()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn shared_workers(mut self, shared: bool) -> VmBuilder {
        self.shared_workers = Some(shared);
        self
    }

    /// In [`Mode::Simulated`], takes whole turns in a fixed order, as the engine's threads would, and takes no steps at a
    /// submission. For benchmarks that count processor instructions: one thread does the work of all.
    #[doc(hidden)]
    #[must_use]
    pub fn step_in_order(mut self) -> VmBuilder {
        self.in_order = true;
        self
    }

    /// Sets how many failed points the engine keeps before it searches for those that are no longer needed, and how many root causes
    /// it keeps for waits to collect. For tests: small numbers reveal a failure that is forgotten too soon.
    #[doc(hidden)]
    #[must_use]
    pub fn remember_failures(mut self, points: usize, uncollected: usize) -> VmBuilder {
        self.failure_limits = FailureLimits { points, uncollected };
        self
    }

    /// Sets the rule by which soft sync inserts waits. Default: [`SoftSyncMode::Minimal`].
    #[must_use]
    pub fn soft_sync(mut self, mode: SoftSyncMode) -> VmBuilder {
        self.soft_sync = mode;
        self
    }

    /// Sets the table of how streams wait for each other. Default: [`Capabilities::standard`]. A table may be stricter than that for
    /// any pair of streams. A table that claims more than a device can do is not detected.
    #[must_use]
    pub fn capabilities(mut self, capabilities: Capabilities) -> VmBuilder {
        self.capabilities = capabilities;
        self
    }

    /// Sets the number of CPU devices (`cpu:0`, `cpu:1`, …), each with memory of its own. Default: 1; at least 1.
    #[must_use]
    pub fn cpu_devices(mut self, count: u32) -> VmBuilder {
        self.cpu_devices = count.max(1);
        self
    }

    /// Adds a device of a kind that another crate has [registered](crate::DeviceKind::register), or a further one of a kind that the engine has.
    /// [`VmBuilder::kernels`] gives the engine kernels for it. In [`Mode::Simulated`] its commands run as they do in the other modes.
    /// docs/extending.md says how such a device is written. [`VmBuilder::build`] refuses a second device with the same id.
    #[must_use]
    pub fn device(mut self, device: Arc<dyn Device>) -> VmBuilder {
        self.devices.push(device);
        self
    }

    /// Adds kernels, which neither block nor take a lock of the caller, because a caller that waits may run them. They replace those of the engine and earlier ones for the same op, kind of device and dtype. Default: the kernels of
    /// [`builtin_kernels`](crate::ep::builtin_kernels).
    #[must_use]
    pub fn kernels(mut self, kernels: &KernelRegistry) -> VmBuilder {
        self.kernels.add_all(kernels);
        self
    }

    /// Sets the configuration of the CUDA devices (`cuda:0`, `cuda:1`, …); with `None` the engine has none. The engine searches for
    /// the driver when a program first uses such a device; [`Error::Device`] with [`NoCuda`](streamvm_ep::Error::NoCuda) then says
    /// why there is none. [`Mode::Simulated`] has no CUDA devices, because only stepped parts may run. Default: CUDA devices without
    /// limits.
    #[must_use]
    pub fn cuda(mut self, config: Option<CudaConfig>) -> VmBuilder {
        self.cuda = config;
        self
    }

    /// Sets the most bytes that are staged in one piece, in a copy between pageable memory and a GPU or a
    /// simulated device like one (`VmBuilder::sim_pinned_only`). A larger copy is split into pieces, so that the host copies one piece
    /// while the device copies another; it takes pinned memory for two pieces. A smaller copy takes pinned memory of its own size.
    /// Default: [`STAGING_PIECE`]; at least one element.
    #[must_use]
    pub fn staging_piece(mut self, bytes: usize) -> VmBuilder {
        self.staging_piece = bytes;
        self
    }

    /// Turns profiles on: [`Vm::profile`] then tells how often each op and function ran, how long it was queued and how long it ran.
    /// It costs two clock readings per instruction, one per list, and an uncontended lock per instruction. Default: off.
    #[must_use]
    pub fn profile(mut self, on: bool) -> VmBuilder {
        self.profiles = on;
        self
    }

    /// Gives instructions spans of the crate [`tracing`](https://docs.rs/tracing), for its subscribers and those of OpenTelemetry. Each instruction that runs something gets a span `instruction`
    /// (target `streamvm`, level `INFO`; fields `op`, `stream`, `number`, `line`, and `failed` if it has). It belongs to the subscriber, and is a child of the span, that the submitting thread had at the
    /// submission. It begins when a thread begins to run or launch the instruction, and ends once that has passed. What a function says before it returns is within it; a skipped instruction has none, and
    /// a bulk has one. A thread that waits is in a span `wait`, with `for` and `line`.
    ///
    /// The engine calls the subscriber on its threads, four times or more for each instruction, and without any lock that a submission takes; a panic of it there is logged. Waiting callers then run no
    /// instructions. Default: off.
    #[cfg(feature = "tracing")]
    #[must_use]
    pub fn spans(mut self, on: bool) -> VmBuilder {
        self.spans = on;
        self
    }

    /// Writes a trace of what each stream ran and what it waited for, in the format of [Perfetto](https://ui.perfetto.dev): see the page on observing in the documentation. It is
    /// whole once the engine was shut down, or its last clone dropped; that of a [flight recorder](TraceConfig::last) is written when something fails. Costs two clock readings and an uncontended lock for each instruction, and a thread that writes.
    ///
    /// Default: to the file that the environment variable `STREAMVM_TRACE` names, if it is set, and of the last `STREAMVM_TRACE_LAST` seconds, if that is set; with `None`, there is no trace whatever the variables say.
    #[must_use]
    pub fn trace(mut self, config: impl Into<Option<TraceConfig>>) -> VmBuilder {
        self.trace = Some(config.into());
        self
    }

    /// Sets the most threads that compute one large kernel on a CPU device, the thread that runs the instruction included; at least 1.
    /// Results have the same bits for every number, and small kernels always run on one thread. As many threads run the lanes of a program that was compiled for
    /// several lanes of a CPU.
    ///
    /// Default: the environment variable `STREAMVM_CPU_THREADS`, else the number of cores that the process may use. An engine whose builder
    /// was not given a number is refused if the variable holds anything but a number above 0. The helping threads are started when they are needed first, are shared
    /// by all engines of the process, and sleep while they are not needed.
    #[must_use]
    pub fn kernel_threads(mut self, threads: usize) -> VmBuilder {
        self.cpu.threads = Some(threads);
        self
    }

    /// The number of threads that the environment variable `STREAMVM_CPU_THREADS` sets; `None` if it is unset or empty. For programs that
    /// want to refuse a wrong value before they build an engine; [`VmBuilder::build`] reads the variable by itself.
    ///
    /// # Errors
    /// [`Error::NoThreadCount`] if the variable holds anything but a number above 0.
    pub fn kernel_threads_of_environment() -> Result<Option<usize>, Error> {
        thread_count(&std::env::var_os(KERNEL_THREADS).unwrap_or_default().to_string_lossy())
    }

    /// Sets the most memory of each CPU device, in bytes. Default: no limit but the memory of the machine.
    #[must_use]
    pub fn cpu_memory_limit(mut self, bytes: u64) -> VmBuilder {
        self.cpu.memory_limit = Some(bytes);
        self
    }

    /// Sets the most host memory outside of devices, in bytes. Default: no limit but the memory of the machine.
    #[must_use]
    pub fn host_memory_limit(mut self, bytes: u64) -> VmBuilder {
        self.host.memory_limit = Some(bytes);
        self
    }

    /// Sets the most threads that run the streams of one CPU device. Any of them runs any stream, one thread a stream at a time. More
    /// threads than cores help only functions that block. Default: the number of cores; at least 1, at most 1,024.
    #[must_use]
    pub fn cpu_threads(mut self, threads: usize) -> VmBuilder {
        self.cpu_threads = Some(threads);
        self
    }

    /// Sets the cores that the threads of [`cpu_threads`](VmBuilder::cpu_threads) are pinned to, one core each, by the numbers that the
    /// operating system gives them. With more threads than cores, the cores are used again from the first. If pinning fails (no such core,
    /// or another system than Linux), a warning is logged and the thread is not pinned. Default: none, so no thread is pinned.
    #[must_use]
    pub fn cpu_cores(mut self, cores: impl IntoIterator<Item = usize>) -> VmBuilder {
        self.cpu_cores = cores.into_iter().collect();
        self
    }

    /// Sets the priority of a lane: what is ready on its streams goes before or after what is ready on those of other lanes. So a request can
    /// pass by work in the background, eager calls and runs of programs alike. Results never depend on it.
    ///
    /// * On a CPU, a free thread of the device takes a stream of the highest priority that has something to do. It stays with it for at most
    ///   64 instructions while other streams are ready, and does not interrupt an instruction. One time in 16 it takes a stream of a lower
    ///   priority, each lower priority in turn, so none starves. Callers that wait run what they wait for, whatever its priority.
    /// * A CUDA device is told the priority of each stream when the stream is created; copies from and to the device have the next higher one than
    ///   their lane. CUDA has none below the default, so `Low` counts as `Normal` there.
    /// * Functions on workers have [a priority of their own](crate::Pusher::priority). [`Mode::Inline`](crate::Mode::Inline) and
    ///   [`Mode::Simulated`](crate::Mode::Simulated) have no priorities.
    ///
    /// A run of a program over several lanes uses the lanes from the thread's current one on; each has its own priority. What a stream waits for is
    /// not hurried: a lane of high priority that needs results of a low one waits for them. Default: [`Priority::Normal`] for every lane.
    ///
    /// ```
    /// use streamvm::{DType, DeviceId, Lane, Priority, Vm};
    ///
    /// # fn main() -> Result<(), streamvm::Error> {
    /// let (background, requests) = (Lane(1), Lane(2));
    /// let vm = Vm::builder().lane_priority(background, Priority::Low).lane_priority(requests, Priority::High).build()?;
    /// let _lane = requests.enter();
    /// let answer = vm.ones(DeviceId::cpu(0), DType::F32, &[4])?.exp()?;
    /// # answer.wait()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn lane_priority(mut self, lane: Lane, priority: Priority) -> VmBuilder {
        self.lane_priorities.set(lane, priority);
        self
    }

    /// Chooses the threads that run the streams of a type on a device, on all lanes. [`Threads::Own`](crate::stream::Threads::Own) gives them one thread, which runs no
    /// other streams: functions that block there hold back nothing else of the device. Only ordered streams that share the threads of a CPU have that choice; the
    /// first use of another stream for which threads were chosen gives [`Error::NoStream`]. A caller that waits may still run kernels of such a stream.
    /// [`Mode::Inline`](crate::Mode::Inline) and [`Mode::Simulated`](crate::Mode::Simulated) have no threads for streams.
    ///
    /// ```
    /// use streamvm::stream::Threads;
    /// use streamvm::{DType, DeviceId, StreamType, Vm};
    ///
    /// # fn main() -> Result<(), streamvm::Error> {
    /// let cpu = DeviceId::cpu(0);
    /// let vm = Vm::builder().stream_threads(cpu, StreamType::PinnedCompute, Threads::Own).build()?;
    /// assert_eq!(vm.ones(cpu, DType::F32, &[2])?.to_vec::<f32>()?, [1.0; 2]);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn stream_threads(mut self, device: DeviceId, stream_type: StreamType, threads: Threads) -> VmBuilder {
        self.policies.choose(device, stream_type, threads);
        self
    }

    /// Sets the most instructions that may be pending before a submitter blocks. A longer list is admitted alone. Default: 16,384; at
    /// least 1, and at most 1,048,576.
    #[must_use]
    pub fn max_instructions(mut self, instructions: u64) -> VmBuilder {
        self.limits.instructions = instructions.clamp(1, MOST_ON_WORKERS as u64);
        self
    }

    /// Sets the most bytes that pending instructions may keep (new outputs, boxed captures) before a submitter blocks. The list of a
    /// submitter, and the lists of blocked submitters that are admitted together, may exceed it. Default: 1 GiB; at least 1.
    #[must_use]
    pub fn max_bytes(mut self, bytes: u64) -> VmBuilder {
        self.limits.bytes = bytes.max(1);
        self
    }

    /// Breaks a rule of the engine on purpose, so that a test suite can prove that it detects that.
    #[doc(hidden)]
    #[cfg(feature = "mutants")]
    #[must_use]
    pub fn mutant(mut self, mutant: streamvm_stream::mutant::Mutant) -> VmBuilder {
        self.planted = Planted::new(mutant);
        self
    }

    /// Sets how long a waiter sees no instruction pass before it logs what blocks the engine (see [`Vm::stall_report`]), as a warning
    /// and once for each standstill. Default: 30 s; [`Duration::MAX`]: never.
    #[must_use]
    pub fn stall_after(mut self, after: Duration) -> VmBuilder {
        self.stall_after = after;
        self
    }

    /// Sets the number of workers of each pool, unless [`VmBuilder::pool`] sets another for that pool. There is a pool for each
    /// device and lane that is used, or one in all with [shared workers](VmBuilder::shared_workers). The first submission to a pool
    /// starts its workers. Default: one per core; clamped to 1 to 64.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> VmBuilder {
        self.workers = Some(workers);
        self
    }

    /// Sets the configuration of a pool of workers. That of [`Pool::Normal`], [`Pool::CopyIn`] or [`Pool::CopyOut`] applies to the pools
    /// of every device. [`Pool::Inline`] has the workers and the configuration of [`Pool::Normal`]. Default: [`PoolConfig::new`].
    #[must_use]
    pub fn pool(mut self, pool: Pool, config: PoolConfig) -> VmBuilder {
        self.pools.set(pool, config);
        self
    }

    /// Sets the most compiled programs that [`Vm::compiled`] and [`Vm::jit`] keep; beyond that, the least recently used is
    /// dropped. With 0 none is kept. Default: 256.
    #[must_use]
    pub fn max_cached_programs(mut self, programs: usize) -> VmBuilder {
        self.programs.programs = programs;
        self
    }

    /// Sets the most bytes that the programs kept by [`Vm::compiled`] and [`Vm::jit`] count; beyond that, the least recently
    /// used is dropped. A program counts the memory that one run has beside its feeds, parameters and fetches, and about as much host memory as
    /// it and its plan take. A program that counts more than the bound by itself is not kept, and a warning is logged. Default: 1 GiB.
    #[must_use]
    pub fn max_cached_program_bytes(mut self, bytes: u64) -> VmBuilder {
        self.programs.bytes = bytes;
        self
    }

    /// Builds the engine.
    ///
    /// # Errors
    /// [`Error::NoThread`] if the scheduler thread cannot be started; [`Error::UnknownEngine`] if the program has set neither mode
    /// nor shared workers, and `STREAMVM_ENGINE` has an unknown value; [`Error::NoThreadCount`] if it has not set
    /// [kernel threads](VmBuilder::kernel_threads), and `STREAMVM_CPU_THREADS` is not a number above 0; [`Error::Device`] for two devices
    /// with one id.
    #[track_caller]
    pub fn build(self) -> Result<Vm, Error> {
        let engine = self.build_engine()?;
        engine.handle.open(&engine);
        Ok(Vm::of(engine))
    }
}

/// The environment variable that limits the threads of one CPU kernel.
const KERNEL_THREADS: &str = "STREAMVM_CPU_THREADS";

/// The number of threads in the text of [`KERNEL_THREADS`]; `None` if it is empty.
fn thread_count(text: &str) -> Result<Option<usize>, Error> {
    if text.is_empty() {
        return Ok(None);
    }
    match text.parse() {
        Ok(threads) if threads > 0 => Ok(Some(threads)),
        _ => Err(Error::NoThreadCount { variable: KERNEL_THREADS, found: text.to_owned() }),
    }
}
