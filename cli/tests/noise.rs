//! Whatever a script holds, checking it ends with a message or with a plan, never with a panic.

mod common;

use proptest::prelude::*;
use streamvm_cli::command::check_text;
use streamvm_cli::devices::{Available, Devices};
use streamvm_cli::diagnostic::render_all;
use streamvm_cli::parser::parse;
use streamvm_cli::plan::plan;
use streamvm_cli::source::{MAX_SOURCE_BYTES, ReadError, Source};

/// Parses, checks and plans; gives the messages as they would be shown.
fn survive(bytes: Vec<u8>) -> Result<(), String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scripts");
    let source = match Source::from_bytes("noise.svm", folder, bytes) {
        Ok(source) => source,
        Err(ReadError::File(message)) => return Err(message),
        Err(ReadError::Text(failure)) => return Err(failure.1.render(&failure.0)),
    };
    let available = Available { planning: true, ..Available::default() };
    check_text(&source, available.clone()).map_err(|errors| render_all(&errors, &source))?;
    let script = parse(&source).map_err(|errors| render_all(&errors, &source))?;
    let devices = Devices::resolve(&script, available).map_err(|errors| render_all(&errors, &source))?;
    plan(&source, &script, &devices).map(drop).map_err(|error| error.render(&source))
}

/// Scripts that are fine, to be changed a little.
const GOOD: &[&str] = &[
    include_str!("scripts/ops_elementwise.svm"),
    include_str!("scripts/ops_reduce.svm"),
    include_str!("scripts/into.svm"),
    include_str!("scripts/repeat.svm"),
    include_str!("scripts/accuracy.svm"),
    include_str!("scripts/print_large.svm"),
    include_str!("scripts/check_cuda.svm"),
];

const WORDS: &[&str] = &[
    "let",
    "device",
    "print",
    "save",
    "expect",
    "repeat",
    "time",
    "copy",
    "fill",
    "empty",
    "load",
    "relu",
    "add",
    "max",
    "sum",
    "slice",
    "reshape",
    "permute",
    "broadcast",
    "where",
    "cast",
    "matmul",
    "argmax",
    "softmax",
    "to",
    "into",
    "on",
    "lane",
    "axis",
    "axes",
    "keep",
    "rows",
    "cols",
    "value",
    "tol",
    "accuracy",
    "host",
    "cpu:0",
    "cuda:7",
    "f32",
    "i64",
    "bool",
    "x",
    "y",
    "=",
    "==",
    "~=",
    "(",
    ")",
    "{",
    "}",
    "..",
    "0",
    "1",
    "-1",
    "2",
    "8",
    "0.5",
    "1e30",
    "nan",
    "true",
    "9223372036854775807",
    "-9223372036854775808",
    "\"data/small.npy\"",
    "\"\"",
    "\n",
    "\n",
    "\n",
];

#[test]
fn the_good_scripts_are_good() {
    for text in GOOD {
        assert_eq!(survive(text.as_bytes().to_vec()), Ok(()));
    }
}

proptest! {
    #[test]
    fn random_bytes(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let _ = survive(bytes);
    }

    #[test]
    fn random_text(text in "\\PC{0,400}") {
        let _ = survive(text.into_bytes());
    }

    #[test]
    fn random_words(words in prop::collection::vec(prop::sample::select(WORDS), 0..200)) {
        let _ = survive(words.join(" ").into_bytes());
    }

    #[test]
    fn changed_scripts(
        which in 0..GOOD.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0..4_u8, any::<u8>(), prop::sample::select(WORDS)), 1..8),
    ) {
        let mut bytes = GOOD[which].as_bytes().to_vec();
        for (at, how, byte, word) in changes {
            if bytes.is_empty() {
                break;
            }
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => drop(bytes.remove(at)),
                2 => drop(bytes.splice(at..at, word.bytes())),
                _ => bytes.truncate(at),
            }
        }
        let _ = survive(bytes);
    }
}

#[test]
fn a_megabyte_of_noise_is_refused_in_a_few_lines() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let binary: Vec<u8> = (0..1_000_000).map(|_| next() as u8).collect();
    let ascii: Vec<u8> = binary.iter().map(|byte| byte % 96 + 32).collect();
    let lines: Vec<u8> = ascii.iter().map(|byte| if *byte % 7 == 0 { b'\n' } else { *byte }).collect();
    let words: String = (0..150_000).map(|_| format!("{} ", WORDS[next() as usize % WORDS.len()])).collect();
    let deep = b"(".repeat(1_000_000);
    let blocks = b"repeat 1 {\n".repeat(90_000);
    let quote = [b"\"".as_slice(), &vec![b'x'; 1_000_000]].concat();
    let name = vec![b'x'; 1_000_000];
    for noise in [binary, ascii, lines, words.into_bytes(), deep, blocks, quote, name, vec![0; 1_000_000]] {
        let shown = survive(noise).expect_err("noise was accepted");
        assert!(shown.starts_with("noise.svm:"), "{shown}");
        assert!(shown.len() < 20_000, "{} bytes of messages", shown.len());
    }
    assert!(survive(vec![b'\n'; MAX_SOURCE_BYTES + 1]).unwrap_err().contains("longer than"));
}
