//! A file that the command writes: it appears whole or not at all.
//!
//! The data goes to a temporary file in the same folder, with a random name that cannot have been taken before; once the file is
//! whole, it is renamed to its place. Until then the place stays as it was. If a signal ends the command, `end_unfinished` removes the
//! temporary file (`.streamvm-….part`), or puts it in its place if that was asked for (`Unfinished::keep`). A symbolic link stays a link: the file that it points to is replaced. A pipe or a device such as
//! `/dev/stdout` cannot be replaced, so the data is written to it directly.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::{Builder, NamedTempFile};

use crate::files::place::resolve;

/// A file that is being written. Dropping it without [`OutputFile::finish`] leaves the place as it was.
#[derive(Debug)]
pub struct OutputFile {
    to: To,
}

#[derive(Debug)]
enum To {
    /// A temporary file, which is renamed to `target`.
    Replaces { temporary: NamedTempFile, target: PathBuf, listed: Listed },
    /// A pipe or a device, which is written to directly.
    Special(File),
}

impl OutputFile {
    /// Begins to write the file at `path`.
    ///
    /// # Errors
    /// The path leads to a folder, the folder of the path does not exist, or the file may not be written.
    pub fn create(path: &Path) -> io::Result<OutputFile> {
        let found = fs::metadata(path).ok();
        if let Some(found) = &found {
            // Opened, but not changed: a file that the user may not write is not replaced either.
            let file = OpenOptions::new().write(true).open(path)?;
            if !found.is_file() {
                return Ok(OutputFile { to: To::Special(file) });
            }
        }
        let target = resolve(path);
        let mut builder = Builder::new();
        builder.prefix(".streamvm-").suffix(".part");
        // A temporary file that replaces another is readable by its user alone until it gets the permissions of the replaced file.
        if let Some(permissions) = permissions_of_new_files().filter(|_| found.is_none()) {
            builder.permissions(permissions);
        }
        let folder = target.parent().unwrap_or_else(|| Path::new("."));
        // Checked first, because an error of `tempfile` would name the temporary file, which the user does not know.
        fs::metadata(folder).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                io::Error::new(error.kind(), "its folder does not exist; make the folder, or name another")
            }
            _ => error,
        })?;
        let (temporary, listed) = Listed::create(|| builder.tempfile_in(folder), &target)?;
        if let Some(found) = found {
            keep_owner(temporary.as_file(), &found);
            temporary.as_file().set_permissions(found.permissions())?;
        }
        Ok(OutputFile { to: To::Replaces { temporary, target, listed } })
    }

    /// The file as the end by a signal sees it.
    pub(crate) fn unfinished(&self) -> Unfinished {
        match &self.to {
            To::Replaces { listed, .. } => Unfinished(Some(listed.0)),
            To::Special(_) => Unfinished(None),
        }
    }

    /// The open file, to write to.
    ///
    /// # Errors
    /// The process has too many open files.
    pub fn file(&self) -> io::Result<File> {
        match &self.to {
            To::Replaces { temporary, .. } => temporary.as_file().try_clone(),
            To::Special(file) => file.try_clone(),
        }
    }

    /// Puts the file in its place, once all data is written.
    ///
    /// # Errors
    /// The file cannot be written to the disk or renamed; the place is as it was. A file that cannot be renamed is kept under its
    /// temporary name, which the error contains.
    pub fn finish(self) -> io::Result<()> {
        let To::Replaces { temporary, target, listed } = self.to else { return Ok(()) };
        // Before the rename, so that after a power cut the name does not lead to a file without its bytes.
        temporary.as_file().sync_all()?;
        let persisted = temporary.persist(target);
        drop(listed);
        let Err(refused) = persisted else { return Ok(()) };
        let text = match refused.file.keep() {
            Ok((_, path)) => format!("{}; what was written is kept in {}", refused.error, path.display()),
            Err(_) => refused.error.to_string(),
        };
        Err(io::Error::new(refused.error.kind(), text))
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
    fn create(make: impl FnOnce() -> io::Result<NamedTempFile>, target: &Path) -> io::Result<(NamedTempFile, Listed)> {
        let mut list = unfinished();
        if list.ended {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "the command was interrupted"));
        }
        let temporary = make()?;
        let number = list.next;
        list.next += 1;
        let file = TemporaryFile { temporary: temporary.path().to_owned(), target: target.to_owned(), kept: None };
        list.files.push((number, file));
        Ok((temporary, Listed(number)))
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

/// Gives a file the owner and the group of another, where the user may do so.
#[cfg(unix)]
fn keep_owner(file: &File, of: &fs::Metadata) {
    use std::os::unix::fs::{MetadataExt, fchown};
    // Only root may change the owner; otherwise the file belongs to the user.
    let _ = fchown(file, Some(of.uid()), Some(of.gid()));
}

#[cfg(not(unix))]
fn keep_owner(_: &File, _: &fs::Metadata) {}

/// The permissions of a new file, less those that the user's umask removes. A temporary file would be readable by its user alone.
#[cfg(unix)]
fn permissions_of_new_files() -> Option<Permissions> {
    use std::os::unix::fs::PermissionsExt;
    Some(Permissions::from_mode(0o666))
}

#[cfg(not(unix))]
fn permissions_of_new_files() -> Option<Permissions> {
    None
}

#[cfg(all(test, unix))]
mod tests {
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
            To::Replaces { temporary, .. } => temporary.path().to_path_buf(),
            To::Special(_) => panic!("a file"),
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
