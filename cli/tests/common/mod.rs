//! Running the command.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// How the command ended.
#[derive(Debug, PartialEq)]
pub(crate) struct Output {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// The command, not started, without what the environment says about logs.
pub(crate) fn command(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamvm"));
    command.current_dir(folder).env_remove("RUST_LOG").env_remove("STREAMVM_ENGINE").stdin(Stdio::null());
    command
}

/// Runs the command in a folder.
pub(crate) fn streamvm<A: AsRef<std::ffi::OsStr>>(folder: &Path, args: impl IntoIterator<Item = A>) -> Output {
    let output = command(folder).args(args).output().expect("the command starts");
    Output {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// A copy of a folder and of the folders in it, gone at the end of the test.
pub(crate) fn scratch(from: &Path) -> TempDir {
    let folder = TempDir::new().expect("a temporary folder");
    copy(from, folder.path());
    folder
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("a file type").is_dir() {
            fs::create_dir(&target).expect("a new folder");
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).expect("a copy");
        }
    }
}

/// Writes a script into a folder of its own and runs a command over it.
pub(crate) fn run_text(text: impl AsRef<[u8]>, args: &[&str]) -> Output {
    let folder = TempDir::new().expect("a temporary folder");
    fs::write(folder.path().join("script.svm"), text).expect("a script");
    streamvm(folder.path(), args.iter().copied().chain(["script.svm"]))
}
