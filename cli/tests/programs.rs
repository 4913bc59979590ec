//! Programs of scripts: run statement by statement, run compiled, and shown by `streamvm compile`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{Output, run_text, scratch, streamvm};
use tempfile::TempDir;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn scripts() -> TempDir {
    scratch(&root().join("cli/tests/scripts"))
}

/// The output without the lines of `time`.
fn timeless(output: Output) -> Output {
    let lines = output.stdout.lines().filter(|line| !line.starts_with("time "));
    Output { stdout: lines.map(|line| format!("{line}\n")).collect(), ..output }
}

/// A program that is run five times on two lanes. Its vectors are long enough for steps to run together where it is compiled.
const FIVE_RUNS: &str = "let w = fill f32 40000 value 2 on cpu:0\n\
    program p (x f32 40000 on cpu:0) -> y {\n  let h = mul x w\n  let y = relu (neg h)\n  add y 1 into w\n}\n\
    let x = fill f32 40000 value -1 on cpu:0\nrepeat 4 { let x = run p (neg x) }\nlet y = run p x on lane 1\nprint y\nprint w\n";

#[test]
fn programs_do_the_same_compiled_and_not_in_every_mode() {
    let folder = scripts();
    fs::write(folder.path().join("five.svm"), FIVE_RUNS).unwrap();
    let plan = streamvm(folder.path(), ["compile", "five.svm"]).stdout;
    assert!(plan.contains("run together"), "{plan}");
    for script in ["programs.svm", "fail_program.svm", "five.svm", "run_in_program.svm", "fail_run_in_program.svm"] {
        let expected = timeless(streamvm(folder.path(), ["run", script]));
        assert!(expected.stdout.contains('['), "{script}: {expected:?}");
        for mode in ["threaded", "inline", "sim:1", "sim:2"] {
            for compiled in [None, Some("--compiled")] {
                let args = ["run", "--mode", mode].into_iter().chain(compiled).chain([script]);
                assert_eq!(timeless(streamvm(folder.path(), args)), expected, "{script} {mode} {compiled:?}");
            }
        }
    }
}

/// Two chains of large steps that do not need each other.
const TWO_CHAINS: &str = "let x = fill f32 1000000 value 0.5 on cpu:0\n\
    program p (x f32 1000000 on cpu:0) -> a b {\n  let a = exp (exp (exp x))\n  let b = tanh (tanh (tanh x))\n}\n\
    let a b = run p x\nprint sum a\nprint sum b\n";

#[test]
fn lanes_spread_the_steps_of_a_program() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("a.svm"), TWO_CHAINS).unwrap();
    let plan = |lanes: &[&str]| {
        let output = streamvm(folder.path(), ["compile", "a.svm"].iter().chain(lanes));
        assert_eq!(output.code, 0, "{}", output.stderr);
        output.stdout
    };
    assert!(!plan(&[]).contains("segment"), "{}", plan(&[]));
    assert!(plan(&["--lanes", "2"]).contains("compute@cpu:0:1"), "{}", plan(&["--lanes", "2"]));
    let run = |more: &[&str]| streamvm(folder.path(), ["run", "a.svm"].iter().chain(more));
    assert_eq!(run(&["--compiled", "--lanes", "2"]), run(&[]));
    for refused in [["--lanes", "2"].as_slice(), &["--compiled", "--lanes", "0"], &["--check-finite"]] {
        assert_eq!(run(refused).code, 2, "{refused:?}");
    }
}

/// In text and as JSON, over two streams.
#[test]
fn edges_are_shown_with_what_keeps_them() {
    let script = "device d = sim:0\nprogram p (x f32 2 on cpu:0) -> y z {\n let there = copy (neg x) to d\n let y = exp there\n let z = add y there\n}\n";
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("a.svm"), script).unwrap();
    let text = streamvm(folder.path(), ["compile", "--show", "edges", "a.svm"]);
    let expected = "\
3 edges of program p
%0 -> %1  read after write of %0  event: segment 1 waits for segment 0
%1 -> %2  read after write of %1  event: segment 2 waits for segment 1
%2 -> %3  read after write of y   same thread: compute@sim:0:0
";
    assert_eq!(text.stdout, expected, "{}", text.stderr);
    let json = streamvm(folder.path(), ["compile", "--json", "--show", "edges", "a.svm"]).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let edge = &json[0]["edges"][1];
    let expected = serde_json::json!({
        "from": 1, "to": 2, "kept_by": "event", "waits": [[1, 2]], "uses": [{ "kind": "read after write", "buffer": "%1" }]
    });
    assert_eq!(edge, &expected, "{json}");
}

