//! The command on GPUs, over a driver that stands in for NVIDIA's.

use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Output, command, scratch};
use streamvm_standin::Standin;
use tempfile::TempDir;

/// The command where the stand-in is the machine's driver; what the driver objects to goes to the file.
fn with_driver(folder: &Path, settings: &str, findings: &Path) -> Command {
    let mut command = command(folder);
    command
        .env("LD_LIBRARY_PATH", Standin::folder())
        .env("STREAMVM_STANDIN", settings)
        .env("STREAMVM_STANDIN_FINDINGS", findings);
    command
}

/// Runs the command over the stand-in, which must have nothing to object to, what is alive at the end among it.
fn run_on(settings: &str, folder: &Path, args: &[&str]) -> Output {
    let findings = TempDir::new().expect("a folder");
    let file = findings.path().join("findings");
    let output = with_driver(folder, settings, &file).args(args).output().expect("the command starts");
    let found = fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(found, "", "{args:?} with {settings}:\n{}", String::from_utf8_lossy(&output.stderr));
    Output {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Runs a script over the stand-in.
fn run_script(settings: &str, text: &str, args: &[&str]) -> Output {
    let folder = TempDir::new().expect("a folder");
    fs::write(folder.path().join("script.svm"), text).expect("a script");
    run_on(settings, folder.path(), &[&["run"], args, &["script.svm"]].concat())
}

const ONE: &str = "devices=1;leaks=1";
const NONE: &str = "devices=0";

/// A script that holds the device for a while and asks it for results.
const SCRIPT: &str = "device acc = cuda:0\n\
                      let a = copy (fill f32 4 value 2 on host) to acc\n\
                      let b = mul a a\n\
                      let c = neg b\n\
                      print c\n";

#[test]
fn the_example_scripts_do_on_a_gpu_what_they_do_on_the_cpu() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder").join("examples");
    let folder = scratch(&examples);
    // Products of fewer rows and columns, which an interpreter computes in less than a second.
    let mut overlap = fs::read_to_string(examples.join("overlap.svm")).expect("a script");
    for (value, dims) in [("0.001", "256 8"), ("0 ", "8 8"), ("0.06", "8 8"), ("", "8 256")] {
        overlap = overlap.replace(&format!("f32 256 256 value {value}"), &format!("f32 {dims} value {value}"));
    }
    assert!(!overlap.contains("256 256"), "{overlap}");
    fs::write(folder.path().join("overlap.svm"), overlap).expect("a script");
    // Times differ.
    let same = |text: &str| text.lines().filter(|line| !line.contains("rounds on two lanes")).collect::<String>();
    for script in ["digits.svm", "overlap.svm"] {
        for mode in ["threaded", "inline"] {
            let args = ["run", "--mode", mode, script];
            let (cpu, gpu) = (run_on(NONE, folder.path(), &args), run_on(ONE, folder.path(), &args));
            assert_eq!(
                (gpu.code, same(&gpu.stdout), gpu.stderr),
                (0, same(&cpu.stdout), cpu.stderr),
                "{script} {mode}"
            );
            let stats = run_on(ONE, folder.path(), &["run", "--stats", "--mode", mode, script]).stdout;
            assert!(stats.contains("\ncompute@cuda:0:0"), "it ran there: {stats}");
        }
    }
}

/// A line with its numbers as they are shown, without zeros at the end: a GPU may have other last bits, and only exact numbers are shown without them.
fn rounded(line: String) -> String {
    let number = |word: &str| match word.trim_matches(['[', ']']).parse::<f64>() {
        Ok(number) => number.to_string(),
        Err(_) => word.to_owned(),
    };
    line.split_whitespace().map(number).collect::<Vec<_>>().join(" ")
}

/// Every script of the command's own tests, with the GPU in place of the CPU.
#[test]
fn scripts_written_for_the_cpu_do_the_same_on_a_gpu() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let folder = scratch(&here);
    let mut ran = 0;
    let mut names: Vec<_> =
        fs::read_dir(&here).expect("scripts").map(|entry| entry.expect("an entry").file_name()).collect();
    names.sort();
    for name in names {
        let name = name.to_str().expect("a plain name");
        let Some(stem) = name.strip_suffix(".svm") else { continue };
        let text = fs::read_to_string(here.join(name)).expect("a script");
        if !text.contains("cpu:0") || text.starts_with("# args:") || DIFFERENT.contains(&stem) {
            continue;
        }
        let cpu = run_on(NONE, folder.path(), &["run", name]);
        fs::write(folder.path().join(name), text.replace("cpu:0", "cuda:0")).expect("a script");
        let gpu = run_on(ONE, folder.path(), &["run", name]);
        // Times differ, and what underlines a name is as long as it.
        let untimed = |line: &str| line.split(": ").filter(|part| !part.ends_with(" ms")).collect::<String>();
        let on_cpu = |text: &str| -> Vec<String> {
            text.replace("cuda:0", "cpu:0").replace('^', "").lines().map(untimed).map(rounded).collect()
        };
        assert_eq!(
            (gpu.code, on_cpu(&gpu.stdout), on_cpu(&gpu.stderr)),
            (cpu.code, on_cpu(&cpu.stdout), on_cpu(&cpu.stderr)),
            "{name}"
        );
        ran += 1;
    }
    assert!(ran > 10, "{ran} scripts ran");
}

