//! The `engine` and `curves` programs as processes: what they write, and what they reject.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

const WORKLOADS: [&str; 26] = [
    "chain",
    "independent",
    "random",
    "fan",
    "workers_chain",
    "workers_independent",
    "workers_random",
    "workers_fan",
    "workers_operator",
    "workers_irregular",
    "latency",
    "waits",
    "threads",
    "overlap",
    "soft_sync",
    "allocator",
    "idle",
    "memory",
    "small_op",
    "program_chain",
    "program_functions_chain",
    "program_functions_random",
    "program_functions_fan",
    "program_one_op",
    "program_perceptron",
    "program_elementwise",
];
const FLOORS: [&str; 11] = [
    "floor/chain",
    "floor/independent",
    "floor/random",
    "floor/fan",
    "floor/small_op",
    "floor/soft_sync",
    "floor/malloc",
    "floor/ring",
    "floor/spin",
    "floor/park",
    "floor/clock",
];

/// Each curve with its series.
const CURVES: [(&str, &[&str]); 9] = [
    ("variables", &["write of one variable"]),
    ("tensors", &["eager", "in place, in lists"]),
    ("streams", &["crossing", "independent", "independent, single", "random", "random, pass alone"]),
    ("depth", &["run off", "submit"]),
    ("operands", &["of a bulk", "of a function"]),
    (
        "lists",
        &[
            "critical sections",
            "events and waits",
            "memory released and taken again",
            "recorded: events and waits",
            "recorded: random",
            "skipped lines",
            "workers, then in turn with a stream",
        ],
    ),
    ("futures", &["kept, in reverse order", "made and dropped", "of one function on workers"]),
    ("compile", &["chain", "chain_2_lanes", "random", "random_2_lanes", "wide", "wide_2_lanes"]),
    ("programs", &["feeds in order", "feeds in reverse order", "rows of one value, loaded", "wide, loaded"]),
];

/// One of the two, with its arguments.
type Program = fn(&[&str]) -> Output;

fn engine(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_engine")).args(args).output().unwrap()
}

fn curves(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_curves")).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Runs a program and gives its table, the rows of its JSON, and the texts of each SVG file by name.
fn measured(program: Program, args: &[&str]) -> (String, Vec<Value>, BTreeMap<String, Vec<String>>) {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("some/folder/figures.json");
    let output = program(&[args, &["--quick", "--out", out.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let told: Value = serde_json::from_str(&std::fs::read_to_string(&out).unwrap()).unwrap();
    // Beside rows that depend on the machine there is the machine.
    let rows = told.get("rows").unwrap_or(&told).as_array().unwrap().clone();
    assert_eq!(told["machine"]["cores"].is_u64(), told.is_object(), "{told}");
    (text(&output.stdout).to_owned(), rows, plots(out.parent().unwrap()))
}

fn plots(folder: &Path) -> BTreeMap<String, Vec<String>> {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let plot = |path: std::path::PathBuf| {
        let plot = std::fs::read_to_string(&path).unwrap();
        let xml = roxmltree::Document::parse(&plot).unwrap();
        assert!(xml.root_element().has_tag_name(("http://www.w3.org/2000/svg", "svg")), "{plot}");
        let texts = xml.descendants().filter(|node| node.is_text()).filter_map(|node| node.text());
        let texts = texts.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()).collect();
        (path.file_name().unwrap().to_str().unwrap().to_owned(), texts)
    };
    files.filter(|path| path.extension().is_some_and(|extension| extension == "svg")).map(plot).collect()
}

/// Each row has these keys, and `min` to `max` around `value`.
fn check_rows(rows: &[Value], keys: &[&str]) {
    for row in rows {
        let row = row.as_object().unwrap();
        let mut found: Vec<_> = row.keys().map(String::as_str).collect();
        found.sort_unstable();
        assert_eq!(found, keys);
        let [min, value, max] = ["min", "value", "max"].map(|key| row[key].as_f64().unwrap());
        assert!(0.0 < min && min <= value && value <= max, "{row:?}");
        assert!(row["unit"].is_string(), "{row:?}");
    }
}

#[test]
fn a_quick_run_has_every_workload_and_floor() {
    let (table, rows, plots) = measured(engine, &["--one-core"]);
    check_rows(&rows, &["max", "metric", "min", "unit", "value", "workload"]);
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
    // After a line for the machine and the head of the table.
    assert_eq!(table.lines().count(), rows.len() + 2, "{table}");
    assert!(table.contains(" x floor/chain"), "{table}");
    let texts = &plots["figures.svg"];
    for series in ["workload", "floor", "chain: ns_per_op_single", "waits: ns_per_crossing_host_one_core"] {
        assert!(texts.iter().any(|text| text == series), "{series}: {texts:?}");
    }
}

#[test]
fn quick_curves_have_every_series_at_growing_sizes() {
    let (table, rows, plots) = measured(curves, &[]);
    check_rows(&rows, &["curve", "max", "min", "near_linear", "point", "ratio", "series", "tenfold", "unit", "value"]);
    assert!(rows.iter().all(|row| row["near_linear"].is_boolean() && row["tenfold"].is_number()), "{rows:?}");
    assert_eq!(table.lines().count(), rows.len() + 2, "{table}");
    // The figures of a quick run mean nothing, so any series may be named here.
    assert!(table.lines().last().unwrap().contains("near-linear"), "{table}");
    for (curve, expected) in CURVES {
        let mut points = BTreeMap::<&str, Vec<u64>>::new();
        for row in rows.iter().filter(|row| row["curve"] == curve) {
            points.entry(row["series"].as_str().unwrap()).or_default().push(row["point"].as_u64().unwrap());
        }
        assert_eq!(points.keys().copied().collect::<Vec<_>>(), expected);
        assert!(points.values().all(|points| points.len() > 1 && points.is_sorted_by(|a, b| a < b)), "{points:?}");
        let texts = &plots[&format!("figures-{curve}.svg")];
        for series in expected {
            assert!(texts.iter().any(|text| text == series), "{series}: {texts:?}");
        }
    }
    assert_eq!(plots.len(), CURVES.len());
}

#[test]
fn a_filter_picks_a_workload_with_its_floors_or_a_curve() {
    let (_, rows, _) = measured(engine, &["--filter", "latency", "--runs", "3"]);
    let mut names: Vec<_> = rows.iter().map(|row| row["workload"].as_str().unwrap()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names, ["floor/park", "floor/spin", "latency"]);

    let (_, rows, plots) = measured(curves, &["--filter", "operand", "--runs", "3"]);
    assert!(rows.iter().all(|row| row["curve"] == "operands"), "{rows:?}");
    assert_eq!(plots.into_keys().collect::<Vec<_>>(), ["figures-operands.svg"]);
}

#[test]
fn wrong_arguments_are_rejected_with_what_is_accepted() {
    let cases: [(Program, &[&str], &str); 7] = [
        (engine, &["--runs", "0"], "1..=1000"),
        (engine, &["--runs", "many"], "invalid digit"),
        (engine, &["--filter", "nothing"], "the cases are chain, floor/chain"),
        (engine, &["--speed"], "Usage"),
        (engine, &["--child", "nothing"], "the cases are"),
        (curves, &["--runs", "0"], "1..=1000"),
        (curves, &["--filter", "nothing"], "the curves are variables, tensors"),
    ];
    for (program, args, says) in cases {
        let output = program(args);
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
