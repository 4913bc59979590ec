//! The inputs, a JSON array of texts or a text file, and outputs, which replace a file when they are whole.

use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use npyz::WriterBuilder;
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use crate::error::Error;

/// A SHA-256 sum, in hexadecimal digits.
pub type Sum = String;

/// The text in the bytes of a file, or why there is none.
fn text_of(bytes: &[u8]) -> Result<&str, String> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| format!("byte {} is not UTF-8, so this is not a text file", error.valid_up_to()))?;
    if let Some(at) = text.find('\0') {
        return Err(format!("byte {at} is 0, so this is not a text file"));
    }
    // Some editors begin a file with this mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.is_empty() {
        return Err(String::from("the file is empty"));
    }
    Ok(text)
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })
}

/// Reads a JSON array of texts.
///
/// # Errors
///
/// [`Error::Read`], and [`Error::Input`] for an empty file, bytes that are not UTF-8, and anything but an array of texts.
pub fn read_texts(path: &Path) -> Result<Vec<String>, Error> {
    let bytes = read(path)?;
    let refuse = |reason: String| Error::Input { path: path.to_owned(), reason };
    let text = text_of(&bytes).map_err(refuse)?;
    if text.trim().is_empty() {
        return Err(refuse(String::from("the file is empty")));
    }
    serde_json::from_str(text).map_err(|error| refuse(error.to_string()))
}

/// The lines of a text file that are not blank.
pub struct Lines {
    /// The lines, without what ends them.
    pub texts: Vec<String>,
    /// The number of each of them in the file, counted from 1.
    pub numbers: Vec<usize>,
    /// The sum of the file.
    pub sum: Sum,
}

/// Reads the lines of a text file. Lines end with `\n` or `\r\n`; those of white space only are left out.
///
/// # Errors
///
/// [`Error::Read`], and [`Error::Lines`] for an empty file, bytes that are no text in UTF-8, and blank lines only.
pub fn read_lines(path: &Path) -> Result<Lines, Error> {
    let bytes = read(path)?;
    let refuse = |reason: String| Error::Lines { path: path.to_owned(), reason };
    let text = text_of(&bytes).map_err(refuse)?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let (numbers, texts): (Vec<usize>, Vec<String>) = lines.map(|(at, line)| (at + 1, line.to_owned())).unzip();
    if texts.is_empty() {
        return Err(refuse(String::from("all lines are blank")));
    }
    Ok(Lines { texts, numbers, sum: sum(&[&bytes[..]]) })
}

/// The sum of the parts, one after the other, each after its length.
pub fn sum(parts: &[&[u8]]) -> Sum {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The output while it is not whole: a file beside it, which takes its place at the end. If the command fails, an old output stays.
pub struct Output {
    path: PathBuf,
    to: To,
}

enum To {
    /// A temporary file, which replaces this one at the end.
    File(NamedTempFile, PathBuf),
    /// A pipe or a device, such as `/dev/stdout`, which is written to directly.
    Special(File),
}

impl Output {
    /// Creates the file beside `path`, so that a folder that cannot be written is noticed before anything is computed.
    ///
    /// # Errors
    ///
    /// [`Error::SameFile`] if `path` is the input, [`Error::Write`].
    pub fn create(path: &Path, input: &Path) -> Result<Output, Error> {
        if let (Ok(one), Ok(other)) = (path.canonicalize(), input.canonicalize())
            && one == other
        {
            return Err(Error::SameFile { path: path.to_owned() });
        }
        let refuse = |source| Error::Write { path: path.to_owned(), source };
        let found = fs::metadata(path).ok();
        if found.as_ref().is_some_and(fs::Metadata::is_dir) || path.to_string_lossy().ends_with('/') {
            return Err(refuse(io::Error::from(io::ErrorKind::IsADirectory)));
        }
        if found.is_some() {
            // Opened and not changed: a file that may not be written is not replaced either.
            let special = File::options().write(true).open(path).map_err(refuse)?;
            if !special.metadata().map_err(refuse)?.is_file() {
                return Ok(Output { path: path.to_owned(), to: To::Special(special) });
            }
        }
        // A link stays: the file that it leads to is replaced.
        let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !folder.is_dir() {
            return Err(refuse(io::Error::new(io::ErrorKind::NotFound, "its folder does not exist")));
        }
        let mut builder = tempfile::Builder::new();
        builder.prefix(".minilm-").suffix(".part").permissions(Permissions::from_mode(0o666));
        let file = builder.tempfile_in(folder).map_err(refuse)?;
        if let Some(found) = found {
            file.as_file().set_permissions(found.permissions()).map_err(refuse)?;
        }
        Ok(Output { path: path.to_owned(), to: To::File(file, target) })
    }

    /// Writes the contents by `write`, and gives the file its name.
    ///
    /// # Errors
    ///
    /// [`Error::Write`].
    pub fn write(self, write: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>) -> Result<(), Error> {
        let Output { path, to } = self;
        let write = |file: &File| -> io::Result<()> {
            let mut buffer = BufWriter::new(file);
            write(&mut buffer)?;
            buffer.flush()
        };
        let refuse = |source| Error::Write { path: path.clone(), source };
        match to {
            To::Special(file) => write(&file).map_err(refuse)?,
            To::File(file, target) => {
                write(file.as_file()).and_then(|()| file.as_file().sync_all()).map_err(refuse)?;
                file.persist(&target).map_err(|error| refuse(error.error))?;
            }
        }
        Ok(())
    }
}

/// Writes rows of `size` elements as `.npy`.
///
/// # Errors
///
/// Those of `to`.
pub fn write_npy(to: &mut impl Write, rows: &[f32], size: usize) -> io::Result<()> {
    let shape = [rows.len() / size.max(1), size].map(|size| size as u64);
    let mut writer = npyz::WriteOptions::new().default_dtype().shape(&shape).writer(to).begin_nd()?;
    writer.extend(rows.iter().copied())?;
    writer.finish()
}
