//! Pinning a thread to a core.

use std::io;

/// Has the calling thread run on this core alone.
///
/// # Errors
/// There is no such core, this process may not use it, or the system has no call for it.
#[cfg(target_os = "linux")]
pub(crate) fn pin(core: usize) -> io::Result<()> {
    use rustix::thread::{CpuSet, sched_setaffinity};
    if core >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut cores = CpuSet::new();
    cores.set(core);
    Ok(sched_setaffinity(None, &cores)?)
}

/// Has the calling thread run on this core alone.
///
/// # Errors
/// The system has no call for it.
#[cfg(not(target_os = "linux"))]
pub(crate) fn pin(_: usize) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
