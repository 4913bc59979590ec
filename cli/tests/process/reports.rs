//! `streamvm report` and `streamvm run --report`.

use std::fs;

use serde_json::Value;
use tempfile::TempDir;

use crate::common::streamvm;

const SCRIPT: &str =
    "let a = fill f32 64 64 value 0.5 on cpu:0\nlet b = matmul a a\nexpect sum b == fill f32 value 65536 on cpu:0\n";

fn folder() -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("s.svm"), SCRIPT).unwrap();
    folder
}

#[test]
fn a_run_tells_why_its_streams_were_idle_and_so_does_its_trace() {
    let folder = folder();
    let run = streamvm(folder.path(), ["run", "--report", "--trace", "t.pftrace", "s.svm"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let report = streamvm(folder.path(), ["report", "t.pftrace"]);
    assert_eq!((report.code, report.stderr.as_str()), (0, ""));
    assert!(run.stdout.ends_with(&report.stdout) && report.stdout.contains("\ncompute@cpu:0:0 "), "{}", run.stdout);
    assert!(report.stdout.contains("s.svm:"), "{}", report.stdout);
    let json = streamvm(folder.path(), ["report", "--json", "t.pftrace"]);
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    let total = json["total_ns"].as_u64().unwrap();
    for stream in json["streams"].as_array().unwrap() {
        let parts = stream.as_object().unwrap().iter().filter(|(name, _)| name.ends_with("_ns"));
        assert_eq!(parts.map(|(_, ns)| ns.as_u64().unwrap()).sum::<u64>(), total, "{stream}");
    }
    let path = &json["critical_path"];
    let parts = ["host_ns", "late_ns", "ran_ns"].map(|part| path[part].as_u64().unwrap());
    assert_eq!(parts.iter().sum::<u64>(), total, "{path}");
    // Without a file for the trace, the report is the same kind of text.
    let alone = streamvm(folder.path(), ["run", "--report", "s.svm"]);
    assert!(alone.code == 0 && alone.stdout.contains("the critical path"), "{}{}", alone.stdout, alone.stderr);
}

#[test]
fn the_last_time_of_a_run_is_in_the_trace_however_the_run_ends() {
    let folder = folder();
    fs::write(folder.path().join("fails.svm"), SCRIPT.replace("65536", "1")).unwrap();
    for (script, code) in [("s.svm", 0), ("fails.svm", 1)] {
        let run = streamvm(folder.path(), ["run", "--trace", "t", "--trace-last", "600", script]);
        assert_eq!(run.code, code, "{}", run.stderr);
        let report = streamvm(folder.path(), ["report", "--json", "t"]);
        let json: Value = serde_json::from_str(&report.stdout).unwrap();
        assert!(json["instructions"].as_u64().unwrap() >= 4, "{script}: {json}");
        assert_eq!(json["pending"], Value::Array(Vec::new()), "{script}: {json}");
    }
    let full = streamvm(folder.path(), ["run", "--trace", "/dev/full", "--trace-last", "600", "s.svm"]);
    assert!(full.code == 1 && full.stderr.contains("/dev/full: error: cannot write the trace: "), "{}", full.stderr);
    for wrong in [&["--trace-last", "1"][..], &["--trace", "t", "--trace-last", "x"]] {
        let refused = streamvm(folder.path(), [&["run"], wrong, &["s.svm"]].concat());
        assert_eq!((refused.code, refused.stdout.as_str()), (2, ""), "{wrong:?}: {}", refused.stderr);
    }
}

#[test]
fn two_runs_are_compared() {
    let folder = folder();
    for trace in ["a", "b"] {
        assert_eq!(streamvm(folder.path(), ["run", "--trace", trace, "s.svm"]).code, 0);
    }
    let text = streamvm(folder.path(), ["report", "a", "b"]);
    assert!(text.code == 0 && text.stdout.contains("the run\n"), "{}{}", text.stdout, text.stderr);
    let json = streamvm(folder.path(), ["report", "--json", "a", "b"]);
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["before"]["instructions"], json["after"]["instructions"]);
    assert!(!json["changes"].as_array().unwrap().is_empty());
    assert_eq!(streamvm(folder.path(), ["report", "a", "a"]).stdout.lines().count(), 2);
}

/// `tests/page` opens pages in a browser.
#[test]
fn a_page_is_written_or_refused() {
    let folder = folder();
    assert_eq!(streamvm(folder.path(), ["run", "--trace", "t", "s.svm"]).code, 0);
    let written = streamvm(folder.path(), ["inspect", "t"]);
    assert_eq!((written.code, written.stdout.as_str()), (0, "t.html: open it in a browser\n"), "{}", written.stderr);
    let page = fs::read_to_string(folder.path().join("t.html")).unwrap();
    assert!(page.starts_with("<!doctype html>\n") && page.contains("s.svm:2:1") && page.ends_with("</html>\n"));
    // It needs no network: the address of Perfetto is that of a link, and only if the trace is served.
    assert!(!page.contains("src=\"http") && !page.contains("href=\"http"));
    let other = streamvm(folder.path(), ["inspect", "t", "--html", "other.html"]);
    assert_eq!((other.code, other.stdout.as_str()), (0, "other.html: open it in a browser\n"));
    assert_eq!(fs::read_to_string(folder.path().join("other.html")).unwrap(), page);
    let busy = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = busy.local_addr().unwrap().port().to_string();
    for (args, code, says) in [
        (&["none"][..], 2, "none: error: cannot read the trace"),
        (&["s.svm"], 2, "`streamvm run --trace FILE` writes a trace with times"),
        (&["t", "--html", "no/folder.html"], 1, "no/folder.html: error: cannot write the page"),
        (&["t", "--html", "/dev/full"], 1, "/dev/full: error: cannot write the page"),
        (&["t", "--html", "./t"], 2, "./t: error: the page would overwrite the trace"),
        (&["-"], 2, "give --html FILE, or --serve"),
        (&["t", &format!("--serve={port}")], 1, "give another one, or 0 for any that is free"),
        (&["t", "--serve=70000"], 2, "70000"),
        (&["t", "--serve=0", "--html", "a"], 2, "cannot be used with"),
    ] {
        let refused = streamvm(folder.path(), [&["inspect"], args].concat());
        assert_eq!((refused.code, refused.stdout.as_str()), (code, ""), "{args:?}: {}", refused.stderr);
        assert!(refused.stderr.contains(says), "{args:?}: {}", refused.stderr);
    }
}

#[test]
fn what_is_no_trace_is_refused() {
    let folder = folder();
    assert_eq!(streamvm(folder.path(), ["run", "--record", "r", "--trace", "t", "s.svm"]).code, 0);
    fs::write(folder.path().join("empty"), "").unwrap();
    for (file, says) in [
        ("none", "none: error: cannot read the trace: "),
        ("r", "r: error: no packet begins here"),
        ("s.svm", " = help: `streamvm run --trace FILE` writes a trace with times"),
        ("empty", "empty: error: no stream of the trace has an instruction"),
        (".", ".: error: "),
    ] {
        for args in [vec!["report", file], vec!["report", "t", file]] {
            let refused = streamvm(folder.path(), &args);
            assert_eq!((refused.code, refused.stdout.as_str()), (2, ""), "{args:?}");
            assert!(refused.stderr.contains(says), "{args:?}: {}", refused.stderr);
        }
    }
    // A trace that was cut has a report of what is there. Packets are compressed some hundred at a time.
    let whole = fs::read(folder.path().join("t")).unwrap();
    fs::write(folder.path().join("cut"), &whole[..20]).unwrap();
    let cut = streamvm(folder.path(), ["report", "cut"]);
    assert!(cut.code == 2 && cut.stderr.contains("the trace ends before its first instruction"), "{}", cut.stderr);
    let twice = [&whole[..], &whole[..whole.len() - 1]].concat();
    fs::write(folder.path().join("cut"), twice).unwrap();
    let cut = streamvm(folder.path(), ["report", "cut"]);
    assert!(
        cut.code == 0 && cut.stdout.lines().next().is_some_and(|line| line.ends_with("the trace is cut")),
        "{}",
        cut.stdout
    );
}
