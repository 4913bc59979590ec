//! Refuses to write a file that the command also reads, or to write one file twice.
//!
//! All files are known before the command runs:
//!
//! * It writes the files of its options and those of the script's `save` statements.
//! * It reads the script and the files of its `load` expressions.
//!
//! A file that is both read and written, or that is written for two reasons, is refused before anything runs. Paths are compared by
//! the file that they lead to ([`FilePlace`]), not by their spelling.
//!
//! Within a script, statements have an order: a script may save a file and then load it, or save it again. But a file that the
//! script loads before it saves it is an input, which a later `save` may not change.

use std::collections::HashMap;
use std::path::Path;

use crate::base::printable::printable;
use crate::files::place::{FilePlace, Key};
use crate::syntax::ast::{Block, Expr, ExprKind, Statement, StatementKind};
use crate::syntax::diagnostic::Diagnostic;
use crate::syntax::source::{Source, Spanned};

/// A file that a script names.
struct Named<'a> {
    path: &'a Spanned<String>,
    place: FilePlace,
    saved: bool,
}

/// The files that a script names, in the order in which they are used.
fn named<'a>(source: &Source, script: &'a Block) -> Vec<Named<'a>> {
    let mut named = Vec::new();
    each_file(script, &mut |path, saved| {
        named.push(Named { path, place: FilePlace::of(&source.resolve(&path.value)), saved });
    });
    named
}

fn each_file<'a>(block: &'a Block, found: &mut impl FnMut(&'a Spanned<String>, bool)) {
    for Statement { kind, .. } in block {
        match kind {
            StatementKind::Let { value, .. } | StatementKind::Into { value, .. } | StatementKind::Print(value) => {
                each_load(value, found);
            }
            StatementKind::Save { value, path } => {
                each_load(value, found);
                found(path, true);
            }
            StatementKind::PrintAccuracy { scores: one, labels: other }
            | StatementKind::Expect { found: one, expected: other, .. } => {
                each_load(one, found);
                each_load(other, found);
            }
            StatementKind::Repeat { body, .. }
            | StatementKind::While { body, .. }
            | StatementKind::Time { body, .. }
            | StatementKind::Scope { body, .. } => {
                each_file(body, found);
            }
            StatementKind::If { then, otherwise, .. } | StatementKind::IfRank { then, otherwise, .. } => {
                each_file(then, found);
                each_file(otherwise, found);
            }
            StatementKind::Run(run) => run.feeds.iter().for_each(|feed| each_load(feed, found)),
            // A program names no file.
            StatementKind::Program(_) => {}
            StatementKind::Device { .. }
            | StatementKind::Refill { .. }
            | StatementKind::Collective { .. }
            | StatementKind::PrintText(_) => {}
        }
    }
}

fn each_load<'a>(expr: &'a Expr, found: &mut impl FnMut(&'a Spanned<String>, bool)) {
    match &expr.kind {
        ExprKind::Load { path, .. } => found(path, false),
        ExprKind::Copy { value, .. } | ExprKind::View { value, .. } => each_load(value, found),
        ExprKind::Call { inputs, .. } | ExprKind::Composed { inputs, .. } | ExprKind::Join { inputs, .. } => {
            inputs.iter().for_each(|input| each_load(input, found));
        }
        ExprKind::Name(_) | ExprKind::Number(_) | ExprKind::Fill { .. } | ExprKind::Random { .. } => {}
        ExprKind::Eye { .. } | ExprKind::Range { .. } => {}
    }
}

/// Refuses a script that saves over itself, over the file that stdout or stderr goes to, or over a file that it has loaded
/// before; `file` is the script.
///
/// # Errors
/// A message for each such `save`.
pub(crate) fn check_saves(source: &Source, file: &Path, script: &Block) -> Result<(), Vec<Diagnostic>> {
    let (named, itself, own) = (named(source, script), FilePlace::of_argument(file), own_outputs());
    // The index in `named` of the first statement that names each file.
    let mut first: HashMap<Key<'_>, usize> = HashMap::new();
    let mut errors = Vec::new();
    for (index, save) in named.iter().enumerate() {
        let firsts: Vec<usize> = save.place.keys().map(|key| *first.entry(key).or_insert(index)).collect();
        if !save.saved {
            continue;
        }
        if save.place.is_same_file(&itself) {
            errors.push(
                Diagnostic::new(save.path.span, "this file is the script itself, which would be lost")
                    .with_help("save under another name"),
            );
            continue;
        }
        if let Some((name, _)) = own.iter().find(|(_, own)| own.is_same_file(&save.place)) {
            errors.push(
                Diagnostic::new(
                    save.path.span,
                    format!("this file is the one that {name} goes to: one of the two would be lost"),
                )
                .with_help("save under another name"),
            );
            continue;
        }
        if let Some(load) = firsts.iter().map(|first| &named[*first]).find(|first| !first.saved) {
            let line = source.position(load.path.span.start).line;
            errors.push(
                Diagnostic::new(save.path.span, format!("this file is an input, loaded in line {line}"))
                    .with_help("what a script loads before it has saved it stays as it is: save under another name"),
            );
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// Refuses an option whose file the command also reads, or also writes for another reason; `options` are the options that were
/// given, with their files.
///
/// # Errors
/// A message of one line about the first such option.
pub(crate) fn check_options(
    source: &Source,
    file: &Path,
    script: &Block,
    options: &[(&'static str, &Path)],
) -> Result<(), String> {
    if options.is_empty() {
        return Ok(());
    }
    let (named, itself, own) = (named(source, script), FilePlace::of_argument(file), own_outputs());
    let places: Vec<FilePlace> = options.iter().map(|(_, path)| FilePlace::of(path)).collect();
    for (index, ((option, path), place)) in options.iter().zip(&places).enumerate() {
        let refuse = |why: String| {
            Err(format!("{}: error: {option} {why}; name another file", printable(&path.display().to_string())))
        };
        if place.is_same_file(&itself) {
            return refuse("would overwrite the script".into());
        }
        if let Some(named) = named.iter().find(|named| named.place.is_same_file(place)) {
            let (name, line) = (printable(&named.path.value), source.position(named.path.span.start).line);
            return refuse(if named.saved {
                format!("writes the file that line {line} of the script saves, {name:?}: one of the two would be lost")
            } else {
                format!("would overwrite what line {line} of the script loads, {name:?}")
            });
        }
        if let Some(other) = places[..index].iter().position(|other| other.is_same_file(place)) {
            return refuse(format!("writes the file of {}: one of the two would be lost", options[other].0));
        }
        if let Some((name, _)) = own.iter().find(|(_, own)| own.is_same_file(place)) {
            return refuse(format!("writes the file that {name} goes to: one of the two would be lost"));
        }
    }
    Ok(())
}

/// The files that stdout and stderr go to, if they go to files.
#[cfg(unix)]
fn own_outputs() -> Vec<(&'static str, FilePlace)> {
    use std::fs::File;
    use std::io::{stderr, stdout};
    use std::os::fd::AsFd;

    let place = |copy: std::io::Result<std::os::fd::OwnedFd>| FilePlace::of_open(&File::from(copy.ok()?));
    let out = place(stdout().as_fd().try_clone_to_owned()).map(|place| ("stdout", place));
    let err = place(stderr().as_fd().try_clone_to_owned()).map(|place| ("stderr", place));
    out.into_iter().chain(err).collect()
}

#[cfg(not(unix))]
fn own_outputs() -> Vec<(&'static str, FilePlace)> {
    Vec::new()
}
