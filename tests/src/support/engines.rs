//! Engines of every kind and mode, for suites that must hold on all of them.

use streamvm::{Capabilities, EngineKind, Mode, SoftSyncMode, Vm, VmBuilder};

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
    let mut engines = vec![("inline".to_owned(), Vm::builder().engine(EngineKind::Inline))];
    engines.extend(threaded());
    for seed in 0..8 {
        let (kind, name) = match seed % 2 {
            0 => (EngineKind::PerDevice, format!("seed {seed}")),
            _ => (EngineKind::Shared, format!("seed {seed}, one pool")),
        };
        engines.push((name, Vm::builder().mode(Mode::Simulated { seed }).engine(kind).workers(3)));
    }
    engines
}

/// Builders of engines with 1, 2 and 4 workers a pool, and with one pool for all devices.
pub fn threaded() -> Vec<(String, VmBuilder)> {
    let per_device = |workers| (format!("{workers} workers"), EngineKind::PerDevice, workers);
    let kinds = [1, 2, 4].map(per_device).into_iter().chain([("one pool".to_owned(), EngineKind::Shared, 2)]);
    kinds.map(|(name, kind, workers)| (name, Vm::builder().engine(kind).workers(workers))).collect()
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
