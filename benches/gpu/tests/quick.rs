//! The programs and `run.sh` as processes, over the driver that stands in for NVIDIA's: what they write, what they say of what
//! is not there, and what fails them.

#![cfg(target_os = "linux")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use streamvm_standin::Standin;
use tempfile::TempDir;

const BENCH: &str = env!("CARGO_BIN_EXE_gpu-bench");
const FAULTS: &str = env!("CARGO_BIN_EXE_gpu-faults");
const RUN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/run.sh");

/// `program` with the stand-in as its driver, which writes what it finds to `findings` of the folder.
fn over_the_standin(program: &str, settings: &str, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env("LD_LIBRARY_PATH", Standin::folder())
        .env("STREAMVM_STANDIN", settings)
        .env("STREAMVM_STANDIN_FINDINGS", folder.join("findings"));
    command
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).expect("it was written")).expect("it is JSON")
}

fn findings(folder: &Path) -> String {
    fs::read_to_string(folder.join("findings")).unwrap_or_default()
}

/// A program of a test's own.
fn script(path: &Path, text: &str) {
    fs::write(path, format!("#!/bin/sh\n{text}\n")).expect("the folder can be written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("the file is there");
}

#[test]
fn every_bench_is_measured_beside_its_references() {
    let folder = TempDir::new().expect("a folder");
    let out = folder.path().join("bench.json");
    let mut command = over_the_standin(BENCH, "delay=5;leaks=1", folder.path());
    let output = command.args(["--quick", "--runs", "2", "--out"]).arg(&out).output().expect("it starts");
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(findings(folder.path()), "", "what the driver objects to");
    let json = read(&out);
    let names: Vec<_> = json["benches"].as_array().expect("benches").iter().map(|bench| &bench["bench"]).collect();
    assert_eq!(
        names,
        ["launch", "add-chain", "chain-program", "loop-program", "overlap", "weights", "allocator", "waits", "kernels"]
    );
    for bench in json["benches"].as_array().expect("benches") {
        assert_eq!(bench["ok"], true, "{bench}");
        let figures = bench["figures"].as_array().expect("figures");
        let of =
            |part: &str| figures.iter().filter(|figure| figure["name"].as_str().unwrap_or("").contains(part)).count();
        assert!(of("streamvm") >= 1 && of("streamvm") < figures.len(), "{bench}");
        for figure in figures {
            let [min, median, max] = ["min", "median", "max"].map(|key| figure[key].as_f64().expect("a number"));
            assert!(0.0 < min && min <= median && median <= max, "{figure}");
        }
        assert!(!bench["ratios"].as_array().expect("ratios").is_empty(), "{bench}");
    }
    let bench = |name: &str| json["benches"].as_array().expect("benches").iter().find(|bench| bench["bench"] == name);
    // Who has multiplied: no cuBLAS is there.
    for name in ["overlap", "weights"] {
        let notes = bench(name).expect("it ran")["notes"].to_string();
        let own = notes.split("products by streamvm: 0 by cuBLAS, ").nth(1).and_then(|rest| rest.split(' ').next());
        assert!(own.and_then(|count| count.parse::<u64>().ok()).is_some_and(|count| count > 0), "{notes}");
    }
    let waits = bench("waits").expect("it ran");
    assert_eq!(waits["missing"], Value::Array(vec![]), "{waits}");
    let figure = |name: &str| {
        let of = waits["figures"].as_array().expect("figures").iter().find(|figure| figure["name"] == name);
        of.unwrap_or_else(|| panic!("no {name}: {waits}"))["median"].as_f64().expect("a number")
    };
    for what in ["waits", "records"] {
        let counted = |who: &str| figure(&format!("{who}, {what}, counted by the stand-in"));
        assert_eq!(figure(&format!("by hand, {what}")), counted("by hand"), "{what}");
        assert!(counted("streamvm") > 0.0, "a pipeline without any is none; {waits}");
        assert!(counted("streamvm") <= counted("by hand"), "{waits}");
        assert!(counted("cudarc's automatic tracking") > counted("by hand"), "{waits}");
    }
}

#[test]
fn a_cublas_that_does_not_start_leaves_the_products_to_the_kernel() {
    let folder = TempDir::new().expect("a folder");
    let out = folder.path().join("bench.json");
    let (driver, cublas) = (Standin::folder(), folder.path().join("libcublas.so"));
    symlink(driver.with_file_name("libstreamvm_standin_cublas.so"), cublas).expect("a link");
    let settings = "delay=5;fail=cublasCreate_v2:*:OUT_OF_MEMORY";
    let mut command = over_the_standin(BENCH, settings, folder.path());
    command.env("LD_LIBRARY_PATH", format!("{}:{}", folder.path().display(), driver.display()));
    command.args(["--quick", "--runs", "1", "--only", "overlap,weights,waits", "--out"]).arg(&out);
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{}", said(&output));
    for bench in &read(&out)["benches"].as_array().expect("benches")[..2] {
        let notes = bench["notes"].to_string();
        assert!(notes.contains("cuBLAS does not start: CUBLAS_STATUS"), "{notes}");
    }
}

#[test]
fn a_bench_that_crashes_leaves_the_figures_of_those_before_it() {
    let folder = TempDir::new().expect("a folder");
    let (python, out) = (folder.path().join("python"), folder.path().join("bench.json"));
    // The child of the second bench ends its parent.
    script(&python, "case $1 in */overlap.py) kill -KILL $PPID ;; *) echo no PyTorch ;; esac");
    let mut command = over_the_standin(BENCH, "delay=5", folder.path());
    command.args(["--quick", "--runs", "1", "--only", "add-chain,overlap", "--python"]).arg(&python);
    let output = command.arg("--out").arg(&out).output().expect("it starts");
    assert_eq!(output.status.code(), None, "{}", said(&output));
    let json = read(&out);
    let names: Vec<_> = json["benches"].as_array().expect("benches").iter().map(|bench| &bench["bench"]).collect();
    assert_eq!(names, ["add-chain"], "{json}");
}

#[test]
fn torch_answers_line_by_line_or_says_why_not() {
    let folder = TempDir::new().expect("a folder");
    let (python, out) = (folder.path().join("python"), folder.path().join("bench.json"));
    script(&python, "echo ready PyTorch of a test\nwhile read line; do echo 0.5; done");
    let measured = |python: &Path| {
        let mut command = over_the_standin(BENCH, "delay=5", folder.path());
        command.args(["--quick", "--runs", "1", "--only", "add-chain", "--python"]).arg(python).arg("--out").arg(&out);
        let output = command.output().expect("it starts");
        assert!(output.status.success(), "{}", said(&output));
        read(&out)["benches"][0].clone()
    };
    let bench = measured(&python);
    // Half a second over 64 additions.
    assert_eq!(bench["figures"][2]["median"], 7_812_500.0, "{bench}");
    assert!(bench["notes"][0].as_str().is_some_and(|note| note.contains("PyTorch of a test")), "{bench}");
    script(&python, "echo no PyTorch: no such module");
    let bench = measured(&python);
    assert_eq!(
        (&bench["ok"], &bench["missing"][0]["why"]),
        (&true.into(), &"no PyTorch: no such module".into()),
        "{bench}"
    );
    let bench = measured(Path::new("/nowhere/python"));
    assert!(bench["missing"][0]["why"].as_str().is_some_and(|why| why.contains("/nowhere/python")), "{bench}");
}

#[test]
fn faults_are_told_and_what_goes_on_goes_on() {
    let folder = TempDir::new().expect("a folder");
    let tried = |settings: &str, case: &str| {
        let output = over_the_standin(FAULTS, settings, folder.path()).arg(case).output().expect("it starts");
        (output.status.code(), said(&output))
    };
    for case in ["memory", "division", "PTX"] {
        let (code, text) = tried("delay=5", case);
        assert!(code == Some(0) && text.contains(": ok\n1 of 1"), "{text}");
    }
    // Its second kernel is the one that goes astray on a real device.
    let (code, text) = tried("delay=5;illegal=2", "address");
    assert!(code == Some(0) && text.contains("illegal address: ok"), "{text}");
    let (code, text) = tried("delay=5", "address");
    assert!(code == Some(1) && text.contains("illegal address: FAILED: what it wrote is Ok"), "{text}");
    assert_eq!(tried("", "no such case").0, Some(1));
}

#[test]
fn without_a_device_one_line_says_so() {
    let folder = TempDir::new().expect("a folder");
    let output = over_the_standin(BENCH, "devices=0", folder.path()).arg("--probe").output().expect("it starts");
    assert_eq!((output.status.code(), said(&output).lines().count()), (Some(3), 1), "{}", said(&output));
    symlink(BENCH, folder.path().join("gpu-bench")).expect("a link");
    let output = over_the_standin(RUN, "devices=0", folder.path()).arg(folder.path()).output().expect("it starts");
    assert_eq!((output.status.code(), said(&output).lines().count()), (Some(3), 1), "{}", said(&output));
    assert!(said(&output).starts_with("no CUDA device: "), "{}", said(&output));
}

/// What does not end is ended, also where it does not listen, and the libraries of PyTorch's wheels are found, without the
/// stub of a driver that may lie beside them.
#[test]
fn a_part_that_hangs_is_ended_and_a_stub_of_the_driver_is_not_taken() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let wheels = at("wheels/nvidia/cublas/lib");
    fs::create_dir_all(wheels.join("stubs")).expect("a folder");
    fs::write(wheels.join("libcublas.so.12"), "").expect("a file");
    fs::write(wheels.join("stubs/libcuda.so"), "").expect("a file");
    script(&at("gpu-bench"), "trap '' TERM\nwhile :; do sleep 1; done");
    script(&at("conformance"), "echo $LD_LIBRARY_PATH");
    let mut command = over_the_standin(RUN, "delay=5", folder.path());
    let output = command.arg(folder.path()).env("PYTHONPATH", at("wheels")).env("LIMIT", "1").output();
    let text = said(&output.expect("it starts"));
    assert!(text.contains("the devices cannot be listed"), "{text}");
    let json = read(&at("gpu.json"));
    let libraries = json["suites"][0]["detail"].as_str().unwrap_or_default();
    let python = Command::new("python3").arg("--version").output().is_ok();
    assert_eq!(libraries.contains("wheels/nvidia/cublas/lib"), python, "{libraries}");
    assert!(!libraries.contains("stubs"), "{libraries}");
    assert_eq!((result(&json, "benches"), &json["devices"]), (&"failed".into(), &Value::Null), "{json}");
}

