//! Turns text into tokens.
//!
//! Ends of lines are tokens, because a statement ends with its line. At a character that starts no token the lexer gives up the
//! rest of the line: it keeps the tokens before, adds one [`TokenKind::Bad`] for the rest, and records one message, so that a line
//! of noise gives one message and not a hundred.

use crate::syntax::diagnostic::Diagnostic;
use crate::syntax::habits;
use crate::syntax::source::{Source, Span};

/// Longest word, in bytes: longer than any name that a person types.
pub const MAX_WORD: usize = 64;

/// Longest line that is read, in bytes. A statement is one line, and its longest part is a path, which systems limit to 4096 bytes.
/// A longer line means that a data file was given by mistake.
pub const MAX_LINE: usize = 1 << 16;

/// Most messages that the lexer and the parser keep together.
pub(crate) const MAX_ERRORS: usize = 1000;

/// The kinds of tokens.
#[derive(Clone, Debug, PartialEq)]
pub enum TokenKind {
    /// A name or a keyword: a letter or `_`, then letters, digits, `_`.
    Word(String),
    /// `cpu:0`: a word, a colon and an index without a space between.
    Device(String),
    /// A number without a fraction, from [`i64::MIN`] to [`u64::MAX`].
    Int(i128),
    /// Any other number, also `-inf`.
    Float(f64),
    /// Text in double quotes, escapes resolved.
    Text(String),
    /// `=`
    Equals,
    /// `==`
    Same,
    /// `~=`
    Close,
    /// `..`
    Range,
    /// `->`
    Arrow,
    /// `(`
    Open,
    /// `)`
    Shut,
    /// `{`
    Begin,
    /// `}`
    End,
    /// The end of a line.
    Newline,
    /// The rest of a line about which there is already a message.
    Bad,
    /// The end of the text.
    Eof,
}

impl TokenKind {
    /// The token as messages name it.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Word(word) => format!("`{word}`"),
            Self::Device(device) => format!("`{device}`"),
            Self::Int(number) => format!("the number {number}"),
            Self::Float(number) => format!("the number {number}"),
            Self::Text(_) => "a text in quotes".into(),
            Self::Equals => "`=`".into(),
            Self::Same => "`==`".into(),
            Self::Close => "`~=`".into(),
            Self::Range => "`..`".into(),
            Self::Arrow => "`->`".into(),
            Self::Open => "`(`".into(),
            Self::Shut => "`)`".into(),
            Self::Begin => "`{`".into(),
            Self::End => "`}`".into(),
            Self::Newline => "the end of the line".into(),
            Self::Bad => "unreadable text".into(),
            Self::Eof => "the end of the script".into(),
        }
    }
}

/// A token and its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Its kind.
    pub kind: TokenKind,
    /// Its place.
    pub span: Span,
}

/// Splits a script into tokens; the last one is always [`TokenKind::Eof`].
#[must_use]
pub fn tokenize(source: &Source) -> (Vec<Token>, Vec<Diagnostic>) {
    let mut lexer = Lexer { text: source.text(), at: 0, tokens: Vec::new(), errors: Vec::new() };
    if lexer.text.starts_with('\u{feff}') {
        lexer.at = '\u{feff}'.len_utf8(); // a byte order mark, as some editors write it
    }
    lexer.run();
    (lexer.tokens, lexer.errors)
}

