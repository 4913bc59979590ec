//! Makes text safe to print: escapes control characters, so that a file cannot send an escape sequence to the terminal.

use std::collections::HashSet;
use std::io;
use std::path::Path;

pub use streamvm_files::printable::printable;
pub use streamvm_report::without_controls;

/// Does an argument of the command line name standard input?
#[must_use]
pub fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// The advice on a file of the command line that is missing under a relative path: where the path starts. Empty for any other error.
#[must_use]
pub fn where_it_starts(path: &Path, error: &io::Error) -> String {
    if error.kind() != io::ErrorKind::NotFound || path.is_absolute() {
        return String::new();
    }
    let folder = std::env::current_dir().map_or_else(|_| "folder".to_owned(), |folder| folder.display().to_string());
    format!("\n = help: the path starts at the current folder, {}", printable(&folder))
}

/// Escapes the control characters that `serde_json` leaves in its strings: those above ASCII. Outside of strings JSON has none but ends of
/// lines, so replacing them everywhere is safe.
#[must_use]
pub fn json_without_controls(mut json: String) -> String {
    let left: HashSet<char> = json.chars().filter(|c| c.is_control() && *c != '\n').collect();
    for c in left {
        json = json.replace(c, &format!("\\u{:04x}", u32::from(c)));
    }
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(json_without_controls("\"a\u{9b}\"\n".into()), "\"a\\u009b\"\n");
        assert_eq!(without_controls("a\u{1b}[31m\tb\nc\r"), "a\\u{1b}[31m\tb\nc\\r");
    }
}
