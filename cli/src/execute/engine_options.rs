//! Options of the engine, and how it is built from them.

use crate::base::engine::{CudaConfig, Mode, Vm, VmBuilder};

/// The options of the engine.
#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    /// How instructions run: threaded, inline or simulated.
    pub mode: Mode,
    /// Number of CPU devices; `None` means one.
    pub cpu_devices: Option<u32>,
    /// Number of simulated devices.
    pub sim_devices: u32,
    /// Most bytes of each device and of the host; `None` means the memory of the machine.
    pub memory_limit: Option<u64>,
}

impl EngineOptions {
    /// Most bytes of a place, if known.
    pub(crate) fn memory(&self) -> Option<u64> {
        self.memory_limit.or_else(machine_memory)
    }

    /// Builds the engine; `more` changes the builder before.
    pub(crate) fn build(&self, more: impl FnOnce(VmBuilder) -> VmBuilder) -> Result<Vm, String> {
        let mut builder = Vm::builder().mode(self.mode).sim_devices(self.sim_devices);
        if let Some(count) = self.cpu_devices {
            builder = builder.cpu_devices(count);
        }
        if let Some(bytes) = self.memory() {
            builder = builder.cpu_memory_limit(bytes).host_memory_limit(bytes).sim_memory_limit(bytes);
        }
        // A GPU has memory of its own, which its driver bounds, so only a limit that the user gave applies.
        builder = builder.cuda(Some(CudaConfig { memory_limit: self.memory_limit, ..CudaConfig::default() }));
        more(builder).build().map_err(|error| error.without_call())
    }
}

/// The memory of this machine in bytes, where `/proc/meminfo` gives it. With this limit a script that asks for too much memory gets
/// an error; without it the system would kill the process.
fn machine_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
