//! Runs every script in `tests/scripts` and compares exit code, stdout and stderr with the file beside it.
//!
//! A script's first line may be `# args: ...`: the arguments in front of its name, `run` otherwise. Set
//! `SNAPSHOTS=overwrite` to renew the expected outputs. `[..]` in them stands for anything.

use std::fs;
use std::path::Path;

use crate::common::{scratch, streamvm};
use snapbox::{Assert, Data};

#[test]
fn scripts_give_what_is_written_beside_them() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let mut scripts: Vec<_> = fs::read_dir(&here)
        .expect("the folder of scripts")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "svm"))
        .collect();
    scripts.sort();
    assert!(scripts.len() > 20, "only {} scripts found", scripts.len());
    // A folder of its own for what the scripts write.
    let folder = scratch(&here);
    let assert = Assert::new().action_env("SNAPSHOTS");
    for script in scripts {
        let text = fs::read_to_string(&script).expect("a readable script");
        let name = script.file_name().expect("a file name").to_str().expect("a plain name");
        let first = text.lines().next().unwrap_or_default();
        let args = first.strip_prefix("# args: ").unwrap_or("run");
        let output = streamvm(folder.path(), args.split(' ').chain([name]));
        let actual = format!("exit {}\n--- stdout\n{}--- stderr\n{}", output.code, output.stdout, output.stderr);
        assert!(!output.stderr.contains("panicked"), "{name}: {}", output.stderr);
        assert.eq(actual, Data::read_from(&script.with_extension("out"), None));
    }
}

#[test]
fn both_modes_give_the_same() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let folder = scratch(&here);
    for script in [
        "ops_elementwise",
        "ops_reduce",
        "ops_place",
        "ops_softmax",
        "ops_random",
        "ops_composed",
        "program_composed",
        "half",
        "files",
        "into",
        "accuracy",
        "fail_program",
        "fail_program_compiled",
        "fail_kernel",
        "fail_end",
    ] {
        let name = format!("{script}.svm");
        let threaded = streamvm(folder.path(), ["run", &name]);
        let inline = streamvm(folder.path(), ["run", "--mode", "inline", &name]);
        assert_eq!(threaded, inline, "{name}");
    }
}
