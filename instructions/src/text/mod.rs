//! The textual form of instruction lists: printing a list, and parsing one from text.
//!
//! Layer: uses `place`, `error`, `engine`, `tensor` and `list`; is used by no other folder.
//!
//! * [`print`](mod@print) defines the form, and implements `Display` for `InstructionList`.
//! * [`parse`] parses that form: `Parser` has the names declared so far, and `Words` the words of one line.
//! * A [`ParseListError`](words::ParseListError) names the first wrong line, and what was expected there.

pub(crate) mod parse;
pub(crate) mod parser;
pub(crate) mod print;
pub(crate) mod words;
