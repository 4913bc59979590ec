//! Messages about a script, and how they look.
//!
//! The first line is plain and made for `grep` and editors: `file:line:column: error: text`. Below it
//! stands the line of the script with the place underlined. A line of noise may hold anything, so the
//! excerpt is cut to a window around the place. Control characters are escaped in messages ([`printable`]) and what a script
//! prints ([`without_controls`]), and replaced one by one in the excerpt, so that the place stays underlined: nothing that is
//! printed sends the terminal an escape sequence from a file.

use std::borrow::Cow;
use std::fmt::Write as _;

use crate::source::{Source, Span};

/// Most messages that are shown for one script; what follows is usually an echo of the first ones.
pub const MAX_SHOWN: usize = 20;

/// Widest excerpt of a script line, in characters: fits a terminal of 100 columns with its margin.
const EXCERPT_WIDTH: usize = 88;

/// One message about one place in a script.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagnostic {
    /// The place.
    pub span: Span,
    /// What was found and what was expected, in one line.
    pub message: String,
    /// What to do about it.
    pub help: Option<String>,
    /// Does it only follow from an error that has been reported? Then nobody needs to see it.
    pub echo: bool,
}

impl Diagnostic {
    /// An error at `span`.
    pub fn new(span: Span, message: impl Into<String>) -> Self {
        Self { span, message: message.into(), help: None, echo: false }
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Adds what to do about it, if anything is known, behind what was added before.
    #[must_use]
    pub fn with_help_if(mut self, help: Option<String>) -> Self {
        self.help = match (self.help, help) {
            (Some(before), Some(more)) => Some(format!("{before}; {more}")),
            (before, more) => before.or(more),
        };
        self
    }

    /// The message with its excerpt, ending in a newline.
    #[must_use]
    pub fn render(&self, source: &Source) -> String {
        let position = source.position(self.span.start);
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "{}:{}:{}: error: {}",
            source.name(),
            position.line,
            position.column,
            printable(&self.message)
        );
        let line = source.line(position.line);
        let marked = source
            .text()
            .get(self.span.start..self.span.end)
            .map_or(1, |text| text.split('\n').next().unwrap_or_default().chars().count())
            .max(1);
        let (shown, offset) = window(line, position.column - 1, marked);
        let number = position.line.to_string();
        let margin = " ".repeat(number.len());
        let room = shown.chars().count().saturating_sub(offset).max(1);
        let _ = writeln!(out, " {number} | {shown}");
        let _ = writeln!(out, " {margin} | {}{}", " ".repeat(offset), "^".repeat(marked.min(room)));
        if let Some(help) = &self.help {
            let _ = writeln!(out, " {margin} = help: {}", printable(help));
        }
        out
    }
}

/// Renders the first [`MAX_SHOWN`] messages in the order of the text, then says how many there are.
#[must_use]
pub fn render_all(diagnostics: &[Diagnostic], source: &Source) -> String {
    let mut sorted: Vec<&Diagnostic> = diagnostics.iter().collect();
    sorted.sort_by_key(|diagnostic| diagnostic.span.start);
    let mut out: String = sorted.iter().take(MAX_SHOWN).map(|diagnostic| diagnostic.render(source)).collect();
    if sorted.len() > MAX_SHOWN {
        let _ = writeln!(out, "{}: {} errors, the first {MAX_SHOWN} are shown", source.name(), sorted.len());
    }
    out
}

/// Longest text of a message, in characters; only what a script or a file put into it is as long.
const LONGEST_MESSAGE: usize = 1000;

/// Text with control characters escaped and of bounded length, whatever it came from; a tab becomes a space.
#[must_use]
pub fn printable(text: &str) -> String {
    let cut = if text.len() > LONGEST_MESSAGE { text.char_indices().nth(LONGEST_MESSAGE) } else { None };
    let (text, dots) = cut.map_or((text, ""), |(at, _)| (&text[..at], "..."));
    let mut out = String::with_capacity(text.len());
    for c in text.chars().map(|c| if c == '\t' { ' ' } else { c }) {
        if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out + dots
}

/// Text whose lines and tabs are as they were, and whose other control characters are escaped.
#[must_use]
pub fn without_controls(text: &str) -> Cow<'_, str> {
    let escaped = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(escaped) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if escaped(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    Cow::Owned(out)
}

/// A line of a script, with a character for each.
fn excerpt(line: &str) -> String {
    let shown = |c: char| match c {
        '\t' => ' ',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    line.chars().map(shown).collect()
}

/// The part of `line` that shows the `marked` characters from `column`, and where they begin in it.
fn window(line: &str, column: usize, marked: usize) -> (String, usize) {
    let length = line.chars().count();
    if length <= EXCERPT_WIDTH {
        return (excerpt(line), column);
    }
    // A third of the window stands before the place, more if the line ends soon.
    let last = length.saturating_sub(EXCERPT_WIDTH);
    let mut first = column.saturating_sub(EXCERPT_WIDTH / 3).min(last);
    if column + marked <= EXCERPT_WIDTH {
        first = 0;
    }
    let part: String = line.chars().skip(first).take(EXCERPT_WIDTH).collect();
    let before = if first > 0 { "..." } else { "" };
    let after = if first < last { "..." } else { "" };
    (format!("{before}{}{after}", excerpt(&part)), column - first + before.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_plain_and_the_place_is_underlined() {
        let source = Source::from_text("x.svm", "", "let a = 1\nlet b = foo a\n");
        let shown = Diagnostic::new(Span::new(18, 21), "unknown").with_help("try").render(&source);
        assert_eq!(shown, "x.svm:2:9: error: unknown\n 2 | let b = foo a\n   |         ^^^\n   = help: try\n");
    }

    #[test]
    fn noise_is_cut_and_made_printable() {
        let text = "\u{1b}[31m".repeat(100_000);
        let source = Source::from_text("x.svm", "", text);
        for at in [0, 1, 250_000, 499_999, 500_000] {
            let shown = Diagnostic::new(Span::new(at, at + 1), "noise \u{1b}").render(&source);
            assert!(shown.len() < 1000 && !shown.contains('\u{1b}'), "{shown}");
            let lines: Vec<&str> = shown.lines().collect();
            let caret = lines[2].chars().position(|c| c == '^');
            assert!(caret.is_some_and(|caret| caret <= lines[1].chars().count()), "{shown}");
        }
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(printable("a\u{1b}[31m\tb\nc\u{9b}"), "a\\u{1b}[31m b\\nc\\u{9b}");
        assert_eq!(without_controls("a\u{1b}[31m\tb\nc\r"), "a\\u{1b}[31m\tb\nc\\r");
        let source = Source::from_text("x\u{7}.svm", "", "let\u{7} a");
        let shown = Diagnostic::new(Span::new(5, 6), "bad").render(&source);
        assert_eq!(shown, "x\\u{7}.svm:1:6: error: bad\n 1 | let\u{fffd} a\n   |      ^\n");
    }

    #[test]
    fn only_the_first_messages_are_shown() {
        let source = Source::from_text("x.svm", "", "a\n".repeat(100));
        let many: Vec<_> = (0..100).map(|line| Diagnostic::new(Span::new(line * 2, line * 2 + 1), "bad")).collect();
        let shown = render_all(&many, &source);
        assert_eq!(shown.matches("error: bad").count(), MAX_SHOWN);
        assert!(shown.ends_with("x.svm: 100 errors, the first 20 are shown\n"));
    }
}
