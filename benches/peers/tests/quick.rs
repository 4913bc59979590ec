//! The `peers` program as a process: what it writes, what it says of drivers that are not there, and what it rejects.
//!
//! Drivers here are scripts of the tests' own: real ones need a network to be built. Where `make bench-peers` has built
//! them, they are tried, too.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

fn peers(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_peers")).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The table and the JSON of a quick run with the drivers in `folder`.
fn measured(folder: &Path, args: &[&str]) -> (String, Value) {
    let out = folder.join("some/folder/peers.json");
    let [out, drivers] = [&out, folder].map(|path| path.to_str().unwrap());
    let output = peers(&[args, &["--quick", "--out", out, "--drivers", drivers]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json = serde_json::from_str(&fs::read_to_string(out).unwrap()).unwrap();
    (text(&output.stdout).to_owned(), json)
}

/// A driver that is a shell script.
fn driver(folder: &Path, peer: &str, script: &str) {
    let folder = folder.join(peer);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("driver"), format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(folder.join("driver"), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_quick_run_has_streamvm_and_every_peer_that_needs_no_driver() {
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("starpu")).unwrap();
    fs::write(folder.path().join("starpu/why"), "there is no apt-get\n").unwrap();
    let (table, json) = measured(folder.path(), &["--one-core"]);
    let rows = json["measured"].as_array().unwrap();
    for row in rows {
        let [min, value, max] = ["min", "value", "max"].map(|key| row[key].as_f64().unwrap());
        assert!(0.0 < min && min <= value && value <= max, "{row}");
        assert_eq!(row["unit"], "ns", "{row}");
        let is_peer = !row["engine"].as_str().unwrap().starts_with("streamvm");
        let ratios = row["ratios"].as_array().unwrap();
        assert_eq!(!ratios.is_empty(), is_peer, "{row}");
        assert!(ratios.iter().all(|ratio| ratio["times"].as_f64().unwrap() > 0.0), "{row}");
    }
    let mut cases: Vec<_> =
        rows.iter().map(|row| [&row["workload"], &row["engine"]].map(|key| key.as_str().unwrap())).collect();
    cases.dedup();
    let names = |workload: &str| -> Vec<&str> {
        cases.iter().filter(|[of, _]| *of == workload).map(|[_, engine]| *engine).collect()
    };
    let (streamvm, tokio) =
        (["streamvm", "streamvm workers", "streamvm inline"], ["tokio 1 thread", "tokio 2 threads"]);
    let pools = [&["rayon 1 thread", "rayon 2 threads"], &tokio[..], &["crossbeam-channel"]].concat();
    assert_eq!(names("chain"), [&streamvm[..], &tokio].concat());
    assert_eq!(names("independent"), [&streamvm[..], &pools].concat());
    assert_eq!(names("random"), streamvm);
    assert_eq!(names("irregular"), streamvm[1..], "lanes have one thread each");
    assert_eq!(names("fan"), streamvm);
    assert_eq!(names("latency"), [&streamvm[..], &pools].concat());
    let pinned = rows.iter().filter(|row| row["metric"].as_str().unwrap().ends_with("_one_core")).count();
    assert_eq!(2 * pinned, rows.len());

    let not_run = json["not_run"].as_array().unwrap();
    let names: Vec<_> = not_run.iter().map(|peer| peer["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["mxnet", "starpu", "libgomp", "libomp", "onetbb"]);
    for peer in not_run {
        let (why, has_reason) = (peer["why"].as_str().unwrap(), peer["name"] == "starpu");
        assert!(why.starts_with(if has_reason { "there is no apt-get" } else { "there is no driver in" }), "{peer}");
        let line = format!("{}: not run: {why}\n", peer["name"].as_str().unwrap());
        assert!(table.contains(&line), "{table}");
    }
    assert_eq!(table.lines().count(), 1 + rows.len() + not_run.len(), "{table}");
    assert!(table.contains(" x ns_per_op_single, "), "{table}");
}

#[test]
fn a_driver_gets_the_workload_and_one_that_fails_is_said_not_to_have_run() {
    let folder = TempDir::new().unwrap();
    let echo = r#"[ "$1 $2 $3" = "fan 2 20" ] || exit 1
[ "$4 $MXNET_CPU_WORKER_NTHREADS" != "push 2" ] || { echo "error: it was lost" >&2; exit 1; }
echo '["ns_per_op", "ns", 1000.0]'"#;
    driver(folder.path(), "mxnet", echo);
    let (table, json) = measured(folder.path(), &["--filter", "fan/mxnet"]);
    let engines: Vec<_> = json["measured"].as_array().unwrap().iter().map(|row| &row["engine"]).collect();
    for engine in ["streamvm", "mxnet 1 worker", "mxnet bulk of 64", "mxnet prebuilt"] {
        assert!(engines.iter().any(|found| **found == engine), "{engine}: {engines:?}");
    }
    assert!(!engines.iter().any(|found| **found == "mxnet 2 workers"), "{engines:?}");
    assert_eq!(json["not_run"].as_array().unwrap().len(), 1);
    assert_eq!(json["not_run"][0]["name"], "fan/mxnet 2 workers");
    assert!(table.trim_end().ends_with("error: it was lost"), "{table}");
}

#[test]
fn drivers_that_are_built_measure_every_workload() {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/peers");
    let folder = TempDir::new().unwrap();
    let engines = [
        ("mxnet", "mxnet"),
        ("starpu", "starpu"),
        ("libgomp", "openmp gcc"),
        ("libomp", "openmp clang"),
        ("onetbb", "onetbb"),
    ];
    for (peer, engine) in engines {
        if built.join(peer).join("driver").is_file() {
            std::os::unix::fs::symlink(built.join(peer), folder.path().join(peer)).unwrap();
            let (_, json) = measured(folder.path(), &["--filter", &format!("/{engine}"), "--runs", "1"]);
            assert_eq!(json["not_run"], json!([]));
            let rows = json["measured"].as_array().unwrap();
            for workload in ["chain", "independent", "random", "fan", "latency"] {
                let is =
                    |row: &&Value| row["workload"] == workload && row["engine"].as_str().unwrap().starts_with(engine);
                assert!(rows.iter().any(|row| is(&row)), "{workload} on {peer}");
            }
        }
    }
}

#[test]
fn wrong_arguments_are_rejected_with_what_is_accepted() {
    for (args, says) in [
        (&["--runs", "0"][..], "1..=1000"),
        (&["--filter", "nothing"], "the cases are chain/streamvm, "),
        (&["--speed"], "Usage"),
        (&["--child", "nothing"], "the cases are"),
    ] {
        let output = peers(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains(says), "{args:?}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}