struct Lexer<'a> {
    text: &'a str,
    at: usize,
    tokens: Vec<Token>,
    errors: Vec<Diagnostic>,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn push(&mut self, kind: TokenKind, start: usize) {
        self.tokens.push(Token { kind, span: Span::new(start, self.at) });
    }

    fn take_while(&mut self, accept: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let length = rest.find(|c| !accept(c)).unwrap_or(rest.len());
        self.at += length;
        &rest[..length]
    }

    /// Skips the rest of the line and records one message.
    fn bad_line(&mut self, error: Diagnostic, start: usize) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(error);
        }
        let before = self.at;
        let skipped = self.take_while(|c| c != '\n').trim_end();
        match skipped.strip_suffix('{') {
            // The parser skips the block that the line opens, too.
            Some(others) => {
                let brace = before + others.len();
                self.tokens.push(Token { kind: TokenKind::Bad, span: Span::new(start, brace) });
                self.push(TokenKind::Begin, brace);
            }
            None => self.push(TokenKind::Bad, start),
        }
    }

    /// Does the line begin with `if` or `while`?
    fn is_condition(&self) -> bool {
        let begin = self.tokens.iter().rposition(|token| token.kind == TokenKind::Newline).map_or(0, |at| at + 1);
        let mut words = self.tokens[begin..].iter().map(|token| &token.kind);
        words.any(|kind| matches!(kind, TokenKind::Word(word) if word == "if" || word == "while"))
    }

    /// Skips a line that is too long.
    fn long_line(&mut self) {
        let start = self.at;
        let line = self.rest().split('\n').next().unwrap_or_default();
        if line.len() > MAX_LINE {
            let message = format!("a line of {} bytes, expected at most {MAX_LINE}", line.len());
            self.bad_line(Diagnostic::new(Span::new(start, start), message), start);
        }
    }

    fn run(&mut self) {
        self.long_line();
        while let Some(c) = self.peek() {
            let start = self.at;
            let simple = match c {
                '\n' => Some((TokenKind::Newline, 1)),
                '(' => Some((TokenKind::Open, 1)),
                ')' => Some((TokenKind::Shut, 1)),
                '{' => Some((TokenKind::Begin, 1)),
                '}' => Some((TokenKind::End, 1)),
                '=' if self.rest().starts_with("==") => Some((TokenKind::Same, 2)),
                '=' => Some((TokenKind::Equals, 1)),
                '~' if self.rest().starts_with("~=") => Some((TokenKind::Close, 2)),
                '.' if self.rest().starts_with("..") => Some((TokenKind::Range, 2)),
                '-' if self.rest().starts_with("->") => Some((TokenKind::Arrow, 2)),
                _ => None,
            };
            if let Some((kind, length)) = simple {
                self.at += length;
                self.push(kind, start);
                if c == '\n' {
                    self.long_line();
                }
                continue;
            }
            let result = match c {
                ' ' | '\t' | '\r' => {
                    self.at += 1;
                    Ok(())
                }
                '#' => {
                    self.take_while(|c| c != '\n');
                    Ok(())
                }
                '"' => self.text_literal(),
                '0'..='9' => self.number(),
                '-' if self.number_follows_minus() => self.number(),
                'a'..='z' | 'A'..='Z' | '_' => self.word(),
                other => Err(Diagnostic::new(
                    Span::new(start, start + other.len_utf8()),
                    format!("unexpected character {other:?}, expected a word, a number or a text in quotes"),
                )
                .with_help_if(habits::of_text(self.rest()).map(str::to_owned))
                .with_help_if(self.is_condition().then(|| habits::CONDITION.to_owned()))),
            };
            if let Err(error) = result {
                self.bad_line(error, start);
            }
        }
        let end = self.text.len();
        self.push(TokenKind::Eof, end);
    }

    fn number_follows_minus(&self) -> bool {
        let rest = &self.rest()[1..];
        rest.starts_with(|c: char| c.is_ascii_digit()) || rest.starts_with("inf")
    }

    fn word(&mut self) -> Result<(), Diagnostic> {
        let start = self.at;
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let word = self.take_while(is_word);
        if word.len() > MAX_WORD {
            return Err(Diagnostic::new(
                Span::new(start, self.at),
                format!("a word of {} letters, expected at most {MAX_WORD}", word.len()),
            ));
        }
        let mut following = self.rest().chars();
        if following.next() == Some(':') && following.next().is_some_and(|c| c.is_ascii_digit()) {
            self.at += 1;
            self.take_while(is_word);
            self.push(TokenKind::Device(self.text[start..self.at].to_owned()), start);
        } else {
            self.push(TokenKind::Word(word.to_owned()), start);
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), Diagnostic> {
        let start = self.at;
        if self.peek() == Some('-') {
            self.at += 1;
        }
        if self.rest().starts_with("inf") {
            self.at += 3;
            self.push(TokenKind::Float(f64::NEG_INFINITY), start);
            return Ok(());
        }
        self.take_while(|c| c.is_ascii_digit());
        let mut whole = true;
        // The text `0..16` is a range, `0.5` a number.
        if self.rest().starts_with('.') && !self.rest().starts_with("..") {
            whole = false;
            self.at += 1;
            self.take_while(|c| c.is_ascii_digit());
        }
        if self.rest().starts_with(['e', 'E']) {
            whole = false;
            self.at += 1;
            if self.rest().starts_with(['+', '-']) {
                self.at += 1;
            }
            self.take_while(|c| c.is_ascii_digit());
        }
        let tail = self.take_while(|c| c.is_ascii_alphanumeric() || c == '_');
        let literal = &self.text[start..self.at];
        let span = Span::new(start, self.at);
        let bad = |why: &str| Diagnostic::new(span, format!("`{}` {why}", short(literal)));
        if !tail.is_empty() {
            return Err(bad("is neither a number nor a name"));
        }
        let kind = if whole {
            let number = literal.parse().ok().filter(|number| (i64::MIN.into()..=u64::MAX.into()).contains(number));
            TokenKind::Int(number.ok_or_else(|| bad("does not fit 64 bits"))?)
        } else {
            TokenKind::Float(literal.parse().map_err(|_| bad("is not a number"))?)
        };
        self.push(kind, start);
        Ok(())
    }

    fn text_literal(&mut self) -> Result<(), Diagnostic> {
        let start = self.at;
        self.at += 1;
        let mut text = String::new();
        loop {
            let piece = self.take_while(|c| !matches!(c, '"' | '\\' | '\n'));
            text.push_str(piece);
            match self.peek() {
                Some('"') => {
                    self.at += 1;
                    self.push(TokenKind::Text(text), start);
                    return Ok(());
                }
                Some('\\') => {
                    let escape = self.rest().chars().nth(1);
                    text.push(match escape {
                        Some('n') => '\n',
                        Some('t') => '\t',
                        Some('"') => '"',
                        Some('\\') => '\\',
                        _ => {
                            return Err(Diagnostic::new(
                                Span::new(self.at, self.at + 1),
                                "unknown escape in a text, expected \\\" \\\\ \\n or \\t",
                            ));
                        }
                    });
                    self.at += 2;
                }
                _ => {
                    return Err(Diagnostic::new(
                        Span::new(start, self.at),
                        "this text has no closing quote on its line",
                    ));
                }
            }
        }
    }
}

