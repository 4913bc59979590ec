//! Files that the command writes never take the place of files that it reads, or of each other.
#![allow(clippy::print_stdout, reason = "says what was drawn, with --nocapture")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use streamvm_cli::command::{Exit, ScriptOptions, check_script, run_script};
use streamvm_cli::execute::engine_options::EngineOptions;
use streamvm_files::{Data, TensorFile};
use streamvm_report::Packets;
use tempfile::TempDir;

use crate::cases::cases;
use crate::common::streamvm;

const SCRIPT: &str = "let a = load \"x.npy\"\nlet b = neg (copy a to cpu:0)\nsave b \"y.npy\"\n";

/// A `.npy` file of one row of four elements.
fn npy(value: f32) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    let dict = "{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }";
    bytes.extend(format!("{dict:<117}\n").bytes());
    bytes.extend([value; 4].iter().flat_map(|value| value.to_le_bytes()));
    bytes
}

fn values(path: &Path) -> Vec<f32> {
    match TensorFile::open(path, None).and_then(|file| file.read()).unwrap().data {
        Data::F32(values) => values,
        other => panic!("{other:?}"),
    }
}

fn folder() -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("s.svm"), SCRIPT).unwrap();
    fs::write(folder.path().join("x.npy"), npy(1.0)).unwrap();
    folder
}

/// All that a folder holds, links as what they point to.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| {
            let what = fs::read_link(entry.path()).map(|target| target.to_string_lossy().into_owned().into_bytes());
            let bytes = what.or_else(|_| fs::read(entry.path())).unwrap_or_default();
            (entry.file_name().to_string_lossy().into_owned(), bytes)
        })
        .collect()
}

#[test]
fn an_output_that_is_an_input_or_another_output_is_refused() {
    for (args, says) in [
        (vec!["run", "--record", "s.svm", "s.svm"], "s.svm: error: --record would overwrite the script"),
        (vec!["run", "--record", "./s.svm", "s.svm"], "./s.svm: error: --record would overwrite the script"),
        (vec!["run", "--record", "soft.svm", "s.svm"], "--record would overwrite the script"),
        (vec!["run", "--record", "hard.svm", "s.svm"], "--record would overwrite the script"),
        (vec!["run", "--dump-ir", "x.npy", "s.svm"], "--dump-ir would overwrite what line 1 of the script loads"),
        (vec!["check", "--dump-ir", "x.npy", "s.svm"], "--dump-ir would overwrite what line 1 of the script loads"),
        (vec!["check", "--dump-ir", "sub/../s.svm", "s.svm"], "--dump-ir would overwrite the script"),
        (vec!["run", "--profile-json", "hard.npy", "s.svm"], "--profile-json would overwrite what line 1"),
        (vec!["run", "--record", "sub/../y.npy", "s.svm"], "--record writes the file that line 3 of the script saves"),
        (vec!["run", "--record", "o", "--dump-ir", "./o", "s.svm"], "--record writes the file of --dump-ir"),
        (vec!["run", "--trace", "o", "--record", "./o", "s.svm"], "--trace writes the file of --record"),
        (vec!["run", "--trace", "s.svm", "s.svm"], "s.svm: error: --trace would overwrite the script"),
        (
            vec!["run", "--record", "new", "--profile-json", "dangling", "s.svm"],
            "--profile-json writes the file of --record",
        ),
    ] {
        let folder = folder();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("sub")).unwrap();
        symlink("s.svm", at("soft.svm")).unwrap();
        symlink("new", at("dangling")).unwrap();
        fs::hard_link(at("s.svm"), at("hard.svm")).unwrap();
        fs::hard_link(at("x.npy"), at("hard.npy")).unwrap();
        let before = contents(folder.path());
        let output = streamvm(folder.path(), &args);
        assert_eq!((output.code, output.stdout.as_str()), (2, ""), "{args:?}: {}", output.stderr);
        assert!(output.stderr.contains(says), "{args:?}: {}", output.stderr);
        assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
        assert_eq!(contents(folder.path()), before, "{args:?}");
    }
}

#[test]
fn the_file_that_stdout_goes_to_is_no_other_output() {
    let folder = folder();
    let out = fs::File::create(folder.path().join("out")).unwrap();
    let mut command = crate::common::command(folder.path());
    let output = command.args(["run", "--record", "./out", "s.svm"]).stdout(out).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && text.contains("the file that stdout goes to"), "{text}");
    // A `save` neither.
    let out = fs::File::create(folder.path().join("y.npy")).unwrap();
    let output = crate::common::command(folder.path()).args(["run", "s.svm"]).stdout(out).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && text.contains("is the one that stdout goes to"), "{text}");
    // What cannot be lost may be named as often as one likes.
    let output = streamvm(folder.path(), ["run", "--record", "/dev/null", "--dump-ir", "/dev/null", "s.svm"]);
    assert_eq!(output.code, 0, "{}", output.stderr);
}

