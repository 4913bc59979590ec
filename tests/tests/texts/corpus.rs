//! Replays the committed fuzzing inputs: what was found once is never found again. `make fuzz` looks for more.

use std::fs;
use std::path::{Path, PathBuf};

use streamvm_tests::corpus::{TARGETS, Target};

fn folder(target: &Target) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus")).join(target.name)
}

fn inputs(folder: &Path) -> Vec<PathBuf> {
    let read = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = read.map(|entry| entry.expect("a folder that can be read").path()).collect();
    files.sort();
    files
}

#[test]
fn every_committed_input_holds() {
    for target in TARGETS {
        let files = inputs(&folder(target));
        assert!(files.len() >= 5, "{} has {} inputs", target.name, files.len());
        for file in files {
            let data = fs::read(&file).expect("an input that can be read");
            let result = std::panic::catch_unwind(|| (target.check)(&data));
            assert!(result.is_ok(), "{} does not hold; replay it alone to see why", file.display());
        }
    }
}

#[test]
fn every_target_has_its_binary_and_every_corpus_its_target() {
    let manifest = include_str!("../../../fuzz/Cargo.toml");
    for target in TARGETS {
        assert!(manifest.contains(&format!("name = \"{}\"", target.name)), "{} is not fuzzed", target.name);
    }
    for folder in inputs(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus"))) {
        let known = TARGETS.iter().any(|target| folder.ends_with(target.name));
        assert!(known, "nothing reads {}", folder.display());
    }
}

/// Inputs that are cut, doubled and flipped at random places: what a reader makes of damage, without a fuzzer at hand.
#[test]
fn damaged_inputs_hold() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: usize| {
        // Xorshift (Marsaglia 2003): any sequence does.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below.max(1) as u64) as usize
    };
    for target in TARGETS {
        for file in inputs(&folder(target)) {
            let data = fs::read(&file).expect("an input that can be read");
            for round in 0..20 {
                let mut bytes = data.clone();
                match round % 4 {
                    0 => bytes.truncate(random(data.len())),
                    1 => bytes.extend_from_slice(&data[random(data.len())..]),
                    _ => {
                        for _ in 0..=random(4) {
                            let at = random(bytes.len());
                            if let Some(byte) = bytes.get_mut(at) {
                                *byte ^= 1 << random(8);
                            }
                        }
                    }
                }
                let result = std::panic::catch_unwind(|| (target.check)(&bytes));
                assert!(result.is_ok(), "{} round {round} does not hold: {bytes:?}", file.display());
            }
        }
    }
}
