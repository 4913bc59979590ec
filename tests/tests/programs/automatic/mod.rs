//! Automatic programs: repeated sequences of eager calls are replayed, and nothing but the speed differs from eager calls.

mod failures;
mod operands;
mod replays;
mod threads;
mod waits;

use streamvm::{Error, Mode, Tensor, Vm, VmBuilder};
use streamvm_tests::CPU;

pub(super) fn automatic() -> VmBuilder {
    Vm::builder().auto_program(true)
}

pub(super) fn modes() -> [Mode; 3] {
    [Mode::Threaded, Mode::Inline, Mode::Simulated { seed: 7 }]
}

/// The modes without threads. There, which calls are replayed does not depend on time: a thread that is idle for a while keeps its calls.
pub(super) fn steady_modes() -> [Mode; 2] {
    [Mode::Inline, Mode::Simulated { seed: 7 }]
}

pub(super) fn ints(vm: &Vm, elements: &[i32], shape: &[usize]) -> Tensor {
    vm.from_slice(elements, shape).expect("a tensor").to(CPU).expect("a copy")
}

pub(super) fn read(tensor: &Tensor) -> Vec<f32> {
    tensor.to_vec::<f32>().expect("it runs")
}

/// Whether the call that writes a tensor is held back.
pub(super) fn is_held(tensor: &Tensor) -> bool {
    format!("{tensor:?}").contains("held back")
}

/// The first call of [`step`].
pub(super) fn doubled(w: &Tensor) -> Result<Tensor, Error> {
    w + w
}

/// `w` becomes `w / 2 + 1`. Returns `w + w` before that.
pub(super) fn step(w: &Tensor) -> Result<Tensor, Error> {
    let twice = doubled(w)?;
    w.copy_from(&(&(w * 0.5)? + 1.0)?)?;
    Ok(twice)
}

/// The calls of [`step`]: an operation with a number is two.
pub(super) const CALLS: u64 = 6;

/// What [`step`] makes of a number.
pub(super) fn stepped(w: f32) -> f32 {
    w * 0.5 + 1.0
}
