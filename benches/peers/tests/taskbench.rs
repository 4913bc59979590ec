//! The `taskbench` program as a process: what it writes, what it says of drivers that are not there or fail, and what it rejects; and that
//! drivers in C name the same inputs as the patterns here.
//!
//! Drivers here are scripts of the tests' own. Where `make bench-taskbench` has built the real ones, they are tried, too.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use streamvm_peers::taskbench::board::{Board, Place};
use streamvm_peers::taskbench::pattern::{MOST_COLUMNS, Pattern};
use tempfile::TempDir;

/// The drivers, and the names of their engines.
const DRIVERS: [(&str, &str); 4] =
    [("libgomp", "openmp gcc"), ("libomp", "openmp clang"), ("starpu", "starpu"), ("mpi", "mpi")];

fn taskbench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_taskbench")).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The table and the JSON of a quick run with the drivers in `folder`.
fn measured(folder: &Path, args: &[&str]) -> (String, Value) {
    let out = folder.join("some/folder/taskbench.json");
    let [out, drivers] = [&out, folder].map(|path| path.to_str().unwrap());
    let output = taskbench(&[args, &["--quick", "--out", out, "--drivers", drivers]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json = serde_json::from_str(&fs::read_to_string(out).unwrap()).unwrap();
    (text(&output.stdout).to_owned(), json)
}

/// A driver that is a shell script.
fn driver(folder: &Path, name: &str, script: &str) {
    let folder = folder.join(name);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("driver"), format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(folder.join("driver"), fs::Permissions::from_mode(0o755)).unwrap();
}

/// The folder of a driver that has been built.
fn built(name: &str) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/peers/taskbench").join(name);
    folder.join("driver").is_file().then_some(folder)
}

#[test]
fn a_quick_run_has_every_pattern_and_width_in_each_way_of_streamvm() {
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("starpu")).unwrap();
    fs::write(folder.path().join("starpu/why"), "there is no apt-get\n").unwrap();
    let (table, json) = measured(folder.path(), &["--runs", "1"]);
    let rows = json["measured"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 5 * Pattern::ALL.len());
    for row in rows {
        let [min, value, max] = ["min", "value", "max"].map(|key| row[key].as_f64().unwrap());
        assert!(0.0 < min && min <= value && value <= max, "{row}");
        assert!(row["engine"].as_str().unwrap().starts_with("streamvm "), "{row}");
        assert!([8, 2].contains(&row["width"].as_u64().unwrap()), "{row}");
    }
    let not_run = json["not_run"].as_array().unwrap();
    assert_eq!(not_run.len(), DRIVERS.len(), "each engine once: {not_run:?}");
    assert!(not_run[0]["why"].as_str().unwrap().ends_with("`make bench-taskbench` builds it"), "{not_run:?}");
    assert_eq!(not_run[2], json!({"name": "starpu", "why": "there is no apt-get"}));
    assert!(table.contains("METG(50 %) in µs, width 8\n") && table.contains("METG(50 %) in µs, width 2\n"), "{table}");
    assert!(table.contains("starpu: not run: there is no apt-get\n"), "{table}");
}

#[test]
fn a_driver_gets_graphs_and_one_that_fails_is_said_not_to_have_run() {
    let folder = TempDir::new().unwrap();
    // As if each task took a microsecond on each of two cores.
    let answers = r#"while read -r pattern width steps iterations; do echo "$pattern" >>"$HOME/asked"
awk "BEGIN { print $width * $steps / 2 * 1e-6 }"; done"#;
    driver(folder.path(), "libgomp", answers);
    driver(folder.path(), "libomp", "echo 'error: an input was wrong' >&2; echo 'and more' >&2; exit 1");
    driver(folder.path(), "mpi", "read -r graph; echo soon");
    let (table, json) = measured(folder.path(), &["--filter", "stencil_1d/", "--width", "3", "--width", "3"]);
    let rows = json["measured"].as_array().unwrap();
    assert_eq!(rows.len(), 6, "{rows:?}");
    assert_eq!(rows[5]["engine"], "openmp gcc");
    assert!((rows[5]["value"].as_f64().unwrap() - 1.0).abs() < 1e-6, "{}", rows[5]);
    let asked = fs::read_to_string(folder.path().join("libgomp/asked")).unwrap();
    assert!(asked.lines().any(|pattern| pattern == "stencil_1d"), "{asked}");
    let names: Vec<_> = json["not_run"].as_array().unwrap().iter().map(|missing| &missing["name"]).collect();
    assert_eq!(names, ["starpu", "stencil_1d/openmp clang", "stencil_1d/mpi"]);
    assert!(table.contains("error: an input was wrong") && table.contains("it answered `soon`"), "{table}");
}

#[test]
fn drivers_that_are_built_name_the_same_inputs() {
    for (name, _) in DRIVERS {
        let Some(folder) = built(name) else { continue };
        for pattern in Pattern::ALL {
            for width in [1, 2, 5, 8, 13, MOST_COLUMNS] {
                let board = Board::new(pattern, width);
                for step in [0, 1, 2, 3, 4, 7, 100] {
                    let arguments = ["--deps", pattern.name(), &width.to_string(), &step.to_string()];
                    let output = Command::new(folder.join("driver")).args(arguments).output().unwrap();
                    let line = |column| {
                        let inputs = board.inputs(Place { step, column });
                        format!("{column}:{}\n", inputs.iter().map(|input| format!(" {input}")).collect::<String>())
                    };
                    let expected: String = board.row(step).map(line).collect();
                    assert_eq!(text(&output.stdout), expected, "{name} {arguments:?}: {}", text(&output.stderr));
                }
            }
        }
    }
}

#[test]
fn drivers_that_are_built_run_every_pattern() {
    for (name, engine) in DRIVERS {
        let Some(built) = built(name) else { continue };
        let folder = TempDir::new().unwrap();
        symlink(built, folder.path().join(name)).unwrap();
        let (_, json) = measured(folder.path(), &["--filter", &format!("/{engine}"), "--runs", "1", "--width", "5"]);
        assert_eq!(json["not_run"], json!([]));
        assert_eq!(json["measured"].as_array().unwrap().len(), Pattern::ALL.len(), "{json}");
    }
}

#[test]
fn wrong_arguments_are_rejected_with_what_is_accepted() {
    for (args, says) in [
        (&["--runs", "0"][..], "1..=1000"),
        (&["--width", "65"], "1..=64"),
        (&["--filter", "nothing"], "the cases are trivial/streamvm workers, "),
        (&["--child", "nothing"], "the cases are"),
    ] {
        let output = taskbench(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains(says), "{args:?}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}
