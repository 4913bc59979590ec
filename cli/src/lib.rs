//! The script language of the `streamvm` command.
//!
//! A script names devices and tensors, copies, computes, and looks at results. It compiles to instruction lists of streamvm, which
//! run like any other list. `docs/language.md` is the reference. The stages:
//!
//! ```text
//! source ─ lexer ─ parser ─> ast ─ check ─┬─ run      submits lists and runs of programs, prints, compares, saves
//!                                         ├─ plan     one list with its waits and records, runs nothing
//!                                         └─ compile  its programs, compiled and shown, without an engine
//! ```
//!
//! Each folder is a layer, and imports only the folders below it:
//!
//! ```text
//! command    subcommands: options, outputs, exit codes
//! execute    runs a script on an engine
//! analysis   errors and the plan of a script, without running it
//! emit       from expressions to instructions
//! files      files that are written
//! values     arrays, compared
//! syntax     source, tokens, syntax tree, messages
//! base       names of the engine, functions over text
//! ```
//!
//! For each statement the [`emitter`](emit::Emitter) adds instructions to a list, by the calls of the instructions builder; an engine takes the list.
//! [`check`](analysis::check::check) walks the script with the same emitter, on tensors without
//! values, so every error that does not depend on values is found before anything runs.
//!
//! ```
//! use streamvm_cli::syntax::{parser::parse, source::Source};
//!
//! let source = Source::from_text("example.svm", ".", "let h = mtmul x w");
//! let errors = parse(&source).unwrap_err();
//! assert!(errors[0].render(&source).starts_with("example.svm:1:9: error: unknown op `mtmul`"));
//! ```
#![deny(unsafe_code)]

pub mod analysis;
pub mod base;
pub mod command;
pub mod emit;
pub mod execute;
pub mod files;
pub mod syntax;
pub mod values;
