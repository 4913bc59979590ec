//! A file that appears whole or not at all: it is written under a temporary name in the same folder, and then renamed.

use std::fs::{self, File, Permissions};
use std::io;
use std::path::{Path, PathBuf};

use tempfile::{Builder, NamedTempFile};

/// Most symbolic links that are followed from one path: the limit of Linux.
const MOST_LINKS: usize = 40;

/// A file that is being written. The data goes to a temporary file (`.streamvm-….part`) with a random name that cannot have been taken before.
/// Until [`finish`](WholeFile::finish) its place stays as it was, also if this is dropped. A symbolic link to a file stays a link, and a file that is
/// replaced hands on its permissions and, where the user may do so, its owner.
#[derive(Debug)]
pub struct WholeFile {
    temporary: NamedTempFile,
    target: PathBuf,
}

impl WholeFile {
    /// Begins to write the file at `path`, where there is a regular file or none.
    ///
    /// # Errors
    /// The folder of the path does not exist, or the file may not be written.
    pub fn create(path: &Path) -> io::Result<WholeFile> {
        let found = fs::metadata(path).ok();
        if found.is_some() {
            // Opened, but not changed: a file that the user may not write is not replaced either.
            drop(File::options().write(true).open(path)?);
        }
        let target = resolve(path);
        let folder = target.parent().unwrap_or_else(|| Path::new("."));
        // Checked first, because an error of `tempfile` would name the temporary file, which the user does not know.
        fs::metadata(folder).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                io::Error::new(error.kind(), "its folder does not exist; make the folder, or name another")
            }
            _ => error,
        })?;
        let mut builder = Builder::new();
        builder.prefix(".streamvm-").suffix(".part");
        // A temporary file that replaces another is readable by its user alone until it gets the permissions of the replaced file.
        if let Some(permissions) = permissions_of_new_files().filter(|_| found.is_none()) {
            builder.permissions(permissions);
        }
        let temporary = builder.tempfile_in(folder)?;
        if let Some(found) = found {
            hand_on(&found, temporary.as_file())?;
        }
        Ok(WholeFile { temporary, target })
    }

    /// The open temporary file.
    pub fn file(&self) -> &File {
        self.temporary.as_file()
    }

    /// The path of the temporary file, for a writer that takes a path. It may put another file there.
    pub fn temporary(&self) -> &Path {
        self.temporary.path()
    }

    /// The path that the file will have, without links.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Puts the file in its place, once all data is written.
    ///
    /// # Errors
    /// The file cannot be written to the disk or renamed; the place is as it was. A file that cannot be renamed is kept under its
    /// temporary name, which the error contains.
    pub fn finish(self) -> io::Result<()> {
        let written = File::options().write(true).open(&self.temporary)?;
        hand_on(&self.file().metadata()?, &written)?;
        // Before the rename, so that after a power cut the name does not lead to a file without its bytes.
        written.sync_all()?;
        let Err(refused) = self.temporary.persist(self.target) else { return Ok(()) };
        let text = match refused.file.keep() {
            Ok((_, path)) => format!("{}; what was written is kept in {}", refused.error, path.display()),
            Err(_) => refused.error.to_string(),
        };
        Err(io::Error::new(refused.error.kind(), text))
    }
}

/// Gives a file the permissions of another; also its owner and group, where the user may do so.
fn hand_on(from: &fs::Metadata, to: &File) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::{MetadataExt, fchown};
        // Only root may change the owner; otherwise the file belongs to the user.
        let _ = fchown(to, Some(from.uid()), Some(from.gid()));
    }
    to.set_permissions(from.permissions())
}

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

/// The path without links, `.` and `..`; also of a file that does not exist yet, if its folder exists.
pub fn resolve(path: &Path) -> PathBuf {
    let mut path = path.to_path_buf();
    for _ in 0..MOST_LINKS {
        if let Ok(found) = fs::canonicalize(&path) {
            return found;
        }
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_path_buf(),
            _ => PathBuf::from("."),
        };
        // A link to a file that does not exist yet: a write would create the target.
        if let Ok(target) = fs::read_link(&path) {
            path = folder.join(target);
            continue;
        }
        if let (Ok(folder), Some(name)) = (fs::canonicalize(&folder), path.file_name()) {
            return folder.join(name);
        }
        break;
    }
    std::path::absolute(&path).unwrap_or(path)
}
