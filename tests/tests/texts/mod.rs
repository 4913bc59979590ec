//! What is read and written: lists as text, source lines, inputs of fuzzers, documents, and what `Debug` shows.

mod comparison;
mod corpus;
mod debug;
mod documents;
mod locations;
mod refused;
mod text;
mod trips;
