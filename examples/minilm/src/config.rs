//! The sizes of a model, as its `config.json` gives them.

use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::Error;

/// The sizes of a BERT encoder. The names are those of `config.json`.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    /// Elements of the vector of a token.
    pub hidden_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Heads of attention, which divide the vector of a token.
    pub num_attention_heads: usize,
    /// Elements of a token in the middle of the feed-forward part of a layer.
    pub intermediate_size: usize,
    /// The activation there; only `gelu` is known.
    pub hidden_act: String,
    /// The kind of model; only `bert` is known.
    pub model_type: String,
    /// The number that a layer norm adds to a variance before it takes the root.
    pub layer_norm_eps: f64,
    /// The most tokens of a text.
    pub max_position_embeddings: usize,
    /// Kinds of segments of a text; the first is used.
    pub type_vocab_size: usize,
    /// Tokens of the vocabulary.
    pub vocab_size: usize,
}

/// The part of `sentence_bert_config.json` that is used.
#[derive(Deserialize)]
struct SentenceConfig {
    max_seq_length: usize,
}

impl Config {
    /// Reads the `config.json` of a model.
    ///
    /// # Errors
    ///
    /// [`Error::NoModel`], [`Error::Read`]; [`Error::Model`] for sizes that do not fit together, and for a model that is computed in another
    /// way.
    pub fn read(folder: &Path) -> Result<Config, Error> {
        let path = folder.join("config.json");
        let config: Config = json(&path)?;
        let refuse = |reason: String| Err(Error::Model { path: path.clone(), reason });
        if config.hidden_act != "gelu" {
            return refuse(format!("the activation is {}, and only gelu is known", config.hidden_act));
        }
        if config.model_type != "bert" {
            return refuse(format!("the model is of type {}, and only bert is known", config.model_type));
        }
        if config.num_attention_heads == 0 || !config.hidden_size.is_multiple_of(config.num_attention_heads) {
            let (hidden, heads) = (config.hidden_size, config.num_attention_heads);
            return refuse(format!("{heads} heads do not divide a vector of {hidden} elements"));
        }
        Ok(config)
    }
}

/// The most tokens that a text of this model is cut to, as sentence-transformers does.
///
/// # Errors
///
/// [`Error::NoModel`], [`Error::Read`], [`Error::Model`].
pub fn longest_text(folder: &Path) -> Result<usize, Error> {
    let path = folder.join("sentence_bert_config.json");
    let longest = json::<SentenceConfig>(&path)?.max_seq_length;
    // Two tokens mark the begin and the end of a text.
    let most = Config::read(folder)?.max_position_embeddings;
    if !(3..=most).contains(&longest) {
        let reason = format!("max_seq_length is {longest}, and this model takes 3 to {most} tokens");
        return Err(Error::Model { path, reason });
    }
    Ok(longest)
}

fn json<T: DeserializeOwned>(path: &Path) -> Result<T, Error> {
    let text = fs::read(path).map_err(|source| Error::of_model(path, source))?;
    serde_json::from_slice(&text).map_err(|error| Error::Model { path: path.to_owned(), reason: error.to_string() })
}
