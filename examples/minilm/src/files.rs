//! The input, a JSON array of texts, and the output, a `.npy` file.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use npyz::WriterBuilder;
use tempfile::NamedTempFile;

use crate::error::Error;

/// Reads a JSON array of texts.
///
/// # Errors
///
/// [`Error::Read`], and [`Error::Input`] for an empty file, bytes that are no UTF-8, and anything but an array of texts.
pub fn read_texts(path: &Path) -> Result<Vec<String>, Error> {
    let bytes = fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    let refuse = |reason: String| Error::Input { path: path.to_owned(), reason };
    let text = std::str::from_utf8(&bytes)
        .map_err(|error| refuse(format!("byte {} is no UTF-8, so this is no text file", error.valid_up_to())))?;
    // Some editors begin a file with this mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim().is_empty() {
        return Err(refuse(String::from("the file is empty")));
    }
    serde_json::from_str(text).map_err(|error| refuse(error.to_string()))
}

/// The output while it is not whole: a file beside it, which takes its place at the end. If the command fails, an old output stays.
pub struct Output {
    path: PathBuf,
    file: NamedTempFile,
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
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let refuse = |source| Error::Write { path: path.to_owned(), source };
        if path.is_dir() {
            return Err(refuse(io::Error::from(io::ErrorKind::IsADirectory)));
        }
        let file = tempfile::Builder::new().prefix(".minilm-").suffix(".part").tempfile_in(folder).map_err(refuse)?;
        Ok(Output { path: path.to_owned(), file })
    }

    /// Writes rows of `size` elements as `.npy`, and gives the file its name.
    ///
    /// # Errors
    ///
    /// [`Error::Write`].
    pub fn write(self, rows: &[f32], size: usize) -> Result<(), Error> {
        let Output { path, file } = self;
        let write = || -> io::Result<()> {
            let mut buffer = BufWriter::new(file.as_file());
            let shape = [rows.len() / size.max(1), size].map(|size| size as u64);
            let mut writer = npyz::WriteOptions::new().default_dtype().shape(&shape).writer(&mut buffer).begin_nd()?;
            writer.extend(rows.iter().copied())?;
            writer.finish()?;
            buffer.flush()
        };
        let refuse = |source| Error::Write { path: path.clone(), source };
        write().map_err(refuse)?;
        file.persist(&path).map_err(|error| refuse(error.error))?;
        Ok(())
    }
}
