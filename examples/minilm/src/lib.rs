//! Sentence embeddings by all-MiniLM-L6-v2, computed by streamvm.
//!
//! The model is a BERT encoder (Devlin et al., 2019) with six layers, distilled as MiniLM (Wang et al., 2020) and trained by the
//! sentence-transformers project. A text is cut into tokens ([`tokens`]); [`bert`] computes a vector for each token, and their mean, scaled to
//! length 1, is the embedding: by eager calls, or by a program that is compiled once for all batches up to a size. [`embed`] does that for many texts, in batches.
//!
//! Layer: [`error`] and [`config`] are used by all, then come [`tokens`], [`layer`], [`layers`] and [`bert`], then `groups` and [`embed`], then [`files`], which reads the inputs and
//! writes results. [`index`] keeps the embeddings of the lines of a text file, and [`search`] finds the lines that are nearest to a query. A server
//! counts ([`metrics`]), queues texts for the engine ([`queue`]), answers requests ([`requests`]) and serves connections ([`server`]). No file
//! imports one after it.

pub mod bert;
pub mod config;
pub mod embed;
pub mod error;
pub mod files;
mod groups;
pub mod index;
pub mod layer;
pub mod layers;
pub mod metrics;
pub mod queue;
pub mod requests;
pub mod search;
pub mod server;
pub mod tokens;