/// Scripts about which devices there are.
const DIFFERENT: &[&str] = &["reject_devices"];

#[test]
fn devices_are_listed_with_the_gpus_of_the_machine() {
    let folder = TempDir::new().expect("a folder");
    for (count, driver) in [(1, "devices=1;leaks=1"), (2, "devices=2;capability=9.0;version=12040;leaks=1")] {
        let output = run_on(driver, folder.path(), &["devices"]);
        let gpus: Vec<&str> = output.stdout.lines().filter(|line| line.starts_with("cuda:")).collect();
        assert_eq!((output.code, gpus.len(), output.stderr.as_str()), (0, count, ""), "{}", output.stdout);
        let says = if count == 1 { "(sm_80, CUDA 13.0)" } else { "(sm_90, CUDA 12.4)" };
        assert!(gpus.iter().all(|line| line.contains(says)), "{}", output.stdout);
        assert!(!output.stdout.contains("no CUDA device"), "{}", output.stdout);
        let output = run_on(driver, folder.path(), &["devices", "--json"]);
        let list: serde_json::Value = serde_json::from_str(&output.stdout).expect("an array");
        let gpus: Vec<_> =
            list.as_array().expect("an array").iter().filter(|device| device["kind"] == "cuda").collect();
        assert_eq!((gpus.len(), output.stderr.as_str()), (count, ""), "{list}");
        assert_eq!((&gpus[0]["device"], &gpus[0]["index"]), (&"cuda:0".into(), &0.into()), "{list}");
    }
}

/// What there is, and one line that says why there is no GPU.
#[test]
fn why_there_is_no_gpu_is_one_line() {
    let folder = TempDir::new().expect("a folder");
    let reasons = [
        ("devices=0", "the CUDA driver (13.0) finds no device; is one there, and does CUDA_VISIBLE_DEVICES show it?"),
        (
            "devices=1;version=11080",
            "the CUDA driver is too old: it does CUDA 11.8, and 12.0 is needed; update the NVIDIA driver",
        ),
        (
            "fail=cuInit:*:STUB_LIBRARY",
            "is the CUDA toolkit's stub, not a driver; take its folder out of LD_LIBRARY_PATH",
        ),
        (
            "fail=cuInit:*:SYSTEM_NOT_READY",
            "the CUDA driver does not start: cuInit gave CUDA_ERROR_SYSTEM_NOT_READY (802)",
        ),
    ];
    for (driver, reason) in reasons {
        let output = run_on(driver, folder.path(), &["devices"]);
        let lines: Vec<&str> = output.stdout.lines().filter(|line| line.starts_with("no CUDA device: ")).collect();
        assert!(matches!(&lines[..], [line] if line.contains(reason)), "{driver}: {}", output.stdout);
        assert_eq!((output.code, output.stderr.as_str()), (0, ""));
        assert!(output.stdout.contains("\ncpu:0 ") && !output.stdout.contains("\ncuda:"), "{}", output.stdout);
        // An array has devices alone.
        let output = run_on(driver, folder.path(), &["devices", "--json"]);
        assert!(serde_json::from_str::<serde_json::Value>(&output.stdout).is_ok(), "{}", output.stdout);
        assert!(output.stderr.starts_with("no CUDA device: ") && output.stderr.contains(reason), "{}", output.stderr);
        assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
    }
}

