//! Traces through the command: recorded, judged, and the page that describes them.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::common::{command, scratch, streamvm};
use tempfile::TempDir;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs an example with `--record a.trace` in a folder of its own.
fn recorded(script: &str, args: &[&str]) -> TempDir {
    let folder = scratch(&root().join("examples"));
    let output = streamvm(folder.path(), ["run", "--record", "a.trace", script].iter().chain(args));
    assert_eq!(output.code, 0, "{}{}", output.stdout, output.stderr);
    folder
}

#[test]
fn what_is_recorded_of_the_examples_is_in_order() {
    for script in ["digits.svm", "overlap.svm"] {
        for args in [
            &["--mode", "threaded"][..],
            &["--mode", "inline"],
            &["--mode", "sim:1"],
            &["--mode", "sim:2", "--device", "acc=sim:0"],
        ] {
            let folder = recorded(script, args);
            let output = streamvm(folder.path(), ["verify", "a.trace"]);
            assert_eq!((output.code, output.stderr.as_str()), (0, ""), "{script} {args:?}: {}", output.stdout);
            assert!(output.stdout.ends_with("\nok: every dependence is ordered\n"), "{}", output.stdout);
            assert!(!output.stdout.contains("could go"), "a wait too many, {script} {args:?}: {}", output.stdout);
            assert!(!output.stdout.contains("no \"end\" line"), "{}", output.stdout);
        }
    }
}

#[test]
fn a_trace_names_the_lines_of_the_script() {
    let folder = recorded("digits.svm", &["--mode", "sim:1"]);
    let script = fs::read_to_string(folder.path().join("digits.svm")).unwrap();
    let trace = fs::read_to_string(folder.path().join("a.trace")).unwrap();
    let (mut copies, mut loads) = (0, 0);
    for line in trace.lines() {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        for (body, word, count) in [("instruction", "copy ", &mut copies), ("host", "load ", &mut loads)] {
            let body = &value[body];
            if body["op"] != "copy" && body["op"] != "tensor" {
                continue;
            }
            let location = body["location"].as_str().unwrap();
            let number: usize =
                location.strip_prefix("digits.svm:").unwrap().split(':').next().unwrap().parse().unwrap();
            let statement = script.lines().nth(number - 1).unwrap();
            assert!(statement.contains(word) || body["op"] == "copy", "{location}: {statement}");
            *count += usize::from(statement.contains(word));
        }
    }
    assert!(copies > 2 && loads > 2, "{copies} copies, {loads} loads");
}

/// Takes the first wait of each instruction away, one trace at a time, until the verdict changes: it does, with every one.
#[test]
fn a_trace_that_lacks_any_of_its_waits_is_not_in_order() {
    let folder = recorded("digits.svm", &["--mode", "sim:2", "--device", "acc=sim:0"]);
    let trace = fs::read_to_string(folder.path().join("a.trace")).unwrap();
    let lines: Vec<&str> = trace.lines().collect();
    let waiting: Vec<usize> = (0..lines.len()).filter(|index| lines[*index].contains("\"waits\":[")).collect();
    assert!(waiting.len() > 3, "{trace}");
    for index in waiting {
        let mut value: serde_json::Value = serde_json::from_str(lines[index]).unwrap();
        value["instruction"]["waits"].as_array_mut().unwrap().remove(0);
        let changed = value.to_string();
        let mut broken = lines.clone();
        broken[index] = &changed;
        fs::write(folder.path().join("broken.trace"), broken.join("\n") + "\n").unwrap();
        let output = streamvm(folder.path(), ["verify", "broken.trace"]);
        assert_eq!(output.code, 1, "{changed}\n{}", output.stdout);
        assert!(output.stdout.ends_with("\nnot ok: there are races\n"), "{}", output.stdout);
        assert!(output.stdout.contains(&format!("line {} ", index + 1)), "{}", output.stdout);
    }
}

