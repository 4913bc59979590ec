//! The program runs without the other libraries, says what was measured, and compares what the libraries compute.

use std::path::Path;
use std::process::{Command, Output};

fn kernels(filter: &str, options: &[&str], out: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kernels"))
        .args(["--quick", "--runs", "1", "--filter", filter])
        .args(options)
        .arg("--out")
        .arg(out)
        .output()
        .unwrap()
}

#[test]
fn streamvm_alone_is_measured_with_one_and_two_threads() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("kernels.json");
    // A kernel, one with parameters, one with classes, and a call of several ops.
    for case in ["exp_1e5", "conv2d_32x16x4x4_32x3x3", "cross_entropy_1024x1000", "attention_12x128x64"] {
        let run = kernels(case, &["--alone"], &out);
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        let text = String::from_utf8_lossy(&run.stdout);
        assert!(
            text.contains(case) && text.lines().nth(1).is_some_and(|line| line.starts_with("kernels use ")),
            "{text}"
        );
        let measured: serde_json::Value = serde_json::from_slice(&std::fs::read(&out).unwrap()).unwrap();
        let figures = &measured["figures"];
        assert_eq!(figures.as_array().map(Vec::len), Some(2));
        assert!(measured["machine"]["cores"].as_u64() > Some(0));
        assert!(figures[0]["nanoseconds"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn without_avx512_kernels_use_other_vectors_or_nothing_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let run = kernels("matmul_128x384x384", &["--alone", "--mask", "avx512"], &folder.path().join("kernels.json"));
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{text}");
    let second = text.lines().nth(1).unwrap_or_default();
    assert_eq!(
        second,
        match text.lines().next().unwrap_or_default().contains("AVX-512") {
            true => "kernels use AVX2",
            false => "it has no AVX-512 that could be left out",
        }
    );
}

#[test]
fn an_unknown_case_is_rejected() {
    let run = Command::new(env!("CARGO_BIN_EXE_kernels")).args(["--filter", "nothing"]).output().unwrap();
    assert_eq!(run.status.code(), Some(2));
}

/// A driver that answers every question with a number.
#[cfg(unix)]
#[test]
fn a_library_that_computes_something_else_is_not_measured() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    let (out, driver) = (folder.path().join("kernels.json"), folder.path().join("candle"));
    let drivers = ["--drivers", folder.path().to_str().unwrap()];
    let answers = [
        // The compared element, two other numbers, and that the library does not have the case.
        ("relu_1e5", "1.984375", true),
        ("relu_1e5", "0", false),
        ("relu_1e5", "nan", false),
        ("relu_1e5", "-", true),
        // The compared element, its neighbours in sorted order, and what a descending sort gives in its place and beside it.
        ("sort_1e6", "1677724", true),
        ("sort_1e6", "1677702", false),
        ("sort_1e6", "1677746", false),
        ("sort_1e6", "15099469", false),
        ("sort_1e6", "15099447", false),
        // The compared element by another order of additions, nothing, and another element.
        ("attention_12x128x64", "-0.66054", true),
        ("attention_12x128x64", "0", false),
        ("attention_12x128x64", "-0.6627", false),
    ];
    for (case, answer, is_right) in answers {
        std::fs::write(&driver, format!("#!/bin/sh\nwhile read -r line; do echo {answer}; done\n")).unwrap();
        std::fs::set_permissions(&driver, std::fs::Permissions::from_mode(0o755)).unwrap();
        let run = kernels(case, &drivers, &out);
        let told = String::from_utf8_lossy(&run.stderr);
        assert_eq!(run.status.code(), Some(i32::from(!is_right)), "{case}, {answer}: {told}");
        assert_eq!(
            told.contains(&format!("as an element of `{case}`, and streamvm ")),
            !is_right,
            "{case}, {answer}: {told}"
        );
    }
}
