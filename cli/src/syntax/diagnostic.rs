//! Messages about a script, and their text.
//!
//! The first line is plain text for `grep` and editors: `file:line:column: error: text`. Below it stands the line of the script,
//! with the place underlined. A line may have any length, so the excerpt is cut to a window around the place.
//!
//! Nothing that is printed can send the terminal an escape sequence from a file: control characters are escaped in messages
//! ([`printable()`]) and in the output of a script ([`without_controls`](crate::base::printable::without_controls)). In the excerpt
//! each is replaced by one character, so that the underlined place stays correct.

use std::fmt::Write as _;

use crate::base::engine::Site;
use crate::base::printable::printable;
use crate::syntax::source::{Source, Span};

/// Most messages that are shown for one script; later messages usually follow from the first ones.
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
    /// Does this error only follow from another error that was reported? Such an echo is not shown.
    pub echo: bool,
    /// The `scope` blocks around the place, such as `encoder > layer 3`.
    pub scope: Option<String>,
}

impl Diagnostic {
    /// An error at `span`, in the scope that this thread has entered.
    pub fn new(span: Span, message: impl Into<String>) -> Self {
        let scope = Site::caller().scope().map(|scope| scope.to_string());
        Self { span, message: message.into(), help: None, echo: false, scope }
    }

    /// The same error in another scope, or in none.
    #[must_use]
    pub fn in_scope(self, scope: Option<String>) -> Self {
        Self { scope, ..self }
    }

    /// Adds advice.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Adds advice, if there is any, after the advice that was added before.
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
            "{}:{}:{}: error: {}{}",
            source.name(),
            position.line,
            position.column,
            printable(&self.message),
            self.scope.as_ref().map_or_else(String::new, |scope| format!(" (in {})", printable(scope)))
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

/// A line of a script to print: tabs and control characters are replaced one for one.
fn excerpt(line: &str) -> String {
    let shown = |c: char| match c {
        '\t' => ' ',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    line.chars().map(shown).collect()
}

/// The part of `line` that shows the `marked` characters from `column`, and the column at which they begin in this part.
fn window(line: &str, column: usize, marked: usize) -> (String, usize) {
    let length = line.chars().count();
    if length <= EXCERPT_WIDTH {
        return (excerpt(line), column);
    }
    // A third of the window is before the place, or more if the line ends soon.
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