/// The script fails and there is nobody to tell: what was promised of the run is written all the same.
#[test]
fn options_are_written_though_stderr_cannot_be() {
    let folder = folder();
    fs::write(folder.path().join("s.svm"), "let a = fill f32 4 value 1 on cpu:0\nexpect a == add a 1\n").unwrap();
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = crate::common::command(folder.path());
    let output = command.args(["run", "--dump-ir", "lists", "s.svm"]).stderr(full).output().unwrap();
    assert!(!output.status.success());
    assert!(fs::read_to_string(folder.path().join("lists")).unwrap().contains("fill "));
}

#[test]
fn a_script_does_not_save_over_itself_or_over_its_inputs() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    fs::hard_link(at("x.npy"), at("hard.npy")).unwrap();
    for (script, name, says) in [
        (
            "let a = load \"x.npy\"\nsave a \"./x.npy\"\n",
            "b.svm",
            "b.svm:2:8: error: this file is an input, loaded in line 1",
        ),
        ("let a = load \"x.npy\"\nsave a \"hard.npy\"\n", "b.svm", "b.svm:2:8: error: this file is an input"),
        ("repeat 2 {\nsave (load \"x.npy\") \"x.npy\"\n}\n", "b.svm", "b.svm:2:21: error: this file is an input"),
        ("save (fill f32 4 value 1 on host) \"b.npy\"\n", "b.npy", "b.npy:1:35: error: this file is the script itself"),
    ] {
        fs::write(at(name), script).unwrap();
        let before = contents(folder.path());
        for action in ["run", "check"] {
            let output = streamvm(folder.path(), [action, name]);
            assert_eq!(output.code, 2, "{script}: {}", output.stderr);
            assert!(output.stderr.starts_with(says), "{script}: {}", output.stderr);
        }
        assert_eq!(contents(folder.path()), before, "{script}");
    }
    // What it has saved is its own.
    let script = "save (load \"x.npy\") \"z.npy\"\nlet z = load \"./z.npy\"\nsave (neg (copy z to cpu:0)) \"z.npy\"\n";
    fs::write(at("c.svm"), script).unwrap();
    let output = streamvm(folder.path(), ["run", "c.svm"]);
    assert_eq!(output.code, 0, "{}", output.stderr);
    assert_eq!(values(&at("z.npy")), [-1.0; 4]);
}

/// What is saved under one spelling is loaded under another, as it will be and not as it was.
#[test]
fn a_saved_file_is_one_file_however_it_is_spelt() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("sub")).unwrap();
    symlink("tw.npy", at("link.npy")).unwrap();
    let text = "save (fill f32 2 3 value 1 on host) \"tw.npy\"\n";
    for spelt in ["./tw.npy", "sub/../tw.npy", "link.npy"] {
        let script = format!("{text}let a = load \"{spelt}\"\nexpect a == fill f32 2 3 value 1 on host\n");
        fs::write(at("a.svm"), script).unwrap();
        for args in [vec!["check", "a.svm"], vec!["check", "--races", "a.svm"], vec!["run", "a.svm"]] {
            let _ = fs::remove_file(at("tw.npy"));
            let output = streamvm(folder.path(), &args);
            assert_eq!(output.code, 0, "{spelt} {args:?}: {}", output.stderr);
            // An older file of another shape makes no difference.
            fs::write(at("tw.npy"), npy(2.0)).unwrap();
            let output = streamvm(folder.path(), &args);
            assert_eq!(output.code, 0, "{spelt} {args:?}, over an older file: {}", output.stderr);
        }
    }
}

/// The name of a part of a file was the name followed by the process id: whoever could guess it could have any file overwritten.
#[test]
fn a_planted_link_is_not_followed() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let victim = at("victim");
    fs::write(&victim, "precious").unwrap();
    // The ids of the next processes, one of which the command has.
    let mut child =
        crate::common::command(folder.path()).arg("--version").stdout(std::process::Stdio::null()).spawn().unwrap();
    child.wait().unwrap();
    for id in child.id()..child.id() + 2000 {
        symlink("victim", at(&format!("y.npy.{id}.part"))).unwrap();
    }
    let output = streamvm(folder.path(), ["run", "s.svm"]);
    assert_eq!(output.code, 0, "{}", output.stderr);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    assert_eq!(values(&at("y.npy")), [-1.0; 4]);
    assert!(!at("y.npy").is_symlink());
}