#[test]
fn a_step_that_writes_an_infinity_is_named_if_that_is_wanted() {
    for device in ["cpu:0", "sim:0"] {
        let script = format!(
            "let x = fill f32 3 value 100 on {device}\nprogram p (x f32 3 on {device}) -> y {{ let y = exp (exp x) }}\n\
             let y = run p x\nprint y\n"
        );
        let run = |more: &[&str]| run_text(&script, &[&["run", "--sim-devices", "1", "--compiled"], more].concat());
        assert_eq!(run(&[]).code, 0);
        let found = run(&["--check-finite"]);
        assert_eq!(found.code, 1, "{found:?}");
        assert!(found.stderr.contains("script.svm:2:"), "{}", found.stderr);
        assert!(found.stderr.contains("exp") && found.stderr.contains("inf"), "{}", found.stderr);
    }
}

#[test]
fn a_run_is_one_instruction_where_programs_are_compiled() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("a.svm"), FIVE_RUNS).unwrap();
    let counts = |args: &[&str]| {
        let output =
            streamvm(folder.path(), ["run", "--stats", "--dump-ir", "a.list"].iter().chain(args).chain(&["a.svm"]));
        assert_eq!(output.code, 0, "{}", output.stderr);
        let lane = |name: &str| {
            let line = output.stdout.lines().find(|line| line.starts_with(name)).expect("the stream");
            line.split_whitespace().nth(1).and_then(|count| count.parse::<u64>().ok()).expect("a count")
        };
        (lane("compute@cpu:0:0"), lane("compute@cpu:0:1"), fs::read_to_string(folder.path().join("a.list")).unwrap())
    };
    // On lane 0: two fills, four times `neg x`, four runs of 4 steps (`mul`, `neg`, `relu`, `add`); reading back is two
    // instructions on the host. On lane 1: one run.
    let (lane_0, lane_1, list) = counts(&[]);
    assert_eq!((lane_0, lane_1), (2 + 4 + 4 * 4 + 2, 4), "{list}");
    assert!(!list.contains("# run p"), "{list}");
    let (lane_0, lane_1, list) = counts(&["--compiled"]);
    assert_eq!((lane_0, lane_1), (2 + 4 + 4 + 2, 1), "{list}");
    assert_eq!(list.matches("# run p\n").count(), 5, "{list}");
}

#[test]
fn a_program_in_a_program_is_on_the_lane_of_the_whole_run() {
    let script = "let x = fill f32 2 value 1 on cpu:0\nprogram p (x f32 2 on cpu:0) -> y { let y = neg x }\n\
        program q (x f32 2 on cpu:0) -> y { let y = run p (exp x) }\nlet y = run q x on lane 1\nprint y\n";
    for args in [["run", "--stats"].as_slice(), &["run", "--stats", "--compiled"]] {
        let found = run_text(script, args);
        let lane = |name: &str| {
            let line = found.stdout.lines().find(|line| line.starts_with(name)).expect("the stream");
            line.split_whitespace().nth(1).and_then(|count| count.parse::<u64>().ok()).expect("a count")
        };
        // On lane 0 the fill, and one of the two instructions that read back.
        let steps = if args.len() == 2 { 2 } else { 1 };
        assert_eq!((lane("compute@cpu:0:0"), lane("compute@cpu:0:1")), (2, steps), "{}", found.stdout);
    }
}

