//! Engines of every mode, for suites about workers.

use streamvm::{Mode, Vm, VmBuilder};

/// Inline, threaded with 1, 2 and 4 workers, and simulated with several seeds, each with its name.
///
/// # Panics
/// When an engine cannot be built.
pub fn engines() -> Vec<(String, Vm)> {
    let mut engines = vec![("inline".to_owned(), Vm::builder().mode(Mode::Inline))];
    engines.extend(threaded());
    for seed in 0..8 {
        engines.push((format!("seed {seed}"), Vm::builder().mode(Mode::Simulated { seed }).workers(3)));
    }
    engines.into_iter().map(|(name, builder)| (name, builder.build().expect("an engine"))).collect()
}

/// Threaded engines with 1, 2 and 4 workers a pool, to be built.
pub fn threaded() -> Vec<(String, VmBuilder)> {
    [1, 2, 4].map(|workers| (format!("{workers} workers"), Vm::builder().workers(workers))).into()
}