/// A file in the driver's place that is none; on a machine with a driver it is found first, too.
#[test]
fn a_driver_that_cannot_be_loaded_is_told() {
    let folder = TempDir::new().expect("a folder");
    for name in ["libcuda.so", "libcuda.so.1"] {
        fs::write(folder.path().join(name), "no library").expect("a file");
    }
    let output =
        command(folder.path()).env("LD_LIBRARY_PATH", folder.path()).arg("devices").output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.starts_with("no CUDA device: ")).unwrap_or_default();
    assert!(line.contains("no CUDA driver: ") && line.contains("libcuda.so: file too short"), "{text}");
    assert!(line.ends_with("install the NVIDIA driver, or set LD_LIBRARY_PATH to it"), "{text}");
}

/// What a user does wrong, or the machine does not have: the place in the script, what was tried and found, what to do.
#[test]
fn devices_that_are_not_there_are_told_before_anything_runs() {
    let two = "but only these devices are there: cpu:0, cuda:0, cuda:1";
    let old = "devices=1;version=11080";
    let too_old =
        "no CUDA device: the CUDA driver is too old: it does CUDA 11.8, and 12.0 is needed; update the NVIDIA driver";
    let cases: [(&str, &str, &[&str], &[&str]); 7] = [
        ("devices=2", "device acc = cuda:3\n", &[], &["script.svm:1:8: error: `acc` needs one of cuda:3", two]),
        (
            "devices=2",
            "device acc = gpu:0\n",
            &[],
            &["script.svm:1:14: error: `gpu:0` is no device; expected cpu:<index>, cuda:<index>"],
        ),
        (
            "devices=2",
            "device acc = cuda\n",
            &[],
            &["script.svm:1:14: error: expected a device such as `cpu:0` or `cuda:0`"],
        ),
        ("devices=2", "device acc = cuda:0\n", &["--device", "acc=cuda:9"], &["`acc` was chosen as cuda:9", two]),
        ("devices=2", "let a = fill f32 2 value 1 on cuda:7\n", &[], &["1:31: error: there is no cuda:7", two]),
        (
            old,
            "device acc = cuda:0\n",
            &[],
            &["`acc` needs one of cuda:0, but only these devices are there: cpu:0", too_old],
        ),
        (old, "let a = fill f32 2 value 1 on cuda:0\n", &[], &["there is no cuda:0, but only", too_old]),
    ];
    for (driver, script, args, parts) in cases {
        let output = run_script(driver, script, args);
        assert_eq!((output.code, output.stdout.as_str()), (2, ""), "{script}: {}", output.stderr);
        for part in parts {
            assert!(output.stderr.contains(part), "`{part}` is not in:\n{}", output.stderr);
        }
    }
    // Where there is another choice nothing is said.
    let output = run_script(old, "device acc = cuda:0 else cpu:0\nprint fill f32 1 value 1 on acc\n", &[]);
    assert_eq!((output.code, output.stderr.as_str()), (0, ""));
}

