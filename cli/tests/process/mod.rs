//! What only a process shows: exit codes, signals, closed pipes, options.

mod endings;
mod hostile;
#[cfg(unix)]
mod interrupts;
#[cfg(unix)]
mod launch;
mod outputs;
mod reports;
mod terminal;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::{command, run_text, scratch, streamvm};
use tempfile::TempDir;

/// A script that runs until it is stopped.
const ENDLESS: &str = "let a = fill f32 64 64 value 0.5 on cpu:0\nprint \"started\"\nrepeat 1000000000 {\n  let a = tanh (matmul a a)\n  print sum a\n}\n";

/// The same with a program. What was printed before the first run shows that the script was under way.
const ENDLESS_RUNS: &str = "let a = fill f32 64 64 value 0.5 on cpu:0\nprogram step -> s {\n  tanh a into a\n  let s = sum a\n}\n\
    print \"started\"\nrepeat 1000000000 {\n  let s = run step\n  print s\n}\n";

#[test]
fn noise_of_any_kind_is_rejected_by_the_command() {
    for noise in [vec![0xff; 1_000_000], vec![0; 1_000_000], b"\xf0\x9f\x98\x80".repeat(250_000), vec![b'a'; 3_000_000]]
    {
        for action in ["run", "check", "compile"] {
            let output = run_text(&noise, &[action]);
            assert_eq!((output.code, output.stdout.as_str()), (2, ""), "{}", output.stderr);
            assert!(output.stderr.starts_with("script.svm:"), "{}", output.stderr);
            assert!(!output.stderr.contains("panicked"), "{}", output.stderr);
        }
    }
}

#[test]
fn an_empty_script_is_fine() {
    assert_eq!(run_text("", &["run"]).code, 0);
    assert_eq!(run_text("# nothing", &["check"]).code, 0);
}

#[test]
fn a_script_may_come_from_stdin() {
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("sub")).unwrap();
    let script = "let a = fill f32 2 value 2 on cpu:0\nsave a \"sub/a.npy\"\nprint load \"sub/a.npy\"\n";
    let fed = |args: &[&str], script: &str| {
        let mut child = command(folder.path())
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, out, err) = fed(&["check", "-"], script);
    assert!(code == Some(0) && out.contains("fill") && !folder.path().join("sub/a.npy").exists(), "{out}{err}");
    let printed = "load \"sub/a.npy\": f32[2] [2.0 2.0]\n".to_owned();
    assert_eq!(fed(&["run", "-"], script), (Some(0), printed, String::new()));
    let (code, out, err) = fed(&["run", "-"], "print fll\n");
    assert!(code == Some(2) && out.is_empty() && err.starts_with("-:1:7: error: "), "{out}{err}");
    let program = "program p -> y {\n  let y = fill f32 2 value 1 on cpu:0\n}\n";
    let (code, out, err) = fed(&["compile", "-"], program);
    assert!(code == Some(0) && out.starts_with("program p on cpu:0\n"), "{out}{err}");
    // The file that stdin comes from is the script, which a `save` may not replace.
    let path = folder.path().join("a.npy");
    fs::write(&path, "save fill f32 2 value 2 on host \"a.npy\"\n").unwrap();
    let output = command(folder.path()).args(["run", "-"]).stdin(fs::File::open(&path).unwrap()).output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && err.contains("this file is the script itself"), "{err}");
}

#[test]
fn odd_files_in_place_of_a_script_are_rejected() {
    let folder = TempDir::new().unwrap();
    for (file, says) in
        [(".", "this is a directory"), ("none.svm", "cannot read the script"), ("/dev/zero", "longer than")]
    {
        let output = streamvm(folder.path(), ["run", file]);
        assert_eq!(output.code, 2, "{file}");
        assert!(output.stderr.starts_with(file) && output.stderr.contains(says), "{}", output.stderr);
    }
}

