//! Whatever a script holds, checking it ends with a message or with a plan, never with a panic.

use proptest::prelude::*;
use std::path::Path;

use crate::cases::cases;
use streamvm_cli::analysis::plan::plan;
use streamvm_cli::command::{Exit, ScriptOptions, check_text, run_script};
use streamvm_cli::emit::devices::{Available, Devices};
use streamvm_cli::execute::engine_options::EngineOptions;
use streamvm_cli::syntax::ast::{Block, StatementKind};
use streamvm_cli::syntax::diagnostic::render_all;
use streamvm_cli::syntax::parser::parse;
use streamvm_cli::syntax::source::{MAX_SOURCE_BYTES, ReadError, Source};
use tempfile::TempDir;

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

/// Lines over a few names, to be put together.
const LINES: &[&str] = &[
    "let a = add a b LANE",
    "let b = sub b a LANE",
    "let b = mul a 0.5 LANE",
    "let a = copy x to cpu:0 LANE",
    "let b = copy y to cpu:0 LANE",
    "let a = tanh (matmul a (permute b 1 0)) LANE",
    "let c = tanh (matmul a (permute b 1 0)) LANE",
    "let b = matmul c b LANE",
    "let d = sum a axis 1 keep LANE",
    "let a = softmax (sub b d) axis -1 LANE",
    "let a = one_hot (cast (pad b 1 2 axis 0 value 0.5) i32) 3 f32",
    "let a = layer_norm a (slice a axis 0 0..1) d epsilon 1e-5 LANE",
    "let a = gelu (index_select a (argmax b axis 0)) LANE",
    "let a = scatter_add a (cast (flip a) i32) (tril a diagonal -1) axis 0",
    "let a = cumsum (cat a b axis 0) axis 1",
    "let a = tile (roll (stack a b axis -1) 1 axis 0) 1 2 1",
    "let a = reshape (max_pool2d (conv2d (reshape a 1 1 2 3) (reshape b 2 1 1 3) padding 0 1) window 2 1) -1 LANE",
    "let v = slice a cols 1..3 LANE",
    "let w = permute a 1 0",
    "let r = reshape w 2 3 LANE",
    "let a = max r b LANE",
    "let a = where (lt a b) a 1 LANE",
    "let n = add n 1 LANE",
    "let n = div n (argmax b axis 0) LANE",
    "let n = cast b i32 LANE",
    "let n = cast b f16 LANE",
    "let a = cast (cast a bf16) f32 LANE",
    "let a = cast n f32 LANE",
    "add a b into a LANE",
    "relu a into b LANE",
    "neg b into b LANE",
    "neg v into v LANE",
    "mul n n into n LANE",
    "copy a into y LANE",
    "copy y into b LANE",
    "copy x into a LANE",
    "copy b into x LANE",
    "copy (slice a rows 0..1) into y rows 1..2 LANE",
    "copy (slice y cols 0..1) into a cols 2..3 LANE",
    "copy v into y cols 0..2 LANE",
    "fill a rows 1..2 value 0.25 LANE",
    "fill y cols 1.. value 7 LANE",
    "fill b value -1 LANE",
    "repeat 70 { add b 0.5 into b LANE }",
    "repeat 3 { let a = mul (copy x to cpu:0) b LANE }",
    "repeat 5 { copy b into y LANE }",
    "print a",
    "print y",
    "print n",
    "expect a == a",
    "save b \"b.npy\"",
    "copy (load \"b.npy\") into a LANE",
];

/// Lines of a program with the input `q`, over the names `a`, `b` and `n` of the script, to be put together.
const PROGRAM_LINES: &[&str] = &[
    "let r = add q b",
    "let r = sub r a",
    "let q = mul q 0.5",
    "let a = tanh q",
    "let v = slice b cols 1..3",
    "let v = permute q 1 0",
    "let s = sum r axis 1 keep",
    "let r = div r (add s 2)",
    "let r = softmax r axis -1",
    "let r = where (lt r q) r b",
    "let r = reshape (permute (matmul r (permute b 1 0)) 1 0) 2 2",
    "let r = reshape v 2 -1",
    "let s = copy (copy s to host) to cpu:0",
    "let r = cast (cast r f16) f32",
    "add a q into a",
    "mul b 0.5 into b",
    "relu r into r",
    "copy q into b",
    "copy v into b cols 0..2",
    "fill b rows 1..2 value 0.25",
    "fill r value 3",
    "fill v value 4",
    "add n 1 into n",
    "let t = argmax r axis 0",
    "div n (cast t i32) into n",
    "repeat 3 { mul a 0.5 into a }",
    "repeat 2 { let r = add r q }",
    "if c { add r 1 into r } else {\n    let z = mul r 2\n    copy z into r\n  }",
    "if c { fill b value 2 }",
    "if go { } else { neg a into a }",
    "lt (sum r) 0 into c",
    "while go {\n    mul a 0.5 into a\n    if c { add b a into b }\n    sub k 1 into k\n    gt k 0 into go\n  }",
    "fill k value 2",
    "gt k 0 into go",
    "repeat 2 { if c { add a 1 into a } }",
];