/// A literal cut to a length that fits a message.
fn short(literal: &str) -> String {
    const SHOWN: usize = 24;
    if literal.len() <= SHOWN { literal.to_owned() } else { format!("{}...", &literal[..SHOWN]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<TokenKind> {
        let (tokens, errors) = tokenize(&Source::from_text("t", "", text));
        assert_eq!(errors, []);
        tokens.into_iter().map(|token| token.kind).collect()
    }

    fn first_error(text: &str) -> (usize, String) {
        let (_, errors) = tokenize(&Source::from_text("t", "", text));
        (errors[0].span.start, errors[0].message.clone())
    }

    #[test]
    fn numbers_ranges_and_devices() {
        use TokenKind::*;
        assert_eq!(kinds("0..16"), [Int(0), Range, Int(16), Eof]);
        assert_eq!(kinds("-1 2.5 1e-4 .. 3."), [Int(-1), Float(2.5), Float(1e-4), Range, Float(3.0), Eof]);
        assert_eq!(
            kinds("18446744073709551615 -9223372036854775808")[..2],
            [Int(u64::MAX.into()), Int(i64::MIN.into())]
        );
        assert_eq!(kinds("-inf"), [Float(f64::NEG_INFINITY), Eof]);
        assert_eq!(kinds("cuda:0 a"), [Device("cuda:0".into()), Word("a".into()), Eof]);
    }

    #[test]
    fn comments_line_ends_and_texts() {
        use TokenKind::*;
        assert_eq!(kinds("a # b\r\n\"x\\\"y\""), [Word("a".into()), Newline, Text("x\"y".into()), Eof]);
        assert_eq!(kinds("\u{feff}a"), [Word("a".into()), Eof]);
        assert_eq!(kinds("~= == ="), [Close, Same, Equals, Eof]);
    }

    #[test]
    fn one_message_for_a_line_of_noise() {
        let (tokens, errors) = tokenize(&Source::from_text("t", "", "a $%&/ @@ b\nc"));
        assert_eq!(errors.len(), 1);
        assert_eq!(errors[0].span, Span::new(2, 3));
        assert_eq!(tokens.len(), 5); // a, bad, newline, c, eof
    }

    #[test]
    fn a_line_has_a_length() {
        let long = format!("a\n# {}\nb", "x".repeat(MAX_LINE));
        let (tokens, errors) = tokenize(&Source::from_text("t", "", long));
        assert_eq!(errors.len(), 1);
        assert_eq!(errors[0].message, "a line of 65538 bytes, expected at most 65536");
        assert_eq!(errors[0].span.start, 2);
        assert_eq!(tokens.len(), 6); // a, newline, bad, newline, b, eof
        assert_eq!(kinds(&format!("# {}", "x".repeat(MAX_LINE - 2))), [TokenKind::Eof]);
        assert_eq!(first_error(&"x ".repeat(MAX_LINE)).0, 0);
    }

    #[test]
    fn noise_on_every_line_is_counted_to_a_limit() {
        let (tokens, errors) = tokenize(&Source::from_text("t", "", "$\n".repeat(10 * MAX_ERRORS)));
        assert_eq!(errors.len(), MAX_ERRORS);
        assert_eq!(tokens.len(), 20 * MAX_ERRORS + 1);
    }

    #[test]
    fn bad_literals_are_named() {
        assert!(first_error("x 12abc").1.contains("`12abc` is neither"));
        for number in ["99999999999999999999", "18446744073709551616", "-9223372036854775809", &"9".repeat(99)] {
            assert!(first_error(number).1.contains("64 bits"), "{number}");
        }
        assert_eq!(first_error("a \"open").0, 2);
        assert_eq!(first_error("\"\\q\"").0, 1);
        assert!(first_error("1e").1.contains("not a number"));
    }
}
