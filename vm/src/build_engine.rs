//! Making an engine from the settings of a [`VmBuilder`].

use std::sync::Arc;

use crossbeam_utils::CachePadded;
use streamvm_cpu::{CpuConfig, CpuDevice};
use streamvm_ep::{DeviceKind, DeviceRegistry, Error as DeviceError};
use streamvm_instructions::{Error, SoftSync};
use streamvm_stream::MAX_STREAMS;

use crate::dispatch::contexts::Contexts;
use crate::engine::core::{Engine, Inline};
use crate::engine::cuda::CudaDevices;
use crate::engine::handle::Handle;
use crate::engine::owners::Left;
use crate::engine::scheduler_thread;
use crate::engine::simulated::Simulated;
use crate::engine::threads::Threads;
use crate::engine::trace_thread;
use crate::engine::worker_sets::PoolConfigs;
use crate::ep::builtin_kernels;
use crate::execute::backpressure::Backpressure;
use crate::execute::completion::Completion;
use crate::execute::context::Context;
use crate::execute::environment::Environment;
use crate::execute::lent_streams::LentStreams;
use crate::execute::locked_context::LockedContext;
use crate::execute::section_gate::SectionGate;
use crate::execute::stall::Stall;
use crate::mode::{Choice, Mode};
use crate::observe::instruments::{Faults, SimMachine};
use crate::program_cache::cache::ProgramCache;
use crate::progress::callbacks::Callbacks;
use crate::progress::failures::Failures;
use crate::progress::stream_state::StreamTable;
use crate::queue::mpsc::MpscQueue;
use crate::submit::state::State;
#[cfg(not(any(loom, shuttle)))]
use crate::sync::engine_thread;
use crate::sync::parker::Parker;
use crate::sync::{AtomicBool, AtomicU64, Builder, Mutex};
use crate::tasks::memory::Heap;
use crate::tasks::timeline::Timeline;
use crate::trace_config::TraceConfig;

use super::VmBuilder;