/// `run.sh` with benches and faults of its own and other suites as the test says.
fn run(folder: &Path, python: &str) -> (Option<i32>, String, Value) {
    let mut command = over_the_standin(RUN, "delay=5", folder);
    let output = command
        .arg(folder)
        .env("PYTHON", python)
        .env("OUT", folder.join("out"))
        .env("BENCH_FLAGS", "--quick --runs 1 --only waits")
        .output()
        .expect("it starts");
    (output.status.code(), said(&output), read(&folder.join("out/gpu.json")))
}

fn result<'j>(json: &'j Value, suite: &str) -> &'j Value {
    let suites = json["suites"].as_array().expect("suites");
    suites.iter().find(|found| found["name"] == suite).map_or(&Value::Null, |found| &found["result"])
}

#[test]
fn a_run_goes_on_past_what_fails_and_what_is_missing() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    symlink(BENCH, at("gpu-bench")).expect("a link");
    // A real device refuses the second kernel of this case; the stand-in is told to.
    let told = "[ \"$1\" != address ] || export STREAMVM_STANDIN='delay=5;illegal=2'";
    script(&at("gpu-faults"), &format!("{told}\nexec {FAULTS} \"$@\""));
    fs::create_dir(at("examples")).expect("a folder");
    fs::write(at("examples/one.svm"), "").expect("a file");
    script(&at("cuda_programs"), "echo \"$1 programs, seed $3\"");
    script(&at("streamvm"), "echo 'a \"quoted\" line'; exit 1");

    let (code, text, json) = run(folder.path(), "/nowhere/python");
    assert_eq!((code, &json["passed"]), (Some(1), &false.into()), "{text}");
    assert!(text.contains("no /nowhere/python: PyTorch is left out"), "{text}");
    assert_eq!(result(&json, "conformance"), "missing", "{json}");
    assert_eq!(result(&json, "random programs"), "passed", "{json}");
    assert_eq!(json["suites"][1]["detail"], "300 programs, seed 1");
    assert_eq!(result(&json, "example one.svm"), "failed", "{json}");
    assert!(json["suites"][2]["detail"].as_str().is_some_and(|text| text.ends_with("a \"quoted\" line")), "{json}");
    assert_eq!(result(&json, "fault address"), "passed", "{json}");
    assert_eq!(result(&json, "benches"), "passed", "{json}");
    assert_eq!(json["benches"]["benches"][0]["bench"], "waits", "{json}");
    assert!(json["devices"]["cuda"][0]["name"].as_str().is_some_and(|name| name.contains("Stand-in")), "{json}");

    // All there and well.
    script(&at("conformance"), "exit 0");
    script(&at("streamvm"), "exit 0");
    let (code, text, json) = run(folder.path(), "python3");
    assert_eq!((code, &json["passed"]), (Some(0), &true.into()), "{text}");
    // One suite that fails is enough.
    fs::remove_file(at("gpu-faults")).expect("it is there");
    symlink(FAULTS, at("gpu-faults")).expect("a link");
    let (code, text, json) = run(folder.path(), "python3");
    let suites = json["suites"].as_array().expect("suites");
    let failed: Vec<_> =
        suites.iter().filter(|suite| suite["result"] != "passed").map(|suite| &suite["name"]).collect();
    assert_eq!((code, failed), (Some(1), vec![&Value::from("fault address")]), "{text}");
    fs::remove_file(at("gpu-bench")).expect("it is there");
    let (code, _, json) = run(folder.path(), "python3");
    assert_eq!((code, result(&json, "benches")), (Some(1), &"missing".into()), "{json}");
}
