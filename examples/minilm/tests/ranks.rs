//! `minilm embed` by several ranks beside one, over a small model of random weights.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use npyz::NpyFile;

use crate::common::difference;
use crate::common::folder::write_model;

/// Starts rank `rank` of `ranks` of `minilm embed`, as torchrun would.
fn start(folder: &Path, (rank, ranks): (usize, usize), output: &str) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_minilm"));
    command.args(["embed", "--in", "in.json", "--out", output, "--model", "model", "--batch", "2"]).current_dir(folder);
    let numbers = [("RANK", rank), ("WORLD_SIZE", ranks), ("LOCAL_WORLD_SIZE", ranks)];
    command.envs(numbers.map(|(name, value)| (name, value.to_string()))).env_remove("STREAMVM_RANKS");
    command.env("STREAMVM_JOB", format!("minilm-{}-{output}", std::process::id()));
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts")
}

/// The elements and the shape that a job of some ranks writes.
fn embedded(folder: &Path, ranks: usize) -> (Vec<f32>, Vec<u64>) {
    let output = format!("{ranks}.npy");
    let started: Vec<Child> = (0..ranks).map(|rank| start(folder, (rank, ranks), &output)).collect();
    for (rank, child) in started.into_iter().enumerate() {
        let ran = child.wait_with_output().expect("it ends");
        assert!(ran.status.success(), "rank {rank} of {ranks}: {}", String::from_utf8_lossy(&ran.stderr));
        assert_eq!(ran.stdout.is_empty(), rank != 0, "rank 0 alone says that it is done");
    }
    let bytes = fs::read(folder.join(output)).expect("rank 0 has written it");
    let file = NpyFile::new(&bytes[..]).expect("an array");
    let shape = file.shape().to_vec();
    (file.into_vec::<f32>().expect("float32"), shape)
}

#[test]
fn several_ranks_write_what_one_writes() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("model")).expect("a folder");
    write_model(&folder.path().join("model"));
    // 7 texts are no multiple of 2 or 3, and 1 is less than either.
    for texts in [7, 1] {
        let words = |text: usize| (0..=text).map(|at| format!("w{}", 4 + (text * 7 + at) % 46)).collect::<Vec<_>>();
        let texts: Vec<String> = (0..texts).map(|text| words(text).join(" ")).collect();
        fs::write(folder.path().join("in.json"), serde_json::to_string(&texts).expect("JSON")).expect("written");
        let (one, shape) = embedded(folder.path(), 1);
        let expected: Vec<f64> = one.iter().copied().map(f64::from).collect();
        assert!(one.iter().any(|&number| number != 0.0) && shape[0] == texts.len() as u64);
        for ranks in [2, 3] {
            let (several, of) = embedded(folder.path(), ranks);
            assert_eq!(of, shape);
            assert!(difference(&several, &expected) < 1e-5, "{ranks} ranks, {} texts", texts.len());
        }
    }
}
