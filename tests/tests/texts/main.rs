//! What is read and written: lists as text, source lines, inputs of fuzzers, documents.

mod corpus;
mod documents;
mod sites;
mod text;
