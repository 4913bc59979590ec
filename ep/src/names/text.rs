//! Conversion of names and errors to text: parse errors, lists of names, and how errors print.

use std::fmt::Display;

/// Makes `Debug` print what `Display` prints. A program whose `main` returns such an error ends with a sentence; tests that need fields
/// match on them.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_as_display {
    ($($error:ty),* $(,)?) => {$(
        impl ::std::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(self, f)
            }
        }
    )*};
}

debug_as_display!(ParseError);

/// A text that is not a valid name.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no {what}; expected {expected}")]
pub struct ParseError {
    /// The kind of name that was expected.
    pub what: &'static str,
    /// The text.
    pub text: String,
    /// The accepted texts.
    pub expected: String,
}

impl ParseError {
    /// The error that `text` is not a valid `what`; `expected` lists the accepted texts.
    pub fn new(what: &'static str, text: &str, expected: impl Into<String>) -> ParseError {
        ParseError { what, text: text.to_owned(), expected: expected.into() }
    }
}

/// The most sources of an error that its text has: one may be its own source.
const SOURCES: usize = 64;

/// The text of an error with those of its sources. Runs code of the caller.
pub fn error_chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut sources = std::iter::successors(error.source(), |inner| inner.source());
    for inner in sources.by_ref().take(SOURCES) {
        text += ": ";
        text += &inner.to_string();
    }
    if sources.next().is_some() {
        text += ": and further sources";
    }
    text
}

/// The items with commas between, or "none".
pub fn listed(items: &[impl Display]) -> String {
    if items.is_empty() {
        return String::from("none");
    }
    let texts: Vec<String> = items.iter().map(|item| item.to_string()).collect();
    texts.join(", ")
}
