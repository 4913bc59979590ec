//! `streamvm devices` where a CUDA driver is found: one that stands in for NVIDIA's, as the loader finds it.

#![cfg(target_os = "linux")]

use std::process::Command;

use streamvm_standin::Standin;

fn devices(settings: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamvm"));
    command.arg("devices").env("LD_LIBRARY_PATH", Standin::folder()).env("STREAMVM_STANDIN", settings);
    let output = command.output().expect("the command is there");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn devices_are_listed() {
    let text = devices("devices=2");
    for device in ["cuda:0  ", "cuda:1  "] {
        assert_eq!(text.lines().filter(|line| line.starts_with(device)).count(), 1, "{text}");
    }
    assert!(!text.contains("no CUDA device"), "{text}");
}

#[test]
fn one_line_says_why_there_are_none() {
    for (settings, reason) in [
        ("devices=0", "the CUDA driver (13.0) finds no device"),
        ("version=11040", "the CUDA driver is too old: it does CUDA 11.4, and 12.0 is needed"),
        ("fail=cuInit:1:STUB_LIBRARY", "libcuda.so is the CUDA toolkit's stub"),
        (
            "fail=cuInit:1:SYSTEM_DRIVER_MISMATCH",
            "the CUDA driver does not start: cuInit gave CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        ),
    ] {
        let text = devices(settings);
        let reasons: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("no CUDA device: ")).collect();
        assert!(reasons.len() == 1 && reasons[0].starts_with(reason), "with `{settings}`:\n{text}");
        assert!(!text.contains("cuda:"), "{text}");
    }
}
