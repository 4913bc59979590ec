//! From texts to tokens, and batches of them.

use std::path::Path;

use tokenizers::{Tokenizer, TruncationParams};

use crate::config::longest_text;
use crate::error::Error;

/// The tokenizer of a model.
pub struct Tokens {
    tokenizer: Tokenizer,
}

impl Tokens {
    /// Reads the `tokenizer.json` of a model. Texts are cut at the `max_seq_length` of its `sentence_bert_config.json`.
    ///
    /// # Errors
    ///
    /// [`Error::NoModel`], [`Error::Read`], [`Error::Model`].
    pub fn read(folder: &Path) -> Result<Tokens, Error> {
        let path = folder.join("tokenizer.json");
        let text = std::fs::read(&path).map_err(|source| Error::of_model(&path, source))?;
        let refuse = |error: tokenizers::Error| Error::Model { path: path.clone(), reason: error.to_string() };
        let mut tokenizer = Tokenizer::from_bytes(text).map_err(refuse)?;
        let cut = TruncationParams { max_length: longest_text(folder)?, ..TruncationParams::default() };
        tokenizer.with_truncation(Some(cut)).map_err(refuse)?;
        // Batches are padded to their longest text, not to the length that the file says.
        tokenizer.with_padding(None);
        Ok(Tokens { tokenizer })
    }

    /// The tokens of text `number` of the input, with those that mark its begin and its end.
    ///
    /// # Errors
    ///
    /// [`Error::Text`].
    pub fn of(&self, number: usize, text: &str) -> Result<Vec<u32>, Error> {
        let encoded = self.tokenizer.encode(text, true);
        let encoded = encoded.map_err(|error| Error::Text { number, reason: error.to_string() })?;
        Ok(encoded.get_ids().to_vec())
    }
}

/// Texts that are computed together: rows of as many tokens as the longest has.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Texts.
    pub texts: usize,
    /// Tokens of each row.
    pub tokens: usize,
    /// The tokens, row by row; 0 after the end of a text.
    pub ids: Vec<i64>,
    /// 1 for each token of a text, 0 after its end.
    pub mask: Vec<f32>,
}

impl Batch {
    /// The batch of these texts, each of at least one token.
    pub fn of(texts: &[&[u32]]) -> Batch {
        let tokens = texts.iter().map(|text| text.len()).max().unwrap_or(0);
        let padded = |text: &&[u32]| {
            let behind = std::iter::repeat_n(0, tokens - text.len());
            text.iter().map(|&token| i64::from(token)).chain(behind).collect::<Vec<i64>>()
        };
        let inside =
            |text: &&[u32]| (0..tokens).map(|place| if place < text.len() { 1.0 } else { 0.0 }).collect::<Vec<f32>>();
        Batch {
            texts: texts.len(),
            tokens,
            ids: texts.iter().flat_map(padded).collect(),
            mask: texts.iter().flat_map(inside).collect(),
        }
    }
}
