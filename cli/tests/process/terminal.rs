//! What reaches a terminal: no control character of a file's name or of its text, and an error where nothing can be written.
#![allow(clippy::print_stdout, reason = "says what was drawn, with --nocapture")]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;

use tempfile::TempDir;

use crate::common::{command, streamvm};

/// Whatever was printed, a terminal obeys none of it.
fn obeys_nothing(what: &str, text: &str) {
    assert!(text.chars().all(|c| matches!(c, '\n' | '\t') || !c.is_control()), "{what}: {text:?}");
}

#[test]
fn control_characters_of_names_and_texts_are_escaped() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    let evil = "e\u{1b}[31m\u{7}\r\u{9b}";
    fs::write(at(&format!("{evil}.svm")), format!("print \"{evil}\"\ntime \"{evil}\" {{ }}\n")).unwrap();
    let output = streamvm(folder.path(), ["run", "-v", &format!("{evil}.svm")]);
    assert_eq!(output.code, 0, "{}", output.stderr);
    assert!(output.stdout.starts_with("e\\u{1b}[31m\\u{7}\\r\\u{9b}\n"), "{:?}", output.stdout);
    obeys_nothing("a text", &output.stdout);
    obeys_nothing("what runs", &output.stderr);
}

/// Draws names and texts with control characters into every place from which the command takes what it prints.
#[test]
fn drawn_control_characters_reach_no_terminal() {
    let controls: Vec<char> = (1..0x20).chain(0x7f..0xa0).filter_map(char::from_u32).filter(|c| *c != '\n').collect();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (number, pair) in controls.chunks(2).enumerate() {
        let folder = TempDir::new().unwrap();
        let at = |name: &str| folder.path().join(name);
        let evil: String = pair.iter().chain(pair).flat_map(|c| [*c, 'x']).collect();
        let script = format!("{evil}.svm");
        let texts = [
            format!("print \"{evil}\"\ntime \"{evil}\" {{ }}\nprint fill f32 value 1 on host # {evil}\n"),
            format!("let a = load \"{evil}.npy\"\n"),
            format!("let a = load \"m.safetensors\" \"{evil}\"\n"),
            format!("let a = {evil}\n"),
            format!("save (fill f32 value 1 on host) \"{evil}.npy\"\nprint copy (load \"{evil}.npy\") to cpu:0\n"),
            format!("save (fill f32 value 1 on host) \"{evil}/a.npy\"\n"),
            format!("expect fill f32 value 1 on host == fill f32 value 2 on host # {evil}\nrepeat 2000 {{ }}\n"),
        ];
        let header =
            format!("{{\"{}\":{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}}}", evil.escape_debug());
        let header = header.replace("\\u{", "\\u00").replace('}', "").replace("]", "]}}");
        let bytes = [(header.len() as u64).to_le_bytes().as_slice(), header.as_bytes()].concat();
        fs::write(at("m.safetensors"), bytes).unwrap();
        let text = &texts[number % texts.len()];
        fs::write(at(&script), text).unwrap();
        let missing = format!("none{evil}/o");
        let program = format!("{evil}.txt");
        let programs = [
            format!("program {evil}\n"),
            format!("program a\n{evil}\n"),
            format!("program a\nt0 = tensor cpu:0 f32[1]\nfeed {evil} t0\n"),
            format!("program a\nt0 = tensor cpu:0 f32[1]\nfeed a {evil}\n"),
        ];
        fs::write(at(&program), &programs[number % programs.len()]).unwrap();
        let mut runs: Vec<Vec<&str>> = vec![
            vec!["run", "-v", "--record", &evil, &script],
            vec!["verify", "--json", &evil],
            vec!["verify", &evil],
            vec!["run", "--stats", "--profile", "--profile-json", &missing, &script],
            vec!["check", "--races", "--dump-ir", &missing, &script],
            vec!["check", "--races", &script],
            vec!["verify", &script],
            vec!["run", &script, &evil],
            vec!["compile", &program],
            vec!["compile", "--program", &evil, &program],
            vec!["compile", "--program", &evil, &script],
            vec!["compile", "--show", &evil, &script],
            vec!["compile", &missing],
            vec!["run", "--mode", &evil, &script],
            vec!["run", "--record", &script, &script],
        ];
        runs.push(vec![&evil]);
        for args in runs {
            let output = streamvm(folder.path(), &args);
            obeys_nothing(&format!("{args:?} of {text:?}"), &output.stdout);
            obeys_nothing(&format!("{args:?} of {text:?}"), &output.stderr);
            assert!(!output.stderr.contains("panicked"), "{}", output.stderr);
            *counts.entry(format!("exit {}", output.code)).or_insert(0) += 1;
        }
    }
    println!("{} control characters in names and texts: {counts:?}", controls.len());
    assert!(counts.len() == 3, "{counts:?}");
}

#[test]
fn a_name_that_is_no_text_is_told_too() {
    let folder = TempDir::new().unwrap();
    let name = OsString::from_vec(b"a\xff\x1b.svm".to_vec());
    fs::write(folder.path().join(&name), "let a = b\n").unwrap();
    let output = streamvm(folder.path(), [OsString::from("run"), name]);
    assert!(output.code == 2 && output.stderr.starts_with("a\u{fffd}\\u{1b}.svm:1:9: error"), "{:?}", output.stderr);
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let Ok(full) = fs::File::options().write(true).open("/dev/full") else { return };
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("a.svm"), "let a = fill f32 2 value 1 on cpu:0\nprint a\n").unwrap();
    fs::write(at("p.svm"), "program p { }\n").unwrap();
    assert_eq!(streamvm(folder.path(), ["run", "--record", "t", "a.svm"]).code, 0);
    for args in [
        vec!["--help"],
        vec!["--version"],
        vec!["help"],
        vec!["run", "--help"],
        vec!["run", "a.svm"],
        vec!["run", "--stats", "a.svm"],
        vec!["run", "--profile", "a.svm"],
        vec!["check", "a.svm"],
        vec!["check", "--races", "a.svm"],
        vec!["verify", "t"],
        vec!["verify", "--json", "t"],
        vec!["compile", "p.svm"],
        vec!["compile", "--json", "p.svm"],
        vec!["devices"],
        vec!["devices", "--json"],
        vec!["run", "--record", "/dev/full", "a.svm"],
        vec!["run", "--trace", "/dev/full", "a.svm"],
        vec!["run", "--trace", "none/t", "a.svm"],
        vec!["run", "--dump-ir", "/dev/full", "a.svm"],
        vec!["run", "--profile-json", "/dev/full", "a.svm"],
        vec!["check", "--dump-ir", "/dev/full", "a.svm"],
    ] {
        let output = command(folder.path()).args(&args).stdout(full.try_clone().unwrap()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {text}");
        assert!(text.contains("error: cannot write") && !text.contains("panicked"), "{args:?}: {text:?}");
    }
}
