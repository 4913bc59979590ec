//! What is left of a run that a signal or a limit of the system ends.

use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use streamvm_report::Packets;
use streamvm_report::packets::TracePacket;
use tempfile::TempDir;

use super::{ENDLESS, ENDLESS_RUNS, wait};
use crate::common::{command, streamvm};

/// One step of a program that takes longer than any test.
const ENDLESS_LOOP: &str = "let yes = fill bool value true on cpu:0\nlet a = fill f32 64 64 value 0.5 on cpu:0\nprogram p -> s {\n  let s = sum a\n  while yes {\n    tanh a into a\n  }\n}\n\
    print \"started\"\nlet s = run p\nprint s\n";

/// Runs a script until it has printed something, sends it a signal, and returns the signal that ended it, with stdout and stderr.
fn interrupted(folder: &Path, text: &str, args: &[&str], signal: &str) -> (Option<i32>, String, String) {
    fs::write(folder.join("a.svm"), text).unwrap();
    let mut child = command(folder)
        .arg("run")
        .args(args)
        .arg("a.svm")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The first output shows that the run is under way.
    let mut printed = vec![0; 1];
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut printed).unwrap();
    let reader = std::thread::spawn(move || {
        out.read_to_end(&mut printed).unwrap();
        String::from_utf8_lossy(&printed).into_owned()
    });
    std::thread::sleep(Duration::from_millis(50));
    let sent = std::process::Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let status = wait(&mut child, Duration::from_secs(10));
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    (status.signal(), reader.join().unwrap(), err)
}

fn names(folder: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> = fs::read_dir(folder).unwrap().map(name).collect();
    names.sort();
    names
}

#[test]
fn an_interrupt_ends_the_run_and_keeps_what_it_has_of_diagnostics() {
    let outputs = ["--record", "a.trace", "--trace", "a.pftrace", "--profile-json", "a.json", "--dump-ir", "a.list"];
    let all = &[&outputs[..], &["--stats", "--profile"]].concat()[..];
    for (text, more, signal, number) in [
        (ENDLESS, &[][..], "-INT", 2),
        (ENDLESS, &["--mode", "inline"], "-TERM", 15),
        (ENDLESS, &["--mode", "sim:1"], "-INT", 2),
        (ENDLESS_RUNS, &[], "-TERM", 15),
        (ENDLESS_RUNS, &["--compiled"], "-INT", 2),
        (ENDLESS_LOOP, &["--compiled", "--most-rounds", "1000000000000"], "-INT", 2),
    ] {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("a.trace"), "of an earlier run").unwrap();
        let (ended, out, err) = interrupted(folder.path(), text, &[all, more].concat(), signal);
        // A shell shows 2 as exit code 130, and 15 as 143.
        assert_eq!(ended, Some(number), "{more:?}: {err}");
        assert_eq!(names(folder.path()), ["a.json", "a.list", "a.pftrace", "a.svm", "a.trace"], "{more:?}: {err}");
        let name = if number == 2 { "SIGINT" } else { "SIGTERM" };
        for what in
            ["a.trace: the trace", "a.pftrace: the trace", "a.json: the profile", "a.list: the instruction list"]
        {
            assert!(err.contains(&format!("{what} is partial: a.svm was interrupted by {name}\n")), "{more:?}: {err}");
        }
        assert!(err.contains(&format!("a.svm: interrupted by {name}: what was printed last ")), "{more:?}: {err}");
        assert!(out.contains("\ncompute@cpu:0:0 ") && out.contains("\nfill "), "{more:?}: {out}");
        let profile: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(folder.path().join("a.json")).unwrap()).unwrap();
        assert!(profile.as_array().is_some_and(|ops| !ops.is_empty()), "{profile}");
        assert!(fs::read_to_string(folder.path().join("a.list")).unwrap().starts_with("# list 1\n"));
        // Whole packets.
        let trace = fs::read(folder.path().join("a.pftrace")).unwrap();
        let trace: io::Result<Vec<TracePacket>> = Packets::new(&trace[..]).collect();
        let trace = trace.unwrap_or_else(|error| panic!("{more:?}: {error}"));
        let has = |name: &str| trace.iter().any(|it| it.track.as_ref().is_some_and(|it| it.name() == name));
        assert!(has("compute@cpu:0:0"), "{more:?}: {} packets", trace.len());
        let judged = streamvm(folder.path(), ["verify", "a.trace"]);
        assert_eq!(judged.code, 1, "{more:?}: {}", judged.stderr);
        let verdict = "the trace has no \"end\" line: what was recorded later is missing\nnot ok: the trace is partial; what is there is in order\n";
        assert!(judged.stdout.ends_with(verdict), "{more:?}: {}", judged.stdout);
    }
}

