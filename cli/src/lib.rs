//! The script language of the `streamvm` command.
//!
//! A script names devices and tensors, copies, computes, and looks at results; it compiles to the
//! instruction lists of streamvm and adds nothing of its own to how they run. `docs/language.md` is the
//! reference. The stages, each in a module of its own:
//!
//! ```text
//! source ─ lexer ─ parser ─> ast ─ check ─┬─ run    submits lists, prints, compares, saves
//!                                         └─ plan   one list with its waits and records, runs nothing
//! ```
//!
//! [`check`](check::check) walks the script with the same [`emitter`](emit::Emitter) that runs it, on
//! tensors without values, so whatever can be known to be wrong is known before anything runs.
//!
//! ```
//! use streamvm_cli::{parser::parse, source::Source};
//!
//! let source = Source::from_text("example.svm", ".", "let h = mtmul x w");
//! let errors = parse(&source).unwrap_err();
//! assert!(errors[0].render(&source).starts_with("example.svm:1:9: error: unknown op `mtmul`"));
//! ```
#![deny(unsafe_code)]

mod aliases;
pub mod array;
pub mod ast;
pub mod check;
pub mod command;
pub mod compare;
pub mod devices;
pub mod diagnostic;
pub mod emit;
mod engine;
pub mod files;
pub mod functions;
mod issued;
pub mod lexer;
pub mod output;
mod outputs;
pub mod parser;
mod place;
pub mod plan;
mod races;
pub mod report;
pub mod run;
pub mod show;
mod sites;
pub mod source;
pub mod verify;
