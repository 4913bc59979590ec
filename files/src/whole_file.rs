//! A file that appears whole or not at all: it is written under a temporary name in the same folder, and then renamed.

use std::fs::{self, File, Permissions};
use std::io;
use std::path::Path;

use tempfile::Builder;

use crate::Error;

/// Puts a file at `path`, which `write` writes at the path that it gets. Until the file is whole, `path` stays as it was; a symbolic link to a file
/// stays a link, and a file that is replaced hands on its permissions.
pub(crate) fn write_whole(path: &Path, write: impl FnOnce(&Path) -> Result<(), Error>) -> Result<(), Error> {
    let fail = |error: io::Error| Error::io(path, "write", error);
    let found = fs::metadata(path).ok();
    match &found {
        Some(found) if found.is_dir() => {
            return Err(Error::refused(path, "this is a directory, expected a file to write"));
        }
        Some(found) if !found.is_file() => return Err(Error::refused(path, "this is not a regular file")),
        // Opened, but not changed: a file that the user may not write is not replaced either.
        Some(_) => drop(File::options().write(true).open(path).map_err(fail)?),
        None => {}
    }
    let target = if found.is_some() { fs::canonicalize(path).map_err(fail)? } else { path.to_path_buf() };
    let folder = match target.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    // Checked first, because an error of `tempfile` would name the temporary file, which the user does not know.
    fs::metadata(folder).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            fail(io::Error::new(error.kind(), "its folder does not exist; make the folder, or name another"))
        }
        _ => fail(error),
    })?;
    let mut builder = Builder::new();
    builder.prefix(".streamvm-").suffix(".part");
    if let Some(permissions) = permissions_of_new_files().filter(|_| found.is_none()) {
        builder.permissions(permissions);
    }
    let temporary = builder.tempfile_in(folder).map_err(fail)?;
    let permissions = match found {
        Some(found) => found.permissions(),
        None => temporary.as_file().metadata().map_err(fail)?.permissions(),
    };
    let temporary = temporary.into_temp_path();
    write(&temporary)?;
    // By path: a writer may have put another file in the place of the temporary one.
    let finish = || {
        // Before the rename, so that after a power cut the name does not lead to a file without its bytes.
        File::options().write(true).open(&temporary)?.sync_all()?;
        fs::set_permissions(&temporary, permissions)
    };
    finish().map_err(fail)?;
    temporary.persist(&target).map_err(|refused| fail(refused.error))
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
