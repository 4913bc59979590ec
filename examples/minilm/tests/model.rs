//! The embeddings of all-MiniLM-L6-v2 beside references in `data`. The tests need the model, so they are ignored unless `make model-test` runs them.

#![allow(clippy::print_stdout, reason = "they tell their figures")]

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{bits, difference, engines};
use npyz::NpyFile;
use streamvm::DeviceId;
use streamvm_minilm::bert::Bert;
use streamvm_minilm::embed::embed;
use streamvm_minilm::files::read_texts;
use streamvm_minilm::layers::Placement;
use streamvm_minilm::tokens::Tokens;

fn here(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

/// The folder of the model.
fn model() -> PathBuf {
    let folder = here("../../target/model");
    assert!(folder.join("model.safetensors").exists(), "there is no model in {}: run `make model`", folder.display());
    folder
}

fn numbers(path: &Path) -> Vec<f32> {
    let bytes = std::fs::read(path).expect("a file");
    NpyFile::new(&bytes[..]).expect("an .npy file").into_vec().expect("float32")
}

fn shape(path: &Path) -> Vec<usize> {
    let bytes = std::fs::read(path).expect("a file");
    let file = NpyFile::new(&bytes[..]).expect("an .npy file");
    file.shape().iter().map(|&size| size as usize).collect()
}

#[test]
#[ignore = "needs the model: make model-test"]
fn embeddings_are_within_1e_5_of_the_references_in_every_mode() {
    let folder = model();
    let texts = read_texts(&here("data/sentences.json")).expect("texts");
    let references: Vec<f64> = numbers(&here("data/embeddings.npy")).into_iter().map(f64::from).collect();
    let tokens = Tokens::read(&folder).expect("a tokenizer");
    for batch in [8, 3] {
        let mut first = None;
        for (name, vm) in engines() {
            for placement in [Placement::Resident, Placement::Compiled { texts: 8, tokens: 256 }, Placement::Streamed] {
                let bert = Bert::read(&vm, DeviceId::cpu(0), placement, &folder).expect("the model");
                let mut told = Vec::new();
                let found = embed(&vm, &bert, &tokens, &texts, batch, |passed| told.push(passed)).expect("embeddings");
                let worst = difference(&found, &references);
                println!("batches of {batch}, {name}, {placement:?}: {worst:.1e} off");
                assert!(worst <= 1e-5, "batches of {batch}, {name}, {placement:?}: {worst:e} off");
                let first = first.get_or_insert_with(|| bits(&found));
                assert_eq!(*first, bits(&found), "{name} gives other bits than 1 thread");
                assert_eq!(told, if batch == 8 { vec![8] } else { vec![3, 6, 8] });
            }
        }
    }
}

#[test]
#[ignore = "needs the model: make model-test"]
fn the_command_writes_the_embeddings() {
    let folder = model();
    let out = tempfile::tempdir().expect("a folder");
    let file = out.path().join("e.npy");
    let command = |texts: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_minilm"));
        command.arg("embed").arg("--in").arg(texts).arg("--out").arg(&file).arg("--model").arg(&folder);
        command.output().expect("the command runs")
    };
    let ran = command(&here("data/sentences.json"));
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let printed = String::from_utf8_lossy(&ran.stdout);
    assert!(printed.contains("e.npy: 8 texts, 384 numbers each, ") && printed.ends_with(" s on cpu:0\n"), "{printed}");
    let references: Vec<f64> = numbers(&here("data/embeddings.npy")).into_iter().map(f64::from).collect();
    assert!(difference(&numbers(&file), &references) <= 1e-5);
    // No texts have no embeddings, and an empty text has one.
    let texts = out.path().join("texts.json");
    for (json, rows) in [("[]", 0), ("[\"\"]", 1)] {
        std::fs::write(&texts, json).expect("written");
        assert!(command(&texts).status.success());
        let found = numbers(&file);
        assert_eq!(shape(&file), [rows, 384], "{json}");
        let length = found.iter().map(|number| number * number).sum::<f32>();
        assert!(rows == 0 || (length - 1.0).abs() < 1e-5, "{json}: {length}");
    }
    // A link stays a link, and a pipe is written to.
    let link = out.path().join("link.npy");
    std::os::unix::fs::symlink(&file, &link).expect("a link");
    let to = |place: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_minilm"));
        command.arg("embed").arg("--in").arg(&texts).args(["--out", place]).arg("--model").arg(&folder);
        command.output().expect("the command runs")
    };
    assert!(to(link.to_str().expect("UTF-8")).status.success());
    assert!(link.is_symlink() && shape(&file) == [1, 384]);
    std::fs::remove_file(&link).expect("removed");
    let piped = to("/dev/stdout");
    assert!(piped.status.success() && piped.stdout.starts_with(b"\x93NUMPY"), "{piped:?}");
    let left: Vec<_> = std::fs::read_dir(out.path()).expect("the folder").collect();
    assert_eq!(left.len(), 2, "{left:?}");
}
