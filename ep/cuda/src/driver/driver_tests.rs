//! These tests read source files: they check that only certain files call cudarc, so that its panics cannot be reached.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::SYMBOLS;

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

/// The source files of the engine whose code contains `word`, except in comments and in this test.
fn files_with(word: &str) -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    for member in ["ep", "ep/kernels", "ep/cpu", "ep/cuda", "ep/sim", "stream", "instructions", "vm", "cli"] {
        sources(&root.join(member).join("src"), &mut files);
    }
    assert!(files.len() > 100, "only {} sources were found", files.len());
    let has = |path: &PathBuf| {
        let text = fs::read_to_string(path).unwrap();
        text.lines().any(|line| line.split("//").next().is_some_and(|code| code.contains(word)))
    };
    let name = |path: PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    files.into_iter().filter(has).map(name).filter(|name| name != "driver_tests.rs").collect()
}

#[test]
fn only_the_files_of_the_libraries_call_cudarc() {
    assert_eq!(
        files_with("cudarc::"),
        BTreeSet::from(["blas.rs", "compile.rs", "conditional.rs", "mod.rs"].map(str::to_owned))
    );
}

#[test]
fn only_the_probe_makes_a_driver() {
    assert_eq!(files_with("Driver::found"), BTreeSet::from(["probe.rs".to_owned()]));
    assert_eq!(files_with("Driver { proof"), BTreeSet::from(["conditional.rs", "mod.rs"].map(str::to_owned)));
    assert_eq!(files_with("Compiler { proof"), BTreeSet::from(["compile.rs".to_owned()]));
}

#[test]
fn every_function_that_is_called_is_looked_for_first() {
    let text = include_str!("mod.rs");
    let after = |mark: &str| -> BTreeSet<String> {
        let name = |rest: &str| rest.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        text.split(mark).skip(1).map(name).filter(|name: &String| name.starts_with("cu")).collect()
    };
    let called: BTreeSet<String> = &after("call!(") | &after("sys::");
    // The library itself, which is what is looked for.
    let called: BTreeSet<String> = called.into_iter().filter(|name| name != "culib").collect();
    let listed: BTreeSet<String> = SYMBOLS.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(called, listed);
    assert!(SYMBOLS.is_sorted(), "sorted, so that a name is easy to find");
}
