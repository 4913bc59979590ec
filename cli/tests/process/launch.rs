//! `streamvm launch`: the ranks of a job, how it ends, and that nothing is left of it.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;

use super::wait;
use crate::common::{command, streamvm};

#[test]
fn each_rank_gets_its_number_and_the_folder_of_the_job_which_is_removed() {
    let folder = TempDir::new().unwrap();
    let script = "echo $WORLD_SIZE $LOCAL_WORLD_SIZE $LOCAL_RANK \"$0\" >rank-$RANK; echo \"$STREAMVM_RANKS_FOLDER\" >folder; test -d \"$STREAMVM_RANKS_FOLDER\"";
    let output = streamvm(folder.path(), ["launch", "-n", "3", "sh", "-c", script, "-x"]);
    assert_eq!(output.code, 0, "{}", output.stderr);
    for rank in 0..3 {
        let told = fs::read_to_string(folder.path().join(format!("rank-{rank}"))).unwrap();
        assert_eq!(told, format!("3 3 {rank} -x\n"));
    }
    let shared = PathBuf::from(fs::read_to_string(folder.path().join("folder")).unwrap().trim());
    assert!(shared.is_absolute() && !shared.exists(), "{}", shared.display());
}

#[test]
fn a_rank_that_fails_is_named_and_ends_the_job() {
    let folder = TempDir::new().unwrap();
    let launched = |script: &str| {
        let output = streamvm(folder.path(), ["launch", "-n", "3", "sh", "-c", script]);
        (output.code, output.stderr)
    };
    assert_eq!(launched("exit $((RANK == 1 ? 7 : 0))"), (1, "error: rank 1 has failed: exit code 7\n".to_owned()));
    let (code, text) = launched("test $RANK = 2 && kill -KILL $$; exit 0");
    assert_eq!((code, text.as_str()), (1, "error: rank 2 has failed: signal 9 has ended it\n"));
    let (code, text) = launched("echo $$ >pid-$RANK; test $RANK = 0 && exit 1; exec sleep 600");
    assert!(code == 1 && text.contains("ended: ranks 1, 2"), "{text}");
    for rank in [1, 2] {
        let process = fs::read_to_string(folder.path().join(format!("pid-{rank}"))).unwrap();
        assert!(!PathBuf::from(format!("/proc/{}", process.trim())).exists(), "rank {rank} is left");
    }
    let output = streamvm(folder.path(), ["launch", "-n", "2", "/no/such/command"]);
    assert!(output.code == 2 && output.stderr.contains("cannot start /no/such/command as rank 0"), "{}", output.stderr);
    for wrong in [&["-n", "0", "true"][..], &["-n", "65", "true"], &["-n", "2"], &["true"]] {
        assert_eq!(streamvm(folder.path(), [&["launch"], wrong].concat()).code, 2, "{wrong:?}");
    }
}

#[test]
fn a_signal_ends_the_ranks_too() {
    let folder = TempDir::new().unwrap();
    let script = "echo \"$STREAMVM_RANKS_FOLDER\" >folder; echo $$ >pid-$RANK; exec sleep 600";
    let mut child = command(folder.path())
        .args(["launch", "-n", "2", "sh", "-c", script])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let process = |rank: u32| fs::read_to_string(folder.path().join(format!("pid-{rank}"))).unwrap_or_default();
    while [0, 1].map(process).iter().any(|text| !text.ends_with('\n')) {
        std::thread::sleep(Duration::from_millis(10));
    }
    // To the launcher alone, and not to its group as a terminal would.
    let sent = std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    assert_eq!(wait(&mut child, Duration::from_secs(10)).signal(), Some(15));
    let shared = PathBuf::from(fs::read_to_string(folder.path().join("folder")).unwrap().trim());
    assert!(!shared.exists(), "{}", shared.display());
    for rank in [0, 1] {
        assert!(!PathBuf::from(format!("/proc/{}", process(rank).trim())).exists(), "rank {rank} is left");
    }
}

