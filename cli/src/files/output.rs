//! A file that the command writes: it appears whole or not at all.
//!
//! The data goes to a [`WholeFile`], a temporary file in the same folder. If a signal ends the command, `end_unfinished` removes the temporary file,
//! or puts it in its place if that was asked for (`Unfinished::keep`). A pipe or a device such as `/dev/stdout` cannot be replaced, so the data is
//! written to it directly.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use streamvm_files::whole_file::WholeFile;

/// A file that is being written. Dropping it without [`OutputFile::finish`] leaves the place as it was.
#[derive(Debug)]
pub struct OutputFile {
    to: To,
}

#[derive(Debug)]
enum To {
    /// A temporary file, which is renamed once it is whole.
    Replaces { file: WholeFile, listed: Listed },
    /// A pipe or a device, which is written to directly.
    Special(File, PathBuf),
}

impl OutputFile {
    /// Begins to write the file at `path`.
    ///
    /// # Errors
    /// The path leads to a folder, the folder of the path does not exist, or the file may not be written.
    pub fn create(path: &Path) -> io::Result<OutputFile> {
        if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            let file = OpenOptions::new().write(true).open(path)?;
            return Ok(OutputFile { to: To::Special(file, path.to_owned()) });
        }
        let (file, listed) = Listed::create(path)?;
        Ok(OutputFile { to: To::Replaces { file, listed } })
    }

    /// The file as the end by a signal sees it.
    pub(crate) fn unfinished(&self) -> Unfinished {
        match &self.to {
            To::Replaces { listed, .. } => Unfinished(Some(listed.0)),
            To::Special(..) => Unfinished(None),
        }
    }

    /// The open file, to write to.
    ///
    /// # Errors
    /// The process has too many open files.
    pub fn file(&self) -> io::Result<File> {
        match &self.to {
            To::Replaces { file, .. } => file.file().try_clone(),
            To::Special(file, _) => file.try_clone(),
        }
    }

    /// Where the data goes until it is whole, for who opens files by their paths.
    pub(crate) fn path(&self) -> &Path {
        match &self.to {
            To::Replaces { file, .. } => file.temporary(),
            To::Special(_, path) => path,
        }
    }

    /// Puts the file in its place, once all data is written.
    ///
    /// # Errors
    /// The file cannot be written to the disk or renamed; the place is as it was. A file that cannot be renamed is kept under its
    /// temporary name, which the error contains.
    pub fn finish(self) -> io::Result<()> {
        let To::Replaces { file, listed } = self.to else { return Ok(()) };
        let finished = file.finish();
        drop(listed);
        finished
    }
}

/// The temporary files that are being written, in this process.
static UNFINISHED: Mutex<Files> = Mutex::new(Files { next: 0, ended: false, files: Vec::new() });

struct Files {
    next: u64,
    /// Whether a signal ends the process, so that no file is begun any more.
    ended: bool,
    files: Vec<(u64, TemporaryFile)>,
}

struct TemporaryFile {
    temporary: PathBuf,
    target: PathBuf,
    /// What the file is, for a message, if it is kept.
    kept: Option<String>,
}

fn unfinished() -> MutexGuard<'static, Files> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The entry of a temporary file in the list; dropping it removes the entry.
#[derive(Debug)]
struct Listed(u64);

impl Listed {
    /// Makes a temporary file and its entry together, so that no signal comes between.
    fn create(path: &Path) -> io::Result<(WholeFile, Listed)> {
        let mut list = unfinished();
        if list.ended {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "the command was interrupted"));
        }
        let made = WholeFile::create(path)?;
        let number = list.next;
        list.next += 1;
        let file =
            TemporaryFile { temporary: made.temporary().to_owned(), target: made.target().to_owned(), kept: None };
        list.files.push((number, file));
        Ok((made, Listed(number)))
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        unfinished().files.retain(|(number, _)| *number != self.0);
    }
}

/// A file that is being written, as the end by a signal sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unfinished(Option<u64>);

impl Unfinished {
    /// Asks for the file to be put in its place if a signal ends the command, because a part of it is worth something. `what` names it.
    pub(crate) fn keep(self, what: &str) {
        let mut list = unfinished();
        if let Some((_, file)) = list.files.iter_mut().find(|(number, _)| Some(*number) == self.0) {
            file.kept = Some(what.to_owned());
        }
    }
}

/// Removes all files that are being written, but puts those in their places that are [kept](Unfinished::keep). Returns what these are. Afterwards no
/// file can be begun. For a process that a signal ends.
pub(crate) fn end_unfinished() -> Vec<String> {
    let mut list = unfinished();
    list.ended = true;
    let mut kept = Vec::new();
    for (_, TemporaryFile { temporary, target, kept: what }) in list.files.drain(..) {
        match what {
            Some(what) if fs::rename(&temporary, target).is_ok() => kept.push(what),
            // It may have been put in its place meanwhile.
            _ => drop(fs::remove_file(temporary)),
        }
    }
    kept
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs::Permissions;
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use tempfile::TempDir;

    use super::*;

    fn write(path: &Path, text: &str) -> io::Result<()> {
        let output = OutputFile::create(path)?;
        output.file()?.write_all(text.as_bytes())?;
        output.finish()
    }

    #[test]
    fn a_file_is_replaced_once_it_is_whole_and_keeps_its_permissions() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "before").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let output = OutputFile::create(&path).unwrap();
        output.file().unwrap().write_all(b"after").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "before");
        drop(output);
        assert_eq!(fs::read_to_string(&path).unwrap(), "before");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "a temporary file was left");
        write(&path, "after").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "after");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "a temporary file was left");
    }

    /// A name that can be known before can be taken by somebody else, who then chooses which file is overwritten.
    #[test]
    fn two_files_of_one_path_have_different_temporary_names_and_the_last_finished_stays() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("a");
        let temporary = |output: &OutputFile| match &output.to {
            To::Replaces { file, .. } => file.temporary().to_path_buf(),
            To::Special(..) => panic!("a file"),
        };
        let (one, other) = (OutputFile::create(&path).unwrap(), OutputFile::create(&path).unwrap());
        let (first, second) = (temporary(&one), temporary(&other));
        assert!(first != second && first != path && second != path, "{first:?}, {second:?}");
        assert_eq!(first.parent(), Some(folder.path()), "renaming needs one file system");
        one.file().unwrap().write_all(b"one").unwrap();
        other.file().unwrap().write_all(b"other").unwrap();
        other.finish().unwrap();
        one.finish().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one");
        // Neither does the name of the next one follow from these.
        let third = temporary(&OutputFile::create(&path).unwrap());
        assert!(third != first && third != second, "{third:?}");
    }

    #[test]
    fn a_link_stays_a_link_and_a_device_a_device() {
        let folder = TempDir::new().unwrap();
        let at = |name: &str| folder.path().join(name);
        symlink("new", at("link")).unwrap();
        write(&at("link"), "one").unwrap();
        assert_eq!(fs::read_to_string(at("new")).unwrap(), "one");
        write(&at("link"), "two").unwrap();
        assert!(at("link").is_symlink());
        assert_eq!(fs::read_to_string(at("new")).unwrap(), "two");
        write(Path::new("/dev/null"), "three").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
        assert!(write(folder.path(), "four").is_err() && write(&at("none/new"), "five").is_err());
    }
}
