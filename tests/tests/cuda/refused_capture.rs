//! What the engine tells of a capture that the driver refuses.

use log::Level;
use streamvm::{DType, DeviceId, Error, Vm};
use streamvm_standin::Standin;
use streamvm_tests::{logged, single_steps};

use super::programs::{end, run};

const CUDA: DeviceId = DeviceId::cuda(0);

/// The engine tells once for each device that commands run without graphs, and why, whatever the number of programs and runs.
#[test]
fn a_refused_capture_is_told_once() -> Result<(), Error> {
    // The message names the last step that was captured, by its line in this file.
    let told = || logged(Level::Warn, "(log), recorded at tests/tests/cuda/refused_capture.rs");
    assert_eq!(told(), Vec::<String>::new());
    let driver = Standin::load("devices=2;pageable=1");
    let vm = Vm::builder().build()?;
    let x = vm.from_slice(&[1.0f32, 2.0, 3.0], &[3])?.to(CUDA)?;
    for _ in 0..2 {
        let program = vm.record("logarithm", |r| {
            let x = r.feed("x", CUDA, DType::F32, &[3])?;
            r.fetch("y", &(&x.exp()? + &x)?.sqrt()?.log()?)
        })?;
        let executable = vm.compile(&program, &[], &single_steps())?;
        driver.fault("fail=cuGraphInstantiateWithFlags:1:OUT_OF_MEMORY");
        for _ in 0..4 {
            run(&executable, &x)?;
        }
    }
    let told = told();
    assert_eq!(told.len(), 1, "{told:?}");
    for part in ["cuda:0 runs commands without a CUDA graph", "cuGraphInstantiateWithFlags gave code 2"] {
        assert!(told[0].contains(part), "{part} is not in {told:?}");
    }
    drop(x);
    end(vm);
    Ok(())
}
