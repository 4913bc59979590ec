//! What the command says where it cannot go on. No model is needed.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Runs `minilm embed` in a folder with these bytes as `in.json`, and returns what it says. It must fail and leave no file behind.
fn refusal(input: Option<&[u8]>, arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    if let Some(bytes) = input {
        fs::write(folder.path().join("in.json"), bytes).expect("written");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_minilm"));
    let ran = command.arg("embed").args(arguments).current_dir(folder.path()).output().expect("the command runs");
    assert!(!ran.status.success() && ran.stdout.is_empty(), "{ran:?}");
    let files = fs::read_dir(folder.path()).expect("the folder").count();
    assert_eq!(files, usize::from(input.is_some()), "files are left behind");
    String::from_utf8(ran.stderr).expect("UTF-8")
}

const ARGUMENTS: [&str; 4] = ["--in", "in.json", "--out", "e.npy"];

#[test]
fn an_input_that_is_no_array_of_texts_is_refused_with_its_place() {
    let cases: [(&[u8], &str); 7] = [
        (b"", "in.json: the file is empty"),
        (b" \n", "in.json: the file is empty"),
        (b"\x93NUMPY\x01\x00", "byte 0 is not UTF-8, so this is not a text file"),
        (b"[\"a\",\n 7]", "expected a string at line 2 column 2"),
        (b"{\"a\": 1}", "expected a sequence at line 1 column 0"),
        (b"[\"a\"", "EOF while parsing a list at line 1 column 4"),
        (b"[\"a\"] x", "trailing characters at line 1 column 7"),
    ];
    for (bytes, expected) in cases {
        let said = refusal(Some(bytes), &ARGUMENTS);
        assert!(said.contains(expected), "{said}");
        assert!(said.contains("The input is a JSON array of texts, such as [\"one text\", \"another\"]"), "{said}");
    }
}

#[test]
fn files_that_are_missing_or_cannot_be_written_are_named() {
    let said = refusal(None, &ARGUMENTS);
    assert!(said.contains("cannot read in.json: "), "{said}");
    let texts: &[u8] = b"[\"a\"]";
    let said = refusal(Some(texts), &["--in", "in.json", "--out", "none/e.npy"]);
    assert!(said.contains("cannot write none/e.npy: "), "{said}");
    let said = refusal(Some(texts), &["--in", "in.json", "--out", "."]);
    assert!(said.contains("cannot write .: "), "{said}");
    let said = refusal(Some(texts), &["--in", "in.json", "--out", "./in.json"]);
    assert!(said.contains("./in.json is both the input and the output"), "{said}");
}

#[test]
fn a_model_that_is_missing_or_damaged_is_named_with_what_to_do() {
    let texts: &[u8] = b"[\"a\"]";
    let said = refusal(Some(texts), &ARGUMENTS);
    assert!(said.contains("target/model/tokenizer.json is missing. Run `make model`"), "{said}");
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| fs::write(Path::new(folder.path()).join(name), text).expect("written");
    let model = folder.path().to_str().expect("UTF-8");
    let arguments = [&ARGUMENTS[..], &["--model", model]].concat();
    file("tokenizer.json", "{}");
    let said = refusal(Some(texts), &arguments);
    assert!(said.contains("tokenizer.json: ") && said.contains("remove its folder and run `make model`"), "{said}");
}

#[test]
fn arguments_that_make_no_sense_are_refused() {
    let texts: &[u8] = b"[\"a\"]";
    for (extra, expected) in [(["--batch", "0"], "0 is not in 1..=256"), (["--device", "gpu"], "gpu")] {
        let said = refusal(Some(texts), &[&ARGUMENTS[..], &extra].concat());
        assert!(said.contains(expected), "{said}");
    }
}
