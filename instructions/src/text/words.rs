//! The words of a line of text, and the values that they stand for.

use std::str::FromStr;

use streamvm_ep::{Convolution, DType, Extra, Params, Pooling, Priority, Scalar, Shape};

use crate::list::kind::{Ahead, LaunchOptions};

/// Why a text is not an instruction list.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: expected {expected}, found {found:?}")]
pub struct ParseListError {
    /// The line of the text, counted from 1.
    pub line: usize,
    /// What was expected there.
    pub expected: String,
    /// The text that was found there.
    pub found: String,
}

streamvm_ep::debug_as_display!(ParseListError);

/// The words of one line; quoted text is one word.
pub(super) struct Words<'a> {
    pub(super) rest: &'a str,
    pub(super) line: usize,
}

impl<'a> Words<'a> {
    pub(super) fn peek(&self) -> &'a str {
        self.rest.split_whitespace().next().unwrap_or("")
    }

    pub(super) fn next(&mut self) -> &'a str {
        let text = self.rest.trim_start();
        let end = text.find(char::is_whitespace).unwrap_or(text.len());
        self.rest = &text[end..];
        &text[..end]
    }

    pub(super) fn error(&self, expected: &str, found: &str) -> ParseListError {
        let found = found.chars().take(160).collect();
        ParseListError { line: self.line, expected: expected.to_owned(), found }
    }

    /// Returns an error if `found` is more than `most`.
    pub(super) fn at_most(&self, most: usize, found: usize, what: &str) -> Result<(), ParseListError> {
        if found <= most { Ok(()) } else { Err(self.error(&format!("at most {most} {what}"), &found.to_string())) }
    }

    pub(super) fn parse<T: FromStr>(&mut self, expected: &str) -> Result<T, ParseListError> {
        let word = self.next();
        word.parse().map_err(|_| self.error(expected, word))
    }

    pub(super) fn expect(&mut self, word: &str) -> Result<(), ParseListError> {
        let found = self.next();
        if found == word { Ok(()) } else { Err(self.error(word, found)) }
    }

    /// Consumes the next word if it is `word`, and returns whether it was.
    pub(super) fn take(&mut self, word: &str) -> bool {
        let found = self.peek() == word;
        if found {
            self.next();
        }
        found
    }

    /// Parses the launch options of a function.
    pub(super) fn launch(&mut self) -> LaunchOptions {
        let priority = match self.take("high") {
            true => Priority::High,
            false if self.take("low") => Priority::Low,
            false => Priority::Normal,
        };
        let clean_up = self.take("cleanup");
        let ahead = match self.take("direct") {
            true => Ahead::Direct,
            false if self.take("first") => Ahead::First,
            false => Ahead::No,
        };
        LaunchOptions { priority, clean_up, ahead }
    }

    pub(super) fn end(&mut self) -> Result<(), ParseListError> {
        self.expect("").map_err(|error| ParseListError { expected: "the end of the line".to_owned(), ..error })
    }

    /// Parses a text in quotes, as `{:?}` writes it.
    pub(super) fn quoted(&mut self) -> Result<String, ParseListError> {
        let text = self.rest.trim_start();
        let refuse = || self.error("a name in quotes", text);
        let mut chars = text.strip_prefix('"').ok_or_else(refuse)?.char_indices();
        let mut name = String::new();
        while let Some((at, char)) = chars.next() {
            match char {
                '"' => {
                    self.rest = &text[1 + at + 1..];
                    return Ok(name);
                }
                '\\' => name.push(unescape(&mut chars).ok_or_else(refuse)?),
                char => name.push(char),
            }
        }
        Err(refuse())
    }
}

fn unescape(chars: &mut std::str::CharIndices<'_>) -> Option<char> {
    Some(match chars.next()?.1 {
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        '0' => '\0',
        'u' => {
            if chars.next()?.1 != '{' {
                return None;
            }
            let digits: String = chars.map(|(_, char)| char).take_while(|char| *char != '}').collect();
            char::from_u32(u32::from_str_radix(&digits, 16).ok()?)?
        }
        char @ ('"' | '\'' | '\\') => char,
        _ => return None,
    })
}

