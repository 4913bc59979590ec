//! `.npz` files: ZIP archives of `.npy` files, whose names without `.npy` are the names of tensors.

use std::io::{self, Read, Seek, Write};
use std::path::Path;

use crate::spelling::{did_you_mean, list};
use crate::tensor_file::TensorFile;
use crate::zip::{Archive, Entry, Writer};
use crate::{Array, Error, npy};

const SUFFIX: &str = ".npy";

/// Reads the header of the tensor of that name, or of the only one.
pub(crate) fn read_header(
    path: &Path,
    from: &mut (impl Read + Seek),
    length: u64,
    tensor: Option<&str>,
) -> Result<TensorFile, Error> {
    let archive = Archive::read(path, from, length)?;
    let names = || archive.entries.iter().filter_map(|entry| entry.name.strip_suffix(SUFFIX));
    let fail = |reason: String| Error::no_tensor(path, reason);
    let name = match (tensor, names().next(), names().nth(1)) {
        (Some(name), ..) | (None, Some(name), None) => name,
        _ => return Err(fail(format!("name one of its tensors: {}", list(names())))),
    };
    let is_named = |entry: &&Entry| entry.name.strip_suffix(SUFFIX) == Some(name);
    let Some(entry) = archive.entries.iter().find(is_named) else {
        let guess = did_you_mean(name, names());
        return Err(fail(format!(
            "no tensor {name:?} in this file; {}",
            guess.unwrap_or_else(|| format!("it has: {}", list(names())))
        )));
    };
    member(path, from, &archive, entry)
}

/// Reads the headers of all tensors, in the order of the archive's directory.
pub(crate) fn read_headers(
    path: &Path,
    from: &mut (impl Read + Seek),
    length: u64,
) -> Result<Vec<(String, TensorFile)>, Error> {
    let archive = Archive::read(path, from, length)?;
    let mut all = Vec::with_capacity(archive.entries.len());
    for entry in &archive.entries {
        let Some(name) = entry.name.strip_suffix(SUFFIX) else {
            let reason = format!("member {:?} is no .npy file; load the tensors by their names", entry.name);
            return Err(Error::refused(path, reason));
        };
        all.push((name.to_owned(), member(path, from, &archive, entry)?));
    }
    Ok(all)
}

fn member(path: &Path, from: &mut (impl Read + Seek), archive: &Archive, entry: &Entry) -> Result<TensorFile, Error> {
    let member = entry.locate(path, from, archive)?;
    let mut bytes = member.open(from).map_err(|error| Error::io(path, "read the archive", error))?;
    let header = npy::read_header(path, &mut bytes, member.size).map_err(|error| match error {
        Error::Refused { path, reason, .. } => Error::refused(&path, format!("member {:?}: {reason}", entry.name)),
        other => other,
    })?;
    Ok(TensorFile { member: Some(member), ..header })
}

/// Writes an archive of arrays, without compression.
pub(crate) fn write<'a>(to: impl Write, arrays: impl IntoIterator<Item = (&'a str, &'a Array)>) -> io::Result<()> {
    let mut writer = Writer::new(to);
    for (name, array) in arrays {
        writer.add(&format!("{name}{SUFFIX}"), |mut to| npy::write_npy(&mut to, array))?;
    }
    writer.finish().map(drop)
}