/// Lanes of a program count from the lane of its run, one by one and compiled.
#[test]
fn statements_of_a_program_are_on_their_lanes() {
    let script = "let x = fill f32 2 value 1 on cpu:0\nprogram p (x f32 2 on cpu:0) -> y {\nlet z = run q x on lane 3\nlet y = add (neg x on lane 2) z\n}\n\
        let y = run p x on lane 1\nprint y\n";
    let script =
        script.replacen("program p", "program q (x f32 2 on cpu:0) -> y { let y = exp x on lane 1 }\nprogram p", 1);
    for args in [["run", "--stats"].as_slice(), &["run", "--stats", "--compiled"]] {
        let found = run_text(&script, args);
        let lanes = ["0", "1", "2", "3", "4", "5"].map(|lane| found.stdout.contains(&format!("compute@cpu:0:{lane} ")));
        // The fill and what reads back; the addition; nothing; `neg`; nothing; `exp` of the program in the program.
        assert_eq!(lanes, [true, true, false, true, false, true], "{}{}", found.stdout, found.stderr);
        assert!(found.stdout.contains("y: f32[2] [1.7183 1.7183]"), "{}", found.stdout);
    }
    let block = "let yes = fill bool value true on cpu:0\nlet x = fill f32 2 value 1 on cpu:0\nprogram p (x f32 2 on cpu:0) -> y {\n\
        let y = neg x\nif yes {\nlet a = neg x\nneg a into y on lane 1\n}\n}\n";
    let found = run_text(block, &["run"]);
    assert!(found.code == 2 && found.stderr.contains("on another lane than the steps before it"), "{}", found.stderr);
}

#[test]
fn traces_and_races_know_programs() {
    let folder = scripts();
    for compiled in [None, Some("--compiled")] {
        let args = ["run", "--record", "a.trace", "programs.svm"].into_iter().chain(compiled);
        assert_eq!(streamvm(folder.path(), args).code, 0);
        let judged = streamvm(folder.path(), ["verify", "a.trace"]);
        assert!(judged.stdout.ends_with("\nok: every dependence is ordered\n"), "{compiled:?}: {}", judged.stdout);
        let trace = fs::read_to_string(folder.path().join("a.trace")).unwrap();
        // Line 8 is a statement of the program, line 18 its first run.
        assert_eq!(trace.contains("\"programs.svm:8:3\""), compiled.is_none(), "{compiled:?}");
        assert!(trace.contains("\"programs.svm:18:1\""), "{compiled:?}");
    }
    let raced = streamvm(folder.path(), ["check", "--races", "programs.svm"]);
    assert!(raced.code == 0 && raced.stdout.contains("\nraces: none in "), "{}{}", raced.stdout, raced.stderr);
}

#[test]
fn the_steps_of_programs_and_of_their_runs_are_bounded() {
    let program = "let w = fill f32 2 value 1 on cpu:0\nprogram p { repeat 10000 { add w 1 into w } }\n";
    let fine = run_text(format!("{program}{}print w\n", "run p\n".repeat(10)), &["run", "--compiled"]);
    assert_eq!((fine.code, fine.stdout.as_str()), (0, "w: f32[2] [100001.0 100001.0]\n"), "{}", fine.stderr);
    let many = run_text(format!("{program}{}", "run p\n".repeat(11)), &["check"]);
    let says = "script.svm:13:1: error: the `run` statements up to here have more than 100000 steps together\n";
    assert!(many.code == 2 && many.stderr.starts_with(says), "{}", many.stderr);
    // A `repeat` counts once.
    assert_eq!(run_text(format!("{program}repeat 11 {{ run p }}\n"), &["run", "--compiled"]).code, 0);
    let programs: String =
        (0..11).map(|number| format!("program p{number} {{ repeat 10000 {{ add w 1 into w }} }}\n")).collect();
    let all = run_text(format!("let w = fill f32 2 value 1 on cpu:0\n{programs}"), &["check"]);
    let says = "script.svm:12:30: error: the programs of the script have more than 100000 steps together here\n";
    assert!(all.code == 2 && all.stderr.starts_with(says), "{}", all.stderr);
    // Results count, too: 101 runs of 1,000 results each.
    let names: String = (0..1000).map(|number| format!(" a{number}")).collect();
    let lets: String = (0..1000).map(|number| format!("let a{number} = w\n")).collect();
    let wide =
        format!("let w = fill f32 2 value 1 on cpu:0\n{lets}program p -> {names} {{ }}\n{}", "run p\n".repeat(101));
    let wide = run_text(wide, &["check"]);
    assert!(
        wide.code == 2 && wide.stderr.starts_with("script.svm:1103:1: error: the `run` statements"),
        "{}",
        wide.stderr
    );
    let long = run_text(program.replace("10000", "10001"), &["check"]);
    assert!(long.code == 2 && long.stderr.contains("the program has more than 10000 steps here"), "{}", long.stderr);
    // A program counts the programs that it runs, once.
    let outer = format!("{}program q {{ run p }}\n{}", program.replace("10000", "8000"), "run q\n".repeat(12));
    let outer = run_text(outer, &["check"]);
    assert_eq!(outer.code, 0, "{}", outer.stderr);
    // Each program runs the one before it twice: their steps, and without steps the runs, are as many as powers of two.
    for (first, says) in [
        ("add w 1 into w", "script.svm:30:1: error: the program has more than 10000 steps here"),
        ("", "script.svm:161:1: error: the `run` statements up to here have more than 100000 steps together"),
    ] {
        let lines: String =
            (1..80).map(|level| format!("program p{level} {{ run p{0}\nrun p{0} }}\n", level - 1)).collect();
        let script = format!("let w = fill f32 2 value 1 on cpu:0\nprogram p0 {{ {first} }}\n{lines}run p79\n");
        let found = run_text(script, &["check"]);
        assert!(found.code == 2 && found.stderr.starts_with(says), "{}", found.stderr);
    }
    // Rounds that add no step end at once.
    assert_eq!(
        run_text(
            "program p (x f32 2 on cpu:0) -> y { repeat 1000000000 { let y = slice x axis 0 ..1 } }\n",
            &["check"]
        )
        .code,
        0
    );
}