#[test]
fn wrong_arguments_are_rejected() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("a.svm"), "device d = cpu:0\n").unwrap();
    for (args, advice) in [
        (vec!["run"], "Usage: streamvm run <FILE>"),
        (vec!["walk", "a.svm"], "Usage: streamvm <COMMAND>"),
        (vec!["run", "none.svm"], "help: the path starts at the current folder, "),
        (vec!["verify", "none.trace"], "help: the path starts at the current folder, "),
        (vec!["run", "a.svm", "--device", "d"], "expected NAME=DEVICE, such as acc=cuda:0"),
        (vec!["run", "a.svm", "--device", "d=gpu:0"], "expected cpu:<index>, cuda:<index>, sim:<index>"),
        (vec!["run", "a.svm", "--device", "e=cpu:0"], "help: it names: d"),
        (vec!["run", "a.svm", "--device", "dd=cpu:0"], "help: did you mean `d`?"),
        (vec!["run", "a.svm", "--device", "d=cuda:99"], "only these devices are there: cpu:0"),
        (vec!["run", "a.svm", "--device", "d=cpu:5"], "help: `--cpu-devices 6` offers it"),
        (vec!["run", "a.svm", "--device", "d=sim:0"], "help: `--sim-devices 1` offers it"),
        (vec!["run", "a.svm", "--mode", "fast"], "expected threaded, inline, or sim:SEED"),
        (vec!["run", "a.svm", "--cpu-devices", "0"], "expected a whole number from 1 to 64"),
        (vec!["run", "a.svm", "--cpu-devices", "two"], "expected a whole number from 1 to 64"),
        (vec!["run", "a.svm", "--sim-devices", "65"], "expected a whole number from 0 to 64"),
    ] {
        let output = streamvm(folder.path(), &args);
        assert_eq!(output.code, 2, "{args:?}: {}", output.stderr);
        assert!(output.stderr.contains("error: "), "{args:?}: {}", output.stderr);
        assert!(output.stderr.contains(advice), "{args:?}: {}", output.stderr);
    }
    assert_eq!(streamvm(folder.path(), ["run", "a.svm", "--device", "d=cpu:0"]).code, 0);
}

#[test]
fn a_second_cpu_device_can_be_used() {
    let text = "device d = cpu:1\nlet a = fill f32 2 value 1 on cpu:0\nprint add (copy a to d) 1\n";
    let output = run_text(text, &["run", "--cpu-devices", "2"]);
    assert_eq!(
        (output.code, output.stdout.as_str()),
        (0, "add (copy a to d) 1: f32[2] [2.0 2.0]\n"),
        "{}",
        output.stderr
    );
    assert_eq!(run_text(text, &["run"]).code, 2);
}

#[test]
fn the_lists_are_written_to_a_file() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("a.svm"), "let a = fill f32 2 value 1 on cpu:0\nprint neg a\nprint abs a\n").unwrap();
    let output = streamvm(folder.path(), ["run", "--dump-ir", "a.list", "a.svm"]);
    assert_eq!(output.code, 0, "{}", output.stderr);
    let list = fs::read_to_string(folder.path().join("a.list")).unwrap();
    assert!(list.contains("# list 1\n") && list.contains("neg") && list.contains("# list 2\n"), "{list}");
    assert_eq!(streamvm(folder.path(), ["run", "--dump-ir", "none/a.list", "a.svm"]).code, 1);
}

#[test]
fn a_planned_list_parses_back() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let folder = scratch(&root.join("examples"));
    for script in ["digits.svm", "overlap.svm"] {
        let output = streamvm(folder.path(), ["check", "--device", "acc=cuda:0", "--dump-ir", "plan.list", script]);
        assert_eq!(output.code, 0, "{}", output.stderr);
        let text = fs::read_to_string(folder.path().join("plan.list")).unwrap();
        assert!(output.stdout.starts_with(&text), "what is printed is not what is written");
        let list: streamvm::InstructionList = text.parse().unwrap();
        assert_eq!(list.to_string(), text, "{script}");
    }
}

