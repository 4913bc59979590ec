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