#[test]
fn the_text_of_a_program_compiles_as_the_script_does() {
    let folder = scripts();
    let at = |name: &str| folder.path().join(name);
    for script in ["programs.svm", "fail_program.svm", "compile_all.svm"] {
        let names: Vec<String> = streamvm(folder.path(), ["compile", "--json", script])
            .stdout
            .lines()
            .filter_map(|line| Some(line.trim().strip_prefix("\"program\": \"")?.trim_end_matches('"').to_owned()))
            .collect();
        assert!(!names.is_empty(), "{script}");
        for name in names {
            let show = |file: &str, what: &str| {
                let output = streamvm(folder.path(), ["compile", "--program", &name, "--show", what, file]);
                assert_eq!((output.code, output.stderr.as_str()), (0, ""), "{script} {name}");
                output.stdout
            };
            let text = show(script, "program");
            fs::write(at("saved.txt"), format!("\n{text}")).unwrap();
            for what in ["program", "plan", "memory", "dot"] {
                assert_eq!(show("saved.txt", what), show(script, what), "{script} {name} {what}");
            }
        }
    }
}

/// The compiler needs no device: a plan for a GPU is made on a machine without one.
#[test]
fn programs_are_compiled_for_devices_that_are_not_there() {
    let folder = scripts();
    fs::write(folder.path().join("device.txt"), "program p\nt0 = tensor sim:0 f32[4]\nfeed x t0\nfetch y t0\n")
        .unwrap();
    for (args, shows) in [
        (vec!["programs.svm", "--device", "acc=cuda:0"], "program host_too on cuda:0, cpu:0\n"),
        (vec!["programs.svm", "--device", "acc=cuda:0"], "segment 1 on d2h@cuda:0:0, after segment 0:\n"),
        (vec!["device.txt"], "program p on sim:0\n"),
    ] {
        let output = streamvm(folder.path(), ["compile"].iter().chain(&args));
        assert_eq!((output.code, output.stderr.as_str()), (0, ""), "{args:?}");
        assert!(output.stdout.contains(shows), "{args:?}: {}", output.stdout);
    }
}

/// A program that cannot be compiled is shown at its statement, and the command says how it can be run.
#[test]
fn a_script_whose_program_cannot_be_compiled_is_rejected_at_its_statement() {
    let folder = scripts();
    let names = 0..70;
    let fills: String = names.clone().map(|it| format!("let w{it} = fill f32 2 value 1 on sim:0\n")).collect();
    let adds: String = names.map(|it| format!("    add w{it} 1 into w{it}\n")).collect();
    let program = format!("program p (c bool on sim:0) {{\n  if c {{\n{adds}  }}\n}}\n");
    fs::write(folder.path().join("many.svm"), format!("{fills}{program}")).unwrap();
    let output = streamvm(folder.path(), ["run", "--compiled", "--sim-devices", "1", "many.svm"]);
    assert_eq!((output.code, output.stdout.as_str()), (2, ""), "{}", output.stderr);
    for part in ["many.svm:72:3: error: program `p` cannot be compiled: step ", "\n 72 |   if c {", "^^^^"] {
        assert!(output.stderr.contains(part), "{part}: {}", output.stderr);
    }
    assert!(output.stderr.ends_with("   = help: `streamvm run` without `--compiled` runs it\n"), "{}", output.stderr);
}

