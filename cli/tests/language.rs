//! Runs every example of `docs/language.md`.
//!
//! A block marked `svm` must run, `svm fail` must fail while running, `svm reject` must be rejected. A `text`
//! block right after it is what it prints, on stdout or, for the bad ones, on stderr.

use std::fs;
use std::path::Path;

use crate::common::{scratch, streamvm};

struct Example {
    line: usize,
    kind: String,
    script: String,
    prints: Option<String>,
}

fn examples(text: &str) -> Vec<Example> {
    let mut examples: Vec<Example> = Vec::new();
    let mut open: Option<(usize, String, String)> = None;
    let mut last_end = 0;
    for (number, line) in text.lines().enumerate() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(kind)) => open = Some((number + 1, kind.to_owned(), String::new())),
            (None, None) => {}
            (Some((_, _, body)), None) => {
                body.push_str(line);
                body.push('\n');
            }
            (Some(_), Some(_)) => {
                let (line, kind, body) = open.take().expect("a block");
                if kind.starts_with("svm") {
                    examples.push(Example { line, kind, script: body, prints: None });
                } else if kind == "text" {
                    let example = examples.last_mut().expect("a script in front of what it prints");
                    assert!(line <= last_end + 3, "line {line}: prints of which script?");
                    example.prints = Some(body);
                }
                last_end = number + 1;
            }
        }
    }
    examples
}

#[test]
fn every_example_of_the_reference_does_what_it_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let text = fs::read_to_string(root.join("docs/language.md")).expect("the reference");
    let examples = examples(&text);
    assert!(examples.len() >= 5, "only {} examples found", examples.len());
    let folder = scratch(&root.join("examples"));
    for example in examples {
        let at = format!("docs/language.md:{}", example.line);
        fs::write(folder.path().join("example.svm"), &example.script).expect("a script");
        let output = streamvm(folder.path(), ["run", "example.svm"]);
        let (code, printed) = match example.kind.as_str() {
            "svm" => (0, &output.stdout),
            "svm fail" => (1, &output.stderr),
            "svm reject" => (2, &output.stderr),
            other => panic!("{at}: unknown kind of example `{other}`"),
        };
        assert_eq!(output.code, code, "{at}: {}{}", output.stdout, output.stderr);
        if let Some(prints) = example.prints {
            assert_eq!(*printed, prints, "{at}");
        }
    }
}
