//! From text to tokens.

use crate::text::syntax::ParseError;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    /// A name, a directive with its dot, or an opcode with its dots.
    Name(String),
    Integer(u64),
    F32(u32),
    F64(u64),
    /// A number with a point, of `.version` alone.
    Version(String),
    Text(String),
    Sign(char),
}

/// The tokens of a text with their lines, without comments.
pub(crate) fn tokens(text: &str) -> Result<Vec<(u32, Token)>, ParseError> {
    let mut tokens = Vec::new();
    let mut in_comment = false;
    for (place, whole) in text.lines().enumerate() {
        let line = place as u32 + 1;
        let mut rest = whole;
        loop {
            if in_comment {
                let Some(end) = rest.find("*/") else { break };
                (rest, in_comment) = (&rest[end + 2..], false);
            }
            rest = rest.trim_start();
            if let Some(after) = rest.strip_prefix("/*") {
                (rest, in_comment) = (after, true);
                continue;
            }
            let Some(first) = rest.chars().next().filter(|_| !rest.starts_with("//")) else { break };
            let length = if first == '"' {
                let end = rest[1..].find('"').ok_or_else(|| ParseError::new(line, "a string has no end"))?;
                tokens.push((line, Token::Text(rest[1..=end].to_owned())));
                end + 2
            } else if is_of_name(first) {
                let end = rest.find(|char| !is_of_name(char)).unwrap_or(rest.len());
                let word = &rest[..end];
                tokens.push((
                    line,
                    if first.is_ascii_digit() { number(line, word)? } else { Token::Name(word.to_owned()) },
                ));
                end
            } else if "{}[]()<>,;:=+-@!|".contains(first) {
                tokens.push((line, Token::Sign(first)));
                1
            } else {
                return Err(ParseError::new(line, format!("the character {first:?} has no meaning in PTX")));
            };
            rest = &rest[length..];
        }
    }
    if in_comment {
        return Err(ParseError::new(text.lines().count() as u32, "a comment has no end"));
    }
    Ok(tokens)
}

fn is_of_name(char: char) -> bool {
    char.is_ascii_alphanumeric() || "._$%".contains(char)
}

fn number(line: u32, word: &str) -> Result<Token, ParseError> {
    let of_base = |digits: &str, base| u64::from_str_radix(digits.trim_end_matches('U'), base);
    let parsed = match word.as_bytes() {
        [b'0', b'f' | b'F', digits @ ..] if digits.len() == 8 => {
            of_base(&word[2..], 16).map(|bits| Token::F32(bits as u32))
        }
        [b'0', b'd' | b'D', digits @ ..] if digits.len() == 16 => of_base(&word[2..], 16).map(Token::F64),
        [b'0', b'x' | b'X', ..] => of_base(&word[2..], 16).map(Token::Integer),
        _ if word.contains('.') => return Ok(Token::Version(word.to_owned())),
        _ => of_base(word, 10).map(Token::Integer),
    };
    parsed.map_err(|error| ParseError::new(line, format!("{word} is no number: {error}")))
}