/// A driver takes its time to start, so it is left alone by scripts without a GPU. This one says on stderr that it was asked.
#[test]
fn a_driver_is_looked_for_where_a_script_names_a_gpu() {
    let tell = "no such setting";
    let folder = TempDir::new().expect("a folder");
    let cpu = "device acc = cpu:0\nprint fill f32 1 value 1 on acc # cuda:0\nprint \"cuda:0\"\n";
    for (script, args, asked) in [
        (cpu, &["run"][..], false),
        (cpu, &["check"], false),
        (cpu, &["check", "--races"], false),
        (cpu, &["run", "--device", "acc=cuda:0"], true),
        ("device acc = cuda:0 else cpu:0\nprint fill f32 1 value 1 on acc\n", &["run"], true),
        ("device acc = cuda:0 else cpu:0\nprint fill f32 1 value 1 on acc\n", &["check"], true),
        ("repeat 2 {\n  let a = fill f32 1 value 1 on cuda:0\n}\n", &["run"], true),
    ] {
        fs::write(folder.path().join("script.svm"), script).expect("a script");
        let output = run_on(tell, folder.path(), &[args, &["script.svm"]].concat());
        assert_eq!(output.stderr.contains("is no setting of the stand-in"), asked, "{args:?}: {}", output.stderr);
        assert!(asked || output.code == 0, "{args:?}: {}", output.stderr);
    }
    // What is there is told as far as it was looked for.
    let output = run_script(ONE, "device acc = cpu:9\n", &[]);
    assert!(output.stderr.contains("but besides GPUs only these devices are there: cpu:0\n"), "{}", output.stderr);
    assert!(run_on(tell, folder.path(), &["devices"]).stderr.contains("is no setting"), "devices are listed whole");
}

#[test]
fn a_script_that_needs_more_memory_than_the_device_has_is_told_where() {
    let script = "device acc = cuda:0\nprint \"before\"\nlet a = fill f32 1024 1024 32 value 1 on acc\nprint a\n";
    for mode in ["threaded", "inline"] {
        let output = run_script("memory=64M;leaks=1", script, &["--mode", mode]);
        assert_eq!((output.code, output.stdout.as_str()), (1, "before\n"), "{}", output.stderr);
        for part in
            ["script.svm:3:", "cuda:0", "134217728 bytes requested", "help: work in smaller parts; other programs"]
        {
            assert!(output.stderr.contains(part), "`{part}` is not in:\n{}", output.stderr);
        }
    }
    let output = run_script(ONE, SCRIPT, &["--memory-limit", "1K"]);
    assert_eq!(output.code, 1, "{}", output.stderr);
    assert!(
        output.stderr.contains("of at most 1024\n") && output.stderr.contains("help: raise the limit"),
        "{}",
        output.stderr
    );
}

/// What was dropped is used again, so a script that asks for more in all than there is runs.
#[test]
fn memory_of_a_device_is_used_again() {
    let script = "device acc = cuda:0\nlet a = fill f32 1024 1024 value 1 on acc\nrepeat 40 {\n  let a = neg a\n}\nprint sum a\n";
    let output = run_script("memory=32M;leaks=1", script, &[]);
    assert_eq!((output.code, output.stdout.as_str()), (0, "sum a: f32[] 1.0486e6\n"), "{}", output.stderr);
}

#[test]
fn faults_of_the_driver_name_the_statement() {
    let cases: [(&str, &str, &[&str]); 6] = [
        ("fail=cuLaunchKernel:1:INVALID_VALUE", ":3:", &["cuda:0: cuLaunchKernel gave CUDA_ERROR_INVALID_VALUE (1)"]),
        ("fail=cuMemcpyAsync:1:INVALID_VALUE", ":2:", &["cuda:0: cuMemcpyAsync gave CUDA_ERROR_INVALID_VALUE (1)"]),
        (
            "fail=cuDevicePrimaryCtxRetain:1:OUT_OF_MEMORY",
            "from line 2 on",
            &[
                "cuDevicePrimaryCtxRetain gave CUDA_ERROR_OUT_OF_MEMORY (2)",
                "(at the first use of the device; do other programs hold it",
            ],
        ),
        (
            "fail=cuModuleLoadDataEx:1:INVALID_PTX",
            "from line 2 on",
            &["cuModuleLoadDataEx gave CUDA_ERROR_INVALID_PTX (218)"],
        ),
        ("fail=cuStreamCreateWithPriority:2:INVALID_VALUE", "from line 2 on", &["cuStreamCreateWithPriority gave"]),
        ("illegal=1", "script.svm:", &["cuda:0", "ILLEGAL_ADDRESS (700)", "lost"]),
    ];
    for mode in ["threaded", "inline"] {
        for (fault, place, parts) in cases {
            let output = run_script(&format!("devices=1;{fault}"), SCRIPT, &["--mode", mode]);
            assert_eq!((output.code, output.stdout.as_str()), (1, ""), "{fault} {mode}: {}", output.stderr);
            assert!(output.stderr.contains(place), "{fault} {mode}: {}", output.stderr);
            for part in parts {
                assert!(output.stderr.contains(part), "`{part}` is not in:\n{}", output.stderr);
            }
            assert!(!output.stderr.contains("panicked"), "{}", output.stderr);
        }
    }
}

