//! CUDA devices do what the conformance suite asks, over a driver that stands in for NVIDIA's; there, and in drawn programs, also if it runs the PTX of kernels.

#![cfg(target_os = "linux")]

mod ptx;

use streamvm_standin::Standin;
use streamvm_tests::conformance::{Backend, cases, run};

/// As many as a case asks for.
const DEVICES: usize = 3;

#[test]
fn cuda_devices_conform() {
    let backend = Backend::cuda(DEVICES);
    for seed in 0..2 {
        // Devices can write every kind of memory, also one that is not for that.
        let standin = Standin::load(&format!("devices={DEVICES};combined=1;seed={seed}"));
        let report = run(&backend);
        assert!(report.is_ok(), "seed {seed}:\n{report}\n{}", standin.findings());
        let fit = cases().iter().filter(|case| case.needs.iter().all(|&tag| backend.has(tag))).count();
        assert_eq!(report.passed(), fit, "every case that applies has run:\n{report}");
        assert!(fit >= 150, "{fit} cases apply");
        assert_eq!(standin.findings(), "", "what the driver objects to, with seed {seed}");
    }
}
