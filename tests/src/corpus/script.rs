//! Checks scripts: from bytes to tokens, statements, errors and a plan.

use std::path::Path;

use streamvm::{DeviceId, InstructionList};
use streamvm_cli::analysis::check::check as check_script;
use streamvm_cli::analysis::plan::plan;
use streamvm_cli::emit::devices::{Available, Devices};
use streamvm_cli::syntax::diagnostic::{Diagnostic, render_all};
use streamvm_cli::syntax::lexer::{TokenKind, tokenize};
use streamvm_cli::syntax::parser::parse;
use streamvm_cli::syntax::source::{ReadError, Source};

/// The folder of the files that scripts may load.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../cli/tests/scripts");

/// Plans a script; each of its errors must have a place in the text.
pub(super) fn check(data: &[u8]) {
    let source = match Source::from_bytes("fuzz.svm", Path::new(FOLDER), data.to_vec()) {
        Ok(source) => source,
        Err(ReadError::File(message)) => return assert!(message.contains("error")),
        Err(ReadError::Text(found)) => {
            let (source, diagnostic) = *found;
            return shown(&[diagnostic], &source);
        }
    };
    tokens_cover_the_text(&source);
    let available = Available { devices: vec![DeviceId::cpu(0)], planning: true, ..Available::default() };
    let planned = parse(&source).and_then(|script| {
        let devices = Devices::resolve(&script, available)?;
        check_script(&source, &script, &devices)?;
        plan(&source, &script, &devices).map_err(|diagnostic| vec![diagnostic])
    });
    match planned {
        Ok(planned) => {
            let text = planned.list.to_string();
            let again = InstructionList::parse(&text)
                .unwrap_or_else(|error| panic!("{error}, in the plan\n{text}\nof\n{}", source.text()));
            assert_eq!(again.to_string(), text);
        }
        Err(errors) => {
            assert!(!errors.is_empty(), "a script was refused without a reason");
            shown(&errors, &source);
        }
    }
}

/// Tokens must be in order, end with one `Eof`, and lie on character boundaries.
fn tokens_cover_the_text(source: &Source) {
    let (tokens, _) = tokenize(source);
    let mut end = 0;
    for token in &tokens {
        assert!(token.span.start >= end && token.span.end >= token.span.start, "{token:?} stands before {end}");
        assert!(source.text().get(token.span.start..token.span.end).is_some(), "{token:?} splits a character");
        end = token.span.end.max(token.span.start);
    }
    let ends = tokens.iter().filter(|token| token.kind == TokenKind::Eof).count();
    assert!(ends == 1 && tokens.last().is_some_and(|token| token.kind == TokenKind::Eof), "{ends} ends");
}

/// Messages must be short, printable, and refer to places in the text.
fn shown(errors: &[Diagnostic], source: &Source) {
    for error in errors {
        let text = source.text();
        assert!(error.span.start <= error.span.end && error.span.end <= text.len(), "{error:?} points past the text");
    }
    let text = render_all(errors, source);
    assert!(text.starts_with("fuzz.svm:") && text.len() < 64 << 10, "{text}");
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
}
