//! Files made to take time or memory: the command says what is wrong with them within a bound of both.
//!
//! The bounds are the system's, of processor time and of address space, so that a busy machine changes nothing.
#![allow(clippy::print_stdout, reason = "says what was drawn, with --nocapture")]

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::common::{Output, command};

/// Runs the command with at most so many seconds of processor time and MiB of address space.
pub(crate) fn within(folder: &Path, seconds: u32, mebibytes: u32, args: &[&str]) -> Output {
    let script = format!("ulimit -t {seconds}; ulimit -v {}; exec \"$0\" \"$@\"", mebibytes << 10);
    let output = std::process::Command::new("sh")
        .args(["-c", &script, env!("CARGO_BIN_EXE_streamvm")])
        .args(args)
        .current_dir(folder)
        .env_remove("RUST_LOG")
        .env_remove("STREAMVM_ENGINE")
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Output { code: output.status.code().unwrap_or(-1), stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

fn npy(dict: &str) -> Vec<u8> {
    let length = u16::try_from(dict.len()).unwrap();
    [b"\x93NUMPY\x01\x00".as_slice(), &length.to_le_bytes(), dict.as_bytes()].concat()
}

/// A quote that is escaped hides brackets from a reader that does not know escapes, and each that is left open doubled the
/// time of a parser of Python literals.
#[test]
fn brackets_after_an_escaped_quote_cost_nothing() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("a.svm"), "let a = load \"a.npy\"\n").unwrap();
    for (action, bracket) in [("check", "["), ("run", "["), ("check", "{"), ("check", "(")] {
        let dict = format!("{{'\\'': {}", bracket.repeat(150));
        fs::write(folder.path().join("a.npy"), npy(&dict)).unwrap();
        let output = within(folder.path(), 10, 1 << 12, &[action, "a.svm"]);
        assert_eq!(output.code, 2, "{action}: {}", output.stderr);
        assert!(output.stderr.contains("a.npy: malformed .npy header"), "{}", output.stderr);
    }
}

