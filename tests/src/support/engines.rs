//! Engines of every kind and mode, for suites that must hold on all of them.

use streamvm::instructions::SoftSyncMode;
use streamvm::stream::Capabilities;
use streamvm::{Mode, Vm, VmBuilder};

/// The engines that run pushed functions, each with its name: inline, on threads ([`threaded`]), and stepped with several seeds, with a
/// pool per device and with one pool.
///
/// # Panics
/// If an engine cannot be built.
pub fn engines() -> Vec<(String, Vm)> {
    builders().into_iter().map(|(name, builder)| (name, builder.build().expect("an engine"))).collect()
}

/// The builders of [`engines`].
pub fn builders() -> Vec<(String, VmBuilder)> {
    let mut engines = vec![("inline".to_owned(), Vm::builder().mode(Mode::Inline))];
    engines.extend(threaded());
    for seed in 0..8 {
        let shared = seed % 2 == 1;
        let name = format!("seed {seed}{}", if shared { ", one pool" } else { "" });
        engines.push((name, Vm::builder().mode(Mode::Simulated { seed }).shared_workers(shared).workers(3)));
    }
    engines
}

/// Builders of engines with 1, 2 and 4 workers a pool, and with one pool for all devices.
pub fn threaded() -> Vec<(String, VmBuilder)> {
    let pools = [("1 worker", false, 1), ("2 workers", false, 2), ("4 workers", false, 4), ("one pool", true, 2)];
    let builder = |shared, workers| Vm::builder().shared_workers(shared).workers(workers);
    pools.map(|(name, shared, workers)| (name.to_owned(), builder(shared, workers))).into()
}

/// Builders of engines that must agree on ordered streams.
pub fn with_streams() -> Vec<(&'static str, VmBuilder)> {
    let host_waits = Capabilities::standard().host_waits_only();
    vec![
        ("inline", Vm::builder().mode(Mode::Inline)),
        ("threaded", Vm::builder()),
        ("threaded, coarser rule", Vm::builder().soft_sync(SoftSyncMode::LastUsedStream)),
        ("threaded, host waits", Vm::builder().capabilities(host_waits)),
        ("threaded, one context, short queue", Vm::builder().cpu_threads(1).max_instructions(16)),
    ]
}