/// Records and waits that fail slow a script down and change nothing.
#[test]
fn faults_of_events_are_borne() {
    for fault in ["fail=cuEventRecord:1:INVALID_VALUE", "fail=cuStreamWaitEvent:1:INVALID_VALUE"] {
        let output = run_script(&format!("{ONE};{fault}"), SCRIPT, &[]);
        assert_eq!(
            (output.code, output.stdout.as_str(), output.stderr.as_str()),
            (0, "c: f32[4] [-4.0 -4.0 -4.0 -4.0]\n", ""),
            "{fault}"
        );
    }
}

#[test]
fn an_interrupt_ends_a_run_on_a_gpu_at_once() {
    let folder = TempDir::new().expect("a folder");
    let script = "let a = fill f32 64 64 value 0.5 on cuda:0\nprint \"started\"\n\
                  repeat 1000000000 {\n  let a = tanh (matmul a a)\n  print sum a\n}\n";
    fs::write(folder.path().join("a.svm"), script).expect("a script");
    let findings = folder.path().join("findings");
    let mut child = with_driver(folder.path(), "devices=1", &findings)
        .args(["run", "a.svm"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    // The first output shows that the run is under way.
    child.stdout.as_mut().expect("a pipe").read_exact(&mut [0]).expect("output");
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill");
    assert!(sent.success());
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break status;
        }
        if start.elapsed() > Duration::from_secs(10) {
            child.kill().expect("it is killed");
            panic!("still running");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    // A shell shows this as exit code 130.
    assert_eq!(status.signal(), Some(2));
    assert_eq!(fs::read_to_string(findings).unwrap_or_default(), "");
}

#[test]
fn a_trace_that_was_recorded_on_a_gpu_is_judged() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder").join("examples");
    let folder = scratch(&examples);
    let output = run_on(ONE, folder.path(), &["run", "--record", "a.trace", "overlap.svm"]);
    assert_eq!(output.code, 0, "{}", output.stderr);
    assert!(fs::read_to_string(folder.path().join("a.trace")).expect("a trace").contains("compute@cuda:0:1"));
    let output = run_on(NONE, folder.path(), &["verify", "a.trace"]);
    assert!(output.code == 0 && output.stdout.contains("ok: every dependence is ordered"), "{}", output.stdout);
}

/// A copy of a view with gaps needs a kernel of one device that reaches the memory of the other.
#[test]
fn a_device_reaches_the_memory_of_one_with_an_index_past_64() {
    let script = "let x = copy (fill f32 2 3 value 7 on host) to cuda:0\n\
                  let there = copy (permute x 1 0) to cuda:65\n\
                  print copy (permute there 1 0) to cuda:0\n";
    let output = run_script("devices=66;leaks=1", script, &[]);
    assert_eq!(output.code, 0, "{}", output.stderr);
    assert_eq!(output.stdout.matches('7').count(), 6, "{}", output.stdout);
}

/// What the tests of this file rely on: what the driver finds is in the file. A stream that cannot be ended is left.
#[test]
fn what_the_driver_finds_is_seen() {
    let folder = TempDir::new().expect("a folder");
    fs::write(folder.path().join("a.svm"), SCRIPT).expect("a script");
    let file = folder.path().join("findings");
    let output = with_driver(folder.path(), "leaks=1;fail=cuStreamDestroy_v2:1:INVALID_VALUE", &file)
        .args(["run", "a.svm"])
        .output();
    assert_eq!(output.expect("it starts").status.code(), Some(0));
    assert!(fs::read_to_string(&file).is_ok_and(|found| !found.is_empty()));
}