/// Draws headers of brackets, quotes and escapes, many files to a script.
#[test]
fn drawn_headers_are_refused_in_time() {
    const PIECES: &[&str] = &[
        "(",
        "[",
        "{",
        "((((((((",
        "[[[[[[[[",
        ")",
        "]",
        "}",
        "'",
        "\"",
        "\\'",
        "\\\"",
        "\\",
        "\\x28",
        "\\N{",
        "'descr'",
        "'<f4'",
        "'shape'",
        "'fortran_order'",
        "False",
        ":",
        ",",
        "(3,)",
        "4294967296,",
        "0,",
        "1e9",
        "-1",
        "b'",
        "'''",
        "\n",
        " ",
    ];
    let folder = TempDir::new().unwrap();
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move |below: usize| {
        // Xorshift (Marsaglia 2003): any sequence does.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let (mut text, mut bytes) = (String::new(), 0);
    for number in 0..500 {
        let mut dict = String::from("{'\\'': '<f4', 'fortran_order': False, 'shape': ");
        dict.truncate(random(dict.len() + 1));
        if random(4) == 0 {
            // An escaped quote, so that what follows looks like a text to a reader that knows no escapes, and open brackets.
            dict = format!("{{{}: ", ["'\\''", "\"\\\"\"", "'a'"][random(3)]);
            dict.push_str(&["[", "{", "(", "[{", "([", "{("][random(6)].repeat(random(60)));
        }
        (0..random(200)).for_each(|_| dict.push_str(PIECES[random(PIECES.len())]));
        bytes += dict.len();
        fs::write(folder.path().join(format!("{number}.npy")), npy(&dict)).unwrap();
        text.push_str(&format!("let a = load \"{number}.npy\"\n"));
    }
    fs::write(folder.path().join("a.svm"), text).unwrap();
    let output = within(folder.path(), 10, 1 << 12, &["check", "a.svm"]);
    println!("500 drawn headers of {bytes} bytes in all are refused within ten seconds of processor time");
    assert_eq!(output.code, 2, "{}", output.stderr);
    assert!(output.stderr.ends_with("a.svm: 500 errors, the first 20 are shown\n"), "{}", output.stderr);
}

#[test]
fn a_key_that_is_there_twice_is_refused() {
    let folder = TempDir::new().unwrap();
    let one = r#""x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}"#;
    for (header, says) in [
        (format!("{{{one},{one}}}"), "two keys \"x\""),
        (
            format!("{{{one},\"\\u0078\":{{\"dtype\":\"U8\",\"shape\":[1,2],\"data_offsets\":[0,2]}}}}"),
            "two keys \"x\"",
        ),
        (r#"{"x":{"dtype":"U8","dtype":"I32","shape":[2],"data_offsets":[0,2]}}"#.into(), "two keys \"dtype\""),
        (format!("{{\"__metadata__\":{{\"a\":\"1\",\"a\":\"2\"}},{one}}}"), "two keys \"a\""),
        (format!("{{\"__metadata__\":{{}},\"__metadata__\":{{}},{one}}}"), "two keys \"__metadata__\""),
    ] {
        let bytes = [(header.len() as u64).to_le_bytes().as_slice(), header.as_bytes(), &[1, 2]].concat();
        fs::write(folder.path().join("a.safetensors"), bytes).unwrap();
        fs::write(folder.path().join("a.svm"), "let a = load \"a.safetensors\"\n").unwrap();
        let output = command(folder.path()).args(["check", "a.svm"]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && text.contains(says), "{header}: {text}");
    }
}

/// Every line reads all bytes, then a view of many pieces cuts them: each piece had a list of all readers of its own.
#[test]
fn many_readers_of_many_pieces_are_refused_in_bounded_memory() {
    let folder = TempDir::new().unwrap();
    let trace = |readers: usize, pieces: usize, ordered: bool| {
        let mut text =
            format!("{{\"streamvm_trace\":1}}\n{{\"stream\":{{\"id\":0,\"name\":\"w\",\"ordered\":{ordered}}}}}\n");
        let all = pieces * 16;
        text.push_str(&format!("{{\"life\":{{\"id\":1,\"kind\":\"device\",\"base\":0,\"bytes\":{all}}}}}\n"));
        for seq in 1..=readers {
            text.push_str(&format!("{{\"instruction\":{{\"at\":[0,{seq}],\"op\":\"r\",\"location\":\"s\",\"uses\":[{{\"life\":1,\"access\":\"read\",\"runs\":[[0,{all}]]}}]}}}}\n"));
        }
        let runs: Vec<String> = (0..pieces).map(|piece| format!("[{},{}]", piece * 16, piece * 16 + 8)).collect();
        let last = readers + 1;
        text.push_str(&format!("{{\"instruction\":{{\"at\":[0,{last}],\"op\":\"w\",\"location\":\"s\",\"uses\":[{{\"life\":1,\"access\":\"read\",\"runs\":[{}]}}]}}}}\n", runs.join(",")));
        text
    };
    fs::write(folder.path().join("t"), trace(30_000, 30_000, false)).unwrap();
    let output = within(folder.path(), 60, 2 << 10, &["verify", "t"]);
    assert!(output.code == 2 && output.stderr.contains("record a shorter run"), "{} {}", output.code, output.stderr);
    // Of one ordered stream the last reader stands for all.
    fs::write(folder.path().join("t"), trace(30_000, 30_000, true)).unwrap();
    let output = within(folder.path(), 60, 2 << 10, &["verify", "t"]);
    assert!(
        output.code == 1 && output.stdout.contains("that nothing has written"),
        "{} {}",
        output.code,
        output.stderr
    );
}

#[test]
fn a_trace_has_no_more_streams_than_an_engine() {
    let folder = TempDir::new().unwrap();
    let trace = |streams: usize| {
        let mut text = String::from("{\"streamvm_trace\":1}\n");
        (0..streams).for_each(|id| text.push_str(&format!("{{\"stream\":{{\"id\":{id},\"name\":\"s{id}\"}}}}\n")));
        text
    };
    fs::write(folder.path().join("t"), trace(1025)).unwrap();
    let output = within(folder.path(), 60, 2 << 10, &["verify", "t"]);
    assert!(
        output.code == 2 && output.stderr.starts_with("t:1026: error: the trace has more than 1024 streams"),
        "{}",
        output.stderr
    );
    fs::write(folder.path().join("t"), trace(1024)).unwrap();
    let output = within(folder.path(), 60, 2 << 10, &["verify", "t"]);
    assert!(output.code == 1 && output.stdout.starts_with("streams       1024\n"), "{}", output.stderr);
}
