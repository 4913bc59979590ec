//! The text of a script and its syntax tree, with messages about places in the text.
//!
//! Layer: uses `base`; is used by `emit`, `analysis`, `execute` and `command`.
//!
//! Main types: a [`Source`](source::Source) is the text, and a [`Span`](source::Span) a place in it; the lexer makes a
//! [`Token`](lexer::Token) of each word; [`parse`](parser::parse) makes a [`Block`](ast::Block) of
//! [`Statement`](ast::Statement)s; a [`Diagnostic`](diagnostic::Diagnostic) is a message about a place.

pub mod ast;
pub mod diagnostic;
pub mod functions;
pub(crate) mod habits;
pub mod lexer;
pub mod parser;
pub mod source;