#[test]
fn a_failed_run_leaves_its_outputs_and_a_rejected_one_leaves_all_as_it_was() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("f.svm"), "let a = fill f32 2 value 1 on cpu:0\nexpect a == neg a\n").unwrap();
    let outputs = ["--record", "t", "--dump-ir", "d", "--profile-json", "p"];
    let run = |script: &str| streamvm(folder.path(), ["run"].into_iter().chain(outputs).chain([script]));
    assert_eq!(run("f.svm").code, 1);
    let files = contents(folder.path());
    assert!(files["t"].ends_with(b"}}\n") && files["d"].starts_with(b"# list 1\n") && files["p"].starts_with(b"["));
    assert!(files.keys().all(|name| !name.ends_with(".part")), "{:?}", files.keys());
    fs::write(at("r.svm"), "let a = nothing\n").unwrap();
    let files = contents(folder.path());
    assert_eq!(run("r.svm").code, 2);
    assert_eq!(contents(folder.path()), files);
}

/// A small generator (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// A name that the drawn folders have: the entry that it leads to, and the file that this is before the run. Numbers alone:
/// whether two names are one file is known here without asking a file system.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Name {
    name: &'static str,
    entry: usize,
    file: usize,
    there: bool,
}

const fn name(name: &'static str, entry: usize, file: usize, there: bool) -> Name {
    Name { name, entry, file, there }
}

const SCRIPT_NAMES: &[Name] =
    &[name("s.svm", 0, 0, true), name("s_hard.svm", 1, 0, true), name("s_soft.svm", 0, 0, true)];

const TENSOR_NAMES: &[Name] = &[
    name("a.npy", 10, 10, true),
    name("a_hard.npy", 11, 10, true),
    name("a_soft.npy", 10, 10, true),
    name("b.npy", 12, 12, true),
    name("new.npy", 13, 13, false),
    name("new_soft.npy", 13, 13, false),
    name("other.npy", 14, 14, false),
];

const PLAIN_NAMES: &[Name] = &[
    name("t", 20, 20, true),
    name("t_hard", 21, 20, true),
    name("o", 22, 22, false),
    name("o_soft", 22, 22, false),
    name("p", 23, 23, false),
];

/// Ways to say that something is in the folder.
const WAYS: &[&str] = &["", "./", "sub/../", "here/", "sub/up/", "sub/up/./here/"];

fn drawn_folder() -> TempDir {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("sub")).unwrap();
    symlink(".", at("here")).unwrap();
    symlink("..", at("sub/up")).unwrap();
    fs::write(at("s.svm"), "").unwrap();
    fs::write(at("a.npy"), npy(100.0)).unwrap();
    fs::write(at("b.npy"), npy(200.0)).unwrap();
    fs::write(at("t"), "an old trace").unwrap();
    for (from, to) in [("s.svm", "s_hard.svm"), ("a.npy", "a_hard.npy"), ("t", "t_hard")] {
        fs::hard_link(at(from), at(to)).unwrap();
    }
    for (to, link) in [("s.svm", "s_soft.svm"), ("a.npy", "a_soft.npy"), ("new.npy", "new_soft.npy"), ("o", "o_soft")] {
        symlink(to, at(link)).unwrap();
    }
    folder
}

/// One use of a file by a script.
#[derive(Clone, Copy, Debug)]
struct Used {
    name: Name,
    saved: bool,
}

impl Name {
    fn is_file_of(self, other: Name) -> bool {
        self.entry == other.entry || self.file == other.file
    }
}

/// Is a drawn command to be refused?
fn refusal(used: &[Used], options: &[Name]) -> bool {
    let script = SCRIPT_NAMES[0];
    let saves_over = |index: usize| {
        let save = used[index].name;
        let first = |is: &dyn Fn(Name) -> bool| {
            used[..index].iter().find(|other| is(other.name)).is_some_and(|first| !first.saved)
        };
        used[index].saved && (first(&|other| other.entry == save.entry) || first(&|other| other.file == save.file))
    };
    (0..used.len()).any(saves_over)
        || options.iter().enumerate().any(|(index, option)| {
            option.is_file_of(script)
                || used.iter().any(|used| used.name.is_file_of(*option))
                || options[..index].iter().any(|other| other.is_file_of(*option))
        })
}