/// A file that is `size` bytes of elements long, with a hole: a few bytes on disk. `None` where there are no such files.
fn hollow(size: u64) -> Option<TempDir> {
    let folder = TempDir::new().unwrap();
    let mut header = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({size},), }}");
    header.push_str(&" ".repeat(117 - header.len()));
    header.push('\n');
    let bytes = [b"\x93NUMPY\x01\x00\x76\x00".as_slice(), header.as_bytes()].concat();
    let path = folder.path().join("large.npy");
    fs::write(&path, &bytes).unwrap();
    fs::write(folder.path().join("a.svm"), "let a = load \"large.npy\"\nprint \"loaded\"\n").unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(size + 128).is_ok().then_some(folder)
}

#[test]
fn a_file_larger_than_any_is_refused_unread() {
    let Some(folder) = hollow(1 << 40) else { return };
    for how in ["check", "run"] {
        let output = streamvm(folder.path(), [how, "a.svm"]);
        assert_eq!((output.code, output.stdout.as_str()), (2, ""), "{}", output.stderr);
        assert!(output.stderr.starts_with("a.svm:1:14: error: large.npy: u8[1099511627776] has 1099511627776 bytes"));
    }
}

#[test]
fn a_file_larger_than_memory_is_refused_unread() {
    let Some(folder) = hollow(1 << 30) else { return };
    assert_eq!(streamvm(folder.path(), ["check", "a.svm"]).code, 0);
    let output = streamvm(folder.path(), ["run", "--memory-limit", "64M", "a.svm"]);
    assert_eq!((output.code, output.stdout.as_str()), (1, ""), "{}", output.stderr);
    assert!(output.stderr.starts_with("a.svm:1:14: error: large.npy: the tensor has 1073741824 bytes, more than"));
}

#[test]
fn stats_are_printed_for_a_failed_run_too() {
    let output = run_text("let a = fill f32 2 value 1 on cpu:0\nexpect a == neg a\n", &["run", "--stats"]);
    assert_eq!(output.code, 1);
    assert!(output.stdout.contains("\ncompute@cpu:0:0"), "{}", output.stdout);
    assert!(output.stderr.contains("not as expected"), "{}", output.stderr);
}

#[test]
fn a_profile_is_a_table_for_people_and_an_array_for_programs() {
    let folder = TempDir::new().unwrap();
    let script = "let a = fill f32 2 value 1 on cpu:0\nlet b = neg a\nlet c = neg b\nexpect a == c\n";
    fs::write(folder.path().join("a.svm"), script).unwrap();
    let output = streamvm(folder.path(), ["run", "--profile", "--profile-json", "p.json", "a.svm"]);
    assert_eq!(output.code, 0, "{}", output.stderr);
    let neg = output.stdout.lines().find(|line| line.starts_with("neg ")).expect("a line");
    assert_eq!(neg.split_whitespace().collect::<Vec<_>>()[..5], ["neg", "compute@cpu:0:0", "2", "0", "0"], "{neg}");
    let text = fs::read_to_string(folder.path().join("p.json")).unwrap();
    let ops: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    let neg = ops.iter().find(|op| op["op"] == "neg").expect("an object");
    assert_eq!((&neg["stream"], &neg["count"]), (&"compute@cpu:0:0".into(), &2.into()));
    assert_eq!(neg["workers"][0]["total"], neg["ran"]["total"], "one thread has run it");
    assert!(neg["ran"]["total"].as_u64() >= neg["ran"]["max"].as_u64() && neg["queued"]["max"].is_u64(), "{neg}");
    let output = streamvm(folder.path(), ["run", "--profile-json", "no/p.json", "a.svm"]);
    assert_eq!((output.code, output.stdout.as_str()), (1, ""));
    assert!(output.stderr.starts_with("no/p.json: error: cannot write the profile: "), "{}", output.stderr);
}

#[test]
fn verbose_says_what_runs() {
    let output = run_text("print \"x\"\n", &["run", "--verbose"]);
    assert_eq!(output.stdout, "x\n");
    assert!(output.stderr.contains("script.svm:1: print \"x\""), "{}", output.stderr);
}

