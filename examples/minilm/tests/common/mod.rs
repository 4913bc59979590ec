//! Engines of every mode, and comparisons of embeddings.

pub(crate) mod drawn;
pub(crate) mod folder;
pub(crate) mod http;
pub(crate) mod served;

use streamvm::{Mode, Vm};

/// Engines that must give the same bits: with several threads, in the calling thread, and in two drawn orders.
pub(crate) fn engines() -> Vec<(&'static str, Vm)> {
    let threads = |threads| Vm::builder().mode(Mode::Threaded).cpu_threads(threads).kernel_threads(threads).build();
    let mode = |mode| Vm::builder().mode(mode).build();
    [
        ("1 thread", threads(1)),
        ("2 threads", threads(2)),
        ("4 threads", threads(4)),
        ("inline", mode(Mode::Inline)),
        ("simulated, seed 1", mode(Mode::Simulated { seed: 1 })),
        ("simulated, seed 2", mode(Mode::Simulated { seed: 2 })),
    ]
    .map(|(name, vm)| (name, vm.expect("an engine")))
    .into()
}

/// The largest difference of two lists of numbers; infinite for a NaN.
pub(crate) fn difference(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let pairs = found.iter().zip(expected).map(|(&found, &expected)| (f64::from(found) - expected).abs());
    pairs.fold(0.0, |worst, next| {
        if next <= worst {
            worst
        } else if next.is_nan() {
            f64::INFINITY
        } else {
            next
        }
    })
}

/// The bits of numbers.
pub(crate) fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}