#[test]
fn what_cannot_be_compiled_is_rejected() {
    let folder = scripts();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("empty.svm"), "# nothing\nprint \"no program\"\n").unwrap();
    fs::write(at("wrong.svm"), "program p { print 1 }\n").unwrap();
    fs::write(at("words.txt"), "program p\nt0 = tensor cpu:0 f32[4]\nfeed x t0\n%0 walk t0\n").unwrap();
    fs::write(at("ports.txt"), "program p\nt0 = tensor cpu:0 f32[4]\nfeed x t0\nfetch y t9\n").unwrap();
    fs::write(at("twice.txt"), "program p\nt0 = tensor cpu:0 f32[4]\nt1 = tensor cpu:0 f32[4]\nfeed x t0\nfeed x t1\n")
        .unwrap();
    let block = "program p\nt0 = tensor sim:0 bool[]\nt1 = tensor cuda:0 f32[4]\nif t0\n%0 fill compute@cuda:0:0 4 -> t1 f32[4]\nend\n";
    fs::write(at("device.txt"), format!("{block}feed a t0\nparam b t1\n")).unwrap();
    fs::write(at("good.txt"), "program p\nt0 = tensor cpu:0 f32[4]\nfeed x t0\nfetch y t0\n").unwrap();
    fs::write(at("bytes.txt"), b"program p\n\xff\n").unwrap();
    for (args, says) in [
        (vec![], "Usage: streamvm compile"),
        (vec!["none.svm"], "none.svm: error: cannot read the program: "),
        (vec!["none.svm"], "help: the path starts at the current folder, "),
        (vec!["."], ".: error: cannot read the program: "),
        (vec!["/dev/zero"], "/dev/zero: error: the file is longer than 64 MiB"),
        (
            vec!["empty.svm"],
            "empty.svm: error: the script has no program\n = help: `program NAME ... { ... }` defines one",
        ),
        (vec!["wrong.svm"], "wrong.svm:1:13: error: `print` cannot be part of a program"),
        (
            vec!["programs.svm", "--program", "layr"],
            "the script has no program \"layr\"\n = help: did you mean `layer`?",
        ),
        (vec!["programs.svm", "--program", "zzz"], "help: it has: layer, count, host_too, scale"),
        (vec!["programs.svm", "--show", "all"], "expected program, passes, plan, memory, picture, edges or dot"),
        (
            vec!["programs.svm", "--json", "--show", "dot"],
            "error: --json shows what --show names `plan`, `memory` and `edges`",
        ),
        (vec!["programs.svm", "--device", "c=cpu:0"], "help: it names: acc"),
        (vec!["words.txt"], "words.txt:4: error: expected "),
        (vec!["ports.txt"], "ports.txt:4: error: expected a tensor that a line of this text names; found \"t9\""),
        (vec!["twice.txt"], "twice.txt:5: error: expected a name that no other feed has; found \"x\""),
        (
            vec!["device.txt"],
            "device.txt: error: program \"p\" cannot be compiled: step 1 (fill) uses cuda:0, and the block uses sim:0",
        ),
        (vec!["good.txt", "--program", "q"], "good.txt: error: there is no program \"q\"; this file has \"p\""),
        (vec!["bytes.txt"], "bytes.txt: error: this is no UTF-8 text"),
    ] {
        let output = streamvm(folder.path(), ["compile"].iter().chain(&args));
        assert_eq!((output.code, output.stdout.as_str()), (2, ""), "{args:?}: {}", output.stderr);
        assert!(output.stderr.contains(says), "{args:?}: {}", output.stderr);
    }
    // No device is looked for: any CPU will do.
    let elsewhere = streamvm(folder.path(), ["compile", "--program", "count", "--device", "acc=cpu:7", "programs.svm"]);
    assert!(elsewhere.stdout.starts_with("program count on cpu:7\n"), "{}{}", elsewhere.stdout, elsewhere.stderr);
    assert_eq!(streamvm(folder.path(), ["compile", "good.txt"]).code, 0);
}

