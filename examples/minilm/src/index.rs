//! The index of a text file: the embeddings of its lines, in a file, so that they are computed once.
//!
//! The file is a `.safetensors` file with one tensor, `embeddings`: f32 `[lines, size]`, a row for each line that is not blank. Its metadata name
//! the format and the sums of the text and of the model that it was made from. An index of other sums is stale. A file that is not an index is never
//! replaced.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use crate::error::Error;
use crate::files::{Output, Sum, sum};

/// The metadata by which a file is known to be an index.
const FORMAT: (&str, &str) = ("format", "minilm index 1");
const EMBEDDINGS: &str = "embeddings";

/// What an index is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sources {
    /// The sum of the text.
    pub text: Sum,
    /// The sum of the model.
    pub model: Sum,
}

/// The sum of the files of a model that an embedding depends on.
///
/// # Errors
///
/// [`Error::NoModel`], [`Error::Read`].
pub fn sum_of_model(folder: &Path) -> Result<Sum, Error> {
    let files = ["config.json", "sentence_bert_config.json", "tokenizer.json", "model.safetensors"].map(|name| {
        let path = folder.join(name);
        fs::read(&path).map_err(|source| Error::of_model(&path, source))
    });
    let files = files.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(sum(&files.iter().map(Vec::as_slice).collect::<Vec<_>>()))
}

/// What there is in the place of an index.
#[derive(Debug, PartialEq)]
pub enum Found {
    /// The embeddings of these sources.
    Current(Vec<f32>),
    /// An index of another text.
    OtherText,
    /// An index of this text by another model.
    OtherModel,
    /// No file.
    Nothing,
}

/// Reads an index of `lines` rows of `size` elements.
///
/// # Errors
///
/// [`Error::Read`], and [`Error::Index`] for a file that is not an index, or is damaged.
pub fn read(path: &Path, sources: &Sources, lines: usize, size: usize) -> Result<Found, Error> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(source) => return Err(Error::Read { path: path.to_owned(), source }),
    };
    let refuse = |reason: &str| Error::Index { path: path.to_owned(), reason: reason.to_owned() };
    let foreign = || refuse("the file is not an index of `minilm search`, or is damaged");
    let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|_| foreign())?;
    let metadata = header.metadata().as_ref().ok_or_else(foreign)?;
    if metadata.get(FORMAT.0).map(String::as_str) != Some(FORMAT.1) {
        return Err(foreign());
    }
    if metadata.get("text") != Some(&sources.text) {
        return Ok(Found::OtherText);
    }
    if metadata.get("model") != Some(&sources.model) {
        return Ok(Found::OtherModel);
    }
    let file = SafeTensors::deserialize(&bytes).map_err(|_| foreign())?;
    let found = file.tensor(EMBEDDINGS).map_err(|_| foreign())?;
    if found.dtype() != Dtype::F32 || found.shape() != [lines, size] {
        let reason = format!(
            "the index has {:?}{:?}, and F32{:?} is needed for this text and this model",
            found.dtype(),
            found.shape(),
            [lines, size]
        );
        return Err(refuse(&reason));
    }
    let (elements, _) = found.data().as_chunks::<4>();
    Ok(Found::Current(elements.iter().map(|element| f32::from_le_bytes(*element)).collect()))
}

/// Writes the index of rows of `size` elements.
///
/// # Errors
///
/// [`Error::Write`].
pub fn write(to: Output, sources: &Sources, rows: &[f32], size: usize) -> Result<(), Error> {
    let elements: Vec<u8> = rows.iter().flat_map(|element| element.to_le_bytes()).collect();
    to.write(|file| {
        let shape = vec![rows.len() / size.max(1), size];
        let view = TensorView::new(Dtype::F32, shape, &elements).map_err(io::Error::other)?;
        let metadata = [FORMAT, ("text", &sources.text[..]), ("model", &sources.model[..])];
        let metadata = HashMap::from(metadata.map(|(name, value)| (name.to_owned(), value.to_owned())));
        file.write_all(&safetensors::serialize([(EMBEDDINGS, view)], Some(metadata)).map_err(io::Error::other)?)
    })
}
