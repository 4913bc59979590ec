//! The example programs where there is a GPU: they do there what they do on the CPU. A driver that stands in for NVIDIA's
//! plays the GPU, and finds what they leave behind.

#![cfg(all(target_os = "linux", feature = "cuda"))]

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use streamvm_standin::Standin;

/// The program of an example, which `cargo test` builds with this one.
fn program(example: &str) -> PathBuf {
    let own = std::env::current_exe().expect("a process has a binary");
    let built = own.parent().and_then(|deps| deps.parent()).expect("a folder of builds").join("examples").join(example);
    assert!(built.is_file(), "{}: build it with `cargo build --examples -p streamvm`", built.display());
    built
}

/// What the example prints over the stand-in, which must have nothing to object to.
fn run(example: &str, settings: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let findings = folder.path().join("findings");
    let output = Command::new(program(example))
        .env("LD_LIBRARY_PATH", Standin::folder())
        .env("STREAMVM_STANDIN", settings)
        .env("STREAMVM_STANDIN_FINDINGS", &findings)
        .env_remove("RUST_LOG")
        .output()
        .expect("the example starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{example} with {settings}: {stderr}");
    let findings = fs::read_to_string(findings).unwrap_or_default();
    assert_eq!((findings.as_str(), &*stderr), ("", ""), "{example} with {settings}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Without the numbers of instructions: what is read on the host by itself is one on a GPU's streams.
fn unnumbered(text: &str) -> String {
    let mut parts = text.split("(instruction ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.trim_start_matches(|c: char| c.is_ascii_digit()))
}

#[test]
fn examples_that_take_a_gpu_do_there_what_they_do_on_the_cpu() {
    for example in ["eager", "pipeline"] {
        let cpu = run(example, "devices=0");
        for seed in 0..4 {
            let gpu = run(example, &format!("devices=1;leaks=1;seed={seed}"));
            assert!(gpu.contains("cuda:0") && !cpu.contains("cuda:0"), "{example} takes the GPU:\n{gpu}\n{cpu}");
            assert_eq!(unnumbered(&gpu.replace("cuda:0", "cpu:0")), unnumbered(&cpu), "{example}, seed {seed}");
        }
    }
}

/// Eight batches take turns on two lanes, and each lane has streams of its own for its copies in, its three kernels a batch, and its copies out.
#[test]
fn the_pipeline_has_three_streams_on_each_of_two_lanes() {
    let (cpu, gpu) = (run("pipeline", "devices=0"), run("pipeline", "devices=1"));
    for (device, printed) in [("cpu:0", cpu), ("cuda:0", gpu)] {
        let expected = [("compute", 12), ("d2h", 4), ("h2d", 4)]
            .map(|(kind, count)| [0, 1].map(|lane| format!("{count:>3} instructions on {kind}@{device}:{lane}")));
        let streams: Vec<&str> = printed.lines().filter(|line| line.contains(" instructions on ")).collect();
        assert_eq!(streams, expected.concat(), "{printed}");
    }
}

/// A GPU that nobody asks for changes nothing.
#[test]
fn examples_for_the_cpu_leave_a_gpu_alone() {
    for example in ["builder", "custom"] {
        assert_eq!(run(example, "devices=1;leaks=1"), run(example, "devices=0"), "{example}");
    }
}
