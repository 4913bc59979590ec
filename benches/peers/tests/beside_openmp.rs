//! The `beside_openmp` program as a process: what it writes, and what it says of a library that is not there. It needs gcc.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

fn beside_openmp(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_beside_openmp")).args(args).output().unwrap()
}

#[test]
fn a_quick_run_has_time_and_processor_time() {
    let folder = TempDir::new().unwrap();
    let [library, out] = ["openmp_work.so", "some/folder/out.json"].map(|name| folder.path().join(name));
    let [library, out] = [&library, &out].map(|path| path.to_str().unwrap());
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("native/openmp_work.c");
    let flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-fopenmp", "-shared", "-fPIC", "-o", library];
    let compiled = Command::new("gcc").args(flags).arg(source).status().expect("gcc runs");
    assert!(compiled.success());
    let output = beside_openmp(&["--quick", "--runs", "2", "--library", library, "--out", out]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let table = String::from_utf8(output.stdout).unwrap();
    let json: Value = serde_json::from_str(&fs::read_to_string(out).unwrap()).unwrap();
    let rows = json.as_array().unwrap();
    let metrics: Vec<&str> = rows.iter().map(|row| row["metric"].as_str().unwrap()).collect();
    assert_eq!(metrics, ["time_of_both_of_sum", "processor_time_of_both_of_sum"]);
    for row in rows {
        let [min, value, max] = ["min", "value", "max"].map(|key| row[key].as_f64().unwrap());
        assert!(0.0 < min && min <= value && value <= max, "{row}");
        assert!(table.contains(row["metric"].as_str().unwrap()), "{table}");
    }
}

#[test]
fn a_library_that_is_missing_is_named_with_what_builds_it() {
    let output = beside_openmp(&["--quick", "--library", "nowhere/openmp_work.so"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("loading nowhere/openmp_work.so") && text.contains("`make bench-beside`"), "{text}");
}
