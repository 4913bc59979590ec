//! Files of public data, which are beside the checkout on some machines: `../shared/data`, or the folder that `STREAMVM_DATA` names.

use std::env;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread;

/// With this variable of the environment, tests fail where a file is missing.
const NEEDED: &str = "STREAMVM_NEEDS_DATA";

/// The path of a file, or nothing, and a line on stderr, where it is missing. The line is written past the capture of the test harness.
pub(crate) fn file(name: &str) -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data");
    let path = env::var_os("STREAMVM_DATA").map_or_else(beside, PathBuf::from).join(name);
    if path.exists() {
        return Some(path);
    }
    assert!(env::var_os(NEEDED).is_none(), "{NEEDED} is set, and there is no file {}", path.display());
    let test = thread::current().name().unwrap_or("a test").to_owned();
    let line =
        format!("{test} skips what needs {}, which is missing; {NEEDED}=1 makes that a failure\n", path.display());
    io::stderr().write_all(line.as_bytes()).ok();
    None
}