/// Parses a type such as `f32[2,3]`.
pub(super) fn typed(words: &mut Words<'_>) -> Result<(DType, Shape), ParseListError> {
    const FORM: &str = "a type such as f32[2,3]";
    let word = words.next();
    let parse = || {
        let (dtype, dims) = word.strip_suffix(']')?.split_once('[')?;
        Some((dtype.parse().ok()?, Shape::new(&numbers(dims)?).ok()?))
    };
    parse().ok_or_else(|| words.error(FORM, word))
}

pub(super) fn numbers(text: &str) -> Option<Vec<usize>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    text.split(',').map(|part| part.parse().ok()).collect()
}

/// Parses `word` and a height and a width, such as `stride 2,1`.
fn pair(words: &mut Words<'_>, word: &str) -> Result<[u16; 2], ParseListError> {
    words.expect(word)?;
    let found = words.next();
    let parse = || {
        let (height, width) = found.split_once(',')?;
        Some([height.parse().ok()?, width.parse().ok()?])
    };
    parse().ok_or_else(|| words.error("a height and a width, such as 2,1", found))
}

pub(super) fn params(words: &mut Words<'_>) -> Result<Params, ParseListError> {
    let mut params = Params::default();
    if words.peek() == "axes" {
        words.next();
        params.axes = words.parse("axes such as 0,2")?;
    }
    if words.peek() == "keep" {
        words.next();
        params.keep_dims = true;
    }
    if words.peek() == "to" {
        words.next();
        params.to = Some(words.parse("a dtype")?);
    }
    if words.peek() == "before" {
        words.next();
        let before = words.parse("how many elements come before the input")?;
        words.expect("after")?;
        let after = words.parse("how many elements come after the input")?;
        words.expect("value")?;
        params.extra = Extra::Pad { before, after, value: words.parse("a value such as 0.5, 3 or true")? };
    }
    if words.peek() == "seed" {
        words.next();
        let seed = words.parse("a seed")?;
        words.expect("at")?;
        params.extra = Extra::Random { seed, counter: words.parse("the number of a block")? };
    }
    if words.peek() == "classes" {
        words.next();
        params.extra = Extra::Classes(words.parse("how many classes there are")?);
    }
    if words.peek() == "from" {
        words.next();
        let first = words.parse("a number such as 3 or 0.5")?;
        words.expect("by")?;
        let by = words.peek();
        params.extra = match (first, words.parse("a number such as 1 or 0.25")?) {
            (Scalar::I64(first), Scalar::I64(step)) => Extra::Integers { first, step },
            (Scalar::F64(first), Scalar::F64(step)) => Extra::Floats { first: first.to_bits(), step: step.to_bits() },
            _ => return Err(words.error("two integers, or two numbers with a point", by)),
        };
    }
    if words.peek() == "diagonal" {
        words.next();
        params.extra = Extra::Diagonal(words.parse("the column minus the row of a diagonal")?);
    }
    if matches!(words.peek(), "ascending" | "descending") {
        params.extra = Extra::Order { descending: words.next() == "descending" };
    }
    if matches!(words.peek(), "largest" | "smallest") {
        let largest = words.next() == "largest";
        params.extra = Extra::Top { count: words.parse("how many elements are wanted")?, largest };
    }
    if words.peek() == "epsilon" {
        words.next();
        params.extra = Extra::Epsilon(words.parse("a number such as 1e-5")?);
    }
    if words.peek() == "stride" {
        let (stride, padding) = (pair(words, "stride")?, pair(words, "padding")?);
        let dilation = pair(words, "dilation")?;
        words.expect("groups")?;
        let groups = words.parse("a number of groups")?;
        params.extra = Extra::Convolution(Convolution { stride, padding, dilation, groups });
    }
    if words.peek() == "window" {
        let (window, stride) = (pair(words, "window")?, pair(words, "stride")?);
        params.extra = Extra::Pooling(Pooling { window, stride, padding: pair(words, "padding")? });
    }
    Ok(params)
}
