//! The program runs without the other libraries, and says what was measured.

use std::process::Command;

#[test]
fn streamvm_alone_is_measured_with_one_and_two_threads() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("kernels.json");
    let run = Command::new(env!("CARGO_BIN_EXE_kernels"))
        .args(["--quick", "--runs", "1", "--alone", "--filter", "exp_1e5", "--out"])
        .arg(&out)
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    assert!(String::from_utf8_lossy(&run.stdout).contains("exp_1e5"));
    let measured: serde_json::Value = serde_json::from_slice(&std::fs::read(out).unwrap()).unwrap();
    assert_eq!(measured.as_array().map(Vec::len), Some(2));
    assert!(measured[0]["nanoseconds"].as_f64().unwrap() > 0.0);
}

#[test]
fn an_unknown_case_is_rejected() {
    let run = Command::new(env!("CARGO_BIN_EXE_kernels")).args(["--filter", "nothing"]).output().unwrap();
    assert_eq!(run.status.code(), Some(2));
}
