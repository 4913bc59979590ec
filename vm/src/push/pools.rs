//! The pools of an engine's workers: which there are, and how each is set up.

use streamvm_ep::DeviceId;
use streamvm_stream::{StreamKey, StreamType};

use crate::beds;

/// Which workers run a function.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default)]
pub enum Pool {
    /// Those of the device, for whatever is no copy.
    #[default]
    Normal,
    /// Those that all devices share for what must not wait behind ordinary functions.
    Urgent,
    /// Those of the device for what brings data in.
    CopyIn,
    /// Those of the device for what takes data out.
    CopyOut,
    /// Those of [`Pool::Normal`], without a hand-over: the worker of theirs that passes the last thing that the function waits for
    /// runs it next, itself, before all that is queued. Where nobody of theirs does (nothing is waited for, or another pool or a
    /// stream passes it), it is brought to them as if at [`Priority::High`](crate::Priority::High). Never in the thread that pushes. For
    /// functions that are shorter than a hand-over: while one such function follows another, that worker takes one in 16 from what is
    /// queued, of each priority in turn. Those that come free at once, by the end of one instruction, run in no particular order.
    Inline,
}

/// From here on lanes of workers are the engine's own pools.
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

/// How the workers of a pool are set up; see [`VmBuilder::pool`](crate::VmBuilder::pool). What is not said stays as it is by
/// default.
#[derive(Clone, Debug, Default)]
pub struct PoolConfig {
    workers: Option<usize>,
    name: Option<String>,
    pub(crate) cores: Vec<usize>,
}

impl PoolConfig {
    /// Everything by default.
    pub fn new() -> PoolConfig {
        PoolConfig::default()
    }

    /// How many workers it has, 1 to 64. Default: [`VmBuilder::workers`](crate::VmBuilder::workers).
    #[must_use]
    pub fn workers(mut self, workers: usize) -> PoolConfig {
        self.workers = Some(workers);
        self
    }

    /// How its threads are called: this name, a dot and a number. A system may show the first bytes only. Default: the name of the
    /// pool's stream. A name that holds a zero byte is cut off there.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> PoolConfig {
        let name: String = name.into();
        self.name = Some(name.split('\0').next().unwrap_or_default().to_owned());
        self
    }

    /// The cores that its workers are pinned to, one each, by their numbers in the system; where there are more workers than cores they
    /// begin again. Where that is impossible (no such core, or a system other than Linux) a warning is logged, and the worker
    /// runs anywhere. Default: none, so the system decides.
    #[must_use]
    pub fn cores(mut self, cores: impl IntoIterator<Item = usize>) -> PoolConfig {
        self.cores = cores.into_iter().collect();
        self
    }
}

/// How all pools of an engine are set up.
#[derive(Clone, Debug, Default)]
pub(crate) struct PoolConfigs {
    /// Workers of a pool of which nothing else is said.
    pub(crate) workers: usize,
    /// All functions run on one pool.
    pub(crate) one: bool,
    pub(crate) own: [PoolConfig; 4],
}

impl PoolConfigs {
    /// Sets one up.
    pub(crate) fn set(&mut self, pool: Pool, config: PoolConfig) {
        self.own[index(pool)] = config;
    }

    /// The unordered stream whose workers run what is for those of `stream`.
    pub(crate) fn stream_for(&self, stream: StreamKey) -> StreamKey {
        if self.one { Pool::Normal.stream(DeviceId::cpu(0)) } else { stream }
    }

    /// How the pool of an unordered stream is set up.
    pub(crate) fn of(&self, stream: StreamKey) -> Crew {
        let pools = [Pool::Normal, Pool::Urgent, Pool::CopyIn, Pool::CopyOut];
        let own = pools.into_iter().find(|pool| pool.stream(stream.device) == stream);
        let PoolConfig { workers, name, cores } =
            own.map_or_else(PoolConfig::default, |pool| self.own[index(pool)].clone());
        let workers = workers.unwrap_or(self.workers).clamp(1, beds::MOST);
        Crew { workers, name: name.unwrap_or_else(|| stream.to_string()), cores }
    }
}

/// The workers of one pool.
pub(crate) struct Crew {
    pub(crate) workers: usize,
    /// Of its threads, before their numbers.
    pub(crate) name: String,
    /// Those that it is pinned to, if any.
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