/// Draws scripts that load and save, and options, over files with many names. A command that would write over what it reads
/// or write one file twice is refused with every byte as it was. Any other one runs, no input has changed, and everything that
/// it should write is there. Before that `check` gets the same command, and refuses the same; it writes nothing but the list.
#[test]
fn drawn_paths_are_refused_or_all_written() {
    let mut counts = BTreeMap::new();
    let commands = cases(100);
    for seed in 0..commands {
        let mut random = Random(seed);
        let folder = drawn_folder();
        let at = |name: &str| folder.path().join(name);
        let mut used: Vec<Used> = Vec::new();
        let mut text = String::from("let v = fill f32 4 value 0 on host\n");
        for line in 0..random.below(5) {
            let (name, way) = (random.of(TENSOR_NAMES), random.of(WAYS));
            let loads = random.below(2) == 0;
            if loads && (name.there || used.iter().any(|used| used.saved && used.name.entry == name.entry)) {
                text.push_str(&format!("copy (load \"{way}{}\") into v\n", name.name));
                used.push(Used { name, saved: false });
            } else {
                text.push_str(&format!("save (fill f32 4 value {line} on host) \"{way}{}\"\n", name.name));
                used.push(Used { name, saved: true });
            }
        }
        fs::write(at("s.svm"), &text).unwrap();
        // More often than not a name of its own, or few would run.
        let all: Vec<Name> = [SCRIPT_NAMES, TENSOR_NAMES, PLAIN_NAMES, PLAIN_NAMES, PLAIN_NAMES, PLAIN_NAMES].concat();
        let mut drawn = Vec::new();
        let mut option = || {
            let (name, way) = (random.of(&all), random.of(WAYS));
            (random.below(2) == 0).then(|| {
                drawn.push(name);
                at(&format!("{way}{}", name.name))
            })
        };
        let (dump_ir, record, profile_json) = (option(), option(), option());
        let file = at(&format!("{}{}", random.of(WAYS), random.of(&["s.svm", "s_soft.svm"])));
        let options = ScriptOptions { file, dump_ir, record, profile_json, ..ScriptOptions::default() };
        let engine = EngineOptions { mode: streamvm::Mode::Inline, ..EngineOptions::default() };
        let told = format!("seed {seed}: {options:?}\n{text}");

        let expected = if refusal(&used, &drawn) { Exit::Rejected } else { Exit::Fine };
        let before = contents(folder.path());
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let checked = check_script(&options, &engine, &mut out, &mut err).unwrap();
        assert_eq!(checked, expected, "check, {told}{}", String::from_utf8_lossy(&err));
        let list = options.dump_ir.as_ref().filter(|_| checked == Exit::Fine);
        for (name, bytes) in contents(folder.path()) {
            let is_list = list.is_some_and(|list| fs::canonicalize(at(&name)).ok() == fs::canonicalize(list).ok());
            assert!(is_list || before.get(&name) == Some(&bytes), "check wrote {name}, {told}");
        }
        if let Some(list) = list {
            let text = fs::read_to_string(list).unwrap();
            assert!(text.is_empty() || text.starts_with('%'), "check, {told}{text}");
            *counts.entry("lists of checks".into()).or_insert(0) += 1;
        }

        let before = contents(folder.path());
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let exit = run_script(&options, &engine, &mut out, &mut err).unwrap();
        let (err, after) = (String::from_utf8(err).unwrap(), contents(folder.path()));
        assert_eq!(exit, expected, "{told}{err}");
        *counts.entry(format!("{exit:?}")).or_insert(0) += 1;
        if exit == Exit::Rejected {
            assert_eq!(before, after, "{told}{err}");
            continue;
        }
        assert!(after.keys().all(|name| !name.ends_with(".part")), "{told}{:?}", after.keys());
        // Inputs: the script, and what is loaded before it is saved.
        assert_eq!(fs::read(at("s.svm")).unwrap(), text.as_bytes(), "{told}");
        for (index, load) in used.iter().enumerate().filter(|(_, used)| !used.saved) {
            if used[..index].iter().all(|other| !other.saved || other.name.entry != load.name.entry) {
                assert_eq!(after[load.name.name], before[load.name.name], "{told}{} was changed", load.name.name);
            }
        }
        // Outputs: the last save of each entry, and each option.
        for (index, save) in used.iter().enumerate().filter(|(_, used)| used.saved) {
            if used[index + 1..].iter().all(|later| !later.saved || later.name.entry != save.name.entry) {
                assert_eq!(values(&at(save.name.name)), [index as f32; 4], "{told}");
                *counts.entry("saved".into()).or_insert(0) += 1;
            }
        }
        let read = |path: &Option<std::path::PathBuf>| path.as_ref().map(|path| fs::read_to_string(path).unwrap());
        if let Some(trace) = read(&options.record) {
            assert!(trace.starts_with("{\"streamvm_trace\":1}\n") && trace.contains("{\"end\":"), "{told}{trace}");
        }
        if let Some(list) = read(&options.dump_ir) {
            assert!(list.is_empty() || list.starts_with("# list 1\n"), "{told}{list}");
        }
        if let Some(profile) = read(&options.profile_json) {
            assert!(serde_json::from_str::<serde_json::Value>(&profile).unwrap().is_array(), "{told}{profile}");
        }
        *counts.entry("options written".into()).or_insert(0) += drawn.len();
    }
    println!("of {commands} drawn commands: {counts:?}");
    for (what, share) in [("Rejected", 8), ("Fine", 8), ("saved", 8), ("options written", 8), ("lists of checks", 20)] {
        assert!(share * counts[what] as u64 > commands, "too few {what}: {counts:?}");
    }
}

