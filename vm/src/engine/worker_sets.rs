//! The pools of workers: which there are, which unordered stream each serves, and how each is configured.

use streamvm_ep::DeviceId;
use streamvm_stream::{StreamKey, StreamType};

use crate::dispatch::idle_set;

/// The pool of workers that runs a function.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default)]
pub enum Pool {
    /// The workers of the device for ordinary functions.
    #[default]
    Normal,
    /// Workers that all devices share, for functions that must not wait after ordinary ones.
    Urgent,
    /// The workers of the device for functions that bring data in.
    CopyIn,
    /// The workers of the device for functions that take data out.
    CopyOut,
    /// The workers of [`Pool::Normal`], without a hand-over between threads: the worker that passes the last instruction that the
    /// function waits for runs the function next, before everything that is queued. For functions that are shorter than a
    /// hand-over.
    ///
    /// * If no worker of that pool passes the last instruction (the function waits for none, or another pool or an ordered stream
    ///   passes it), the function is queued as if at [`Priority::High`](crate::Priority::High).
    /// * The thread that pushes never runs the function, except in [`Mode::Inline`](crate::Mode::Inline).
    /// * While one such function follows another on a worker, every 16th function that the worker takes is one from its queues,
    ///   of each priority in turn.
    /// * Functions that become ready at once, by the end of one instruction, run in no particular order.
    Inline,
}

/// The first lane number of unordered streams that the engine uses for its own pools; below it are lanes of the user.
const OWN_LANES: u32 = 1 << 31;

impl Pool {
    /// The unordered stream of this pool for a device.
    pub(crate) fn stream(self, device: DeviceId) -> StreamKey {
        let (device, lane) = match self {
            Pool::Normal | Pool::Inline => (device, 0),
            Pool::Urgent => (DeviceId::cpu(0), OWN_LANES),
            Pool::CopyIn => (device, OWN_LANES + 1),
            Pool::CopyOut => (device, OWN_LANES + 2),
        };
        StreamKey::new(device, StreamType::Workers, lane)
    }
}

/// The configuration of a pool of workers, for [`VmBuilder::pool`](crate::VmBuilder::pool). Anything not set has its default.
#[derive(Clone, Debug, Default)]
pub struct PoolConfig {
    workers: Option<usize>,
    name: Option<String>,
    pub(crate) cores: Vec<usize>,
}

impl PoolConfig {
    /// The default configuration.
    pub fn new() -> PoolConfig {
        PoolConfig::default()
    }

    /// The number of workers, clamped to 1 to 64. Default: [`VmBuilder::workers`](crate::VmBuilder::workers).
    #[must_use]
    pub fn workers(mut self, workers: usize) -> PoolConfig {
        self.workers = Some(workers);
        self
    }

    /// The name of its threads: this name, a dot and a number. The operating system may show the first bytes only. A name is cut
    /// off at its first zero byte. Default: the name of the pool's stream.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> PoolConfig {
        let name: String = name.into();
        self.name = Some(name.split('\0').next().unwrap_or_default().to_owned());
        self
    }

    /// The cores that its workers are pinned to, one core each, by the numbers that the operating system gives them. If there are
    /// more workers than cores, the cores are used again from the first. If pinning fails (no such core, or another system than
    /// Linux), a warning is logged and the worker is not pinned. Default: none, so no worker is pinned.
    #[must_use]
    pub fn cores(mut self, cores: impl IntoIterator<Item = usize>) -> PoolConfig {
        self.cores = cores.into_iter().collect();
        self
    }
}

/// The configuration of all pools of an engine.
#[derive(Clone, Debug, Default)]
pub(crate) struct PoolConfigs {
    /// The number of workers of a pool whose own configuration has none.
    pub(crate) workers: usize,
    /// All functions run on one pool ([`VmBuilder::shared_workers`](crate::VmBuilder::shared_workers)).
    pub(crate) one: bool,
    pub(crate) own: [PoolConfig; 4],
}

impl PoolConfigs {
    /// Sets the configuration of `pool`.
    pub(crate) fn set(&mut self, pool: Pool, config: PoolConfig) {
        self.own[index(pool)] = config;
    }

    /// The unordered stream whose workers run the functions of `stream`: another one if all functions run on one pool.
    pub(crate) fn stream_for(&self, stream: StreamKey) -> StreamKey {
        if self.one { Pool::Normal.stream(DeviceId::cpu(0)) } else { stream }
    }

    /// The workers of an unordered stream. A lane of the user has the default configuration.
    pub(crate) fn of(&self, stream: StreamKey) -> WorkerSet {
        let pools = [Pool::Normal, Pool::Urgent, Pool::CopyIn, Pool::CopyOut];
        let own = pools.into_iter().find(|pool| pool.stream(stream.device) == stream);
        let PoolConfig { workers, name, cores } =
            own.map_or_else(PoolConfig::default, |pool| self.own[index(pool)].clone());
        let workers = workers.unwrap_or(self.workers).clamp(1, idle_set::MOST);
        WorkerSet { workers, name: name.unwrap_or_else(|| stream.to_string()), cores }
    }
}

/// The workers of one pool, as they are to be spawned.
pub(crate) struct WorkerSet {
    pub(crate) workers: usize,
    /// The name of its threads, without their numbers.
    pub(crate) name: String,
    /// The cores that its threads are pinned to; empty for no pinning.
    pub(crate) cores: Vec<usize>,
}

fn index(pool: Pool) -> usize {
    match pool {
        Pool::Normal | Pool::Inline => 0,
        Pool::Urgent => 1,
        Pool::CopyIn => 2,
        Pool::CopyOut => 3,
    }
}