/// Scripts that are fine, to be changed a little.
const GOOD: &[&str] = &[
    include_str!("scripts/ops_elementwise.svm"),
    include_str!("scripts/ops_reduce.svm"),
    include_str!("scripts/half.svm"),
    include_str!("scripts/into.svm"),
    include_str!("scripts/repeat.svm"),
    include_str!("scripts/accuracy.svm"),
    include_str!("scripts/print_large.svm"),
    include_str!("scripts/check_cuda.svm"),
    include_str!("scripts/programs.svm"),
    include_str!("scripts/while_if.svm"),
];

const WORDS: &[&str] = &[
    "let",
    "device",
    "print",
    "save",
    "expect",
    "repeat",
    "while",
    "if",
    "else",
    "time",
    "program",
    "run",
    "->",
    "layer",
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
    "log_softmax",
    "softmax_backward",
    "uniform",
    "seed",
    "pad",
    "one_hot",
    "layer_norm",
    "index_select",
    "flip",
    "triu",
    "diagonal",
    "take_along_axis",
    "cat",
    "stack",
    "tile",
    "roll",
    "sort",
    "argsort",
    "descending",
    "topk",
    "argtopk",
    "smallest",
    "eye",
    "arange",
    "linspace",
    "conv2d",
    "max_pool2d",
    "window",
    "stride",
    "groups",
    "epsilon",
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
    "f16",
    "bf16",
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

/// A good script with a few changes.
fn changed(which: usize, changes: Vec<(prop::sample::Index, u8, u8, &'static str)>) -> Vec<u8> {
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
    bytes
}

/// One to seven changes of a script.
fn changes() -> impl Strategy<Value = Vec<(prop::sample::Index, u8, u8, &'static str)>> {
    let change = (any::<prop::sample::Index>(), 0..4_u8, any::<u8>(), prop::sample::select(WORDS));
    prop::collection::vec(change, 1..8)
}

/// Does a script end soon?
fn is_short(script: &Block) -> bool {
    script.iter().all(|statement| match &statement.kind {
        StatementKind::Repeat { count, body } => *count <= 100 && is_short(body),
        // `run_in` bounds the rounds.
        StatementKind::While { body, .. } => is_short(body),
        StatementKind::If { then, otherwise, .. } => is_short(then) && is_short(otherwise),
        StatementKind::Time { body, .. } => is_short(body),
        StatementKind::Program(program) => is_short(&program.body),
        _ => true,
    })
}

/// Runs a script in a folder of its own, since it may save files.
fn run_alone(script: &[u8], inline: bool) -> (Exit, String, String) {
    run_alone_as(script, inline, false)
}

fn run_alone_as(script: &[u8], inline: bool, compiled: bool) -> (Exit, String, String) {
    let folder = TempDir::new().unwrap();
    std::fs::create_dir(folder.path().join("data")).unwrap();
    // Only what the scripts load: a copy of the whole folder for each run takes most of the time of these tests.
    for file in ["half.npy", "half.safetensors", "labels.npy", "small.npy"].map(|name| Path::new("data").join(name)) {
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
        std::fs::copy(scripts.join(&file), folder.path().join(&file)).unwrap();
    }
    std::fs::write(folder.path().join("changed.svm"), script).unwrap();
    let (exit, out, err) = run_in(folder.path(), inline, compiled);
    (exit, out, err.replace(&folder.path().display().to_string(), ""))
}

/// Runs a script of a folder; gives the exit, what it printed without the times, and its messages.
fn run_in(folder: &Path, inline: bool, compiled: bool) -> (Exit, String, String) {
    let options = ScriptOptions {
        file: folder.join("changed.svm"),
        compiled,
        most_rounds: Some(100),
        ..ScriptOptions::default()
    };
    let mode = if inline { streamvm::Mode::Inline } else { streamvm::Mode::Threaded };
    let engine = EngineOptions { mode, memory_limit: Some(1 << 24), ..EngineOptions::default() };
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let exit = run_script(&options, &engine, &mut out, &mut err).unwrap();
    let out = String::from_utf8(out).unwrap();
    let out = out.lines().filter(|line| !line.starts_with("time ")).collect::<Vec<_>>().join("\n");
    (exit, out, String::from_utf8(err).unwrap())
}

proptest! {
    /// Whatever passes the check runs to an end, and to the same one in both modes.
    #[test]
    fn changed_scripts_run_alike_in_both_modes(which in 0..GOOD.len(), changes in changes()) {
        let bytes = changed(which, changes);
        let is_short = String::from_utf8(bytes.clone()).is_ok_and(|text| {
            parse(&Source::from_text("changed.svm", "", text)).is_ok_and(|script| is_short(&script))
        });
        if is_short {
            prop_assert_eq!(run_alone(&bytes, false), run_alone(&bytes, true));
        }
    }

    /// Scripts of lines that fit each other, with copies, views and writes in place on several lanes: who waits for
    /// whom may differ from run to run, what comes out may not.
    #[test]
    fn mixed_lines_run_alike_in_both_modes(
        lines in prop::collection::vec((prop::sample::select(LINES), 0..3_u32), 1..40),
    ) {
        let mut text = String::from("let x = load \"data/small.npy\"\nlet a = copy x to cpu:0\nlet b = mul a 0.5\n");
        text.push_str("let y = empty f32 2 3 on host\nlet n = cast a i32\n");
        for (line, lane) in lines {
            let longer = format!("{text}{}\n", line.replace("LANE", &format!("on lane {lane}")));
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scripts");
            let available = Available { planning: true, ..Available::default() };
            if check_text(&Source::from_text("mixed.svm", folder, longer.clone()), available).is_ok() {
                text = longer;
            }
        }
        text.push_str("print x\nprint y\nprint a\nprint b\nprint n\n");
        let threaded = run_alone(text.as_bytes(), false);
        prop_assert_eq!(threaded, run_alone(text.as_bytes(), true), "{}", text);
    }

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
    fn changed_scripts(which in 0..GOOD.len(), changes in changes()) {
        let _ = survive(changed(which, changes));
    }
}

proptest! {
    // A case checks a script for each of its lines, and runs one three times.
    #![proptest_config(ProptestConfig::with_cases(cases(32) as u32))]

    /// Programs of lines that fit each other: compiled they give what they give statement by statement, and fail at the same line. A failed
    /// run that is compiled fails all that it writes, so less may be printed before the failure is noticed.
    #[test]
    fn drawn_programs_run_alike_compiled_and_not(
        lines in prop::collection::vec(prop::sample::select(PROGRAM_LINES), 1..20),
        fetches in prop::collection::vec(prop::sample::select(&["q", "r", "v", "s", "a", "b", "n", "t"][..]), 0..4),
        lanes in prop::collection::vec(0..2_u32, 1..4),
    ) {
        let outer = "let x = load \"data/small.npy\"\nlet a = copy x to cpu:0\nlet b = mul a 0.5\nlet n = cast (mul a 4) i32\n";
        let mut body = String::from("  let r = neg q\n  let c = lt (sum q) 3\n  let k = fill i32 value 3 on cpu:0\n  let go = gt k 0\n");
        let mut names: Vec<&str> = Vec::new();
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scripts");
        let text = |body: &str, names: &[&str]| {
            let arrow = if names.is_empty() { String::new() } else { format!("-> {} ", names.join(" ")) };
            format!("{outer}program p (q f32 2 3 on cpu:0) {arrow}{{\n{body}}}\n")
        };
        let is_fine = |text: String| {
            let available = Available { planning: true, ..Available::default() };
            check_text(&Source::from_text("drawn.svm", folder, text), available).is_ok()
        };
        for line in lines {
            let longer = format!("{body}  {line}\n");
            if is_fine(text(&longer, &[])) {
                body = longer;
            }
        }
        for fetch in fetches {
            let more: Vec<&str> = names.iter().copied().chain([fetch]).collect();
            if !names.contains(&fetch) && is_fine(text(&body, &more)) {
                names = more;
            }
        }
        let mut script = text(&body, &names);
        for (round, lane) in lanes.iter().enumerate() {
            let bound: Vec<String> = names.iter().map(|name| format!("{name}{round}")).collect();
            let bind = if names.is_empty() { String::new() } else { format!("let {} = ", bound.join(" ")) };
            let given = ["(copy x to cpu:0)", "(permute (reshape (copy x to cpu:0) 3 2) 1 0)"][round % 2];
            script += &format!("{bind}run p {given} on lane {lane}\n");
            bound.iter().for_each(|name| script += &format!("print {name}\n"));
        }
        script += "print a\nprint b\nprint n\n";
        let eager = run_alone(script.as_bytes(), false);
        for inline in [false, true] {
            let compiled = run_alone_as(script.as_bytes(), inline, true);
            if eager.0 == Exit::Fine {
                prop_assert_eq!(&eager, &compiled, "{}", script);
                continue;
            }
            let what = |err: &str| err.lines().take(3).map(str::to_owned).collect::<Vec<_>>();
            prop_assert_eq!((eager.0, what(&eager.2)), (compiled.0, what(&compiled.2)), "{}", script);
            prop_assert!(eager.1.starts_with(&compiled.1), "{}\n{}\n{}", script, eager.1, compiled.1);
        }
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
