//! The `engine` program as a process: what it writes, and what it rejects.

use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

const WORKLOADS: [&str; 7] = ["chain", "independent", "random", "fan", "latency", "memory", "small_op"];
const FLOORS: [&str; 9] = [
    "floor/chain",
    "floor/independent",
    "floor/random",
    "floor/fan",
    "floor/small_op",
    "floor/ring",
    "floor/spin",
    "floor/park",
    "floor/clock",
];

fn engine(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_engine")).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn measured(args: &[&str]) -> (String, Vec<Value>) {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("some/folder/engine.json");
    let output = engine(&[args, &["--quick", "--out", out.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let rows = serde_json::from_str(&std::fs::read_to_string(&out).unwrap()).unwrap();
    (text(&output.stdout).to_owned(), rows)
}

#[test]
fn a_quick_run_has_every_workload_and_floor() {
    let (table, rows) = measured(&["--one-core"]);
    for row in &rows {
        let row = row.as_object().unwrap();
        let mut keys: Vec<_> = row.keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["max", "metric", "min", "unit", "value", "workload"]);
        let [min, value, max] = ["min", "value", "max"].map(|key| row[key].as_f64().unwrap());
        assert!(0.0 < min && min <= value && value <= max, "{row:?}");
        assert!(row["unit"].is_string() && row["metric"].is_string(), "{row:?}");
    }
    let has = |name: &str, pinned: bool| {
        let is =
            |row: &&Value| row["workload"] == name && row["metric"].as_str().unwrap().ends_with("_one_core") == pinned;
        rows.iter().any(|row| is(&row))
    };
    for name in WORKLOADS {
        assert!(has(name, false) && has(name, true), "{name}");
    }
    for name in FLOORS {
        assert!(has(name, false), "{name}");
        assert_eq!(has(name, true), name == "floor/park", "{name}");
    }
    assert_eq!(table.lines().count(), rows.len() + 1, "{table}");
    assert!(table.contains(" x floor/chain"), "{table}");
}

#[test]
fn a_filter_picks_a_workload_with_its_floors() {
    let (_, rows) = measured(&["--filter", "latency", "--runs", "3"]);
    let mut names: Vec<_> = rows.iter().map(|row| row["workload"].as_str().unwrap()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names, ["floor/park", "floor/spin", "latency"]);
}

#[test]
fn wrong_arguments_are_rejected_with_what_is_accepted() {
    for (args, says) in [
        (&["--runs", "0"][..], "1..=1000"),
        (&["--runs", "many"], "invalid digit"),
        (&["--filter", "nothing"], "the cases are chain, floor/chain"),
        (&["--speed"], "Usage"),
        (&["--child", "nothing"], "the cases are"),
    ] {
        let output = engine(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains(says), "{args:?}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn a_report_that_cannot_be_written_is_a_failure() {
    let output = engine(&["--quick", "--filter", "clock", "--out", "/dev/null/engine.json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot write /dev/null/engine.json"), "{}", text(&output.stderr));
}
