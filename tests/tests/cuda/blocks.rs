//! Programs with blocks on a CUDA device, over a driver that stands in for NVIDIA's.

use std::time::Duration;

use streamvm::program::CompileOptions;
use streamvm::{DType, DeviceId, Error, Mode, Vm};
use streamvm_standin::Standin;
use streamvm_tests::compiled::block_scenarios::SCENARIOS;
use streamvm_tests::compiled::blocks::{By, Drawn, compare_drawn, count_to};
use streamvm_tests::within;

const CUDA: DeviceId = DeviceId::cuda(1);
const MODES: [Mode; 2] = [Mode::Threaded, Mode::Inline];

#[test]
fn blocks_do_what_they_must() {
    for (scenario, run) in SCENARIOS {
        for mode in MODES {
            let driver = Standin::load("devices=2;pageable=1;delay=20");
            let said = format!("{scenario}, {mode:?}");
            within(&said, move || {
                let vm = Vm::builder().mode(mode).build().expect("an engine");
                run(&vm, CUDA);
                // It returns the failures that nobody has asked for.
                let _ = vm.shutdown(Duration::from_secs(60));
            });
            assert_eq!(driver.findings(), "", "{said}");
        }
    }
}

#[test]
fn drawn_blocks_compute_what_the_host_computes() {
    for mode in MODES {
        let driver = Standin::load("devices=2;pageable=1;delay=5");
        let vm = Vm::builder().mode(mode).build().expect("an engine");
        let mut drawn = Drawn::default();
        for seed in 1..=40 {
            compare_drawn(&vm, CUDA, seed, &mut drawn);
        }
        assert!(drawn.marks > 400, "{drawn:?}");
        vm.shutdown(Duration::from_secs(60)).expect("it ends");
        assert_eq!(driver.findings(), "", "{mode:?}");
    }
}

/// The steps of a body are captured in the second round, and launched as a graph from then on; so are those between blocks.
#[test]
fn the_steps_of_a_body_are_launched_as_a_graph() -> Result<(), Error> {
    for mode in MODES {
        let driver = Standin::load("devices=2;pageable=1");
        let vm = Vm::builder().mode(mode).build()?;
        let x = vm.full(CUDA, DType::I32, &[], 0)?;
        let program = vm.record("count", |r| count_to(By::Recording(r), CUDA, &r.parameter("x", &x)?, 100))?;
        for (capture, expected) in [(true, [2 + 2 * 3, 1, 99]), (false, [2 + 100 * 3, 0, 0])] {
            let options = CompileOptions { capture, ..CompileOptions::default() };
            let executable = vm.compile(&program, &[("x", &x)], &options)?;
            x.fill(0)?;
            x.wait()?;
            let count =
                || ["cuLaunchKernel", "cuStreamBeginCapture_v2", "cuGraphLaunch"].map(|call| driver.calls(call));
            let before = count();
            executable.run(&[])?.wait()?;
            let after = count();
            assert_eq!(x.to_scalar::<i32>()?, 100);
            // Two kernels come before the loop, and each round has three and two copies. The second round is captured.
            let counts: [u64; 3] = std::array::from_fn(|call| after[call] - before[call]);
            assert_eq!(counts, expected, "{mode:?}, capture: {capture}");
        }
        drop((x, program));
        vm.shutdown(Duration::from_secs(60))?;
        assert_eq!(driver.findings(), "");
    }
    Ok(())
}
