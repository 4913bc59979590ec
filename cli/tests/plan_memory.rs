//! `streamvm plan-memory`: what it prints, and how it ends.

use std::fs;
use std::path::Path;

use crate::common::{Output, streamvm};
use crate::data;
use tempfile::TempDir;

const FIVE: &str = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n";

/// Runs the command over a text.
fn planned(text: impl AsRef<[u8]>, args: &[&str]) -> Output {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("a.csv"), text).unwrap();
    streamvm(folder.path(), ["plan-memory", "a.csv"].iter().chain(args))
}

/// The output with "…" in place of the seconds.
fn without_seconds(text: &str) -> String {
    let line = |line: &str| match line.strip_prefix("time").and_then(|rest| rest.split_once(" s, ")) {
        Some((_, steps)) => format!("time         … s, {steps}\n"),
        None => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

#[test]
fn a_plan_is_an_aligned_table_and_its_figures() {
    let output = planned(FIVE, &["--capacity", "12", "--steps", "1000"]);
    assert_eq!((output.code, output.stderr.as_str()), (0, ""));
    assert_eq!(
        without_seconds(&output.stdout),
        "\
id  lower  upper  size  offset
b1      0      3     4       8
b2      3      9     4       8
b3      0      9     4       4
b4      9     21     4       4
b5      0     21     4       0

buffers      5
peak         12 bytes
lower bound  12 bytes
ratio        1.0000
time         … s, 0 steps
ended        proven best: no plan has a lower peak
capacity     12 bytes: the plan fits
"
    );
}

#[test]
fn a_plan_for_programs_is_json() {
    let output = planned("alignment,size,upper,lower\n8,3,4,0\n8,5,4,1\n", &["--json", "--steps", "1000"]);
    assert_eq!((output.code, output.stderr.as_str()), (0, ""));
    let mut value: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
    assert!(value["seconds"].take().as_f64().unwrap() < 60.0);
    let buffer = |id: &str, lower: u64, size: u64, offset: u64| serde_json::json!({ "id": id, "lower": lower, "upper": 4, "size": size, "alignment": 8, "offset": offset });
    let steps = value["steps"].take();
    assert!(steps.as_u64().unwrap() <= 1000, "{steps}");
    let expected = serde_json::json!({
        "buffers": [buffer("0", 0, 3, 8), buffer("1", 1, 5, 0)],
        "peak": 11, "lower_bound": 8, "ratio": 11.0 / 8.0, "optimal": true, "ended": "proven best",
        "capacity": null, "fits": null, "seconds": null, "steps": null,
    });
    assert_eq!(value, expected);
}

#[test]
fn a_capacity_that_is_too_small_ends_with_1_and_says_why() {
    let output = planned(FIVE, &["--capacity", "11"]);
    assert_eq!((output.code, output.stderr.as_str()), (1, ""));
    assert!(
        output.stdout.ends_with("capacity     11 bytes: no plan fits: more is alive at one time\n"),
        "{}",
        output.stdout
    );
    let output = planned("lower,upper,size,alignment\n0,1,3,8\n0,1,5,8\n", &["--capacity", "10"]);
    assert_eq!(output.code, 1);
    assert!(
        output.stdout.ends_with("capacity     10 bytes: no plan fits: the search has tried all\n"),
        "{}",
        output.stdout
    );
    let output = planned(FIVE, &["--capacity", "11", "--json"]);
    assert_eq!(output.code, 1);
    assert!(output.stdout.contains("\"fits\": false"), "{}", output.stdout);
}

#[test]
fn what_is_no_list_of_buffers_is_rejected_with_its_place() {
    for (text, said) in [
        (
            &b""[..],
            "a.csv:1:1: error: the file is empty: its first line must name the columns, such as `id,lower,upper,size`\n",
        ),
        (
            b"id,lower,upper,size\nb,1,x\x1b,3\n",
            "a.csv:2:5: error: `upper` is `x\\u{1b}`: give a whole number of at least 0, in digits\n",
        ),
        (
            b"lower,upper,size\n1,\xff,3\n",
            "a.csv: error: line 2 is no UTF-8 text: expected comma-separated values, such as `id,lower,upper,size`\n",
        ),
        (
            b"lower,upper,size\n0,1,9223372036854775807\n",
            "a.csv: error: the sizes and alignments of all buffers sum to 9223372036854775808 bytes: at most 9223372036854775807 can be planned\n",
        ),
    ] {
        let output = planned(text, &[]);
        assert_eq!((output.code, output.stdout.as_str(), output.stderr.as_str()), (2, "", said));
    }
    let folder = TempDir::new().unwrap();
    for file in ["none.csv", "."] {
        let output = streamvm(folder.path(), ["plan-memory", file]);
        assert_eq!(output.code, 2, "{file}");
        assert!(output.stderr.starts_with(&format!("{file}: error: cannot read the buffers: ")), "{}", output.stderr);
    }
    for (arg, option) in [("--capacity=x", "--capacity"), ("--budget=-1", "--budget"), ("--steps=many", "--steps")] {
        let output = planned(FIVE, &[arg]);
        assert_eq!((output.code, output.stdout.as_str()), (2, ""), "{arg}");
        assert!(output.stderr.contains(option), "{}", output.stderr);
    }
}

#[test]
fn a_budget_that_was_used_up_is_said() {
    let rows = (0..6_000_u64).map(|it| format!("{},{},{}\n", it, it + 1 + it * it % 97, 1 + it * it % 89));
    let output = planned(format!("lower,upper,size\n{}", rows.collect::<String>()), &["--steps", "500"]);
    let said = "s, 500 steps\nended        budget used: a larger budget may find a lower peak\n";
    assert!(output.stdout.ends_with(said), "{:?}", output.stdout.get(output.stdout.len() - 300..));
}

#[test]
fn progress_is_logged_on_request() {
    let output = planned(FIVE, &["-v"]);
    assert_eq!(output.code, 0);
    assert!(output.stderr.contains("peak 12 after "), "{}", output.stderr);
}

/// A public problem, where its file is beside the checkout.
#[test]
fn a_public_problem_fits_into_its_capacity() {
    let Some(file) = data::file("planner/B.1048576.csv") else { return };
    let file = file.to_str().unwrap();
    let output = streamvm(Path::new("."), ["plan-memory", file, "--capacity", "1M", "--steps", "200000"]);
    assert_eq!(output.code, 0, "{}", output.stdout);
    assert!(output.stdout.ends_with("capacity     1048576 bytes: the plan fits\n"), "{}", output.stdout);
}