impl VmBuilder {
    /// [`VmBuilder::build`], but the engine is not open yet.
    pub(crate) fn build_engine(self) -> Result<Arc<Engine>, Error> {
        let asks = self.mode.is_none() && self.shared_workers.is_none();
        let chosen = if asks { Choice::of_environment()?.unwrap_or_default() } else { Choice::default() };
        let mode = self.mode.unwrap_or(chosen.mode);
        let shared = self.shared_workers.unwrap_or(chosen.shared_workers) && mode != Mode::Inline;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = self.cpu_threads.unwrap_or(cores).clamp(1, MAX_STREAMS);
        let inline = (mode == Mode::Inline).then(|| {
            let context = Arc::new(LockedContext::new("inline".to_owned()));
            Inline { run_lock: Mutex::new(Context::new(&context)), context }
        });
        let pools = PoolConfigs { workers: self.workers.unwrap_or(cores), one: shared, ..self.pools };
        let threads = Threads::new(threads, self.cpu_cores, pools);
        let known = Contexts::default();
        if let Some(inline) = &inline {
            known.add(inline.context.handle.clone());
        }
        let callbacks = Arc::new(Callbacks::default());
        let seed = match mode {
            Mode::Simulated { seed } => Some(seed),
            Mode::Threaded | Mode::Inline => None,
        };
        let mut capabilities = self.capabilities;
        let (traces, faults) = (self.instruments.traces(), self.instruments.faults());
        let (machine, observer) = self.instruments.build(seed, &mut capabilities);
        let simulated = seed.map(|seed| {
            callbacks.be_stepped();
            Simulated::new(seed, self.in_order, machine.clone())
        });
        let kernel_threads = match self.cpu.threads {
            Some(threads) => Some(threads),
            None => VmBuilder::kernel_threads_of_environment()?,
        };
        let cpu = CpuConfig { threads: kernel_threads, ..self.cpu };
        let mut devices = devices(self.cpu_devices, &cpu, machine.as_ref(), &faults)?;
        for device in self.devices {
            devices.add(faults.wrap(device))?;
        }
        let mut kernels = builtin_kernels();
        kernels.add_all(&self.kernels);
        let trace = self.trace.map_or_else(TraceConfig::of_environment, Ok)?.map(TraceConfig::open).transpose()?;
        let cuda = Arc::new(CudaDevices::default());
        let tells_ops = self.cuda.as_ref().is_some_and(|config| config.sync_each_op);
        if let Some(mut config) = self.cuda.filter(|_| simulated.is_none()) {
            config.timed = traces || trace.is_some();
            // A copy of pageable memory that is not staged would block the thread that launches, so the device refuses it.
            config.strict_pinned |= capabilities.pinned_only(DeviceKind::CUDA);
            let cuda = cuda.clone();
            devices = devices.with_cuda(move || {
                let found = cuda.open(&config)?.into_iter();
                Ok(found.map(|device| faults.wrap(device)).collect())
            });
        }
        let threaded = inline.is_none() && simulated.is_none();
        // A wait in a registered op must fail on a helper, as it does on a thread of the engine.
        #[cfg(not(any(loom, shuttle)))]
        streamvm_kernels::mark_helpers(engine_thread::enter);
        let sync = SoftSync::new(self.soft_sync, capabilities.clone());
        let mut state = State::new(sync);
        state.plant(self.planted);
        let (handle, me) = Handle::new(state, self.spans);
        let environment = Environment {
            me,
            fork: handle.fork,
            streams: StreamTable::new(),
            failures: CachePadded::new(Failures::new(self.failure_limits)),
            returned: MpscQueue::new(),
            to_scheduler: MpscQueue::new(),
            scheduler: Arc::new(Parker::new()),
            backpressure: CachePadded::new(Backpressure::new()),
            section_gate: SectionGate::new(),
            waiting: CachePadded::default(),
            limits: self.limits,
            stall: Stall::new(self.stall_after),
            charged_bytes: AtomicU64::new(0),
            contexts: known,
            devices,
            kernels,
            lent_streams: LentStreams::default(),
            tells_ops,
            threaded,
            inline_tasks: inline.is_some().then(MpscQueue::new),
            planted: self.planted,
            completion: Completion::new(),
            keeps_waited: observer.is_some() || trace.is_some(),
            observer,
            profiles: self.profiles,
            stamps: self.profiles || trace.is_some(),
            spans: self.spans,
            timeline: trace.as_ref().map(|trace| Timeline::new(trace.name.clone())),
            closed: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            stops_loops: Arc::default(),
        };
        let engine = Arc::new(Engine {
            threads,
            environment,
            handle,
            callbacks,
            host: Arc::new(CpuDevice::new(0, self.host)),
            cuda,
            capabilities,
            staging_piece: self.staging_piece,
            lane_priorities: self.lane_priorities,
            policies: self.policies,
            programs: ProgramCache::new(self.programs),
            inline,
            simulated,
            heap: Heap::default(),
            left: Left::default(),
        });
        if threaded {
            let of_thread = engine.clone();
            let thread = Builder::new()
                .name("streamvm-scheduler".to_owned())
                .spawn(move || scheduler_thread::serve(&of_thread))
                .map_err(|error| Error::NoThread { reason: error.to_string() })?;
            engine.threads.keep(thread);
        }
        if let Some(trace) = trace {
            let of_thread = engine.clone();
            let thread = Builder::new()
                .name("streamvm-trace".to_owned())
                .spawn(move || trace_thread::serve(&of_thread, trace))
                .map_err(|error| {
                    // The scheduler ends, too.
                    engine.end();
                    Error::NoThread { reason: error.to_string() }
                })?;
            engine.threads.keep(thread);
        }
        Ok(engine)
    }
}

/// The CPU and simulated devices of an engine, each with its faults.
fn devices(
    cpus: u32,
    config: &CpuConfig,
    machine: Option<&Arc<SimMachine>>,
    faults: &Faults,
) -> Result<DeviceRegistry, DeviceError> {
    let mut devices = DeviceRegistry::new();
    let cpus = streamvm_cpu::devices(cpus, config);
    for device in cpus.chain(machine.into_iter().flat_map(|machine| machine.devices())) {
        devices.add(faults.wrap(device))?;
    }
    Ok(devices)
}