#[test]
fn a_long_program_is_planned_but_not_drawn() {
    let folder = TempDir::new().unwrap();
    let mut text = String::from("program long\nt0 = tensor cpu:0 f32[4]\n");
    (0..10_001).for_each(|step| text += &format!("%{step} call compute@cpu:0:0 neg t{step} -> t{} f32[4]\n", step + 1));
    text += "feed x t0\nfetch y t10001\n";
    fs::write(folder.path().join("long.txt"), text).unwrap();
    let plan = streamvm(folder.path(), ["compile", "long.txt"]);
    assert!(plan.code == 0 && plan.stdout.lines().count() > 10_000, "{}", plan.stderr);
    let dot = streamvm(folder.path(), ["compile", "--show", "dot", "long.txt"]);
    assert!(dot.code == 2 && dot.stderr.contains("a graph is drawn of at most 10000"), "{}", dot.stderr);
}

#[test]
fn the_example_trains_alike_both_ways() {
    let folder = scratch(&root().join("examples"));
    let eager = streamvm(folder.path(), ["run", "program.svm"]);
    assert_eq!((eager.code, eager.stdout.contains("of 60)")), (0, true), "{}", eager.stderr);
    for mode in ["threaded", "inline", "sim:5"] {
        assert_eq!(streamvm(folder.path(), ["run", "--compiled", "--mode", mode, "program.svm"]), eager, "{mode}");
    }
}

/// The commands of docs/compiling.md print what stands below them.
#[test]
fn the_page_of_programs_shows_what_the_command_prints() {
    let page = fs::read_to_string(root().join("docs/compiling.md")).unwrap();
    let mut shown = 0;
    for block in page.split("```text\n$ streamvm compile ").skip(1) {
        let (args, rest) = block.split_once('\n').expect("a command");
        let expected = rest.split("```").next().expect("what it prints");
        let output = streamvm(&root(), ["compile"].into_iter().chain(args.split(' ')));
        assert_eq!((output.code, output.stdout.as_str()), (0, expected), "{args}: {}", output.stderr);
        shown += 1;
    }
    assert!(shown >= 2, "only {shown} commands found");
}

/// Copies to a device and back are steps: the same values, compiled or not.
#[test]
fn programs_use_several_devices() {
    let folder = TempDir::new().unwrap();
    let text = "device acc = sim:0\n\
        program p (x f32 4 on cpu:0) -> y {\n  let there = copy x to acc\n  let z = neg (mul there there)\n  let w = add x 1\n  let y = add w (copy z to cpu:0)\n}\n\
        let x = fill f32 4 value 3 on cpu:0\nlet y = run p x\nlet z = run p y on lane 1\nprint z\n";
    fs::write(folder.path().join("a.svm"), text).unwrap();
    let run = |args: &[&str]| streamvm(folder.path(), ["run", "--sim-devices", "1", "a.svm"].iter().chain(args));
    let expected = run(&[]);
    assert_eq!((expected.code, expected.stdout.as_str()), (0, "z: f32[4] [-29.0 -29.0 -29.0 -29.0]\n"), "{expected:?}");
    assert_eq!(run(&["--compiled"]), expected);
    let plan = streamvm(folder.path(), ["compile", "a.svm"]).stdout;
    assert!(plan.contains("on h2d@sim:0:0") && plan.contains("on compute@sim:0:0, after segment 0"), "{plan}");
}

#[test]
fn a_profile_of_compiled_programs_has_their_steps() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("a.svm"), FIVE_RUNS).unwrap();
    let output = streamvm(folder.path(), ["run", "--compiled", "--profile", "a.svm"]);
    let table = output.stdout.split("steps of program p\n").nth(1).expect("the table");
    let mut lines: Vec<Vec<&str>> = table.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    lines.sort();
    let told: Vec<String> = lines.iter().map(|words| words[..words.len() - 3].join(" ")).collect();
    assert_eq!(told, ["%0 mul neg relu add 5"], "{table}");
    let uncompiled = streamvm(folder.path(), ["run", "--profile", "a.svm"]);
    assert!(!uncompiled.stdout.contains("steps of program"), "{}", uncompiled.stdout);
}

#[test]
fn the_memory_of_a_program_is_drawn() {
    let shown = |what: &str| streamvm(&root(), ["compile", "--show", what, "examples/program.svm"]);
    let picture = shown("picture");
    let svg = &picture.stdout;
    assert!(picture.code == 0 && svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{picture:?}");
    let values = shown("memory").stdout;
    let in_arena: Vec<&str> = values
        .lines()
        .filter(|line| line.contains(" arena "))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(!in_arena.is_empty(), "{values}");
    for name in in_arena {
        assert!(svg.contains(name), "{name} in {svg}");
    }
}