#[test]
fn a_long_run_tells_how_far_it_is() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("a.svm"), ENDLESS).unwrap();
    let mut run = command(folder.path());
    let mut child =
        run.args(["run", "--progress", "a.svm"]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let lines: Vec<String> =
        BufReader::new(child.stderr.take().unwrap()).lines().take(2).map(|line| line.unwrap()).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    let passed = |line: &str| line.split(' ').nth(2).unwrap().parse::<u64>().unwrap();
    for (line, second) in lines.iter().zip(1..) {
        // A loaded machine may come late.
        let told: u64 = line.split(' ').next().unwrap().parse().unwrap();
        assert!(told >= second && line.ends_with(" of memory in use"), "{line}");
    }
    assert!(0 < passed(&lines[0]) && passed(&lines[0]) < passed(&lines[1]), "{lines:?}");
    // A short run has nothing to tell.
    fs::write(folder.path().join("b.svm"), "print fill f32 value 1 on cpu:0\n").unwrap();
    let short = streamvm(folder.path(), ["run", "--progress", "--trace", "t", "b.svm"]);
    assert_eq!((short.code, short.stderr.as_str()), (0, ""));
    assert_eq!(streamvm(folder.path(), ["report", "t"]).code, 0);
}

#[test]
fn a_signal_leaves_the_trace_of_the_last_time_with_what_is_running() {
    let folder = TempDir::new().unwrap();
    let args = ["--compiled", "--most-rounds", "1000000000000", "--trace", "t", "--trace-last", "600"];
    let (ended, _, err) = interrupted(folder.path(), ENDLESS_LOOP, &args, "-TERM");
    assert_eq!(ended, Some(15), "{err}");
    assert!(err.contains("t: the trace is partial: a.svm was interrupted by SIGTERM\n"), "{err}");
    let report = streamvm(folder.path(), ["report", "t"]);
    assert!(report.code == 0 && report.stdout.contains("  running: p (a.svm:10:1)\n"), "{}", report.stdout);
}

/// What cannot be printed, because nothing reads it, is left out after some seconds.
#[test]
fn an_interrupt_ends_a_run_whose_output_nothing_reads() {
    let folder = TempDir::new().unwrap();
    let text = "let a = fill f32 64 64 value 0.5 on cpu:0\nrepeat 1000000000 {\n  print a\n}\n";
    fs::write(folder.path().join("a.svm"), text).unwrap();
    let mut child = command(folder.path())
        .args(["run", "--stats", "--record", "a.trace", "a.svm"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The first output shows that the run is under way; it fills the pipe soon.
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let sent = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let status = wait(&mut child, Duration::from_secs(20));
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert_eq!(
        (status.signal(), err.as_str()),
        (Some(2), "a.trace: the trace is partial: a.svm was interrupted by SIGINT\n")
    );
    assert_eq!(names(folder.path()), ["a.svm", "a.trace"]);
}

#[test]
fn an_interrupt_leaves_the_outputs_that_nobody_asked_to_keep() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("a.npy"), "of an earlier run").unwrap();
    // Most of the time of this script a file is being written.
    let saves =
        "let a = fill f32 1000000 value 1 on host\nprint \"started\"\nrepeat 1000000 {\n  save a \"b.npy\"\n}\n";
    for _ in 0..5 {
        let (ended, _, err) = interrupted(folder.path(), saves, &[], "-INT");
        assert_eq!((ended, err.as_str()), (Some(2), ""));
        let names = names(folder.path());
        assert!(names == ["a.npy", "a.svm", "b.npy"] || names == ["a.npy", "a.svm"], "{names:?}");
    }
}

/// A limit of the size of files is an error of the write, and not the end of the process.
#[test]
fn a_file_that_may_not_grow_is_told_and_not_left() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("save.svm"), "let a = fill f32 100000 value 1 on host\nsave a \"a.npy\"\n").unwrap();
    fs::write(
        at("many.svm"),
        "let a = fill f32 4 value 1 on cpu:0\nrepeat 300 {\n  let a = tanh a\n}\nprint \"ran\"\n",
    )
    .unwrap();
    for (args, out, says) in [
        (&["run", "save.svm"][..], "", "save.svm:2:8: error: a.npy: "),
        (&["run", "--record", "a.trace", "many.svm"], "ran\n", "a.trace: error: cannot write the trace: "),
        (&["run", "--dump-ir", "a.list", "many.svm"], "", "error: "),
    ] {
        let output = std::process::Command::new("sh")
            .args(["-c", "ulimit -f 4; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_streamvm")])
            .args(args)
            .current_dir(folder.path())
            .env_remove("STREAMVM_ENGINE")
            .output()
            .unwrap();
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {err}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), out, "{args:?}: {err}");
        assert!(err.starts_with(says) || (says == "error: " && err.contains(says)), "{args:?}: {err}");
        assert!(err.contains("File too large"), "{args:?}: {err}");
        assert_eq!(names(folder.path()), ["many.svm", "save.svm"], "{args:?}");
    }
}

#[test]
fn a_process_that_was_started_to_ignore_a_signal_ignores_it() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("a.svm"), ENDLESS).unwrap();
    // A process in the background of a shell without jobs ignores SIGINT, which the command keeps.
    let script = "trap '' INT; \"$0\" run a.svm > out & pid=$!; while [ ! -s out ]; do sleep 0.05; done; kill -INT $pid; sleep 0.3; \
                  kill -0 $pid && echo alive; kill -TERM $pid; wait $pid; echo $?";
    let output = std::process::Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_streamvm")])
        .current_dir(folder.path())
        .env_remove("STREAMVM_ENGINE")
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "alive\n143\n", "{}", String::from_utf8_lossy(&output.stderr));
}
