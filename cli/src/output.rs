//! A file that the command writes: it appears whole or not at all.
//!
//! What is written goes to a temporary file in the same folder, with a random name that nobody can have taken before, and is
//! renamed to its place once it is whole. Until then the place is as it was; if the command is stopped, the temporary file
//! (`.streamvm-….part`) is left. A symbolic link stays one: the file that it points to is replaced. A pipe or a device such
//! as `/dev/stdout` cannot be replaced, and is written to as it is.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::path::{Path, PathBuf};

use tempfile::{Builder, NamedTempFile};

use crate::place::resolve;

/// A file that is being written. Dropped without [`OutputFile::finish`], it was never there.
#[derive(Debug)]
pub struct OutputFile {
    to: To,
}

#[derive(Debug)]
enum To {
    /// Is renamed to `target`.
    Replaces { temporary: NamedTempFile, target: PathBuf },
    /// Is what it is.
    Special(File),
}

impl OutputFile {
    /// Begins to write the file at `path`.
    ///
    /// # Errors
    /// The path is that of a folder, its folder is not there, or it may not be written.
    pub fn create(path: &Path) -> io::Result<OutputFile> {
        let found = fs::metadata(path).ok();
        if let Some(found) = &found {
            // Opened, but not changed: what may not be written may not be replaced either.
            let file = OpenOptions::new().write(true).open(path)?;
            if !found.is_file() {
                return Ok(OutputFile { to: To::Special(file) });
            }
        }
        let target = resolve(path);
        let mut builder = Builder::new();
        builder.prefix(".streamvm-").suffix(".part");
        if let Some(permissions) = permissions_of_new_files() {
            builder.permissions(permissions);
        }
        let folder = target.parent().unwrap_or_else(|| Path::new("."));
        // Asked first, since an error of `tempfile` names the temporary file, which says nothing to a reader.
        fs::metadata(folder)?;
        let temporary = builder.tempfile_in(folder)?;
        if let Some(found) = found {
            temporary.as_file().set_permissions(found.permissions())?;
        }
        Ok(OutputFile { to: To::Replaces { temporary, target } })
    }

    /// The open file, to write to.
    ///
    /// # Errors
    /// The process has no more room for open files.
    pub fn file(&self) -> io::Result<File> {
        match &self.to {
            To::Replaces { temporary, .. } => temporary.as_file().try_clone(),
            To::Special(file) => file.try_clone(),
        }
    }

    /// Puts the file in its place, once all was written.
    ///
    /// # Errors
    /// It cannot be renamed; the place is as it was.
    pub fn finish(self) -> io::Result<()> {
        match self.to {
            To::Replaces { temporary, target } => temporary.persist(target).map(drop).map_err(|error| error.error),
            To::Special(_) => Ok(()),
        }
    }
}

/// A new file may be read by whom the user's mask says, and not by the user alone, as a temporary file is otherwise.
#[cfg(unix)]
fn permissions_of_new_files() -> Option<Permissions> {
    use std::os::unix::fs::PermissionsExt;
    Some(Permissions::from_mode(0o666))
}

#[cfg(not(unix))]
fn permissions_of_new_files() -> Option<Permissions> {
    None
}

#[cfg(test)]
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
