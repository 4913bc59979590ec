//! `minilm search` over a small model of random weights: scores beside naive ones, the index and when it is made again, refusals.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use crate::common::drawn::Drawn;
use crate::common::folder::{tokens_of, write_model};
use serde_json::Value;
use tempfile::TempDir;

/// A folder with the files of the model in `model`.
struct Place {
    folder: TempDir,
    drawn: Drawn,
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().expect("a folder");
        let model = folder.path().join("model");
        fs::create_dir(&model).expect("a folder");
        Place { drawn: write_model(&model), folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.path(name), bytes).expect("written");
    }

    /// Runs `minilm search --in lines.txt` in the folder.
    fn search(&self, arguments: &[&str], input: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_minilm"));
        command.args(["search", "--in", "lines.txt", "--model", "model"]).args(arguments).current_dir(&self.folder);
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut running = pipes.spawn().expect("the command runs");
        // A command that refuses its arguments may have ended already.
        let _ = running.stdin.take().expect("a pipe").write_all(input.as_bytes());
        running.wait_with_output().expect("the command ends")
    }

    /// The answers to queries, as JSON, and what was said on standard error.
    fn answers(&self, arguments: &[&str], input: &str) -> (Vec<Value>, String) {
        let ran = self.search(&[arguments, &["--json"]].concat(), input);
        let said = text(&ran.stderr);
        assert!(ran.status.success(), "{said}");
        let answers = text(&ran.stdout).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        (answers, said)
    }

    /// What `search` says when it fails; it must print no answer and leave no index.
    fn refusal(&self, arguments: &[&str]) -> String {
        let ran = self.search(arguments, "");
        let said = text(&ran.stderr);
        assert!(!ran.status.success() && ran.stdout.is_empty(), "{said}");
        assert!(!self.path("lines.txt.index").exists(), "an index is left behind");
        said
    }

    /// The scores of lines for a query, computed in `f64`.
    fn scores(&self, lines: &[&str], query: &str) -> Vec<f64> {
        let query = self.drawn.embedding(&tokens_of(query));
        let score = |line: &&str| -> f64 {
            self.drawn.embedding(&tokens_of(line)).iter().zip(&query).map(|(one, other)| one * other).sum()
        };
        lines.iter().map(score).collect()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

const LINES: [&str; 6] =
    ["w4 w5 w6", "w30", "w7 w8 w9 w10 w11 w12 w13 w14 w15 w16 w17 w18", "w49 w20", "w5 w4", "w31 w30"];

/// The lines in a file, with blank ones between them, ends of both kinds, and a mark at the beginning. Their numbers are 1, 3, 4, 7, 8, 9.
const FILE: &str =
    "\u{feff}w4 w5 w6\n\nw30\r\nw7 w8 w9 w10 w11 w12 w13 w14 w15 w16 w17 w18\n  \n\r\nw49 w20\nw5 w4\nw31 w30";
const NUMBERS: [usize; 6] = [1, 3, 4, 7, 8, 9];

#[test]
fn the_best_lines_have_the_scores_of_a_naive_model() {
    let place = Place::new();
    place.write("lines.txt", FILE);
    for (query, batch) in [("w30 w31", "32"), ("w5", "2"), ("w49 w20", "1"), ("unknown", "3")] {
        let mut expected: Vec<(f64, usize)> = place.scores(&LINES, query).into_iter().zip(NUMBERS).collect();
        expected.sort_by(|one, other| other.0.total_cmp(&one.0));
        for top in [1, 4, 6, 100] {
            let arguments = ["--query", query, "--index", batch, "--batch", batch, "--top", &top.to_string()];
            let (answers, _) = place.answers(&arguments, "");
            assert_eq!(answers.len(), 1);
            assert_eq!(answers[0]["query"], query);
            let found = answers[0]["results"].as_array().expect("results");
            assert_eq!(found.len(), top.min(LINES.len()), "{query}");
            for (found, &(score, number)) in found.iter().zip(&expected) {
                let off = (found["score"].as_f64().expect("a score") - score).abs();
                assert!(off < 1e-5, "{query}: {found} is {off:e} off");
                assert_eq!(found["line"], number, "{query}");
                let place = NUMBERS.iter().position(|&other| other == number).expect("a line");
                assert_eq!(found["text"], LINES[place]);
            }
        }
    }
}

#[test]
fn each_line_of_the_standard_input_is_a_query() {
    let place = Place::new();
    place.write("lines.txt", FILE);
    let (answers, _) = place.answers(&["--top", "1"], "w30\n\n  \nw49 w20\n");
    let best: Vec<_> = answers.iter().map(|answer| answer["results"][0]["line"].as_u64().expect("a line")).collect();
    assert_eq!(best, [3, 7], "a text is nearest to itself");
    assert!(answers.iter().all(|answer| answer["embed_ms"].as_f64() > Some(0.0)));
    assert!(answers.iter().all(|answer| answer["search_ms"].as_f64() > Some(0.0)));
    // For people.
    let ran = place.search(&["--top", "2", "--query", "w30"], "");
    let printed = text(&ran.stdout);
    let (first, second) = printed.trim_end().split_once('\n').expect("two lines");
    assert_eq!(first, " 1.0000  3  w30");
    let mut scored: Vec<(f64, usize)> = place.scores(&LINES, "w30").into_iter().zip(0..).collect();
    scored.sort_by(|one, other| other.0.total_cmp(&one.0));
    let (number, line) = (NUMBERS[scored[1].1], LINES[scored[1].1]);
    assert!(second.ends_with(&format!("  {number}  {line}")) && second.find(line) == first.find("w30"), "{printed}");
    let said = text(&ran.stderr);
    assert!(said.contains("6 lines searched in ") && said.contains(" ms for the embedding of the query"), "{said}");
}

#[test]
fn the_index_is_kept_and_made_again_when_the_text_or_the_model_changes() {
    let place = Place::new();
    place.write("lines.txt", FILE);
    let computed = "lines.txt.index: the embeddings of 6 lines";
    let search = || place.answers(&["--query", "w30"], "");
    let (first, said) = search();
    assert!(said.contains(computed), "{said}");
    let kept = fs::read(place.path("lines.txt.index")).expect("an index");
    let (second, said) = search();
    assert_eq!(said, "", "the index is used");
    assert_eq!(first[0]["results"], second[0]["results"]);
    assert_eq!(kept, fs::read(place.path("lines.txt.index")).expect("an index"));

    // An index is used, not computed again: its rows decide the answer.
    let changed: Vec<u8> = kept[..kept.len() - 4 * 24].iter().copied().chain([0; 4 * 24]).collect();
    place.write("lines.txt.index", &changed);
    let (third, _) = place.answers(&["--query", "w31 w30", "--top", "6"], "");
    let scores = third[0]["results"].as_array().expect("results").iter();
    let last = scores.clone().find(|line| line["line"] == 9).expect("the last line");
    assert_eq!(last["score"], 0.0);

    // One byte more, at the same number of lines.
    place.write("lines.txt", format!("{FILE} w5"));
    let (_, said) = search();
    assert!(said.contains("lines.txt.index is of another text: it is made again") && said.contains(computed), "{said}");
    assert_eq!(search().1, "");

    let config = fs::read_to_string(place.path("model/config.json")).expect("a file");
    let other = config.replace("1e-12", "1e-11");
    assert_ne!(config, other);
    place.write("model/config.json", other);
    let (_, said) = search();
    assert!(said.contains("was made by another model: it is made again") && said.contains(computed), "{said}");
    assert_eq!(search().1, "");

    let (_, said) = place.answers(&["--query", "w30", "--index", "other"], "");
    assert!(said.contains("other: the embeddings of 6 lines"), "{said}");
    assert!(place.path("other").exists());
}

#[test]
fn streamed_weights_give_the_same_answers() {
    let place = Place::new();
    place.write("lines.txt", FILE);
    let (resident, _) = place.answers(&["--query", "w5 w30"], "");
    let (streamed, said) = place.answers(&["--query", "w5 w30", "--index", "other", "--weights", "stream"], "");
    assert!(said.contains("other: the embeddings of 6 lines"), "{said}");
    assert_eq!(resident[0]["results"], streamed[0]["results"]);
    let index = |name: &str| fs::read(place.path(name)).expect("an index");
    // The embeddings, after the metadata, whose order is any.
    let rows = 6 * 24 * 4;
    let (resident, streamed) = (index("lines.txt.index"), index("other"));
    assert_eq!(resident[resident.len() - rows..], streamed[streamed.len() - rows..]);
}

#[test]
fn a_file_that_is_no_index_is_not_replaced() {
    let place = Place::new();
    place.write("lines.txt", FILE);
    let model = fs::read(place.path("model/model.safetensors")).expect("a file");
    place.write("weights", &model);
    place.search(&["--query", "w30", "--index", "cut"], "");
    let index = fs::read(place.path("cut")).expect("an index");
    place.write("cut", &index[..index.len() - 1]);
    place.write("notes", "notes of mine");
    for (name, bytes) in [("weights", &model[..]), ("cut", &index[..index.len() - 1]), ("notes", b"notes of mine")] {
        let said = place.refusal(&["--query", "w30", "--index", name]);
        assert!(
            said.contains(&format!("{name}: the file is not an index of `minilm search`, or is damaged")),
            "{said}"
        );
        assert!(said.contains("Name another file with --index; if this is a damaged index, remove it"), "{said}");
        assert_eq!(fs::read(place.path(name)).expect("the file"), bytes);
    }
    let said = place.refusal(&["--query", "w30", "--index", "none/index"]);
    assert!(said.contains("cannot write none/index: "), "{said}");
    let said = place.refusal(&["--query", "w30", "--index", "lines.txt"]);
    assert!(said.contains("lines.txt: the file is not an index"), "{said}");
    assert_eq!(fs::read_to_string(place.path("lines.txt")).expect("the text"), FILE);
}

#[test]
fn texts_that_are_missing_empty_or_binary_are_refused() {
    let place = Place::new();
    let said = place.refusal(&["--query", "w30"]);
    assert!(said.contains("cannot read lines.txt: "), "{said}");
    let cases: [(&[u8], &str); 6] = [
        (b"", "lines.txt: the file is empty"),
        ("\u{feff}".as_bytes(), "lines.txt: the file is empty"),
        (b"\n \r\n\t", "lines.txt: all lines are blank"),
        (b"w4\n\x89PNG\r\n", "lines.txt: byte 3 is not UTF-8, so this is not a text file"),
        (b"w4\n\0\0", "lines.txt: byte 3 is 0, so this is not a text file"),
        (b"\xff\xfew\0", "lines.txt: byte 0 is not UTF-8"),
    ];
    for (bytes, expected) in cases {
        place.write("lines.txt", bytes);
        let said = place.refusal(&["--query", "w30"]);
        assert!(said.contains(expected), "{said}");
        assert!(said.contains("The input is a text file in UTF-8 whose lines are searched"), "{said}");
    }
    fs::remove_file(place.path("lines.txt")).expect("removed");
    fs::create_dir(place.path("lines.txt")).expect("a folder");
    let said = place.refusal(&["--query", "w30"]);
    assert!(said.contains("cannot read lines.txt: "), "{said}");
    for (arguments, expected) in [(["--query", ""], "a value is required"), (["--top", "0"], "0 is not in 1..")] {
        let said = place.refusal(&arguments);
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn a_missing_model_is_named_with_what_to_do() {
    let place = Place::new();
    place.write("lines.txt", FILE);
    fs::remove_file(place.path("model/tokenizer.json")).expect("removed");
    let said = place.refusal(&["--query", "w30"]);
    assert!(said.contains("tokenizer.json is missing. Run `make model`"), "{said}");
}
