//! CPU affinity: pins a thread to one core.

use std::io;

/// Pins the calling thread to `core`, by the number that the operating system gives it.
///
/// # Errors
/// The core does not exist, this process may not use it, or the system call fails otherwise.
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

/// Pins the calling thread to a core, where the operating system supports that; here it does not.
///
/// # Errors
/// Always [`io::ErrorKind::Unsupported`].
#[cfg(not(target_os = "linux"))]
pub(crate) fn pin(_: usize) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