#[test]
fn devices_are_listed_for_people_and_programs() {
    let folder = TempDir::new().unwrap();
    let output = streamvm(folder.path(), ["devices"]);
    assert!(output.code == 0 && output.stdout.starts_with("device  name"), "{}", output.stdout);
    assert!(output.stdout.lines().any(|line| line.starts_with("cpu:0 ")), "{}", output.stdout);
    // One or the other, whatever the machine.
    let listed = output.stdout.lines().filter(|line| line.starts_with("cuda:0 ")).count();
    let reasons = output.stdout.lines().filter(|line| line.starts_with("no CUDA device: ")).count();
    assert_eq!(listed + reasons, 1, "{}", output.stdout);
    let output = streamvm(folder.path(), ["devices", "--json", "--cpu-devices", "2"]);
    let list: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
    let cpus = list.as_array().unwrap().iter().filter(|device| device["kind"] == "cpu").count();
    assert_eq!(cpus, 2, "{list}");
}

#[test]
fn a_reader_that_leaves_ends_the_run_quietly() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("a.svm"), ENDLESS).unwrap();
    let mut child =
        command(folder.path()).args(["run", "a.svm"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let status = wait(&mut child, Duration::from_secs(60));
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!((status.code(), stderr.as_str()), (Some(1), ""));
}

fn wait(child: &mut std::process::Child, limit: Duration) -> std::process::ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if start.elapsed() > limit {
            child.kill().unwrap();
            panic!("still running after {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// As the scripts say: lane 1 waits for lane 0 only for what both use (weights, values on the host), and lane 0 for lane 1 only for the last sum.
#[test]
fn lanes_of_the_examples_wait_for_each_other_where_they_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let folder = scratch(&root.join("examples"));
    let of_digits = vec![("compute@cpu:0:1", "h2d@cpu:0:0", 4), ("d2h@cpu:0:1", "compute@cpu:0:0", 1)];
    let of_overlap = vec![
        ("compute@cpu:0:0", "compute@cpu:0:1", 1),
        ("compute@cpu:0:1", "h2d@cpu:0:0", 1),
        ("h2d@cpu:0:1", "compute@cpu:0:0", 1),
    ];
    for (script, expected) in [("digits.svm", of_digits), ("overlap.svm", of_overlap)] {
        let plan = streamvm(folder.path(), ["check", script]).stdout;
        let mut waits = BTreeMap::new();
        for line in plan.lines().filter(|line| line.starts_with('%')) {
            let words: Vec<&str> = line.split_whitespace().collect();
            if words[1] == "wait" && words[2].rsplit(':').next() != words[3].rsplit(':').next() {
                *waits.entry((words[2], words[3])).or_insert(0) += 1;
            }
        }
        let waits: Vec<_> = waits.into_iter().map(|((stream, source), count)| (stream, source, count)).collect();
        assert_eq!(waits, expected, "{script}: {plan}");
    }
}

#[test]
fn the_examples_run() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let folder = scratch(&root.join("examples"));
    for mode in ["threaded", "inline"] {
        let output = streamvm(folder.path(), ["run", "--stats", "--mode", mode, "digits.svm"]);
        assert_eq!(output.code, 0, "{}{}", output.stdout, output.stderr);
        assert!(output.stdout.contains("of 360)"), "{}", output.stdout);
        assert!(output.stdout.contains("h2d@cpu:0:0"), "{}", output.stdout);
        let output = streamvm(folder.path(), ["run", "--mode", mode, "overlap.svm"]);
        assert_eq!(output.code, 0, "{}{}", output.stdout, output.stderr);
    }
    for script in ["digits.svm", "overlap.svm"] {
        let output = streamvm(folder.path(), ["check", "--device", "acc=cuda:0", script]);
        assert_eq!(output.code, 0, "{}{}", output.stdout, output.stderr);
        assert!(output.stdout.contains("compute@cuda:0:0"), "{}", output.stdout);
    }
}
