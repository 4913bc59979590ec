//! Finds the file that a path leads to.
//!
//! Two paths may lead to one file: `x` and `./x`, a symbolic link and its target, two hard links. So the check for overwritten inputs
//! compares the files that paths lead to, never the spelling of paths. A file that does not exist yet has a place too: its folder
//! and its name there.
//!
//! Saving replaces an entry of a folder, so the resolved path decides whether a later `load` finds what a `save` has written. Two
//! hard links are two entries: a `load` by one does not find what was saved by the other.

use std::fs;
use std::path::{Path, PathBuf};

pub(crate) use streamvm_files::whole_file::resolve;

use crate::base::printable::is_stdin;

/// The place that a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FilePlace {
    path: PathBuf,
    /// Device and inode number, if the file exists.
    inode: Option<(u64, u64)>,
    /// Is it something other than a regular file, such as a pipe or `/dev/null`? Such a file keeps no data that could be lost.
    special: bool,
}

impl FilePlace {
    /// The place that `path` leads to.
    pub(crate) fn of(path: &Path) -> FilePlace {
        let found = fs::metadata(path).ok();
        let special = found.as_ref().is_some_and(|found| !found.is_file());
        FilePlace { path: resolve(path), inode: found.as_ref().and_then(inode), special }
    }

    /// The place of a file that an argument of the command names; `-` is the file that standard input comes from.
    pub(crate) fn of_argument(path: &Path) -> FilePlace {
        if !is_stdin(path) {
            return FilePlace::of(path);
        }
        let nowhere = FilePlace { path: PathBuf::new(), inode: None, special: true };
        of_stdin().unwrap_or(nowhere)
    }

    /// The place of an open file; `None` if it is not a regular file.
    #[cfg(unix)]
    pub(crate) fn of_open(file: &fs::File) -> Option<FilePlace> {
        let found = file.metadata().ok().filter(fs::Metadata::is_file)?;
        // The path of an open file is unknown; the empty path equals no other.
        Some(FilePlace { path: PathBuf::new(), inode: inode(&found), special: false })
    }

    /// Are the two the same file, so that writing one would lose or change the other?
    pub(crate) fn is_same_file(&self, other: &FilePlace) -> bool {
        self.keys().any(|key| other.keys().any(|other| other == key))
    }

    /// The keys of the file; two places of the same file have at least one key in common.
    pub(crate) fn keys(&self) -> impl Iterator<Item = Key<'_>> {
        let keys = [Some(Key::Path(&self.path)), self.inode.map(Key::Inode)];
        keys.into_iter().flatten().filter(|_| !self.special)
    }
}

/// One identity of a file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Key<'a> {
    /// The entry of its folder.
    Path(&'a Path),
    /// Its device and inode number: hard links are one file.
    Inode((u64, u64)),
}

#[cfg(unix)]
fn of_stdin() -> Option<FilePlace> {
    use std::os::fd::AsFd;
    FilePlace::of_open(&fs::File::from(std::io::stdin().as_fd().try_clone_to_owned().ok()?))
}

#[cfg(not(unix))]
fn of_stdin() -> Option<FilePlace> {
    None
}

#[cfg(unix)]
fn inode(metadata: &fs::Metadata) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    Some((metadata.dev(), metadata.ino()))
}

/// Without inode numbers only the resolved path identifies a file.
#[cfg(not(unix))]
fn inode(_: &fs::Metadata) -> Option<(u64, u64)> {
    None
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    #[test]
    fn one_file_has_one_place_however_it_is_spelt() {
        let folder = TempDir::new().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("sub")).unwrap();
        fs::write(at("there"), "x").unwrap();
        fs::hard_link(at("there"), at("hard")).unwrap();
        symlink("there", at("soft")).unwrap();
        symlink("new", at("dangling")).unwrap();
        symlink(folder.path(), at("sub/up")).unwrap();
        let same = |one: &str, other: &str| FilePlace::of(&at(one)).is_same_file(&FilePlace::of(&at(other)));
        for (one, other) in [
            ("there", "./there"),
            ("there", "sub/../there"),
            ("there", "hard"),
            ("there", "soft"),
            ("there", "sub/up/soft"),
            ("new", "./new"),
            ("new", "dangling"),
            ("new", "sub/up/dangling"),
            ("none/new", "none/new"),
        ] {
            assert!(same(one, other) && same(other, one), "{one} and {other}");
        }
        for (one, other) in [("there", "new"), ("new", "sub/new"), ("hard", "dangling"), ("none/new", "new")] {
            assert!(!same(one, other) && !same(other, one), "{one} and {other}");
        }
        assert_eq!(resolve(&at("soft")), resolve(&at("there")));
        assert_ne!(resolve(&at("hard")), resolve(&at("there")), "two entries of the folder");
        assert!(!FilePlace::of(Path::new("/dev/null")).is_same_file(&FilePlace::of(Path::new("/dev/null"))));
    }

    #[test]
    fn links_in_a_circle_end() {
        let folder = TempDir::new().unwrap();
        symlink("b", folder.path().join("a")).unwrap();
        symlink("a", folder.path().join("b")).unwrap();
        assert!(!resolve(&folder.path().join("a")).as_os_str().is_empty());
    }
}