#[test]
fn a_report_for_programs_is_json_and_a_trace_may_come_from_stdin() {
    let folder = recorded("overlap.svm", &["--mode", "sim:1"]);
    let mut child = command(folder.path())
        .args(["verify", "--json", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&fs::read(folder.path().join("a.trace")).unwrap()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["ok"], &report["complete"]), (&true.into(), &true.into()));
    assert_eq!((&report["missing"]["total"], &report["excess"]["not_tried"]), (&0.into(), &0.into()));
    assert!(report["instructions"].as_u64().unwrap() > 20 && report["dependences"].as_u64().unwrap() > 20);
}

#[test]
fn what_is_no_trace_is_rejected() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("noise"), [0xff; 1000]).unwrap();
    fs::write(folder.path().join("cut"), "{\"streamvm_tra").unwrap();
    fs::write(folder.path().join("a.svm"), "print \"x\"\n").unwrap();
    for (file, says) in [
        ("none", "none: error: cannot read the trace"),
        (".", ".:1: error: the file cannot be read"),
        ("noise", "noise:1: error: "),
        ("a.svm", "a.svm:1: error: a trace starts with {\"streamvm_trace\":1}"),
        ("cut", "cut:1: error: a trace starts with {\"streamvm_trace\":1}"),
        ("/dev/zero", "/dev/zero:1: error: the line is longer than"),
    ] {
        let output = streamvm(folder.path(), ["verify", file]);
        assert_eq!((output.code, output.stdout.as_str()), (2, ""), "{file}: {}", output.stderr);
        assert!(output.stderr.starts_with(says), "{file}: {}", output.stderr);
    }
    assert!(streamvm(folder.path(), ["verify", "a.svm"]).stderr.contains("= help: `streamvm run --record FILE`"));
}

#[test]
fn a_trace_that_is_cut_or_holds_nothing_is_not_ok() {
    let folder = recorded("overlap.svm", &["--mode", "sim:1"]);
    let trace = fs::read(folder.path().join("a.trace")).unwrap();
    let last = trace.iter().filter(|byte| **byte == b'\n').count();
    let before_end = trace[..trace.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    let partial = "not ok: the trace is partial; what is there is in order";
    let nothing = "not ok: the trace holds nothing";
    let in_the_middle = format!("the trace ends in the middle of line {last}: ");
    for (bytes, says, verdict) in [
        (&trace[..trace.len() - 4], in_the_middle.as_str(), partial),
        (&trace[..before_end], "the trace has no \"end\" line: ", partial),
        (b"{\"streamvm_trace\":1}\n", "there is nothing to judge", nothing),
        (b"{\"streamvm_trace\":1}\n{\"end\":{\"lines\":1}}\n", "there is nothing to judge", nothing),
    ] {
        fs::write(folder.path().join("part.trace"), bytes).unwrap();
        let output = streamvm(folder.path(), ["verify", "part.trace"]);
        assert_eq!((output.code, output.stderr.as_str()), (1, ""), "{}", output.stdout);
        assert!(output.stdout.contains(says), "{}", output.stdout);
        assert!(output.stdout.ends_with(&format!("\n{verdict}\n")), "{}", output.stdout);
        let output = streamvm(folder.path(), ["verify", "--json", "part.trace"]);
        let report: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
        assert_eq!((output.code, &report["ok"]), (1, &false.into()), "{report}");
    }
    fs::write(folder.path().join("part.trace"), "").unwrap();
    let output = streamvm(folder.path(), ["verify", "part.trace"]);
    assert_eq!(output.code, 2, "{}", output.stdout);
    assert!(output.stderr.starts_with("part.trace:1: error: the file is empty"), "{}", output.stderr);
}

#[test]
fn a_trace_that_cannot_be_written_fails_the_run() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("a.svm"), "print fill f32 2 value 1 on cpu:0\n").unwrap();
    let output = streamvm(folder.path(), ["run", "--record", "none/a.trace", "a.svm"]);
    assert_eq!((output.code, output.stdout.as_str()), (1, ""));
    assert!(
        output.stderr.starts_with("none/a.trace: error: cannot write the trace: its folder does not exist; make "),
        "{}",
        output.stderr
    );
    if Path::new("/dev/full").exists() {
        let output = streamvm(folder.path(), ["run", "--record", "/dev/full", "a.svm"]);
        assert_eq!(output.code, 1, "{}", output.stderr);
        assert!(output.stdout.contains("f32[2]"), "the script itself runs: {}", output.stdout);
        assert!(output.stderr.contains("/dev/full: error: cannot write the trace: "), "{}", output.stderr);
    }
}

