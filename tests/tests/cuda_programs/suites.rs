//! The suites as programs, as a machine with a GPU runs them, over a driver that stands in for NVIDIA's.

#![cfg(target_os = "linux")]

use std::process::{Command, Output};

use streamvm_standin::Standin;

fn over_the_standin(program: &str, settings: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).env("LD_LIBRARY_PATH", Standin::folder()).env("STREAMVM_STANDIN", settings);
    command.output().expect("it starts")
}

pub(super) fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn the_conformance_program_judges_the_devices_of_the_driver() {
    let conformance = env!("CARGO_BIN_EXE_conformance");
    let output = over_the_standin(conformance, "devices=1;delay=5", &["--backend", "cuda", "event"]);
    assert!(output.status.success() && said(&output).contains("cuda"), "{}", said(&output));
    let output = over_the_standin(conformance, "devices=0", &["--backend", "cuda", "event"]);
    assert!(!output.status.success() && said(&output).contains("no CUDA device"), "{}", said(&output));
}

#[test]
fn random_programs_run_from_a_seed() {
    let programs = env!("CARGO_BIN_EXE_cuda_programs");
    let output = over_the_standin(programs, "devices=2;delay=5", &["15", "--seed", "40"]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).starts_with("programs equal to the oracle on 2 CUDA devices: 15 of 15"), "{}", said(&output));
    assert!(said(&output).contains("fused kernels: "), "{}", said(&output));
    // Devices that compute nothing are seen, and soon enough is enough.
    let output = over_the_standin(programs, "devices=2;delay=5;fail=cuLaunchKernel:*:INVALID_VALUE", &["40"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("5 programs have failed; no more are run"), "{}", said(&output));
    let output = over_the_standin(programs, "devices=0", &["1"]);
    assert!(output.status.code() == Some(1) && said(&output).contains("no CUDA device"), "{}", said(&output));
}