/// Without `--trace`, the variable of the environment names the file of the trace; with it, the option does.
#[test]
fn the_environment_can_name_the_file_of_the_trace() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let run = |args: &[&str]| {
        let mut command = crate::common::command(folder.path());
        let output = command.env("STREAMVM_TRACE", "env.pftrace").args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    run(&["run", "--trace", "option.pftrace", "s.svm"]);
    assert!(at("option.pftrace").exists() && !at("env.pftrace").exists());
    run(&["run", "s.svm"]);
    for name in ["option.pftrace", "env.pftrace"] {
        let trace = fs::read(at(name)).unwrap();
        let tracks = Packets::new(&trace[..]).filter_map(|packet| packet.unwrap().track);
        assert!(tracks.into_iter().any(|track| track.name().contains("@cpu:0")), "{name}");
    }
    let mut command = crate::common::command(folder.path());
    let output = command.env("STREAMVM_TRACE", "none/t").args(["run", "s.svm"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && text.contains("no trace can be written to none/t"), "{text}");
}

#[test]
fn the_graph_of_a_plan_has_its_streams_and_waits() {
    let folder = TempDir::new().unwrap();
    let text = "let a = copy (load \"x.npy\") to cpu:0\nlet b = neg a\nlet c = exp b on lane 1\nprint add c a\n";
    fs::write(folder.path().join("s.svm"), text).unwrap();
    fs::write(folder.path().join("x.npy"), npy(2.0)).unwrap();
    let checked = streamvm(folder.path(), ["check", "--dot", "g.dot", "s.svm"]);
    assert_eq!(checked.code, 0, "{}", checked.stderr);
    let graph = fs::read_to_string(folder.path().join("g.dot")).unwrap();
    let node = |name: &str| {
        let line =
            graph.lines().find(|line| line.contains(&format!(" {name}\\n"))).unwrap_or_else(|| panic!("{graph}"));
        line.trim().split(' ').next().unwrap().to_owned()
    };
    let (neg, exp, add) = (node("neg"), node("exp"), node("add"));
    assert!(graph.starts_with("digraph") && graph.matches("subgraph").count() == 4, "{graph}");
    assert!(graph.contains("label=\"compute@cpu:0:1\";") && graph.contains("s.svm:3:1"), "{graph}");
    // The copy before neg, neg before exp, exp before add, add before what is printed; neg and add follow each other.
    assert_eq!(graph.matches("color=red").count(), 4, "{graph}");
    for edge in [
        format!("i0 -> {neg} [color=red]"),
        format!("{neg} -> {exp} [color=red]"),
        format!("{exp} -> {add} [color=red]"),
        format!("{neg} -> {add} [color=gray]"),
    ] {
        assert!(graph.contains(&edge), "{edge}: {graph}");
    }
    let nowhere = streamvm(folder.path(), ["check", "--dot", "no/g.dot", "s.svm"]);
    assert!(
        nowhere.code == 1 && nowhere.stderr.contains("no/g.dot: error: cannot write the graph"),
        "{}",
        nowhere.stderr
    );
    let itself = streamvm(folder.path(), ["check", "--dot", "x.npy", "s.svm"]);
    assert!(itself.code == 2 && itself.stderr.contains("--dot"), "{}", itself.stderr);
}