#[test]
fn a_failed_run_leaves_a_whole_trace() {
    let folder = TempDir::new().unwrap();
    let script = "let x = fill i32 2 value 1 on cpu:0\nlet zero = fill i32 2 value 0 on cpu:0\nprint div x zero\n";
    fs::write(folder.path().join("a.svm"), script).unwrap();
    let output = streamvm(folder.path(), ["run", "--record", "a.trace", "a.svm"]);
    assert_eq!(output.code, 1, "{}", output.stderr);
    let output = streamvm(folder.path(), ["verify", "a.trace"]);
    assert_eq!(output.code, 0, "{}{}", output.stdout, output.stderr);
    assert!(!output.stdout.contains("no \"end\" line"), "{}", output.stdout);
}

#[test]
fn a_simulated_run_gives_the_same_with_every_seed_and_on_simulated_devices() {
    let folder = scratch(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts"));
    for script in ["ops_elementwise.svm", "ops_reduce.svm", "into.svm", "fail_kernel.svm"] {
        let expected = streamvm(folder.path(), ["run", script]);
        for seed in ["sim:0", "sim:1", "sim:99"] {
            assert_eq!(streamvm(folder.path(), ["run", "--mode", seed, script]), expected, "{script} {seed}");
        }
    }
    let folder = scratch(&root().join("examples"));
    let [here, there] = ["cpu:0", "sim:1"].map(|device| {
        let device = format!("acc={device}");
        streamvm(folder.path(), ["run", "--sim-devices", "2", "--device", &device, "digits.svm"])
    });
    assert_eq!(here.code, 0, "{}", here.stderr);
    assert_eq!(here, there);
}

#[test]
fn races_are_looked_for_without_writing_files() {
    let folder = TempDir::new().unwrap();
    let script = "device d = cuda:1 else cpu:0\nlet a = fill f32 4 value 2 on host\nlet b = copy a to d\nlet c = copy (mul b b) to host\n\
                  save c \"c.npy\"\nexpect load \"c.npy\" == copy c to host\nprint c\n";
    fs::write(folder.path().join("a.svm"), script).unwrap();
    for device in ["d=cuda:1", "d=cpu:0"] {
        let output = streamvm(folder.path(), ["check", "--races", "--device", device, "a.svm"]);
        assert_eq!((output.code, output.stderr.as_str()), (0, ""), "{device}: {}", output.stdout);
        assert!(output.stdout.contains("\nraces: none in "), "{}", output.stdout);
        assert!(!output.stdout.contains("[4.0"), "results are not printed: {}", output.stdout);
        assert!(!folder.path().join("c.npy").exists());
    }
    fs::write(folder.path().join("a.svm"), script.replace("== copy c to host", "== copy b to host")).unwrap();
    let output = streamvm(folder.path(), ["check", "--races", "a.svm"]);
    assert_eq!(output.code, 1, "a run that fails is told: {}", output.stdout);
    assert!(output.stderr.starts_with("a.svm:6:1: error: not as expected"), "{}", output.stderr);
}

/// The traces of `docs/trace.md` are judged as it says.
#[test]
fn the_page_about_traces_is_right() {
    let page = fs::read_to_string(root().join("docs/trace.md")).unwrap();
    let mut blocks = page.split("\n```").skip(1).step_by(2).map(|block| block.split_once('\n').unwrap());
    let folder = TempDir::new().unwrap();
    let mut judged = 0;
    while let Some((kind, text)) = blocks.next() {
        if kind != "json" {
            continue;
        }
        let (kind, expected) = blocks.next().unwrap();
        assert_eq!(kind, "text");
        fs::write(folder.path().join("a.trace"), format!("{text}\n")).unwrap();
        let output = streamvm(folder.path(), ["verify", "a.trace"]);
        assert_eq!(output.stdout, format!("{expected}\n"), "{}", output.stderr);
        assert_eq!(output.code, i32::from(!expected.ends_with("ok: every dependence is ordered")));
        judged += 1;
    }
    assert_eq!(judged, 2);
}