#[test]
fn a_launcher_that_is_killed_leaves_no_rank() {
    let folder = TempDir::new().unwrap();
    let script = "let x = fill f32 2 value 1 on cpu:0\nall_reduce x sum over world\n";
    fs::write(folder.path().join("a.svm"), script).unwrap();
    // Rank 1 waits for rank 0, which never joins.
    let run = format!(
        "echo $$ >pid-$RANK; echo \"$STREAMVM_RANKS_FOLDER\" >folder; test $RANK = 0 && exec sleep 600; exec {} run a.svm",
        env!("CARGO_BIN_EXE_streamvm")
    );
    let mut child = command(folder.path()).args(["launch", "-n", "2", "sh", "-c", &run]).spawn().unwrap();
    let text = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap_or_default().trim().to_owned();
    let is_there = |rank: u32| PathBuf::from(format!("/proc/{}/exe", text(&format!("pid-{rank}")))).exists();
    let has_joined = || fs::read_dir(text("folder")).is_ok_and(|mut files| files.next().is_some());
    let begin = std::time::Instant::now();
    while text("pid-0").is_empty() || !has_joined() {
        assert!(begin.elapsed() < Duration::from_secs(60), "rank 1 does not start");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(is_there(1));
    child.kill().unwrap();
    child.wait().unwrap();
    let begin = std::time::Instant::now();
    while is_there(1) {
        assert!(begin.elapsed() < Duration::from_secs(20), "rank 1 is left");
        std::thread::sleep(Duration::from_millis(10));
    }
    let _no_rank_of_ours = std::process::Command::new("kill").args(["-KILL", &text("pid-0")]).status();
    fs::remove_dir_all(text("folder")).unwrap();
}

#[test]
fn ranks_of_a_script_communicate_and_have_files_of_their_own() {
    let folder = TempDir::new().unwrap();
    let script = "let a = arange i64 0 6 1 on cpu:0\nsave a \"all.npy\"\n\
        let x = fill f32 2 3 value 2 on cpu:0\nall_reduce x sum over world\n\
        let m = fill f32 value 4 on cpu:0\nall_reduce m mean over world\n\
        let r = load \"rank-{rank}-of-{world_size}.npy\"\nlet s = copy r to cpu:0\n\
        if yes {\n  broadcast s from 2 over world\n}\n\
        save s \"out-{rank}.npy\"\nsave x \"sum-{rank}.npy\"\nexpect m == 4\n";
    let script = format!("let yes = fill bool value true on cpu:0\n{script}").replace("save a \"all.npy\"\n", "");
    let script = script.replace("let a = arange i64 0 6 1 on cpu:0\n", "");
    fs::write(folder.path().join("ranks.svm"), script).unwrap();
    for rank in 0..3 {
        let each = format!("let a = fill i64 2 value {rank} on cpu:0\nsave a \"rank-{rank}-of-3.npy\"\n");
        fs::write(folder.path().join("each.svm"), each).unwrap();
        assert_eq!(streamvm(folder.path(), ["run", "each.svm"]).code, 0);
    }
    let run = [env!("CARGO_BIN_EXE_streamvm"), "run", "ranks.svm"];
    let output = streamvm(folder.path(), [&["launch", "-n", "3"][..], &run].concat());
    assert_eq!(output.code, 0, "{}{}", output.stdout, output.stderr);
    let compare = "expect load \"sum-1.npy\" == fill f32 2 3 value 6 on host\nexpect load \"out-0.npy\" == load \"rank-2-of-3.npy\"\n";
    fs::write(folder.path().join("compare.svm"), compare).unwrap();
    let output = streamvm(folder.path(), ["run", "compare.svm"]);
    assert_eq!(output.code, 0, "{}", output.stderr);
    // In a program, run statement by statement and compiled, also with a size of the run.
    let script = "program step (x f32 texts..4 2 on cpu:0) -> g y {\n  let g = mul x 2\n  all_reduce g sum over world\n  \
        let y = exp x\n  broadcast y from 1 over world\n}\nlet x = fill f32 3 2 value {rank} on cpu:0\n\
        let g y = run step x\nsave g \"g-{rank}.npy\"\nsave y \"y-{rank}.npy\"\n";
    for rank in ["0", "1"] {
        fs::write(
            folder.path().join(format!("program-{rank}.svm")),
            script.replace("value {rank}", &format!("value {rank}")),
        )
        .unwrap();
    }
    for option in ["--stats", "--compiled"] {
        let each = format!("exec {} run {option} program-$RANK.svm", env!("CARGO_BIN_EXE_streamvm"));
        let output = streamvm(folder.path(), ["launch", "-n", "2", "sh", "-c", &each]);
        assert_eq!(output.code, 0, "{}{}", output.stdout, output.stderr);
        let compare = "let e = fill f32 3 2 value 1 on cpu:0\nlet y = exp e\n\
            expect load \"g-0.npy\" == fill f32 3 2 value 2 on host\nexpect load \"g-1.npy\" == load \"g-0.npy\"\n\
            expect load \"y-0.npy\" == y\nexpect load \"y-1.npy\" == y\n";
        fs::write(folder.path().join("compare.svm"), compare).unwrap();
        let output = streamvm(folder.path(), ["run", "compare.svm"]);
        assert_eq!(output.code, 0, "{}", output.stderr);
    }
    // Statements of one rank alone.
    let script = "let x = fill f32 2 value 1 on cpu:0\nif rank 1 {\n  copy (load \"rank-1.npy\") into x\n  print x\n} else {\n  \
        if rank 0 {\n    save x \"one.npy\"\n  }\n}\nall_reduce x sum over world\nif rank 0 {\n  let y = copy x to cpu:0\n  print y\n}\n";
    fs::write(folder.path().join("alone.svm"), script).unwrap();
    fs::write(folder.path().join("each.svm"), "let a = fill f32 2 value 5 on cpu:0\nsave a \"rank-1.npy\"\n").unwrap();
    let run = [env!("CARGO_BIN_EXE_streamvm"), "run", "alone.svm"];
    let launched = || streamvm(folder.path(), [&["launch", "-n", "2"][..], &run].concat());
    let output = launched();
    assert!(output.code != 0 && output.stderr.contains("rank 1 has failed: exit code 2"), "{}", output.stderr);
    assert!(!output.stderr.contains("rank 0 has failed: exit code 2"), "{}", output.stderr);
    assert_eq!(streamvm(folder.path(), ["run", "each.svm"]).code, 0);
    let output = launched();
    let mut lines: Vec<&str> = output.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(
        (output.code, &lines[..]),
        (0, &["x: f32[2] [5.0 5.0]", "y: f32[2] [6.0 6.0]"][..]),
        "{}",
        output.stderr
    );
    assert!(folder.path().join("one.npy").exists());
    assert_eq!(streamvm(folder.path(), ["check", "alone.svm"]).code, 0);
    // Alone it is a job of one rank.
    fs::write(
        folder.path().join("alone.svm"),
        "let x = fill i32 4 value 7 on cpu:0\nall_reduce x prod over world\nprint x\n",
    )
    .unwrap();
    let output = streamvm(folder.path(), ["run", "alone.svm"]);
    assert!(output.code == 0 && output.stdout.contains("[7 7 7 7]"), "{}{}", output.stdout, output.stderr);
}

#[test]
fn wrong_collectives_of_a_script_are_told_at_their_place() {
    let folder = TempDir::new().unwrap();
    let cases = [
        (
            "let x = fill i32 4 value 7 on cpu:0\nall_reduce x mean over world\n",
            "a.svm:2:12: error: all_reduce: the mean of i32 is not defined",
        ),
        ("all_reduce y sum over world\n", "a.svm:1:12: error: "),
        (
            "let x = fill i32 4 value 7 on cpu:0\nall_reduce x total over world\n",
            "a.svm:2:14: error: expected how the elements",
        ),
        ("let x = fill i32 4 value 7 on cpu:0\nall_reduce x sum\n", "a.svm:2:17: error: expected `over`"),
        (
            "let x = fill i32 4 value 7 on cpu:0\nbroadcast x from -1 over world\n",
            "a.svm:2:18: error: ranks are numbered from 0",
        ),
        (
            "program p (x i32 4 on cpu:0) -> x {\n  all_reduce x sum over world\n}\n",
            "a.svm:2:14: error: all_reduce sum i32 over world, issued at a.svm:2:3, cannot be recorded: it writes a feed",
        ),
        (
            "program p (x i32 4 on cpu:0) (c bool on cpu:0) -> y {\n  let y = neg x\n  if c {\n    all_reduce y sum over world\n  }\n}\n",
            "a.svm:4:16: error: all_reduce sum i32 over world, issued at a.svm:4:5, cannot be recorded: in a block there are no",
        ),
        (
            "program p (x i32 4 on cpu:0) -> y {\n  let y = neg x\n  all_reduce y mean over world\n}\n",
            "a.svm:3:14: error: all_reduce: the mean of i32 is not defined",
        ),
    ];
    let cases = cases.into_iter().chain([
        ("if rank -1 {\n}\n", "a.svm:1:9: error: ranks are numbered from 0"),
        (
            "if rank 0 {\n  let x = fill f32 value 1 on cpu:0\n  all_reduce x sum over world\n}\n",
            "a.svm:1:1: error: all ranks issue",
        ),
        (
            "program p (x i32 4 on cpu:0) -> y {\n  let y = neg x\n  all_reduce y sum over world\n}\nlet x = fill i32 4 value 1 on cpu:0\nif rank 0 {\n  scope \"s\" {\n    let y = run p x\n  }\n}\n",
            "a.svm:8:17: error: this program has collectives",
        ),
        ("if rank 0 {\n  let x = fill f32 value 1 on cpu:0\n}\nprint x\n", "a.svm:4:7: error: "),
        (
            "program p (x i32 4 on cpu:0) -> y {\n  let y = neg x\n  if rank 0 {\n  }\n}\n",
            "a.svm:3:3: error: `if rank` cannot be part of a program",
        ),
    ]);
    for (text, says) in cases {
        fs::write(folder.path().join("a.svm"), text).unwrap();
        for action in ["check", "run"] {
            let output = streamvm(folder.path(), [action, "a.svm"]);
            assert!(output.code == 2 && output.stderr.starts_with(says), "{text}: {}", output.stderr);
        }
    }
    // A check is for all ranks, a run for its own.
    fs::write(folder.path().join("a.svm"), "if rank 0 {\n} else {\n  print z\n}\n").unwrap();
    let output = streamvm(folder.path(), ["check", "a.svm"]);
    assert!(output.code == 2 && output.stderr.starts_with("a.svm:3:9: error: "), "{}", output.stderr);
    assert_eq!(streamvm(folder.path(), ["run", "a.svm"]).code, 0);
    // Which ranks there are is known when it runs.
    fs::write(folder.path().join("a.svm"), "let x = fill i32 4 value 7 on cpu:0\nbroadcast x from 1 over world\n")
        .unwrap();
    assert_eq!(streamvm(folder.path(), ["check", "a.svm"]).code, 0);
    let output = streamvm(folder.path(), ["run", "a.svm"]);
    assert!(
        output.code == 1
            && output.stderr.contains("a.svm:2:18: error: ")
            && output.stderr.contains("there is no rank 1"),
        "{}",
        output.stderr
    );
}
